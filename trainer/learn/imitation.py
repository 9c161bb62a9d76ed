"""Imitation: the cross-entropy of demonstrated actions, as the only loss or added.

As the only loss it is behavioural cloning (Pomerleau 1989, "ALVINN"). Added to the
policy gradient it is DAPG (Rajeswaran et al. 2018, arXiv:1709.10087, section 4.2): the
gradient of the log-probability of demonstrated actions, with a weight that falls to 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from trainer.models import PolicyModel

# Rows of demonstrations in a gradient step.
_ROWS = 256
# Learning rate of cloning, which falls to 0: Adam's default (Kingma & Ba 2015).
_CLONING_RATE = 1e-3


class Imitation:
    """The loss of some rows of demonstrations.

    Attributes:
        weight: weight of the loss, which changes between updates.
    """

    def __init__(
        self,
        model: PolicyModel,
        obs: Tensor,  # (n, C, H, W) uint8
        actions: Tensor,  # (n,) int64
        *,
        dtype: torch.dtype | None,
        generator: torch.Generator,
    ) -> None:
        """Takes the demonstrations."""
        self.weight = 0.0
        self._model, self._obs, self._actions = model, obs, actions
        self._dtype, self._generator = dtype, generator

    def draw(self) -> Tensor:
        """Rows for a gradient step, (k,) int64."""
        device = self._actions.device
        return torch.randint(
            len(self._actions), (_ROWS,), generator=self._generator, device=device
        )

    def loss(self, rows: Tensor) -> Tensor:
        """The loss of some of the drawn rows; the losses of all parts add up."""
        n, device = len(rows), self._actions.device
        state = torch.zeros(n, 0, device=device)
        first = torch.zeros(1, n, dtype=torch.bool, device=device)
        # As in forward.py: entered in every thread, and without a cache.
        with torch.autocast(
            device.type, self._dtype, self._dtype is not None, cache_enabled=False
        ):
            output, _ = self._model(self._obs[rows][None], state, first)
        logits = output.logits[0].float()
        return (
            functional.cross_entropy(logits, self._actions[rows], reduction="sum")
            / _ROWS
        )

    def clone(self, steps: int) -> Iterator[float]:
        """Trains on only this loss, with a separate optimiser."""
        optimizer = torch.optim.Adam(self._model.parameters(), lr=_CLONING_RATE)
        rate = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, max(1, steps))
        for _ in range(steps):
            loss = self.loss(self.draw())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rate.step()
            yield float(loss.detach())
