"""The archive: snapshots of cells that episodes can begin from, and what each is worth.

Half of the episodes from the archive begin where it is least certain whether they will
get a screen further, by what became of those that were there lately; and on the last
screen that was reached, until they get on from there, however seldom that is. Where the
policy always gets on there is little to learn, and where it never does it may be on a
wrong way.

The other half begin where episodes from the level's start come through and fail, though
it is proven that one can get on: the bottleneck between what the policy does and what
others have reached. Without them it learns a level's end from snapshots, but not the
way there.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainer.explore.cells import DECAY, MOST_CELLS, BoolArray, CellCounts, add_clear
from trainer.rollout.arrays import IntArray

FloatArray = npt.NDArray[np.float64]
Snapshot = npt.NDArray[np.uint8]

# Snapshots in the archive, and of them those that are offered at a time: at least so
# many, and so many for each stage.
_CAPACITY, _CAPACITY_PER_STAGE = 1024, 128
_OFFERED, _OFFERED_PER_STAGE = 128, 16
# A full archive makes room for one in so many of its snapshots.
_ROOM_SHARE = 16
# A snapshot that so many episodes began from makes room for another one of its cell
# that is as proven: a policy should not learn a single state by heart.
_USES = 8
# A snapshot from which nobody was seen to get on is given up when so many episodes
# began there and none lived on.
_HOPELESS = 16
# Share of the bottlenecks in what is offered.
_BOTTLENECKS = 0.5

# What is known of a snapshot: number of its cell; which of the pool's stages it is in;
# pixels of progress since the level's start; the game's clock; whether an episode has
# got on from it; how many snapshots came before it; episodes that began there, that
# have ended, and how many of these lived on; and how many from the level's start came
# through its cell and did not get on, recent ones counting more.
_ENTRY = np.dtype([
    *((name, np.int64) for name in "cell stage progress clock proven".split()),
    *((name, np.int64) for name in "number uses ended lived".split()),
    ("failed", np.float64),
])  # fmt: skip


class Candidate(NamedTuple):
    """A snapshot that may join the archive.

    Attributes:
        cell: number of its cell.
        stage: which of the pool's stages it is in.
        progress: pixels since the level's start.
        clock: the game's.
        snapshot: (bytes,) uint8.
    """

    cell: int
    stage: int
    progress: int
    clock: int
    snapshot: Snapshot


class Archive:
    """The best snapshot of each cell, and those of them that are on offer."""

    #: Pixels of progress from a cell on that count as getting on, and that the edge of
    #: what was reached is wide: a screen.
    SCREEN: ClassVar[int] = 256

    def __init__(self, counts: CellCounts, num_levels: int) -> None:
        """Begins with no snapshots.

        Args:
            counts: of the cells; tells how likely an episode gets on from each.
            num_levels: stages of the pool that are levels; 0 for the whole game.
        """
        self._counts = counts
        self._capacity = max(_CAPACITY, _CAPACITY_PER_STAGE * num_levels)
        self._num_offered = max(_OFFERED, _OFFERED_PER_STAGE * num_levels)
        self._offered_per_stage = self._num_offered // max(1, num_levels)
        self._slots: dict[int, int] = {}  # of cells
        self._slot_of = np.full(MOST_CELLS, -1, np.int32)  # the same, -1: none
        self._entries = np.zeros(self._capacity, _ENTRY)
        self._snapshots: Snapshot = np.empty((self._capacity, 0), np.uint8)
        self._free = list(range(self._capacity))
        self._added = 0
        #: Shares of clears in the episodes from each stage's snapshots, late ones
        #: counting more.
        self.clear_rates: FloatArray = np.zeros(max(1, num_levels))
        # Progress and number of the snapshots on offer, by cell. An environment may
        # still begin from those of before, where nobody waits for all of them.
        self._offered: dict[int, tuple[int, int]] = {}
        self._offered_before = self._offered

    def __len__(self) -> int:
        """Snapshots in the archive."""
        return len(self._slots)

    @property
    def progress(self) -> int:
        """Most pixels from a level's start to a cell of the archive."""
        return int(self._entries["progress"][self._used()].max(initial=0))

    # -- snapshots ------------------------------------------------------------

    def wants(self, cell: int, clock: int, *, proven: bool = True) -> bool:
        """Whether a cell has no snapshot as good: as proven, as new, as much time."""
        slot = self._slots.get(cell)
        if slot is None:
            return True
        entry = self._entries[slot]
        if entry["proven"] != proven:
            return proven
        return bool(entry["uses"] >= _USES or clock > entry["clock"])

    def wants_proven(
        self, cells: IntArray, clocks: npt.NDArray[np.integer]
    ) -> BoolArray:
        """As `wants`, of n cells and clocks: (n,) bool, about proven snapshots."""
        slots = self._slot_of[cells]
        known = self._entries[slots]
        wanted: BoolArray = (known["proven"] == 0) | (known["uses"] >= _USES)
        wanted |= (clocks > known["clock"]) | (slots < 0)
        return wanted

    def take(self, new: Candidate, *, proven: bool) -> None:
        """Adds a snapshot, unless a better one came meanwhile.

        Args:
            new: the snapshot.
            proven: whether an episode has got on from it.
        """
        if self.wants(new.cell, new.clock, proven=proven):
            self._add(new, proven=proven)

    def _add(self, new: Candidate, *, proven: bool) -> None:
        """Puts a snapshot in the place of its cell's last one."""
        progress, failed = new.progress, 0.0
        if new.cell in self._slots:
            known = self._entries[self._slots[new.cell]]
            # A short cut through a pipe does not count, and leads no less far.
            progress = max(progress, int(known["progress"]))
            failed = float(known["failed"])
        else:
            if not self._free:
                self._make_room()
            self._slots[new.cell] = self._slot_of[new.cell] = self._free.pop()
        slot = self._slots[new.cell]
        if not self._snapshots.shape[1]:
            self._snapshots = np.zeros((self._capacity, len(new.snapshot)), np.uint8)
        self._snapshots[slot] = new.snapshot
        about = new.cell, new.stage, progress, new.clock, proven, self._added
        self._entries[slot] = (*about, 0, 0, 0, failed)
        self._added += 1

    def _make_room(self) -> None:
        """Gives up what is worth least, some at a time, as weighing takes time."""
        used = self._used()
        count = max(1, self._capacity // _ROOM_SHARE)
        worst = used[np.argsort(self._weights(used), kind="stable")[:count]]
        for slot in worst.tolist():
            self._drop(slot)

    def _used(self) -> IntArray:
        """The slots of the archive that hold something, the oldest cell first."""
        return np.fromiter(self._slots.values(), np.int64, len(self._slots))

    def _weights(self, slots: IntArray) -> FloatArray:
        """What slots are worth to begin from; those of each stage add up to 1."""
        entries = self._entries[slots]
        stages, progress = entries["stage"], entries["progress"]
        furthest = np.zeros(stages.max(initial=0) + 1, np.int64)
        np.maximum.at(furthest, stages, progress)
        at_edge = progress > furthest[stages] - self.SCREEN
        chance = self._counts.chance(entries["cell"])
        # The variance p (1 - p) of whether it gets on; at the edge 1 - p more.
        uncertain = _shares((1.0 - chance) * (chance + at_edge), stages)
        failed = _shares(entries["failed"] * entries["proven"], stages)
        # Together they are less than 1 where there is no bottleneck.
        parts = (1.0 - _BOTTLENECKS) * uncertain + _BOTTLENECKS * failed
        return _shares(parts, stages)

    def _drop(self, slot: int) -> None:
        """Gives up a snapshot."""
        cell = int(self._entries["cell"][slot])
        del self._slots[cell]
        self._slot_of[cell] = -1
        self._free.append(slot)

    # -- episodes -------------------------------------------------------------

    def begin(self, cell: int) -> tuple[int, int]:
        """Notes that an episode begins from the snapshot of a cell.

        Returns:
            The snapshot's number, for `end`; -1 where it is not known which one it
            was; and the pixels from the level's start to it.
        """
        slot = self._slots.get(cell)
        offered = self._offered.get(cell) or self._offered_before.get(cell)
        if offered is None and slot is not None:
            # On offer longer ago; the distance of what is there now is near it.
            offered = int(self._entries["progress"][slot]), -1
        progress, number = offered or (0, -1)
        known = self._find(cell, number)
        if known is not None:
            self._entries["uses"][known] += 1
        return number, progress

    def end(self, cell: int, number: int, *, lived: bool) -> None:
        """Notes that an episode from a snapshot is over, and whether it lived on."""
        slot = self._find(cell, number)
        if slot is None:
            return
        entry = self._entries[slot]
        entry["ended"] += 1
        entry["lived"] += lived
        if entry["ended"] >= _HOPELESS and not (entry["lived"] or entry["proven"]):
            self._drop(slot)

    def prove(self, cell: int, number: int) -> None:
        """Notes that an episode has got on from a snapshot."""
        slot = self._find(cell, number)
        if slot is not None:
            self._entries["proven"][slot] = True

    def add_clear(self, stage: int, cleared: bool) -> None:
        """Counts whether an episode from a stage's snapshots cleared its level."""
        add_clear(self.clear_rates, stage, cleared)

    def add_failures(self, stage: int, cells: IntArray) -> None:
        """Notes where an episode from a level's start did not get on."""
        slots = self._slot_of[cells]
        slots = slots[slots >= 0]
        failed, here = self._entries["failed"], self._entries["stage"] == stage
        np.multiply(failed, DECAY, out=failed, where=here)
        # Who has warped to another level says nothing of the way there.
        failed[slots] += here[slots]

    def _find(self, cell: int, number: int) -> int | None:
        """The slot of a snapshot; None if it is not there any more.

        How episodes end that began at an older one of the cell says nothing of the
        newest.
        """
        slot = self._slots.get(cell)
        if slot is None or self._entries["number"][slot] != number:
            return None
        return slot

    # -- offers and checkpoints -----------------------------------------------

    def offer(self, shares: FloatArray) -> tuple[IntArray, FloatArray, Snapshot]:
        """The snapshots of the best cells, see `starts.Offers`."""
        slots = self._used()
        weights = self._weights(slots) * shares[self._entries["stage"][slots]]
        slots = slots[np.argsort(-weights, kind="stable")]
        # The best of every stage first, however many others share its weight.
        ranks = _ranks(self._entries["stage"][slots])
        enough = ranks >= self._offered_per_stage
        slots = slots[np.argsort(enough, kind="stable")[: self._num_offered]]
        entries = self._entries[slots]
        about = zip(
            entries["progress"].tolist(), entries["number"].tolist(), strict=True
        )
        self._offered_before = self._offered
        self._offered = dict(zip(entries["cell"].tolist(), about, strict=True))
        # What these few lack of a stage's share because others are not on offer.
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
        self._slot_of[:] = -1
        self._snapshots = np.zeros((self._capacity, snapshots.shape[1]), np.uint8)
        for entry, snapshot in zip(entries, snapshots, strict=True):
            slot = self._free.pop()
            self._slots[int(entry["cell"])] = self._slot_of[entry["cell"]] = slot
            self._entries[slot], self._snapshots[slot] = entry, snapshot


def _shares(weights: FloatArray, groups: IntArray) -> FloatArray:
    """Weights divided by the sum of their group's; 0 where that is 0."""
    sums = np.bincount(groups, weights)
    result: FloatArray = weights / np.where(sums > 0.0, sums, 1.0)[groups]
    return result


def _ranks(groups: IntArray) -> IntArray:
    """How many of its group come before each element: 0, 0, 1, 2, 1 for a b a a b."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    return ranks
