"""A policy that acts: it maps observations to actions with one set of weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainer.machine.cuda import ACTING, Graphed
from trainer.models import PolicyModel, PolicyOutput


def sample(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Samples actions (n,) int64 from logits (n, A)."""
    return _choose(logits, torch.empty_like(logits).exponential_(generator=generator))


def _choose(logits: Tensor, noise: Tensor) -> Tensor:
    """Actions (n,) int64 from logits and Exp(1)-distributed noise, both (n, A)."""
    # argmax p_i / e_i with e_i ~ Exp(1) is a sample of p.
    return (logits.softmax(-1) / noise).argmax(-1)


class ActorOutput(NamedTuple):
    """The decisions of a policy for n environments."""

    actions: Tensor  # (n,) int64
    logits: Tensor  # (n, A) float32 that the actions were sampled from
    values: Tensor  # (n,) float32
    state: Tensor  # (n, S) float32, the memory after these rows


class Actor:
    """A set of weights to act with, and the policy version of these weights."""

    def __init__(
        self,
        model: PolicyModel,
        *,
        num_actions: int,
        device: torch.device,
        dtype: torch.dtype | None,
        generator: torch.Generator,
        graphs: bool = False,  # on a GPU, record the forward pass and replay it
    ) -> None:
        self.model = model
        self.version = 0
        self._num_actions = num_actions
        self._device = device
        self._dtype = dtype
        self._generator = generator
        self._forward = Graphed(
            self._run,
            name="acting",
            device=device,
            enabled=graphs,
            priority=ACTING,
        )

    def __call__(
        self,
        pixels: Tensor,  # (n, C, H, W) uint8
        state: Tensor,  # (n, S) float32
        is_first: Tensor,  # (n,) bool
        levels: Tensor,  # (n,) int64, selects the value head of each row
    ) -> ActorOutput:
        """Samples actions."""
        self.model.resample_noise(self._generator)
        # Drawn here: recorded graphs must not draw.
        noise = torch.empty(len(pixels), self._num_actions, device=self._device)
        noise.exponential_(generator=self._generator)
        return ActorOutput(*self._forward(pixels, state, is_first, levels, noise))

    def close(self) -> None:
        """Frees the recorded graph."""
        self._forward.close()

    @torch.no_grad()
    def _run(
        self,
        pixels: Tensor,
        state: Tensor,
        is_first: Tensor,
        levels: Tensor,
        noise: Tensor,
    ) -> ActorOutput:
        output, state = self._evaluate(pixels, state, is_first)
        logits, values = output.logits[0], output.values_at(levels[None])[0]
        return ActorOutput(_choose(logits, noise), logits, values, state)

    @torch.no_grad()
    def values(
        self, pixels: Tensor, state: Tensor, is_first: Tensor, levels: Tensor
    ) -> Tensor:
        """The critic's values, (n,) float32; takes the arguments of `__call__`."""
        output, _ = self._evaluate(pixels, state, is_first)
        return output.values_at(levels[None])[0]

    def _evaluate(
        self, pixels: Tensor, state: Tensor, is_first: Tensor
    ) -> tuple[PolicyOutput, Tensor]:
        with torch.autocast(self._device.type, self._dtype, self._dtype is not None):
            result: tuple[PolicyOutput, Tensor]
            result = self.model(pixels[None], state, is_first[None])
        return result
