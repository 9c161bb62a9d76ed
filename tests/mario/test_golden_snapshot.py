"""Snapshots of earlier programs restore, as long as their version is this one's.

``golden/snapshot-v<version>.npz`` holds two snapshots of the stand-in ROM: one, and
what became of it after some steps. The first program of that version made it:

    PYTHONPATH=. python tests/mario/test_golden_snapshot.py

Do that again only with a new ``kSnapshotVersion`` (csrc/mario/snapshot.cc), and delete
the file of the old one. A test that fails with the old file says that snapshots which
users have kept are no longer taken, or go on differently.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import rom_builder

from mario_envpool import _core

# All parts of a snapshot, small; and options that are fractions, texts and lists.
OPTIONS: dict[str, Any] = {
    "img_height": 16,
    "img_width": 16,
    "stack_num": 2,
    "frame_max": True,
    "obs_type": "gray+ram+tiles+motion",
    "random_stages": True,
    "stages": ["1-1", "4-4"],
    "reward": "progress",
    "reward_score": 0.1,
    "repeat_action_probability": 0.25,
}
STEPS = 40
# Where csrc/mario/snapshot.cc puts them.
VERSION, CONFIG_HASH = slice(8, 12), slice(24, 32)


def make_env(seed: int = 0) -> Any:
    """An environment of the stand-in ROM."""
    return _core._MarioEnv(rom_builder.stand_in(), OPTIONS, 0, seed)


def play(env: Any) -> None:
    """Steps that are the same every time."""
    for step in range(STEPS):
        _, terminated, truncated, _ = env.step(step * step % env.num_actions)
        if terminated or truncated:
            env.reset()


def golden() -> Path:
    """The file of this program's version."""
    version = int.from_bytes(make_env().snapshot()[VERSION], "little")
    return Path(__file__).parent / "golden" / f"snapshot-v{version}.npz"


def test_the_golden_snapshot_restores_and_goes_on() -> None:
    path = golden()
    assert path.exists(), f"{path.name} is missing: see the head of this file"
    with np.load(path) as file:
        before, after = file["before"].tobytes(), file["after"].tobytes()
    env = make_env()
    env.restore(before)
    assert env.snapshot() == before
    play(env)
    assert env.snapshot() == after


HASH = f"""
import locale, sys
sys.path[:0] = [{str(Path(__file__).parent)!r}]
locale.setlocale(locale.LC_ALL, "")
import test_golden_snapshot as test
blob = test.make_env().snapshot()
print(locale.localeconv()["decimal_point"], blob[test.CONFIG_HASH].hex())
"""


@pytest.mark.slow
def test_the_hash_of_options_does_not_depend_on_the_locale(tmp_path: Path) -> None:
    localedef = shutil.which("localedef")
    if localedef is None:
        pytest.skip("localedef is not installed, so there is no locale with a comma")
    made = subprocess.run(
        [localedef, "-i", "de_DE", "-f", "UTF-8", str(tmp_path / "de_DE.UTF-8")],
        capture_output=True,
        timeout=60,
    )
    if not (tmp_path / "de_DE.UTF-8").exists():
        pytest.skip(f"localedef cannot make de_DE.UTF-8: {made.stderr.decode()}")

    def decimal_point_and_hash(name: str) -> list[str]:
        environ = {**os.environ, "LOCPATH": str(tmp_path), "LC_ALL": name}
        out = subprocess.run(
            [sys.executable, "-c", HASH],
            env=environ,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return out.stdout.split()

    point, english = decimal_point_and_hash("C")
    comma, german = decimal_point_and_hash("de_DE.UTF-8")
    assert (point, comma) == (".", ",")
    assert english == german


def main() -> None:
    """Makes the file."""
    env = make_env(seed=7)
    env.reset()
    play(env)
    before = env.snapshot()
    play(env)
    path = golden()
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(
        path,
        before=np.frombuffer(before, np.uint8),
        after=np.frombuffer(env.snapshot(), np.uint8),
    )
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
