"""The update: it learns, and ignores what it must."""

import copy

import pytest
import torch
from learners import (
    CPU,
    SHAPE,
    A,
    B,
    T,
    change,
    close_shards,
    evaluate,
    flat,
    make_batch,
    make_learner,
    make_model,
    paint,
    weights_after,
    with_replay,
)

from trainer.config import flags
from trainer.learn.targets import explained_variance
from trainer.rollout.frames import observations
from trainer.rollout.replay import PrioritizedReplay

MEMORIES = ["none", "gru", "lstm", "gtrxl"]


# -- it learns ---------------------------------------------------------------


SLOW_IMPALA = pytest.param("impala", marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "memory", ["none", *(pytest.param(m, marks=pytest.mark.slow) for m in MEMORIES[1:])]
)
@pytest.mark.parametrize("loss", ["ppo", SLOW_IMPALA])
def test_overfits_one_batch(loss, memory):
    """Actions that paid become likely, those that cost unlikely."""
    config = change(
        loss=loss, memory=memory, epochs=1, lr=3e-3, lr_end=3e-3, gamma=0.0,
        entropy=0.0, entropy_end=0.0, normalise_advantages=False, clip_range=10.0,
        minibatch_size=T * B, value_coef=0.0, adam_eps=1e-5,
    )  # fmt: skip
    batch = make_batch(config)
    # Far from the values, which nothing holds near 0 at value_coef 0.
    batch.rewards[1:] = torch.tensor([10.0, 0.0, -10.0])[batch.actions][:-1]
    batch = batch._replace(logits=torch.zeros_like(batch.logits))
    learner = make_learner(config)
    for _ in range(100):
        learner.update(batch, 0)
    logits, values = evaluate(learner.model, batch)
    probability = logits.softmax(-1)[:-1]
    real, actions = ~batch.done[:-1], batch.actions[:-1]
    assert probability[..., 0][real & (actions == 0)].mean() > 0.7
    assert probability[..., 2][real & (actions == 2)].mean() < 0.15
    assert learner.statistics()["updates"] == 100
    assert values.isfinite().all()


@pytest.mark.parametrize(("loss", "memory"), [("ppo", "none"), ("impala", "gru")])
@pytest.mark.slow
def test_critic_fits_fixed_returns(loss, memory):
    config = change(
        loss=loss, memory=memory, epochs=1, gamma=0.0, lr=5e-3, lr_end=5e-3,
        rho_bar=1e9, entropy=0.0, entropy_end=0.0, value_coef=5.0,
        minibatch_size=T * B, lag=1, adam_eps=1e-5,
    )  # fmt: skip
    batch = make_batch(config)
    batch.logits.zero_()
    learner = make_learner(config)
    for _ in range(60):
        learner.update(batch, 0)
    _, values = evaluate(learner.model, batch)
    # With gamma 0 and rho near 1 the target is the reward behind the row.
    real = ~batch.done[:-1]
    error = (values[:-1] - batch.rewards[1:])[real].square().mean()
    assert error < 0.3 * batch.rewards[1:][real].var()


# -- what it must ignore -----------------------------------------------------


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("loss", ["ppo", "impala"])
def test_ignored_rows_do_not_matter(loss, memory):
    """Poison the transition out of a done row and the reward of row 0."""
    config = change(loss=loss, memory=memory, lag=1)
    batch = make_batch(config)
    clean = weights_after(batch, config)
    batch.rewards[4, :2] = 1e6
    batch.rewards[0] = -1e6
    batch.actions[3, :2] = (batch.actions[3, :2] + 1) % A
    batch.logits[3, :2] = torch.tensor([50.0, -50.0, 0.0])
    # Behind a termination nothing is bootstrapped: the final picture of column 0
    # is not even looked at.
    batch = paint(batch, 3, 0, 255)
    assert torch.equal(weights_after(batch, config), clean)
    batch = paint(batch, 3, 1, 255)  # truncated: this one counts
    assert not torch.equal(weights_after(batch, config), clean)


