"""Super Mario Bros. 2 (The Lost Levels): its clock, its 52 stages, its end.

The NROM conversion has the levels of worlds 1 to 4. Of the others it loads whatever
its tables point at, mostly the water of 3-2; upstream has ids for all 13 worlds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.rom

INFO = "coins flag_get life score stage status time world x_pos y_pos".split()
STAGES = [f"{world}-{stage}" for world in "123456789ABCD" for stage in "1234"]
OPTIONS: dict[str, Any] = {"action_set": "complex", "img_height": 24, "img_width": 24}
RIGHT, RIGHT_A, RIGHT_B, RIGHT_A_B, A = 1, 2, 3, 4, 5


def name_of(info: dict[str, Any]) -> str:
    return f"{int(info['info:world']):X}-{info['info:stage']}"


@pytest.mark.verification
def test_the_first_life_is_the_trace(verification: Path, make_late: Any) -> None:
    """As nes-py plays it, one step earlier, with the clock at 400 to begin with."""
    trace = np.load(verification / "traces-gsm" / "SuperMarioBros2-v0.simple.s17.npz")
    env = make_late("SuperMarioBros2-v0", trace["reset_ram"])
    assert env.reset()["info:time"] == trace["time"][0] == 400
    alive = True
    t = 0
    while alive:
        info = env.step(int(trace["action_byte"][t]))[3]
        for key in INFO:
            assert info[f"info:{key}"] == trace[key][t + 1], (t, key)
        alive = info["info:reward_death"] == 0
        t += 1
    assert t > 800


def test_the_first_clock_depends_on_work_ram(make_env: Any) -> None:
    clocks = {
        byte: int(
            make_env("SuperMarioBros2-v0", power_on_ram=byte).reset()["info:time"]
        )
        for byte in (0, 255)
    }
    assert clocks == {0: 400, 255: 290}


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_can_be_played(stage: str, make_env: Any) -> None:
    """It begins under control; random play neither hangs nor fails, and it ends."""
    env = make_env(f"SuperMarioBros2-{stage}-v0", reward="v9", **OPTIONS)
    rng = np.random.default_rng(0)
    info = env.reset()
    assert name_of(info) == stage
    assert info["info:life"] == 2
    assert info["info:time"] in (300, 400)
    assert env.ram[0x0E] == 8  # under control
    ends = 0
    for t in range(1200):
        if t % 6 == 0:
            action = int(rng.choice([RIGHT, RIGHT_A, RIGHT_B, RIGHT_A_B, A, 0, 8]))
        _, terminated, truncated, info = env.step(action)
        assert not truncated
        if terminated:
            ends += 1
            assert info["info:end_reason"] in (1, 2)
            assert name_of(env.reset()) == stage
    assert ends > 0


def test_random_stages_are_drawn_of_all(make_env: Any) -> None:
    env = make_env("SuperMarioBros2-v0", random_stages=True, seed=3, **OPTIONS)
    numpy = np.random.RandomState(3)
    seen = set()
    for _ in range(60):
        world, stage = numpy.randint(1, 14), numpy.randint(1, 5)
        seen.add(name_of(env.reset()))
        assert (env.ram[0x75F] + 1, env.ram[0x75C] + 1) == (world, stage)
    assert any(name[0] in "ABCD" for name in seen)


def test_the_whole_game_ends_at_the_castle_of_world_4(make_env: Any) -> None:
    env = make_env("SuperMarioBros2-v0", **OPTIONS)
    env.reset()
    for world, over in ((2, False), (3, True)):  # counted from 0
        env.ram[0x75F] = world
        env.ram[0x770], env.ram[0x772] = 2, 0  # Bowser fell
        _, terminated, _, info = env.step(0)
        assert terminated == over
        assert info["info:world"] == 4
        assert info["info:end_reason"] == (2 if over else 0)
