"""IMPALA: V-trace policy gradients, with targets from the weights of each step.

How a batch becomes gradient steps (Espeholt et al. 2018, arXiv:1802.01561,
section 4.2): in every epoch, random minibatches of whole unrolls, and for each one

    1. one forward pass gives the current policy and values of all rows;
    2. V-trace corrects the returns for the policy that acted (section 4.1);
    3. row weights and priorities are computed for this minibatch (targets.py), and
       the advantages are normalised and multiplied by min(rho_bar, pi / mu), a factor
       that `advantages=gae` leaves out;
    4. one gradient step follows the policy gradient, the critic's loss and the
       entropy bonus, through the same forward pass.

With `grad_accum_steps` above 1, step 4 computes the forward pass again, part by part,
so that the graph of the whole minibatch is never in memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.learn.algorithm import AlgorithmParts
from trainer.learn.forward import Inputs, flat
from trainer.learn.losses import Loss, Targets, impala_loss
from trainer.learn.targets import log_prob, normalised
from trainer.learn.vtrace import VTrace
from trainer.machine.cuda import Graphed, compiled
from trainer.models import PolicyOutput
from trainer.rollout.batch import Batch, select


class Impala:
    """An `Algorithm`; the module docstring describes it.

    Attributes:
        step: the gradient step; takes random numbers (4, n) for the augmentation and
            the fields of a `Batch` without frames, returns priorities (n,).
    """

    def __init__(self, parts: AlgorithmParts) -> None:
        """Makes the gradient step."""
        self._parts = parts
        self._config = parts.config.learner
        self._rows = slice(parts.config.replay.burn_in, -1)
        self._loss: Any = impala_loss
        if parts.config.compile and not parts.config.serial:
            self._loss = compiled(impala_loss, name="the loss")
        self.step = Graphed(
            self._step,
            name="the gradient step",
            device=parts.device,
            enabled=parts.graphs,
        )

    def update(self, batch: Batch) -> Tensor:
        """Makes the gradient steps of B unrolls; returns priorities (B,)."""
        parts, count = self._parts, batch.weights.numel()
        priorities = torch.empty(count, device=parts.device)
        for picked, numbers in parts.minibatches(count, parts.unrolls_per_minibatch):
            minibatch = select(batch, picked)
            priorities[picked] = self.step(numbers, *minibatch[1:])
        return priorities

    def _step(self, numbers: Tensor, *fields: Tensor) -> Tensor:
        """One gradient step on unrolls; arguments and result are those of `step`."""
        forward, maker = self._parts.forward, self._parts.target_maker
        gradient_step = self._parts.gradient_step
        whole = Batch(forward.frames, *fields)
        shards = gradient_step.split(whole.weights.numel())
        # With several parts, `part_loss` computes each part's graph again.
        keep_graph = gradient_step.grad_accum_steps == 1

        def run(items: slice) -> tuple[PolicyOutput, VTrace]:
            part = select(whole, items)
            with torch.set_grad_enabled(keep_graph):
                output = forward(Inputs.of(part))
            return output, self._trace(part, output)

        outputs, traces = zip(*gradient_step.shards.map(run, shards), strict=True)
        # Weights and normalisation are those of the whole minibatch.
        trace = VTrace(*(torch.cat(field, 1) for field in zip(*traces, strict=True)))
        logits = torch.cat([output.logits.detach() for output in outputs], 1)
        values = torch.cat([output.values.detach() for output in outputs], 1)
        targets, priorities = maker.targets(whole, trace, logits[:-1], values[:-1])
        targets, mean_weight = normalised(
            targets, advantages=self._config.normalise_advantages
        )
        targets = targets._replace(advantages=trace.rhos * targets.advantages)

        def part_loss(shard: int, items: slice) -> Loss:
            inputs = Inputs.of(whole).at(items)
            output = outputs[shard] if keep_graph else forward(inputs)
            augmented = forward.augmented(inputs.without_last(), numbers[:, items])
            part = Targets._make(
                None if field is None else field[:, items] for field in targets
            )
            loss = self._part_loss(output, augmented, part.flat())
            return loss._replace(total=mean_weight * loss.total)

        gradient_step(shards, part_loss)
        # Not earlier, because PopArt changes weights that the gradient depends on.
        maker.update_popart(whole, trace)
        return priorities

    def _trace(self, part: Batch, output: PolicyOutput) -> VTrace:
        """V-trace of unrolls under the current policy and values."""
        actions = part.actions[self._rows]
        log_pi = log_prob(output.logits.detach()[:-1], actions)
        log_mu = log_prob(part.logits[self._rows], actions)
        return self._parts.target_maker.trace(
            part, log_pi - log_mu, output.values.detach()
        )

    def _part_loss(
        self, output: PolicyOutput, augmented: PolicyOutput | None, targets: Targets
    ) -> Loss:
        """The loss of unrolls of T + 1 rows; the last row only bootstraps."""
        c = self._config
        logits, values = flat(PolicyOutput(output.logits[:-1], output.values[:-1]))
        loss: Loss = self._loss(
            logits,
            values,
            targets,
            value_coef=c.value_coef,
            value_kind=c.value_loss,
            entropy_coef=self._parts.entropy_coef,
        )
        if augmented is None:
            return loss
        return self._parts.augmentation.add_consistency(
            loss, logits, values, augmented, targets
        )
