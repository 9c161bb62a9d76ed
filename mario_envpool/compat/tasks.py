"""The tasks of gym-super-mario-bros: ids, targets, and metadata as 9.x has it.

Ids of both versions are accepted: 7.4.0 has four ROMs (``-v0`` to ``-v3``) and random
stages; 9.x has one ROM, ids without the first hyphen, and all stages of the Lost
Levels. The metadata lists the ids of 9.x for these two games.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import registration

#: The ROMs by version number: ``SuperMarioBros-v1`` plays number 1.
ROM_MODES = ("vanilla", "downsample", "pixel", "rectangle")
LOST_LEVELS_ROM_MODES = ("vanilla", "downsample")
WORLDS = 8
LOST_LEVELS_WORLDS = 13
STAGES = 4
# Worlds whose second room is a walk into a pipe, not a stage.
_WORLDS_WITH_INTRO = {False: (1, 2, 4, 7), True: (1, 3)}


@dataclasses.dataclass(frozen=True)
class MarioTask:
    """One task, described as in gym-super-mario-bros 9.x.

    Attributes:
        env_id: the id.
        game: "smb1" or "lost_levels".
        game_family: the same as ``game``.
        version: the version of the id; 9.x has only version 0.
        rom_mode: "vanilla".
        world: from 1, or None for the whole game.
        stage: from 1, or None for the whole game.
        world_label: the world as the id writes it: A to D are the worlds 10 to 13.
        single_stage: whether an episode is one level.
        alias_of: for an id without a hyphen, the id with it; else None.
        train_split: True; upstream has no other value yet.
        eval_split: True; upstream has no other value yet.
        validated: True; upstream has no other value yet.
    """

    env_id: str
    game: str
    game_family: str
    version: int
    rom_mode: str
    world: int | None = None
    stage: int | None = None
    world_label: str | None = None
    single_stage: bool = False
    alias_of: str | None = None
    train_split: bool = True
    eval_split: bool = True
    validated: bool = True

    @property
    def task_id(self) -> str:
        """The id that a task and its alias share."""
        return self.alias_of or self.env_id

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields and ``task_id``."""
        return {**dataclasses.asdict(self), "task_id": self.task_id}


def world_label(world: int) -> str:
    """Returns a world as ids write it: 1 to 9, then A to D."""
    return f"{world:X}"


def task_id_of(
    lost_levels: bool, version: int, world: int | None, stage: int | None
) -> str:
    """Returns the id of a whole game (without a world) or of a stage."""
    game = "SuperMarioBros2" if lost_levels else "SuperMarioBros"
    if world is None:
        return f"{game}-v{version}"
    return f"{game}-{world_label(world)}-{stage}-v{version}"


def _tasks_of(lost_levels: bool, worlds: int) -> list[MarioTask]:
    game = "lost_levels" if lost_levels else "smb1"
    common: dict[str, Any] = {
        "game": game,
        "game_family": game,
        "version": 0,
        "rom_mode": "vanilla",
    }
    tasks = [MarioTask(task_id_of(lost_levels, 0, None, None), **common)]
    for number in range(worlds * STAGES):
        world, stage = number // STAGES + 1, number % STAGES + 1
        task = MarioTask(
            task_id_of(lost_levels, 0, world, stage),
            **common,
            world=world,
            stage=stage,
            world_label=world_label(world),
            single_stage=True,
        )
        tasks.append(task)
        if not lost_levels:
            alias = f"SuperMarioBros{world}-{stage}-v0"
            tasks.append(dataclasses.replace(task, env_id=alias, alias_of=task.env_id))
    return tasks


#: Every task, aliases included.
TASKS = (*_tasks_of(False, WORLDS), *_tasks_of(True, LOST_LEVELS_WORLDS))
_BY_ID = {task.env_id: task for task in TASKS}


def all_tasks(
    *,
    include_aliases: bool = False,
    game_family: str | None = None,
    rom_mode: str | None = None,
    single_stage: bool | None = None,
    split: str | None = None,
    validated: bool | None = None,
) -> tuple[MarioTask, ...]:
    """Lists tasks; each argument that is not None keeps the tasks with that value.

    Args:
        include_aliases: also list the ids without a hyphen.
        game_family: "smb1" or "lost_levels".
        rom_mode: "vanilla".
        single_stage: True for stages, False for whole games.
        split: "train" or "eval".
        validated: as upstream; it is True for every task.

    Raises:
        ValueError: there is no such split.
    """
    if split not in (None, "train", "eval"):
        raise ValueError(f"split={split!r} is not known; choose 'train' or 'eval'")
    wanted = {
        "game_family": game_family,
        "rom_mode": rom_mode,
        "single_stage": single_stage,
        "validated": validated,
        "train_split": True if split == "train" else None,
        "eval_split": True if split == "eval" else None,
    }
    return tuple(
        task
        for task in TASKS
        if (include_aliases or task.alias_of is None)
        and all(
            value is None or getattr(task, key) == value
            for key, value in wanted.items()
        )
    )


