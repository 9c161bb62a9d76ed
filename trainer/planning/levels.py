"""Plans for single levels, and for the whole game, level after level."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import mario_envpool
from mario_envpool import _core
from trainer.config.options import option
from trainer.config.tasks import STAGES, all_levels, game_of
from trainer.machine.process import Interrupted
from trainer.planning import demonstration
from trainer.planning.demonstration import Demonstration
from trainer.planning.search import BoolArray, IntArray, Plan, Rows, flag, plan

# Buttons and their weights: mostly running and jumping to the right. DOWN enters pipes,
# without which the end of 8-4 cannot be reached; UP climbs.
TRIED = {
    "right+A+B": 30,
    "right+B": 22,
    "down": 12,
    "right+A": 6,
    "right": 6,
    "NOOP": 5,
    "left+B": 5,
    "left+A+B": 5,
    "A": 4,
    "A+B": 4,
    "left": 3,
    "up": 3,
    "right+down+B": 2,
}


# Lives left in work RAM, below 0 after the last one ("NumberofLives").
_LIVES = _core.ram_addresses["Lives"]


@dataclass(frozen=True)
class Budget:
    """How to search for a way through a level, and for how long."""

    num_envs: int = option(256, least=1)
    """Number of environments that search at the same time."""

    num_threads: int = option(0, least=0)
    """Emulation threads; 0: one per core."""

    frame_skip: int = option(4, least=1)
    """Frames per step; the buttons change only between steps."""

    max_steps: int = option(20_000_000, least=1)
    """Environment steps within which the search must find a way through a level."""

    max_seconds: float = option(math.inf, least=0)
    """Seconds within which the search must find a way through a level; 0: no limit. The
    search for shorter ways comes after it (see shorten)."""

    shorten: float = option(1.0, least=0)
    """Length of the search for shorter ways, as a multiple of the search for the first
    way; 0: no such search."""

    seed: int = option(1, least=0)
    """Seed of the random buttons. The same options and seed give the same way on any
    number of threads, unless max_seconds ends the search."""

    report: Callable[[str], None] | None = option(None, flag=False)  # noqa: RUF009
    """Receives a line about the search every ten seconds."""


class Found(NamedTuple):
    """The result of the search in a level.

    Attributes:
        level: name of the level.
        plan: the way; None if none was found.
        demonstration: demonstration of the level; None for a level of the whole game.
    """

    level: str
    plan: Plan | None
    demonstration: Demonstration | None = None


def _make_pool(task: str, budget: Budget, **options: Any) -> Any:
    """Environments to search in."""
    return mario_envpool.make(
        game_of(task),
        env_type="gymnasium",
        num_envs=budget.num_envs,
        num_threads=budget.num_threads,
        custom_actions=list(TRIED),
        frame_skip=budget.frame_skip,
        obs_type="ram",
        stack_num=1,
        **options,
    )


def plan_level(task: str, level: str, budget: Budget, **options: Any) -> Found:
    """Searches for a way through a level, and replays it as a check.

    Args:
        task: a task of the game.
        level: such as 1-1.
        budget: how long to search.
        options: options of the environment, such as cut_waits.

    Raises:
        ValueError: rom_path is among the options.
    """
    if options.get("rom_path"):
        raise ValueError(
            "rom_path cannot be used for plans, because a demonstration finds its ROM "
            "by name: leave it out, and set the environment variable MARIO_ROM"
        )
    with closing(_make_pool(task, budget, stages=[level], **options)) as pool:
        way = _plan(pool, budget)
        if way is None:
            return Found(level, None)
        buttons = _buttons(way.actions, budget)
        made = demonstration.record(game_of(task), level, pool.config, buttons)
        return Found(level, way, made)


def plan_game(
    task: str, budget: Budget, kept: Callable[[Demonstration], None], **options: Any
) -> Iterator[Found]:
    """Plans the whole game: each level from the state in which the last one ended.

    Waits play at full length, so that the result is a movie from power-on.

    Args:
        task: a task of the game.
        budget: how long to search in each level.
        kept: receives the demonstration after the last level.
        options: options of the environment.
    """
    with closing(_make_pool(task, budget, cut_waits=False, **options)) as pool:
        levels = all_levels(task)
        actions: list[np.ndarray[Any, Any]] = []
        start, lives = None, 0
        for number, level in enumerate(levels):
            is_last = number + 1 == len(levels)
            goal = _last_flag if is_last else _next_level(number)
            lost = _lost(number, lives)
            way = _plan(pool, budget, goal=goal, lost=lost, start=start)
            yield Found(level, way)
            if way is None:
                return
            if way.interrupted:
                raise Interrupted(way.interrupted)
            actions.append(way.actions)
            start, lives = way.end, int(way.info["life"])
        buttons = _buttons(np.concatenate(actions), budget)
        kept(demonstration.record(game_of(task), "", pool.config, buttons))


def _last_flag(rows: Rows) -> BoolArray:
    """The goal of the whole game: its last flag or axe."""
    return flag(rows) & rows.terminated


def _next_level(number: int) -> Callable[[Rows], BoolArray]:
    """The goal of a level of the whole game: the next level, not through a warp."""
    return lambda rows: (_level_now(rows) == number + 1) & ~rows.terminated


def _level_now(rows: Rows) -> IntArray:
    """The level that environments are in, counted from 0."""
    worlds = np.asarray(rows.info["world"], np.int64)
    now: IntArray = (worlds - 1) * STAGES + rows.info["stage"] - 1
    return now


def _lost(number: int, lives: int) -> Callable[[Rows], BoolArray]:
    """Environments that lost a life or reached a level other than the next one."""

    def lost(rows: Rows) -> BoolArray:
        # Not from info: after a skipped wait, info has the lives before the wait.
        left, now = rows.obs[:, _LIVES], _level_now(rows)
        gone: BoolArray = (now != number) & (now != number + 1)
        gone |= (left < (lives or 2)) | (left > 128)
        return gone

    return lost


def _plan(pool: Any, budget: Budget, **more: Any) -> Plan | None:
    return plan(
        pool,
        weights=list(TRIED.values()),
        max_steps=budget.max_steps,
        max_seconds=budget.max_seconds or math.inf,
        shorten=budget.shorten,
        seed=budget.seed,
        report=budget.report,
        **more,
    )


def _buttons(actions: np.ndarray[Any, Any], budget: Budget) -> Sequence[int]:
    """The bytes of every frame of some steps."""
    table = np.array([demonstration.byte_of(text) for text in TRIED])
    frames: list[int] = np.repeat(table[actions], budget.frame_skip).tolist()
    return frames
