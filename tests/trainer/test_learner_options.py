"""Every option of learning does what its formula says.

The formulas are written out here for a batch that is one minibatch: loss, gradient,
clip and optimiser's step, one after the other. V-trace has a slow twin of its own
(test_vtrace.py), and so have the losses (test_losses.py).
"""

import functools
import math

import pytest
import torch
from learners import (
    SHAPE,
    B,
    T,
    change,
    flat,
    make_batch,
    make_learner,
    make_model,
    weights_after,
    with_replay,
)

from trainer.config import flags, learning
from trainer.learn.optim import hidden_matrices, orthogonalise
from trainer.learn.vtrace import gae, vtrace
from trainer.rollout.frames import observations

STEP, UPDATES = 50, 2  # environment steps, for the schedules; updates of each test
# Fields of LearnerConfig whose effect is a run's (unroll and unrolls_per_batch are
# shapes of the store, tests/trainer/test_run.py), that of another test, or none on
# numbers beyond rounding.
NOT_HERE = {"unroll", "unrolls_per_batch", "learner_threads", "grad_accum_steps"}
# In this file, in test_learner.py, in test_demonstrations.py, in test_demos.py and in
# test_distil.py.
ELSEWHERE = {"minibatch_size", "seed", "ema", "imitation", "cloning_steps"}
ELSEWHERE |= {"teachers", "teacher_model", "teacher_temperature"}
IMPALA = {"loss": "impala"}
OPTIONS = [
    ("epochs", 3, {}),
    ("epochs", 3, IMPALA),
    ("gamma", 0.5, {}),
    ("gamma", 0.5, IMPALA),
    ("lam", 0.2, {}),
    ("lam", 0.2, IMPALA),
    ("rho_bar", 0.5, {}),
    ("rho_bar", 0.5, IMPALA),
    ("c_bar", 0.3, {}),
    ("c_bar", 0.3, IMPALA),
    ("advantages", "gae", {}),
    ("advantages", "gae", IMPALA),
    ("advantages", "one-step", IMPALA),
    ("clip_range", 0.01, {"epochs": 3}),
    ("normalise_advantages", False, {}),
    ("normalise_advantages", False, IMPALA),
    ("value_loss", "squared", {}),
    ("value_loss", "squared", IMPALA),
    ("value_coef", 2.0, {}),
    ("value_coef", 2.0, IMPALA),
    ("optimizer", "rmsprop", {}),
    ("optimizer", "muon", {}),
    ("lr", 5e-3, {}),
    ("lr_end", 5e-3, {}),
    ("lr_steps", 60, {}),
    ("lr_schedule", "cosine", {"lr_steps": 200}),
    ("warmup_updates", 10, {}),
    ("muon_lr", 0.1, {"optimizer": "muon"}),
    ("momentum", 0.5, {"optimizer": "muon"}),
    ("adam_eps", 1e-2, {}),
    ("rmsprop_alpha", 0.5, {"optimizer": "rmsprop"}),
    ("rmsprop_eps", 1e-4, {"optimizer": "rmsprop"}),
    ("weight_decay", 3.0, {"optimizer": "adamw"}),
    ("weight_decay", 3.0, {"optimizer": "muon"}),
    ("entropy", 50.0, {}),
    ("entropy", 50.0, IMPALA),
    ("entropy_end", 50.0, {}),
    ("entropy_steps", 60, {"entropy_end": 50.0}),
    ("max_grad_norm", 0.01, {}),
    ("loss", "impala", {}),
    ("loss", "impala", {"memory": "gru"}),
    ("lag", 0, {}),
    ("replay_max_kl", 0.05, {"replay_share": 0.5}),
    ("replay_min_rho", 0.85, {"replay_share": 0.5}),
]


# -- one update, written out ---------------------------------------------------


def share(end, at=STEP):
    """How much of a linear schedule of so many steps is over."""
    return min(1.0, at / end)


