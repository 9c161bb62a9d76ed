"""Demonstrations of a run's levels, found by search when the run begins.

Each search (trainer/planning/search.py) uses the run's actions and begins as the run's
episodes do, with idle frames. Environments with the run's options then replay the ways
that the searches find. So snapshots on a way can be starts of episodes, and its actions
are labels for the run's observations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainer.config.schema import EnvConfig
from trainer.config.tasks import game_of, level_number, level_numbers
from trainer.envs.pool import SEED_STRIDE, make_pool
from trainer.explore.cells import cell_keys
from trainer.planning.levels import TRIED
from trainer.planning.search import BoolArray, Rows, TooManyCellsError, plan
from trainer.rollout.arrays import IntArray
from trainer.rollout.episodes import OpenEpisodes

Bytes = npt.NDArray[np.uint8]

# One snapshot is kept per this many steps.
SPACING = 4
_NUM_ENVS = 256
# The most environment steps of a search without a result. 8-4 took 600,000.
_MOST_STEPS = 2_000_000
# After this many search steps for one level, no further way is searched, because a run
# learns more by training. Four ways through 8-4 took 2,100,000 steps, half of the time
# for that level in a campaign.
_ENOUGH = 500_000
# Environments and resets that look for the start of a way: with 31 possible numbers of
# idle frames, one reset fails in an eighth of all cases.
SEARCHED_ENVS, _RESETS = 64, 16
# Weight of actions that the planner's list does not have.
_SELDOM = 3


class Way(NamedTuple):
    """Actions from near a level's start to its end."""

    stage: int  # index of the level among the pool's stages
    start: Bytes  # snapshot from which the way begins
    actions: IntArray  # of the run's environments


@dataclass
class Demonstrations:
    """The demonstrations of a run."""

    found: list[Way] = field(default_factory=list)
    # Of each stage: the environment steps of every search that has ended.
    searches: list[list[int]] = field(default_factory=list)
    complete: bool = False  # all searches have ended

    def forget(self) -> None:
        """Drops all ways and searches."""
        self.found, self.searches, self.complete = [], [], False

    def state(self) -> Any:
        """What a resumed run needs, in plain types and tensors.

        A list of the ways once all searches have ended; before that, a dictionary that
        also has the searches; None before the first search has ended.
        """
        if not (self.complete or self.searches):
            return None
        found = [
            {name: torch.as_tensor(value) for name, value in way._asdict().items()}
            | {"stage": way.stage}
            for way in self.found
        ]
        return found if self.complete else {"found": found, "searches": self.searches}

    def restore(self, state: Any) -> None:
        """Continues from `state()`."""
        if state is None:
            return
        self.complete = isinstance(state, list)
        self.searches = [] if self.complete else state["searches"]
        self.found = [
            Way(
                way["stage"],
                *(way[name].cpu().numpy() for name in ("start", "actions")),
            )
            for way in (state if self.complete else state["found"])
        ]


class ReplayedWay(NamedTuple):
    """The observations, snapshots and cells along a way."""

    stage: int  # index of the level among the pool's stages
    actions: IntArray  # (steps,)
    obs: Bytes  # (steps, ...) before each action; (0,) if no longer needed
    snapshots: Bytes  # (n, bytes) before the first step and every `SPACING` steps
    cells: IntArray  # (steps + 1,) before each step, and at the end


def find_ways(
    env: EnvConfig,
    levels: Sequence[str],
    seed: int,
    *,
    per_level: int,
    log: Callable[[str], None],
    ways: Demonstrations | None = None,
) -> list[Way]:
    """Searches for ways through the levels of a run."""
    ways = Demonstrations() if ways is None else ways
    random = np.random.default_rng(seed)
    pool = pool_like(env, seed, SEARCHED_ENVS)
    try:
        for stage, level in enumerate(levels):
            if stage == len(ways.searches):
                ways.searches.append([])
            steps, began = ways.searches[stage], time.monotonic()
            before = len(steps)
            for number in range(per_level):
                if sum(steps[:number]) >= _ENOUGH:
                    break
                noops = int(random.integers(env.noop_max + 1))
                if number < before:
                    continue
                actions, searched = _search(env, level, seed + number, noops, log)
                start = None if actions is None else _start_of(pool, stage, actions)
                if actions is not None and start is not None:
                    ways.found.append(Way(stage, start, actions))
                steps.append(searched)
                if actions is None:
                    break  # another search would take equally long
            if len(steps) > before:
                log(_describe(level, ways, stage, time.monotonic() - began))
        ways.complete = True
        return ways.found
    finally:
        pool.close()


def _describe(level: str, ways: Demonstrations, stage: int, seconds: float) -> str:
    """One line about the ways through a level."""
    lengths = [str(len(way.actions)) for way in ways.found if way.stage == stage]
    found = f"{', '.join(lengths)} steps" if lengths else "none found"
    return (
        f"demonstrations of {level}: {found} ({sum(ways.searches[stage]):,} search "
        f"steps, {seconds:.1f} s)"
    )


