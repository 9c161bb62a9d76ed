"""The losses against their formulas in NumPy."""

import numpy as np
import pytest
import torch
from compiling import count_graphs, generated_kernels, needs_cpp

from trainer.learn.losses import Targets, impala_loss, normalise, ppo_loss
from trainer.machine.cuda import compiled

N, A = 12, 4


def make(seed=0, weights=None):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(N, A, generator=g, requires_grad=True)
    values = torch.randn(N, generator=g, requires_grad=True)
    targets = Targets(
        actions=torch.randint(A, (N,), generator=g),
        log_mu=torch.log(torch.rand(N, generator=g) * 0.5 + 0.1),
        advantages=torch.randn(N, generator=g),
        values=3 * torch.randn(N, generator=g),
        weights=torch.full((N,), 1 / N) if weights is None else weights,
        scales=torch.ones(N),
    )
    return logits, values, targets


def loss_of(logits, values, targets, clip_range=0.2, **changes):
    """PPO's loss, or IMPALA's where there is no clip range."""
    options = {"value_coef": 0.5, "value_kind": "huber", "entropy_coef": 0.01}
    options |= changes
    if clip_range is None:
        return impala_loss(logits, values, targets, **options)
    return ppo_loss(logits, values, targets, clip_range=clip_range, **options)


def rows(targets, pick):
    return Targets(*(field if field is None else field[pick] for field in targets))


def uneven():
    """Weights like those of replay: importance weights that add up to 1."""
    weights = torch.rand(N, generator=torch.Generator().manual_seed(1)) ** 2
    return weights / weights.sum()


def by_formula(logits, values, targets, clip_range, kind):
    x = logits.detach().double().numpy()
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    actions, log_mu, advantages, goal, weights = (
        field.double().numpy() for field in targets[:5]
    )
    pi, mu = p[np.arange(N), actions.astype(int)], np.exp(log_mu)
    ratio, clipped = pi / mu, 0.0
    if clip_range is None:
        policy = -(weights * np.log(pi) * advantages).sum()
    else:
        bounded = np.clip(ratio, 1 - clip_range, 1 + clip_range)
        policy = -(weights * np.minimum(ratio * advantages, bounded * advantages)).sum()
        clipped = (weights * (np.abs(ratio - 1) > clip_range)).sum()
    error = np.abs(values.detach().double().numpy() - goal)
    square = 0.5 * error**2
    critic = square if kind == "squared" else np.where(error < 1, square, error - 0.5)
    entropy = -(weights * (p * np.log(p)).sum(1)).sum()
    kl = (weights * (pi / mu - 1 - np.log(pi / mu))).sum()
    return policy, (weights * critic).sum(), entropy, kl, clipped


@pytest.mark.parametrize("clip_range", [None, 0.1, 0.3])
@pytest.mark.parametrize("kind", ["huber", "squared"])
@pytest.mark.parametrize("weights", [None, uneven()], ids=["even", "uneven"])
def test_equals_formula(clip_range, kind, weights):
    logits, values, targets = make(weights=weights)
    loss = loss_of(logits, values, targets, clip_range=clip_range, value_kind=kind)
    parts = by_formula(logits, values, targets, clip_range, kind)
    assert loss[1:-1] == pytest.approx(parts, abs=1e-5)
    policy, value, entropy, kl, clipped = parts
    assert loss.total.item() == pytest.approx(
        policy + 0.5 * value - 0.01 * entropy, abs=1e-5
    )
    assert kl > 0
    assert (clipped > 0) == (clip_range is not None)


def test_terms_are_weighted_by_their_coefficients():
    logits, values, targets = make()
    policy, value, entropy = loss_of(logits, values, targets)[1:4]
    loss = loss_of(logits, values, targets, value_coef=2.0, entropy_coef=0.3)
    assert torch.allclose(loss.total, policy + 2 * value - 0.3 * entropy)
    # A coefficient that a recorded graph reads is a tensor.
    loss = loss_of(logits, values, targets, entropy_coef=torch.tensor(0.3))
    assert torch.allclose(loss.total, policy + 0.5 * value - 0.3 * entropy)


def test_weights_of_replay_are_importance_weights():
    """A row of weight 2 w is two rows of weight w."""
    logits, values, targets = make(weights=uneven())
    twice = torch.cat([torch.arange(N), torch.tensor([4])])
    double = rows(targets, twice)
    weights = double.weights.clone()
    weights[4] = weights[-1] = targets.weights[4] / 2
    double = double._replace(weights=weights)
    one = torch.autograd.grad(loss_of(logits, values, targets).total, logits)[0]
    many = loss_of(logits[twice], values[twice], double).total
    torch.testing.assert_close(torch.autograd.grad(many, logits)[0], one)
    torch.testing.assert_close(
        normalise(double.advantages, double.weights)[:N],
        normalise(targets.advantages, targets.weights),
    )


