"""Search over snapshots: keep a state of every cell, return to one, try, keep more.

The first phase of Go-Explore (Ecoffet et al. 2021, section 2): an archive of cells,
each with the snapshot that was reached in the fewest steps and the actions that led to
it. All environments try at the same time: each returns to a cell, plays random actions
that are held for random times, and adds the cells that it enters. Nothing is learned.

Ways are exact: a snapshot is the whole state, so the actions of a cell, played in order
from the start, always lead to the same state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mario_envpool import _core
from trainer.machine.process import signal_of

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Snapshot = npt.NDArray[np.uint8]

# Steps of a try, and the probability that another action begins at a step.
_TRY_STEPS = 20
_CHANGE = 0.18
# The newest cells are drawn more often by this factor.
_NEWEST, _NEWEST_WEIGHT = 40, 4.0
# Cells become smaller after this many environment steps without a new cell.
_PATIENCE, _FINEST = 50_000, 3
_REPORT_SECONDS = 10.0
# A plan has at most this many ways, up to this multiple of the shortest one.
_MOST_WAYS, _LONGEST = 24, 1.1

# Options under which episodes begin in several ways, and one under which the same
# actions have different results.
_UNLIKE = ("noop_max", "noops", "rng_frames_max", "random_stages")
_STICKY = "repeat_action_probability"

# Size of work RAM, and the address of Mario's state in it; 0: he stands. The blocks of
# two screens, 13 rows of 16 bytes each, and the number of a block that was hit.
_RAM_BYTES, _FLOAT_STATE = 2048, _core.ram_addresses["FloatState"]
_BLOCK_BUFFER = _core.ram_addresses["BlockBuffer"]
_BLOCKS, _USED = slice(_BLOCK_BUFFER, _BLOCK_BUFFER + 2 * 13 * 16), 0xC4


class TooManyCellsError(ValueError):
    """A search has more cells than `max_cells`."""


class Rows(NamedTuple):
    """The results of n environments.

    Attributes:
        obs: observations, (n, ...), or a dictionary of such arrays.
        info: the arrays of the pool's info, (n,) each.
        terminated: (n,) bool.
        truncated: (n,) bool.
    """

    obs: Any
    info: dict[str, Any]
    terminated: BoolArray
    truncated: BoolArray


#: Whether each of n environments has reached the goal, (n,) bool.
Goal = Callable[[Rows], BoolArray]
#: The cell of each of n environments, (n,) or (n, k) integers: different for states
#: that are worth keeping. The second argument, the fineness, counts from 0; cells
#: should get smaller as it grows.
Cells = Callable[[Rows, int], IntArray]


class Plan(NamedTuple):
    """A way to the goal.

    Attributes:
        ways: actions from the start, (steps,) int64 each; at most 24 ways of different
            lengths, the shortest first, up to 1.1 times as long as that one.
        first_steps: length in steps of the first way found.
        found_after: environment steps of the search until the first way.
        searched: total environment steps.
        seconds: time of the search until the first way.
        cells: cells in the archive at the end.
        end: the environment's snapshot at the goal.
        info: the environment's info at the goal.
        interrupted: number of the signal that ended the search for shorter ways; 0:
            none.
    """

    ways: list[IntArray]
    first_steps: int
    found_after: int
    searched: int
    seconds: float
    cells: int
    end: Snapshot
    info: dict[str, Any]
    interrupted: int

    @property
    def actions(self) -> IntArray:
        """The shortest way, (steps,) int64."""
        return self.ways[0]


def flag(rows: Rows) -> BoolArray:
    """The goal of a level: its flag, or the axe of a castle."""
    reached: BoolArray = np.asarray(rows.info["flag_get"], bool)
    return reached


def none(rows: Rows) -> BoolArray:
    """A mask without any environment."""
    return np.zeros(len(rows.terminated), bool)


def place(rows: Rows, fineness: int = 0) -> IntArray:
    """Cells of 32 x 48 pixels by level, room (area and its pointer) and maze counters.

    With RAM observations, standing and being in the air are different cells: from a
    hidden block, for example, only a standing Mario can jump further. Smaller cells are
    also separate for each number of blocks that were hit: a hidden block may have to be
    hit from below before Mario climbs onto it from elsewhere.

    Args:
        rows: rows of environments.
        fineness: how often to halve the cells in both directions.
    """
    info = rows.info
    keys = np.asarray(info["world"], np.int64) * 16 + info["stage"]
    keys = keys * 256 + info["area"]
    keys = keys * 128 + info["area_pointer"]
    keys = keys * 4352 + info["loop"]
    keys = keys * 8192 + np.asarray(info["x_pos"]) * 2**fineness // 32
    result: IntArray = keys * 128 + np.asarray(info["y_pos"]) * 2**fineness // 48
    # Several kinds of observation are a dictionary.
    ram = rows.obs.get("ram") if isinstance(rows.obs, dict) else rows.obs
    if ram is not None and ram.ndim == 2 and ram.shape[1] == _RAM_BYTES:
        result = result * 2 + (ram[:, _FLOAT_STATE] == 0)
        if fineness:
            used = (ram[:, _BLOCKS] == _USED).sum(1)
            result = result * 32 + np.minimum(used, 31)
    return result * 4 + fineness


def plan(
    pool: Any,
    *,
    goal: Goal = flag,
    lost: Goal = none,
    cells: Cells = place,
    weights: npt.ArrayLike | None = None,
    start: Snapshot | bytes | None = None,
    max_steps: int = 500_000,
    max_seconds: float = math.inf,
    max_cells: int = 100_000,
    shorten: float = 1.0,
    seed: int = 1,
    report: Callable[[str], None] | None = None,
) -> Plan | None:
    """Searches for a way from the start to a goal, and then for shorter ones.

    Args:
        pool: a pool from `mario_envpool.make(..., env_type="gymnasium")` in sync mode.
            All its environments must begin an episode in the same way: one stage, no
            idle frames, no sticky actions. `obs_type="ram"` with `stack_num=1` is
            fastest.
        goal: whether environments have reached the goal. The last step of an episode
            counts; the start is not checked.
        lost: environments that must not continue, in addition to those whose episodes
            have ended. If an environment skips a wait, info is that of the frame before
            the wait; observation and snapshot are those of the frame after it.
        cells: maps states to cells.
        weights: (actions,) weight of each action; None: all equal. Or (manners,
            actions): each try draws one of these rows with equal probability.
        start: a snapshot of one environment to begin from, not at the end of an
            episode; None: the start of an episode.
        max_steps: most environment steps until the first way.
        max_seconds: the same limit in seconds.
        max_cells: most cells; each keeps a snapshot, 12 KB with `obs_type="ram"`.
        shorten: environment steps of the search for shorter ways, as a multiple of the
            steps until the first way; max_seconds also limits this search, separately.
        seed: seed of the random actions.
        report: receives a line about the search every ten seconds.

    Returns:
        The way of the fewest steps; None if none was found. With the same pool, options
        and seed the way is the same on any number of threads, unless max_seconds or
        Ctrl-C ended the search. Ctrl-C during the search for shorter ways ends that
        search and returns the best way.

    Raises:
        ValueError: an argument or the pool is invalid, or there are too many cells.
    """
    search = Search(pool, goal, lost, cells, weights, start, seed, max_cells=max_cells)
    told = began = time.monotonic()

    def step() -> None:
        nonlocal told
        search.step()
        if report is not None and time.monotonic() - told > _REPORT_SECONDS:
            told = time.monotonic()
            report(f"{search.searched:,} steps searched, {len(search):,} cells")

    while search.best is None:
        if search.searched >= max_steps or time.monotonic() - began > max_seconds:
            return None
        step()
    seconds, found_after = time.monotonic() - began, search.searched
    first = search.best.steps
    began, interrupted = time.monotonic(), 0
    try:
        while search.searched < (1.0 + shorten) * found_after:
            if time.monotonic() - began > max_seconds:
                break
            step()
    except KeyboardInterrupt as error:
        interrupted = signal_of(error)  # keep the best way so far
    best = search.best
    return Plan(
        search.ways(),
        first,
        found_after,
        search.searched,
        seconds,
        len(search),
        best.snapshot,
        best.info,
        interrupted,
    )


class _Arrival(NamedTuple):
    """The shortest way's arrival at the goal."""

    steps: int  # from the start
    snapshot: Snapshot
    info: dict[str, Any]


