"""Trains the network: the learner that PPO, IMPALA and distillation share.

`Learner.update` turns a training batch into gradient steps. It sets the learning rate
and the entropy bonus from their schedules, lets the algorithm (ppo.py, impala.py or
distil.py) make the steps, and updates the moving average of the weights. The parts:

    fused.py        a whole gradient in native code, for small networks on a CPU
    forward.py      the network's forward pass on rows of a batch
    vtrace.py       V-trace and GAE
    targets.py      critic targets, advantages, weights of the rows
    losses.py       the losses, pure functions
    gradients.py    shards, accumulation, clipping and the optimiser's step
    imitation.py    the loss of demonstrations
    optim.py        optimisers and the schedule of the learning rate
    augment.py      augmented observations
    statistics.py   sums on the device

On a GPU a gradient step is one recorded CUDA graph, and nothing waits for the device
until `statistics()` is called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from trainer.config.schedules import linear
from trainer.config.schema import RunConfig
from trainer.learn.algorithm import Algorithm, AlgorithmParts
from trainer.learn.augment import Augmentation
from trainer.learn.distil import Distil
from trainer.learn.forward import Forward
from trainer.learn.gradients import GradientStep
from trainer.learn.imitation import Imitation
from trainer.learn.impala import Impala
from trainer.learn.optim import build_optimizer, learning_rate_factor, set_learning_rate
from trainer.learn.ppo import PPO
from trainer.learn.statistics import Statistics
from trainer.learn.targets import TargetMaker
from trainer.machine.cpu import Shards
from trainer.machine.ranks import ALONE, Ranks, Stream, seed_of
from trainer.models import PolicyModel
from trainer.models.build import Ema
from trainer.rollout.batch import Batch

_logger = logging.getLogger(__name__)

# Keys are the values of `LearnerConfig.loss`.
_ALGORITHMS: dict[str, Callable[[AlgorithmParts], Algorithm]] = {
    "ppo": PPO,
    "impala": Impala,
    "distillation": Distil,
}


class Learner:
    """Owns the optimiser and the update; the model may be shared with the actor.

    Attributes:
        model: the network to train.
        version: updates so far.
        optimizer: optimiser of the model.
        ema: moving average of the weights, None without one.
        generator: random generator of minibatches, noise and augmentation.
    """

    def __init__(
        self,
        model: PolicyModel,
        config: RunConfig,
        *,
        obs_shape: tuple[int, ...],
        device: torch.device,
        dtype: torch.dtype | None,
        shards: Shards,
        ranks: Ranks = ALONE,
    ) -> None:
        """Prepares to train `model`.

        Args:
            model: network on the device.
            config: configuration of the run.
            obs_shape: (C, H, W) of an observation.
            device: device of the model and the batches.
            dtype: autocast type of the network, None for float32.
            shards: threads that share a minibatch.
            ranks: processes that train the same weights, each on separate batches.

        Raises:
            ValueError: the augmentation does not fit the environments.
        """
        c = config.learner
        graphs = config.cuda_graphs and device.type == "cuda" and not config.serial
        # A scaled loss skips steps that overflow, and asks the host whether to.
        if graphs and dtype is torch.float16:
            _logger.warning("no CUDA graph of the gradient step: fp16 scales the loss")
            graphs = False
        if graphs and ranks.size > 1:
            _logger.warning("no CUDA graph of the gradient step: it waits for others")
            graphs = False
        if graphs and c.imitation:
            # A recorded step would draw the same demonstrations each time.
            _logger.warning(
                "no CUDA graph of the gradient step: it draws demonstrations"
            )
            graphs = False
        self.model = model
        self.version = 0
        self.optimizer = build_optimizer(model, c, capturable=graphs)
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
        self.ema = Ema(model, c.ema) if c.ema else None
        self.generator = torch.Generator(device)
        self._seed, self._rank = config.seed, ranks.rank
        self.seed()
        self._config = c
        self._burn_in = config.replay.burn_in
        self._lr_factor = 1.0
        self._statistics = Statistics(device)
        augmentation = Augmentation(config.augmentation, config.env, device)
        self._parts = AlgorithmParts(
            config=config,
            device=device,
            dtype=dtype,
            obs_shape=obs_shape,
            model=model,
            generator=self.generator,
            augmentation=augmentation,
            forward=Forward(
                model,
                obs_shape=obs_shape,
                burn_in=self._burn_in,
                device=device,
                dtype=dtype,
                augmentation=augmentation,
            ),
            target_maker=TargetMaker(
                model, config, device=device, statistics=self._statistics, ranks=ranks
            ),
            gradient_step=GradientStep(
                model,
                self.optimizer,
                self.scaler,
                max_grad_norm=c.max_grad_norm,
                grad_accum_steps=c.grad_accum_steps,
                shards=shards,
                device=device,
                statistics=self._statistics,
                ranks=ranks,
            ),
            # On the device: recorded graphs read it.
            entropy_coef=torch.tensor(c.entropy, device=device),
            graphs=graphs,
        )
        self._algorithm = _ALGORITHMS[c.loss.kind](self._parts)

    def take_demonstrations(self, obs: Tensor, actions: Tensor) -> None:
        """Takes the demonstrations to imitate, before the run starts.

        Args:
            obs: (n, C, H, W) uint8 observations.
            actions: (n,) int64 demonstrated actions.
        """
        parts = self._parts
        parts.gradient_step.imitation = Imitation(
            self.model,
            obs.to(parts.device),
            actions.to(parts.device),
            dtype=parts.dtype,
            generator=self.generator,
        )

    def clone(self, steps: int) -> Iterator[float]:
        """Trains only on the demonstrations, before the first update.

        Args:
            steps: number of gradient steps.

        Yields:
            The loss of each step.
        """
        imitation = self._parts.gradient_step.imitation
        assert imitation is not None, "there are no demonstrations"
        yield from imitation.clone(steps)
        if self.ema:
            # The moving average begins with the cloned weights.
            self.ema.load_state_dict(self.model.state_dict())

    def update(self, batch: Batch, step: int) -> Tensor:
        """Trains on a batch.

        Args:
            batch: B unrolls.
            step: environment steps so far, for the schedules.

        Returns:
            (B,) float32 priorities for replay: mean |advantage| of each unroll.
        """
        self._apply_schedules(step)
        self._parts.target_maker.version.fill_(self.version)
        if batch.frames is not self._parts.forward.frames:
            self._parts.forward.frames = batch.frames
            self._algorithm.step.reset()
        lag = (self.version - batch.versions[self._burn_in : -1]).float()
        # Not lag[:, fresh]: that would wait for the device.
        mean_lag = (lag.mean(0) * batch.fresh).sum() / batch.fresh.sum()
        self._statistics.log("policy_lag", mean_lag)
        priorities = self._algorithm.update(batch)
        self.version += 1
        self._update_average()
        return priorities

    def _apply_schedules(self, step: int) -> None:
        """Sets the learning rate and the entropy bonus for environment step `step`."""
        c = self._config
        self._lr_factor = learning_rate_factor(c, step, self.version)
        set_learning_rate(self.optimizer, self._lr_factor)
        coef = linear(c.entropy, c.entropy_end, c.entropy_steps, step)
        self._parts.entropy_coef.fill_(coef)
        imitation = self._parts.gradient_step.imitation
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

    def statistics(self) -> dict[str, float]:
        """Means since the last call; the only place that waits for the device."""
        return self._statistics.means() | {
            "learning_rate": self._config.lr * self._lr_factor,
            "entropy_cost": float(self._parts.entropy_coef),
            "updates": float(self.version),
        }

    def seed(self) -> None:
        """Starts the generator from the seed of the run."""
        seed = seed_of(self._seed, Stream.MINIBATCHES, self._rank)
        self.generator.manual_seed(seed)

    def close(self) -> None:
        """Frees recorded graphs; later updates run without."""
        self._algorithm.step.close()

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, besides the model."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "ema": self.ema.state_dict() if self.ema else None,
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
            self.ema.load_state_dict(state["ema"] or self.model.state_dict())
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                if name in state["buffers"]:
                    buffer.copy_(state["buffers"][name])
        self.version = state["updates"]
        saved = state["minibatch_rng"].cpu()
        if saved.shape == self.generator.get_state().shape:
            self.generator.set_state(saved)
