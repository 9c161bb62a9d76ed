"""A drop-in replacement for gym-super-mario-bros: only the imports change.

::

    import mario_envpool.compat as gym_super_mario_bros
    from mario_envpool.compat.actions import SIMPLE_MOVEMENT
    from mario_envpool.compat.wrappers import JoypadSpace

    env = gym_super_mario_bros.make("SuperMarioBros-v0")
    env = JoypadSpace(env, SIMPLE_MOVEMENT)

Pictures are raw, (240, 256, 3) uint8; a step is one frame; an action is a byte of the
pad. For training, the environments of ``mario_envpool`` itself are many times faster.
docs/migration.md lists the differences from upstream and their reasons.

Environments with 4-tuples are those of old Gym where it is installed (``gym.Env``,
with its spaces). After the import ``gym.make`` knows all ids, and Gymnasium those of
9.x as ``mario_envpool_compat/<id>``. ``install`` serves programs whose imports do not
change.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import wrapt
from gymnasium.envs.registration import EnvSpec

from .. import registration
from .env import SuperMarioBrosEnv, chosen_api
from .libraries import has_five, old_gym
from .random_stages import SuperMarioBrosRandomStagesEnv
from .stand_ins import install
from .tasks import (
    TASKS,
    MarioTask,
    all_tasks,
    keywords_of,
    task_for_env_id,
    task_ids,
)
from .wrappers import OldTimeLimit

__all__ = [
    "MarioTask",
    "SuperMarioBrosEnv",
    "SuperMarioBrosRandomStagesEnv",
    "all_tasks",
    "install",
    "make",
    "task_for_env_id",
    "task_ids",
]

NAMESPACE = "mario_envpool_compat"
# Upstream's numbers, both without effect in practice.
_MAX_EPISODE_STEPS = 9999999
_REWARD_THRESHOLD = 9999999


def make(
    id: str,
    *,
    api: str | None = None,
    render_mode: str | None = None,
    max_episode_steps: int | None = None,
    apply_api_compatibility: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Makes an environment of gym-super-mario-bros by its id.

    Args:
        id: an id of 7.4.0 or of 9.x, such as "SuperMarioBros-4-2-v0".
        api: "gym" for 4-tuples or "gymnasium" for 5-tuples. None: "gymnasium" with a
            ``render_mode``, except with ``apply_api_compatibility``; else "gym".
        render_mode: "rgb_array" or "human"; with ``apply_api_compatibility`` also
            "rgb".
        max_episode_steps: steps after which an episode is truncated.
        apply_api_compatibility: True: 5-tuples, from Gym 0.26 where it is installed.
        **kwargs: arguments of ``SuperMarioBrosEnv`` (``reward="v9"``) or
            ``SuperMarioBrosRandomStagesEnv`` (``stages=[...]``), and other arguments of
            the ``make`` of the installed Gym (``new_step_api``, ``autoreset``,
            ``disable_env_checker``) or of Gymnasium.

    Raises:
        gymnasium.error.NameNotFound: there is no such id.
    """
    env_id = id.rpartition(":")[2].removeprefix(f"{NAMESPACE}/")
    spec = _spec(env_id)
    gym: Any = old_gym() if apply_api_compatibility else None
    if apply_api_compatibility:
        api = "gym" if gym and has_five(gym) else "gymnasium"
    else:
        api = chosen_api(api, render_mode)
    if api == "gymnasium":
        if apply_api_compatibility and render_mode == "rgb":
            render_mode = "rgb_array"  # PyTorch's Mario tutorial uses this name
        return gymnasium.make(
            spec, max_episode_steps, render_mode=render_mode, **kwargs
        )
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    gym = old_gym()
    if gym is None:
        kwargs.pop("disable_env_checker", None)
        random_stages = spec.entry_point == _entry_point(SuperMarioBrosRandomStagesEnv)
        kind = SuperMarioBrosRandomStagesEnv if random_stages else SuperMarioBrosEnv
        env: Any = kind(**{**spec.kwargs, "api": "gym", **kwargs})
        env.spec = spec
    else:
        if apply_api_compatibility is not None:
            kwargs["apply_api_compatibility"] = apply_api_compatibility
        if apply_api_compatibility or not has_five(gym):
            return gym.make(_old_spec(gym, env_id), max_episode_steps, **kwargs)
        env = gym.make(_old_spec(gym, env_id), **kwargs)
    return env if max_episode_steps is None else OldTimeLimit(env, max_episode_steps)


def _spec(env_id: str) -> EnvSpec:
    """Returns the ``EnvSpec`` of an id, as 9.x registers it."""
    keywords = keywords_of(env_id)
    if keywords is None:
        raise gymnasium.error.NameNotFound(
            f"{env_id!r} is not an id of gym-super-mario-bros 7.4.0, nor of 9.x for "
            "Super Mario Bros. or The Lost Levels (other games are not supported); use "
            "an id such as 'SuperMarioBros-4-2-v0'; task_ids() lists the ids of 9.x"
        )
    random_stages = keywords.pop("random_stages", False)
    return EnvSpec(
        id=f"{NAMESPACE}/{env_id}",
        entry_point=_entry_point(
            SuperMarioBrosRandomStagesEnv if random_stages else SuperMarioBrosEnv
        ),
        reward_threshold=_REWARD_THRESHOLD,
        nondeterministic=True,
        max_episode_steps=_MAX_EPISODE_STEPS,
        disable_env_checker=True,
        kwargs={**keywords, "api": "gymnasium"},
    )


def _entry_point(kind: type[SuperMarioBrosEnv]) -> str:
    return f"{__name__}:{kind.__name__}"


def _old_spec(gym: Any, env_id: str) -> Any:
    """Returns the ``EnvSpec`` of an id for old Gym, as 7.4.0 registers it."""
    spec = _spec(env_id)
    return gym.envs.registration.EnvSpec(
        id=env_id,
        entry_point=spec.entry_point,
        reward_threshold=_REWARD_THRESHOLD,
        nondeterministic=True,
        # The TimeLimit of 0.26 fails on 4-tuples.
        max_episode_steps=None if has_five(gym) else _MAX_EPISODE_STEPS,
        disable_env_checker=True,
        kwargs={**spec.kwargs, "api": "gym"},
    )


def _register() -> None:
    """Registers the ids of 9.x with Gymnasium; a second call changes nothing."""
    for task in TASKS:
        spec = _spec(task.env_id)
        gymnasium.registry.setdefault(spec.id, spec)


def _register_with_old_gym(gym: Any) -> None:
    """Registers all ids with old Gym, except those that another package has."""
    if old_gym() is None:
        return
    registry = gym.envs.registration.registry
    for env_id in registration.TASKS:
        if env_id not in registry:
            registry[env_id] = _old_spec(gym, env_id)


_register()
wrapt.register_post_import_hook(_register_with_old_gym, "gym")
