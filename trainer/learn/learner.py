"""Turns batches of unrolls into gradient steps.

An update forms targets and goes over the batch in minibatches: of single rows
where the network has no memory and the loss allows it, of whole unrolls
otherwise. On a CPU each minibatch is split into shards, one thread each, whose
gradients are added: the losses are weighted sums, so the parts add up to the
whole. On a GPU a gradient step is one recorded graph.

Statistics stay on the device, summed, until `statistics()` fetches them.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from functools import reduce
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.config.schedules import linear
from trainer.config.schema import RunConfig
from trainer.learn.augment import Augmentation
from trainer.learn.losses import (
    Loss,
    Targets,
    actor_critic_loss,
    consistency,
    normalise,
)
from trainer.learn.optim import build_optimizer, learning_rate_factor, set_learning_rate
from trainer.learn.vtrace import VTrace, gae, vtrace
from trainer.machine.cuda import Graphed, compiled
from trainer.machine.device import Shards
from trainer.models import PolicyModel, PolicyOutput
from trainer.models.weights import Ema, copy_weights
from trainer.rollout.batch import Batch, observations, select

_logger = logging.getLogger(__name__)

Gradient = tuple[Loss, list[Tensor]]


class Minibatch(NamedTuple):
    """Items (rows or unrolls) on dimension 1 of everything: (rows, items, ...).

    Attributes:
        stacks: (K, n, stack) int64 frames of the observations.
        first: (K, n) bool.
        levels: (K, n) int64.
        state: (1, n, state size) float32 memory before the first row.
        actions: (T, n) int64, like the rest the fields of `Targets`.
        log_mu: (T, n) float32.
        advantages: (T, n) float32.
        values: (T, n) float32.
        weights: (T, n) float32.
        log_target: (T, n) float32, log_mu without a target network.
        scales: (T, n) float32, 1 without PopArt.
    """

    stacks: Tensor
    first: Tensor
    levels: Tensor
    state: Tensor
    actions: Tensor
    log_mu: Tensor
    advantages: Tensor
    values: Tensor
    weights: Tensor
    log_target: Tensor
    scales: Tensor


class Learner:
    """Owns the optimiser and the update; the model may be shared with the actor."""

    def __init__(
        self,
        model: PolicyModel,
        config: RunConfig,
        *,
        obs_shape: tuple[int, ...],
        device: torch.device,
        dtype: torch.dtype | None,
        shards: Shards,
    ) -> None:
        """Prepares to train `model`.

        Args:
            model: on the device already.
            config: how to learn, and with what arithmetic.
            obs_shape: (C, H, W) of an observation.
            device: of the model and the batches.
            dtype: autocast type of the network, None for float32.
            shards: threads that share a minibatch.

        Raises:
            ValueError: the augmentation does not fit the environments.
        """
        c = config.learner
        self.model = model
        self.config = c
        self.device = device
        self.dtype = dtype
        self.version = 0
        graphs = config.cuda_graphs and device.type == "cuda" and not config.serial
        # A scaled loss skips steps that overflow, and asks the host whether to.
        if graphs and dtype is torch.float16:
            _logger.warning("no CUDA graph of the gradient step: fp16 scales the loss")
            graphs = False
        self.optimizer = build_optimizer(model, c, capturable=graphs)
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
        self.ema = Ema(model, c.ema) if c.ema else None
        self.target = copy.deepcopy(model) if c.target_updates else None
        self.generator = torch.Generator(device).manual_seed(config.seed)
        self._replay = config.replay
        self._burn_in = config.replay.burn_in
        self._stored = _targets_are_stored(config)
        self._popart_step = config.model.popart_step
        self._by_rows = c.loss == "clip" and not model.state_size
        self._obs_shape = obs_shape
        self._shards = shards
        self._augmentation = Augmentation(config.augmentation, config.env, device)
        self._params = [p for p in model.parameters() if p.requires_grad]
        # On the device: recorded graphs read them.
        self._entropy_cost = torch.tensor(c.entropy, device=device)
        self._version = torch.zeros((), dtype=torch.int64, device=device)
        self._frames = torch.empty(0)
        self._sums: dict[str, Tensor] = {}
        self._lr_factor = 1.0
        compile_it = config.compile and not config.serial
        self._loss: Any = actor_critic_loss
        self._vtrace: Any = vtrace
        if compile_it:
            self._loss = compiled(actor_critic_loss, name="the loss")
            self._vtrace = compiled(vtrace, name="V-trace")
        options: dict[str, Any] = {"device": device, "enabled": graphs}
        self._clip_step = Graphed(self._step_clip, name="the gradient step", **options)
        self._impala_step = Graphed(
            self._step_impala, name="the gradient step", **options
        )

    def update(self, batch: Batch, step: int) -> Tensor:
        """Trains on a batch.

        Args:
            batch: B unrolls.
            step: environment steps so far, for the schedules.

        Returns:
            (B,) float32 priorities for replay: mean |advantage| of each unroll.
        """
        c = self.config
        self._lr_factor = learning_rate_factor(c, step, self.version)
        set_learning_rate(self.optimizer, self._lr_factor)
        cost = linear(c.entropy, c.entropy_end, c.entropy_steps, step)
        self._entropy_cost.fill_(cost)
        self._version.fill_(self.version)
        if batch.frames is not self._frames:
            self._frames = batch.frames
            self._clip_step.reset()
            self._impala_step.reset()
        if self.target is not None and self.version % c.target_updates == 0:
            copy_weights(self.target, self.model)
        lag = (self.version - batch.versions[self._burn_in : -1]).float()
        # Not lag[:, fresh]: that would wait for the device.
        self._note("policy_lag", (lag.mean(0) * batch.fresh).sum() / batch.fresh.sum())
        if c.loss == "clip":
            priorities = self._update_clip(batch)
        else:
            priorities = self._update_impala(batch)
        self.version += 1
        if self.ema is not None:
            # The average is one of weights on the same scale.
            theirs = cast(PolicyModel, self.ema.model).popart
            ours = self.model.popart
            if theirs is not None and ours is not None:
                theirs.rescale(ours.mean, ours.std)
            self.ema.update(self.version)
        return priorities

    # -- clip: targets fixed for all passes -----------------------------------

    def _update_clip(self, batch: Batch) -> Tensor:
        c = self.config
        targets, priorities = self._targets(batch)
        if self._by_rows:
            items = Minibatch(
                batch.stacks[:-1].flatten(0, 1)[None],
                batch.is_first[:-1].reshape(1, -1),
                batch.levels[:-1].reshape(1, -1),
                batch.state.new_zeros(1, targets.weights.numel(), 0),
                *(field.reshape(1, -1) for field in targets if field is not None),
            )
            size = c.minibatch_size
        else:
            items = Minibatch(
                batch.stacks[:-1],
                batch.is_first[:-1],
                batch.levels[:-1],
                batch.state[None],
                *(field for field in targets if field is not None),
            )
            size = max(1, c.minibatch_size // c.unroll)
        for _ in range(c.passes):
            for pick in self._minibatches(items.weights.shape[1], size):
                self.model.resample_noise(self.generator)
                self._clip_step(self._draw(pick), *(f[:, pick] for f in items))
        return priorities

    def _targets(self, batch: Batch) -> tuple[Targets, Tensor]:
        """Targets (T, B), and the priority (B,) of each unroll.

        Rows without weight may hold anything; with mu = 1 their ratio is finite,
        and 0 times it is 0.
        """
        rows = slice(self._burn_in, None)
        actions, behaviour = batch.actions[rows], batch.logits[rows]
        log_mu = log_prob(behaviour, actions)[:-1]
        if self._stored:
            logits, values = behaviour, batch.values[rows]
            log_ratios, log_target = torch.zeros_like(log_mu), log_mu
        else:
            logits, values = self._evaluate(self.model, batch)
            if self.target is not None:
                logits, _ = self._evaluate(self.target, batch)
            log_pi = log_prob(logits, actions)[:-1]
            log_ratios = log_pi - log_mu
            log_target = log_mu if self.target is None else log_pi
        trace = self._trace(batch, log_ratios, values)
        levels = batch.levels[rows][:-1]
        self._normalise_values(trace, levels)
        scales = self._scales(levels)
        trace = trace._replace(errors=trace.errors / scales)
        weights, priorities = self._judge(batch, trace, logits[:-1])
        self._note_trace(trace, values[:-1])
        ignored = weights == 0
        targets = Targets(
            actions=actions[:-1],
            log_mu=log_mu.masked_fill(ignored, 0.0),
            advantages=trace.errors,
            values=trace.targets,
            weights=weights,
            log_target=log_target.masked_fill(ignored, 0.0),
            scales=scales,
        )
        return targets, priorities

    def _step_clip(self, numbers: Tensor, *fields: Tensor) -> None:
        """One gradient step on a minibatch, split over the shards.

        Args:
            numbers: (4, n) random ones, of the augmentation.
            fields: of a `Minibatch`.
        """
        whole = Minibatch(*fields)
        weights = whole.weights / whole.weights.sum().clamp(min=1e-8)
        advantages = whole.advantages
        if self.config.normalise_advantages:
            advantages = normalise(advantages, weights)
        whole = whole._replace(weights=weights, advantages=advantages)

        def part_gradient(some: Tensor) -> Gradient:
            part = Minibatch(*(field[:, some] for field in whole))
            rows = part.stacks, part.state[0], part.first, part.levels
            output = self._unroll(self.model, *rows)
            changed = self._augmented(numbers[:, some], *rows)
            targets = Targets(*(field.flatten() for field in part[4:]))
            return self._gradient(output, changed, targets, clip=True)

        def gradient(pick: Tensor) -> Gradient:
            return reduce(_add, map(part_gradient, self._accumulated(pick)))

        self._apply(self._shards.map(gradient, self._split(weights.shape[1])))

    # -- impala: targets from the weights of each step ------------------------

    def _update_impala(self, batch: Batch) -> Tensor:
        c = self.config
        count = batch.weights.numel()
        priorities = torch.empty(count, device=self.device)
        for _ in range(c.passes):
            for pick in self._minibatches(count, max(1, c.minibatch_size // c.unroll)):
                self.model.resample_noise(self.generator)
                part = select(batch, pick)
                priorities[pick] = self._impala_step(self._draw(pick), *part[1:])
        return priorities

    def _step_impala(self, numbers: Tensor, *fields: Tensor) -> Tensor:
        """One gradient step on unrolls, split over the shards.

        Args:
            numbers: (4, n) random ones, of the augmentation.
            fields: of a `Batch` without frames.

        Returns:
            (n,) priorities.
        """
        whole = Batch(self._frames, *fields)
        rows = slice(self._burn_in, -1)
        log_mu = log_prob(whole.logits[rows], whole.actions[rows])
        # With parts, no graph of the whole is kept: it is computed again.
        keep_graph = self.config.accumulate == 1

        def forward(pick: Tensor) -> tuple[PolicyOutput, VTrace]:
            part = select(whole, pick)
            with torch.set_grad_enabled(keep_graph):
                output = self._unroll(self.model, *_rows(part))
            log_pi = log_prob(output.logits.detach()[:-1], part.actions[rows])
            trace = self._trace(part, log_pi - log_mu[:, pick], output.values.detach())
            return output, trace

        picks = self._split(whole.weights.numel())
        outputs, traces = zip(*self._shards.map(forward, picks), strict=True)
        # The weights and the normalisation are the whole minibatch's.
        trace = VTrace(*(torch.cat(field, 1) for field in zip(*traces, strict=True)))
        logits = torch.cat([output.logits.detach() for output in outputs], 1)
        values = torch.cat([output.values.detach() for output in outputs], 1)
        levels = whole.levels[rows]
        scales = self._scales(levels)
        trace = trace._replace(errors=trace.errors / scales)
        weights, priorities = self._judge(whole, trace, logits[:-1])
        self._note_trace(trace, values[:-1])
        weights = weights / weights.sum().clamp(min=1e-8)
        advantages = trace.errors
        if self.config.normalise_advantages:
            advantages = normalise(advantages, weights)
        targets = Targets(
            actions=whole.actions[rows],
            log_mu=log_mu.masked_fill(weights == 0, 0.0),
            advantages=trace.pg_rhos * advantages,
            values=trace.targets,
            weights=weights,
            scales=scales,
        )

        def part_gradient(output: PolicyOutput, some: Tensor) -> Gradient:
            stacks, state, first, own = _rows(select(whole, some))
            if not keep_graph:
                output = self._unroll(self.model, stacks, state, first, own)
            acting = PolicyOutput(output.logits[:-1], output.values[:-1])
            changed = self._augmented(
                numbers[:, some], stacks[:-1], state, first[:-1], own[:-1]
            )
            mine = Targets._make(
                None if field is None else field[:, some].flatten() for field in targets
            )
            return self._gradient(acting, changed, mine, clip=False)

        def gradient(shard: int) -> Gradient:
            parts = self._accumulated(picks[shard])
            return reduce(_add, (part_gradient(outputs[shard], p) for p in parts))

        self._apply(self._shards.map(gradient, list(range(len(picks)))))
        # Not earlier: it changes weights that the gradient is of.
        self._normalise_values(trace, levels)
        return priorities

    # -- shared ---------------------------------------------------------------

    def _trace(self, batch: Batch, log_ratios: Tensor, values: Tensor) -> VTrace:
        """Targets of T transitions, from T + 1 values and K rows of a batch."""
        c = self.config
        rows = slice(self._burn_in, None)
        given: dict[str, Any] = {
            "values": values,
            "rewards": batch.rewards[rows],
            "done": batch.done[rows],
            "truncated": batch.truncated[rows],
            "gamma": c.gamma,
            "lam": c.lam,
        }
        if c.advantages == "gae":
            return gae(**given)
        result: VTrace = self._vtrace(
            log_ratios=log_ratios,
            rho_bar=c.rho_bar,
            c_bar=c.c_bar,
            pg_rho_bar=c.pg_rho_bar,
            **given,
        )
        return result

    def _judge(
        self, batch: Batch, trace: VTrace, logits: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Weights (T, B) of the rows and priorities (B,) of the unrolls.

        Replayed unrolls from which the policy (logits (T, B, A)) has moved too
        far get weight 0: what V-trace makes of them is clipped nearly away, and
        its fixed point is that of another policy (Schmitt et al. 2020).
        """
        real = trace.weights.sum(0).clamp(min=1)
        priorities = (trace.weights * trace.errors.abs()).sum(0) / real
        if not self._replay.replay_share:
            return trace.weights, priorities
        rows = slice(self._burn_in, -1)
        log_pi = F.log_softmax(logits, -1)
        log_mu = F.log_softmax(batch.logits[rows], -1)
        kl = (log_pi.exp() * (log_pi - log_mu)).sum(-1)
        kl = (trace.weights * kl).sum(0) / real
        rho = trace.rhos.sum(0) / real
        near = (kl <= self._replay.replay_max_kl) & (rho >= self._replay.replay_min_rho)
        kept = batch.fresh | near
        replayed = (~batch.fresh).float()
        share = replayed / replayed.sum().clamp(min=1)
        age = (self._version - batch.versions[rows]).float().mean(0)
        self._note("replay/share", replayed.mean())
        self._note("replay/kept", (share * near).sum())
        self._note("replay/kl", (share * kl).sum())
        self._note("replay/rho", (share * rho).sum())
        self._note("replay/age", (share * age).sum())
        return trace.weights * batch.weights * kept, priorities

    def _normalise_values(self, trace: VTrace, levels: Tensor) -> None:
        """Brings PopArt's statistics up to date, with targets of levels (T, B)."""
        popart = self.model.popart
        if popart is None:
            return
        popart.update(
            trace.targets.flatten(),
            levels.flatten(),
            trace.weights.flatten(),
            self._popart_step,
        )
        self._note("popart/std_least", popart.std.min())
        self._note("popart/std_most", popart.std.max())

    def _scales(self, levels: Tensor) -> Tensor:
        """What returns of levels (T, B) are divided by, (T, B); 1 without PopArt."""
        popart = self.model.popart
        if popart is None:
            return torch.ones(levels.shape, device=self.device)
        return popart.scales(levels)

    def _draw(self, pick: Tensor) -> Tensor:
        """Random numbers for the augmentation of as many items."""
        return self._augmentation.draw(len(pick), self.generator, self.device)

    def _augmented(
        self,
        numbers: Tensor,
        stacks: Tensor,
        state: Tensor,
        first: Tensor,
        levels: Tensor,
    ) -> PolicyOutput | None:
        """What the network says of augmented rows; None without augmentation.

        Arguments as of `_unroll`.
        """
        if not self._augmentation:
            return None
        output = self._unroll(self.model, stacks, state, first, levels, numbers)
        logits = self._augmentation.logits(output.logits, numbers)
        return output._replace(logits=logits)

    def _unroll(
        self,
        model: PolicyModel,
        stacks: Tensor,
        state: Tensor,
        first: Tensor,
        levels: Tensor,
        numbers: Tensor | None = None,
    ) -> PolicyOutput:
        """Runs rows; those of the burn-in only bring the state up to date.

        Values are those of each row's level, (T, B).

        Args:
            model: to run.
            stacks: (K, B, stack) int64.
            state: (B, S) float32.
            first: (K, B) bool.
            levels: (K, B) int64.
            numbers: (4, B) float32, to augment the observations; None: as they are.
        """
        obs = observations(self._frames, stacks, self._obs_shape)
        if numbers is not None:
            obs = self._augmentation.observations(obs, numbers)
        burn_in = self._burn_in
        # Autocast belongs to a thread: it has to be entered in every shard.
        # No cache: weights cast without gradients would be reused with them.
        with torch.autocast(
            self.device.type, self.dtype, self.dtype is not None, cache_enabled=False
        ):
            if burn_in:
                with torch.no_grad():
                    _, state = model(obs[:burn_in], state, first[:burn_in])
            output: PolicyOutput
            output, _ = model(obs[burn_in:], state, first[burn_in:])
        return output._replace(values=output.values_at(levels[burn_in:]))

    def _evaluate(self, model: PolicyModel, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (T+1, B, A) and values (T+1, B) under some weights."""
        size = max(1, self.config.minibatch_size // self.config.unroll)

        def part_of(pick: Tensor) -> list[PolicyOutput]:
            with torch.no_grad():
                return [
                    self._unroll(
                        model,
                        batch.stacks[:, some],
                        batch.state[some],
                        batch.is_first[:, some],
                        batch.levels[:, some],
                    )
                    for some in torch.split(pick, size)
                ]

        parts = self._shards.map(part_of, self._split(batch.weights.numel()))
        outputs = [output for part in parts for output in part]
        logits = torch.cat([output.logits for output in outputs], 1)
        values = torch.cat([output.values for output in outputs], 1)
        return logits, values

    def _gradient(
        self,
        output: PolicyOutput,
        changed: PolicyOutput | None,
        targets: Targets,
        *,
        clip: bool,
    ) -> Gradient:
        """The gradient of rows (T, B); `changed` is said of augmented ones."""
        c = self.config
        logits, values = output.logits.flatten(0, 1), output.values.flatten()
        loss: Loss = self._loss(
            logits,
            values,
            targets,
            clip_range=c.clip_range if clip else None,
            target_rho=c.target_rho,
            value_cost=c.value_cost,
            value_kind=c.value_loss,
            entropy_cost=self._entropy_cost,
        )
        if changed is not None:
            apart = consistency(
                logits,
                values,
                changed.logits.flatten(0, 1),
                changed.values.flatten(),
                targets,
            )
            loss = loss._replace(
                total=loss.total + self._augmentation.cost * apart,
                augmented=apart.detach(),
            )
        # Not backward(): shards would add to the same .grad at the same time.
        gradients = torch.autograd.grad(self.scaler.scale(loss.total), self._params)
        return loss._replace(total=loss.total.detach()), list(gradients)

    def _apply(self, parts: list[Gradient]) -> None:
        """Adds the gradients of the shards in order, clips, and steps."""
        loss, gradients = reduce(_add, parts)
        for param, gradient in zip(self._params, gradients, strict=True):
            param.grad = gradient
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self._params, self.config.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        # A scaled loss may overflow, and then there is no step.
        overflows = self.scaler.is_enabled()
        self._note("gradient_norm", norm, finite_alone=overflows)
        for name, value in zip(Loss._fields, loss, strict=True):
            if value is not None:
                self._note(f"loss/{name}", value)

    def _minibatches(self, count: int, size: int) -> Iterator[Tensor]:
        """Random disjoint picks that cover `count` items, near `size` each."""
        order = torch.randperm(count, generator=self.generator, device=self.device)
        return iter(order.chunk(max(1, round(count / size))))

    def _split(self, count: int) -> list[Tensor]:
        """0..count-1 in contiguous parts, one for each shard."""
        return list(torch.arange(count, device=self.device).chunk(self._shards.count))

    def _accumulated(self, pick: Tensor) -> tuple[Tensor, ...]:
        """The parts of a shard's items that are computed one after the other."""
        return pick.chunk(self.config.accumulate)

    def _note_trace(self, trace: VTrace, values: Tensor) -> None:
        """Statistics of targets (T, B) and the values (T, B) they correct."""
        shares = trace.weights / trace.weights.sum().clamp(min=1)
        self._note("rho", (shares * trace.rhos).sum())
        self._note("advantage", (shares * trace.errors.abs()).sum())
        self._note("value", (shares * values).sum())
        variance = explained_variance(values, trace.targets, shares)
        self._note("explained_variance", variance)

    def _note(self, name: str, value: Tensor, *, finite_alone: bool = False) -> None:
        """Adds to a sum and a count, in place: a recorded graph does it again."""
        if name not in self._sums:
            self._sums[name] = torch.zeros(2, device=self.device)
        value = value.detach().float()
        counted = torch.ones_like(value)
        if finite_alone:
            counted = value.isfinite().float()
            value = value.nan_to_num(0.0, 0.0, 0.0)
        self._sums[name].add_(torch.stack([value, counted]))

    def statistics(self) -> dict[str, float]:
        """Means since the last call; the only place that waits for the device."""
        result = {}
        if self._sums:
            pairs = torch.stack(list(self._sums.values())).tolist()
            result = {
                name: total / count
                for name, (total, count) in zip(self._sums, pairs, strict=True)
                if count
            }
            torch._foreach_zero_(list(self._sums.values()))
        return result | {
            "learning_rate": self.config.lr * self._lr_factor,
            "entropy_cost": float(self._entropy_cost),
            "updates": float(self.version),
        }

    def close(self) -> None:
        """Gives up what is recorded."""
        self._clip_step.close()
        self._impala_step.close()

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, besides the model."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "ema": self.ema.state_dict() if self.ema else None,
            "target": self.target.state_dict() if self.target else None,
            # The noise of noisy layers is in no state dict.
            "buffers": dict(self.model.named_buffers()),
            "target_buffers": dict(self.target.named_buffers()) if self.target else {},
            "updates": self.version,
            "minibatch_rng": self.generator.get_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state()`, the model having its weights already.

        What the config did not have then starts from these weights. A generator of
        another kind of device has another state: then this one begins anew.
        """
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # empty unless it was fp16 then, too
            self.scaler.load_state_dict(state["scaler"])
        latest = self.model.state_dict()
        if self.ema:
            self.ema.load_state_dict(state["ema"] or latest)
        if self.target:
            self.target.load_state_dict(state["target"] or latest)
            _copy_buffers(self.target, state["target_buffers"])
        _copy_buffers(self.model, state["buffers"])
        self.version = state["updates"]
        saved = state["minibatch_rng"].cpu()
        if saved.shape == self.generator.get_state().shape:
            self.generator.set_state(saved)


@torch.no_grad()
def _copy_buffers(model: PolicyModel, buffers: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])


def _targets_are_stored(config: RunConfig) -> bool:
    """Whether targets are made of what the actor said; see LearnerConfig.targets."""
    c = config.learner
    if c.targets == "auto":
        exact = config.mode == "sync" and config.lag == 0
        return exact and not config.replay.replay_share and not c.target_updates
    return c.targets == "stored"


def _rows(part: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a network is run on: stacks, state, first, levels."""
    return part.stacks, part.state, part.is_first, part.levels


def _add(total: Gradient, part: Gradient) -> Gradient:
    """Sums losses and, in place, gradients."""
    torch._foreach_add_(total[1], part[1])
    pairs = zip(total[0], part[0], strict=True)
    sums = (None if a is None or b is None else a + b for a, b in pairs)
    return Loss._make(sums), total[1]


def log_prob(logits: Tensor, actions: Tensor) -> Tensor:
    """Gives log pi(a) for logits (..., A) and actions (...)."""
    return F.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def explained_variance(values: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target), weighted by `shares` (sum 1)."""

    def variance(x: Tensor) -> Tensor:
        return (shares * (x - (shares * x).sum()).square()).sum()

    return 1 - variance(targets - values) / variance(targets).clamp(min=1e-8)
