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
from typing import Any, ClassVar

import torch
from torch import Tensor

from trainer.config.learning import Ppo
from trainer.config.schema import RunConfig
from trainer.learn.fused import FusedGradient
from trainer.learn.learner import Learner
from trainer.learn.losses import Loss, Targets, ppo_loss
from trainer.learn.targets import log_prob, normalised
from trainer.machine.monitor import mark
from trainer.models import PolicyOutput
from trainer.rollout.batch import Batch


class PPO(Learner):
    """The learner that the module docstring describes."""

    loss: ClassVar[Callable[..., Loss]] = staticmethod(ppo_loss)

    def loss_options(self) -> dict[str, Any]:
        """See `Learner`."""
        assert isinstance(self.config.learner.loss, Ppo)
        clip_range = self.config.learner.loss.clip_range
        return super().loss_options() | {"clip_range": clip_range}

    def learn(self, batch: Batch) -> Tensor:
        """See `Learner`."""
        with mark("targets"):
            targets, priorities = self.targets_of(batch)
        fields = self.fields_of(batch, targets)
        size = self.unrolls_per_minibatch
        if not self.model.state_size:
            size = self.config.learner.minibatch_size
        fused = FusedGradient.of(self)
        for items, numbers in self.minibatches(fields[0].shape[1], size):
            if fused is not None:
                fused.step(fields, items)
            else:
                self.learn_minibatch(numbers, *(field[:, items] for field in fields))
        return priorities

    def fields_of(self, batch: Batch, targets: Targets) -> list[Tensor]:
        """What `_learn_minibatch` takes, for all items: B unrolls or T * B rows."""
        inputs = [batch.stacks[:-1], batch.is_first[:-1], batch.levels[:-1]]
        learned = [field for field in targets if field is not None]
        if self.model.state_size:
            return [*inputs, batch.state[None], *learned]
        # Without a memory a row is an unroll of one row.
        inputs, learned = (
            [field.flatten(0, 1).contiguous()[None] for field in fields]
            for fields in (inputs, learned)
        )
        return [*inputs, batch.state.new_zeros(1, inputs[0].shape[1], 0), *learned]

    def targets_of(self, batch: Batch) -> tuple[Targets, Tensor]:
        """Targets (T, B), and the priority (B,) of each unroll."""
        rows = slice(self.burn_in, None)
        actions, behaviour = batch.actions[rows][:-1], batch.logits[rows]
        if _stored_targets_are_exact(self.config):
            logits, values = behaviour, batch.values[rows]
            log_ratios = torch.zeros(actions.shape, device=actions.device)
        else:
            logits, values = self._evaluate(batch)
            log_pi = log_prob(logits[:-1], actions)
            log_ratios = log_pi - log_prob(behaviour[:-1], actions)
        maker = self.target_maker
        trace = maker.trace(batch, log_ratios, values)
        maker.update_popart(batch, trace)
        return maker.targets(batch, trace, logits[:-1], values[:-1])

    def _evaluate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (T + 1, B, A) and values (T + 1, B) under the current weights."""

        def outputs_of(unrolls: slice) -> list[PolicyOutput]:
            starts = range(unrolls.start, unrolls.stop, self.unrolls_per_minibatch)
            outputs = []
            for start in starts:
                stop = min(start + self.unrolls_per_minibatch, unrolls.stop)
                with torch.no_grad():  # this setting is per thread
                    outputs.append(self.forward(*batch.inputs(slice(start, stop))))
            return outputs

        step = self.gradient_step
        shards = step.shards.map(outputs_of, step.split(batch.weights.numel()))
        outputs = [output for shard in shards for output in shard]
        logits = torch.cat([output.logits for output in outputs], 1)
        values = torch.cat([output.values for output in outputs], 1)
        return logits, values

    def _learn_minibatch(self, numbers: Tensor, *fields: Tensor) -> None:
        """See `Learner`; the items are on dimension 1 of all fields.

        The fields are stacks, is_first and levels, (burn-in + T, n, ...), the memory
        (1, n, S) before them, and those of `Targets`, (T, n, ...).
        """
        stacks, is_first, levels, state, *rest = fields
        targets, mean_weight = normalised(
            Targets(*rest), advantages=self.config.learner.normalise_advantages
        )

        def part_loss(shard: int, items: slice) -> Loss:
            some = (slice(None), items)
            inputs = (stacks[some], state[0, items], is_first[some], levels[some])
            loss = self.part_loss(
                self.forward(*inputs), inputs, numbers[some], targets.at(some)
            )
            return loss._replace(total=mean_weight * loss.total)

        self.gradient_step(self.gradient_step.split(stacks.shape[1]), part_loss)


def _stored_targets_are_exact(config: RunConfig) -> bool:
    """Whether the values stored when acting are those of the learner's weights.

    They are if there is no lag and no replay; this saves a forward pass.
    """
    in_turns = config.mode == "sync" and config.lag == 0
    return in_turns and not config.replay.replay_share
