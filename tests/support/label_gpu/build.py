"""Compiles labels.cc against the installed PyTorch, and loads it before PyTorch.

PyTorch looks for a GPU once, when it is imported: so this module does not import it.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

#: Takes the number of a block.
Died = ctypes.CFUNCTYPE(None, ctypes.c_int64)

_SOURCE = Path(__file__).with_name("labels.cc")


def missing() -> str:
    """Why there can be no label GPU here; empty if there can."""
    version = _version()
    if version.get("cuda") or version.get("hip"):
        return "this PyTorch is built for GPUs; labels need one for CPUs only"
    if not sys.platform.startswith("linux"):
        return "labels are built on Linux only"
    return "" if _compiler() else "no C++ compiler (g++ or clang++)"


def load() -> ctypes.CDLL:
    """The compiled library; its operators are in `torch.ops.label_gpu`."""
    if "torch" in sys.modules:
        raise RuntimeError("load the label GPU before torch is imported")
    path = _compiled()
    ctypes.CDLL(str(_torch() / "lib/libtorch_cpu.so"), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


def _torch() -> Path:
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _version() -> dict[str, Any]:
    return runpy.run_path(str(_torch() / "version.py"))


def _compiler() -> str | None:
    return shutil.which("g++") or shutil.which("clang++")


def _compiled() -> Path:
    """The library, which is compiled once for each source and PyTorch."""
    key = _SOURCE.read_bytes() + f"{_version()['__version__']} {_torch()}".encode()
    folder = Path(tempfile.gettempdir()) / f"label_gpu-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{hashlib.sha256(key).hexdigest()[:16]}.so"
    if path.exists():
        return path
    new, include = path.with_suffix(f".{os.getpid()}"), _torch() / "include"
    command = [
        _compiler() or "g++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{include}",
        f"-I{include}/torch/csrc/api/include", str(_SOURCE), f"-L{_torch()}/lib",
        "-lc10", "-ltorch_cpu", "-o", str(new),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{_SOURCE.name} does not compile:\n{done.stderr[-3000:]}")
    new.rename(path)  # another process may have done the same
    return path
