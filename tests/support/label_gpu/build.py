"""Compiles labels.cc against the installed PyTorch, and loads it before PyTorch.

PyTorch looks for a GPU once, when it is imported: so `load` does not import it.
"""

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("labels.cc")
_COMPILER = shutil.which("g++") or shutil.which("clang++")


def missing():
    """Why there can be no label GPU here; empty if there can."""
    import torch

    if torch.version.cuda or torch.version.hip:
        return "this PyTorch is built for GPUs; labels need one for CPUs only"
    built = sys.platform.startswith("linux") and _COMPILER
    return "" if built else "labels need Linux and a C++ compiler (g++ or clang++)"


def load():
    """The compiled library; its operators are in `torch.ops.label_gpu`."""
    torch = Path(importlib.util.find_spec("torch").origin).parent
    path = _compiled(torch)
    ctypes.CDLL(str(torch / "lib/libtorch_cpu.so"), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


def _compiled(torch):
    """The library, which is compiled once for each source and PyTorch."""
    version = (torch / "version.py").read_bytes()
    key = hashlib.sha256(_SOURCE.read_bytes() + version + bytes(torch)).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"label_gpu-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{key[:16]}.so"
    if path.exists():
        return path
    new = path.with_suffix(f".{os.getpid()}")
    command = [
        _COMPILER, "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{torch}/include",
        f"-I{torch}/include/torch/csrc/api/include", _SOURCE, f"-L{torch}/lib",
        "-lc10", "-ltorch_cpu", "-o", new,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{_SOURCE.name} does not compile:\n{done.stderr[-3000:]}")
    new.rename(path)  # another process may have done the same
    return path