@pytest.mark.parametrize("memory", MEMORIES[1:])
@pytest.mark.parametrize("loss", ["ppo", "impala"])
def test_no_state_leaks_over_the_end_of_an_episode(loss, memory):
    """Rows before a first one, and the state, do not reach what is behind it."""
    config = change(loss=loss, memory=memory, lag=1, minibatch_size=64)
    batch = make_batch(config)
    # Rows up to the first one in every column, and only rows behind it count.
    batch.done.zero_()
    batch.done[:4] = True
    batch.truncated.zero_()
    batch.is_first.zero_()
    batch.is_first[4] = True
    clean = weights_after(batch, config)
    poisoned = batch._replace(state=batch.state + 1)
    for row in range(4):
        for column in range(B):
            poisoned = paint(poisoned, row, column, 255)
    assert torch.equal(weights_after(poisoned, config), clean)
    batch.is_first.zero_()  # as if the episode had gone on
    assert not torch.equal(weights_after(batch, config), clean)


@pytest.mark.parametrize("memory", MEMORIES[1:])
@pytest.mark.parametrize("loss", ["ppo", "impala"])
def test_a_burn_in_changes_the_state_and_has_no_gradient(loss, memory, monkeypatch):
    config = change(loss=loss, memory=memory, burn_in=3, lag=1)
    batch = make_batch(config)
    clean = weights_after(batch, config)
    # Rewards, actions and logits before the unroll are nothing to learn from.
    batch.rewards[: 3 + 1] = 1e6
    batch.actions[:3] = 0
    batch.logits[:3] = torch.tensor([50.0, -50.0, 0.0])
    batch.done[:2, 2] = batch.truncated[:2, 2] = True
    assert torch.equal(weights_after(batch, config), clean)
    # Its pictures are: they make the state.
    assert not torch.equal(weights_after(paint(batch, 1, 4, 255), config), clean)
    learner, grads = make_learner(config), []
    forward = learner.model.forward

    def watch(obs, state, first):
        if obs.shape[0] == 3:
            grads.append(torch.is_grad_enabled())
        return forward(obs, state, first)

    monkeypatch.setattr(learner.model, "forward", watch)
    learner.update(batch, 50)
    assert grads
    assert not any(grads)


# -- parts add up to the whole -----------------------------------------------


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("loss", ["ppo", "impala"])
def test_shards_and_parts_add_up_to_the_whole(loss, memory):
    # A large epsilon: a gradient that is nearly 0 makes steps of any sign without it,
    # by the order in which a processor adds.
    config = change(loss=loss, memory=memory, minibatch_size=T * B, adam_eps=1e-2)
    whole = weights_after(make_batch(config), config)
    near = {"atol": 2e-5, "rtol": 1e-3}
    two = weights_after(make_batch(config), config, shards=2)
    torch.testing.assert_close(two, whole, **near)
    parts = change(config, grad_accum_steps=2)
    torch.testing.assert_close(weights_after(make_batch(config), parts), whole, **near)
    both = weights_after(make_batch(config), parts, shards=2)
    torch.testing.assert_close(both, whole, **near)


@pytest.mark.parametrize("loss", ["ppo", "impala"])
def test_accumulating_runs_the_network_on_smaller_parts(loss, monkeypatch):
    def largest(grad_accum_steps):
        config = change(
            loss=loss, minibatch_size=T * B, grad_accum_steps=grad_accum_steps
        )
        learner, sizes = make_learner(config), []
        forward = learner.model.forward

        def watch(obs, state, first):
            if torch.is_grad_enabled():
                sizes.append(obs.shape[0] * obs.shape[1])
            return forward(obs, state, first)

        monkeypatch.setattr(learner.model, "forward", watch)
        learner.update(make_batch(config), 50)
        return max(sizes)

    assert largest(3) == largest(1) // 3


# -- replay ------------------------------------------------------------------

REPLAY = change(replay_share=0.5, replay_max_kl=10.0, replay_min_rho=0.0)


