"""What gym-super-mario-bros' own tests ask for, 7.4.0's and 9.1.0's.

Their values, for Super Mario Bros. and The Lost Levels. Where the suites contradict
each other 9.1.0 wins (the Lost Levels have 13 worlds), but for three things: ``make``
is not ``gymnasium.make``, as 7.4.0's returns 4-tuples; the ids of 7.4.0 that 9.1.0 has
removed are here (though not in Gymnasium's registry); and so are 7.4.0's ROM modes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

import mario_envpool.compat as gym_super_mario_bros
from mario_envpool.compat import (
    MarioTask,
    SuperMarioBrosEnv,
    all_tasks,
    make,
    task_for_env_id,
    task_ids,
)
from mario_envpool.compat.tasks import decode_target, task_for_config

SHORT_STAGES = "1-3 1-4 2-3 2-4 3-2 3-3 3-4 4-3 5-1 5-3 5-4 6-3 6-4 7-3 8-1 8-3".split()
STAGES = [f"{world}-{stage}" for world in range(1, 9) for stage in range(1, 5)]
LOST_WORLDS = "123456789ABCD"

# (id, world, stage, time) after one idle step.
Start = tuple[str, int, int, int]


def starts_of_7() -> Iterator[Start]:
    for version in range(4):
        yield f"SuperMarioBros-v{version}", 1, 1, 400
        for name in STAGES:
            time = 300 if name in SHORT_STAGES else 400
            world, stage = (int(part) for part in name.split("-"))
            yield f"SuperMarioBros-{name}-v{version}", world, stage, time
    for version in range(2):
        yield f"SuperMarioBros2-v{version}", 1, 1, 400


def starts_of_9() -> Iterator[Start]:
    for start in starts_of_7():
        if start[0].endswith("-v0"):
            yield start
    yield "SuperMarioBros1-1-v0", 1, 1, 400
    yield "SuperMarioBros2-5-1-v0", 5, 1, 400
    yield "SuperMarioBros2-8-4-v0", 8, 4, 400
    yield "SuperMarioBros2-A-2-v0", 10, 2, 300
    yield "SuperMarioBros2-D-4-v0", 13, 4, 400


def assert_start(info: dict[str, Any], world: int, stage: int, time: int) -> None:
    expected = {
        "coins": 0,
        "flag_get": False,
        "life": 2,
        "world": world,
        "score": 0,
        "stage": stage,
        "time": time,
        "x_pos": 40,
    }
    assert {key: info[key] for key in expected} == expected


@pytest.mark.rom
@pytest.mark.parametrize(
    ("env_id", "world", "stage", "time"), [*starts_of_7()], ids=str
)
def test_ids_of_7_start(env_id: str, world: int, stage: int, time: int) -> None:
    env = make(env_id)
    env.reset()
    _, _, _, info = env.step(0)
    assert_start(info, world, stage, time)
    env.close()


@pytest.mark.rom
@pytest.mark.parametrize("version", range(4))
def test_random_stages_of_7_start(version: int) -> None:
    env = make(f"SuperMarioBrosRandomStages-v{version}")
    env.seed(1)
    env.reset()
    _, _, _, info = env.step(0)
    assert_start(info, 6, 4, 300)
    env.close()


@pytest.mark.rom
@pytest.mark.parametrize(
    ("env_id", "world", "stage", "time"), [*starts_of_9()], ids=str
)
def test_ids_of_9_start(env_id: str, world: int, stage: int, time: int) -> None:
    env = make(env_id, render_mode="rgb_array")
    state, reset_info = env.reset(seed=None)
    assert state.shape == env.observation_space.shape
    assert isinstance(reset_info, dict)
    state, _, terminated, truncated, info = env.step(0)
    assert state.shape == env.observation_space.shape
    assert isinstance(terminated, bool)
    assert isinstance(truncated, bool)
    assert not truncated
    assert env.render() is not None
    assert_start(info, world, stage, time)
    env.close()


@pytest.mark.rom
@pytest.mark.parametrize("env_id", ["SuperMarioBros-v0", "SuperMarioBros1-1-v0"])
def test_gymnasium_makes_the_ids_of_9(env_id: str) -> None:
    env = gymnasium.make(f"mario_envpool_compat/{env_id}", render_mode="rgb_array")
    state, info = env.reset(seed=123)
    assert state.shape == env.observation_space.shape
    assert isinstance(info, dict)
    assert len(env.step(env.action_space.sample())) == 5
    assert env.render() is not None
    env.close()


@pytest.mark.rom
def test_the_time_limit_of_gymnasium_truncates() -> None:
    env = make("SuperMarioBros-v0", render_mode="rgb_array", max_episode_steps=1)
    env.reset(seed=123)
    _, _, terminated, truncated, _ = env.step(0)
    assert not terminated
    assert truncated
    env.close()


@pytest.mark.parametrize("lost_levels", [False, True])
@pytest.mark.parametrize("rom_mode", [-1, 5])
def test_invalid_rom_mode(rom_mode: Any, lost_levels: bool) -> None:
    with pytest.raises(ValueError, match="rom_mode"):
        SuperMarioBrosEnv(rom_mode=rom_mode, lost_levels=lost_levels)


def test_invalid_type_of_lost_levels() -> None:
    with pytest.raises(TypeError, match="lost_levels"):
        SuperMarioBrosEnv(lost_levels="foo")  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [("foo", 1), (1, "foo"), [1, 1]])
def test_invalid_type_of_target(target: Any) -> None:
    with pytest.raises(TypeError, match="target"):
        SuperMarioBrosEnv(target=target)


@pytest.mark.parametrize(
    ("target", "lost_levels"),
    [
        *[(target, lost) for target in [(0, 1), (1, 0), (1, 5)] for lost in (0, 1)],
        ((9, 1), False),
        ((14, 1), True),
    ],
)
def test_target_out_of_bounds(target: Any, lost_levels: Any) -> None:
    with pytest.raises(ValueError, match="target"):
        SuperMarioBrosEnv(target=target, lost_levels=bool(lost_levels))


def test_bonus_worlds_have_no_intro_room() -> None:
    for world in range(5, 14):
        for stage in range(1, 5):
            assert decode_target((world, stage), True) == (world, stage, stage)


@pytest.mark.rom
@pytest.mark.parametrize("target", [None, (4, 2)])
@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_the_constructed_environment_steps(target: Any, render_mode: Any) -> None:
    """7.4.0's test (no render mode, 4-tuples) and 9.1.0's (with one, 5-tuples)."""
    env = SuperMarioBrosEnv(target=target, render_mode=render_mode)
    assert env.unwrapped.is_single_stage_env == (target is not None)
    for name in ("_target_world", "_target_stage", "_target_area"):
        value = getattr(env.unwrapped, name)
        assert (value is None) if target is None else isinstance(value, int)
    first = env.reset()
    result = env.step(0)
    if render_mode is None:
        assert isinstance(first, np.ndarray)
        assert len(result) == 4
    else:
        assert len(first) == 2
        assert len(result) == 5
        assert result[3] is False
        assert env.render() is not None
    assert_start(result[-1], *(target or (1, 1)), 400)
    env.close()


@pytest.mark.rom
@pytest.mark.parametrize("rom_mode", ["vanilla", "downsample"])
def test_roms_of_the_lost_levels_load(rom_mode: str) -> None:
    env = SuperMarioBrosEnv(
        lost_levels=True, rom_mode=rom_mode, render_mode="rgb_array"
    )
    state, info = env.reset()
    assert state.shape == env.observation_space.shape
    assert isinstance(info, dict)
    env.close()


def test_the_package_has_upstreams_names() -> None:
    names = "make SuperMarioBrosEnv MarioTask all_tasks task_for_env_id task_ids"
    assert set(names.split()) <= set(gym_super_mario_bros.__all__)
    assert "SuperMarioBrosRandomStagesEnv" in gym_super_mario_bros.__all__  # 7.4.0


def spec_of(env_id: str) -> Any:
    spec = gymnasium.spec(f"mario_envpool_compat/{env_id}")
    assert spec.max_episode_steps == 9999999
    assert spec.reward_threshold == 9999999
    assert spec.nondeterministic
    assert spec.disable_env_checker
    assert "rom_mode" not in spec.kwargs
    return spec


def test_ids_of_9_are_registered() -> None:
    assert "target" not in spec_of("SuperMarioBros-v0").kwargs
    assert spec_of("SuperMarioBros2-v0").kwargs["lost_levels"]
    for name in STAGES:
        for separator in ("-", ""):
            target = tuple(int(part) for part in name.split("-"))
            kwargs = spec_of(f"SuperMarioBros{separator}{name}-v0").kwargs
            assert kwargs["target"] == target
            assert "lost_levels" not in kwargs
    for world, label in enumerate(LOST_WORLDS, start=1):
        for stage in range(1, 5):
            kwargs = spec_of(f"SuperMarioBros2-{label}-{stage}-v0").kwargs
            assert kwargs["lost_levels"]
            assert kwargs["target"] == (world, stage)


@pytest.mark.parametrize(
    "env_id",
    [
        *[f"SuperMarioBros-v{version}" for version in (1, 2, 3)],
        *[f"SuperMarioBrosRandomStages-v{version}" for version in range(4)],
        "SuperMarioBros2-v1",
        "SuperMarioBros-1-1-v1",
        "SuperMarioBros1-1-v1",
        "SuperMarioBros2-1-1-v1",
    ],
)
def test_ids_removed_in_9_are_not_registered(env_id: str) -> None:
    assert f"mario_envpool_compat/{env_id}" not in gymnasium.registry


def test_tasks_are_those_of_the_two_games() -> None:
    """Of upstream's 109 and 141, without the 23 of the two other games."""
    env_ids = task_ids(include_aliases=True)
    assert len(all_tasks()) == 109 - 23
    assert len(env_ids) == 141 - 23
    for env_id in ("SuperMarioBros-v0", "SuperMarioBros1-1-v0"):
        assert env_id in env_ids
    assert "SuperMarioBros2-D-4-v0" in env_ids
    assert "SuperMarioBrosRandomStages-v0" not in env_ids
    assert len(all_tasks(single_stage=True)) == 32 + 52
    assert all_tasks(game_family="smb3") == ()