def rate(c, update):
    """What starting rates are multiplied by, from 0 updates on."""
    done = share(c.lr_steps)
    if c.lr_schedule == "cosine":
        done = (1 - math.cos(math.pi * done)) / 2
    warm = 1.0 if not c.warmup_updates else min(1.0, (update + 1) / c.warmup_updates)
    return warm * (c.lr + (c.lr_end - c.lr) * done) / c.lr


def log_prob(logits, batch):
    picked = batch.actions[:-1].unsqueeze(-1)
    return torch.log_softmax(logits[:-1], -1).gather(-1, picked).squeeze(-1)


@torch.no_grad()
def targets(config, batch, logits, values):
    """V-trace's fields, of which the weights add up to 1, and log mu."""
    c = config.learner
    log_mu = log_prob(batch.logits, batch)
    log_ratios = log_prob(logits, batch) - log_mu
    is_ppo = isinstance(c.loss, learning.Ppo)
    if is_ppo and config.lag == 0 and not config.replay.replay_share:
        # Nothing is learned in between: the actor's values are the learner's.
        values, log_ratios = batch.values, torch.zeros_like(log_ratios)
    rows = {"rewards": batch.rewards, "done": batch.done, "truncated": batch.truncated}
    rows |= {"values": values, "gamma": c.gamma, "lam": c.lam}
    if c.advantages == "gae":
        trace = gae(**rows)
    elif c.advantages == "one-step":
        trace = gae(**rows)
        clipped = log_ratios.exp().clamp(max=c.rho_bar)
        trace = trace._replace(rhos=trace.weights * clipped)
    else:
        clips = {"rho_bar": c.rho_bar, "c_bar": c.c_bar}
        trace = vtrace(log_ratios=log_ratios, **clips, **rows)
    weights = trace.weights
    if config.replay.replay_share:
        p, mu = logits[:-1].softmax(-1), batch.logits[:-1].softmax(-1)
        count = weights.sum(0)
        kl = (weights * (p * (p / mu).log()).sum(-1)).sum(0) / count
        rho = trace.rhos.sum(0) / count
        r = config.replay
        kept = (kl <= r.replay_max_kl) & (rho >= r.replay_min_rho)
        weights = weights * (kept | batch.fresh)
    if is_ppo and config.lag:  # decoupled PPO, at the start of the update
        log_mu = log_mu + log_ratios
        weights = weights * log_ratios.exp().clamp(max=2)
    weights = weights / weights.sum()
    advantages = trace.advantages
    if c.normalise_advantages:
        mean = (weights * advantages).sum()
        deviation = (weights * (advantages - mean).square()).sum().sqrt()
        advantages = (advantages - mean) / deviation
    return trace._replace(weights=weights, advantages=advantages), log_mu


def loss(config, batch, logits, values, trace, log_mu):
    c = config.learner
    log_pi, advantages = log_prob(logits, batch), trace.advantages
    if isinstance(c.loss, learning.Ppo):
        ratio, clip = (log_pi - log_mu).exp(), c.loss.clip_range
        bounded = ratio.clamp(1 - clip, 1 + clip)
        gain = torch.min(ratio * advantages, bounded * advantages)
    else:
        gain = log_pi * trace.rhos * advantages
    error = (values[:-1] - trace.targets).abs()
    critic = error.square() / 2
    if c.value_loss == "huber":
        critic = torch.where(error < 1, critic, error - 0.5)
    p = logits[:-1].softmax(-1)
    bonus = c.entropy + (c.entropy_end - c.entropy) * share(c.entropy_steps)
    terms = -gain + c.value_coef * critic + bonus * (p * p.log()).sum(-1)
    return (trace.weights * terms).sum()


def mean(gradients, decay):
    """Moving average of what came step by step, from 0 on."""
    last = len(gradients) - 1
    return sum((1 - decay) * decay ** (last - i) * g for i, g in enumerate(gradients))


