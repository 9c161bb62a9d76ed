"""Learning: `Learner.update` turns a training batch into gradient steps.

`Learner` has what all losses share: the network and its forward pass, the optimiser,
schedules, minibatches, the moving average of the weights. A subclass for each loss
(ppo.py, impala.py, distil.py) makes the gradient steps of a batch. Read on in the order
of an update:

    ppo.py, impala.py   a batch to minibatches, each to one gradient step
    targets.py          critic targets, advantages, weights of the rows
    vtrace.py           V-trace and GAE
    losses.py           the losses, pure functions
    gradients.py        shards, accumulation, clipping and the optimiser's step
    optim.py            optimisers and the schedule of the learning rate

To add a loss: a dataclass with its options in config/learning.py, a subclass of
`Learner` or `PPO` with the loss, and a row of `LEARNERS` in trainer/learn/__init__.py.

On a GPU a gradient step is one recorded CUDA graph, and so are PPO's targets. Except in
fp16, whose scaler asks for overflows, and in cloning, nothing waits for the device
until `statistics()`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from trainer.config.learning import linear
from trainer.config.schema import RunConfig
from trainer.learn.augment import Augmentation
from trainer.learn.gradients import GradientStep, Imitation, Statistics
from trainer.learn.losses import Loss, Targets, consistency
from trainer.learn.optim import build_optimizer, learning_rate_factor, set_learning_rate
from trainer.learn.targets import TargetMaker
from trainer.machine.cpu import Shards
from trainer.machine.cuda import Graphed, compiled, copy_all
from trainer.machine.ranks import ALONE, Ranks, Stream, seed_of
from trainer.models import PolicyModel, PolicyOutput
from trainer.models.actor_critic import Ema
from trainer.rollout.frames import observations
from trainer.rollout.store import Batch

_logger = logging.getLogger(__name__)


class Learner:
    """Owns the optimiser and the update; the model may be shared with the actor.

    Attributes:
        version: updates so far.
        ema: moving average of the weights, None without one.
        generator: draws minibatches, noise and augmentation.
        entropy_coef: scalar on the device, because recorded graphs read it.
        frames: the frames of the store that holds the batches. A recorded graph reads
            this memory in place, and that of `held`.
        held: see `hold`.
        learn_minibatch: the subclass's `_learn_minibatch`, which a GPU records.
    """

    #: One of losses.py; takes logits, values, targets and `loss_options`.
    loss: ClassVar[Callable[..., Loss]]

    def __init__(
        self,
        model: PolicyModel,
        config: RunConfig,
        *,
        obs_shape: tuple[int, ...],  # (C, H, W)
        device: torch.device,
        dtype: torch.dtype | None,  # of autocast; None: float32
        shards: Shards,
        ranks: Ranks = ALONE,  # train the same weights, each on separate batches
    ) -> None:
        c = config.learner
        self.model, self.config = model, config
        self.obs_shape, self.device, self.dtype = obs_shape, device, dtype
        self.burn_in = config.replay.burn_in
        self.version = 0
        self._records = _records_graphs(config, device, dtype, ranks)
        self._graphs: list[Graphed] = []
        self.optimizer = build_optimizer(model, c, capturable=self._records)
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
        self.ema = Ema(model, c.ema) if c.ema else None
        self.generator = torch.Generator(device)
        self._seed = seed_of(config.seed, Stream.MINIBATCHES, ranks.rank)
        self.seed()
        self.augmentation = Augmentation(config.augmentation, config.env, device)
        self.frames = torch.empty(0)
        self.held: list[Tensor] = []
        self.entropy_coef = torch.tensor(c.entropy, device=device)
        self._lr_factor = 1.0
        self._statistics = Statistics(device)
        self.target_maker = TargetMaker(model, config, self._statistics, ranks)
        self.gradient_step = GradientStep(
            model, self.optimizer, self.scaler, c, shards, self._statistics, ranks
        )
        self._loss: Callable[..., Loss] = self.loss
        if config.compile and not config.serial:
            self._loss = compiled(self.loss, name="the loss")
        self.learn_minibatch = self.graphed(self._learn_minibatch, "the gradient step")

    def graphed(self, function: Callable[..., Any], name: str) -> Graphed:
        """A function of an update, which a GPU records."""
        graph = Graphed(function, name=name, device=self.device, enabled=self._records)
        self._graphs.append(graph)
        return graph

    # -- an update --------------------------------------------------------------

    def update(self, batch: Batch, step: int) -> Tensor:
        """Trains on B unrolls, at environment step `step` of the run.

        Returns their priorities for replay, (B,) float32: mean |advantage|.
        """
        self._apply_schedules(step)
        self.target_maker.version.fill_(self.version)
        if batch.frames is not self.frames:
            self.frames = batch.frames
            for graph in self._graphs:
                graph.reset()
        lag = (self.version - batch.versions[self.burn_in : -1]).float()
        # Not lag[:, fresh]: that would wait for the device.
        mean_lag = (lag.mean(0) * batch.fresh).sum() / batch.fresh.sum()
        self._statistics.log("policy_lag", mean_lag)
        priorities = self.learn(batch)
        self.version += 1
        self._update_average()
        return priorities

    def learn(self, batch: Batch) -> Tensor:
        """Makes the gradient steps of B unrolls; returns their priorities (B,)."""
        raise NotImplementedError

    def _learn_minibatch(self, items: Tensor, numbers: Tensor) -> Any:
        """One gradient step on items (n,) of what is `held`; see `learn_minibatch`.

        `numbers` (4, n) are random numbers for the augmentation.
        """
        raise NotImplementedError

    def hold(self, fields: Sequence[Tensor]) -> None:
        """Takes the tensors of which the next gradient steps use some items.

        They are copied to where a recorded step reads them: once for an update instead
        of once for each of its steps.
        """
        if not self.learn_minibatch.records:
            self.held = list(fields)
        elif [held.shape for held in self.held] == [field.shape for field in fields]:
            copy_all(self.held, fields)
        else:
            self.learn_minibatch.reset()
            self.held = [field.clone() for field in fields]

    def loss_options(self) -> dict[str, Any]:
        """Arguments of `loss` besides logits, values, targets and critic options."""
        return {"entropy_coef": self.entropy_coef, **vars(self.config.learner.loss)}

    def _apply_schedules(self, step: int) -> None:
        """Sets the learning rate and the entropy bonus for environment step `step`."""
        c = self.config.learner
        self._lr_factor = learning_rate_factor(c, step, self.version)
        set_learning_rate(self.optimizer, self._lr_factor)
        coef = linear(c.entropy, c.entropy_end, c.entropy_steps, step)
        self.entropy_coef.fill_(coef)
        imitation = self.gradient_step.imitation
        if imitation is not None:
            imitation.weight = linear(c.imitation, 0.0, c.entropy_steps, step)

    def _update_average(self) -> None:
        """Updates the moving average of the weights, if there is one."""
        if self.ema is None:
            return
        # PopArt rescales the critic; rescale its average to the same scale.
        averaged = cast(PolicyModel, self.ema.model).popart
        latest = self.model.popart
        if averaged is not None and latest is not None:
            averaged.rescale(latest.mean, latest.std)
        self.ema.update(self.version)

    # -- what the gradient steps of all losses use ------------------------------

    @property
    def unrolls_per_minibatch(self) -> int:
        """Number of whole unrolls that have about as many rows as a minibatch."""
        c = self.config.learner
        return max(1, c.minibatch_size // c.unroll)

    def minibatches(self, count: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Random disjoint minibatches of `count` items, about `size` each, every epoch.

        Yields items (n,), and random numbers (4, n) for their augmentation. The network
        gets new noise for each minibatch.
        """
        generator, device = self.generator, self.device
        for _ in range(self.config.learner.epochs):
            order = torch.randperm(count, generator=generator, device=device)
            for items in order.chunk(max(1, round(count / size))):
                self.model.resample_noise(generator)
                yield items, self.augmentation.draw(len(items), generator, device)

    def forward(
        self,
        stacks: Tensor,  # (burn-in + T, n, stack) int64 indices of frames
        state: Tensor,  # (n, S) float32, the memory before the first row
        is_first: Tensor,  # (burn-in + T, n) bool
        levels: Tensor,  # (burn-in + T, n) int64
        numbers: Tensor | None = None,  # (4, n), to augment the observations with
    ) -> PolicyOutput:
        """Logits (T, n, A) and values (T, n), those of the rows' levels.

        One gather builds the observations. The burn-in rows update the memory's state
        without a gradient (R2D2, Kapturowski et al. 2019, section 3).
        """
        obs = observations(self.frames, stacks, self.obs_shape)
        if numbers is not None:
            obs = self.augmentation.observations(obs, numbers)
        burn_in = self.burn_in
        # Autocast belongs to a thread: it has to be entered in every shard.
        # No cache: weights cast without gradients would be reused with them.
        with torch.autocast(
            self.device.type, self.dtype, self.dtype is not None, cache_enabled=False
        ):
            if burn_in:
                with torch.no_grad():
                    _, state = self.model(obs[:burn_in], state, is_first[:burn_in])
            output: PolicyOutput
            output, _ = self.model(obs[burn_in:], state, is_first[burn_in:])
        return output._replace(values=output.values_at(levels[burn_in:]))

    def part_loss(
        self,
        output: PolicyOutput,
        inputs: tuple[Tensor, Tensor, Tensor, Tensor],
        items: slice,
        numbers: Tensor,
        targets: Targets,
        mean_weight: Tensor,
    ) -> Loss:
        """The loss of some items of a minibatch; its targets are from `normalised`.

        The output (T, n) is that of the arguments `inputs` of `forward`. With an
        augmentation the network runs on the augmented observations, too.
        """
        c, numbers = self.config.learner, numbers[:, items]
        augmented = self.forward(*inputs, numbers) if self.augmentation else None
        logits, values = output.logits.flatten(0, 1), output.values.flatten()
        targets = targets.part(items)
        loss = self._loss(
            logits,
            values,
            targets,
            value_coef=c.value_coef,
            value_kind=c.value_loss,
            **self.loss_options(),
        )
        total = loss.total
        if augmented is not None:
            mapped = self.augmentation.logits(augmented.logits, numbers).flatten(0, 1)
            others = augmented.values.flatten()
            difference = consistency(logits, values, mapped, others, targets)
            total = total + self.augmentation.coef * difference
            loss = loss._replace(augmented=difference.detach())
        return loss._replace(total=mean_weight * total)

    # -- demonstrations ---------------------------------------------------------

    def take_demonstrations(self, obs: Tensor, actions: Tensor) -> None:
        """Takes what to imitate before the run starts: (n, C, H, W) uint8, (n,)."""
        obs, actions = obs.to(self.device), actions.to(self.device)
        self.gradient_step.imitation = Imitation(
            self.model, obs, actions, self.dtype, self.generator
        )

    def clone(self, steps: int) -> Iterator[float]:
        """Trains only on the demonstrations before the first update; yields losses."""
        imitation = self.gradient_step.imitation
        assert imitation is not None, "there are no demonstrations"
        yield from imitation.clone(steps)
        if self.ema:
            # The moving average begins with the cloned weights.
            self.ema.model.load_state_dict(self.model.state_dict())

    def mixture(self, generator: torch.Generator) -> Any:
        """What chooses actions in place of the policy (distil.py); None: nothing."""
        return None

    # -- for the run ------------------------------------------------------------

    def statistics(self) -> dict[str, float]:
        """Means since the last call; waits for the device."""
        return self._statistics.means() | {
            "learning_rate": self.config.learner.lr * self._lr_factor,
            "entropy_cost": float(self.entropy_coef),
            "updates": float(self.version),
        }

    def seed(self) -> None:
        """Starts the generator from the seed of the run."""
        self.generator.manual_seed(self._seed)

    def close(self) -> None:
        """Frees recorded graphs; later updates run without."""
        for graph in self._graphs:
            graph.close()

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, besides the model."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "ema": self.ema.model.state_dict() if self.ema else None,
            # The noise of noisy layers is in no state dict.
            "buffers": dict(self.model.named_buffers()),
            "updates": self.version,
            "minibatch_rng": self.generator.get_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state()`, after the model's weights have been loaded.

        A resumed run may have another config: a moving average that the saved run did
        not have starts from these weights, and the generator's state is not used if it
        is from another kind of device.
        """
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # empty unless the saved run was fp16
            self.scaler.load_state_dict(state["scaler"])
        if self.ema:
            self.ema.model.load_state_dict(state["ema"] or self.model.state_dict())
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                if name in state["buffers"]:
                    buffer.copy_(state["buffers"][name])
        self.version = state["updates"]
        saved = state["minibatch_rng"].cpu()
        if saved.shape == self.generator.get_state().shape:
            self.generator.set_state(saved)


def _records_graphs(
    config: RunConfig, device: torch.device, dtype: torch.dtype | None, ranks: Ranks
) -> bool:
    """Whether the gradient step becomes a CUDA graph; warns of what prevents one."""
    if not config.cuda_graphs or device.type != "cuda" or config.serial:
        return False
    # A scaled loss skips steps that overflow, and asks the host whether to. A recorded
    # step would draw the same demonstrations each time.
    for reason, prevents in {
        "fp16 scales the loss": dtype is torch.float16,
        "it waits for others": ranks.size > 1,
        "it draws demonstrations": config.learner.imitation > 0,
    }.items():
        if prevents:
            _logger.warning("no CUDA graph of the gradient step: %s", reason)
            return False
    return True
