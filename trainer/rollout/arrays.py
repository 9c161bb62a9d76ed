"""Arrays of the store, read and written by NumPy on a CPU and by kernels on a GPU.

All environments wait for the collecting thread. On one core (Zen 5), `index_copy_`
writes the newest frames of 256 rows in 515 us and those of 32 rows in 39 us; NumPy's
assignment needs 143 us and 8 us. A *native* array is a NumPy array on a CPU and a
tensor on a GPU, so that the same code serves both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntArray = npt.NDArray[np.int64]
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


def native_on(device: torch.device, array: npt.NDArray[Any]) -> Native:
    """A copy on a device; the array itself if the device is the host."""
    if on_host(device):
        return array
    return torch.from_numpy(array).to(device, non_blocking=True)


def index_on(device: torch.device, positions: npt.NDArray[np.integer]) -> Index:
    """Positions at which to read or write rows of native arrays of a device."""
    if on_host(device):
        return span(positions)
    return native_on(device, positions.astype(np.int64, copy=False))
