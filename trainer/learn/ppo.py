"""PPO: the clipped loss on targets that stay the same for all epochs over a batch.

How a batch becomes gradient steps (Schulman et al. 2017, arXiv:1707.06347,
algorithm 1; targets by V-trace, Espeholt et al. 2018, arXiv:1802.01561, section 4.1,
or GAE):

    1. Values and probabilities of all rows: those stored when acting if they are
       the learner's own (no lag, no replay), otherwise from one forward pass.
    2. Targets, row weights and priorities of the whole batch, once (targets.py).
    3. With a lag, the policy at the start of the update takes the place of the
       behaviour policy mu in the clip, and its own ratio to mu, at most 2, becomes a
       row weight (decoupled PPO, Hilton et al. 2021, arXiv:2110.00641).
    4. In every epoch, random minibatches: of single rows, or of whole unrolls if the
       network has a memory. In each, the advantages are normalised, and one gradient
       step follows the clipped loss (equation 7).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import torch
from torch import Tensor

from trainer.config.learning import Ppo
from trainer.config.schema import RunConfig
from trainer.learn.gradients import Gradient
from trainer.learn.learner import Learner
from trainer.learn.losses import Loss, Targets, ppo_loss
from trainer.learn.targets import log_prob, normalised
from trainer.machine.monitor import mark
from trainer.models import NativeNetwork, PolicyModel, PolicyOutput
from trainer.rollout.frames import observations
from trainer.rollout.store import Batch

with suppress(ImportError):  # if it is not built, there is no `EncoderPass` either
    from trainer import _native


# Bounds the weight of a row that the policy has moved far away from. V-trace's bound of
# 1 weakens the actions that became more probable: 76 % of clears, with 2 84 % (1-1, lag
# 1, two seeds; docs/lab-book.md).
_MOST_WEIGHT = 2.0


class PPO(Learner):
    """The learner that the module docstring describes."""

    loss: ClassVar[Callable[..., Loss]] = staticmethod(ppo_loss)

    def __init__(self, model: PolicyModel, config: RunConfig, **parts: Any) -> None:
        """Takes the arguments of `Learner`."""
        super().__init__(model, config, **parts)
        self._make_targets = self.graphed(self._targets_of, "the targets")

    def learn(self, batch: Batch) -> Tensor:
        """See `Learner`."""
        with mark("targets"):
            targets, priorities = self.targets_of(batch)
        self.hold(self.fields_of(batch, targets))
        size = self.unrolls_per_minibatch
        if not self.model.state_size:
            size = self.config.learner.minibatch_size
        fused = FusedGradient.of(self)
        for items, numbers in self.minibatches(self.held[0].shape[1], size):
            if fused is not None:
                fused.step(self.held, items)
            else:
                self.learn_minibatch(items, numbers)
        return priorities

    def fields_of(self, batch: Batch, targets: Targets) -> list[Tensor]:
        """What to `hold`, the items on dimension 1: B unrolls or T * B rows.

        The fields are stacks, is_first and levels, (burn-in + T, n, ...), the memory
        (1, n, S) before them, and those of `Targets`, (T, n, ...).
        """
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
        """Targets (T, B), and the priority (B,) of each unroll, until the next call."""
        targets: tuple[Targets, Tensor] = self._make_targets(*batch[1:])
        return targets

    def _targets_of(self, *fields: Tensor) -> tuple[Targets, Tensor]:
        """See `targets_of`; takes the fields of a `Batch` behind frames."""
        batch = Batch(self.frames, *fields)
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
        targets, priorities = maker.targets(batch, trace, logits[:-1], values[:-1])
        if self.config.lag and isinstance(self.config.learner.loss, Ppo):
            targets = decoupled(targets, log_ratios)
        return targets, priorities

    def _evaluate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (T + 1, B, A) and values (T + 1, B) under the current weights."""
        size = self.unrolls_per_minibatch

        @torch.no_grad()  # this setting is per thread
        def outputs_of(unrolls: slice) -> list[PolicyOutput]:
            starts = range(unrolls.start, unrolls.stop, size)
            parts = [slice(start, min(start + size, unrolls.stop)) for start in starts]
            return [self.forward(*batch.inputs(part)) for part in parts]

        step = self.gradient_step
        shards = step.shards.map(outputs_of, step.split(batch.weights.numel()))
        outputs = [output for shard in shards for output in shard]
        logits = torch.cat([output.logits for output in outputs], 1)
        values = torch.cat([output.values for output in outputs], 1)
        return logits, values

    def _learn_minibatch(self, items: Tensor, numbers: Tensor) -> None:
        """See `Learner`; the fields are those of `fields_of`."""
        fields = [field[:, items] for field in self.held]
        stacks, is_first, levels, state, *rest = fields
        targets, mean_weight = normalised(Targets(*rest), self.config.learner)

        def part_loss(shard: int, items: slice) -> Loss:
            some = (slice(None), items)
            inputs = (stacks[some], state[0, items], is_first[some], levels[some])
            output = self.forward(*inputs)
            return self.part_loss(output, inputs, items, numbers, targets, mean_weight)

        self.gradient_step(self.gradient_step.split(stacks.shape[1]), part_loss)


