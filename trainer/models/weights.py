"""Weights: copies between networks, and their moving average."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


@torch.no_grad()
def copy_weights(target: nn.Module, source: nn.Module) -> None:
    """Copies parameters and buffers between modules of the same kind, in place."""
    for kind in ("parameters", "buffers"):
        own, given = getattr(target, kind)(), getattr(source, kind)()
        for mine, theirs in zip(own, given, strict=True):
            mine.copy_(theirs)


class Ema:
    """Exponential moving average of a model's weights, for evaluation.

    Attributes:
        model: a copy with the averaged weights; buffers are the latest.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Starts from the current weights.

        Args:
            model: the network to train.
            decay: decay per update, 0 to 1.
        """
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay
        self._source = model

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """Adds the weights after one more update.

        Args:
            updates: updates so far. The first updates have more weight; otherwise the
                random initial weights would dominate for 1 / (1 - decay) updates.
        """
        decay = min(self.decay, (1 + updates) / (10 + updates))
        latest = [param.detach() for param in self._source.parameters()]
        torch._foreach_lerp_(list(self.model.parameters()), latest, 1 - decay)
        pairs = zip(self.model.buffers(), self._source.buffers(), strict=True)
        for own, other in pairs:
            own.copy_(other)

    def copy_to(self, model: nn.Module) -> None:
        """Copies the averaged weights to another module of the same kind."""
        model.load_state_dict(self.model.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """The averaged weights, as a state dict of the model."""
        return self.model.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a `state_dict`."""
        self.model.load_state_dict(state)
