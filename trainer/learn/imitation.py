"""Imitation: the cross-entropy of demonstrated actions, alone or beside another loss.

Alone it is behavioural cloning (Pomerleau 1989, "ALVINN"). Beside the policy gradient,
as in DAPG (Rajeswaran et al. 2018, arXiv:1709.10087, section 4.2): the gradient of the
log-probability of demonstrated actions is added to that of the policy, with a weight
that falls to 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from trainer.models import PolicyModel

# Rows of demonstrations in a gradient step.
_ROWS = 256
# Learning rate of cloning, which falls to 0: Adam's usual one (Kingma & Ba 2015).
_CLONING_RATE = 1e-3


class Imitation:
    """The loss of some rows of demonstrations.

    Attributes:
        weight: of the loss; it changes between updates.
    """

    def __init__(
        self,
        model: PolicyModel,
        obs: Tensor,
        actions: Tensor,
        *,
        dtype: torch.dtype | None,
        generator: torch.Generator,
    ) -> None:
        """Prepares.

        Args:
            model: without a memory.
            obs: (n, C, H, W) uint8 of demonstrations, on the model's device.
            actions: (n,) int64, what was done there.
            dtype: autocast type of the network, None for float32.
            generator: of the rows, on the device.
        """
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
        """The loss of some of the rows that were drawn; those of all parts add up."""
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
        """Trains on this loss alone, with an optimiser of its own.

        Args:
            steps: how many.

        Yields:
            The loss of each step.
        """
        optimizer = torch.optim.Adam(self._model.parameters(), lr=_CLONING_RATE)
        rate = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, max(1, steps))
        for _ in range(steps):
            loss = self.loss(self.draw())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rate.step()
            yield float(loss.detach())
