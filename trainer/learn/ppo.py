"""PPO: the clipped loss on targets that stay the same for all epochs over a batch.

How a batch becomes gradient steps (Schulman et al. 2017, arXiv:1707.06347,
algorithm 1; targets by V-trace, Espeholt et al. 2018, arXiv:1802.01561, section 4.1,
or GAE):

    1. Values and probabilities of all rows: those stored when acting if they are
       the learner's own (no lag, no replay), otherwise from one forward pass.
    2. Targets, row weights and priorities of the whole batch, once (targets.py).
    3. In every epoch, random minibatches: of single rows, or of whole unrolls if the
       network has a memory. In each, the advantages are normalised, and one gradient
       step follows the clipped loss (equation 7), whose ratio is taken against the
       behaviour policy mu.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from trainer.config.learning import Ppo
from trainer.config.schema import RunConfig
from trainer.learn.algorithm import AlgorithmParts
from trainer.learn.forward import Inputs, flat
from trainer.learn.fused import FusedGradient
from trainer.learn.losses import Loss, Targets, ppo_loss
from trainer.learn.targets import log_prob, normalised
from trainer.machine.cuda import Graphed, compiled
from trainer.machine.monitor import mark
from trainer.models import PolicyOutput
from trainer.rollout.batch import Batch


class Minibatch(NamedTuple):
    """Items (rows or unrolls) on dimension 1 of everything: (rows, items, ...).

    Attributes:
        stacks: (T, n, stack) int64 indices of the observations' frames; with a memory
            also the rows of the burn-in, like first and levels.
        first: (T, n) bool.
        levels: (T, n) int64.
        state: (1, n, S) float32 memory before the first row.
        actions: (T, n) int64; this and the next five are the fields of `Targets`.
        log_mu: (T, n) float32.
        advantages: (T, n) float32.
        values: (T, n) float32.
        weights: (T, n) float32.
        scales: (T, n) float32, 1 without PopArt.
        teachers: (T, n, A) float32 log-probabilities of distillation's teachers; A = 0
            without distillation.
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
    scales: Tensor
    teachers: Tensor

    def at(self, items: Tensor | slice) -> Minibatch:
        """Some of the items."""
        return Minibatch._make(field[:, items] for field in self)

    @property
    def inputs(self) -> Inputs:
        """The network's inputs."""
        return Inputs(self.stacks, self.state[0], self.first, self.levels)

    @property
    def targets(self) -> Targets:
        """The network's targets."""
        return Targets(*(getattr(self, name) for name in Targets._fields))


