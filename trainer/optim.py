"""The optimiser and the schedules that depend on the number of steps taken."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def linear(start: float, end: float, horizon: int, step: int) -> float:
    """Goes from `start` to `end` over `horizon` steps and stays there.

    Args:
        start: value at step 0.
        end: value from `horizon` on.
        horizon: length in environment steps; 0 gives `end` at once.
        step: environment steps so far.
    """
    share = 1.0 if horizon <= 0 else min(1.0, step / horizon)
    return start + (end - start) * share


def make_adam(params: Iterable[Tensor], lr: float, eps: float) -> torch.optim.Adam:
    """Adam in one fused kernel over all parameters, on CPU and CUDA alike."""
    return torch.optim.Adam(params, lr=lr, eps=eps, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Sets the rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr
