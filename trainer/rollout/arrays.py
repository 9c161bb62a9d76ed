"""Arrays of the store, read and written by NumPy on a CPU and by kernels on a GPU.

All environments wait for the collecting thread. On one core (Zen 5), `index_copy_`
writes the newest frames of 256 rows in 515 us and those of 32 rows in 39 us; NumPy's
assignment needs 143 us and 8 us. A *native* array is a NumPy array on a CPU and a
tensor on a GPU, so that the same code serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.machine.cuda import copied_to

IntArray = npt.NDArray[np.int64]
_WORD = 8  # each array of a transfer begins at a multiple of so many bytes
#: A NumPy array on a CPU, a tensor on a GPU.
Native = Any
#: Positions along the first axis: a slice or (n,) int64 on a CPU, a tensor on a GPU.
Index = Any


def span(positions: npt.NDArray[np.integer]) -> slice | IntArray:
    """Distinct positions (n,) for NumPy: a slice if they are consecutive and ascending.

    In sync mode the groups of environments and the slots that they write are
    consecutive. A slice reads without a copy: its elements are valid until the array
    is written.
    """
    count = len(positions)
    if count:
        first = int(positions[0])
        if int(positions[-1]) - first == count - 1:
            rising = positions[1:] > positions[:-1]
            if np.count_nonzero(rising) == count - 1:
                return slice(first, first + count)
    # NumPy would convert any other type at each use.
    return positions.astype(np.int64, copy=False)


def on_host(device: torch.device) -> bool:
    """Whether NumPy can write the memory of a device."""
    return device.type == "cpu"


def native(array: Tensor | npt.NDArray[Any]) -> Native:
    """The same memory; as a NumPy array if it is on the host."""
    if isinstance(array, Tensor) and on_host(array.device):
        return array.numpy()
    return array


def together(
    device: torch.device,
    indices: Sequence[npt.NDArray[np.integer]],
    data: Sequence[npt.NDArray[Any]] = (),
) -> tuple[list[Index], list[Native]]:
    """Indices and other arrays on a device, all in one transfer.

    On a CPU these are the `span`s of the indices, and the arrays themselves.
    """
    if on_host(device):
        return [span(index) for index in indices], list(data)
    arrays = [*(index.astype(np.int64, copy=False) for index in indices), *data]
    ends = np.cumsum([_WORD * -(-array.nbytes // _WORD) for array in arrays]).tolist()
    starts = [0, *ends[:-1]]
    buffer = np.empty(ends[-1], np.uint8)
    for start, array in zip(starts, arrays, strict=True):
        place = buffer[start : start + array.nbytes].view(array.dtype)
        place.reshape(array.shape)[...] = array
    moved = copied_to(device, torch.from_numpy(buffer))
    results: list[Tensor] = []
    for start, array in zip(starts, arrays, strict=True):
        kind = torch.from_numpy(array[:0]).dtype
        part = moved[start : start + array.nbytes]
        results.append(part.view(kind).view(array.shape))
    return results[: len(indices)], results[len(indices) :]


def index_on(device: torch.device, positions: npt.NDArray[np.integer]) -> Index:
    """Positions at which to read or write rows of native arrays of a device."""
    return together(device, [positions])[0][0]
