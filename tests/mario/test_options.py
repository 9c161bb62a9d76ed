"""Every option of the task changes what an environment does, or is refused."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from mario_envpool import _core

pytestmark = pytest.mark.rom

# Options of any pool, not of this task.
POOL_OPTIONS = {
    "num_envs",
    "batch_size",
    "num_threads",
    "max_num_players",
    "thread_affinity_offset",
    "base_path",
    "seed",
    "env_seed",
    "gym_reset_return_info",
    "max_episode_steps",
    "reward_threshold",
}
# Not part of an environment: they choose the ROM (tests/test_rom.py).
ROM_OPTIONS = {"rom", "rom_path"}
# Changes how fast things are, and nothing else (tests/nes/test_engine.py).
SPEED_OPTIONS = {"engine"}

PROGRESS = {"reward": "progress"}
WHOLE_GAME: dict[str, Any] = {"stages": []}
# option: (the options to begin with, the value that makes the difference)
CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "stages": ({}, ["1-2"]),
    "random_stages": ({"stages": ["4-4", "1-1", "1-2"]}, True),
    "lost_levels": ({"stages": ["3-2"]}, True),
    "power_on_ram": ({**WHOLE_GAME, "rom": "lost-levels", "lost_levels": True}, 255),
    "timing": ({}, "nes_py"),
    "action_set": ({}, "complex"),
    "custom_actions": ({}, ["left", "right"]),
    "frame_skip": ({}, 3),
    "stack_num": ({}, 2),
    "img_height": ({}, 60),
    "img_width": ({}, 60),
    "obs_type": ({}, "tiles"),
    "gray_scale": ({}, False),
    "use_inter_area_resize": ({}, False),
    "frame_max": ({}, True),
    "hud": ({}, "mask"),
    "cut_waits": (WHOLE_GAME, False),
    "step_ends_at_waits": (WHOLE_GAME, True),
    "pause_for_rng": ({**WHOLE_GAME, "cut_waits": False}, True),
    "episodic_life": (WHOLE_GAME, True),
    "reward_clip": ({}, True),
    "noop_max": ({}, 60),
    "noops": ({}, [60, 0, 7]),
    "rng_frames_max": ({}, 32766),
    "repeat_action_probability": ({}, 0.25),
    "turbo_swim": ({"stages": ["2-2"]}, 2),
    "stall_steps": ({}, 5),
    "reward": ({}, "progress"),
    "reward_progress": (PROGRESS, 2.0),
    "reward_score": (PROGRESS, 0.025),
    "reward_coins": (PROGRESS, 5.0),
    "reward_clock": (PROGRESS, -1.0),
    "reward_step": (PROGRESS, -0.5),
    "reward_death": (PROGRESS, -50.0),
    "reward_flag": (PROGRESS, 10.0),
    "reward_wrong_pass": (PROGRESS, -5.0),
    "reward_scale": (PROGRESS, 1.0),
    "end_on_wrong_pass": ({}, True),
}


def walk_wrong_lane(ram: np.ndarray, checked: bool) -> None:
    """Puts the player of 4-4 at the first check of its maze, on no good lane."""
    ram[[0x6D, 0x71A, 0x71B]] = 4  # pages of player and screen
    ram[[0x71C, 0x71D]] = 0, 255
    ram[0x725] = 5  # page that is being built: the game checks lanes here,
    ram[0x726] = 0 if checked else 1  # at column 0,
    ram[0x745] = 1  # when the level data asks for it


def fingerprint(env: Any) -> int:
    """A hash of all that an environment shows in some eventful episodes."""
    rng = np.random.default_rng(5)
    crc = 0

    def see(result: dict[str, Any], *more: float | bool) -> None:
        nonlocal crc
        for key, value in result.items():
            crc = zlib.crc32(f"{key}{value.shape}".encode(), crc)
            crc = zlib.crc32(value.tobytes(), crc)
        crc = zlib.crc32(repr(more).encode(), crc)

    for episode in range(4):
        see(env.reset())
        for t in range(40):
            ram = env.ram
            if t == 5 and episode == 0:
                ram[0x07DE:0x07E4] = 0, 0, 1, 2, 3, 0  # score
                ram[0x07ED:0x07EF] = 0, 3  # coins
            if t in (3, 4) and episode == 1:
                walk_wrong_lane(ram, checked=t == 4)
            if t == 6 and episode == 2:
                ram[0x0770] = 2  # the end of a world
            if t == 6 and episode == 3:
                ram[0x0E] = 0x0B  # dying
            action = int(rng.integers(60)) % env.num_actions
            reward, terminated, truncated, result = env.step(action)
            see(result, reward, terminated, truncated)
            if terminated or truncated:
                break
    return crc


def test_every_option_is_listed() -> None:
    options = (
        set(_core._MarioEnvSpec._config_keys)
        - POOL_OPTIONS
        - ROM_OPTIONS
        - SPEED_OPTIONS
    )
    assert options == set(CHANGES)


@pytest.mark.parametrize("option", CHANGES)
def test_option_changes_something(option: str, make_env: Any) -> None:
    base, value = CHANGES[option]
    base = {"stages": ["4-4"], "rom": "vanilla", **base}
    seen = fingerprint(make_env(**base))
    assert seen == fingerprint(make_env(**base))
    assert seen != fingerprint(make_env(**{**base, option: value}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frame_skip": 0}, "frame_skip=0 is not possible; choose 1 to 16"),
        ({"frame_skip": 17}, "frame_skip=17 is not possible"),
        ({"stack_num": 17}, "stack_num=17 is not possible; choose 1 to 16"),
        ({"noop_max": -1}, "noop_max=-1 is not possible"),
        ({"noops": [3, 1001]}, "noops=1001 is not possible; choose 0 to 1000"),
        ({"noops": [0.5]}, "noops must be a list of ints"),
        ({"stall_steps": -1}, "stall_steps=-1 is not possible"),
        ({"timing": "pal"}, "timing='pal' is not possible; choose console or nes_py"),
        ({"hud": "hide"}, "hud='hide' is not possible; choose keep, mask or crop"),
        ({"reward": "x"}, "reward='x' is not possible; choose classic, progress"),
        ({"repeat_action_probability": 1.0}, "from 0 to below 1"),
        ({"reward_scale": float("nan")}, "reward_scale=nan .* finite"),
        ({"reward_scale": 1e10}, "reward_scale=10000000000 .* -1e9 to 1e9"),
        ({"frame_skip": 2**31}, "frame_skip must be an int of 32 bits"),
        ({"gray_scale": None}, "gray_scale must be a bool, got None"),
        ({"gray_scale": "false"}, "gray_scale must be a bool, got 'false'"),
        ({"gray_scale": 2}, "gray_scale must be a bool, got 2"),
        ({"gray_scale": 1.0}, r"gray_scale must be a bool, got 1\.0"),
        ({"action_set": "x"}, "action_set 'x' is unknown; choose right_only"),
        (
            {"action_set": "x", "custom_actions": ["left"]},
            "action_set 'x' is unknown; choose right_only",
        ),
        ({"stages": "1-1"}, "stages must be a list of str, got '1-1'"),
        ({"img_height": 0}, "outside 1 to 1024"),
        ({"img_height": 241}, "area resize only shrinks"),
        ({"stages": ["9-1"]}, "stage 9-1 does not exist; worlds are 1 to 8"),
        ({"stages": ["1-5"]}, "stage 1-5 does not exist"),
        ({"stages": ["bonus"]}, "stages='bonus' is not possible; write"),
        ({"stages": ["A-1"]}, "stages='A-1' .* write a stage as '1-1' to '8-4'"),
        ({"stages": ["E-1"], "lost_levels": True}, "worlds are 1 to 9 and A to D"),
        ({"stages": ["a-1"], "lost_levels": True}, "or 'A-1' to 'D-4'"),
        ({"power_on_ram": 256}, "power_on_ram=256 .* choose 0 to 255"),
    ],
)
def test_wrong_values(options: dict[str, Any], message: str, make_env: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make_env(**options)


@pytest.mark.parametrize("value", [False, np.False_, 0])
def test_flags_may_be_bools_or_0_and_1(value: Any, make_env: Any) -> None:
    assert make_env(gray_scale=value).reset()["obs"].shape == (12, 84, 84)


def test_shapes(make_env: Any) -> None:
    assert make_env().reset()["obs"].shape == (4, 84, 84)
    env = make_env(gray_scale=False, stack_num=16, img_height=50, img_width=70)
    assert env.reset()["obs"].shape == (48, 50, 70)
    env = make_env(use_inter_area_resize=False, img_height=480, img_width=512)
    assert env.reset()["obs"].shape == (4, 480, 512)


def test_frame_is_the_resized_picture(make_env: Any) -> None:
    """Full size, one frame, RGB: the observation is the rendered picture."""
    env = make_env(
        gray_scale=False, stack_num=1, img_height=240, img_width=256, action_set="raw"
    )
    obs = env.reset()["obs"]
    for t in range(30):
        assert np.array_equal(obs.transpose(1, 2, 0), env.render())
        obs = env.step(128 if t % 3 else 129)[3]["obs"]


def test_stack_is_oldest_to_newest(make_env: Any) -> None:
    one = make_env(stack_num=1)
    many = make_env(stack_num=5)
    frames = [one.reset()["obs"][0]] * 5
    assert np.array_equal(many.reset()["obs"], np.stack(frames))
    for t in range(12):
        frames = [*frames[1:], one.step(t % 5)[3]["obs"][0]]
        assert np.array_equal(many.step(t % 5)[3]["obs"], np.stack(frames))


def test_hud_mask_and_crop(make_env: Any) -> None:
    size: dict[str, Any] = {"img_height": 208, "img_width": 256, "stack_num": 1}
    whole = make_env(img_height=240, img_width=256, stack_num=1)
    masked = make_env(img_height=240, img_width=256, stack_num=1, hud="mask")
    cropped = make_env(hud="crop", **size)
    picture = whole.reset()["obs"]
    assert picture[:, :32].any()
    assert not masked.reset()["obs"][:, :32].any()
    assert np.array_equal(masked.reset()["obs"][:, 32:], picture[:, 32:])
    assert np.array_equal(cropped.reset()["obs"], picture[:, 32:])


def test_frame_max_is_the_brighter_of_two(make_env: Any) -> None:
    size: dict[str, Any] = {"img_height": 240, "img_width": 256, "stack_num": 1}
    single = make_env(frame_skip=1, **size)
    double = make_env(frame_skip=2, frame_max=True, **size)
    single.reset()
    double.reset()
    for t in range(40):
        a = single.step(3)[3]["obs"]
        b = single.step(3)[3]["obs"]
        both = double.step(3)[3]["obs"]
        assert np.array_equal(both, np.maximum(a, b)), t


def test_stages_are_dealt_by_number(make_env: Any) -> None:
    stages = ["1-1", "4-2", "8-4"]
    for number in range(7):
        info = make_env(stages=stages, number=number).reset()
        stage = f"{info['info:world']}-{info['info:stage']}"
        assert stage == stages[number % 3]


def test_every_stage_begins(make_env: Any) -> None:
    names = [f"{world}-{stage}" for world in range(1, 9) for stage in range(1, 5)]
    for number, name in enumerate(names):
        env = make_env(stages=names, number=number, rom="vanilla")
        info = env.reset()
        assert f"{info['info:world']}-{info['info:stage']}" == name
        assert info["info:life"] == 2
        assert env.ram[0x0E] == 8, name  # under control
