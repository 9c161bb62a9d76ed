"""The losses against their formulas in NumPy."""

import numpy as np
import pytest
import torch

from trainer.losses import Targets, actor_critic_loss, normalise

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
    )
    return logits, values, targets


def loss_of(logits, values, targets, **changes):
    options = {
        "clip_range": 0.2,
        "value_cost": 0.5,
        "value_kind": "huber",
        "entropy_cost": 0.01,
    }
    return actor_critic_loss(logits, values, targets, **(options | changes))


def by_formula(logits, values, targets, clip_range, kind):
    x = logits.detach().double().numpy()
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    actions, log_mu, advantages, goal, weights = (
        field.double().numpy() for field in targets
    )
    pi = p[np.arange(N), actions.astype(int)]
    ratio = pi / np.exp(log_mu)
    if clip_range is None:
        policy = -(weights * np.log(pi) * advantages).sum()
    else:
        bounded = np.clip(ratio, 1 - clip_range, 1 + clip_range)
        policy = -(weights * np.minimum(ratio * advantages, bounded * advantages)).sum()
    error = np.abs(values.detach().double().numpy() - goal)
    square = 0.5 * error**2
    critic = square if kind == "squared" else np.where(error < 1, square, error - 0.5)
    entropy = -(weights * (p * np.log(p)).sum(1)).sum()
    return policy, (weights * critic).sum(), entropy


@pytest.mark.parametrize("clip_range", [None, 0.1, 0.3])
@pytest.mark.parametrize("kind", ["huber", "squared"])
def test_equals_formula(clip_range, kind):
    logits, values, targets = make()
    loss = loss_of(logits, values, targets, clip_range=clip_range, value_kind=kind)
    policy, value, entropy = by_formula(logits, values, targets, clip_range, kind)
    assert loss.policy.item() == pytest.approx(policy, abs=1e-5)
    assert loss.value.item() == pytest.approx(value, abs=1e-5)
    assert loss.entropy.item() == pytest.approx(entropy, abs=1e-5)
    total = policy + 0.5 * value - 0.01 * entropy
    assert loss.total.item() == pytest.approx(total, abs=1e-5)
    assert loss.kl.item() >= 0


def test_clipped_rows_have_no_policy_gradient():
    logits, values, targets = make()
    log_pi = torch.log_softmax(logits.detach(), 1)
    log_pi = log_pi.gather(1, targets.actions[:, None])[:, 0]
    # Ratio e > 1.2: a positive advantage is clipped away, a negative one is not.
    targets = targets._replace(log_mu=log_pi - 1)
    options = {"entropy_cost": 0.0, "value_cost": 0.0}
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


def test_parts_add_up():
    logits, values, targets = make()
    whole = loss_of(logits, values, targets)
    parts = [
        loss_of(logits[s], values[s], Targets(*(f[s] for f in targets)))
        for s in (slice(0, 5), slice(5, N))
    ]
    for name in whole._fields:
        total = sum(getattr(part, name) for part in parts)
        torch.testing.assert_close(total, getattr(whole, name))


def test_normalise_ignores_rows_of_weight_zero():
    weights = torch.tensor([0.0, 0.25, 0.25, 0.5])
    result = normalise(torch.tensor([1e6, 1.0, 2.0, 3.0]), weights)
    assert (weights * result).sum().item() == pytest.approx(0, abs=1e-5)
    assert (weights * result.square()).sum().item() == pytest.approx(1, abs=1e-4)
