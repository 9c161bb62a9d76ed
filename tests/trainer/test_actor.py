"""An actor draws the same numbers, whether its forward pass is recorded or not."""

import pytest
import torch
from label_gpu.client import on_label_gpu, warnings

from trainer.config import network
from trainer.config.schema import ModelConfig
from trainer.machine.cuda import ACTING
from trainer.models import build_model, native
from trainer.models.actor_critic import NativeNetwork
from trainer.rollout.collector import Actor, sample
from trainer.rollout.store import decisions

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SHAPE, ACTIONS, ROWS = (4, 36, 36), 5, 16


def make_actor(
    graphs=False, seed=1, device=CPU, dtype=None, num_actions=ACTIONS, **model
):
    torch.manual_seed(0)
    return Actor(
        build_model(ModelConfig(**model), SHAPE, num_actions).to(device),
        num_actions=num_actions,
        dtype=dtype,
        generator=torch.Generator(device).manual_seed(seed),
        graphs=graphs,
    )


def rows(call, device=CPU):
    generator = torch.Generator().manual_seed(call)
    pixels = torch.randint(0, 256, (ROWS, *SHAPE), generator=generator)
    first = torch.zeros(ROWS, dtype=torch.bool)
    levels = torch.zeros(ROWS, dtype=torch.int64)
    given = pixels.to(torch.uint8), torch.zeros(ROWS, 0), first, levels
    return [each.to(device) for each in given]


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


def check_recorded_acts_like_plain():
    plain, recorded = make_actor(device=GPU), make_actor(device=GPU, graphs=True)
    for call in range(8):
        given = rows(call, GPU)
        for one, other in zip(plain(*given), recorded(*given), strict=True):
            assert torch.equal(one, other)
    torch.cuda.synchronize()
    return recorded._forward


@on_label_gpu()
def test_a_recorded_actor_acts_like_an_unrecorded_one():
    assert check_recorded_acts_like_plain()._stream.priority == ACTING


@on_label_gpu()
def test_an_actor_goes_on_after_a_failed_capture():
    said, torch.cuda.CUDAGraph = warnings(), None
    assert not check_recorded_acts_like_plain().recorded
    (message,) = said
    assert "no CUDA graph of acting" in message


@pytest.mark.skipif(len(native.PATHS) < 2, reason="no native encoder here")
@pytest.mark.parametrize("num_actions", [5, 12])
@pytest.mark.parametrize("heads", [{}, {"popart": True, "value_heads": 3}])
def test_native_decisions_are_those_of_pytorch(monkeypatch, heads, num_actions):
    """With the same noise; sums of the heads have another order."""
    options = {"dtype": torch.bfloat16, "num_actions": num_actions, **heads}
    actor, other = make_actor(**options), make_actor(**options)
    for each in (actor, other):
        each.version = 7
        if each.model.popart is not None:
            each.model.popart.mean.copy_(torch.tensor([0.5, -1.0, 3.0]))
            each.model.popart.std.copy_(torch.tensor([2.0, 0.5, 1.5]))
    for call in range(4):
        given = rows(call)
        given[3] = torch.arange(ROWS) % 3
        ours = actor(*given)
        values = actor.values(*given)
        with monkeypatch.context() as patch:
            patch.setattr(NativeNetwork, "of", lambda *_: None)
            theirs = other(*given)
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.values, theirs.values, rtol=1e-4, atol=1e-4)
        assert torch.equal(values, ours.values)
        assert torch.equal(ours.actions, theirs.actions)
        version = torch.tensor([7])
        expected = decisions(ours.actions, ours.logits, ours.values, version)
        assert torch.equal(ours.records, expected)
    assert actor._native is not None
    assert len(ours.actions.unique()) > 1


@pytest.mark.skipif(len(native.PATHS) < 2, reason="no native encoder here")
@pytest.mark.parametrize("model", [{"noisy": True}, {"memory": network.GRU(8)}])
def test_other_networks_are_left_to_pytorch(model):
    actor = make_actor(dtype=torch.bfloat16, **model)
    given = rows(0)
    given[1] = torch.zeros(ROWS, actor.model.state_size)
    actor(*given)
    assert actor._native is None
