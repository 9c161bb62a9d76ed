"""The native gradient of PPO against that of PyTorch's operators and autograd."""

from functools import reduce

import pytest
import torch
from learners import B, T, change, close_shards, make_batch, make_learner, with_replay

from trainer.learn import gradients
from trainer.learn.ppo import FusedGradient
from trainer.models import native

pytestmark = pytest.mark.skipif(
    len(native.PATHS) < 2, reason="no native encoder for this processor"
)

# Sums of some hundred terms in another order.
ROUNDING = 1e-4
# Behind the features gradients are bfloat16: such a sum may be rounded the other way.
ENCODER_ROUNDING = 2e-3
HEAD_PARAMETERS = 4


def steps_of(config, batch, *, fused, shards=1, monkeypatch):
    """Gradients and losses of all steps of an update; steps change nothing."""
    found = []

    def keep(self, parts):
        whole = reduce(gradients._add, parts)
        copies = [gradient.clone() for gradient in whole.gradients]
        found.append((whole.terms, whole.losses.clone(), copies))

    with monkeypatch.context() as patch:
        patch.setattr(gradients.GradientStep, "_apply", keep)
        if not fused:
            patch.setattr(FusedGradient, "of", lambda learner: None)
        learner = make_learner(config, shards, torch.bfloat16)
        assert (FusedGradient.of(learner) is not None) == fused
        learner.update(batch, 50)
        close_shards(learner)
    return found


def assert_close(ours, theirs):
    assert len(ours) == len(theirs) > 0
    for (terms, losses, found), (names, values, expected) in zip(
        ours, theirs, strict=True
    ):
        assert terms == names
        torch.testing.assert_close(losses, values, rtol=ROUNDING, atol=1e-5)
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            of_head = i >= len(found) - HEAD_PARAMETERS
            tolerance = ROUNDING if of_head else ENCODER_ROUNDING
            assert (one - other).norm() <= tolerance * other.norm() + 1e-7


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip_range": 0.02, "entropy": 0.3, "entropy_end": 0.3},
        {"value_loss": "squared", "value_coef": 2.0},
        {"normalise_advantages": False},
        {"popart": True, "value_heads": 3},
        {"lag": 1},
    ],
    ids=lambda options: ",".join(options) or "defaults",
)
def test_gradients_are_those_of_autograd(options, shards, monkeypatch):
    config = change(**options)
    batch = make_batch(config)
    batch.levels[:] = torch.arange(B) % 3
    both = [
        steps_of(config, batch, fused=f, shards=shards, monkeypatch=monkeypatch)
        for f in (True, False)
    ]
    assert_close(*both)


def test_rows_of_replay_have_their_weights(monkeypatch):
    config = change(replay_share=0.5)
    batch = with_replay(make_batch(config), weight=0.25)
    batch.logits[:, -1] = torch.tensor([50.0, -50.0, 0.0])  # too far: weight 0
    both = [
        steps_of(config, batch, fused=f, monkeypatch=monkeypatch) for f in (True, False)
    ]
    assert_close(*both)


def test_a_whole_update_is_that_of_autograd(monkeypatch):
    """Clipping, optimiser, statistics and priorities behind the gradient as well."""
    config = change(optimizer="muon", max_grad_norm=0.1)
    batch = make_batch(config)
    results = []
    for fused in (True, False):
        with monkeypatch.context() as patch:
            if not fused:
                patch.setattr(FusedGradient, "of", lambda learner: None)
            learner = make_learner(config, 2, torch.bfloat16)
            start = [p.detach().clone() for p in learner.model.parameters()]
            priorities = learner.update(batch, 50)
            close_shards(learner)
        weights = [p.detach() for p in learner.model.parameters()]
        results.append((weights, priorities, learner.statistics()))
    (ours, first, told), (theirs, second, said) = results
    assert torch.equal(first, second)
    assert told.keys() == said.keys()
    for name, value in told.items():
        assert value == pytest.approx(said[name], rel=1e-3, abs=1e-5), name
    # A last bit of one step can change a rounding to bfloat16 in the next; Muon brings
    # what differs in weak directions to the size of the others.
    for one, other, before in zip(ours, theirs, start, strict=True):
        assert (one - other).norm() <= 0.05 * (other - before).norm()


@pytest.mark.parametrize(
    "options",
    [
        {"memory": "gru"},
        {"noisy": True},
        {"augment": ("shift",)},
        {"layer_norm": True},
        {"grad_accum_steps": 2},
        {"compile": True},
        {"model": "impala"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_networks_are_left_to_pytorch(options):
    learner = make_learner(change(**options), dtype=torch.bfloat16)
    assert FusedGradient.of(learner) is None


def test_float32_is_left_to_pytorch():
    assert FusedGradient.of(make_learner(change())) is None


def test_rows_count_once_in_every_epoch(monkeypatch):
    config = change(epochs=3, minibatch_size=16)
    seen = []
    monkeypatch.setattr(
        FusedGradient, "step", lambda self, fields, rows: seen.append(rows)
    )
    learner = make_learner(config, dtype=torch.bfloat16)
    learner.update(make_batch(config), 50)
    assert len(seen) == 3 * T * B // 16
    assert torch.cat(seen).bincount().tolist() == [3] * (T * B)
