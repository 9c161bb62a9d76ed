"""Recordings of gym-super-mario-bros, and how a step is compared with them."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np

RECORDINGS = (
    "SuperMarioBros-1-1-v0.simple.s11",
    "SuperMarioBros-1-1-v1.simple.s18",
    "SuperMarioBros-1-1-v2.simple.s19",
    "SuperMarioBros-1-1-v3.simple.s20",
    "SuperMarioBros-2-2-v0.simple.s14",
    "SuperMarioBros-4-2-v0.simple.s12",
    "SuperMarioBros-8-1-v0.simple.s13",
    "SuperMarioBros-v0.complex.s16",
    "SuperMarioBros-v0.simple.s15",
    "SuperMarioBros2-v0.simple.s17",
)


def load(path: Path) -> dict[str, Any]:
    """The arrays of a recording by name."""
    with np.load(path) as data:
        return {key: data[key] for key in data}


def ram_crc(ram: np.ndarray) -> int:
    """CRC32 of work RAM without the stack page."""
    copy = ram.copy()
    copy[0x100:0x200] = 0
    return zlib.crc32(copy.tobytes())
