"""The losses of PPO, IMPALA and distillation on flat rows, as pure functions.

    total = policy + value_coef * value - entropy_coef * entropy

The policy's term is PPO's clipped ratio (Schulman et al. 2017, arXiv:1707.06347,
equation 7, with the ratio taken against the behaviour policy mu, or with a lag against
the policy at the start of the update) or IMPALA's policy gradient (Espeholt et al.
2018, arXiv:1802.01561, section 4.2). The critic's term and the entropy bonus are the
same for both. Distillation uses the KL divergence from the teachers' policies, without
an entropy bonus.

Every mean is a sum against `weights` that add up to 1 over the whole minibatch, so the
losses and gradients of the parts of a minibatch add up to those of the whole.

Nothing here reads the contents of a tensor on the host, so everything can be compiled
and recorded in a CUDA graph.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ValueLossName = Literal["huber", "squared"]


class Targets(NamedTuple):
    """What rows (N,), or (T, n) before `part`, learn from; without gradients."""

    actions: Tensor  # int64, taken
    # float32 log-probability of the actions when they were taken; for PPO with a lag,
    # at the start of the update
    log_mu: Tensor
    advantages: Tensor  # float32 weight of the policy's gradient
    values: Tensor  # float32, what the critic learns
    weights: Tensor  # float32 share of the row in the mean; 0 for ignored rows
    scales: Tensor  # float32 divisors of the critic's errors; 1 without PopArt
    teachers: Tensor | None = None  # (..., A) log-probabilities, for distillation

    def part(self, items: slice) -> Targets:
        """Some items of rows (T, n), as rows (N,)."""
        fields = (None if field is None else field[:, items] for field in self)
        return Targets._make(f if f is None else f.flatten(0, 1) for f in fields)


class Loss(NamedTuple):
    """Scalars of one part of a minibatch; only `total` has a gradient."""

    total: Tensor  # the loss to minimise
    policy: Tensor  # the policy's term; for distillation, the KL from the teachers
    value: Tensor  # the critic's term, without its coefficient
    entropy: Tensor  # of the policy
    kl: Tensor  # an estimate of KL(mu || pi), mu of `Targets`, that is never negative
    clipped: Tensor  # share of rows outside PPO's clip range; 0 for other losses
    augmented: Tensor | None = None  # the `consistency`, None without augmentation


def ppo_loss(
    logits: Tensor,
    values: Tensor,
    targets: Targets,
    *,
    clip_range: float,
    value_coef: float,
    value_kind: ValueLossName,
    entropy_coef: float | Tensor,
) -> Loss:
    """PPO's clipped surrogate loss, with the critic's loss and the entropy bonus.

    Args:
        logits: (N, A) float32 of the current policy.
        values: (N,) float32 of the current critic.
        targets: N rows. The advantages have no importance weight: the ratio in the
            loss is that weight, or with a lag its other factor is in the row weights.
        clip_range: epsilon of the clip.
        value_coef: weight of the critic's loss.
        value_kind: "huber" or "squared".
        entropy_coef: weight of the entropy bonus; a scalar tensor if it must change
            under a recorded CUDA graph.
    """
    log_probs = F.log_softmax(logits, dim=-1)
    log_pi = _of_actions(log_probs, targets.actions)
    ratio = (log_pi - targets.log_mu).exp()
    bounded = ratio.clamp(1 - clip_range, 1 + clip_range)
    gain = torch.min(ratio * targets.advantages, bounded * targets.advantages)
    policy = -(targets.weights * gain).sum()
    clipped = (targets.weights * (ratio != bounded).float()).sum()
    value = _critic_term(values, targets, value_kind)
    total = policy + value_coef * value
    return _complete(total, policy, value, log_probs, targets, entropy_coef, clipped)


def impala_loss(
    logits: Tensor,
    values: Tensor,
    targets: Targets,
    *,
    value_coef: float,
    value_kind: ValueLossName,
    entropy_coef: float | Tensor,
) -> Loss:
    """IMPALA's policy gradient, with the critic's loss and the entropy bonus.

    Args:
        logits: (N, A) float32 of the current policy.
        values: (N,) float32 of the current critic.
        targets: N rows. The advantages include the clipped importance weight.
        value_coef: weight of the critic's loss.
        value_kind: "huber" or "squared".
        entropy_coef: weight of the entropy bonus; a scalar tensor if it must change
            under a recorded CUDA graph.
    """
    log_probs = F.log_softmax(logits, dim=-1)
    log_pi = _of_actions(log_probs, targets.actions)
    policy = -(targets.weights * log_pi * targets.advantages).sum()
    value = _critic_term(values, targets, value_kind)
    total = policy + value_coef * value
    return _complete(total, policy, value, log_probs, targets, entropy_coef)


def distillation_loss(
    logits: Tensor,
    values: Tensor,
    targets: Targets,
    *,
    value_coef: float,
    value_kind: ValueLossName,
) -> Loss:
    """KL(teacher || policy), with the critic's loss (Rusu et al. 2016, equation 3).

    Args:
        logits: (N, A) float32 of the current policy.
        values: (N,) float32 of the current critic.
        targets: N rows with `teachers`, finite. The advantages are not used.
        value_coef: weight of the critic's loss.
        value_kind: "huber" or "squared".
    """
    log_probs, teachers = F.log_softmax(logits, dim=-1), targets.teachers
    assert teachers is not None, "distillation needs targets with teachers"
    differences = (teachers.exp() * (teachers - log_probs)).sum(-1)
    policy = (targets.weights * differences).sum()
    value = _critic_term(values, targets, value_kind)
    return _complete(policy + value_coef * value, policy, value, log_probs, targets)


def consistency(
    logits: Tensor,  # (N, A) float32
    values: Tensor,  # (N,) float32
    augmented_logits: Tensor,  # (N, A)
    augmented_values: Tensor,  # (N,)
    targets: Targets,
) -> Tensor:
    """How much augmented observations change the output of a network, a scalar.

    KL(pi(s) || pi(f(s))) and the squared difference of the values, both without a
    gradient through the true observations (Raileanu et al. 2021, equations 3 to 5). Of
    the targets only weights and scales are used.
    """
    log_pi = F.log_softmax(logits.detach(), dim=-1)
    kl = log_pi.exp() * (log_pi - F.log_softmax(augmented_logits, dim=-1))
    difference = (augmented_values - values.detach()) / targets.scales
    return (targets.weights * (kl.sum(-1) + difference.square())).sum()


def normalise(advantages: Tensor, weights: Tensor) -> Tensor:
    """Shifts and scales to weighted mean 0 and deviation 1 (weights sum to 1)."""
    mean = (weights * advantages).sum()
    variance = (weights * (advantages - mean).square()).sum()
    return (advantages - mean) / (variance.sqrt() + 1e-8)


def _of_actions(log_probs: Tensor, actions: Tensor) -> Tensor:
    """Log-probabilities (N,) of actions (N,), from those of all (N, A)."""
    return log_probs.gather(1, actions.unsqueeze(1)).squeeze(1)


def _critic_term(values: Tensor, targets: Targets, kind: ValueLossName) -> Tensor:
    """Weighted mean of the critic's loss."""
    values, returns = values / targets.scales, targets.values / targets.scales
    if kind == "huber":
        errors = F.smooth_l1_loss(values, returns, reduction="none")
    else:
        errors = 0.5 * (values - returns).square()
    return (targets.weights * errors).sum()


def _complete(
    total: Tensor,  # without the entropy bonus
    policy: Tensor,
    value: Tensor,
    log_probs: Tensor,  # (N, A)
    targets: Targets,
    entropy_coef: float | Tensor | None = None,
    clipped: Tensor | None = None,
) -> Loss:
    """Adds the entropy bonus, if any, and what is only reported.

    `kl` is Schulman's k3 estimator of KL(mu || pi): (pi/mu - 1) - log(pi/mu) >= 0.
    """
    weights = targets.weights
    entropy = -(weights * (log_probs.exp() * log_probs).sum(-1)).sum()
    if entropy_coef is not None:
        total = total - entropy_coef * entropy
    log_pi = _of_actions(log_probs, targets.actions).detach()
    log_ratio = log_pi - targets.log_mu
    return Loss(
        total,
        policy.detach(),
        value.detach(),
        entropy.detach(),
        kl=(weights * (torch.expm1(log_ratio) - log_ratio)).sum(),
        clipped=torch.zeros_like(policy) if clipped is None else clipped,
    )
