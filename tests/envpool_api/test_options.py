"""Options that cannot be are refused with a message, by every way in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

import mario_envpool
from mario_envpool.env import MarioEnv
from mario_envpool.vector import MarioVectorEnv

TASK = "SuperMarioBros-1-1-v0"
GAME = "SuperMarioBros-v0"
RANDOM = "SuperMarioBrosRandomStages-v1"
LOST = "SuperMarioBros2-v0"
LOST_STAGE = "SuperMarioBros2-D-4-v0"

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"num_envs": 0}, ValueError, "num_envs=0 .* 1 or more"),
    ({"num_envs": -1}, ValueError, "num_envs=-1 .* 1 or more"),
    ({"num_envs": "4"}, TypeError, "num_envs='4' is str; give an int"),
    ({"num_envs": 2.0}, TypeError, "num_envs=2.0 is float; give an int"),
    ({"num_envs": 2, "batch_size": 3}, ValueError, "batch_size=3 .* num_envs=2"),
    ({"num_envs": 2, "batch_size": -1}, ValueError, "batch_size=-1 .* num_envs=2"),
    ({"batch_size": 2}, ValueError, "batch_size=2 .* num_envs=1"),
    ({"batch_size": None}, TypeError, "batch_size=None is NoneType"),
    ({"max_num_players": 0}, ValueError, "max_num_players=0 .* one player"),
    ({"seed": "a"}, TypeError, "seed='a' is str; give an int"),
    ({"seed": None}, TypeError, "seed=None .* leave seed out"),
    ({"seed": 1.5}, TypeError, "seed=1.5 is float"),
    ({"seed": 2**31}, ValueError, "seed=2147483648 .* 32 bits"),
    ({"seed": [1, 2]}, ValueError, r"seed has the shape \(2,\); .* num_envs=1"),
    ({"seed": [None]}, TypeError, r"seed\[0\]=None"),
    ({"env_seed": 3}, TypeError, "env_seed=3 .* list of int"),
    ({"env_seed": [1.5]}, TypeError, r"env_seed\[0\]=1.5 is float"),
    ({"env_seed": [-(2**31) - 1]}, ValueError, r"env_seed\[0\]=-2147483649"),
    ({"seed": [1], "env_seed": [1]}, ValueError, "leave one out"),
    (
        {"num_env": 4},
        TypeError,
        "unexpected keyword argument 'num_env'; did you mean num_envs",
    ),
    ({"frameskip": 4}, TypeError, "did you mean frame_skip"),
    (
        {"bogus": 1},
        TypeError,
        r"unexpected keyword argument 'bogus'\. All .*mario_envpool --options",
    ),
]


@pytest.mark.parametrize(
    "make",
    [mario_envpool.make, mario_envpool.make_dm, mario_envpool.make_spec],
    ids=lambda make: make.__name__,
)
@pytest.mark.parametrize(("config", "error", "text"), WRONG, ids=str)
def test_wrong_values_and_names(
    make: Callable[..., Any], config: dict[str, Any], error: Any, text: str
) -> None:
    with pytest.raises(error, match=text):
        make(TASK, **config)


@pytest.mark.parametrize(("config", "error", "text"), WRONG[:4], ids=str)
def test_wrong_numbers_for_the_vector_env(
    config: dict[str, Any], error: Any, text: str
) -> None:
    with pytest.raises(error, match=text):
        MarioVectorEnv(task_id=TASK, **config)
    with pytest.raises(error, match=text):
        gymnasium.make_vec(f"mario_envpool:{TASK}", **config)


@pytest.mark.parametrize(
    ("task_id", "config", "text"),
    [
        (TASK, {"stages": ["4-2"]}, r"stages=\['4-2'\] contradicts .*1-1-v0', which"),
        (TASK, {"stages": []}, r"use the id SuperMarioBros-v0"),
        (TASK, {"random_stages": True}, "random_stages=True contradicts"),
        (TASK, {"rom": "lost-levels"}, "not the game .* such as SuperMarioBros2-v0"),
        (TASK, {"lost_levels": True}, "lost_levels=True contradicts"),
        (GAME, {"rom": "lost-levels-downsample"}, "not the game"),
        (GAME, {"lost_levels": True}, "use the id .*SuperMarioBros2-v0"),
        (RANDOM, {"random_stages": False}, "which means random_stages=True"),
        (RANDOM, {"lost_levels": True}, "lost_levels=True contradicts"),
        (LOST, {"rom": "world"}, "rom='world' is not the game of .*SuperMarioBros2"),
        (LOST, {"lost_levels": False}, "which means lost_levels=True"),
        (
            LOST_STAGE,
            {"stages": ["1-1"]},
            r"stages=\['D-4'\]; .* the id SuperMarioBros2-v0",
        ),
        (LOST_STAGE, {"rom": "vanilla"}, "rom='vanilla' is not the game of .*2-D-4"),
    ],
)
def test_options_that_contradict_the_id(
    task_id: str, config: dict[str, Any], text: str
) -> None:
    for make in (mario_envpool.make, mario_envpool.make_spec, MarioEnv):
        with pytest.raises(ValueError, match=text):
            make(task_id, **config)
    with pytest.raises(ValueError, match=text):
        gymnasium.make(f"mario_envpool:{task_id}", **config)


@pytest.mark.rom
@pytest.mark.parametrize(
    ("task_id", "config"),
    [
        (TASK, {"stages": ["1-1"], "random_stages": False, "rom": "vanilla"}),
        (GAME, {"stages": ["4-2"], "random_stages": True, "lost_levels": False}),
        (GAME, {"num_envs": np.int64(2), "batch_size": 0, "seed": np.arange(2)}),
        (GAME, {"batch_size": 1, "seed": np.int32(-5), "max_num_players": 1}),
        (GAME, {"num_envs": 2, "env_seed": (3, -4)}),
        (RANDOM.replace("v1", "v0"), {"stages": ["1-1", "1-2"]}),
    ],
    ids=str,
)
def test_what_agrees_with_the_id_is_taken(task_id: str, config: dict[str, Any]) -> None:
    spec = mario_envpool.make_spec(task_id, **config)
    assert spec.config.num_envs == config.get("num_envs", 1)
    assert spec.config.stages == config.get("stages", [])


def test_a_task_id_is_text() -> None:
    with pytest.raises(TypeError, match="task_id=5"):
        mario_envpool.make(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="SuperMarioBros-9-9-v0"):
        mario_envpool.make("SuperMarioBros-9-9-v0")
