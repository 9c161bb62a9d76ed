"""Statistics of the updates: sums on the device, copied to the host only when read.

A CUDA graph of the gradient step also records the additions, so each replay logs.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Statistics:
    """Means of scalars since the last call of `means`."""

    def __init__(self, device: torch.device) -> None:
        """Starts without statistics."""
        self._device = device
        self._sums: dict[str, Tensor] = {}
        # Of scalars that come together: their sums, and how often they came.
        self._joint: dict[tuple[str, ...], Tensor] = {}

    def log(self, name: str, value: Tensor, *, finite_only: bool = False) -> None:
        """Adds a scalar to its sum, in place and without waiting for the device."""
        if name not in self._sums:
            self._sums[name] = torch.zeros(2, device=self._device)
        value = value.detach().float()
        counted = torch.ones_like(value)
        if finite_only:
            counted = value.isfinite().float()
            value = value.nan_to_num(0.0, 0.0, 0.0)
        self._sums[name].add_(torch.stack([value, counted]))

    def log_all(self, names: tuple[str, ...], values: Tensor) -> None:
        """Adds scalars that are always logged together, in one operation."""
        if names not in self._joint:
            self._joint[names] = torch.zeros(len(names) + 1, device=self._device)
        sums = self._joint[names]
        sums[:-1] += values.detach()
        sums[-1] += 1

    def means(self) -> dict[str, float]:
        """Returns the means by name and resets them; this waits for the device."""
        result = {}
        if self._sums:
            sums = torch.stack(list(self._sums.values())).tolist()
            pairs = zip(self._sums, sums, strict=True)
            result = {name: total / count for name, (total, count) in pairs if count}
        for names, joint in self._joint.items():
            *totals, count = joint.tolist()
            if count:
                pairs = zip(names, totals, strict=True)
                result |= {name: total / count for name, total in pairs}
        for tensor in (*self._sums.values(), *self._joint.values()):
            tensor.zero_()
        return result
