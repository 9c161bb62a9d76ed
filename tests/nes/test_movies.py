"""Recorded play, compared frame by frame with two unrelated emulators."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from traces import ram_crc

from mario_envpool import _core

LEAD = {"sprilo": 2, "smb-warps": 1}  # frames between power-on here and row 0
FIRST_ROW = 41


def play(image: bytes, name: str, folder: Path) -> tuple[int, int, _core.Console]:
    """(rows compared, rows equal, console after the last one)."""
    movie = gzip.decompress((folder / f"{name}.bin.gz").read_bytes())
    with np.load(folder / f"{name}.ref.npz") as reference:
        want, agree = reference["crc"], reference["agree"]
    console = _core.Console(image)
    lead = LEAD[name]
    compared = equal = 0
    for frame in range(len(want) + lead):
        row = frame - lead
        console.step(movie[row] if 0 <= row < len(movie) else 0, draw=False)
        if row >= FIRST_ROW and agree[row]:
            compared += 1
            equal += ram_crc(console.ram) == int(want[row])
    return compared, equal, console


@pytest.mark.verification
def test_sprilo_movie(verification: Path) -> None:
    folder = verification / "tas"
    image = (folder / "sprilo.nes").read_bytes()
    compared, equal, _ = play(image, "sprilo", folder)
    assert compared == 4_651
    assert equal == compared


@pytest.mark.rom
@pytest.mark.verification
def test_warps_movie_to_the_end_of_8_4(
    verification: Path, load_rom: Callable[[str], bytes]
) -> None:
    compared, equal, console = play(
        load_rom("world"), "smb-warps", verification / "tas"
    )
    assert compared == 18_326
    assert equal == compared
    world, level, mode = (int(console.ram[a]) for a in (0x75F, 0x75C, 0x770))
    assert (world, level, mode) == (7, 3, 2)
