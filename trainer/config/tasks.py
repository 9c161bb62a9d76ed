"""Names of tasks and levels, and the levels that a run trains on."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

import mario_envpool

STAGES = 4

_WORLDS = {"SuperMarioBros": 8, "SuperMarioBros2": 4}

_TASK = re.compile(
    r"(?P<game>SuperMarioBros2?)(RandomStages|-?(?P<level>\d-\d))?-v(?P<version>\d)"
)


def game_of(task: str) -> str:
    """The task that plays any level of the same game with the same ROM.

    Raises:
        ValueError: the task has no levels.
    """
    match = _TASK.fullmatch(task)
    if match is None:
        raise ValueError(f"task {task} has no levels; leave out --levels")
    return f"{match['game']}-v{match['version']}"


def all_levels(task: str) -> tuple[str, ...]:
    """Every level of a task's game, in order: "1-1" to "8-4"."""
    worlds = _WORLDS[game_of(task).partition("-")[0]]
    return tuple(
        f"{world}-{stage}"
        for world in range(1, worlds + 1)
        for stage in range(1, STAGES + 1)
    )


def own_levels(task: str) -> tuple[str, ...]:
    """The levels that a task plays in separate episodes; () if it has none.

    Worlds of the Lost Levels beyond the fourth have tasks but do not count as levels.
    """
    match = _TASK.fullmatch(task)
    if match is None:
        return ()
    known = all_levels(task)
    if match["level"]:
        return (match["level"],) if match["level"] in known else ()
    return known if "RandomStages" in task else ()


def game_levels(task: str) -> tuple[str, ...]:
    """The levels of a whole-game task, in order; () for other tasks."""
    match = _TASK.fullmatch(task)
    single = match is None or match["level"] or "RandomStages" in task
    return () if single else all_levels(task)


def played(task: str, levels: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """What a run plays, equal for different names of the same selection.

    Args:
        task: EnvConfig.task.
        levels: EnvConfig.levels.

    Returns:
        The task of the game and the levels; the task itself and () if it has none.
    """
    own = tuple(levels) or own_levels(task)
    return (game_of(task), own) if own else (task, ())


def check_level(level: str, task: str, hint: str = "") -> None:
    """Raises ValueError, with a hint at its end, if a game does not have a level."""
    known = all_levels(task)
    if level not in known:
        raise ValueError(
            f"there is no level {level!r} in {game_of(task)}; levels are {known[0]} to "
            f"{known[-1]}{hint}"
        )


def parse_levels(text: str, task: str) -> tuple[str, ...]:
    """Levels from a user's text: "1-1,4-2" or "all".

    Returns:
        Each level once, in the order of the game, so that the number of a level does
        not depend on the order in the text.

    Raises:
        ValueError: the game does not have a level, or the task has no levels.
    """
    levels = {part.strip() for part in text.split(",")}
    if "all" in levels:
        levels = (levels - {"all"}).union(all_levels(task))
    for level in levels:
        check_level(level, task, ", as in 1-1,4-2, or all")
    return tuple(level for level in all_levels(task) if level in levels)


def levels_of(levels: Sequence[str], test: Sequence[str], task: str) -> tuple[str, ...]:
    """Training and test levels of a run, in the order of the game; () for none.

    Args:
        levels: EnvConfig.levels of the run.
        test: EnvConfig.test_levels.
        task: EnvConfig.task.
    """
    if not levels:
        return own_levels(task)
    return tuple(sorted({*levels, *test}, key=all_levels(task).index))


class Split(NamedTuple):
    """The levels of a run, in the order of its pool.

    Attributes:
        train: the levels to train on; () if the task has one level or none.
        test: the levels to test on and never to train on.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]


def split_levels(levels: Sequence[str], test: Sequence[str], task: str) -> Split:
    """Splits the levels of a run into training levels and test levels.

    Args:
        levels: texts of a user, such as "1-1,4-2" or "all"; (): the levels of the task.
        test: likewise, or a number of levels to draw from `levels`. The draw is the
            same for every seed, so that runs can be compared.
        task: of the run.

    Raises:
        ValueError: a level does not exist, or none is left to train on.
    """
    train = parse_levels(",".join(levels), task) if levels else own_levels(task)
    if not levels and not test:
        return Split(train if len(train) > 1 else (), ())
    if not train:
        raise ValueError(f"test_levels needs --levels with the task {task}")
    text = ",".join(test)
    if text.isdecimal():
        count = int(text)
        if not 1 <= count < len(train):
            raise ValueError(
                f"test_levels as a number must leave a level to train on: 1 to "
                f"{len(train) - 1} of {len(train)}, got {count}"
            )
        drawn = set(random.Random(0).sample(train, count))
        tested = tuple(level for level in train if level in drawn)
    else:
        tested = parse_levels(text, task) if text else ()
    left = tuple(level for level in train if level not in tested)
    if not left:
        raise ValueError(
            f"test_levels={text} leaves no level to train on; levels are "
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
