"""The device of a run: its choice, checks of a GPU, the data type of the network.

A feature of the GPU that does not work is reported in one line, and the run works
without it. The checks draw nothing from PyTorch's global generators.
"""

from __future__ import annotations

import logging
import mmap
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.machine.cpu import available_cores, cpu_has_bf16
from trainer.machine.cuda import (
    Copies,
    Graphed,
    HostToDevice,
    own_stream,
    set_copies,
)
from trainer.machine.process import first_line
from trainer.machine.ranks import Ranks

_logger = logging.getLogger(__name__)

# torch.cuda is not fully typed; Any disables type checks for it.
_cuda: Any = torch.cuda

# Cycles of a kernel that takes some milliseconds on one multiprocessor: much longer
# than its launch, with room for a second kernel.
_CYCLES = 5_000_000
# Two such kernels take half the time if they overlap, and the same time if not.
_MOST_OVERLAPPED = 0.75
_TIMES = 3
_CALLS = 8  # those before `Graphed` records, and some replays
# With a large epsilon, rounding errors change the weights by less than the tolerances;
# a missing call or a wrong input changes them by more.
_LR, _EPS = 1e-2, 1e-3
_RTOL, _ATOL = 1e-2, 1e-3
_COPIES, _COPY_BYTES = 4, 1 << 18


def choose_device(name: str) -> torch.device:
    """Resolves `--device`."""
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
            f"--device {name}, but the last GPU is cuda:{torch.cuda.device_count() - 1}"
        )
    return torch.device(name)


def prepare(device: torch.device) -> torch.device:
    """Makes a GPU the current one of this thread, and runs one kernel on it."""
    if device.type != "cuda":
        return device
    try:
        if device.index is not None:
            torch.cuda.set_device(device)
        torch.zeros(1, device=device).add_(1)
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        major, minor = torch.cuda.get_device_capability(device)
        raise RuntimeError(
            f"{device} ({torch.cuda.get_device_name(device)}, compute capability "
            f"{major}.{minor}) cannot run a kernel of this PyTorch "
            f"({torch.__version__}, for {' '.join(torch.cuda.get_arch_list())}): "
            f"{first_line(error)}; install a build for this GPU, or use --device cpu"
        ) from error
    return device


def device_of(name: str, ranks: Ranks) -> torch.device:
    """The device of this process; each of several on one machine has its own GPU."""
    device = choose_device(name)
    if device.type != "cuda" or ranks.size == 1:
        return prepare(device)
    gpus, processes, numbered = torch.cuda.device_count(), ranks.local_size, ":" in name
    if numbered and processes > 1:
        raise ValueError(
            f"--device {name} is one GPU, and each of the {processes} processes of "
            "this machine needs its own: leave out --device"
        )
    if processes > gpus:
        raise RuntimeError(
            f"{processes} processes on this machine and {gpus} GPUs: start one process "
            f"per GPU (--nproc-per-node {gpus}), or use --device cpu"
        )
    if not numbered:
        device = torch.device("cuda", ranks.local_rank)
    # The default GPU of PyTorch and NCCL must be this one.
    return prepare(device)


def autocast_dtype(
    device: torch.device, precision: str, *, own_code: bool = False
) -> torch.dtype | None:
    """The data type of the network, None for float32 without autocast."""
    named = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
    if precision in named:
        return named[precision]
    if device.type == "cuda":
        # Hardware bf16 from Ampere on; is_bf16_supported() also counts emulation.
        native = torch.cuda.get_device_capability(device)[0] >= 8
        return torch.bfloat16 if native else torch.float16
    return torch.bfloat16 if own_code or cpu_has_bf16() else None


def describe(device: torch.device, dtype: torch.dtype | None) -> str:
    """Device and data type, as text."""
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{available_cores()} cores"
    )
    return f"{device} ({name}), {str(dtype or torch.float32).removeprefix('torch.')}"


# -- checks of a GPU ---------------------------------------------------------


@dataclass(frozen=True)
class SelfCheck:
    """The features that work; a CPU has the defaults and uses none of them."""

    overlap: bool = True  # kernels of two streams run at the same time
    graphs: bool = True  # recorded functions have the same results as calls
    copies: Copies = Copies.IN_PLACE  # the fastest way that is correct


def check_gpu(device: torch.device, *, graphs: bool) -> SelfCheck:
    """Checks streams, graphs and copies; sets how `HostToDevice` copies."""
    with own_stream(device):
        overlap = _overlaps(device)
        recorded = not graphs or _graphs_work(device)
        copies = _working_copies(device)
    set_copies(device, copies)
    return SelfCheck(overlap, recorded, copies)