def movement(kind, lr, weight, gradients, is_hidden):
    """What the newest of the gradients of a weight adds to it."""
    squares, newest = [g.square() for g in gradients], gradients[-1]
    if isinstance(kind, learning.RMSprop):
        return -lr * newest / (mean(squares, kind.alpha).sqrt() + kind.eps)
    decay = -lr * getattr(kind, "weight_decay", 0.0) * weight
    if is_hidden:
        ahead = (1 - kind.momentum) * newest + kind.momentum * mean(
            gradients, kind.momentum
        )
        matrix = orthogonalise(ahead.flatten(1))
        tall = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
        return decay - lr * tall * matrix.view_as(weight)
    count = len(gradients)
    first = mean(gradients, 0.9) / (1 - 0.9**count)
    second = mean(squares, 0.999) / (1 - 0.999**count)
    return decay - lr * first / (second.sqrt() + kind.eps)


@functools.cache
def weights_by_formula(config):
    """Weights after two updates on a batch that is one minibatch."""
    c, batch, model = config.learner, batch_of(config), make_model(config)
    kind, params = c.optimizer, list(model.parameters())
    is_muon = isinstance(kind, learning.Muon)
    hidden = {id(p) for p in hidden_matrices(model)} if is_muon else set()
    obs = observations(batch.frames, batch.stacks, SHAPE)
    seen = [[] for _ in params]  # gradients of each
    for update in range(UPDATES):
        made = None
        for _ in range(c.epochs):
            (logits, values), _ = model(obs, batch.state, batch.is_first)
            if made is None or isinstance(c.loss, learning.Impala):
                made = targets(config, batch, logits, values)
            total = loss(config, batch, logits, values, *made)
            gradients = torch.autograd.grad(total, params)
            norm = torch.cat([g.flatten() for g in gradients]).norm()
            factor = min(1.0, c.max_grad_norm / float(norm))
            with torch.no_grad():
                for param, gradient, past in zip(params, gradients, seen, strict=True):
                    past.append(factor * gradient)
                    base = kind.matrix_lr if id(param) in hidden else c.lr
                    lr = base * rate(c, update)
                    param += movement(kind, lr, param, past, id(param) in hidden)
    return flat(model)


def batch_of(config):
    batch = make_batch(config)
    # As different policies as replay and a lag can bring.
    batch.logits.mul_(3)
    return with_replay(batch) if config.replay.replay_share else batch


def distance(one, two, config):
    """Of two sets of weights, compared with how far they are from the start."""
    return float((one - two).norm() / (two - flat(make_model(config))).norm())


@pytest.mark.parametrize(("name", "value", "given"), OPTIONS)
def test_every_option_is_its_formula(name, value, given):
    quiet = {"replay_max_kl": 1e9, "replay_min_rho": 0.0}
    one_minibatch = {"minibatch_size": T * B, "epochs": 1}
    base = change(**(quiet | one_minibatch | {"lag": 1} | given))
    changed = change(base, **{name: value})
    found = weights_after(batch_of(changed), changed, step=STEP, updates=UPDATES)
    expected = weights_by_formula(changed)
    assert distance(found, expected, changed) < 1e-3
    # And the option matters: what the rest of the options give is another policy.
    assert distance(weights_by_formula(base), expected, changed) > 0.05


def test_every_option_of_the_learner_is_looked_at():
    known = {name for name, *_ in OPTIONS} | NOT_HERE | ELSEWHERE
    parts = {option.name: option.part for option in flags.options().values()}
    ours = {name for name, part in parts.items() if part == "learner"}
    assert {name for name in known if parts[name] == "learner"} == ours
    assert {parts[name] for name in known - ours} == {"replay", ""}