def decoupled(targets: Targets, log_ratios: Tensor) -> Targets:
    """Targets (T, B) whose clip is centred on the policy at the start of an update.

    Takes its log pi / mu (T, B). With a lag the previous updates have already moved
    that policy away from mu. Centred on mu, the clip keeps of the actions that became
    more probable only the gradients that make them less probable, and the reverse:
    it takes back what the previous updates learned.
    """
    log_ratios = log_ratios.masked_fill(targets.weights == 0, 0.0)
    return targets._replace(
        log_mu=targets.log_mu + log_ratios,
        weights=targets.weights * log_ratios.exp().clamp(max=_MOST_WEIGHT),
    )


def _stored_targets_are_exact(config: RunConfig) -> bool:
    """Whether the values stored when acting are those of the learner's weights.

    They are if there is no lag and no replay; this saves a forward pass.
    """
    in_turns = config.mode == "sync" and config.lag == 0
    return in_turns and not config.replay.replay_share


class FusedGradient:
    """PPO's gradient steps on the rows of one batch, in native code on a CPU.

    If the network is an encoder with native code (trainer/models/native.py) and two
    linear heads, a part of a minibatch takes four calls: gather the frames, encode
    them, evaluate the heads and the loss with their gradients (csrc/learner), and
    compute the encoder's gradients. PyTorch needs a few hundred operators for the same
    result, and their overhead exceeds the arithmetic; it computes the gradients of all
    other networks. tests/trainer/test_fused.py compares the two.

    It stores the addresses of the weights, so each batch needs a new object.
    """

    _TERMS = tuple(f"loss/{name}" for name in Loss._fields if name != "augmented")

    def __init__(self, learner: Learner, network: NativeNetwork, loss: Ppo) -> None:
        """Takes a supported network; `of` checks whether a network is supported."""
        self._learner, self._network = learner, network
        self._encoder = network.encoder
        c, params = learner.config.learner, learner.gradient_step.params
        self._options = (
            loss.clip_range,
            c.value_coef,
            float(learner.entropy_coef),
            c.value_loss == "huber",
            c.normalise_advantages,
        )
        places = {id(param): i for i, param in enumerate(params)}
        self._of_encoder = [places[id(weight)] for weight in network.encoder.weights]
        self._of_head = [places[id(weight)] for weight in network.head.weights]
        # Each shard has separate memory.
        self._gradients = [
            [torch.zeros_like(param) for param in params]
            for _ in range(learner.gradient_step.shards.count)
        ]

    @classmethod
    def of(cls, learner: Learner) -> FusedGradient | None:
        """The fused gradient of a network's current weights; None if unsupported."""
        c = learner.config
        if (
            not isinstance(c.learner.loss, Ppo)
            or learner.device.type != "cpu"
            or learner.dtype != torch.bfloat16
            or learner.augmentation
            or c.compile
            or c.learner.grad_accum_steps != 1
        ):
            return None
        network = NativeNetwork.of(learner.model, learner.obs_shape)
        if network is None:
            return None
        covered = {id(w) for w in (*network.encoder.weights, *network.head.weights)}
        if covered != {id(param) for param in learner.gradient_step.params}:
            return None
        return cls(learner, network, c.learner.loss)

    def step(self, fields: Sequence[Tensor], rows: Tensor) -> None:
        """A gradient step on rows (n,) of `PPO.fields_of` (1, N, ...).

        The fields are contiguous, and the network has no memory.
        """
        learner = self._learner
        stacks, _, levels, _, actions, *targets = fields
        addresses = [field.data_ptr() for field in (actions, levels, *targets)]

        def gradient(shard: int, some: slice) -> Gradient:
            images = observations(
                learner.frames, stacks[0, rows[some]], learner.obs_shape
            )
            kept = self._encoder.forward(images)
            features = kept[0]
            d_features = torch.empty_like(features)
            gradients = self._gradients[shard]
            terms = _native.ppo_head_loss(
                self._network.outputs,
                self._network.addresses,
                self._options,
                addresses,
                rows.data_ptr(),
                len(rows),
                some.start,
                some.stop - some.start,
                features.data_ptr(),
                d_features.data_ptr(),
                [gradients[i].data_ptr() for i in self._of_head],
            )
            of_encoder = [gradients[i] for i in self._of_encoder]
            self._encoder.backward(images, kept, d_features, of_encoder)
            return Gradient(self._TERMS, torch.tensor(terms), gradients)

        step = learner.gradient_step
        step(step.split(len(rows)), gradient)