@pytest.mark.parametrize("loss", ["ppo", "impala"])
def test_importance_weights_scale_what_an_unroll_adds(loss):
    config = change(REPLAY, loss=loss, minibatch_size=T * B)
    batch = make_batch()
    one = weights_after(with_replay(batch), config)
    assert not torch.equal(weights_after(with_replay(batch, weight=0.5), config), one)
    # Weight 0 is as if the unrolls were not there; here, other ones.
    nothing = weights_after(with_replay(batch, weight=0.0), config)
    other = batch._replace(rewards=batch.rewards.clone())
    other.rewards[:, -3:] = 7.0
    assert torch.equal(weights_after(with_replay(other, weight=0.0), config), nothing)


@pytest.mark.parametrize("guard", ["replay_max_kl", "replay_min_rho"])
@pytest.mark.parametrize("loss", ["ppo", "impala"])
def test_replayed_unrolls_of_another_policy_are_left_out(loss, guard):
    config = change(REPLAY, loss=loss, minibatch_size=T * B)
    config = change(config, **{guard: 0.5})
    batch = with_replay(make_batch())
    # The last unroll was played by a policy that was sure of other actions.
    batch.logits[:, -1] = 9.0 * torch.nn.functional.one_hot(
        (batch.actions[:, -1] + (guard == "replay_max_kl")) % A, A
    )
    learner = make_learner(config)
    learner.update(batch, 50)
    statistics = learner.statistics()
    assert statistics["replay/kept"] == pytest.approx(2 / 3)
    assert statistics["replay/share"] == pytest.approx(0.5)
    out = flat(learner.model)
    batch.rewards[:, -1] = 1e3
    assert torch.equal(weights_after(batch, config), out)
    # The same unroll, fresh from the environments, is never left out.
    fresh = batch._replace(fresh=torch.ones(B, dtype=torch.bool))
    assert not torch.equal(weights_after(fresh, config), out)


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("loss", ["ppo", "impala"])
def test_priorities_are_mean_advantages(loss, memory):
    """Against GAE in a plain loop, where the policy is the one that acted."""
    config = change(loss=loss, memory=memory, gamma=0.9, lam=0.8, lr=1e-9, lr_end=1e-9)
    config = change(config, lag=1)
    batch = make_batch(config)
    learner = make_learner(config)
    logits, values = evaluate(learner.model, batch)
    batch = batch._replace(logits=logits)
    priorities = learner.update(batch, 0)
    assert priorities.shape == (B,)
    for b in range(B):
        advantages, later = [], 0.0
        for t in reversed(range(T)):
            if batch.done[t, b]:
                later = 0.0  # a reset: no transition
                continue
            over = bool(batch.done[t + 1, b] and not batch.truncated[t + 1, b])
            target = batch.rewards[t + 1, b] + 0.9 * values[t + 1, b] * (not over)
            carried = 0.0 if batch.done[t + 1, b] else 0.9 * 0.8 * later
            later = target - values[t, b] + carried
            advantages.append(abs(float(later)))
        expected = sum(advantages) / len(advantages)
        assert priorities[b].item() == pytest.approx(expected, abs=1e-3)


# -- noise, precision -----------------------------------------------


