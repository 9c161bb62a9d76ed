"""The reverse scan of V-trace as one CUDA kernel, written in Triton.

Only `trainer.learn.vtrace` imports this module, and only before its first use, because
only PyTorch's CUDA builds include Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Columns per program: one warp, so that even few columns occupy several SMs.
BLOCK = 32


def _scan(
    decay: tl.tensor,
    increment: tl.tensor,
    result: tl.tensor,
    steps: int,
    columns: int,
    BLOCK: tl.constexpr,
) -> None:
    """x_t = increment_t + decay_t * x_{t+1} for BLOCK columns, from the last row."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.zeros((BLOCK,), tl.float32)
    for back in range(steps):
        at = (steps - 1 - back) * columns + column
        x = tl.load(increment + at, inside) + tl.load(decay + at, inside) * x
        tl.store(result + at, x, inside)


_kernel = triton.jit(_scan)


def reverse_scan(decay: Tensor, increment: Tensor) -> Tensor:
    """Computes `trainer.learn.vtrace.reverse_scan` on (T, B) float32 tensors."""
    decay, increment = decay.contiguous(), increment.contiguous()
    result = torch.empty_like(increment)
    steps, columns = increment.shape
    grid = (triton.cdiv(columns, BLOCK),)
    with torch.cuda.device(result.get_device()):  # kernels run on the current GPU
        _kernel[grid](
            decay, increment, result, steps, columns, BLOCK=BLOCK, num_warps=1
        )
    return result
