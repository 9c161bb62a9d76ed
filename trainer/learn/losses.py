"""Actor-critic losses on flat rows: IMPALA's policy gradient, and PPO's clip.

Pure functions; every mean is a sum against `weights` that add up to 1 over the
whole minibatch, so the losses and gradients of its parts simply add up.

Nothing here reads a tensor's content on the host, so that all of it can be
compiled and recorded in a CUDA graph.

Sources: Espeholt et al. 2018 (arXiv:1802.01561) section 4.2; Schulman et al.
2017 (arXiv:1707.06347) equation 7, with the ratio taken against the behaviour
policy mu, or with a target network as Luo et al. 2020, IMPACT
(arXiv:1912.00167) section 3.1.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ValueLossName = Literal["huber", "squared"]


class Targets(NamedTuple):
    """What rows are trained towards; all (N,) float32, without gradients.

    Attributes:
        actions: (N,) int64 actions taken.
        log_mu: log-probability of them when they were taken.
        advantages: policy-gradient weight of each row.
        values: critic target of each row.
        weights: share of each row in the mean; 0 for ignored rows.
        log_target: log-probability of the actions under the target network,
            None without one.
        scales: what the critic's errors are divided by before their loss (PopArt);
            None: 1.
    """

    actions: Tensor
    log_mu: Tensor
    advantages: Tensor
    values: Tensor
    weights: Tensor
    log_target: Tensor | None = None
    scales: Tensor | None = None

    def at(self, pick: Tensor) -> Targets:
        """Some of the rows."""
        return Targets._make(None if field is None else field[pick] for field in self)


class Loss(NamedTuple):
    """Scalars of one part of a minibatch; `total` alone has a gradient.

    `augmented` is the `consistency`, None without augmentation.
    """

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    clipped: Tensor
    augmented: Tensor | None = None


def normalise(advantages: Tensor, weights: Tensor) -> Tensor:
    """Shifts and scales to weighted mean 0 and deviation 1 (weights sum to 1)."""
    mean = (weights * advantages).sum()
    variance = (weights * (advantages - mean).square()).sum()
    return (advantages - mean) / (variance.sqrt() + 1e-8)


def value_loss(values: Tensor, targets: Tensor, kind: ValueLossName) -> Tensor:
    """Per-row critic loss, (N,)."""
    if kind == "huber":
        return F.smooth_l1_loss(values, targets, reduction="none")
    return 0.5 * (values - targets).square()


def consistency(
    logits: Tensor,
    values: Tensor,
    augmented_logits: Tensor,
    augmented_values: Tensor,
    targets: Targets,
) -> Tensor:
    """How much a network says something else of augmented observations, a scalar.

    KL(pi(s) || pi(f(s))) and the squared difference of the values, of which the true
    observations' part is taken as given (Raileanu et al. 2021, equations 3 to 5).

    Args:
        logits: (N, A) float32 of the true observations.
        values: (N,) float32.
        augmented_logits: (N, A) of the augmented ones, for the same actions.
        augmented_values: (N,).
        targets: whose weights, and scales of values, count.
    """
    log_pi = F.log_softmax(logits.detach(), dim=-1)
    kl = log_pi.exp() * (log_pi - F.log_softmax(augmented_logits, dim=-1))
    apart = augmented_values - values.detach()
    if targets.scales is not None:
        apart = apart / targets.scales
    return (targets.weights * (kl.sum(-1) + apart.square())).sum()


def log_anchor(targets: Targets, target_rho: float) -> Tensor:
    """Log-probability that the clipped ratio divides by, (N,).

    That is mu's, and with a target network, after IMPACT,

        min(mu / target, rho) * pi / mu  =  pi / max(target, mu / rho):

    the ratio starts from the target network, unless the behaviour policy found
    the action rho times as likely; then it is IMPALA's truncated one.
    """
    if targets.log_target is None:
        return targets.log_mu
    return torch.maximum(targets.log_target, targets.log_mu - math.log(target_rho))


def actor_critic_loss(
    logits: Tensor,
    values: Tensor,
    targets: Targets,
    *,
    clip_range: float | None,
    target_rho: float,
    value_coef: float,
    value_kind: ValueLossName,
    entropy_cost: float | Tensor,
) -> Loss:
    """One loss for both algorithms: `clip_range=None` is IMPALA's.

    Args:
        logits: (N, A) float32 of the current policy.
        values: (N,) float32 of the current critic.
        targets: see `Targets`. For IMPALA the advantages already carry the
            clipped importance weight; for the clipped loss they do not, since
            the ratio in the loss is that weight.
        clip_range: PPO's epsilon, or None for the plain policy gradient.
        target_rho: clip of mu / target; used with `clip_range` and a target
            network only.
        value_coef: weight of the critic's loss.
        value_kind: "huber" or "squared".
        entropy_cost: weight of the entropy bonus; a scalar tensor where it has
            to change under a recorded CUDA graph.

    Returns:
        A `Loss`. `kl` is the estimate of KL(mu || pi) that is never negative,
        `clipped` the share of rows whose ratio left the clip range.
    """
    log_probs = F.log_softmax(logits, dim=-1)
    log_pi = log_probs.gather(1, targets.actions.unsqueeze(1)).squeeze(1)
    weights = targets.weights
    if clip_range is None:
        policy = -(weights * log_pi * targets.advantages).sum()
        clipped = torch.zeros_like(policy)
    else:
        ratio = (log_pi - log_anchor(targets, target_rho)).exp()
        bounded = ratio.clamp(1 - clip_range, 1 + clip_range)
        gain = torch.min(ratio * targets.advantages, bounded * targets.advantages)
        policy = -(weights * gain).sum()
        clipped = (weights * (ratio != bounded).float()).sum()
    returns = targets.values
    if targets.scales is not None:
        values, returns = values / targets.scales, returns / targets.scales
    value = (weights * value_loss(values, returns, value_kind)).sum()
    entropy = -(weights * (log_probs.exp() * log_probs).sum(-1)).sum()
    total = policy + value_coef * value - entropy_cost * entropy
    # Schulman's k3 estimator under mu: (pi/mu - 1) - log(pi/mu) >= 0.
    log_ratio = log_pi.detach() - targets.log_mu
    kl = (weights * (torch.expm1(log_ratio) - log_ratio)).sum()
    return Loss(
        total,
        policy.detach(),
        value.detach(),
        entropy.detach(),
        kl,
        clipped,
    )