@pytest.mark.parametrize("loss", ["ppo", "impala"])
def test_noise_is_drawn_before_each_gradient_step(loss, monkeypatch):
    config = change(loss=loss, noisy=True, minibatch_size=T * B // 2)
    learner, drawn = make_learner(config), []
    draw, step = learner.model.resample_noise, learner.optimizer.step
    monkeypatch.setattr(
        learner.model, "resample_noise", lambda g: (drawn.append("noise"), draw(g))
    )
    monkeypatch.setattr(
        learner.optimizer,
        "step",
        lambda *a, **k: (drawn.append("step"), step(*a, **k)),
    )
    learner.update(make_batch(), 50)
    assert drawn == ["noise", "step"] * 4


@pytest.mark.parametrize("loss", ["ppo", "impala"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reduced_precision_is_near_fp32(loss, dtype):
    """Gradients and steps, compared with how far fp32 goes."""
    # One step per update, and RMSprop: Adam's steps hardly know the gradient's size.
    config = change(
        loss=loss, max_grad_norm=1e9, optimizer="rmsprop", rmsprop_eps=1.0, epochs=1,
        minibatch_size=T * B,
    )  # fmt: skip
    batch, start = make_batch(), flat(make_model())
    learners = [make_learner(config), make_learner(config, dtype=dtype)]
    scaler = learners[1].scaler
    scaler._init_scale = 2.0**8  # of fp16's loss
    for learner in learners:
        for _ in range(3):
            learner.update(batch, 50)
    exact, rounded = (flat(learner.model) - start for learner in learners)
    assert not torch.equal(exact, rounded)
    assert (rounded - exact).norm() < 0.05 * exact.norm()
    norms = [learner.statistics()["gradient_norm"] for learner in learners]
    assert norms[1] == pytest.approx(norms[0], rel=0.02)
    # The gradient is unscaled again before it is looked at.
    assert scaler.get_scale() == (2.0**8 if dtype == torch.float16 else 1.0)


def test_fp16_skips_a_step_that_overflows():
    learner = make_learner(dtype=torch.float16)
    learner.scaler._init_scale = 2.0**120
    start = flat(learner.model)
    learner.update(make_batch(), 50)
    assert learner.scaler.get_scale() < 2.0**120
    after = flat(learner.model)
    assert torch.equal(after, start)
    assert after.isfinite().all()


# -- what is computed where --------------------------------------------------


def test_stored_targets_equal_recomputed_ones_without_lag():
    batch = make_batch()
    logits, values = evaluate(make_model(), batch)
    batch = batch._replace(logits=logits, values=values)
    stored, recomputed = weights_after(batch), weights_after(batch, change(lag=1))
    torch.testing.assert_close(recomputed, stored, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"lag": 1}, {"mode": "async"}])
def test_gae_is_vtrace_where_the_policy_has_not_changed(options):
    """Where `--advantages gae` is refused, it is the same numbers; elsewhere not."""
    batch = make_batch()
    vtrace, gae = (
        weights_after(batch, change(advantages=kind, **options))
        for kind in ("vtrace", "gae")
    )
    refused = bool(flags.without_effect(change(**options), {"advantages": "gae"}))
    assert refused == (not options)
    assert torch.equal(vtrace, gae) == refused


@pytest.mark.parametrize(
    ("options", "stored"),
    [
        ({}, True),
        ({"lag": 1}, False),
        ({"mode": "async"}, False),
        ({"replay_share": 0.5}, False),
    ],
)
def test_stored_values_are_used_where_they_are_exact(options, stored):
    """Other stored values change what is learned, or they do not."""
    batch, config = make_batch(), change(**options)
    other = batch._replace(values=batch.values + torch.randn(batch.values.shape))
    same = torch.equal(weights_after(batch, config), weights_after(other, config))
    assert same == (not stored)


@pytest.mark.parametrize("loss", ["ppo", "impala"])
def test_a_compiled_update_is_used(loss, monkeypatch):
    """--compile compiles the loss and V-trace; --serial switches that off."""
    names, calls = [], set()

    def compiled(function, name):
        names.append(name)
        return lambda *given, **options: (
            calls.add(name),
            function(*given, **options),
        )[1]

    for module in ("targets", "learner"):
        monkeypatch.setattr(f"trainer.learn.{module}.compiled", compiled)
    make_learner(change(loss=loss, compile=True, serial=True))
    assert names == []
    learner = make_learner(change(loss=loss, compile=True))
    assert sorted(names) == ["V-trace", "the loss"]
    learner.update(make_batch(), 50)
    assert calls == set(names)


# -- state -------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "muon", "ema": 0.9},
        {"optimizer": "rmsprop"},
        {"noisy": True, "memory": "gru"},
    ],
)
def test_a_restored_learner_goes_on_as_if_nothing_had_been(options):
    config = change(**options)
    batch = make_batch(config)
    learner = make_learner(config)
    for _ in range(3):
        learner.update(batch, 50)
    state = copy.deepcopy(learner.state())
    weights = learner.model.state_dict()
    again = make_learner(config)
    again.model.load_state_dict(weights)
    again.restore(state)
    for one in (learner, again):
        one.update(batch, 60)
    assert again.version == learner.version == 4
    assert torch.equal(flat(again.model), flat(learner.model))
    if learner.ema:
        assert torch.equal(flat(again.ema.model), flat(learner.ema.model))