def pool_like(env: EnvConfig, seed: int, num_envs: int, **more: Any) -> Any:
    """A pool like the run's, with another size; it accepts the run's snapshots."""
    config = replace(env, num_envs=num_envs, groups=1, reward_fn="")
    return make_pool(config, seed * SEED_STRIDE, **more)


def _search(
    env: EnvConfig, level: str, seed: int, noops: int, log: Callable[[str], None]
) -> tuple[IntArray | None, int]:
    """Searches for actions from a level's start to its end; also returns its steps.

    The search observes RAM, which costs nothing and tells standing from jumping.
    """

    def elsewhere(rows: Rows) -> BoolArray:
        # A warp zone leads to another level.
        there: BoolArray = level_numbers(rows.info) != level_number(level)
        return there

    pool = pool_like(
        replace(env, task=game_of(env.task), obs="pixels", noop_max=0, levels=(level,)),
        seed,
        _NUM_ENVS,
        obs_type="ram",
        stack_num=1,
        noops=[noops],
    )
    try:
        pool.reset()
        found = plan(
            pool,
            lost=elsewhere,
            weights=[float(TRIED.get(action, _SELDOM)) for action in env.actions],
            start=pool.snapshot(np.zeros(1, np.int32))[0],
            max_steps=_MOST_STEPS,
            shorten=0.0,
            seed=seed,
            report=lambda line: log(f"demonstrations of {level}: {line}"),
        )
    except TooManyCellsError:
        found = None
    finally:
        pool.close()
    if found is None:
        return None, _MOST_STEPS
    return found.actions, found.searched


def _start_of(pool: Any, stage: int, actions: IntArray) -> Bytes | None:
    """A start of the run's environments from which actions lead to the level's end.

    The idle frames of a start are random, so this tries many resets.
    """
    for starts in starts_of(pool, stage, _RESETS):
        ended = np.zeros(len(starts), bool)
        for action in actions:
            chosen = np.full(len(starts), action, np.int32)
            *_, terminated, truncated, info = pool.step(chosen)
            there = terminated & info["flag_get"] & ~ended
            ended |= terminated | truncated
        if there.any():
            start: Bytes = starts[there.argmax()].copy()
            return start
    return None


def starts_of(pool: Any, stage: int, resets: int) -> Iterator[Bytes]:
    """Snapshots of all environments of a pool after each of some resets."""
    pool.set_starts(np.eye(pool.num_stages)[stage])
    for _ in range(resets):
        pool.reset()
        yield pool.snapshot(np.arange(len(pool.all_env_ids), dtype=np.int32))


def walk(
    env: EnvConfig, ways: Sequence[Way], seed: int, cell_size: int
) -> list[ReplayedWay]:
    """Replays ways and keeps their observations, snapshots and cells."""
    if not ways:
        return []
    pool = pool_like(env, seed, len(ways))
    try:
        return _walk(pool, ways, cell_size)
    finally:
        pool.close()


def _walk(pool: Any, ways: Sequence[Way], cell_size: int) -> list[ReplayedWay]:
    """See `walk`; replays all ways at the same time, one environment per way."""
    envs = np.arange(len(ways), dtype=np.int32)
    lengths = np.array([len(way.actions) for way in ways])
    actions = np.zeros((lengths.max(), len(ways)), np.int32)
    for env, way in enumerate(ways):
        actions[: len(way.actions), env] = way.actions
    pool.reset()
    pool.restore(envs, np.stack([way.start for way in ways]), "keep")
    record = OpenEpisodes(len(ways), num_stages=pool.num_stages)

    def cells_of(rows: Sequence[Any]) -> IntArray:
        """The cells that all environments are in, from the results of recv."""
        return cell_keys(record.observe(*rows[1:]), cell_size)

    rows = pool.recv()
    obs, cells = rows[0], [cells_of(rows)]
    seen: list[list[Bytes]] = [[] for _ in ways]
    kept: list[list[Bytes]] = [[] for _ in ways]
    for step, chosen in enumerate(actions):
        (going,) = (lengths > step).nonzero()
        for env in going.tolist():
            seen[env].append(obs[env].copy())
        if step % SPACING == 0:
            blobs = pool.snapshot(envs[going])
            for env, blob in zip(going.tolist(), blobs, strict=True):
                kept[env].append(blob.copy())
        pool.send(chosen, envs)
        rows = pool.recv()
        obs, _, terminated, _, info = rows
        cells.append(cells_of(rows))
        ended = lengths == step + 1
        if not (terminated & info["flag_get"])[ended].all():
            raise ValueError("a demonstration does not reach the end of its level")
    return [
        ReplayedWay(
            way.stage,
            way.actions,
            np.stack(seen[env]),
            np.stack(kept[env]),
            np.stack(cells)[: lengths[env] + 1, env],
        )
        for env, way in enumerate(ways)
    ]
