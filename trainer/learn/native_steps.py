"""Optimiser steps on a CPU in native code (csrc/learner), many tensors per call.

The overhead of PyTorch's operators exceeds the arithmetic here: Muon needs forty of
them for the two matrices of the default network, and other work empties the caches in
between. PyTorch handles tensors that the native code does not support: on another
device, not float32, or not contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

try:
    from trainer import _native
except ImportError:  # not built
    PATHS: list[str] = []
    BEST: str | None = None
else:
    PATHS = _native.paths()
    BEST = _native.best_path()


def plain(*tensors: Tensor | None) -> bool:
    """Whether the native code supports the memory of tensors."""
    return all(
        tensor is not None
        and tensor.dtype == torch.float32
        and tensor.is_cpu
        and tensor.is_contiguous()
        for tensor in tensors
    )


def muon(
    matrices: Sequence[tuple[Tensor, Tensor, Tensor]],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    path: str,
) -> None:
    """A step of Muon, in place.

    Args:
        matrices: weights, gradients and momentum, (M, ...) of one shape each, `plain`.
        lr: learning rate of the step.
        momentum: decay of the mean gradient.
        weight_decay: decoupled.
        path: one of `PATHS`.
    """
    rows = [
        (
            *(len(weights), weights[0].numel()),
            *(tensor.data_ptr() for tensor in (weights, gradients, averages)),
        )
        for weights, gradients, averages in matrices
    ]
    size = max(_native.muon_scratch(m, n) for m, n, *_ in rows)
    scratch = torch.empty(size)
    options = (lr, momentum, weight_decay)
    _native.muon_step(path, rows, options, scratch.data_ptr())


def adamw(
    tensors: Sequence[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]],
    *,
    lr: float,
    weight_decay: float,
    eps: float,
    path: str,
) -> None:
    """A step of AdamW with betas 0.9 and 0.999, in place.

    Args:
        tensors: weights, gradients, mean gradients, mean squares, and () steps so far;
            all `plain`.
        lr: learning rate of the step.
        weight_decay: decoupled.
        eps: added to the root of the squares.
        path: one of `PATHS`.
    """
    rows = [
        (some[0].numel(), *(tensor.data_ptr() for tensor in some)) for some in tensors
    ]
    _native.adamw_step(path, rows, (lr, weight_decay, eps, 0.9, 0.999))


def clip_norm(gradients: Sequence[Tensor], max_norm: float, path: str) -> float:
    """Scales gradients down, in place, to a norm over all of them.

    Args:
        gradients: all `plain`.
        max_norm: largest norm after the call.
        path: one of `PATHS`.

    Returns:
        The norm before the call.
    """
    rows = [(gradient.numel(), gradient.data_ptr()) for gradient in gradients]
    return _native.clip_norm(path, rows, max_norm)
