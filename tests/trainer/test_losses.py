"""The losses against their formulas in NumPy."""

import numpy as np
import pytest
import torch

from trainer.learn.losses import Targets, actor_critic_loss, normalise

N, A = 12, 4


def make(seed=0, weights=None, target=False):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(N, A, generator=g, requires_grad=True)
    values = torch.randn(N, generator=g, requires_grad=True)
    targets = Targets(
        actions=torch.randint(A, (N,), generator=g),
        log_mu=torch.log(torch.rand(N, generator=g) * 0.5 + 0.1),
        advantages=torch.randn(N, generator=g),
        values=3 * torch.randn(N, generator=g),
        weights=torch.full((N,), 1 / N) if weights is None else weights,
        log_target=torch.log(torch.rand(N, generator=g)) if target else None,
    )
    return logits, values, targets


def loss_of(logits, values, targets, **changes):
    options = {
        "clip_range": 0.2,
        "target_rho": 2.0,
        "value_coef": 0.5,
        "value_kind": "huber",
        "entropy_cost": 0.01,
    }
    return actor_critic_loss(logits, values, targets, **(options | changes))


def uneven():
    """Weights like those of replay: importance weights that add up to 1."""
    weights = torch.rand(N, generator=torch.Generator().manual_seed(1)) ** 2
    return weights / weights.sum()


def by_formula(logits, values, targets, clip_range, kind, target_rho=2.0):
    x = logits.detach().double().numpy()
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    actions, log_mu, advantages, goal, weights = (
        field.double().numpy() for field in targets[:5]
    )
    pi, mu = p[np.arange(N), actions.astype(int)], np.exp(log_mu)
    ratio, clipped = pi / mu, 0.0
    if targets.log_target is not None:  # IMPACT
        target = np.exp(targets.log_target.double().numpy())
        ratio = np.minimum(mu / target, target_rho) * ratio
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


@pytest.mark.parametrize("target_rho", [0.5, 1.0, 2.0, 100.0])
def test_target_network_equals_formula(target_rho):
    logits, values, targets = make(weights=uneven(), target=True)
    loss = loss_of(logits, values, targets, target_rho=target_rho)
    parts = by_formula(logits, values, targets, 0.2, "huber", target_rho)
    assert loss[1:-1] == pytest.approx(parts, abs=1e-5)


def test_target_network_moves_the_clip_range():
    # mu = .1, target = .4, pi = .4: far from mu, but where the target is.
    logits = torch.tensor([[0.4, 0.3, 0.3]]).log().requires_grad_()
    one = torch.ones(1)
    targets = Targets(
        actions=torch.zeros(1, dtype=torch.int64),
        log_mu=torch.tensor([0.1]).log(),
        advantages=one,
        values=one,
        weights=one,
    )

    def gradient(targets, target_rho=2.0):
        loss = loss_of(logits, one, targets, entropy_cost=0.0, target_rho=target_rho)
        return loss.clipped.item(), torch.autograd.grad(loss.total, logits)[0]

    clipped, slope = gradient(targets)
    assert clipped == 1
    assert slope.abs().max() == 0
    target = targets._replace(log_target=torch.tensor([0.4]).log())
    clipped, slope = gradient(target)
    assert clipped == 0
    assert slope.abs().max() > 0.1
    # mu / target = 1/4 < rho: not truncated before rho is as small.
    assert torch.equal(slope, gradient(target, 0.25 + 1e-6)[1])
    assert gradient(target, 0.21)[0] == 0  # ratio .21 * .4 / .1 = .84 > .8
    assert gradient(target, 0.1)[0] == 1


def test_values_are_weighted_by_their_costs():
    logits, values, targets = make()
    policy, value, entropy = loss_of(logits, values, targets)[1:4]
    loss = loss_of(logits, values, targets, value_coef=2.0, entropy_cost=0.3)
    assert torch.allclose(loss.total, policy + 2 * value - 0.3 * entropy)
    # A cost that a recorded graph reads is a tensor.
    loss = loss_of(logits, values, targets, entropy_cost=torch.tensor(0.3))
    assert torch.allclose(loss.total, policy + 0.5 * value - 0.3 * entropy)


def test_weights_of_replay_are_importance_weights():
    """A row of weight 2 w is two rows of weight w."""
    logits, values, targets = make(weights=uneven())
    twice = torch.cat([torch.arange(N), torch.tensor([4])])
    double = targets.at(twice)
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
    options = {"entropy_cost": 0.0, "value_coef": 0.0}
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


@pytest.mark.parametrize("target", [False, True])
def test_parts_add_up(target):
    logits, values, targets = make(target=target)
    whole = loss_of(logits, values, targets)
    parts = [
        loss_of(logits[pick], values[pick], targets.at(pick))
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
    logits, values, targets = make(target=True)
    meta = Targets(*(f if f is None else f.to("meta") for f in targets))
    loss = loss_of(logits.to("meta"), values.to("meta"), meta, clip_range=clip_range)
    assert [field.shape for field in loss[:-1]] == [()] * 6
    assert loss.augmented is None


def test_compiles_as_one_graph():
    logits, values, targets = make(target=True)

    def of(*inputs):
        return loss_of(*inputs, entropy_cost=torch.tensor(0.01)).total

    compiled = torch.compile(of, backend="eager", fullgraph=True)
    total = compiled(logits, values, targets)
    torch.testing.assert_close(total, of(logits, values, targets))
