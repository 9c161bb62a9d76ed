"""How rows of the store's tensors are written: by NumPy on a CPU, by kernels on a GPU.

The thread that collects is the one that all environments wait for. On one core (Zen 5)
the newest frames of 256 rows took `index_copy_` 515 us and NumPy's assignment 143 us,
those of 32 rows 39 us and 8 us. Code that is written once for both calls an array
*native* that is NumPy's on a CPU and a tensor on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntArray = npt.NDArray[np.int64]
#: NumPy's on a CPU, a tensor on a GPU.
Native = Any
#: Positions along the first axis: a slice or (n,) int64 on a CPU, a tensor on a GPU.
Index = Any


def span(positions: npt.NDArray[np.integer]) -> slice | IntArray:
    """Positions for NumPy's arrays: a slice if they are neighbours in rising order.

    In sync mode groups of environments, and the slots that they write, are. A slice is
    read without a copy: its elements hold until the array is written.

    Args:
        positions: (n,) distinct.
    """
    count = len(positions)
    if count:
        first = int(positions[0])
        if int(positions[-1]) - first == count - 1:
            rising = positions[1:] > positions[:-1]
            if np.count_nonzero(rising) == count - 1:
                return slice(first, first + count)
    # Any other type would be converted each time that it is used.
    return positions.astype(np.int64, copy=False)


def on_host(device: torch.device) -> bool:
    """Whether NumPy can write the memory of a device."""
    return device.type == "cpu"


def native(array: Tensor | npt.NDArray[Any]) -> Native:
    """The same memory, as NumPy's if it is the host's."""
    if isinstance(array, Tensor) and on_host(array.device):
        return array.numpy()
    return array


def native_on(device: torch.device, array: npt.NDArray[Any]) -> Native:
    """A copy on a device; the array itself if that is the host."""
    if on_host(device):
        return array
    return torch.from_numpy(array).to(device, non_blocking=True)


def index_on(device: torch.device, positions: npt.NDArray[np.integer]) -> Index:
    """Positions to read native arrays of a device at, or to `put` rows there."""
    if on_host(device):
        return span(positions)
    return native_on(device, positions.astype(np.int64, copy=False))


def put(store: Native, at: Index, rows: Native) -> None:
    """Writes rows of an array.

    Args:
        store: (all rows, ...) native.
        at: of `index_on`, n positions.
        rows: (n, ...) native, of the store's dtype.
    """
    if isinstance(at, Tensor):
        store.index_copy_(0, at, rows)
    else:
        store[at] = rows


def fill(store: Native, at: Index, value: int) -> None:
    """Writes the same number to elements of an array (all rows,); see `put`."""
    if isinstance(at, Tensor):
        store.index_fill_(0, at, value)
    else:
        store[at] = value
