"""The picture, observation and info after a jump to another state are that state's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mario_envpool import _core

pytestmark = pytest.mark.rom

RIGHT_A = 128 + 1
# Every frame is a step, and every byte of the pad an action.
FRAMES = {"frame_skip": 1, "action_set": "raw"}


def played(env: Any, steps: int = 60) -> Any:
    """The environment, somewhere in its level."""
    env.reset()
    for _ in range(steps):
        env.step(RIGHT_A)
    return env


def next_screen(load_rom: Any, save: bytes, timing: str) -> Any:
    """The frame that begins in a console's save, with the same buttons."""
    console = _core.Console(load_rom("vanilla"), timing)
    console.load(save)
    console.step(RIGHT_A)
    return console.screen()


@pytest.mark.parametrize("timing", ["console", "nes_py"])
@pytest.mark.parametrize("frame_max", [False, True])
def test_load_console_shows_what_it_loaded(
    make_env: Any, load_rom: Any, timing: str, frame_max: bool
) -> None:
    options = {**FRAMES, "timing": timing, "frame_max": frame_max, "stack_num": 3}
    env = played(make_env("SuperMarioBros-1-1-v0", **options))
    other = played(make_env("SuperMarioBros-4-2-v0", **options))
    before = env.render()
    save = other.save_console()
    fields = env.load_console(save)
    expected = next_screen(load_rom, save, timing)
    assert not np.array_equal(before, expected)
    np.testing.assert_array_equal(env.render(), expected)
    # Every frame of the stack is of this picture, which is the next one of a game.
    obs = fields["obs"]
    assert (obs == obs[:1]).all()
    if not frame_max:
        np.testing.assert_array_equal(obs[0], other.step(RIGHT_A)[3]["obs"][-1])
    assert (fields["info:world"], fields["info:stage"]) == (4, 2)
    assert env.read()["info:x_pos"] == fields["info:x_pos"] > 100
    assert env.read()["info:end_reason"] == 0
    # Nothing has run, and the state can be saved and restored as any other.
    assert env.save_console() == save
    blob = env.snapshot()
    np.testing.assert_array_equal(env.render(), expected)
    again = make_env("SuperMarioBros-1-1-v0", **options)
    np.testing.assert_array_equal(again.restore(blob)["obs"], obs)
    np.testing.assert_array_equal(again.render(), expected)
    env.step(RIGHT_A)
    np.testing.assert_array_equal(env.render(), expected)


def test_a_refused_save_leaves_the_picture(make_env: Any) -> None:
    env = played(make_env(**FRAMES))
    before = env.render()
    with pytest.raises(ValueError, match="not a console state"):
        env.load_console(b"x" * 100)
    np.testing.assert_array_equal(env.render(), before)


def test_other_jumps_show_where_they_lead(make_env: Any, load_rom: Any) -> None:
    env, twin = make_env(**FRAMES), played(make_env(**FRAMES))
    played(env, 20)
    env.restore(twin.snapshot())
    np.testing.assert_array_equal(env.render(), twin.render())
    save = env.save_console()
    env.advance(RIGHT_A)
    np.testing.assert_array_equal(
        env.render(), next_screen(load_rom, save, timing="console")
    )
    for _ in range(3):
        env.step(RIGHT_A)
    for _ in range(4):
        twin.step(RIGHT_A)
    np.testing.assert_array_equal(env.render(), twin.render())
    # A write to work RAM changes what the next frame draws, not the last picture.
    env.ram[0x75A] = 7
    np.testing.assert_array_equal(env.render(), twin.render())
    env.reset()
    twin.reset()
    np.testing.assert_array_equal(env.render(), twin.render())


def test_the_screen_of_a_console_is_of_the_loaded_state(
    make_env: Any, load_rom: Any
) -> None:
    save = played(make_env("SuperMarioBros-4-2-v0", **FRAMES)).save_console()
    console = _core.Console(load_rom("vanilla"))
    for _ in range(60):
        console.step(0)
    title = console.screen()
    console.load(save)
    expected = next_screen(load_rom, save, timing="console")
    assert not np.array_equal(title, expected)
    np.testing.assert_array_equal(console.screen(), expected)
    assert console.save() == save  # the console itself has not run
    console.step(RIGHT_A, draw=False)
    console.step(RIGHT_A)
    assert not np.array_equal(console.screen(), expected)
    console.power_on()
    assert len(np.unique(console.palette_indices())) == 1  # nothing is drawn yet
