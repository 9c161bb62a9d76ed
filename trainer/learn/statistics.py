"""Statistics of the updates: sums on the device, fetched only when they are read.

A CUDA graph of the gradient step records the additions too, so a replay logs again.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Statistics:
    """Means of scalars since the last call of `means`."""

    def __init__(self, device: torch.device) -> None:
        """Starts without any.

        Args:
            device: of the scalars.
        """
        self._device = device
        self._sums: dict[str, Tensor] = {}

    def log(self, name: str, value: Tensor, *, finite_only: bool = False) -> None:
        """Adds a scalar to its sum, in place and without waiting for the device.

        Args:
            name: of the statistic.
            value: a scalar on the device.
            finite_only: leave values out that are infinite or not a number.
        """
        if name not in self._sums:
            self._sums[name] = torch.zeros(2, device=self._device)
        value = value.detach().float()
        counted = torch.ones_like(value)
        if finite_only:
            counted = value.isfinite().float()
            value = value.nan_to_num(0.0, 0.0, 0.0)
        self._sums[name].add_(torch.stack([value, counted]))

    def means(self) -> dict[str, float]:
        """Means by name, and starts again; this waits for the device."""
        if not self._sums:
            return {}
        sums = torch.stack(list(self._sums.values())).tolist()
        torch._foreach_zero_(list(self._sums.values()))
        pairs = zip(self._sums, sums, strict=True)
        return {name: total / count for name, (total, count) in pairs if count}
