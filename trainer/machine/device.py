"""The hardware a run uses: device, precision, threads, memory."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")

_logger = logging.getLogger(__name__)

_NICE = 5  # of a pool's threads, see step_aside


def choose_device(name: str) -> torch.device:
    """Resolves `--device`.

    Args:
        name: auto, cpu, cuda or cuda:N.

    Raises:
        ValueError: not one of these.
        RuntimeError: CUDA was asked for and there is none, or not as many.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        built = "has no CUDA" if torch.version.cuda is None else "finds no usable GPU"
        raise RuntimeError(
            f"--device {name}, but this PyTorch ({torch.__version__}) {built}; install "
            "a CUDA build and driver, or use --device cpu or auto"
        )
    if kind == "cuda" and number and int(number) >= torch.cuda.device_count():
        raise RuntimeError(
            f"--device {name}, but there are {torch.cuda.device_count()} GPUs"
        )
    return torch.device(name)


def autocast_dtype(device: torch.device, precision: str) -> torch.dtype | None:
    """The type the network computes in, None for float32 without autocast.

    Args:
        device: of the run.
        precision: auto, bf16, fp16 or fp32. auto takes bf16 where it is native:
            without it a CPU converts back and forth and loses against fp32, and a
            GPU emulates it and loses against fp16.
    """
    named = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
    if precision in named:
        return named[precision]
    if device.type == "cuda":
        # Native from Ampere on; is_bf16_supported() counts emulation as well.
        native = torch.cuda.get_device_capability(device)[0] >= 8
        return torch.bfloat16 if native else torch.float16
    return torch.bfloat16 if _cpu_has_bf16() else None


def _cpu_has_bf16() -> bool:
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def describe(device: torch.device, dtype: torch.dtype | None) -> str:
    """One line for the start of a run."""
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{available_cores()} cores"
    )
    return f"{device} ({name}), {str(dtype or torch.float32).removeprefix('torch.')}"


def available_cores() -> int:
    """Cores this process may run on (fewer than the machine's under taskset)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def keep_large_blocks() -> bool:
    """Tells glibc to keep freed activations instead of unmapping them.

    By default every block above 32 MB, and often smaller ones, returns to the
    kernel and is page-faulted in again at the next minibatch.

    Returns:
        Whether the C library took it (only glibc does).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    trim_threshold, mmap_max = -1, -4  # malloc.h: M_TRIM_THRESHOLD, M_MMAP_MAX
    return bool(mallopt(trim_threshold, 2**31 - 1) and mallopt(mmap_max, 0))


def step_aside(threads: Iterable[int]) -> None:
    """Gives the threads of a pool what the network leaves them of the cores (Linux).

    The thread that acts is waited for by all of them in turn. Where it has to share
    its core, cores idle later: on two, with as many threads of a pool, runs with small
    networks were 16 to 21 % faster so. Beside other work they are slower, and a higher
    value costs more there (docs/results.md).

    Args:
        threads: their ids.
    """
    for thread in threads if sys.platform.startswith("linux") else ():
        # A thread may have ended.
        with suppress(OSError):
            nice = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(nice + _NICE, 19))


class Shards:
    """Threads that each take a share of a minibatch; the caller is one of them.

    PyTorch's own threads meet at a barrier in every operation. That costs little
    on an idle machine, and ruins small kernels when emulation or anything else
    has a core: on 2 cores with a load of 3, one gradient of `cnn-157k` on 256 rows
    took 150-310 us a row with two OpenMP threads, 50-70 us with two shards.
    """

    def __init__(self, count: int) -> None:
        """Starts `count - 1` threads, and makes each one compute alone."""
        if count < 1:
            raise ValueError(f"shards must be at least 1, got {count}")
        self.count = count
        self._pool = (
            ThreadPoolExecutor(
                count - 1, "shard", initializer=torch.set_num_threads, initargs=(1,)
            )
            if count > 1
            else None
        )

    def map(
        self, function: Callable[[Part], Result], parts: list[Part]
    ) -> list[Result]:
        """Applies `function` to parts, in order of parts; at most `count`."""
        if len(parts) > self.count:
            raise ValueError(f"{len(parts)} parts for {self.count} shards")
        if self._pool is None or len(parts) <= 1:
            return [function(part) for part in parts]
        futures = [self._pool.submit(function, part) for part in parts[1:]]
        try:
            first = function(parts[0])
        finally:
            # Nobody may still read the weights when the caller goes on.
            rest = [future.result() for future in futures]
        return [first, *rest]

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown()
