"""The network's forward pass over rows of a batch.

One gather builds the observations from the frames of the store. The burn-in rows update
the memory's state without a gradient (R2D2, Kapturowski et al. 2019, section 3). All
other rows run under autocast.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainer.learn.augment import Augmentation
from trainer.models import PolicyModel, PolicyOutput
from trainer.rollout.batch import Batch, observations


class Inputs(NamedTuple):
    """The network's inputs: K rows of n unrolls.

    Attributes:
        stacks: (K, n, stack) int64 indices of the observations' frames.
        state: (n, S) float32 memory before the first row.
        first: (K, n) bool, the row begins an episode.
        levels: (K, n) int64 level of each row, for its value.
    """

    stacks: Tensor
    state: Tensor
    first: Tensor
    levels: Tensor

    @classmethod
    def of(cls, batch: Batch) -> Inputs:
        """All rows of a batch."""
        return cls(batch.stacks, batch.state, batch.is_first, batch.levels)

    def at(self, unrolls: Tensor | slice) -> Inputs:
        """Some of the unrolls."""
        stacks, state, first, levels = self
        return Inputs(
            stacks[:, unrolls], state[unrolls], first[:, unrolls], levels[:, unrolls]
        )

    def without_last(self) -> Inputs:
        """All rows except the last, which only bootstraps."""
        stacks, state, first, levels = self
        return Inputs(stacks[:-1], state, first[:-1], levels[:-1])


class Forward:
    """Runs the network.

    Attributes:
        frames: (all frames, words) of the store that the inputs point into. A recorded
            CUDA graph reads this memory in place.
    """

    def __init__(
        self,
        model: PolicyModel,
        *,
        obs_shape: tuple[int, ...],  # (C, H, W)
        burn_in: int,
        device: torch.device,
        dtype: torch.dtype | None,
        augmentation: Augmentation,
    ) -> None:
        """Prepares to run `model`."""
        self.frames = torch.empty(0)
        self._model = model
        self._obs_shape = obs_shape
        self._burn_in = burn_in
        self._device = device
        self._dtype = dtype
        self._augmentation = augmentation

    def __call__(self, inputs: Inputs, numbers: Tensor | None = None) -> PolicyOutput:
        """Logits (T, n, A) and values (T, n) of the rows after the burn-in.

        Each value is that of the row's level.
        """
        obs = observations(self.frames, inputs.stacks, self._obs_shape)
        if numbers is not None:
            obs = self._augmentation.observations(obs, numbers)
        burn_in, state, first = self._burn_in, inputs.state, inputs.first
        # Autocast belongs to a thread: it has to be entered in every shard.
        # No cache: weights cast without gradients would be reused with them.
        with torch.autocast(
            self._device.type, self._dtype, self._dtype is not None, cache_enabled=False
        ):
            if burn_in:
                with torch.no_grad():
                    _, state = self._model(obs[:burn_in], state, first[:burn_in])
            output: PolicyOutput
            output, _ = self._model(obs[burn_in:], state, first[burn_in:])
        return output._replace(values=output.values_at(inputs.levels[burn_in:]))

    def augmented(self, inputs: Inputs, numbers: Tensor) -> PolicyOutput | None:
        """The output for augmented observations; None without augmentation.

        The logits are for the actions in the true observations.
        """
        if not self._augmentation:
            return None
        output = self(inputs, numbers)
        logits = self._augmentation.logits(output.logits, numbers)
        return output._replace(logits=logits)


def flat(output: PolicyOutput) -> tuple[Tensor, Tensor]:
    """Logits (N, A) and values (N,) of rows (T, n), N = T * n."""
    return output.logits.flatten(0, 1), output.values.flatten()
