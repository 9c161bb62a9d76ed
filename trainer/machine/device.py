"""The device of a run, and the data type of its network."""

from __future__ import annotations

import torch

from trainer.machine.cpu import available_cores, cpu_has_bf16
from trainer.machine.process import first_line
from trainer.machine.ranks import Ranks


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