def _overlaps(device: torch.device) -> bool:
    """Whether two kernels are clearly faster on two streams than on one."""
    loss = "with --lag, collecting and learning only take turns on the GPU"
    try:
        with own_stream(device):
            first = _cuda.current_stream(device)
            with own_stream(device):
                second = _cuda.current_stream(device)
        _elapsed_ms(device, [first, second])  # loads the kernel
        pairs = ([first, first], [first, second])
        one_ms, two_ms = (
            min(_elapsed_ms(device, pair) for _ in range(_TIMES)) for pair in pairs
        )
    except Exception as error:
        _logger.warning(
            "could not check whether streams overlap (%s); if not, %s",
            first_line(error),
            loss,
        )
        return False
    if two_ms < _MOST_OVERLAPPED * one_ms:
        return True
    _logger.warning(
        "streams do not overlap on this GPU: two kernels take %.1f ms on two streams, "
        "%.1f ms on one; %s, which costs up to the time of the shorter of the two "
        "(CUDA_LAUNCH_BLOCKING does this)",
        two_ms,
        one_ms,
        loss,
    )
    return False


def _elapsed_ms(device: torch.device, streams: list[Any]) -> float:
    """Milliseconds that one kernel on each of the streams takes in total."""
    current = _cuda.current_stream(device)
    begin, end = (_cuda.Event(enable_timing=True) for _ in range(2))
    begin.record(current)
    for stream in streams:
        stream.wait_event(begin)
        with _cuda.stream(stream):
            _cuda._sleep(_CYCLES)
    for stream in streams:
        current.wait_stream(stream)
    end.record(current)
    end.synchronize()
    return float(begin.elapsed_time(end))


def _graphs_work(device: torch.device) -> bool:
    """Whether gradient steps of a tiny network have the same results from a graph."""
    try:
        called, replayed = (_steps(device, recorded=on) for on in (False, True))
        if torch.allclose(called, replayed, rtol=_RTOL, atol=_ATOL):
            return True
        reason = "a recorded gradient step differs from the step itself"
    except Exception as error:
        reason = first_line(error)
    _logger.warning("this run is slower, without CUDA graphs: %s", reason)
    return False


def _steps(device: torch.device, *, recorded: bool) -> Tensor:
    """Losses of gradient steps of two layers, and the weights after them."""
    generator = torch.Generator().manual_seed(1)
    params = [
        (0.1 * torch.randn(shape, generator=generator)).to(device).requires_grad_()
        for shape in ((8, 4, 3, 3), (5, 8 * 10 * 10))
    ]
    inputs = torch.randn(_CALLS, 16, 4, 12, 12, generator=generator.manual_seed(1))
    optimizer = torch.optim.Adam(
        params, torch.tensor(_LR).to(device), eps=_EPS, capturable=True, fused=True
    )

    def step(x: Tensor) -> Tensor:
        hidden = F.conv2d(x, params[0]).relu().flatten(1)
        # Random labels, so that each input has a different loss.
        loss = F.cross_entropy(F.linear(hidden, params[1]), x[:, 0, 0, :5].argmax(-1))
        gradients = torch.autograd.grad(loss, params)
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        return loss.detach().reshape(1)

    graphed = Graphed(
        step, name="the self-check", device=device, enabled=recorded, quiet=True
    )
    try:
        losses = [graphed(x.to(device)).clone() for x in inputs]
        if recorded and not graphed.recorded:
            raise RuntimeError(graphed.failure or "nothing was recorded")
        return torch.cat([*losses, *(p.detach().flatten() for p in params)])
    finally:
        graphed.close()


def _working_copies(device: torch.device) -> Copies:
    """The fastest way that copies arrays correctly."""
    for copies, fallback in (
        (Copies.IN_PLACE, "trying page-locked copies"),
        (Copies.PAGE_LOCKED, "using pageable memory, which is slower"),
    ):
        try:
            set_copies(device, copies)
            arrived, works = _try_copies(device)
        except Exception as error:
            reason = first_line(error)
        else:
            if arrived:
                # If slabs cannot be locked, `HostToDevice` has logged it.
                return copies if works else Copies.PAGE_LOCKED
            reason = "the data arrives changed"
        _logger.warning(
            "copies to the GPU %s do not work here (%s): %s",
            copies.value,
            reason,
            fallback,
        )
    return Copies.PAGEABLE


def _try_copies(device: torch.device) -> tuple[bool, bool]:
    """Copies arrays inside and outside of a slab, all at the same time."""
    rng = np.random.default_rng(0)
    # Page-aligned and in whole pages, like the slabs of a pool.
    memory = mmap.mmap(-1, _COPIES * _COPY_BYTES)
    slab = np.frombuffer(memory, np.uint8)
    slab[:] = rng.integers(0, 256, slab.size, np.uint8)
    pool = SimpleNamespace(_buffers=[(slab.ctypes.data, slab.nbytes)], slab_growth=0)
    arrays = [*slab.reshape(_COPIES, -1), slab[: _COPY_BYTES // 2].copy()]
    to_device = HostToDevice(device, pool)
    try:
        tensors = [to_device(array) for array in arrays]
        arrived = all(
            np.array_equal(tensor.cpu().numpy(), array)
            for tensor, array in zip(tensors, arrays, strict=True)
        )
        return arrived, to_device.locks_slabs
    finally:
        to_device.close()