def test_a_task_by_its_id() -> None:
    task = task_for_env_id("SuperMarioBros2-A-2-v0")
    assert isinstance(task, MarioTask)
    assert task.game == "lost_levels"
    assert task.world == 10
    assert task.world_label == "A"
    assert task.stage == 2
    assert task.single_stage
    assert task.task_id == task.env_id
    with pytest.raises(KeyError, match="SuperMarioBros9-v0"):
        task_for_env_id("SuperMarioBros9-v0")


def test_an_alias_points_to_its_task() -> None:
    task = task_for_env_id("SuperMarioBros1-1-v0")
    assert task.task_id == "SuperMarioBros-1-1-v0"
    assert task.alias_of == "SuperMarioBros-1-1-v0"
    assert task.to_dict()["task_id"] == "SuperMarioBros-1-1-v0"


def test_a_task_by_its_configuration() -> None:
    assert task_for_config("smb1", 0).env_id == "SuperMarioBros-v0"
    stage = task_for_config("smb1", 0, world=4, stage=2)
    assert stage.env_id == "SuperMarioBros-4-2-v0"
    with pytest.raises(KeyError, match="smb3"):
        task_for_config("smb3", 0)


def test_an_unknown_split_is_refused() -> None:
    assert all_tasks(split="train") == all_tasks(split="eval") == all_tasks()
    with pytest.raises(ValueError, match="split"):
        all_tasks(split="unknown")
