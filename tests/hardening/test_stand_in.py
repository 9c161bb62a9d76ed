"""The cartridge that stands in for the game in the fuzz targets."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import rom_builder

from mario_envpool import END_REASONS, _core

SUPPORT = Path(rom_builder.__file__).parent
FUZZ = SUPPORT.parent / "fuzz"


def test_the_cpp_copy_is_the_assembled_source() -> None:
    code, labels = rom_builder.assemble((SUPPORT / "stand_in.asm").read_text(), 0x8000)
    included = (FUZZ / "stand_in_rom.inc").read_text()
    assert bytes(int(byte, 16) for byte in re.findall(r"0x(\w\w)", included)) == code
    header = (FUZZ / "fuzz.h").read_text()
    assert f"kNmi = {labels['nmi'] - 0x8000};" in header


def test_it_leads_the_task_through_its_situations() -> None:
    """Otherwise the fuzz targets would see starts and nothing else."""
    seen = set()
    for options in (
        {"stages": ["1-1"], "noop_max": 30},
        {"episodic_life": True, "action_set": "complex", "end_on_wrong_pass": True},
        {"stages": ["4-4"], "stall_steps": 20},
        {},
    ):
        env = _core._MarioEnv(rom_builder.stand_in(), options, 0, 1)
        env.reset()
        random = np.random.default_rng(0)
        for _ in range(3000):
            action = int(random.integers(env.num_actions))
            _, terminated, truncated, fields = env.step(action)
            seen.add(END_REASONS[int(fields["info:end_reason"])])
            if terminated or truncated:
                env.reset()
    assert {"death", "flag", "life", "game_over", "wrong_pass", "stall"} <= seen
