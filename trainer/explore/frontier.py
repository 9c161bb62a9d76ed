"""The frontier: snapshots of cells that episodes can begin from, and their weights.

The archive is that of Go-Explore (Ecoffet et al. 2021), filled while the policy trains:
when Mario enters a cell, the frontier keeps the environment's snapshot with its frame
stack. A snapshot may precede a death by a few frames. It therefore waits until its
episode gets a screen further, which proves that one can get on from there. If the
episode ends first, the snapshot joins the archive only if it was taken well before.

Half of the episodes from the archive begin where it is least certain that they get a
screen further, judged by recent episodes that were there; and on the last screen that
was reached, until episodes get on from it, however rarely. Where the policy always gets
on, there is little to learn; where it never does, it may be on a wrong way.

The other half begin where episodes from the level's start fail, although another
episode has proven that one can get on. Without these starts, the policy learns the end
of a level from snapshots, but not the way from the level's start to there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainer.explore.cells import (
    DECAY,
    BoolArray,
    CellCounts,
    Entered,
    FloatArray,
    add_clear,
)
from trainer.planning.search import Snapshot
from trainer.rollout.arrays import IntArray, span
from trainer.rollout.episodes import StepColumns

# Steps that an episode must live on after a good snapshot: a fall into a pit, or a jump
# into an enemy, is over by then.
_CONFIRM_STEPS = 16
_NEVER = np.iinfo(np.int64).max
# Where an episode began: the cell of its snapshot (or one of the two values below), the
# snapshot's number, and the pixels from the level's start to the snapshot.
_ORIGIN = np.dtype([(name, np.int64) for name in ("cell", "number", "progress")])
# At the level's start; and unknown, because the first row was not seen, as in a resumed
# run with a new archive.
_START, _UNKNOWN = -1, -2

# The most snapshots in the archive, and the number of them offered at a time: at least
# the first number, and the second per stage.
_CAPACITY, _CAPACITY_PER_STAGE = 1024, 128
_OFFERED, _OFFERED_PER_STAGE = 128, 16
# A full archive drops one in this many of its snapshots.
_ROOM_SHARE = 16
# After this many episodes from a snapshot, another snapshot of its cell replaces it if
# it is as proven: a policy should not memorize a single state.
_USES = 8
# A snapshot that is not proven is dropped if this many episodes began from it and none
# lived on.
_HOPELESS = 16
# Share of the bottlenecks in the offered weight.
_BOTTLENECKS = 0.5

# The record of a snapshot: number of its cell; index of its level among the pool's
# stages; pixels of progress since the level's start; the game's clock; whether an
# episode has got on from it; number of earlier snapshots; episodes that began there,
# how many of them have ended, and how many lived on; and how many episodes from the
# level's start passed its cell and did not get on, with more weight for recent ones.
_ENTRY = np.dtype([
    *((name, np.int64) for name in "cell stage progress clock proven".split()),
    *((name, np.int64) for name in "number uses ended lived".split()),
    ("failed", np.float64),
])  # fmt: skip


class Candidate(NamedTuple):
    """A snapshot that may join the archive."""

    cell: int
    stage: int  # index of its level among the pool's stages
    progress: int  # pixels since the level's start
    clock: int  # the game's countdown
    snapshot: Snapshot
    step: int = 0  # of its episode
    proof: int = 0  # progress of the episode that proves it


class Archive:
    """The best snapshot of each cell, and the snapshots that are on offer."""

    #: Pixels (one screen): an episode that progresses this far beyond a cell gets on
    #: from it; cells within this distance of the farthest one form the edge.
    SCREEN: ClassVar[int] = 256

    def __init__(self, counts: CellCounts, num_levels: int) -> None:
        self._counts = counts
        self._capacity = max(_CAPACITY, _CAPACITY_PER_STAGE * num_levels)
        self._num_offered = max(_OFFERED, _OFFERED_PER_STAGE * num_levels)
        self._offered_per_stage = self._num_offered // max(1, num_levels)
        self._slots: dict[int, int] = {}  # slot of each cell
        self._entries = np.zeros(self._capacity, _ENTRY)
        self._snapshots: Snapshot = np.empty((self._capacity, 0), np.uint8)
        self._free = list(range(self._capacity))
        self._added = 0
        #: Clear rates of the episodes from each stage's snapshots, with more weight
        #: for recent ones.
        self.clear_rates: FloatArray = np.zeros(max(1, num_levels))
        # Progress and number of the snapshots on offer, by cell. In async mode an
        # environment may still begin from an earlier offer.
        self._offered: dict[int, tuple[int, int]] = {}
        self._offered_before = self._offered

    def __len__(self) -> int:
        """Number of snapshots in the archive."""
        return len(self._slots)

    @property
    def progress(self) -> int:
        """Largest progress of a cell in the archive, in pixels from a level's start."""
        return int(self._entries["progress"][self._used()].max(initial=0))

    # -- snapshots ------------------------------------------------------------

    def wants(
        self, cells: IntArray, clocks: npt.NDArray[np.integer], *, proven: bool = True
    ) -> BoolArray:
        """Whether new snapshots would be better: proven, less used, or more time."""
        slots = self._slots_of(cells)
        present = self._entries[slots]
        better = (present["uses"] >= _USES) | (clocks > present["clock"])
        wanted: BoolArray = np.where(present["proven"] == proven, better, proven)
        return wanted | (slots < 0)

    def take(self, new: Candidate, *, proven: bool) -> None:
        """Adds a snapshot, unless a better one has been added in the meantime."""
        cell, clock = np.array([[new.cell], [new.clock]])
        if self.wants(cell, clock, proven=proven)[0]:
            self._add(new, proven=proven)

    def _add(self, new: Candidate, *, proven: bool) -> None:
        """Adds a snapshot; it replaces the last one of its cell."""
        progress, failed = new.progress, 0.0
        if new.cell in self._slots:
            replaced = self._entries[self._slots[new.cell]]
            # A short cut through a pipe adds no progress, but leads as far.
            progress = max(progress, int(replaced["progress"]))
            failed = float(replaced["failed"])
        else:
            if not self._free:
                self._make_room()
            self._slots[new.cell] = self._free.pop()
        slot = self._slots[new.cell]
        if not self._snapshots.shape[1]:
            self._snapshots = np.zeros((self._capacity, len(new.snapshot)), np.uint8)
        self._snapshots[slot] = new.snapshot
        self._entries[slot] = (
            new.cell, new.stage, progress, new.clock, proven, self._added, 0, 0, 0,
            failed,
        )  # fmt: skip
        self._added += 1

    def _make_room(self) -> None:
        """Drops the snapshots of least weight, several at a time to save time."""
        used = self._used()
        count = max(1, self._capacity // _ROOM_SHARE)
        worst = used[np.argsort(self._weights(used), kind="stable")[:count]]
        for slot in worst.tolist():
            self._drop(slot)

    def _slots_of(self, cells: IntArray) -> IntArray:
        """The slots of cells; -1 for a cell without a snapshot."""
        slots = (self._slots.get(cell, -1) for cell in cells.tolist())
        return np.fromiter(slots, np.int64, len(cells))

    def _used(self) -> IntArray:
        """The occupied slots of the archive, the oldest cell first."""
        return np.fromiter(self._slots.values(), np.int64, len(self._slots))

    def _weights(self, slots: IntArray) -> FloatArray:
        """The weights of slots as starts; the weights of each stage add up to 1."""
        entries = self._entries[slots]
        stages, progress = entries["stage"], entries["progress"]
        furthest = np.zeros(stages.max(initial=0) + 1, np.int64)
        np.maximum.at(furthest, stages, progress)
        at_edge = progress > furthest[stages] - self.SCREEN
        chance = self._counts.chance(entries["cell"])
        # The variance p (1 - p) of whether an episode gets on; at the edge 1 - p more.
        uncertain = _shares((1.0 - chance) * (chance + at_edge), stages)
        failed = _shares(entries["failed"] * entries["proven"], stages)
        # The sum is below 1 if a stage has no bottleneck.
        parts = (1.0 - _BOTTLENECKS) * uncertain + _BOTTLENECKS * failed
        return _shares(parts, stages)

    def _drop(self, slot: int) -> None:
        """Removes a snapshot."""
        cell = int(self._entries["cell"][slot])
        del self._slots[cell]
        self._free.append(slot)

    # -- episodes -------------------------------------------------------------

    def begin(self, cell: int) -> tuple[int, int]:
        """Records that an episode begins from the snapshot of a cell."""
        slot = self._slots.get(cell)
        offered = self._offered.get(cell) or self._offered_before.get(cell)
        if offered is None and slot is not None:
            # From an earlier offer; the cell's current snapshot is about as far.
            offered = int(self._entries["progress"][slot]), -1
        progress, number = offered or (0, -1)
        if (slot := self._find(cell, number)) is not None:
            self._entries["uses"][slot] += 1
        return number, progress

    def end(self, cell: int, number: int, *, lived: bool) -> None:
        """Records that an episode from a snapshot has ended, and if it lived on."""
        slot = self._find(cell, number)
        if slot is None:
            return
        entry = self._entries[slot]
        entry["ended"] += 1
        entry["lived"] += lived
        if entry["ended"] >= _HOPELESS and not (entry["lived"] or entry["proven"]):
            self._drop(slot)

    def prove(self, cell: int, number: int) -> None:
        """Records that an episode has got on from a snapshot."""
        if (slot := self._find(cell, number)) is not None:
            self._entries["proven"][slot] = True

    def add_failures(self, stage: int, cells: IntArray) -> None:
        """Records cells after which an episode from a level's start did not advance."""
        slots = self._slots_of(cells)
        slots = slots[slots >= 0]
        failed, here = self._entries["failed"], self._entries["stage"] == stage
        np.multiply(failed, DECAY, out=failed, where=here)
        # Cells of another level, after a warp, tell nothing about this level.
        failed[slots] += here[slots]

    def _find(self, cell: int, number: int) -> int | None:
        """The slot of a snapshot; None if the snapshot has been replaced or dropped.

        The outcome of an episode from an older snapshot tells nothing about the newest.
        """
        slot = self._slots.get(cell)
        if slot is None or self._entries["number"][slot] != number:
            return None
        return slot

    # -- offers and checkpoints -----------------------------------------------

    def offer(self, shares: FloatArray) -> tuple[IntArray, FloatArray, Snapshot]:
        """Stages, weights and states of the best snapshots, for stages with shares."""
        slots = self._used()
        weights = self._weights(slots) * shares[self._entries["stage"][slots]]
        slots = slots[np.argsort(-weights, kind="stable")]
        # The best of every stage first, however many others share its weight.
        ranks = _ranks(self._entries["stage"][slots])
        enough = ranks >= self._offered_per_stage
        slots = slots[np.argsort(enough, kind="stable")[: self._num_offered]]
        entries = self._entries[slots]
        columns = (entries[name].tolist() for name in ("cell", "progress", "number"))
        self._offered_before = self._offered
        self._offered = {
            cell: tuple(rest) for cell, *rest in zip(*columns, strict=True)
        }
        # Weigh only the offered snapshots, so that they get the stage's whole share.
        stages, weights = entries["stage"], self._weights(slots)
        return stages, weights * shares[stages], self._snapshots[slots]

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, in plain types and tensors."""
        slots = self._used()
        return {
            "added": self._added,
            "clear_rates": self.clear_rates.tolist(),
            "entries": torch.from_numpy(self._entries[slots].view(np.int64)),
            "snapshots": torch.from_numpy(self._snapshots[slots]),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state()` of an archive with the same cells and levels."""
        entries = state["entries"].cpu().numpy().view(_ENTRY)
        snapshots = state["snapshots"].cpu().numpy()
        self._added = state["added"]
        self.clear_rates = np.array(state["clear_rates"])
        self._free, self._slots = list(range(self._capacity)), {}
        self._snapshots = np.zeros((self._capacity, snapshots.shape[1]), np.uint8)
        for entry, snapshot in zip(entries, snapshots, strict=True):
            slot = self._free.pop()
            self._slots[int(entry["cell"])] = slot
            self._entries[slot], self._snapshots[slot] = entry, snapshot


def _shares(weights: FloatArray, groups: IntArray) -> FloatArray:
    """Weights divided by the sum of their group; 0 where that sum is 0."""
    sums = np.bincount(groups, weights)
    result: FloatArray = weights / np.where(sums > 0.0, sums, 1.0)[groups]
    return result


def _ranks(groups: IntArray) -> IntArray:
    """Number of earlier elements of the same group: 0, 0, 1, 2, 1 for a b a a b."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    return ranks


class Frontier:
    """Fills the archive with snapshots that episodes have proven to be good."""

    def __init__(
        self, pool: Any, counts: CellCounts, levels: Sequence[str], num_envs: int
    ) -> None:
        self._pool, self._counts, self._has_levels = pool, counts, bool(levels)
        self.archive = Archive(counts, len(levels))
        # For the open episode of each environment.
        self._origins = np.full(num_envs, np.array((_UNKNOWN, -1, 0), _ORIGIN))
        # The progress that proves the first waiting snapshot.
        self._proof = np.full(num_envs, _NEVER)
        self._waiting: list[deque[Candidate]] = [deque() for _ in range(num_envs)]

    def observe(self, columns: StepColumns, entered: Entered) -> None:
        """Takes the rows of one recv, before actions are sent."""
        c = columns
        if np.count_nonzero(c.is_first):  # rare
            self._begin(c, entered)
        # If an episode has several lives, the next life proves nothing about the last.
        if np.count_nonzero(c.lost_life):  # rare
            for env in c.env_id[c.lost_life & ~c.done].tolist():
                self._forget(env)
        advances = c.progress >= self._proof[span(c.env_id)]
        for row in (c.done | advances).nonzero()[0].tolist():
            self._prove(c, row)
            if c.done[row]:
                self._end(c, row)
        followed = self._origins["cell"][c.env_id[entered.rows]] != _UNKNOWN
        keep = entered.new & followed & ~(c.is_first | c.done)[entered.rows]
        if np.count_nonzero(keep):
            self._save(c, entered.rows[keep], entered.cells[keep])

    def _begin(self, c: StepColumns, entered: Entered) -> None:
        """Begins episodes, from snapshots of cells or at the starts of levels."""
        begun = np.flatnonzero(c.is_first)
        # A first row always enters a cell.
        cells = entered.cells[np.searchsorted(entered.rows, begun)]
        origins = np.where(c.from_snapshot[begun], cells, _START).tolist()
        for env, cell in zip(c.env_id[begun].tolist(), origins, strict=True):
            self._forget(env)
            snapshot = (-1, 0) if cell == _START else self.archive.begin(cell)
            self._origins[env] = (cell, *snapshot)

    def _save(self, c: StepColumns, rows: IntArray, cells: IntArray) -> None:
        """Takes snapshots for cells that need one; the snapshots begin to wait."""
        wanted = self._at_home(c, rows)
        wanted &= self.archive.wants(cells, c.clock[rows])
        rows, cells = rows[wanted], cells[wanted]
        if not rows.size:
            return
        envs = c.env_id[rows]
        # Mario may have been further, and a maze may have sent him back.
        progress = self._origins["progress"][envs] + c.progress[rows]
        progress -= c.room_best_x[rows] - c.x[rows]
        stages = np.maximum(c.place[rows], 0)
        proofs = c.progress[rows] + self.archive.SCREEN
        # Copies, because the other snapshots of a batch may not wait as long.
        snapshots = map(np.copy, self._pool.snapshot(envs))
        columns = (cells, stages, progress, c.clock[rows])
        values = (column.tolist() for column in columns)
        times = (c.step[rows].tolist(), proofs.tolist())
        for env, *fields in zip(envs.tolist(), *values, snapshots, *times, strict=True):
            self._waiting[env].append(Candidate(*fields))
            self._await(env)

    def _at_home(self, c: StepColumns, rows: IntArray) -> BoolArray:
        """Whether rows are in the level in which their episode began.

        Progress in another level is not a distance from that level's start.
        """
        if not self._has_levels:
            return np.ones(len(rows), bool)
        same: BoolArray = c.level[rows] == c.first_level[rows]
        return same & (c.place[rows] >= 0)

    def _prove(self, c: StepColumns, row: int) -> None:
        """Adds the snapshots from which an episode has got on to the archive."""
        env = int(c.env_id[row])
        waiting, progress = self._waiting[env], int(c.progress[row])
        while waiting and (c.cleared[row] or waiting[0].proof <= progress):
            self.archive.take(waiting.popleft(), proven=True)
        self._await(env)

    def _end(self, c: StepColumns, row: int) -> None:
        """Ends an episode; snapshots that still wait were too close to its end."""
        env, cleared = int(c.env_id[row]), bool(c.cleared[row])
        cell, number, _ = self._origins[env].tolist()
        if cell == _UNKNOWN:
            return
        lived = _NEVER if cleared else int(c.step[row]) - 1
        for new in self._waiting[env]:
            if new.step + _CONFIRM_STEPS <= lived:
                self.archive.take(new, proven=False)
        self._forget(env)
        self._add_outcome(c, row, cell, number)
        self.archive.end(cell, number, lived=lived >= _CONFIRM_STEPS)
        self._origins["cell"][env] = _UNKNOWN

    def _add_outcome(self, c: StepColumns, row: int, cell: int, number: int) -> None:
        """Records, for every cell of an episode, whether the episode got on from it."""
        cleared = bool(c.cleared[row])
        cells, progress = self._counts.trail(int(c.env_id[row]))
        advanced = cleared | (c.progress[row] >= progress + self.archive.SCREEN)
        self._counts.add_outcomes(cells, advanced)
        stage = int(c.first_place[row])
        if cell == _START:
            self.archive.add_failures(stage, cells[~advanced])
            return
        add_clear(self.archive.clear_rates, stage, cleared)
        if advanced[0]:
            self.archive.prove(cell, number)

    def _await(self, env: int) -> None:
        """Sets the progress that proves the first waiting snapshot."""
        waiting = self._waiting[env]
        self._proof[env] = waiting[0].proof if waiting else _NEVER

    def _forget(self, env: int) -> None:
        """Drops all waiting snapshots of an environment."""
        self._waiting[env].clear()
        self._proof[env] = _NEVER

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, in plain types and tensors."""
        archive = self.archive.state()
        items = [(env, x) for env, queue in enumerate(self._waiting) for x in queue]
        snapshots = np.empty((len(items), archive["snapshots"].shape[1]), np.uint8)
        if items:
            snapshots = np.stack([x.snapshot for _, x in items])
        return archive | {
            "origins": torch.from_numpy(self._origins.view(np.int64).copy()),
            "waiting": [[env, x.step, x.proof, *x[:4]] for env, x in items],
            "waiting_snapshots": torch.from_numpy(snapshots),
        }

    def restore(self, state: dict[str, Any], *, going_on: bool) -> None:
        """Continues from `state()`."""
        snapshots = state["snapshots"].cpu().numpy()
        if len(snapshots):
            count = self._pool.num_stages + len(snapshots)
            self._pool.set_starts(np.ones(count), snapshots)
        self.archive.restore(state)
        if not going_on:
            return
        self._origins = state["origins"].cpu().numpy().copy().view(_ORIGIN)
        blobs = state["waiting_snapshots"].cpu().numpy()
        for (env, step, proof, *facts), blob in zip(
            state["waiting"], blobs, strict=True
        ):
            self._waiting[env].append(Candidate._make([*facts, blob, step, proof]))
            self._await(env)
