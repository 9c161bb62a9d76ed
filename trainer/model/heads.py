"""Output heads on features: action logits and a value."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PolicyValueHead(nn.Module):
    """One linear layer for logits and one for the value, both in float32."""

    def __init__(self, features: int, num_actions: int) -> None:
        super().__init__()
        self.policy = nn.Linear(features, num_actions)
        self.value = nn.Linear(features, 1)
        # A policy near uniform at the start; gains as in Schulman et al. 2017.
        nn.init.orthogonal_(self.policy.weight, 0.01)
        nn.init.orthogonal_(self.value.weight, 1.0)
        nn.init.zeros_(self.policy.bias)
        nn.init.zeros_(self.value.bias)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Maps (N, F) to logits (N, A) and values (N,), float32."""
        # Softmax and value targets need more than bfloat16's 8 bits.
        with torch.autocast(features.device.type, enabled=False):
            features = features.float()
            return self.policy(features), self.value(features).squeeze(-1)