class Search:
    """The archive, and environments that try from its cells."""

    def __init__(
        self,
        pool: Any,
        goal: Goal,
        lost: Goal,
        cells: Cells,
        weights: npt.ArrayLike | None,
        start: Snapshot | bytes | None,
        seed: int,
        *,
        max_cells: int,
    ) -> None:
        for name in (_STICKY, *(_UNLIKE if start is None else ())):
            if np.any(pool.config.get(name)):
                raise ValueError(
                    f"the pool has {name}={pool.config[name]}, under which ways do not "
                    "replay: make the pool without this option"
                )
        self._max_cells = max_cells
        self._pool, self._goal, self._lost, self._cells = pool, goal, lost, cells
        self._envs = np.arange(pool.config["num_envs"], dtype=np.int32)
        self._random = np.random.default_rng(seed)
        count = int(pool.action_space.n)
        odds = np.ones(count) if weights is None else np.asarray(weights, float)
        odds = np.atleast_2d(odds)
        fits = odds.ndim == 2 and odds.shape[1] == count
        if not fits or not (odds >= 0).all() or not odds.sum(1).all():
            raise ValueError(
                f"weights must be {count} numbers, one for each action, none below 0 "
                f"and not all 0, or rows of those; got {weights!r}"
            )
        self._edges = np.cumsum(odds / odds.sum(1, keepdims=True), axis=1)
        self._edges[:, -1] = 1.0
        self.searched = 0  # environment steps
        self._fineness = self._news = 0
        self.best: _Arrival | None = None  # the fewest steps
        # Of all arrivals: steps from the start, node where the try began, its actions.
        self._arrivals: list[tuple[int, int, IntArray]] = []
        # Nodes: how a cell was reached. A node stays when a shorter way to its cell is
        # found, because later nodes refer to it.
        self._parents: list[int] = []
        self._trails: list[IntArray] = []
        # Of cells: number by key; node, steps from the start, times drawn, snapshot.
        self._numbers: dict[tuple[int, ...], int] = {}
        self._nodes, self._steps, self._drawn = np.zeros((3, max_cells), np.int64)
        self._snapshots: dict[int, Snapshot] = {}
        # Of environments: the node that the try began from and its steps, the actions
        # since, the key of the current cell, and the held action.
        n = len(self._envs)
        self._from, self._begun, self._tried = np.zeros((3, n), np.int64)
        self._keys: IntArray = np.zeros((n, 1), np.int64)
        self._acts = np.zeros((n, _TRY_STEPS), np.int64)
        self._held, self._manners = np.zeros((2, n), np.int64)
        self._begin(start)

    def __len__(self) -> int:
        """Number of cells in the archive."""
        return len(self._numbers)

    def step(self) -> None:
        """Takes one step in every environment."""
        n = len(self._envs)
        change = (self._random.random(n) < _CHANGE) | (self._tried == 0)
        edges = self._edges[self._manners]
        drawn = (edges <= self._random.random(n)[:, None]).sum(1)
        self._held = np.where(change, drawn, self._held)
        self._acts[self._envs, self._tried] = self._held
        self._tried += 1
        self.searched += n
        if self.best is None and self.searched > self._news + _PATIENCE:
            self._fineness = min(self._fineness + 1, _FINEST)
            self._news = self.searched
        obs, _, terminated, truncated, info = self._pool.step(
            self._held.astype(np.int32)
        )
        rows = Rows(obs, info, np.asarray(terminated), np.asarray(truncated))
        there = _flags(self._goal(rows), n, "goal")
        self._arrive(there, rows.info)
        lost = rows.terminated | rows.truncated | _flags(self._lost(rows), n, "lost")
        keys = self._keys_of(rows)
        (entered,) = ((keys != self._keys).any(1) & ~lost & ~there).nonzero()
        self._keys = keys
        self._enter(entered)
        (over,) = (lost | there | (self._tried == _TRY_STEPS)).nonzero()
        if over.size:
            self._go_back(over)

    def actions_to(self, node: int, then: IntArray) -> IntArray:
        """The actions from the start to a node, followed by `then`."""
        parts = [then]
        while node > 0:
            parts.append(self._trails[node])
            node = self._parents[node]
        return np.concatenate(parts[::-1])

    def ways(self) -> list[IntArray]:
        """Ways of different lengths to the goal, see `Plan`."""
        arrivals = sorted(self._arrivals, key=lambda arrival: arrival[0])
        longest = _LONGEST * arrivals[0][0]
        count = sum(steps <= longest for steps, *_ in arrivals)
        chosen = np.unique(np.linspace(0, count - 1, _MOST_WAYS).astype(int))
        return [self.actions_to(*arrivals[number][1:]) for number in chosen.tolist()]

    def _begin(self, start: Snapshot | bytes | None) -> None:
        """Adds the start to the archive and puts all environments there."""
        answer = self._pool.reset()
        if start is not None:
            if isinstance(start, bytes):
                start = np.frombuffer(start, np.uint8)
            blobs = np.repeat(np.reshape(start, (1, -1)), len(self._envs), 0)
            self._pool.restore(self._envs, blobs, "keep")
            answer = self._pool.recv()
            if np.any(answer[2]) or np.any(answer[3]):
                raise ValueError(
                    "start is the end of an episode, after which another episode "
                    "begins: give an earlier snapshot"
                )
        self._keys = self._keys_at_start(answer)
        if (self._keys != self._keys[0]).any():
            raise ValueError(
                "the environments of the pool must all begin in the same state: plan "
                "one stage at a time, with noop_max=0"
            )
        self._parents.append(0)
        self._trails.append(np.empty(0, np.int64))
        self._numbers[tuple(self._keys[0].tolist())] = 0
        self._snapshots[0] = self._pool.snapshot(self._envs[:1])[0]
        self._drawn[0] = len(self._envs)

    def _keys_at_start(self, answer: tuple[Any, ...]) -> IntArray:
        """The cells of environments after a reset or a restored snapshot."""
        obs, info = answer[0], answer[-1]
        no = np.zeros(len(info["env_id"]), bool)
        return self._keys_of(Rows(obs, info, no, no))

    def _keys_of(self, rows: Rows) -> IntArray:
        """The cells of environments, (n, k) int64."""
        keys = np.asarray(self._cells(rows, self._fineness))
        if keys.dtype.kind not in "iu" or keys.shape[:1] != rows.terminated.shape:
            raise ValueError(
                f"cells must return ({len(rows.terminated)},) or "
                f"({len(rows.terminated)}, k) integers, a row for each environment; "
                f"got {keys.dtype} of shape {keys.shape}"
            )
        return keys.reshape(len(keys), -1).astype(np.int64)

    def _arrive(self, there: BoolArray, info: dict[str, Any]) -> None:
        """Keeps the ways to the goal, and the end of the shortest one."""
        (envs,) = there.nonzero()
        if not envs.size:
            return
        steps = self._begun[envs] + self._tried[envs]
        for env, taken in zip(envs.tolist(), steps.tolist(), strict=True):
            actions = self._acts[env, : self._tried[env]].copy()
            self._arrivals.append((taken, int(self._from[env]), actions))
        env = int(envs[steps.argmin()])
        if self.best is None or steps.min() < self.best.steps:
            self.best = _Arrival(
                int(steps.min()),
                self._pool.snapshot(self._envs[env : env + 1])[0],
                {key: info[key][env] for key in info if key != "players"},
            )

    def _enter(self, envs: IntArray) -> None:
        """Adds entered cells that are new or were reached in fewer steps."""
        steps = self._begun[envs] + self._tried[envs]
        wanted: dict[int, int] = {}  # environments by cell
        for env, parts, taken in zip(
            envs.tolist(), self._keys[envs].tolist(), steps.tolist(), strict=True
        ):
            if self.best is not None and taken >= self.best.steps:
                continue
            key = tuple(parts)
            number = self._numbers.get(key)
            if number is None:
                number = len(self._numbers)
                if number >= self._max_cells:
                    raise TooManyCellsError(
                        f"the search needs more than max_cells={self._max_cells:,} "
                        "cells: make cells larger, or raise max_cells"
                    )
                self._numbers[key] = number
                self._steps[number] = taken
                self._news = self.searched
            elif taken < self._steps[number]:
                self._steps[number] = taken
            else:
                continue
            wanted[number] = env
        if not wanted:
            return
        snapshots = self._pool.snapshot(self._envs[list(wanted.values())])
        for (number, env), snapshot in zip(wanted.items(), snapshots, strict=True):
            self._snapshots[number] = snapshot.copy()  # without the others' memory
            self._nodes[number] = len(self._parents)
            self._parents.append(int(self._from[env]))
            self._trails.append(self._acts[env, : self._tried[env]].copy())

    def _go_back(self, envs: IntArray) -> None:
        """Starts new tries of environments from cells."""
        numbers = self._draw(len(envs))
        np.add.at(self._drawn, numbers, 1)
        self._from[envs], self._begun[envs] = self._nodes[numbers], self._steps[numbers]
        self._tried[envs] = 0
        self._manners[envs] = self._random.integers(len(self._edges), size=len(envs))
        blobs = np.stack([self._snapshots[number] for number in numbers.tolist()])
        self._pool.restore(self._envs[envs], blobs, "keep")
        answer = self._pool.recv()
        keys = self._keys_at_start(answer)
        order = np.argsort(np.asarray(answer[-1]["env_id"]), kind="stable")
        self._keys[envs] = keys[order]

    def _draw(self, count: int) -> IntArray:
        """Draws cells to try from; rarely tried and new cells are drawn more often."""
        cells = len(self._numbers)
        weights = 1.0 / np.sqrt(1.0 + self._drawn[:cells])
        weights[-_NEWEST:] *= _NEWEST_WEIGHT
        if self.best is not None:
            weights[self._steps[:cells] >= self.best.steps] = 0.0
        edges = np.cumsum(weights)
        at = np.searchsorted(edges, self._random.random(count) * edges[-1], "right")
        drawn: IntArray = np.minimum(at, cells - 1)
        return drawn


def _flags(result: Any, count: int, name: str) -> BoolArray:
    """Checks the result of `goal` or `lost`, (n,) bool."""
    flags = np.asarray(result)
    if flags.shape != (count,) or flags.dtype.kind != "b":
        raise ValueError(
            f"{name} must return bool of shape ({count},), one per environment; got "
            f"{flags.dtype} of shape {flags.shape}"
        )
    return flags
