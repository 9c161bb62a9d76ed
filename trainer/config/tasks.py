"""Names of tasks and levels, the levels of a run, and the levels of a pool's rows."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

import mario_envpool

IntArray = npt.NDArray[np.int64]
_X = TypeVar("_X", int, IntArray)

STAGES = 4

# The low bits of a level's number hold the stage, the bits above the world, which is
# below a limit.
_STAGE_BITS, _WORLD_LIMIT = 4, 16

_WORLDS = {"SuperMarioBros": 8, "SuperMarioBros2": 4}

_TASK = re.compile(
    r"(?P<game>SuperMarioBros2?)(RandomStages|-?(?P<level>\d-\d))?-v(?P<version>\d)"
)


def game_of(task: str) -> str:
    """The task that plays any level of the same game; ValueError if there is none."""
    match = _TASK.fullmatch(task)
    if match is None:
        raise ValueError(f"task {task} has no levels; leave out --levels")
    return f"{match['game']}-v{match['version']}"


def all_levels(task: str) -> tuple[str, ...]:
    """Every level of a task's game, in order: "1-1" to "8-4"."""
    worlds = range(1, _WORLDS[game_of(task).partition("-")[0]] + 1)
    stages = range(1, STAGES + 1)
    return tuple(f"{world}-{stage}" for world in worlds for stage in stages)


def own_levels(task: str) -> tuple[str, ...]:
    """The levels that a task plays in separate episodes; () if it has none.

    Worlds of the Lost Levels beyond the fourth have tasks but do not count as levels.
    """
    match = _TASK.fullmatch(task)
    if match is None or not (match["level"] or "RandomStages" in task):
        return ()
    return tuple(name for name in all_levels(task) if match["level"] in (None, name))


def game_levels(task: str) -> tuple[str, ...]:
    """The levels of a whole-game task, in order; () for other tasks."""
    match = _TASK.fullmatch(task)
    single = match is None or match["level"] or "RandomStages" in task
    return () if single else all_levels(task)


def played(task: str, levels: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The task and levels of a run, equal for different names of the same selection."""
    levels = tuple(levels) or own_levels(task)
    return (game_of(task), levels) if levels else (task, ())


def check_level(level: str, task: str, hint: str = "") -> None:
    """Raises ValueError, with a hint at its end, if a game does not have a level."""
    first, *_, last = levels = all_levels(task)
    if level not in levels:
        raise ValueError(
            f"there is no level {level!r} in {game_of(task)}; levels are {first} to "
            f"{last}{hint}"
        )


def parse_levels(text: str, task: str) -> tuple[str, ...]:
    """Levels from a user's text, "1-1,4-2" or "all", each once, in the game's order."""
    levels = {part.strip() for part in text.split(",")}
    if "all" in levels:
        levels = (levels - {"all"}).union(all_levels(task))
    for level in levels:
        check_level(level, task, ", as in 1-1,4-2, or all")
    return tuple(level for level in all_levels(task) if level in levels)


def levels_of(levels: Sequence[str], test: Sequence[str], task: str) -> tuple[str, ...]:
    """Training and test levels of a run, in the order of the game; () for none."""
    if not levels:
        return own_levels(task)
    return tuple(sorted({*levels, *test}, key=all_levels(task).index))


class Split(NamedTuple):
    """The levels of a run, in the order of its pool."""

    train: tuple[str, ...]  # () if the task has one level or none
    test: tuple[str, ...]  # never to train on


def split_levels(levels: Sequence[str], test: Sequence[str], task: str) -> Split:
    """Splits the levels in a user's texts into training levels and test levels.

    `levels` may be (), the levels of the task. `test` may be a number of levels to
    draw, which are the same for every seed, so that runs can be compared.
    """
    train = parse_levels(",".join(levels), task) if levels else own_levels(task)
    if not levels and not test:
        return Split(train if len(train) > 1 else (), ())
    if not train:
        raise ValueError(f"test_levels needs --levels with the task {task}")
    text = ",".join(test)
    if text.isdecimal():
        drawn = random.Random(0).sample(train, min(int(text), len(train)))
        tested = tuple(level for level in train if level in drawn)
    else:
        tested = parse_levels(text, task) if text else ()
    left = tuple(level for level in train if level not in tested)
    if not left:
        raise ValueError(
            f"test_levels={text} leaves no level to train on; choose fewer of "
            f"{', '.join(train)}"
        )
    return Split(left, tested)


def describe_levels(task: str, levels: Sequence[str], test: Sequence[str]) -> str:
    """A readable description of a task, its training levels and its test levels."""
    parts = [task]
    for names, verb in ((levels, "on"), (test, "tested on")):
        if names:
            few = ", ".join(names)
            parts.append(f"{verb} {few if len(names) <= 8 else f'{len(names)} levels'}")
    return " ".join(parts)


def is_native(task: str) -> bool:
    """Whether the task is one of mario_envpool; pools of EnvPool can do less."""
    return task in mario_envpool.list_all_envs()


def level_numbers(info: Mapping[str, Any]) -> IntArray:
    """The number of each row's level, as in `level_number`."""
    worlds = info["world"].astype(np.int64)
    numbers: IntArray = (worlds << _STAGE_BITS) | info["stage"]
    return numbers


def x_in_room(x_pos: _X) -> _X:
    """Positions in pixels from the left end of rooms, by the game's own `x_pos`.

    A few pixels left of that end, that number is near 65,535.
    """
    return x_pos * (x_pos < 0x8000)


def level_number(name: str) -> int:
    """The number of a level such as "4-2"."""
    world, stage = map(int, name.split("-"))
    return world << _STAGE_BITS | stage


def level_name(number: int) -> str:
    """The name, such as "4-2", of the level with a number."""
    return f"{number >> _STAGE_BITS}-{number & (1 << _STAGE_BITS) - 1}"


class LevelPlaces:
    """Maps the numbers of levels to indices among a run's levels."""

    def __init__(self, levels: Sequence[str]) -> None:
        # The last entry is for worlds outside the game, such as the minus world (36).
        self._places = np.full((_WORLD_LIMIT << _STAGE_BITS) + 1, -1, np.int64)
        for place, level in enumerate(levels):
            self._places[level_number(level)] = place

    def __call__(self, numbers: IntArray) -> IntArray:
        """The indices of levels, (n,) int64; -1 for a level outside the run."""
        return self._places[np.minimum(numbers, len(self._places) - 1)]
