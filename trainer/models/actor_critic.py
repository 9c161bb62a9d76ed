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
        """The value of each row's own level, (T, B), for indices of levels (T, B)."""
        if self.values.ndim == levels.ndim:
            return self.values
        return self.values.gather(-1, levels.unsqueeze(-1)).squeeze(-1)


class PolicyModel(nn.Module):
    """The interface of a network for collector, learner and evaluation.

    Attributes:
        state_size: S, floats of state per environment; 0 without memory.
    """

    state_size: int = 0

    @property
    def popart(self) -> PopArt | None:
        """The layer that normalises the values; None if there is none."""
        return None

    def forward(
        self, obs: Tensor, state: Tensor, first: Tensor
    ) -> tuple[PolicyOutput, Tensor]:
        """Runs T rows of B environments; acting is T = 1.

        The module must not change and must not draw random numbers, because several
        threads run it at once. It must not wait for the device, because CUDA graphs
        record it.

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
            generator: on the model's device; None: the device's default generator.
        """


class ActorCritic(PolicyModel):
    """Shared encoder, memory, policy head and value head.

    The easiest custom network is another encoder, with everything else as configured.
    In a file `mine.py`, for `--model mine:Small`:

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
    an encoder of encoders.py, return `build_encoder(replace(config, name="cnn-345k"),
    shape)`, or parts of it.

    Attributes:
        native: whether native code (models/native.py) runs supported encoders on a CPU
            in bfloat16; if not, PyTorch's operators do.
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
        """The encoder, from pixels (N, C, H, W) to (N, F), and the number F."""
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

        Pixels become the autocast type if autocast is on (0..255 are exact in
        bfloat16), otherwise float32; the first layer centres them. Native encoders
        take uint8 pixels.
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
