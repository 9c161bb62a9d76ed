"""END_REASONS and STATUS name the numbers that the game really gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mario_envpool
from mario_envpool import END_REASONS, STATUS

STAGE = "SuperMarioBros-1-1-v0"
GAME = "SuperMarioBros-v0"
HEADER = Path(__file__).resolve().parents[2] / "csrc" / "mario" / "env.h"
WAIT, RIGHT = 0, 1


def test_the_reasons_are_those_of_the_header() -> None:
    body = re.search(r"enum class EndReason[^{]*{(.*?)}", HEADER.read_text(), re.S)
    assert body is not None
    names = re.findall(r"k(\w+) = (\d+),", body[1])
    assert names == [
        ("".join(word.title() for word in reason.split("_")), str(code))
        for code, reason in enumerate(END_REASONS)
    ]


@pytest.mark.rom
def test_every_possible_number_has_a_name() -> None:
    spec = mario_envpool.make_spec(STAGE).state_array_spec
    for key, names in (("end_reason", END_REASONS), ("status", STATUS)):
        field = spec[f"info:{key}"]
        assert (field.minimum, field.maximum) == (0, len(names) - 1)


def play_on(task_id: str, action: int, **config: Any) -> tuple[str, bool, str]:
    """Plays one action to the end; returns the reason, truncation and status."""
    pool = mario_envpool.make(task_id, **config)
    _, info = pool.reset()
    assert END_REASONS[info["end_reason"][0]] == "none"
    for _ in range(1000):
        _, _, terminated, truncated, info = pool.step(np.array([action]))
        if terminated[0] or truncated[0]:
            reason = END_REASONS[info["end_reason"][0]]
            return reason, bool(truncated[0]), STATUS[info["status"][0]]
        assert END_REASONS[info["end_reason"][0]] == "none"
    raise AssertionError("the episode does not end")


@pytest.mark.rom
@pytest.mark.parametrize(
    ("task_id", "action", "config", "reason", "truncated"),
    [
        (STAGE, WAIT, {"max_episode_steps": 5}, "none", True),
        (STAGE, WAIT, {"stall_steps": 5}, "stall", True),
        (STAGE, RIGHT, {}, "death", False),
        (GAME, RIGHT, {"episodic_life": True}, "life", False),
        (GAME, RIGHT, {}, "game_over", False),
    ],
)
def test_ends_have_their_names(
    task_id: str, action: int, config: dict[str, Any], reason: str, truncated: bool
) -> None:
    assert play_on(task_id, action, **config) == (reason, truncated, "small")