def task_ids(**filters: Any) -> tuple[str, ...]:
    """Lists the ids of ``all_tasks(**filters)``."""
    return tuple(task.env_id for task in all_tasks(**filters))


def task_for_env_id(env_id: str) -> MarioTask:
    """Returns the task of an id of 9.x.

    Raises:
        KeyError: there is no such id.
    """
    if env_id not in _BY_ID:
        raise KeyError(f"{env_id!r} is not an id of task_ids(include_aliases=True)")
    return _BY_ID[env_id]


def task_for_config(
    game: str, version: int, world: int | None = None, stage: int | None = None
) -> MarioTask:
    """Returns the task of a game ("smb1", "lost_levels"), version, world and stage.

    Raises:
        KeyError: there is no such task.
    """
    for task in all_tasks():
        if (task.game, task.version, task.world, task.stage) == (
            game,
            version,
            world,
            stage,
        ):
            return task
    raise KeyError(
        f"there is no task with game={game!r}, version={version!r}, "
        f"world={world!r}, stage={stage!r}; all_tasks() lists all tasks"
    )


def rom_name(rom_mode: str, lost_levels: bool) -> str:
    """Returns the name of a ROM in ``mario_envpool.rom``.

    Raises:
        ValueError: the game has no such ROM mode.
    """
    modes = LOST_LEVELS_ROM_MODES if lost_levels else ROM_MODES
    if rom_mode not in modes:
        raise ValueError(f"rom_mode={rom_mode!r} is not one of {', '.join(modes)}")
    if not lost_levels:
        return rom_mode
    return "lost-levels" if rom_mode == "vanilla" else f"lost-levels-{rom_mode}"


def keywords_of(env_id: str) -> dict[str, Any] | None:
    """Returns the constructor's arguments for an id of 7.4.0 or 9.x.

    Returns:
        ``rom_mode``, ``lost_levels`` and ``target`` if they differ from the default,
        and ``random_stages`` for ids of random stages. None: there is no such id.
    """
    if env_id not in registration.TASKS:
        return None
    config = registration.TASKS[env_id]
    keywords: dict[str, Any] = {
        key: True for key in ("lost_levels", "random_stages") if key in config
    }
    rom_mode = config["rom"].removeprefix("lost-levels").removeprefix("-")
    if rom_mode not in ("", ROM_MODES[0]):
        keywords["rom_mode"] = rom_mode
    if "stages" in config:
        world, stage = config["stages"][0].split("-")
        keywords["target"] = (int(world, 16), int(stage))
    return keywords


def decode_target(
    target: tuple[int, int] | None, lost_levels: bool
) -> tuple[int, int, int] | tuple[None, None, None]:
    """Returns the world, stage and area of a target; three times None for None.

    The area is the room in which the stage begins, from 1. It equals the stage, or is
    one more after the walk into a pipe, which is a separate room in some worlds.

    Raises:
        TypeError: the target is not a tuple of two ints, or ``lost_levels`` not a bool.
        ValueError: the game has no such world or stage.
    """
    if not isinstance(lost_levels, bool):
        raise TypeError(f"lost_levels={lost_levels!r} must be a bool")
    if target is None:
        return None, None, None
    if not isinstance(target, tuple):
        raise TypeError(f"target={target!r} must be a tuple (world, stage)")
    if len(target) != 2:
        raise ValueError(f"target={target!r} must be two numbers, (world, stage)")
    world, stage = target
    worlds = LOST_LEVELS_WORLDS if lost_levels else WORLDS
    for name, value, most in (("world", world, worlds), ("stage", stage, STAGES)):
        if not isinstance(value, int):
            raise TypeError(f"the {name} of target={target!r} must be an int")
        if not 1 <= value <= most:
            raise ValueError(f"the {name} of target={target!r} must be 1 to {most}")
    behind_intro = world in _WORLDS_WITH_INTRO[lost_levels] and stage >= 2
    return world, stage, stage + behind_intro
