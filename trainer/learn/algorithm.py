"""The interface of an algorithm, and the parts that the learner gives to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trainer.config.schema import RunConfig
from trainer.learn.augment import Augmentation
from trainer.learn.forward import Forward
from trainer.learn.gradients import GradientStep
from trainer.learn.targets import TargetMaker
from trainer.machine.cuda import Graphed
from trainer.models import PolicyModel
from trainer.rollout.batch import Batch


class Algorithm(Protocol):
    """Turns a training batch into gradient steps; see `ppo`, `impala`, `distil`.

    Attributes:
        step: the gradient step as a function of tensors, recorded on a GPU.
    """

    step: Graphed

    def update(self, batch: Batch) -> Tensor:
        """Trains on a batch of B unrolls; returns the priority (B,) of each unroll."""


@dataclass(frozen=True)
class AlgorithmParts:
    """The parts that all algorithms share.

    Attributes:
        config: configuration of the run.
        device: device of the model and the batches.
        dtype: autocast type of the network, None for float32.
        obs_shape: (C, H, W) of an observation.
        model: the network to train.
        generator: random generator of minibatches, noise and augmentation.
        augmentation: augmentation of the observations.
        forward: runs the model.
        target_maker: makes targets.
        gradient_step: steps the optimiser.
        entropy_coef: scalar tensor, which changes between updates.
        graphs: whether the gradient step is recorded as a CUDA graph.
    """

    config: RunConfig
    device: torch.device
    dtype: torch.dtype | None
    obs_shape: tuple[int, ...]
    model: PolicyModel
    generator: torch.Generator
    augmentation: Augmentation
    forward: Forward
    target_maker: TargetMaker
    gradient_step: GradientStep
    entropy_coef: Tensor
    graphs: bool

    @property
    def unrolls_per_minibatch(self) -> int:
        """Number of whole unrolls that have about as many rows as a minibatch."""
        c = self.config.learner
        return max(1, c.minibatch_size // c.unroll)

    def minibatches(self, count: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Random disjoint minibatches of `count` items, about `size` each, every epoch.

        The network gets new noise for each minibatch.
        """
        generator, device = self.generator, self.device
        for _ in range(self.config.learner.epochs):
            order = torch.randperm(count, generator=generator, device=device)
            for items in order.chunk(max(1, round(count / size))):
                self.model.resample_noise(generator)
                yield items, self.augmentation.draw(len(items), generator, device)
