"""Turns batches of unrolls into gradient steps.

An update forms V-trace targets and goes over the batch in minibatches. On a CPU
each minibatch is split into shards, one thread each, whose gradients are added:
the losses are weighted sums, so the parts add up to the whole.

Statistics stay on the device, summed, until `statistics()` fetches them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.config import LearnerConfig
from trainer.device import Shards
from trainer.losses import Loss, Targets, actor_critic_loss, normalise
from trainer.model import ActorCritic, PolicyOutput
from trainer.optim import linear, make_adam, set_learning_rate
from trainer.rollouts import Batch
from trainer.vtrace import VTrace, vtrace


class Learner:
    """Owns the optimiser and the update; the model is shared with the actor."""

    def __init__(
        self,
        model: ActorCritic,
        config: LearnerConfig,
        *,
        device: torch.device,
        dtype: torch.dtype | None,
        shards: Shards,
        seed: int,
    ) -> None:
        """Prepares to train `model`.

        Args:
            model: on the device already.
            config: how to learn.
            device: of the model and the batches.
            dtype: autocast type of the network, None for float32.
            shards: threads that share a minibatch.
            seed: of the order of the minibatches.
        """
        self.model = model
        self.config = config
        self.device = device
        self.dtype = dtype
        self.version = 0
        self.optimizer = make_adam(model.parameters(), config.lr, config.adam_eps)
        # The order is drawn on the host on every device, so that it is the same.
        self.generator = torch.Generator().manual_seed(seed)
        self._shards = shards
        self._params = list(model.parameters())
        self._entropy_cost = config.entropy
        self._lr = config.lr
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def update(self, batch: Batch, step: int) -> None:
        """Trains on a batch.

        Args:
            batch: B unrolls.
            step: environment steps so far, for the schedules.
        """
        c = self.config
        self._lr = linear(c.lr, c.lr_end, c.lr_steps, step)
        self._entropy_cost = linear(c.entropy, c.entropy_end, c.entropy_steps, step)
        set_learning_rate(self.optimizer, self._lr)
        lag = self.version - batch.versions[:-1].float()
        self._note("policy_lag", lag.mean())
        if c.loss == "clip":
            self._update_clip(batch)
        else:
            self._update_impala(batch)
        self.version += 1

    # -- clip: flat rows, targets fixed for all passes ------------------------

    def _update_clip(self, batch: Batch) -> None:
        c = self.config
        log_mu = log_prob(batch.logits, batch.actions)[:-1]
        if c.targets == "recomputed":
            logits, values = self._evaluate(batch)
            log_ratios = log_prob(logits, batch.actions)[:-1] - log_mu
        else:
            values, log_ratios = batch.values, torch.zeros_like(log_mu)
        trace = self._vtrace(batch, log_ratios, values)
        self._note_trace(trace, values[:-1])
        rows = batch.rows[:-1].flatten()
        flat = Targets(
            actions=batch.actions[:-1].flatten(),
            log_mu=log_mu.flatten(),
            advantages=trace.errors.flatten(),
            values=trace.targets.flatten(),
            weights=trace.weights.flatten(),
        )
        for _ in range(c.passes):
            for pick in self._minibatches(rows.numel(), c.minibatch_size):
                part = Targets(*(field[pick] for field in flat))
                weights = part.weights / part.weights.sum().clamp(min=1)
                advantages = part.advantages
                if c.normalise_advantages:
                    advantages = normalise(advantages, weights)
                part = part._replace(weights=weights, advantages=advantages)
                self._step_clip(batch.obs, rows[pick], part)

    def _step_clip(self, obs: Tensor, rows: Tensor, targets: Targets) -> None:
        """One gradient step on flat rows, split over the shards."""

        def part_of(pick: Tensor) -> tuple[Loss, tuple[Tensor, ...]]:
            output = self._forward(obs.index_select(0, rows[pick]))
            part = Targets(*(field[pick] for field in targets))
            return self._gradient(output, part, self.config.clip_range)

        self._apply(self._shards.map(part_of, self._split(rows.numel())))

    # -- impala: whole unrolls, targets from the weights of each step ---------

    def _update_impala(self, batch: Batch) -> None:
        c = self.config
        unrolls = max(1, c.minibatch_size // c.unroll)
        log_mu = log_prob(batch.logits, batch.actions)[:-1]
        for _ in range(c.passes):
            for pick in self._minibatches(batch.actions.shape[1], unrolls):
                self._step_impala(batch, log_mu, pick)

    def _step_impala(self, batch: Batch, log_mu: Tensor, columns: Tensor) -> None:
        """One gradient step on some unrolls, split over the shards."""

        def forward(pick: Tensor) -> tuple[PolicyOutput, Tensor, VTrace]:
            part = select(batch, columns[pick])
            shape = part.rows.shape
            output = self._forward(part.obs.index_select(0, part.rows.flatten()))
            logits = output.logits.view(*shape, -1)[:-1]
            values = output.values.view(shape)
            log_pi = log_prob(logits.detach(), part.actions[:-1])
            log_ratios = log_pi - log_mu[:, columns[pick]]
            trace = self._vtrace(part, log_ratios, values.detach())
            rows = PolicyOutput(logits.flatten(0, 1), values[:-1].flatten())
            return rows, part.actions[:-1], trace

        picks = self._split(columns.numel())
        outputs, actions, traces = zip(*self._shards.map(forward, picks), strict=True)
        # The weights and the normalisation are the whole minibatch's.
        whole = VTrace(
            *(torch.cat(fields, dim=1) for fields in zip(*traces, strict=True))
        )
        values = torch.cat([output.values for output in outputs]).detach()
        self._note_trace(whole, values.view_as(whole.targets))
        weights = whole.weights / whole.weights.sum().clamp(min=1)
        advantages = whole.errors
        if self.config.normalise_advantages:
            advantages = normalise(advantages, weights)

        def gradient(part: int) -> tuple[Loss, tuple[Tensor, ...]]:
            pick = picks[part]
            targets = Targets(
                actions=actions[part].flatten(),
                log_mu=log_mu[:, columns[pick]].flatten(),
                advantages=(whole.pg_rhos * advantages)[:, pick].flatten(),
                values=whole.targets[:, pick].flatten(),
                weights=weights[:, pick].flatten(),
            )
            return self._gradient(outputs[part], targets, None)

        self._apply(self._shards.map(gradient, list(range(len(picks)))))

    # -- shared ---------------------------------------------------------------

    def _vtrace(self, batch: Batch, log_ratios: Tensor, values: Tensor) -> VTrace:
        c = self.config
        return vtrace(
            log_ratios=log_ratios,
            values=values,
            rewards=batch.rewards,
            done=batch.done,
            truncated=batch.truncated,
            gamma=c.gamma,
            lam=c.lam,
            rho_bar=c.rho_bar,
            c_bar=c.c_bar,
            pg_rho_bar=c.pg_rho_bar,
        )

    def _note_trace(self, trace: VTrace, values: Tensor) -> None:
        """Statistics of targets (T, B) and the values (T, B) they correct."""
        shares = trace.weights / trace.weights.sum().clamp(min=1)
        self._note("rho", (shares * trace.rhos).sum())
        self._note("advantage", (shares * trace.errors.abs()).sum())
        self._note("value", (shares * values).sum())
        variance = explained_variance(values, trace.targets, shares)
        self._note("explained_variance", variance)

    def _forward(self, obs: Tensor) -> PolicyOutput:
        # Autocast belongs to a thread: it has to be entered in every shard.
        with torch.autocast(self.device.type, self.dtype, self.dtype is not None):
            output: PolicyOutput = self.model(obs)
        return output

    def _evaluate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and values of all rows under the current weights."""
        rows = batch.rows.flatten()

        def part_of(pick: Tensor) -> list[PolicyOutput]:
            with torch.no_grad():
                return [
                    self._forward(batch.obs.index_select(0, rows[some]))
                    for some in torch.split(pick, self.config.minibatch_size)
                ]

        parts = self._shards.map(part_of, self._split(rows.numel()))
        outputs = [output for part in parts for output in part]
        logits = torch.cat([output.logits for output in outputs])
        values = torch.cat([output.values for output in outputs])
        shape = batch.rows.shape
        return logits.view(*shape, -1), values.view(shape)

    def _gradient(
        self, output: PolicyOutput, targets: Targets, clip_range: float | None
    ) -> tuple[Loss, tuple[Tensor, ...]]:
        c = self.config
        loss = actor_critic_loss(
            output.logits,
            output.values,
            targets,
            clip_range=clip_range,
            value_cost=c.value_cost,
            value_kind=c.value_loss,
            entropy_cost=self._entropy_cost,
        )
        # Not backward(): shards would add to the same .grad at the same time.
        gradients = torch.autograd.grad(loss.total, self._params)
        return loss._replace(total=loss.total.detach()), gradients

    def _apply(self, parts: list[tuple[Loss, tuple[Tensor, ...]]]) -> None:
        """Adds the gradients of the shards in order, clips, and steps."""
        gradients = list(parts[0][1])
        for _, more in parts[1:]:
            torch._foreach_add_(gradients, list(more))
        for param, gradient in zip(self._params, gradients, strict=True):
            param.grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(self._params, self.config.max_grad_norm)
        self.optimizer.step()
        self._note("gradient_norm", norm)
        for name in Loss._fields:
            self._note(
                f"loss/{name}", torch.stack([getattr(p, name) for p, _ in parts]).sum()
            )

    def _minibatches(self, count: int, size: int) -> Iterator[Tensor]:
        """Random disjoint picks that cover `count` items, near `size` each."""
        order = torch.randperm(count, generator=self.generator).to(self.device)
        return iter(order.chunk(max(1, round(count / size))))

    def _split(self, count: int) -> list[Tensor]:
        """0..count-1 in contiguous parts, one for each shard."""
        return list(torch.arange(count, device=self.device).chunk(self._shards.count))

    def _note(self, name: str, value: Tensor) -> None:
        value = value.detach()
        old = self._sums.get(name)
        self._sums[name] = value.clone() if old is None else old + value
        self._counts[name] = self._counts.get(name, 0) + 1

    def statistics(self) -> dict[str, float]:
        """Means since the last call; the only place that waits for the device."""
        result = {
            name: total.item() / self._counts[name]
            for name, total in self._sums.items()
        }
        self._sums, self._counts = {}, {}
        return result | {
            "learning_rate": self._lr,
            "entropy_cost": self._entropy_cost,
            "updates": float(self.version),
        }


def log_prob(logits: Tensor, actions: Tensor) -> Tensor:
    """Gives log pi(a) for logits (..., A) and actions (...)."""
    return F.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def select(batch: Batch, columns: Tensor) -> Batch:
    """Some unrolls of a batch."""
    return Batch(
        obs=batch.obs,
        rows=batch.rows[:, columns],
        actions=batch.actions[:, columns],
        logits=batch.logits[:, columns],
        values=batch.values[:, columns],
        rewards=batch.rewards[:, columns],
        done=batch.done[:, columns],
        truncated=batch.truncated[:, columns],
        versions=batch.versions[:, columns],
    )


def explained_variance(values: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target), weighted by `shares` (sum 1)."""

    def variance(x: Tensor) -> Tensor:
        return (shares * (x - (shares * x).sum()).square()).sum()

    return 1 - variance(targets - values) / variance(targets).clamp(min=1e-8)
