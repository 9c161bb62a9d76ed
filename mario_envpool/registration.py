"""The task table: the ids of gym-super-mario-bros, in EnvPool and Gymnasium.

The table has all ids of 7.4.0, and the ids of 9.1.0 for Super Mario Bros. and the Lost
Levels: single levels of the latter, and ids without the first hyphen
(``SuperMarioBros1-2-v0``). An id selects the game or level. The reward is an option;
``reward="v9"`` is the reward of 9.1.0.

EnvPool's registry has the plain ids. Gymnasium's registry has the plain ids and
``mario_envpool/<id>``. A plain id that another package has registered first is left
unchanged (gym-super-mario-bros 9 uses the same ids), and one warning names our id.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium

from .envpool_layer import python_layer

with python_layer():
    from envpool.registration import registry

NAMESPACE = "mario_envpool"

_VERSIONS = ("vanilla", "downsample", "pixel", "rectangle")  # -v0 to -v3
_LOST_LEVELS_VERSIONS = ("lost-levels", "lost-levels-downsample")
_WORLDS = "12345678"
_LOST_LEVELS_WORLDS = "123456789ABCD"
_STAGES = "1234"


def _stages(worlds: str) -> list[str]:
    return [f"{world}-{stage}" for world in worlds for stage in _STAGES]


def _task_table() -> dict[str, dict[str, Any]]:
    tasks: dict[str, dict[str, Any]] = {}
    for version, rom in enumerate(_VERSIONS):
        tasks[f"SuperMarioBros-v{version}"] = {"rom": rom}
        tasks[f"SuperMarioBrosRandomStages-v{version}"] = {
            "rom": rom,
            "random_stages": True,
        }
        for stage in _stages(_WORLDS):
            config = {"rom": rom, "stages": [stage]}
            tasks[f"SuperMarioBros-{stage}-v{version}"] = config
            if version == 0:
                tasks[f"SuperMarioBros{stage}-v0"] = config
    for version, rom in enumerate(_LOST_LEVELS_VERSIONS):
        tasks[f"SuperMarioBros2-v{version}"] = {"rom": rom, "lost_levels": True}
    for stage in _stages(_LOST_LEVELS_WORLDS):
        tasks[f"SuperMarioBros2-{stage}-v0"] = {
            "rom": _LOST_LEVELS_VERSIONS[0],
            "lost_levels": True,
            "stages": [stage],
        }
    return tasks


#: Task id -> the options that differ from the defaults.
TASKS: dict[str, dict[str, Any]] = _task_table()


def plain_id(task_id: str) -> str:
    """Returns a task id without our namespace, as EnvPool's registry has it."""
    return task_id.removeprefix(f"{NAMESPACE}/")


def register_envpool() -> list[str]:
    """Registers all ids with EnvPool; a second call changes nothing.

    Returns:
        The ids that another package has registered already; they are left unchanged.
    """
    foreign = []
    for task_id, config in TASKS.items():
        # EnvPool asserts that no id is registered twice.
        if task_id in registry.specs:
            if registry.specs[task_id][0] != NAMESPACE:
                foreign.append(task_id)
            continue
        registry.register(
            task_id=task_id,
            import_path=NAMESPACE,
            spec_cls="MarioEnvSpec",
            dm_cls="MarioDMEnvPool",
            gymnasium_cls="MarioGymnasiumEnvPool",
            **config,
        )
    return foreign


def register_gymnasium() -> list[str]:
    """Registers all ids with Gymnasium; a second call changes nothing.

    Returns:
        The plain ids that another package has registered already; they are left
        unchanged.
    """
    foreign = []
    for task_id in TASKS:
        for gym_id in (f"{NAMESPACE}/{task_id}", task_id):
            existing = gymnasium.registry.get(gym_id)
            if existing is None:
                gymnasium.register(
                    id=gym_id,
                    entry_point="mario_envpool.env:MarioEnv",
                    vector_entry_point="mario_envpool.vector:MarioVectorEnv",
                    kwargs={"task_id": task_id},
                )
            elif not str(existing.entry_point).startswith("mario_envpool."):
                foreign.append(gym_id)
    return foreign


def register_all() -> None:
    """Registers all ids in both registries; warns once about ids of other packages."""
    for registry, foreign in (
        ("EnvPool", register_envpool()),
        ("Gymnasium", register_gymnasium()),
    ):
        if foreign:
            more = f" and {len(foreign) - 1} more ids" if len(foreign) > 1 else ""
            ours = f"{NAMESPACE}/{foreign[0]}"
            hint = (
                f"for this package use {ours!r}"
                if registry == "Gymnasium"
                else f"for this package use mario_envpool.make({foreign[0]!r}, ...)"
            )
            warnings.warn(
                f"{registry} already has {foreign[0]!r}{more} from another package, "
                f"which stays registered; {hint}",
                stacklevel=3,
            )
