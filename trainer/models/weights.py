"""Weights: copies between networks, and their moving average."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


@torch.no_grad()
def copy_weights(target: nn.Module, source: nn.Module) -> None:
    """Makes parameters and buffers of two like modules equal, in place."""
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
        """Starts from the weights as they are.

        Args:
            model: what is trained.
            decay: per update, 0 to 1.
        """
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay
        self._source = model

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """Takes the weights of one more update in.

        Args:
            updates: updates so far. The first ones weigh more, or the random start
                would stay for 1 / (1 - decay) of them.
        """
        decay = min(self.decay, (1 + updates) / (10 + updates))
        latest = [param.detach() for param in self._source.parameters()]
        torch._foreach_lerp_(list(self.model.parameters()), latest, 1 - decay)
        pairs = zip(self.model.buffers(), self._source.buffers(), strict=True)
        for own, other in pairs:
            own.copy_(other)

    def copy_to(self, model: nn.Module) -> None:
        """Gives another module of the same kind the averaged weights."""
        model.load_state_dict(self.model.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """The averaged weights, as a state dict of the model."""
        return self.model.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from what `state_dict` gave."""
        self.model.load_state_dict(state)
