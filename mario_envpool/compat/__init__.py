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

The import registers the ids of 9.x with Gymnasium as ``mario_envpool_compat/<id>``.
"""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from .env import SuperMarioBrosEnv, chosen_api
from .random_stages import SuperMarioBrosRandomStagesEnv
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
    disable_env_checker: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Makes an environment of gym-super-mario-bros by its id.

    Args:
        id: an id of 7.4.0 or of 9.x, such as "SuperMarioBros-4-2-v0".
        api: "gym" for 4-tuples or "gymnasium" for 5-tuples. None: "gymnasium" if
            ``render_mode`` or ``apply_api_compatibility`` is given, as upstream then
            returns 5-tuples, else "gym".
        render_mode: "rgb_array" or "human"; with ``apply_api_compatibility`` "rgb"
            means "rgb_array".
        max_episode_steps: steps after which an episode is truncated.
        apply_api_compatibility: an argument of gym 0.26; True selects 5-tuples.
        disable_env_checker: an argument of gym 0.26 and Gymnasium, without effect.
        **kwargs: arguments of ``SuperMarioBrosEnv`` (``reward="v9"``) or
            ``SuperMarioBrosRandomStagesEnv`` (``stages=[...]``).

    Raises:
        gymnasium.error.NameNotFound: there is no such id.
    """
    spec = _spec(id.rpartition(":")[2].removeprefix(f"{NAMESPACE}/"))
    if api is None and apply_api_compatibility:
        api = "gymnasium"
    if apply_api_compatibility and render_mode == "rgb":
        # PyTorch's Mario tutorial uses this name; gym 0.26 only warns.
        render_mode = "rgb_array"
    if chosen_api(api, render_mode) == "gymnasium":
        return gymnasium.make(
            spec, max_episode_steps, render_mode=render_mode, **kwargs
        )
    random_stages = spec.entry_point == _entry_point(SuperMarioBrosRandomStagesEnv)
    kind = SuperMarioBrosRandomStagesEnv if random_stages else SuperMarioBrosEnv
    env: Any = kind(
        **{**spec.kwargs, "api": "gym", "render_mode": render_mode, **kwargs}
    )
    env.spec = spec
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


def _register() -> None:
    """Registers the ids of 9.x with Gymnasium; a second call changes nothing."""
    for task in TASKS:
        spec = _spec(task.env_id)
        gymnasium.registry.setdefault(spec.id, spec)


_register()