class PPO:
    """An `Algorithm`; the module docstring describes it.

    Attributes:
        step: the gradient step; takes random numbers (4, n) for the augmentation and
            the fields of a `Minibatch`.
    """

    loss: ClassVar[Callable[..., Loss]] = staticmethod(ppo_loss)

    def __init__(self, parts: AlgorithmParts) -> None:
        """Makes the gradient step."""
        self._parts = parts
        self._config = parts.config.learner
        self._burn_in = parts.config.replay.burn_in
        self._by_rows = not parts.model.state_size
        self._stored = _stored_targets_are_exact(parts.config)
        self._loss: Any = self.loss
        if parts.config.compile and not parts.config.serial:
            self._loss = compiled(self.loss, name="the loss")
        self.step = Graphed(
            self._step,
            name="the gradient step",
            device=parts.device,
            enabled=parts.graphs,
        )

    def update(self, batch: Batch) -> Tensor:
        """Makes the gradient steps of B unrolls; returns priorities (B,)."""
        with mark("targets"):
            targets, priorities = self._targets(batch)
        items = self._items(batch, targets)
        size = self._parts.unrolls_per_minibatch
        if self._by_rows:
            size = self._config.minibatch_size
        count = items.weights.shape[1]
        fused = FusedGradient.of(self._parts)
        if fused is not None:
            fields = (
                items.actions, items.levels, items.log_mu, items.advantages,
                items.values, items.weights, items.scales,
            )  # fmt: skip
            flat = tuple(field.flatten().contiguous() for field in fields)
        for picked, numbers in self._parts.minibatches(count, size):
            if fused is not None:
                fused.step(items.stacks[0], flat, picked)
            else:
                self.step(numbers, *items.at(picked))
        return priorities

    def _targets(self, batch: Batch) -> tuple[Targets, Tensor]:
        """Targets (T, B), and the priority (B,) of each unroll."""
        rows = slice(self._burn_in, None)
        actions, behaviour = batch.actions[rows][:-1], batch.logits[rows]
        if self._stored:
            logits, values = behaviour, batch.values[rows]
            log_ratios = torch.zeros(actions.shape, device=actions.device)
        else:
            logits, values = self._evaluate(batch)
            log_pi = log_prob(logits[:-1], actions)
            log_ratios = log_pi - log_prob(behaviour[:-1], actions)
        maker = self._parts.target_maker
        trace = maker.trace(batch, log_ratios, values)
        maker.update_popart(batch, trace)
        return maker.targets(batch, trace, logits[:-1], values[:-1])

    def _evaluate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (T + 1, B, A) and values (T + 1, B) under the current weights."""
        parts, step = self._parts, self._parts.gradient_step
        inputs = Inputs.of(batch)

        def outputs_of(unrolls: slice) -> list[PolicyOutput]:
            size = parts.unrolls_per_minibatch
            starts = range(unrolls.start, unrolls.stop, size)
            with torch.no_grad():
                return [
                    parts.forward(inputs.at(slice(i, min(i + size, unrolls.stop))))
                    for i in starts
                ]

        shards = step.shards.map(outputs_of, step.split(batch.weights.numel()))
        outputs = [output for shard in shards for output in shard]
        logits = torch.cat([output.logits for output in outputs], 1)
        values = torch.cat([output.values for output in outputs], 1)
        return logits, values

    def _items(self, batch: Batch, targets: Targets) -> Minibatch:
        """The items that minibatches are drawn from: T * B rows, or B unrolls."""
        stacks, state, first, levels = Inputs.of(batch).without_last()
        fields = [field for field in targets if field is not None]
        fields.append(self.teachers_of(batch))
        if not self._by_rows:
            return Minibatch(stacks, first, levels, state[None], *fields)
        return Minibatch(
            stacks.flatten(0, 1)[None],
            first.reshape(1, -1),
            levels.reshape(1, -1),
            state.new_zeros(1, targets.weights.numel(), 0),
            *(field.flatten(0, 1)[None] for field in fields),
        )

    def teachers_of(self, batch: Batch) -> Tensor:
        """`Minibatch.teachers` of the T rows of a batch: none here."""
        T, B = batch.actions.shape
        return torch.empty(T - 1 - self._burn_in, B, 0, device=self._parts.device)

    def _step(self, numbers: Tensor, *fields: Tensor) -> None:
        """One gradient step on a minibatch; takes the arguments of `step`."""
        whole = Minibatch(*fields)
        targets, mean_weight = normalised(
            whole.targets, advantages=self._config.normalise_advantages
        )
        whole = whole._replace(weights=targets.weights, advantages=targets.advantages)

        def part_loss(shard: int, items: slice) -> Loss:
            loss = self._part_loss(whole.at(items), numbers[:, items])
            return loss._replace(total=mean_weight * loss.total)

        gradient_step = self._parts.gradient_step
        gradient_step(gradient_step.split(whole.weights.shape[1]), part_loss)

    def _part_loss(self, part: Minibatch, numbers: Tensor) -> Loss:
        """The loss of a part of a minibatch, augmented with numbers (4, n)."""
        c, forward = self._config, self._parts.forward
        output = forward(part.inputs)
        augmented = forward.augmented(part.inputs, numbers)
        logits, values = flat(output)
        targets = part.targets.flat()
        loss: Loss = self._loss(
            logits,
            values,
            targets,
            value_coef=c.value_coef,
            value_kind=c.value_loss,
            **self.loss_options(part),
        )
        if augmented is None:
            return loss
        return self._parts.augmentation.add_consistency(
            loss, logits, values, augmented, targets
        )

    def loss_options(self, part: Minibatch) -> dict[str, Any]:
        """Arguments of `loss` besides logits, values, targets and critic options."""
        del part
        assert isinstance(self._config.loss, Ppo)
        return {
            "clip_range": self._config.loss.clip_range,
            "entropy_coef": self._parts.entropy_coef,
        }


def _stored_targets_are_exact(config: RunConfig) -> bool:
    """Whether the values stored when acting are those of the learner's weights.

    They are if there is no lag and no replay; this saves a forward pass.
    """
    in_turns = config.mode == "sync" and config.lag == 0
    return in_turns and not config.replay.replay_share
