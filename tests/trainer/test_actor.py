"""An actor draws the same numbers, whether its forward pass is recorded or not."""

from collections import defaultdict

import pytest
import torch
from fake_cuda import FakeCuda

from trainer.config.schema import ModelConfig
from trainer.machine import cuda
from trainer.models import build_model
from trainer.rollout.collector import Actor, sample

CPU = torch.device("cpu")
SHAPE, ACTIONS, ROWS = (4, 36, 36), 5, 16


def make_actor(graphs=False, noisy=False, seed=1):
    torch.manual_seed(0)
    return Actor(
        build_model(ModelConfig(noisy=noisy), SHAPE, ACTIONS),
        num_actions=ACTIONS,
        dtype=None,
        generator=torch.Generator().manual_seed(seed),
        graphs=graphs,
    )


def rows(call):
    generator = torch.Generator().manual_seed(call)
    pixels = torch.randint(0, 256, (ROWS, *SHAPE), generator=generator)
    first = torch.zeros(ROWS, dtype=torch.bool)
    levels = torch.zeros(ROWS, dtype=torch.int64)
    return pixels.to(torch.uint8), torch.zeros(ROWS, 0), first, levels


@pytest.fixture
def fake(monkeypatch):
    """Graphs of torch.cuda, of functions that run on the CPU."""
    result = FakeCuda()
    monkeypatch.setattr(cuda, "_cuda", result)
    monkeypatch.setattr(cuda, "_free_streams", defaultdict(list))
    monkeypatch.setattr(cuda, "_close_pool", lambda *of: None)
    return result


@pytest.mark.parametrize("noisy", [False, True])
def test_the_order_of_draws(noisy):
    """First the noise of the layers, then that of the actions."""
    actor, other = make_actor(noisy=noisy), make_actor(noisy=noisy)
    generator = torch.Generator().manual_seed(1)
    for call in range(3):
        given = rows(call)
        found = actor(*given)
        other.model.resample_noise(generator)
        with torch.no_grad():
            output, _ = other.model(given[0][None], given[1], given[2][None])
        assert torch.equal(found.logits, output.logits[0])
        assert torch.equal(found.actions, sample(output.logits[0], generator))
    assert len(found.actions.unique()) > 1


@pytest.mark.parametrize("noisy", [False, True])
def test_what_is_recorded_draws_nothing(monkeypatch, noisy):
    """Up to PyTorch 2.11 a capture that fails leaves its generator unusable."""
    actor = make_actor(noisy=noisy)
    states, forward = [], actor._forward

    def recorded(*tensors):
        states.append(actor._generator.get_state())
        result = forward(*tensors)
        states.append(actor._generator.get_state())
        return result

    monkeypatch.setattr(actor, "_forward", recorded)
    for call in range(3):
        actor(*rows(call))
    for before, after in zip(states[::2], states[1::2], strict=True):
        assert torch.equal(before, after)
    assert not torch.equal(states[0], states[2])


def test_an_actor_goes_on_after_a_failed_capture(fake, caplog):
    fake.capture_fails = True
    plain, recorded = make_actor(), make_actor(graphs=True)
    for call in range(8):
        for one, other in zip(plain(*rows(call)), recorded(*rows(call)), strict=True):
            assert torch.equal(one, other)
    (record,) = caplog.records
    assert "no CUDA graph of acting" in record.getMessage()


def test_acting_has_priority_over_learning(fake):
    actor = make_actor(graphs=True)
    for call in range(4):
        actor(*rows(call))
    streams = [call[2] for call in fake.calls if call[0] == "capture"]
    assert streams == ["stream 1 of high priority"]