def test_clipped_rows_have_no_policy_gradient():
    logits, values, targets = make()
    log_pi = torch.log_softmax(logits.detach(), 1)
    log_pi = log_pi.gather(1, targets.actions[:, None])[:, 0]
    # Ratio e > 1.2: a positive advantage is clipped away, a negative one is not.
    targets = targets._replace(log_mu=log_pi - 1)
    options = {"entropy_coef": 0.0, "value_coef": 0.0}
    positive = targets._replace(advantages=torch.ones(N))
    loss = loss_of(logits, values, positive, **options)
    assert loss.clipped.item() == pytest.approx(1)
    (gradient,) = torch.autograd.grad(loss.total, logits)
    assert gradient.abs().max() == 0
    negative = targets._replace(advantages=-torch.ones(N))
    loss = loss_of(logits, values, negative, **options)
    (gradient,) = torch.autograd.grad(loss.total, logits)
    assert gradient.abs().max() > 0


def test_rows_of_weight_zero_do_not_matter():
    weights = torch.full((N,), 1 / (N - 3))
    weights[:3] = 0
    logits, values, targets = make(weights=weights)
    a = torch.autograd.grad(loss_of(logits, values, targets).total, logits)[0]
    advantages = targets.advantages.clone()
    advantages[:3] = 1e5
    targets = targets._replace(advantages=advantages)
    b = torch.autograd.grad(loss_of(logits, values, targets).total, logits)[0]
    assert torch.equal(a, b)
    assert a[:3].abs().max() == 0


@pytest.mark.parametrize("clip_range", [None, 0.2])
def test_parts_add_up(clip_range):
    logits, values, targets = make()
    whole = loss_of(logits, values, targets, clip_range)
    parts = [
        loss_of(logits[pick], values[pick], rows(targets, pick), clip_range)
        for pick in torch.arange(N).split(5)
    ]
    for name in whole._fields[:-1]:
        total = sum(getattr(part, name) for part in parts)
        torch.testing.assert_close(total, getattr(whole, name))


def test_normalise_ignores_rows_of_weight_zero():
    weights = torch.tensor([0.0, 0.25, 0.25, 0.5])
    result = normalise(torch.tensor([1e6, 1.0, 2.0, 3.0]), weights)
    assert (weights * result).sum().item() == pytest.approx(0, abs=1e-5)
    assert (weights * result.square()).sum().item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("clip_range", [None, 0.2])
def test_reads_nothing_on_the_host(clip_range):
    # A meta tensor has no content: whatever looked at it would raise.
    logits, values, targets = make()
    meta = Targets(*(f if f is None else f.to("meta") for f in targets))
    loss = loss_of(logits.to("meta"), values.to("meta"), meta, clip_range=clip_range)
    assert [field.shape for field in loss[:-1]] == [()] * 6
    assert loss.augmented is None


def arguments_of(clip_range, seed):
    """All that a loss takes; a recorded graph reads the entropy's coefficient."""
    logits, values, targets = make(seed)
    options = {"value_coef": 0.5, "value_kind": "huber"}
    options |= {} if clip_range is None else {"clip_range": clip_range}
    given = {"logits": logits, "values": values, "targets": targets}
    return given | options | {"entropy_coef": torch.tensor(0.01 + seed)}


@pytest.mark.parametrize("clip_range", [None, 0.2])
def test_compiles_as_one_graph(clip_range):
    loss = impala_loss if clip_range is None else ppo_loss
    both = [arguments_of(clip_range, seed) for seed in (0, 1)]
    results, sizes = count_graphs(loss, *both)
    # Of the second call, with other numbers in tensors of the same shapes, too.
    assert len(sizes) == 1
    assert sizes[0] > 20
    for result, given in zip(results, both, strict=True):
        torch.testing.assert_close(result[:-1], loss(**given)[:-1])


@needs_cpp
@pytest.mark.slow
def test_compiled_for_a_cpu_it_is_the_same(caplog):
    """IMPALA's; tests/trainer/test_cuda.py compiles PPO's."""
    generated_kernels()
    results = []
    for function in (impala_loss, compiled(impala_loss, name="the loss")):
        given = arguments_of(None, 0)
        total, *rest, _ = function(**given)
        inputs = given["logits"], given["values"]
        results.append([total.detach(), *rest, *torch.autograd.grad(total, inputs)])
    torch.testing.assert_close(*results)
    assert generated_kernels() > 0
    assert "runs without" not in caplog.text
