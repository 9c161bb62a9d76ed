"""The update: it learns, ignores what it must, and obeys every option."""

from dataclasses import replace

import pytest
import torch

from trainer.config import LearnerConfig, ModelConfig
from trainer.device import Shards
from trainer.learner import Learner, explained_variance
from trainer.model import build_model
from trainer.rollouts import Batch

T, B, A, SHAPE = 8, 6, 3, (4, 36, 36)
SMALL = LearnerConfig(
    unroll=T, unrolls_per_batch=B, minibatch_size=16, passes=2, lr_steps=100,
    entropy_steps=100,
)  # fmt: skip


def make_batch(seed=0):
    """Random rows; column 0 terminates at row 3, column 1 is truncated there."""
    g = torch.Generator().manual_seed(seed)
    rows = (T + 1) * B
    done = torch.zeros(T + 1, B, dtype=torch.bool)
    done[3, :2] = True
    truncated = torch.zeros_like(done)
    truncated[3, 1] = True
    return Batch(
        obs=torch.randint(0, 256, (rows, *SHAPE), generator=g, dtype=torch.uint8),
        rows=torch.randperm(rows, generator=g).view(T + 1, B),
        actions=torch.randint(A, (T + 1, B), generator=g),
        logits=0.3 * torch.randn(T + 1, B, A, generator=g),
        values=torch.randn(T + 1, B, generator=g),
        rewards=torch.randn(T + 1, B, generator=g),
        done=done,
        truncated=truncated,
        versions=torch.zeros(T + 1, B, dtype=torch.int64),
    )


def make_learner(config=SMALL, shards=1, dtype=None):
    torch.manual_seed(5)
    model = build_model(ModelConfig(name="pico"), SHAPE, A)
    return Learner(
        model,
        config,
        device=torch.device("cpu"),
        dtype=dtype,
        shards=Shards(shards),
        seed=1,
    )


def weights_after(batch, config=SMALL, shards=1, step=50, dtype=None):
    learner = make_learner(config, shards, dtype)
    learner.update(batch, step)
    return torch.cat([p.detach().flatten() for p in learner.model.parameters()])


@pytest.mark.parametrize("loss", ["clip", "impala"])
def test_overfits_one_batch(loss):
    """Actions that paid become likely, those that cost unlikely."""
    batch = make_batch()
    config = replace(
        SMALL, loss=loss, passes=1, lr=3e-3, lr_end=3e-3, gamma=0.0, entropy=0.0,
        entropy_end=0.0, normalise_advantages=False, clip_range=10.0,
        minibatch_size=T * B, value_cost=0.0,
    )  # fmt: skip
    good = torch.tensor([1.0, 0.0, -1.0])[batch.actions]
    batch.rewards[1:] = good[:-1]
    uniform = torch.zeros_like(batch.logits)
    batch = batch._replace(logits=uniform)
    learner = make_learner(config)
    for _ in range(150):
        learner.update(batch, 0)
    logits, values = learner._evaluate(batch)
    probability = logits.softmax(-1)[:-1]
    real, actions = ~batch.done[:-1], batch.actions[:-1]
    assert probability[..., 0][real & (actions == 0)].mean() > 0.9
    assert probability[..., 2][real & (actions == 2)].mean() < 0.05
    assert learner.statistics()["updates"] == 150
    assert values.isfinite().all()


@pytest.mark.parametrize("loss", ["clip", "impala"])
def test_critic_fits_fixed_returns(loss):
    batch = make_batch()
    batch.logits.zero_()
    config = replace(
        SMALL, loss=loss, passes=1, gamma=0.0, lr=2e-3, lr_end=2e-3, rho_bar=1e9,
        pg_rho_bar=0.0, entropy=0.0, entropy_end=0.0, minibatch_size=T * B,
        value_cost=5.0,
    )  # fmt: skip
    learner = make_learner(config)
    for _ in range(150):
        learner.update(batch, 0)
    _, values = learner._evaluate(batch)
    # With gamma 0 and rho near 1 the target is the reward behind the row.
    real = ~batch.done[:-1]
    error = (values[:-1] - batch.rewards[1:])[real].square().mean()
    assert error < 0.3 * batch.rewards[1:][real].var()


