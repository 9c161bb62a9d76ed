"""Action tables: upstream's three sets, all bytes, and custom lists."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.rom

BIT = {
    "A": 1, "B": 2, "select": 4, "start": 8, "up": 16, "down": 32, "left": 64,
    "right": 128, "NOOP": 0,
}  # fmt: skip
# gym_super_mario_bros/actions.py of 7.4.0.
RIGHT_ONLY = [["NOOP"], ["right"], ["right", "A"], ["right", "B"], ["right", "A", "B"]]
SIMPLE_MOVEMENT = [*RIGHT_ONLY, ["A"], ["left"]]
COMPLEX_MOVEMENT = [
    *SIMPLE_MOVEMENT,
    ["left", "A"],
    ["left", "B"],
    ["left", "A", "B"],
    ["down"],
    ["up"],
]


def table(names: list[list[str]]) -> list[int]:
    return [sum(BIT[name] for name in action) for action in names]


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("right_only", RIGHT_ONLY),
        ("simple", SIMPLE_MOVEMENT),
        ("complex", COMPLEX_MOVEMENT),
    ],
)
def test_named_sets(name: str, actions: list[list[str]], make_env: Any) -> None:
    env = make_env(action_set=name)
    assert env.buttons == table(actions)
    assert env.num_actions == len(actions)
    as_text = ["+".join(action) for action in actions]
    assert make_env(custom_actions=as_text).buttons == table(actions)


def test_default_is_simple_movement(make_env: Any) -> None:
    assert make_env().buttons == table(SIMPLE_MOVEMENT)


def test_raw_is_every_byte(make_env: Any) -> None:
    assert make_env(action_set="raw").buttons == list(range(256))


def test_custom_lists(make_env: Any) -> None:
    env = make_env(custom_actions=["down right", "UP,a", "noop", "Left+Right+B"])
    assert env.buttons == [160, 17, 0, 194]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"custom_actions": ["right+X"]}, "unknown button 'x' in action 'right.X'"),
        ({"custom_actions": [""]}, "action of custom_actions is empty"),
        ({"action_set": "SIMPLE"}, "'SIMPLE' is unknown; choose right_only, simple"),
    ],
)
def test_wrong_actions(options: Any, message: str, make_env: Any) -> None:
    with pytest.raises(ValueError, match=message):
        make_env(**options)


def test_buttons_reach_the_game(make_env: Any) -> None:
    moved = {}
    for action in ("NOOP", "right", "right+B"):
        env = make_env(custom_actions=[action])
        start = int(env.reset()["info:x_pos"])
        for _ in range(20):
            info = env.step(0)[3]
        moved[action] = int(info["info:x_pos"]) - start
    assert moved["NOOP"] == 0
    assert 0 < moved["right"] < moved["right+B"]
