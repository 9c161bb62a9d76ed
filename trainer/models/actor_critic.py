"""The actor-critic: encoder, memory and heads, from uint8 frames to a policy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainer.config.schema import ModelConfig
from trainer.models.encoders import Shape, build_encoder
from trainer.models.heads import PolicyValueHead
from trainer.models.memory import build_memory
from trainer.models.native import features_of
from trainer.models.popart import PopArt


class PolicyOutput(NamedTuple):
    """Logits (T, B, A) and values (T, B) or, of L > 1 heads, (T, B, L); float32."""

    logits: Tensor
    values: Tensor

    def values_at(self, levels: Tensor) -> Tensor:
        """The value of each row's own level, (T, B), for places of levels (T, B)."""
        if self.values.ndim == levels.ndim:
            return self.values
        return self.values.gather(-1, levels.unsqueeze(-1)).squeeze(-1)


class PolicyModel(nn.Module):
    """What collector, learner and evaluation may ask of a network.

    Attributes:
        state_size: S, floats of state per environment; 0 without memory.
    """

    state_size: int = 0

    @property
    def popart(self) -> PopArt | None:
        """What normalises the values; None: nothing does."""
        return None

    def forward(
        self, obs: Tensor, state: Tensor, first: Tensor
    ) -> tuple[PolicyOutput, Tensor]:
        """Runs T rows of B environments; acting is T = 1.

        Nothing in the module may change, and nothing be drawn: several threads
        run it at once. Nor may it wait for the device: CUDA graphs record it.

        Args:
            obs: (T, B, C, H, W) uint8.
            state: (B, S) float32 before row 0, zeros at the very start.
            first: (T, B) bool, rows before which the state becomes zeros.

        Returns:
            The policy's output at all rows, and the state (B, S) after the last.
        """
        raise NotImplementedError

    def resample_noise(self, generator: torch.Generator | None = None) -> None:
        """Draws new noise, if any; called before each act and gradient step.

        Args:
            generator: on the model's device; None: the device's own.
        """


class ActorCritic(PolicyModel):
    """Shared encoder, memory, policy head and value head.

    The easy way to a network of your own is another encoder, with everything else
    as configured. In a file `mine.py`, for `--model mine:Small`:

        import torch
        from torch import nn
        from trainer.models import ActorCritic
        from trainer.models.encoders import CentredConv2d

        class Small(ActorCritic):
            def make_encoder(self, config, shape):
                body = nn.Sequential(
                    CentredConv2d(shape[0], 8, 8, 8), nn.ReLU(), nn.Flatten()
                )
                size = body(torch.zeros(1, *shape)).shape[1]
                return body, size

    Pixels arrive as 0..255; `CentredConv2d` (encoders.py) centres them. To change
    one of the encoders there, return `build_encoder(replace(config, name="cnn-345k"),
    shape)`, or parts of it.

    Attributes:
        native: on a CPU and in bfloat16, the encoders that models/native.py knows run
            there; PyTorch's operators otherwise.
    """

    native: bool = True

    def __init__(self, config: ModelConfig, shape: Shape, num_actions: int) -> None:
        super().__init__()
        self.encoder, features = self.make_encoder(config, shape)
        self.memory = build_memory(config.memory, features)
        if self.memory is not None:
            features, self.state_size = self.memory.size, self.memory.state_size
        self.head = PolicyValueHead(features, num_actions, config)

    def make_encoder(self, config: ModelConfig, shape: Shape) -> tuple[nn.Module, int]:
        """The encoder, pixels (N, C, H, W) to (N, F), and F."""
        return build_encoder(config, shape)

    @property
    def popart(self) -> PopArt | None:
        """See `PolicyModel.popart`."""
        value = self.head.value
        return value if isinstance(value, PopArt) else None

    def resample_noise(self, generator: torch.Generator | None = None) -> None:
        """Draws new noise for noisy heads."""
        self.head.resample_noise(generator)

    def forward(
        self, obs: Tensor, state: Tensor, first: Tensor
    ) -> tuple[PolicyOutput, Tensor]:
        """See `PolicyModel.forward`.

        Pixels become the autocast type where autocast is on (0..255 are exact
        in bfloat16), float32 elsewhere; the first layer centres them. Native
        encoders take them as they are.
        """
        rows = obs.shape[:2]
        pixels = obs.flatten(0, 1)
        features = features_of(self.encoder, pixels) if self.native else None
        if features is None:
            kind = obs.device.type
            on = torch.is_autocast_enabled(kind)
            pixels = pixels.to(torch.get_autocast_dtype(kind) if on else torch.float32)
            features = self.encoder(pixels)
        if self.memory is not None:
            features, state = self.memory(features.unflatten(0, rows), state, first)
            features = features.flatten(0, 1)
        logits, values = self.head(features)
        output = PolicyOutput(logits.unflatten(0, rows), values.unflatten(0, rows))
        return output, state
