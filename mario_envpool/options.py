"""Checks a user's options before EnvPool does.

EnvPool's assertions on counts and seeds have no message, and EnvPool does not know that
a task id fixes some of the options. The native code checks all other values.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._core import _MarioEnvSpec
from .registration import TASKS

# Arguments that EnvPool takes in addition to the configuration.
_RENDERING = (
    "from_pixels",
    "render_mode",
    "render_env_id",
    "render_width",
    "render_height",
    "render_camera_id",
)
_SEEDS = (-(2**31), 2**31 - 1)


def checked(task_id: str, config: dict[str, Any]) -> dict[str, Any]:
    """Returns the keyword arguments for EnvPool's registry.

    Args:
        task_id: one of ``TASKS``.
        config: the keyword arguments of the user.

    Raises:
        ValueError: a value is not allowed, or contradicts the task id.
        TypeError: a value has the wrong type, or an option does not exist.
    """
    _check_names(config)
    _check_task(task_id, config)
    result = {"num_envs": 1, **config}
    num_envs = _integer("num_envs", result["num_envs"])
    if num_envs < 1:
        raise ValueError(
            f"num_envs={num_envs} is not possible; give the number of environments, 1 "
            "or more"
        )
    if "batch_size" in config:
        batch_size = _integer("batch_size", config["batch_size"])
        if not 0 <= batch_size <= num_envs:
            raise ValueError(
                f"batch_size={batch_size} is not possible; give 1 to num_envs="
                f"{num_envs}, or 0 for all environments"
            )
    if config.get("max_num_players", 1) != 1:
        raise ValueError(
            f"max_num_players={config['max_num_players']!r} is not possible; "
            "environments have one player: leave the option out"
        )
    _check_seeds(config, num_envs)
    return result


def _check_names(config: dict[str, Any]) -> None:
    known = [*_MarioEnvSpec._config_keys, *_RENDERING]
    for name in config:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=3)
        meant = f"; did you mean {' or '.join(near)}?" if near else "."
        # TorchRL looks for the words of Python's own message.
        raise TypeError(
            f"got an unexpected keyword argument {name!r}{meant} All options are "
            "listed by: python -m mario_envpool --options"
        )


def _check_task(task_id: str, config: dict[str, Any]) -> None:
    """Refuses options that contradict the task id."""
    task = TASKS[task_id]
    of_first_game = not task.get("lost_levels", False)
    fixed: dict[str, Any] = {"lost_levels": not of_first_game, **task}
    del fixed["rom"]  # any revision of the right game is allowed
    if "stages" in task:
        fixed["random_stages"] = False  # a single level leaves no choice
    other = {
        "lost_levels": "SuperMarioBros-v0 or SuperMarioBros2-v0",
        "stages": "SuperMarioBros-v0" if of_first_game else "SuperMarioBros2-v0",
        "random_stages": "SuperMarioBros-v0 or SuperMarioBrosRandomStages-v0",
    }
    for key, value in fixed.items():
        given = config.get(key, value)
        if isinstance(given, type(value)) and given != value:
            raise ValueError(
                f"{key}={given!r} contradicts the id {task_id!r}, which means "
                f"{key}={value!r}; leave {key} out, or use the id {other[key]}"
            )
    rom = config.get("rom", task["rom"])
    if isinstance(rom, str) and rom.startswith("lost-levels") == of_first_game:
        ids = "SuperMarioBros2-v0" if of_first_game else "SuperMarioBros-v0"
        raise ValueError(
            f"rom={rom!r} is not the game of the id {task_id!r}; leave rom out, or "
            f"use an id such as {ids}"
        )


def _check_seeds(config: dict[str, Any], num_envs: int) -> None:
    if "seed" in config and not _is_sequence(config["seed"]):
        _check_seed("seed", config["seed"])
    elif "seed" in config and "env_seed" in config:
        raise ValueError(
            "seed and env_seed both give a seed to each environment; leave one out"
        )
    for name in ("seed", "env_seed"):
        if name not in config or (name == "seed" and not _is_sequence(config[name])):
            continue
        seeds = config[name]
        if not _is_sequence(seeds):
            raise TypeError(
                f"{name}={seeds!r} is not possible; give a list of int, one for each "
                "environment"
            )
        if np.ndim(seeds) != 1 or len(seeds) != num_envs:
            raise ValueError(
                f"{name} has the shape {np.shape(seeds)}; give one seed for each of "
                f"the num_envs={num_envs} environments"
            )
        for i, seed in enumerate(seeds):
            _check_seed(f"{name}[{i}]", seed)


def _check_seed(name: str, seed: Any) -> None:
    if seed is None:
        raise TypeError(f"{name}=None is not possible; give an int, or leave seed out")
    low, high = _SEEDS
    if not low <= _integer(name, seed) <= high:
        raise ValueError(
            f"{name}={seed} is not possible; give an int of 32 bits, {low} to {high}"
        )


def _is_sequence(value: Any) -> bool:
    """Whether EnvPool would treat the value as a list of seeds."""
    is_text = isinstance(value, str | bytes)
    return isinstance(value, Sequence | np.ndarray) and not is_text


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name}={value!r} is {type(value).__name__}; give an int"
        ) from None
