"""The actor-critic: an encoder and a head, from uint8 frames to a policy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.model.encoders import build_encoder
from trainer.model.heads import PolicyValueHead


class PolicyOutput(NamedTuple):
    """Logits (N, A) and values (N,), both float32."""

    logits: Tensor
    values: Tensor


class ActorCritic(nn.Module):
    """Shared encoder, policy head and value head."""

    def __init__(
        self, config: ModelConfig, shape: tuple[int, int, int], num_actions: int
    ) -> None:
        super().__init__()
        self.encoder, features = build_encoder(config.name, shape)
        self.head = PolicyValueHead(features, num_actions)

    def forward(self, obs: Tensor) -> PolicyOutput:
        """Maps uint8 observations (N, C, H, W) to logits and values.

        Pixels become the autocast type where autocast is on (0..255 are exact
        in bfloat16), float32 elsewhere; the first layer centres them.
        """
        kind = obs.device.type
        on = torch.is_autocast_enabled(kind)
        pixels = obs.to(torch.get_autocast_dtype(kind) if on else torch.float32)
        return PolicyOutput(*self.head(self.encoder(pixels)))

    def parameter_count(self) -> int:
        """Number of trained scalars."""
        return sum(p.numel() for p in self.parameters())


def build_model(
    config: ModelConfig, shape: tuple[int, ...], num_actions: int
) -> ActorCritic:
    """Builds the network of a run.

    Args:
        config: which one.
        shape: observation shape; must be (channels, height, width).
        num_actions: size of the discrete action space.

    Raises:
        ValueError: observations are not images, or the name is unknown.
    """
    if len(shape) != 3:
        raise ValueError(
            f"observations have shape {shape}; the encoders take images "
            "(channels, height, width)"
        )
    return ActorCritic(config, (shape[0], shape[1], shape[2]), num_actions)
