"""Output heads on features: action logits and values, with or without noise."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config.schema import ModelConfig
from trainer.models.popart import PopArt

# Initial scale of the noise of noisy layers (Fortunato et al. 2018, section 3.2).
SIGMA = 0.5


class NoisyLinear(nn.Linear):
    """A linear layer with learned noise in its weights (Fortunato et al. 2018).

    The noise is factorised as in their section 3.1 (b): one number per input and one
    per output, f(x) = sign(x) sqrt|x| of Gaussians. Its initial scale is that of
    section 3.2, sigma / sqrt(inputs). `weight` and `bias` are the means.

    Only `resample_noise` changes the noise, so several threads may run one module. The
    noise is not part of the state dict, and is off in evaluation mode.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, inputs: int, outputs: int, sigma: float) -> None:
        super().__init__(inputs, outputs)
        scale = sigma / math.sqrt(inputs)
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), scale))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), scale))
        self.register_buffer("noise_in", torch.zeros(inputs), persistent=False)
        self.register_buffer("noise_out", torch.zeros(outputs), persistent=False)
        self.resample_noise()

    @torch.no_grad()
    def resample_noise(self, generator: torch.Generator | None = None) -> None:
        """Draws new noise in place, so that a recorded CUDA graph sees it.

        Args:
            generator: on the layer's device; None: the device's default generator.
        """
        for noise in (self.noise_in, self.noise_out):
            noise.normal_(generator=generator)
            noise.copy_(noise.sign() * noise.abs().sqrt())

    def forward(self, features: Tensor) -> Tensor:
        """Maps (..., inputs) to (..., outputs), with the same noise for all rows."""
        if not self.training:
            return super().forward(features)
        noise = torch.outer(self.noise_out, self.noise_in)
        return F.linear(
            features,
            self.weight + self.weight_sigma * noise,
            self.bias + self.bias_sigma * self.noise_out,
        )


class PolicyValueHead(nn.Module):
    """One linear layer for logits and one for values, both in float32."""

    def __init__(self, features: int, num_actions: int, config: ModelConfig) -> None:
        super().__init__()

        def linear(outputs: int) -> nn.Linear:
            if config.noisy:
                return NoisyLinear(features, outputs, SIGMA)
            return nn.Linear(features, outputs)

        self._noisy = config.noisy
        self.policy = linear(num_actions)
        value = linear(config.value_heads)
        # The initial policy is near uniform; gains as in Schulman et al. 2017.
        nn.init.orthogonal_(self.policy.weight, 0.01)
        nn.init.orthogonal_(value.weight, 1.0)
        nn.init.zeros_(self.policy.bias)
        nn.init.zeros_(value.bias)
        self.value = PopArt(value) if config.popart else value

    def resample_noise(self, generator: torch.Generator | None = None) -> None:
        """Draws new noise for both layers; without noise it does nothing."""
        if not self._noisy:  # asked before every act
            return
        for layer in self.modules():
            if isinstance(layer, NoisyLinear):
                layer.resample_noise(generator)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Maps (N, F) to logits (N, A) and values (N,), or (N, L) of L > 1 heads."""
        # Softmax and value targets need more than bfloat16's 8 bits.
        with torch.autocast(features.device.type, enabled=False):
            features = features.float()
            return self.policy(features), self.value(features).squeeze(-1)
