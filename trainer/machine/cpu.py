"""The CPU: cores, threads and memory of a run."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

import psutil
import torch

from mario_envpool._core import usable_cpus

Part = TypeVar("Part")
Result = TypeVar("Result")

# The nice value that `step_aside` adds to a pool's threads, and the environment
# variable that overrides it. It is not an option of a run, because it does not change
# results.
_NICE = 5
NICE_VARIABLE = "MARIO_NICE"


def available_cores() -> int:
    """Number of cores that taskset and the quota of a container leave this process."""
    return usable_cpus()


def cpu_name() -> str:
    """The name of the processor, from the system."""
    return _cpuinfo("model name") or platform.processor()


def cpu_has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 matrices."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(_cpuinfo("flags").split())


def _cpuinfo(key: str) -> str:
    """A value of the first core in /proc/cpuinfo; "" if there is none."""
    with suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(key):
                return line.partition(":")[2].strip()
    return ""


def keep_large_blocks() -> None:
    """Makes glibc keep freed activations, which otherwise cost page faults later."""
    trim_threshold, mmap_max = -1, -4  # malloc.h: M_TRIM_THRESHOLD, M_MMAP_MAX
    with suppress(AttributeError, OSError, TypeError):  # not of other C libraries
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_max, 0)


@contextmanager
def startup_objects_frozen() -> Iterator[None]:
    """Makes Python's garbage collector skip the objects that already exist."""
    # Half a million, most of PyTorch: a collection would stop everything for 0.25 s.
    gc.collect()  # otherwise current garbage would be kept too
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def thread_ids() -> frozenset[int]:
    """The operating system's ids of the threads of this process."""
    return frozenset(thread.id for thread in psutil.Process().threads())


def emulation_nice() -> int:
    """The nice value that is added for the threads of a pool: 5, or MARIO_NICE."""
    text = os.environ.get(NICE_VARIABLE, "").strip() or str(_NICE)
    if not (text.isdecimal() and int(text) <= 19):
        raise ValueError(
            f"{NICE_VARIABLE} must be a whole number from 0 (no lower priority for "
            f"emulation threads) to 19, got {text!r}"
        )
    return int(text) if sys.platform.startswith("linux") else 0


def step_aside(threads: Iterable[int]) -> None:
    """Lowers the priority of the threads of a pool below that of the network (Linux).

    All emulation waits for the thread that acts. If that thread shares its core, other
    cores idle later. With two cores and two threads of a pool, runs with small networks
    were 16 to 21 % faster with the lower priority. Beside other busy processes they are
    slower, and an even lower priority is worse (docs/lab-book.md).
    """
    lower = emulation_nice()
    for thread in threads if lower else ():
        # A thread may have ended.
        with suppress(OSError):
            nice = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(nice + lower, 19))


class Shards:
    """Threads that each take a share of a minibatch; the caller is one of them.

    PyTorch's threads synchronise in every operation. That costs little on an idle
    machine, but makes small kernels slow when emulation or another process occupies a
    core: on 2 cores with a load of 3, one gradient of `cnn-157k` on 256 rows took
    150-310 us per row with two OpenMP threads, and 50-70 us with two shards.
    """

    def __init__(self, count: int) -> None:
        """Threads that each compute without further threads."""
        if count < 1:
            raise ValueError(f"shards must be at least 1, got {count}")
        self.count = count
        # It starts threads when it first needs them.
        self._pool = ThreadPoolExecutor(
            max(1, count - 1), "shard", torch.set_num_threads, (1,)
        )

    def map(
        self, function: Callable[[Part], Result], parts: list[Part]
    ) -> list[Result]:
        """Applies `function` to parts, in order of parts; at most `count`."""
        if len(parts) > self.count:
            raise ValueError(f"{len(parts)} parts for {self.count} shards")
        futures = [self._pool.submit(function, part) for part in parts[1:]]
        try:
            first = function(parts[0])
        finally:
            # The caller changes the weights next, so no thread may still read them.
            rest = [future.result() for future in futures]
        return [first, *rest]

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()