@pytest.mark.parametrize("loss", ["clip", "impala"])
def test_ignored_rows_do_not_matter(loss):
    """Poison the transition out of a done row and the reward of row 0."""
    config = replace(SMALL, loss=loss)
    batch = make_batch()
    clean = weights_after(batch, config)
    batch.rewards[4, :2] = 1e6
    batch.rewards[0] = -1e6
    batch.actions[3, :2] = (batch.actions[3, :2] + 1) % A
    batch.logits[3, :2] = torch.tensor([50.0, -50.0, 0.0])
    # Behind a termination nothing is bootstrapped: the final picture of column 0
    # is not even looked at.
    batch.obs[batch.rows[3, 0]] = 255
    assert torch.equal(weights_after(batch, config), clean)
    batch.obs[batch.rows[3, 1]] = 255  # truncated: this one counts
    assert not torch.equal(weights_after(batch, config), clean)


@pytest.mark.parametrize("loss", ["clip", "impala"])
def test_shards_add_up_to_the_whole(loss):
    config = replace(SMALL, loss=loss, minibatch_size=24)
    one = weights_after(make_batch(), config, shards=1)
    two = weights_after(make_batch(), config, shards=2)
    torch.testing.assert_close(one, two, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("loss", ["clip", "impala"])
def test_is_deterministic(loss):
    config = replace(SMALL, loss=loss)
    runs = [weights_after(make_batch(), config, shards=2) for _ in range(2)]
    assert torch.equal(*runs)


OPTIONS = [
    ("clip", "passes", 3),
    ("clip", "minibatch_size", 8),
    ("clip", "gamma", 0.5),
    ("clip", "lam", 0.5),
    ("clip", "rho_bar", 0.5),
    ("clip", "c_bar", 0.5),
    ("clip", "targets", "stored"),
    ("clip", "clip_range", 0.01),
    ("clip", "normalise_advantages", False),
    ("clip", "value_loss", "squared"),
    ("clip", "value_cost", 2.0),
    ("clip", "lr", 5e-3),
    ("clip", "lr_end", 5e-3),
    ("clip", "lr_steps", 60),
    ("clip", "adam_eps", 1e-2),
    ("clip", "entropy", 0.5),
    ("clip", "entropy_end", 0.5),
    ("clip", "entropy_steps", 60),
    ("clip", "max_grad_norm", 0.01),
    ("clip", "loss", "impala"),
    ("impala", "passes", 3),
    ("impala", "minibatch_size", 8),
    ("impala", "gamma", 0.5),
    ("impala", "lam", 0.5),
    ("impala", "rho_bar", 0.5),
    ("impala", "c_bar", 0.5),
    ("impala", "pg_rho_bar", 0.5),
    ("impala", "normalise_advantages", False),
    ("impala", "value_loss", "squared"),
]


@pytest.mark.parametrize(("loss", "name", "value"), OPTIONS)
def test_every_option_does_something(loss, name, value):
    base = replace(SMALL, loss=loss, adam_eps=1e-3)
    changed = replace(base, **{name: value})
    batch = make_batch()
    assert not torch.equal(weights_after(batch, base), weights_after(batch, changed))


def test_precision_does_something():
    batch = make_batch()
    exact, rounded = weights_after(batch), weights_after(batch, dtype=torch.bfloat16)
    assert not torch.equal(exact, rounded)
    assert (exact - rounded).abs().max() < 0.02


def test_stored_targets_equal_recomputed_ones_without_lag():
    batch = make_batch()
    learner = make_learner()
    logits, values = learner._evaluate(batch)
    batch = batch._replace(logits=logits, values=values)
    recomputed = weights_after(batch, replace(SMALL, targets="recomputed"))
    stored = weights_after(batch, replace(SMALL, targets="stored"))
    torch.testing.assert_close(recomputed, stored, atol=1e-6, rtol=1e-5)


def test_statistics_are_means_and_reset():
    learner = make_learner()
    learner.update(make_batch(), 50)
    statistics = learner.statistics()
    assert statistics["loss/entropy"] == pytest.approx(1.0986, abs=0.01)  # ln 3
    assert statistics["learning_rate"] == pytest.approx((1e-3 + 1e-4) / 2)
    assert statistics["entropy_cost"] == pytest.approx((0.01 + 0.001) / 2)
    assert statistics["policy_lag"] == 0
    assert 0 < statistics["rho"] <= 1
    learner.update(make_batch(), 50)
    assert learner.statistics()["policy_lag"] == 1
    assert "rho" not in learner.statistics()


def test_explained_variance():
    shares = torch.full((10,), 0.1)
    targets = torch.randn(10)
    assert explained_variance(targets, targets, shares) == 1
    mean = targets.mean().expand(10)
    assert explained_variance(mean, targets, shares).abs() < 1e-5
