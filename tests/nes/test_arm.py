"""The console of an ARM machine, under qemu: equal states to this machine's.

MARIO_ARM_PLAY is the command of tests/cpp/play_console.cc, built for ARM; `.ci/run`
builds it. MARIO_ARM_FRAMES: checked frames of the game, 1,000,000 at night.
"""

from __future__ import annotations

import gzip
import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from players import random_movie
from rom_builder import stand_in

from mario_envpool import _core
from trainer.planning import movies

PLAY = shlex.split(os.environ.get("MARIO_ARM_PLAY", ""))
TIMINGS = pytest.mark.parametrize("timing", ["console", "nes_py"])
FRAMES = int(os.environ.get("MARIO_ARM_FRAMES", "30000"))
pytestmark = [
    pytest.mark.skipif(not PLAY, reason="MARIO_ARM_PLAY is not set; see .ci/run"),
    pytest.mark.timeout(1800),
]


def compare(
    image: bytes, movie: bytes, engine: str, folder: Path, *, timing: str, every: int
) -> _core.Console:
    """Plays on both machines and compares states; returns this machine's console."""
    path = folder / "rom.nes"
    path.write_bytes(image)
    done = subprocess.run(
        [*PLAY, str(path), timing, engine, str(every)],
        input=movie,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    console = _core.Console(image, timing)
    want = []
    for frame, buttons in enumerate(movie, 1):
        console.step(buttons, draw=False)
        if frame % every == 0:
            want.append(console.state_bytes())
    want.append(console.state_bytes())
    assert len(done.stdout) == sum(map(len, want))
    for index, state in enumerate(want):
        got = done.stdout[index * len(state) : (index + 1) * len(state)]
        assert got == state, f"frame {(index + 1) * every}"
    return console


@TIMINGS
@pytest.mark.parametrize("engine", ["interpreter", "translated", "checked"])
def test_program_of_the_tests(engine: str, timing: str, tmp_path: Path) -> None:
    movie = random_movie(400, 1)
    compare(stand_in(), movie, engine, tmp_path, timing=timing, every=1)


@pytest.mark.verification
@pytest.mark.parametrize("engine", ["translated", "checked"])
def test_public_test_roms(engine: str, verification: Path, tmp_path: Path) -> None:
    folder = verification / "roms"
    manifest = json.loads((folder / "manifest.json").read_text())
    frames, every = (1_500, 30) if engine == "translated" else (10, 1)
    for entry in manifest:
        if entry["mapper"] != 0:
            continue
        image = (folder / entry["file"]).read_bytes()
        compare(image, bytes(frames), engine, tmp_path, timing="console", every=every)


@pytest.mark.rom
@pytest.mark.verification
@pytest.mark.parametrize("movie", ["smb-warps", "m3728-warpless"])
def test_movies_of_the_whole_game(
    movie: str, verification: Path, load_rom: Callable[[str], bytes], tmp_path: Path
) -> None:
    # Consoles differ in the frame in which the program first reads the buttons.
    if movie == "smb-warps":
        packed = (verification / "tas" / "smb-warps.bin.gz").read_bytes()
        buttons = bytes(1) + gzip.decompress(packed)
    else:
        buttons = movies.read(verification / "movies" / f"{movie}.fm2").buttons[1:]
    console = compare(
        load_rom("world"),
        buttons + bytes(400),
        "translated",
        tmp_path,
        timing="console",
        every=97,
    )
    world, level, mode = (int(console.ram[a]) for a in (0x75F, 0x75C, 0x770))
    assert (world, level, mode) == (7, 3, 2)  # the end of 8-4


@pytest.mark.rom
@TIMINGS
@pytest.mark.parametrize("part", range(FRAMES // 100_000 + 1))
def test_every_run_of_translated_code_in_the_game(
    part: int, timing: str, load_rom: Callable[[str], bytes], tmp_path: Path
) -> None:
    movie = random_movie(min(FRAMES, 100_000) // 2, 11 + part)
    compare(load_rom("vanilla"), movie, "checked", tmp_path, timing=timing, every=1_000)