def test_what_a_resumed_run_adds_starts_from_its_weights():
    learner = make_learner(change(ema=0.0))
    for _ in range(3):
        learner.update(make_batch(), 50)
    again = make_learner(change(ema=0.9))
    again.model.load_state_dict(learner.model.state_dict())
    again.restore(learner.state())
    assert torch.equal(flat(again.ema.model), flat(learner.model))


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


def test_pictures_are_those_of_the_batch():
    """The batch made here is one: its stacks give each row its own pictures."""
    batch = paint(make_batch(), 2, 3, 200)
    pixels = observations(batch.frames, batch.stacks, SHAPE)
    assert (pixels[2, 3] == 200).all()
    assert (pixels == 200).float().mean() < 0.1


# -- the weight of a replayed unroll ------------------------------------------


class Recorded(torch.optim.SGD):
    """Plain SGD that adds up the gradients it is given, and makes no step."""

    def __init__(self, model):
        params = list(model.parameters())
        super().__init__(params, lr=1.0)
        self.params, self.total = params, 0.0

    def step(self, closure=None):
        self.total = self.total + torch.cat([p.grad.flatten() for p in self.params])


def gradient_of(config, store, columns, weights, fresh):
    """The sum of the gradients over the minibatches of one batch.

    Args:
        store: a batch that holds all unrolls.
        columns: those of this batch.
        weights: importance weights of them.
        fresh: which of them are not replayed.
    """
    batch = store.at(torch.tensor(columns))
    batch = batch._replace(weights=torch.tensor(weights), fresh=torch.tensor(fresh))
    learner = make_learner(config)
    recorded = Recorded(learner.model)
    learner.gradient_step._optimizer = recorded
    learner.update(batch, 50)
    close_shards(learner)
    return recorded.total


@pytest.mark.parametrize("loss", ["ppo", SLOW_IMPALA])
@pytest.mark.parametrize(
    "company", [[4], [4, 5], pytest.param([5, 4, 5], marks=pytest.mark.slow)]
)
def test_mean_gradient_over_draws_is_that_of_the_whole_replay(loss, company):
    """At beta 1, for any minibatch size and any fresh companions.

    Each draw is weighted by its probability. What is left of the fresh unrolls is the
    same for every draw; the rest is the mean gradient of everything kept, times the
    number of kept unrolls and the least probability, known before the draw.
    """
    priorities = torch.tensor([0.1, 0.5, 2.0, 7.0])
    generator = torch.Generator().manual_seed(0)
    replay = PrioritizedReplay(4, B, alpha=1.0, device=CPU, generator=generator)
    replay.add([0, 1, 2, 3], priorities)
    widths = replay.widths()[:4].double()
    chance = (widths / widths.sum()).tolist()
    drawn = replay.sample(500, beta=1.0)
    weight = dict(zip(drawn.slots.tolist(), drawn.weights.tolist(), strict=True))
    assert sorted(weight) == [0, 1, 2, 3]

    for rows in (T, 2 * T, 3 * T, 100 * T):
        config = change(
            loss=loss, normalise_advantages=False, minibatch_size=rows, epochs=1,
            max_grad_norm=1e9, entropy=0.0, entropy_end=0.0, replay_share=0.5,
            replay_max_kl=1e9, replay_min_rho=0.0, ema=0.0,
        )  # fmt: skip
        store = make_batch(config)
        # One step of a minibatch is the mean over its rows: of k of them, k means.
        count = len(company) + 1
        steps = max(1, round(count * T / rows))

        def of(columns, weights, fresh, config=config, store=store):
            return gradient_of(config, store, columns, weights, fresh)

        alone = [of([i], [1.0], [False]) for i in range(4)]
        fresh = sum(of([i], [1.0], [True]) for i in company)
        mean = sum(
            chance[i]
            * of([*company, i], [1.0] * len(company) + [weight[i]],
                 [True] * len(company) + [False])
            for i in range(4)
        )  # fmt: skip
        constant = 4 * min(chance) * steps / count
        expected = constant * sum(alone) / 4 + steps / count * fresh
        if count % steps:  # minibatches of unequal size: each unroll's mean size
            continue
        torch.testing.assert_close(mean, expected, rtol=2e-3, atol=2e-4)
