"""What the learner asks of an algorithm, and what it gives to one."""

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
    """Turns a batch into gradient steps: `trainer.learn.ppo`, `.impala`, `.distil`.

    Attributes:
        step: the gradient step as a function of tensors, which a GPU records.
    """

    step: Graphed

    def update(self, batch: Batch) -> Tensor:
        """Trains on a batch of B unrolls; gives the priority (B,) of each."""


@dataclass(frozen=True)
class AlgorithmParts:
    """What all algorithms are made of.

    Attributes:
        config: of the run.
        device: of the model and the batches.
        dtype: autocast type of the network, None for float32.
        obs_shape: (C, H, W) of an observation.
        model: what is trained.
        generator: of minibatches, noise and augmentation.
        augmentation: of the observations.
        forward: runs the model.
        target_maker: makes targets.
        gradient_step: steps the optimiser.
        entropy_coef: scalar tensor; it changes between updates.
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
        """Whole unrolls with about as many rows as a minibatch has."""
        c = self.config.learner
        return max(1, c.minibatch_size // c.unroll)

    def minibatches(self, count: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Random disjoint minibatches of `count` items, near `size` each, every epoch.

        The network has new noise for each one.

        Returns:
            The items (n,), and random numbers (4, n) for their augmentation.
        """
        generator, device = self.generator, self.device
        for _ in range(self.config.learner.epochs):
            order = torch.randperm(count, generator=generator, device=device)
            for items in order.chunk(max(1, round(count / size))):
                self.model.resample_noise(generator)
                yield items, self.augmentation.draw(len(items), generator, device)
