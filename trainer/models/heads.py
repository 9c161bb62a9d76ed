"""Output heads on features: action logits and values, with or without noise.

When a run continues with other levels, each old level keeps its output of the critic;
the output of a new level begins with the mean weights and statistics of all old
outputs (`value_sources`, `move_values`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config.schema import ModelConfig
from trainer.models.popart import PopArt

# Initial scale of the noise of noisy layers (Fortunato et al. 2018, section 3.2).
SIGMA = 0.5
# The critic's layer in an ActorCritic, and its buffers that are drawn again, not moved.
_VALUE, _NOISE = "head.value.", "noise_out"


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
        """Draws new noise in place, so that a recorded CUDA graph sees it."""
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

        self._noisy, self._value_heads = config.noisy, config.value_heads
        self.policy = linear(num_actions)
        value = linear(config.value_heads)
        # The initial policy is near uniform; gains as in Schulman et al. 2017.
        nn.init.orthogonal_(self.policy.weight, 0.01)
        nn.init.orthogonal_(value.weight, 1.0)
        nn.init.zeros_(self.policy.bias)
        nn.init.zeros_(value.bias)
        self.value = PopArt(value) if config.popart else value

    @property
    def layers(self) -> tuple[nn.Linear, nn.Linear]:
        """The layers of logits and of values, without the scale of PopArt."""
        value = self.value
        return self.policy, value.layer if isinstance(value, PopArt) else value

    @property
    def weights(self) -> list[Tensor]:
        """Weights and biases of both layers, logits first."""
        return [w for layer in self.layers for w in (layer.weight, layer.bias)]

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
            logits, values = self.policy(features), self.value(features)
            # Only where there is one: an exported squeeze accepts no other size.
            return logits, values.squeeze(-1) if self._value_heads == 1 else values


def value_sources(
    old: Sequence[str], old_outputs: int, new: Sequence[str], new_outputs: int
) -> list[list[int]]:
    """For each new output, the indices of old outputs whose mean it begins with.

    Levels before and after, and the critic's outputs: one per level, or 1.
    """
    before = list(old) if old_outputs > 1 else []
    after = list(new) if new_outputs > 1 or len(new) == 1 else [""]
    everything = list(range(old_outputs))
    return [[before.index(n)] if n in before else everything for n in after]


def move_values(
    state: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    parts: Sequence[Sequence[int]],
) -> None:
    """Rewrites a checkpoint's state in place: weights, averages and moments.

    `model` and `optimizer` are of the continued run, `parts` are from `value_sources`.
    """
    if not any(name.startswith(_VALUE) for name in state["model"]):
        raise ValueError(
            "a custom network can only continue with the levels of its checkpoint, "
            "because it is unknown which of its weights belong to a level: choose the "
            "same levels"
        )
    learner = state["learner"]

    def moved(rows: Tensor) -> Tensor:
        return torch.stack([rows[list(part)].mean(0) for part in parts])

    for tensors in (state["model"], learner["ema"], learner["buffers"]):
        for name in [n for n in tensors or {} if n.startswith(_VALUE)]:
            if name.endswith(_NOISE):
                del tensors[name]
            elif not name.endswith("noise_in"):
                tensors[name] = moved(tensors[name])
    for moments in _moments(learner["optimizer"], model, optimizer):
        for name, value in moments.items():
            if isinstance(value, Tensor) and value.ndim:
                moments[name] = moved(value)


def _moments(
    state: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[dict[str, Any]]:
    """The optimiser's moments of each parameter of the critic's layer."""
    names = {param: name for name, param in model.named_parameters()}
    groups = zip(optimizer.param_groups, state["param_groups"], strict=False)
    for group, saved in groups:
        for param, number in zip(group["params"], saved["params"], strict=False):
            if names[param].startswith(_VALUE) and number in state["state"]:
                yield state["state"][number]
