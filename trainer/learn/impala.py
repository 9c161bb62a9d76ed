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

import torch
from torch import Tensor

from trainer.learn.learner import Learner
from trainer.learn.losses import Loss, impala_loss
from trainer.learn.targets import log_prob, normalised
from trainer.learn.vtrace import VTrace
from trainer.models import PolicyOutput
from trainer.rollout.store import Batch


class Impala(Learner):
    """The learner that the module docstring describes."""

    loss = staticmethod(impala_loss)

    def learn(self, batch: Batch) -> Tensor:
        """See `Learner`."""
        count = batch.weights.numel()
        self.hold(batch[1:])
        priorities = torch.empty(count, device=self.device)
        for items, numbers in self.minibatches(count, self.unrolls_per_minibatch):
            priorities[items] = self.learn_minibatch(items, numbers)
        return priorities

    def _learn_minibatch(self, items: Tensor, numbers: Tensor) -> Tensor:
        """See `Learner`; the fields of a `Batch` behind frames are held.

        Returns the priorities (n,).
        """
        batch = Batch(self.frames, *self.held).at(items)
        step, maker = self.gradient_step, self.target_maker
        shards = step.split(batch.weights.numel())
        rows = slice(self.burn_in, -1)
        # With several parts, `part_loss` computes each part's graph again.
        keep_graph = step.grad_accum_steps == 1

        def run(items: slice) -> tuple[PolicyOutput, VTrace]:
            with torch.set_grad_enabled(keep_graph):
                output = self.forward(*batch.inputs(items))
            part, logits = batch.at(items), output.logits.detach()[:-1]
            log_pi = log_prob(logits, part.actions[rows])
            log_ratios = log_pi - log_prob(part.logits[rows], part.actions[rows])
            return output, maker.trace(part, log_ratios, output.values.detach())

        outputs, traces = zip(*step.shards.map(run, shards), strict=True)
        # Weights and normalisation are those of the whole minibatch.
        trace = VTrace(*(torch.cat(field, 1) for field in zip(*traces, strict=True)))
        logits = torch.cat([output.logits.detach() for output in outputs], 1)
        values = torch.cat([output.values.detach() for output in outputs], 1)
        targets, priorities = maker.targets(batch, trace, logits[:-1], values[:-1])
        targets, mean_weight = normalised(targets, self.config.learner)
        targets = targets._replace(advantages=trace.rhos * targets.advantages)

        def part_loss(shard: int, items: slice) -> Loss:
            stacks, state, is_first, levels = batch.inputs(items)
            output = outputs[shard]
            if not keep_graph:
                output = self.forward(stacks, state, is_first, levels)
            # The last row only bootstraps.
            output = PolicyOutput(output.logits[:-1], output.values[:-1])
            inputs = (stacks[:-1], state, is_first[:-1], levels[:-1])
            return self.part_loss(output, inputs, items, numbers, targets, mean_weight)

        step(shards, part_loss)
        # Not earlier, because PopArt changes weights that the gradient depends on.
        maker.update_popart(batch, trace)
        return priorities
