"""Action tables: upstream's three sets, all bytes, and custom lists."""

from __future__ import annotations

from typing import Any

import numpy as np
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


# -- turbo_swim ----------------------------------------------------------------

SWIM = {"custom_actions": ["right+A", "right"], "obs_type": "ram", "stack_num": 1}
RIGHT, RIGHT_A = 128, 129


def frames_under_turbo(held: list[int], period: int) -> list[int]:
    """The bytes of frames in water: A is not pressed for more than a period."""
    made, count = [], 0
    for byte in held:
        count = count + 1 if byte & 1 else 0
        released = count > period
        count = 1 if released else count
        made.append(byte & ~1 if released else byte)
    return made


@pytest.mark.parametrize(("skip", "period"), [(6, 6), (4, 6), (1, 2), (6, 255)])
def test_turbo_swim_releases_a_for_a_frame(
    make_env: Any, skip: int, period: int
) -> None:
    options = SWIM | {"frame_skip": skip, "turbo_swim": period}
    env, filmed = (make_env("SuperMarioBros-2-2-v0", **options) for _ in range(2))
    by_frame = make_env("SuperMarioBros-2-2-v0", **options | {"frame_skip": 1})
    console = make_env("SuperMarioBros-2-2-v0", action_set="raw", frame_skip=1)
    for each in (env, filmed, by_frame, console):
        each.reset()
    assert env.ram[0x0704]  # Mario swims
    steps = [0] * 5 + [1] + [0] * 9
    held = [(RIGHT_A, RIGHT)[step] for step in steps for _ in range(skip)]
    sent = iter(frames_under_turbo(held, period))
    for step in steps:
        env.step(step)
        filmed.film(step)
        for _ in range(skip):
            by_frame.step(step)
            console.step(next(sent))
        for other in (filmed, by_frame, console):
            np.testing.assert_array_equal(env.ram, other.ram)
        # The period goes on where a snapshot was taken.
        env.restore(env.snapshot())


def test_turbo_swim_swims_and_is_in_the_movie(make_env: Any) -> None:
    heights = []
    for period in (0, 6):
        options = SWIM | {"frame_skip": 6, "turbo_swim": period}
        env = make_env("SuperMarioBros-2-2-v0", **options)
        env.reset_and_record()
        before = len(env.movie)
        for _ in range(10):
            *_, info = env.step(0)
        heights.append(int(info["info:y_pos"]))
        frames = [byte for byte in env.movie[before:] if byte & RIGHT]
        assert frames == (
            frames_under_turbo([RIGHT_A] * 60, period) if period else [RIGHT_A] * 60
        )
    assert heights[1] > heights[0] + 20


def test_turbo_swim_changes_nothing_on_land(make_env: Any) -> None:
    env, plain = (
        make_env(frame_skip=6, turbo_swim=period, **SWIM) for period in (6, 0)
    )
    for each in (env, plain):
        each.reset()
        for step in [0] * 20 + [1] * 3 + [0] * 20:
            each.step(step)
    np.testing.assert_array_equal(env.ram, plain.ram)


@pytest.mark.parametrize("period", [-1, 1, 256])
def test_turbo_swim_that_is_no_period_is_refused(make_env: Any, period: int) -> None:
    with pytest.raises(ValueError, match=f"turbo_swim={period} is not possible"):
        make_env(turbo_swim=period)