def test_with_a_lag_the_clip_is_around_the_policy_that_starts_the_update():
    """Not around the policy that acted: that one's ratio is a row weight."""
    config = change(lag=1)
    learner, batch = make_learner(config), batch_of(config)
    learner.frames = batch.frames
    obs = observations(batch.frames, batch.stacks, SHAPE)
    (logits, _), _ = learner.model(obs, batch.state, batch.is_first)
    targets, _ = learner.targets_of(batch)
    log_pi, log_mu = log_prob(logits, batch), log_prob(batch.logits, batch)
    real = ~batch.done[:-1]
    torch.testing.assert_close(targets.log_mu[real], log_pi[real])
    ratios = (log_pi - log_mu).exp()
    torch.testing.assert_close(targets.weights, ratios.clamp(max=2) * real)
    assert ratios.min() < 0.5 < 2 < ratios.max()  # the two policies differ


# -- minibatches -----------------------------------------------------------------


def minibatches(config, monkeypatch):
    """Which rows t * B + b of the batch each gradient step was on, in its order."""
    batch, learner = make_batch(config), make_learner(config)
    places = {}
    for t in range(T + 1):
        for b in range(B):
            pixels = observations(batch.frames, batch.stacks[t, b], SHAPE)
            places[pixels[..., :16].numpy().tobytes()] = t * B + b
    forward, rows = learner.model.forward, []

    def watch(obs, state, first):
        if torch.is_grad_enabled():
            flat = obs[..., :16].flatten(0, 1).numpy()
            rows.append([places[row.tobytes()] for row in flat])
        return forward(obs, state, first)

    monkeypatch.setattr(learner.model, "forward", watch)
    learner.update(batch, STEP)
    return rows


@pytest.mark.parametrize("size", [8, 16, 24])
@pytest.mark.parametrize(
    ("options", "length"),
    [({}, 1), ({"memory": "gru"}, T), (IMPALA, T + 1)],
    ids=["rows", "unrolls", "unrolls and their bootstraps"],
)
def test_minibatches_hold_as_many_rows_as_asked(size, options, length, monkeypatch):
    """In every epoch each item, a row or a whole unroll, is in one minibatch."""
    config = change(**(options | {"minibatch_size": size, "epochs": 3, "lag": 1}))
    rows = minibatches(config, monkeypatch)
    items = size if length == 1 else size // T
    assert [len(minibatch) for minibatch in rows] == [items * length] * (
        3 * T * B // size
    )
    count = len(rows) // 3
    for epoch in range(3):
        seen = [row for one in rows[epoch * count :][:count] for row in one]
        last = T + (length > T)
        assert sorted(seen) == list(range(last * B))
    for minibatch in rows:  # rows of unrolls stay together, in their order
        columns = [minibatch[i :: len(minibatch) // length] for i in range(items)]
        starts = [column[0] for column in columns]
        whole = [list(range(start, start + B * length, B)) for start in starts]
        assert columns == whole


def test_the_seed_draws_the_minibatches(monkeypatch):
    orders = [
        [
            row
            for rows in minibatches(change(seed=seed, epochs=1), monkeypatch)
            for row in rows
        ]
        for seed in (1, 1, 2, 3)
    ]
    assert orders[0] == orders[1]
    # Of two independent orders of 48 rows about one row has the same place.
    for one, other in [(0, 2), (0, 3), (2, 3)]:
        assert sorted(orders[one]) == sorted(orders[other])
        same = [a == b for a, b in zip(orders[one], orders[other], strict=True)]
        assert sum(same) < 8
    # Nor is either the order of the batch.
    assert sum(a == b for a, b in enumerate(orders[0])) < 8


# -- averaged weights ------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.05, 0.999])
def test_averaged_weights_are_their_formula(decay):
    """The first updates weigh more: after n of them at most (1 + n) / (10 + n)."""
    learner = make_learner(change(ema=decay))
    expected = flat(learner.model)
    for updates in (1, 2, 3):
        learner.update(make_batch(), STEP)
        keep = min(decay, (1 + updates) / (10 + updates))
        expected = keep * expected + (1 - keep) * flat(learner.model)
        torch.testing.assert_close(flat(learner.ema.model), expected)
    moved = (flat(learner.model) - expected).norm()
    assert moved > 1e-3
    assert make_learner(change(ema=0.0)).ema is None
