"""Search over snapshots: keep a state of every cell, go back to one, try, keep more.

The first phase of Go-Explore (Ecoffet et al. 2021, section 2): an archive of cells,
each with the snapshot that was reached in the fewest steps and the actions that led to
it. All environments try at the same time: each goes back to a cell, plays random
actions that are held for random times, and adds the cells that it comes into. Nothing
is learned.

Ways are exact: a snapshot is the whole state, so the actions of a cell, taken one after
the other from the start, lead to it again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Snapshot = npt.NDArray[np.uint8]

# Steps from a cell, and the chance that another action begins at one of them.
_TRY_STEPS = 20
_CHANGE = 0.18
# The newest cells are drawn so much oftener.
_NEWEST, _NEWEST_WEIGHT = 40, 4.0
# Cells become smaller when so many environment steps have found none.
_PATIENCE, _FINEST = 50_000, 3
_ROOM = 1024  # for cells at first; it doubles
_REPORT_SECONDS = 10.0

# Options under which episodes begin in several ways, and one under which actions do not
# always do the same.
_UNLIKE = ("noop_max", "noops", "random_stages")
_STICKY = "repeat_action_probability"

# Work RAM, and in it what Mario's feet do; 0: he stands ("Player_State" in
# csrc/mario/ram_map.h).
_RAM_BYTES, _FLOAT_STATE = 2048, 0x001D


class TooManyCellsError(ValueError):
    """A search has more cells than it may."""


class Rows(NamedTuple):
    """What n environments answered.

    Attributes:
        obs: what they observed, (n, ...), or a dictionary of such arrays.
        info: the arrays of the pool's info, (n,) each.
        terminated: (n,) bool.
        truncated: (n,) bool.
    """

    obs: Any
    info: dict[str, Any]
    terminated: BoolArray
    truncated: BoolArray


#: Which of n environments are where the search wants to get, (n,) bool.
Goal = Callable[[Rows], BoolArray]
#: The cell of each of n environments, (n,) or (n, k) integers: different for states
#: worth keeping. The number beside the rows counts from 0 on; cells should be smaller
#: with it.
Cells = Callable[[Rows, int], IntArray]


class Plan(NamedTuple):
    """A way to the goal.

    Attributes:
        actions: (steps,) int64, from the start.
        first_steps: steps of the first way that was found.
        found_after: environment steps of the search until then.
        searched: environment steps in all.
        seconds: of the search until the first way.
        cells: cells in the archive at the end.
        end: the environment's snapshot at the goal.
        info: what the pool said of the environment there.
        interrupted: Ctrl-C ended the search for shorter ways.
    """

    actions: IntArray
    first_steps: int
    found_after: int
    searched: int
    seconds: float
    cells: int
    end: Snapshot
    info: dict[str, Any]
    interrupted: bool


def flag(rows: Rows) -> BoolArray:
    """The goal of a level: its flag, or the axe of a castle."""
    reached: BoolArray = np.asarray(rows.info["flag_get"], bool)
    return reached


def none(rows: Rows) -> BoolArray:
    """No environment."""
    return np.zeros(len(rows.terminated), bool)


def place(rows: Rows, fineness: int = 0) -> IntArray:
    """Cells of 32 x 48 pixels by level, room (area and its pointer) and maze counters.

    Those that observe RAM tell standing from being in the air: who stands on a block
    that was hidden can do what nobody can who only jumped as high.

    Args:
        rows: of environments.
        fineness: how often cells are halved both ways.
    """
    info = rows.info
    keys = np.asarray(info["world"], np.int64) * 16 + info["stage"]
    keys = keys * 256 + info["area"]
    keys = keys * 128 + info["area_pointer"]
    keys = keys * 4352 + info["loop"]
    keys = keys * 8192 + np.asarray(info["x_pos"]) * 2**fineness // 32
    result: IntArray = keys * 128 + np.asarray(info["y_pos"]) * 2**fineness // 48
    # With several kinds of observation they are a dictionary.
    ram = rows.obs.get("ram") if isinstance(rows.obs, dict) else rows.obs
    if ram is not None and ram.ndim == 2 and ram.shape[1] == _RAM_BYTES:
        result = result * 2 + (ram[:, _FLOAT_STATE] == 0)
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
        pool: of `mario_envpool.make(..., env_type="gymnasium")`, in sync mode, whose
            environments all begin an episode alike: one stage, no idle frames, no
            sticky actions. `obs_type="ram"` with `stack_num=1` costs least.
        goal: where to get. It counts in the last step of an episode, too, and is not
            asked of the start.
        lost: from where not to go on, beside the ends of episodes. Where an
            environment skips a wait, info is of the frame before the wait, and
            observation and snapshot of the one after it.
        cells: which states are kept apart.
        weights: (actions,) how often each action is drawn; None: all alike. Or
            (manners, actions): each try is in one of these manners, all alike.
        start: a snapshot of one environment to begin from, not of an episode's end;
            None: the beginning of an episode.
        max_steps: environment steps until a way must be found.
        max_seconds: the same in seconds.
        max_cells: most cells; each keeps a snapshot, 12 KB with `obs_type="ram"`.
        shorten: environment steps that go into shorter ways, as a multiple of those
            that it took to find one; max_seconds holds for these by themselves, too.
        seed: of the random actions.
        report: is given a line about the search every ten seconds.

    Returns:
        The way of the fewest steps; None: none was found. With the same pool, options
        and seed it is the same way, on any number of threads, unless max_seconds or
        Ctrl-C ended the search. Ctrl-C while it searches for shorter ways ends that.

    Raises:
        ValueError: an argument or the pool does not fit, or there are too many cells.
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
    began, interrupted = time.monotonic(), False
    try:
        while search.searched < (1.0 + shorten) * found_after:
            if time.monotonic() - began > max_seconds:
                break
            step()
    except KeyboardInterrupt:
        interrupted = True  # what was found is worth keeping
    best = search.best
    return Plan(
        search.actions_to(best.node, best.actions),
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
    """Where the goal was reached.

    Attributes:
        node: that the try began from.
        actions: of the try.
        steps: from the start.
        snapshot: of the environment there.
        info: of its row.
    """

    node: int
    actions: IntArray
    steps: int
    snapshot: Snapshot
    info: dict[str, Any]


class Search:
    """The archive, and environments that try from its cells.

    Attributes:
        searched: environment steps so far.
        best: where the goal was reached in the fewest steps; None: nowhere.
    """

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
        """Begins with the start alone; the arguments are those of `plan`."""
        for name in (_STICKY, *(_UNLIKE if start is None else ())):
            if np.any(pool.config.get(name)):
                raise ValueError(
                    f"the pool has {name}={pool.config[name]}, so that a way would not "
                    "play again: make it without"
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
        self.searched = 0
        self._fineness = self._news = 0
        self.best: _Arrival | None = None
        # Nodes: how a cell was reached. They stay when a shorter way to their cell is
        # found, as others come after them.
        self._parents: list[int] = []
        self._trails: list[IntArray] = []
        # Of cells: number by key; node, steps from the start, times drawn, snapshot.
        self._numbers: dict[tuple[int, ...], int] = {}
        self._nodes, self._steps, self._drawn = np.zeros((3, _ROOM), np.int64)
        self._snapshots: Snapshot = np.empty((0, 0), np.uint8)
        # Of environments: node that the try began from and its steps, what was done
        # since, the key of the cell it is in, and the action that is held.
        n = len(self._envs)
        self._from, self._begun, self._tried = np.zeros((3, n), np.int64)
        self._keys: IntArray = np.zeros((n, 1), np.int64)
        self._acts = np.zeros((n, _TRY_STEPS), np.int64)
        self._held, self._manners = np.zeros((2, n), np.int64)
        self._begin(start)

    def __len__(self) -> int:
        """Cells in the archive."""
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
        keys = self._keys_of(rows, self._fineness)
        (entered,) = ((keys != self._keys).any(1) & ~lost & ~there).nonzero()
        self._keys = keys
        self._enter(entered)
        (over,) = (lost | there | (self._tried == _TRY_STEPS)).nonzero()
        if over.size:
            self._go_back(over)

    def actions_to(self, node: int, then: IntArray) -> IntArray:
        """The actions from the start to a node, and others behind them."""
        parts = [then]
        while node > 0:
            parts.append(self._trails[node])
            node = self._parents[node]
        return np.concatenate(parts[::-1])

    def _begin(self, start: Snapshot | bytes | None) -> None:
        """Puts the start into the archive, and all environments there."""
        answer = self._pool.reset()
        if start is not None:
            if isinstance(start, bytes):
                start = np.frombuffer(start, np.uint8)
            blobs = np.repeat(np.reshape(start, (1, -1)), len(self._envs), 0)
            self._pool.restore(self._envs, blobs, "keep")
            answer = self._pool.recv()
            if np.any(answer[2]) or np.any(answer[3]):
                raise ValueError(
                    "start is the end of an episode, after which another one begins: "
                    "give a snapshot from before it"
                )
        self._keys = self._keys_of(self._rows(answer[0], answer[-1]), 0)
        if (self._keys != self._keys[0]).any():
            raise ValueError(
                "the environments of the pool do not begin alike: plan one stage at a "
                "time, with noop_max=0"
            )
        one = self._pool.snapshot(self._envs[:1])
        self._snapshots = np.zeros((_ROOM, one.shape[1]), np.uint8)
        self._parents.append(0)
        self._trails.append(np.empty(0, np.int64))
        self._numbers[tuple(self._keys[0].tolist())] = 0
        self._snapshots[0] = one[0]
        self._drawn[0] = len(self._envs)

    def _rows(self, obs: Any, info: dict[str, Any]) -> Rows:
        """Environments that begin."""
        no = np.zeros(len(info["env_id"]), bool)
        return Rows(obs, info, no, no)

    def _keys_of(self, rows: Rows, fineness: int) -> IntArray:
        """The cells of environments, (n, k) int64."""
        keys = np.asarray(self._cells(rows, fineness))
        if keys.dtype.kind not in "iu" or keys.shape[:1] != rows.terminated.shape:
            raise ValueError(
                f"cells must return ({len(rows.terminated)},) or "
                f"({len(rows.terminated)}, k) integers, a row for each environment; "
                f"got {keys.dtype} of shape {keys.shape}"
            )
        return keys.reshape(len(keys), -1).astype(np.int64)

    def _arrive(self, there: BoolArray, info: dict[str, Any]) -> None:
        """Keeps the shortest way to the goal."""
        (envs,) = there.nonzero()
        if not envs.size:
            return
        steps = self._begun[envs] + self._tried[envs]
        env = int(envs[steps.argmin()])
        if self.best is None or steps.min() < self.best.steps:
            self.best = _Arrival(
                int(self._from[env]),
                self._acts[env, : self._tried[env]].copy(),
                int(steps.min()),
                self._pool.snapshot(self._envs[env : env + 1])[0],
                {key: info[key][env] for key in info if key != "players"},
            )

    def _enter(self, envs: IntArray) -> None:
        """Adds the cells that environments came into, if new, or sooner than known."""
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
                        f"there are more than max_cells={self._max_cells:,} cells, "
                        "each with a snapshot: make cells larger, or raise max_cells"
                    )
                self._numbers[key] = number
                if number == len(self._nodes):
                    self._grow()
                self._steps[number] = taken
                self._news = self.searched
            elif taken < self._steps[number]:
                self._steps[number] = taken
            else:
                continue
            wanted[number] = env
        if not wanted:
            return
        chosen = np.fromiter(wanted.values(), np.int64, len(wanted))
        numbers = np.fromiter(wanted.keys(), np.int64, len(wanted))
        self._snapshots[numbers] = self._pool.snapshot(self._envs[chosen])
        for number, env in zip(numbers.tolist(), chosen.tolist(), strict=True):
            self._nodes[number] = len(self._parents)
            self._parents.append(int(self._from[env]))
            self._trails.append(self._acts[env, : self._tried[env]].copy())

    def _go_back(self, envs: IntArray) -> None:
        """Lets environments try from cells anew."""
        numbers = self._draw(len(envs))
        np.add.at(self._drawn, numbers, 1)
        self._from[envs], self._begun[envs] = self._nodes[numbers], self._steps[numbers]
        self._tried[envs] = 0
        self._manners[envs] = self._random.integers(len(self._edges), size=len(envs))
        self._pool.restore(self._envs[envs], self._snapshots[numbers], "keep")
        answer = self._pool.recv()
        keys = self._keys_of(self._rows(answer[0], answer[-1]), self._fineness)
        order = np.argsort(np.asarray(answer[-1]["env_id"]), kind="stable")
        self._keys[envs] = keys[order]

    def _draw(self, count: int) -> IntArray:
        """Cells to try from: seldom tried ones oftener, and the newest ones."""
        known = len(self._numbers)
        weights = 1.0 / np.sqrt(1.0 + self._drawn[:known])
        weights[-_NEWEST:] *= _NEWEST_WEIGHT
        if self.best is not None:
            weights[self._steps[:known] >= self.best.steps] = 0.0
        edges = np.cumsum(weights)
        at = np.searchsorted(edges, self._random.random(count) * edges[-1], "right")
        drawn: IntArray = np.minimum(at, known - 1)
        return drawn

    def _grow(self) -> None:
        """Makes room for as many cells again."""
        pairs = [
            np.concatenate([a, np.zeros_like(a)])
            for a in (self._nodes, self._steps, self._drawn, self._snapshots)
        ]
        self._nodes, self._steps, self._drawn, self._snapshots = pairs


def _flags(found: Any, count: int, name: str) -> BoolArray:
    """What `goal` or `lost` has returned, (n,) bool."""
    flags = np.asarray(found)
    if flags.shape != (count,) or flags.dtype.kind != "b":
        raise ValueError(
            f"{name} must return ({count},) bool, one for each environment; got "
            f"{flags.dtype} of shape {flags.shape}"
        )
    return flags
