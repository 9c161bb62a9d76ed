"""The targets of all losses: from rewards and values to advantages and row weights.

    1. V-trace or GAE gives critic targets and advantages (vtrace.py).
    2. The critic targets update PopArt's statistics; advantages are divided by the
       deviation of the row's level (Hessel et al. 2019, arXiv:1809.04474, section 3).
    3. Rows get weights: 0 for ignored actions, the importance weight of replay
       (Schaul et al. 2016, arXiv:1511.05952, section 3.4), and 0 for replayed unrolls
       from which the policy has moved too far (Schmitt et al. 2020, arXiv:1909.11583).
    4. In each minibatch the advantages are normalised, and the loss is the sum over
       rows of weight times loss, divided by the number of rows (`normalised`). Unlike
       the sum of the weights, this number does not depend on which unrolls are in the
       minibatch, so the weight of a replayed unroll does not depend on the others.

PPO does steps 1 to 3 once per batch, IMPALA all four in every gradient step. These are
functions of tensors that never wait for the device: a CUDA graph records them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.config.schema import LearnerConfig, RunConfig
from trainer.learn.gradients import Statistics
from trainer.learn.losses import Targets, normalise
from trainer.learn.vtrace import VTrace, gae, vtrace
from trainer.machine.cuda import compiled
from trainer.machine.ranks import ALONE, Ranks
from trainer.models import PolicyModel
from trainer.rollout.store import Batch


class TargetMaker:
    """Makes `Targets` (T, B) from batches of K = burn-in + T + 1 rows."""

    def __init__(
        self,
        model: PolicyModel,
        config: RunConfig,
        statistics: Statistics,
        ranks: Ranks = ALONE,
    ) -> None:
        # Of the policy that learns; on the device, because recorded graphs read it.
        self.version = torch.zeros((), dtype=torch.int64, device=statistics.device)
        self._model = model
        self._config = config.learner
        self._replay = config.replay
        self._popart_step = config.model.popart_step
        self._statistics = statistics
        self._ranks = ranks
        self._vtrace: Any = vtrace
        if config.compile and not config.serial:
            self._vtrace = compiled(vtrace, name="V-trace")

    def trace(self, batch: Batch, log_ratios: Tensor, values: Tensor) -> VTrace:
        """Critic targets and advantages of T transitions.

        Takes log pi / mu of the actions (T, B), and the critic's values (T + 1, B),
        whose last row bootstraps.
        """
        c = self._config
        rows = slice(self._replay.burn_in, None)
        transitions: dict[str, Any] = {
            "values": values,
            "rewards": batch.rewards[rows],
            "done": batch.done[rows],
            "truncated": batch.truncated[rows],
            "gamma": c.gamma,
            "lam": c.lam,
        }
        if c.advantages == "vtrace":
            result: VTrace = self._vtrace(
                log_ratios=log_ratios, rho_bar=c.rho_bar, c_bar=c.c_bar, **transitions
            )
            return result
        trace = gae(**transitions)
        if c.advantages == "one-step":
            ratios = log_ratios.float().exp().clamp(max=c.rho_bar)
            trace = trace._replace(rhos=trace.weights * ratios)
        return trace

    def targets(
        self,
        batch: Batch,
        trace: VTrace,
        logits: Tensor,  # (T, B, A) of the policy that learns
        values: Tensor,  # (T, B) that the trace corrects
    ) -> tuple[Targets, Tensor]:
        """Targets (T, B), and the priority (B,) of each unroll: its mean |advantage|.

        Rows with weight 0 may hold any data; mu = 1 keeps their ratio finite, so that
        their product with the weight is 0.
        """
        rows = slice(self._replay.burn_in, -1)
        actions = batch.actions[rows]
        log_mu = log_prob(batch.logits[rows], actions)
        popart, scales = self._model.popart, torch.ones_like(trace.weights)
        if popart is not None:
            scales = popart.scales(batch.levels[rows])
        trace = trace._replace(advantages=trace.advantages / scales)
        real = trace.weights.sum(0).clamp(min=1)
        priorities = (trace.weights * trace.advantages.abs()).sum(0) / real
        weights = trace.weights
        if self._replay.replay_share:
            weights = self.row_weights(batch, trace, logits)
        self._log(trace, values)
        targets = Targets(
            actions=actions,
            log_mu=log_mu.masked_fill(weights == 0, 0.0),
            advantages=trace.advantages,
            values=trace.targets,
            weights=weights,
            scales=scales,
        )
        return targets, priorities

    def row_weights(self, batch: Batch, trace: VTrace, logits: Tensor) -> Tensor:
        """Weights (T, B) of the rows of fresh and replayed unrolls.

        Replayed unrolls from which the policy has moved too far get weight 0: V-trace
        clips them to almost nothing, and its fixed point is that of another policy.
        """
        rows = slice(self._replay.burn_in, -1)
        real = trace.weights.sum(0).clamp(min=1)
        log_pi = F.log_softmax(logits, -1)
        log_mu = F.log_softmax(batch.logits[rows], -1)
        kl = (log_pi.exp() * (log_pi - log_mu)).sum(-1)
        kl = (trace.weights * kl).sum(0) / real
        rho = trace.rhos.sum(0) / real
        near = (kl <= self._replay.replay_max_kl) & (rho >= self._replay.replay_min_rho)
        kept = batch.fresh | near
        replayed = (~batch.fresh).float()
        share = replayed / replayed.sum().clamp(min=1)
        age = (self.version - batch.versions[rows]).float().mean(0)
        log = self._statistics.log
        log("replay/share", replayed.mean())
        log("replay/weight", (share * batch.weights * near).sum())
        log("replay/kept", (share * near).sum())
        log("replay/kl", (share * kl).sum())
        log("replay/rho", (share * rho).sum())
        log("replay/age", (share * age).sum())
        return trace.weights * batch.weights * kept

    def update_popart(self, batch: Batch, trace: VTrace) -> None:
        """Updates PopArt's statistics, if any, with the critic targets of a batch."""
        popart = self._model.popart
        if popart is None:
            return
        levels = batch.levels[self._replay.burn_in : -1]
        popart.update(
            trace.targets.flatten(),
            levels.flatten(),
            trace.weights.flatten(),
            self._popart_step,
            self._ranks,
        )
        self._statistics.log("popart/std_least", popart.std.min())
        self._statistics.log("popart/std_most", popart.std.max())

    def _log(self, trace: VTrace, values: Tensor) -> None:
        """Logs targets (T, B) and the values (T, B) that they correct."""
        log = self._statistics.log
        shares = trace.weights / trace.weights.sum().clamp(min=1)
        log("rho", (shares * trace.rhos).sum())
        log("advantage", (shares * trace.advantages.abs()).sum())
        log("value", (shares * values).sum())
        log("largest_return", (trace.weights * trace.targets).abs().max())
        log("explained_variance", explained_variance(values, trace.targets, shares))


def normalised(targets: Targets, config: LearnerConfig) -> tuple[Targets, Tensor]:
    """Scales the weights of a minibatch to sum 1; also returns the mean weight.

    With these weights the losses are means, as the statistics show them. Multiplied by
    the mean weight, they are the loss to minimise.
    """
    mean_weight = targets.weights.mean()
    weights = targets.weights / targets.weights.sum().clamp(min=1e-8)
    targets = targets._replace(weights=weights)
    if config.normalise_advantages:
        targets = targets._replace(advantages=normalise(targets.advantages, weights))
    return targets, mean_weight


def log_prob(logits: Tensor, actions: Tensor) -> Tensor:
    """Returns log pi(a) for logits (..., A) and actions (...)."""
    return F.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def explained_variance(values: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target), weighted by `shares` (sum 1)."""

    def variance(x: Tensor) -> Tensor:
        return (shares * (x - (shares * x).sum()).square()).sum()

    return 1 - variance(targets - values) / variance(targets).clamp(min=1e-8)
