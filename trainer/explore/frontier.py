"""The frontier: snapshots of the cells that were reached, to begin episodes from.

An archive as of Go-Explore (Ecoffet et al. 2021), filled while the policy is trained:
where Mario comes into a cell, the environment's snapshot is kept, with its frame stack.

A snapshot may be of one who is about to die. It therefore waits until its episode gets
a screen further, which proves that one can from there; or until the episode ends, and
then joins the archive only if it was taken well before.

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

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainer.envs.levels import level_number, level_numbers, x_in_room
from trainer.explore.cells import DECAY, BoolArray, CellCounts, Entered, IntArray

FloatArray = npt.NDArray[np.float64]
Snapshot = npt.NDArray[np.uint8]

# Steps that an episode must live on if its snapshot is to be a good one: a fall into a
# pit, or a jump that will end in an enemy, is over by then.
_CONFIRM_STEPS = 16
# Snapshots in the archive, and of them those that are offered at a time: at least so
# many, and so many for each stage.
_CAPACITY, _CAPACITY_PER_STAGE = 1024, 128
_OFFERED, _OFFERED_PER_STAGE = 128, 16
# A full archive makes room for one in so many of its snapshots.
_ROOM_SHARE = 16
# A snapshot that so many episodes began from makes room for another one of its cell
# that is as proven: a policy should not learn a single state by heart.
_USES = 8
# Pixels of progress from a cell on that count as getting on, and that the edge of
# what was reached is wide: a screen.
_SCREEN = 256
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
# Where an episode began that did not begin at a cell of the archive: at the level's
# start, or at a snapshot that is not there any more.
_START, _GONE = -1, -2
# A room's number has its area in so many bits, and its level's number above.
_AREA_BITS = 8
_NEVER = np.iinfo(np.int64).max
# Arrays of one number per environment, about its open episode.
_OPEN = ("_seen", "_origin", "_level", "_room", "_best_x", "_progress", "_life")


class _Waiting(NamedTuple):
    """A snapshot of a step, whose episode has to get on to a progress of `proof`."""

    step: int
    proof: int
    cell: int
    stage: int
    progress: int
    clock: int
    snapshot: Snapshot


class Frontier:
    """The archive; the collector tells it of every row."""

    def __init__(
        self, pool: Any, counts: CellCounts, levels: Sequence[str], num_envs: int
    ) -> None:
        """Begins with an empty archive.

        Args:
            pool: with snapshot, and num_stages.
            counts: of the cells that it is told of.
            levels: names of the pool's stages, in its order; () if episodes begin
                at one place and may get to any level, as in the whole game.
            num_envs: environments in the pool.
        """
        self._pool, self._counts = pool, counts
        self._stages = {level_number(name): i for i, name in enumerate(levels)}
        self._capacity = max(_CAPACITY, _CAPACITY_PER_STAGE * len(levels))
        self._num_offered = max(_OFFERED, _OFFERED_PER_STAGE * len(levels))
        self._slots: dict[int, int] = {}  # of cells
        self._entries = np.zeros(self._capacity, _ENTRY)
        self._snapshots: Snapshot = np.empty((self._capacity, 0), np.uint8)
        self._free = list(range(self._capacity))
        self._added = 0
        #: Shares of clears in the episodes from each stage's snapshots, late ones
        #: counting more.
        self.clear_rates: FloatArray = np.zeros(max(1, len(levels)))
        # Progress and number of the snapshots on offer, by cell. An environment may
        # still begin from those of before, where nobody waits for all of them.
        self._offered: dict[int, tuple[int, int]] = {}
        self._offered_before = self._offered
        # About the open episode of each environment; `seen`: from its first row on.
        self._seen = np.zeros(num_envs, bool)
        self._origin = np.full(num_envs, _START, np.int64)
        self._level = np.zeros(num_envs, np.int64)  # in which it began
        self._room = np.zeros(num_envs, np.int64)
        self._best_x = np.zeros(num_envs, np.int64)
        self._progress = np.zeros(num_envs, np.int64)
        self._life = np.zeros(num_envs, np.int64)
        # The progress that proves the first snapshot that waits.
        self._proof = np.full(num_envs, _NEVER)
        # The cells in which it was, and the progress that it had there.
        self._trails: list[list[tuple[int, int]]] = [[] for _ in range(num_envs)]
        self._waiting: list[deque[_Waiting]] = [deque() for _ in range(num_envs)]

    def __len__(self) -> int:
        """Snapshots in the archive."""
        return len(self._slots)

    @property
    def progress(self) -> int:
        """Most pixels from a level's start to a cell of the archive."""
        return int(self._entries["progress"][self._used()].max(initial=0))

    def follow(
        self,
        env_id: npt.NDArray[np.int32],
        first: BoolArray,
        done: BoolArray,
        info: Mapping[str, Any],
        entered: Entered,
    ) -> None:
        """Takes the rows of one recv, before actions are sent.

        Args:
            env_id: (n,) which environments, all at rest.
            first: (n,) their rows begin episodes.
            done: (n,) their rows end episodes.
            info: of the rows.
            entered: who came into another cell.
        """
        step, begin = info["elapsed_step"], np.flatnonzero(first)
        # A first row always enters a cell.
        cells = entered.cells[np.searchsorted(entered.rows, begin)]
        elsewhere = info["start"][begin] >= self._pool.num_stages
        origins = np.where(elsewhere, cells, _START).tolist()
        for env, origin in zip(env_id[begin].tolist(), origins, strict=True):
            self._begin(env, origin)
        self._advance(env_id, first, info)
        self._level[env_id[begin]] = self._room[env_id[begin]] >> _AREA_BITS
        envs = env_id[entered.rows]
        new = entered.new & self._seen[envs]
        cells, progress = entered.cells[new], self._progress[envs[new]]
        passed = zip(cells.tolist(), progress.tolist(), strict=True)
        for env, place in zip(envs[new].tolist(), passed, strict=True):
            self._trails[env].append(place)
        # Where several lives make an episode, the next one proves nothing of the last.
        lost = ~done & (info["life"] < self._life[env_id])
        for env in env_id[lost].tolist():
            self._waiting[env].clear()
            self._await(env)
        self._life[env_id] = info["life"]
        gets_on = self._progress[env_id] >= self._proof[env_id]
        for row in np.flatnonzero(done | gets_on).tolist():
            env, cleared = int(env_id[row]), bool(info["flag_get"][row])
            self._prove(env, cleared)
            if done[row] and self._seen[env]:
                lived = _NEVER if cleared else int(step[row]) - 1
                self._confirm(env, lived)
                self._judge(env, cleared)
                self._end(env, lived >= _CONFIRM_STEPS)
        keep = new & ~(first | done)[entered.rows]
        if keep.any():
            self._save(env_id, step, info, entered.rows[keep], entered.cells[keep])

    def _begin(self, env: int, origin: int) -> None:
        """An episode begins, from the snapshot of a cell or at `_START`."""
        self._seen[env] = True
        self._forget(env)
        slot = self._slots.get(origin)
        offered = self._offered.get(origin) or self._offered_before.get(origin)
        if offered is None and slot is not None:
            # On offer longer ago; the distance of what is there now is near it.
            offered = int(self._entries["progress"][slot]), -1
        self._progress[env], number = offered or (0, -1)
        self._origin[env] = _START if origin == _START else _GONE
        # What became of the episode will be noted, unless there is another one by now.
        if slot is not None and self._entries["number"][slot] == number:
            self._origin[env] = origin
            self._entries["uses"][slot] += 1

    def _advance(
        self,
        env_id: npt.NDArray[np.int32],
        first: BoolArray,
        info: Mapping[str, Any],
    ) -> None:
        """Adds new best positions, each within its room, to the progress."""
        room = level_numbers(info) << _AREA_BITS | info["area_pointer"]
        # There is no best position yet where Mario grew or shrank in the first row.
        best_x = np.maximum(info["best_x"], x_in_room(info))
        goes_on = ~first & (room == self._room[env_id])
        gain = np.maximum(best_x - self._best_x[env_id], 0)
        self._progress[env_id] += np.where(goes_on, gain, 0)
        self._room[env_id], self._best_x[env_id] = room, best_x

    def _save(
        self,
        env_id: npt.NDArray[np.int32],
        step: npt.NDArray[np.int32],
        info: Mapping[str, Any],
        rows: IntArray,
        cells: IntArray,
    ) -> None:
        """Snapshots of environments whose cells want one begin to wait."""
        envs, clocks, x = env_id[rows], info["time"][rows], x_in_room(info)[rows]
        levels = self._room[envs] >> _AREA_BITS
        # Who has gone on to another level is not at a distance from that one's start.
        at_home = (levels == self._level[envs]) | (not self._stages)
        # He may have been further, and thrown back by a maze.
        progress = self._progress[envs] - (self._best_x[envs] - x)
        wanted = [
            (row, cell, self._stages.get(level, 0), far, clock)
            for row, cell, level, far, clock, here in zip(
                rows.tolist(), cells.tolist(), levels.tolist(), progress.tolist(),
                clocks.tolist(), at_home.tolist(), strict=True,
            )
            if here and (level in self._stages or not self._stages)
            and self._wants(cell, clock)
        ]  # fmt: skip
        if not wanted:
            return
        envs = env_id[[row for row, *_ in wanted]]
        snapshots = self._pool.snapshot(envs)
        for env, snapshot, (row, cell, stage, far, clock) in zip(
            envs.tolist(), snapshots, wanted, strict=True
        ):
            proof = int(self._progress[env]) + _SCREEN
            # Of its own, as the others of its batch may not wait as long.
            about = cell, stage, far, clock, snapshot.copy()
            self._waiting[env].append(_Waiting(int(step[row]), proof, *about))
            self._await(env)

    def _await(self, env: int) -> None:
        """Notes what would prove the first snapshot that waits."""
        waiting = self._waiting[env]
        self._proof[env] = waiting[0].proof if waiting else _NEVER

    def _wants(self, cell: int, clock: int, *, proven: bool = True) -> bool:
        """Whether a cell has no snapshot as good: as proven, as new, as much time."""
        slot = self._slots.get(cell)
        if slot is None:
            return True
        entry = self._entries[slot]
        if entry["proven"] != proven:
            return proven
        return bool(entry["uses"] >= _USES or clock > entry["clock"])

    def _prove(self, env: int, cleared: bool) -> None:
        """Takes the snapshots from which an episode has got on."""
        waiting, progress = self._waiting[env], int(self._progress[env])
        while waiting and (cleared or waiting[0].proof <= progress):
            self._take(waiting.popleft(), proven=True)
        self._await(env)

    def _confirm(self, env: int, lived: int) -> None:
        """Takes the other snapshots of an episode that has lived to a step."""
        for new in self._waiting[env]:
            if new.step + _CONFIRM_STEPS <= lived:
                self._take(new, proven=False)

    def _take(self, new: _Waiting, *, proven: bool) -> None:
        """Puts a snapshot into the archive, unless a better one came meanwhile."""
        if self._wants(new.cell, new.clock, proven=proven):
            self._add(new, proven=proven)

    def _judge(self, env: int, cleared: bool) -> None:
        """Notes of every cell of an episode whether it got on from there."""
        cells, progress = np.array(self._trails[env], np.int64).reshape(-1, 2).T
        got_on = cleared | (self._progress[env] >= progress + _SCREEN)
        self._counts.judge(cells, got_on)
        stage = self._stages.get(int(self._level[env]), 0)
        if self._origin[env] == _START:
            self._note_failures(stage, cells[~got_on])
            return
        rate = self.clear_rates[stage]
        self.clear_rates[stage] = rate + (1.0 - DECAY) * (cleared - rate)
        slot = self._slots.get(int(self._origin[env]))
        if slot is not None and got_on[0]:
            self._entries["proven"][slot] = True

    def _note_failures(self, stage: int, cells: IntArray) -> None:
        """Notes where an episode from a level's start did not get on."""
        slots = [self._slots[cell] for cell in cells.tolist() if cell in self._slots]
        failed, here = self._entries["failed"], self._entries["stage"] == stage
        failed[here] *= DECAY
        # Who has warped to another level says nothing of the way there.
        failed[slots] += here[slots]

    def _end(self, env: int, lived: bool) -> None:
        """An episode is over; what still waits was too close to its end."""
        self._forget(env)
        self._seen[env] = False
        slot = self._slots.get(int(self._origin[env]))
        if slot is None:
            return
        entry = self._entries[slot]
        entry["ended"] += 1
        entry["lived"] += lived
        if entry["ended"] >= _HOPELESS and not (entry["lived"] or entry["proven"]):
            self._drop(slot)

    def _forget(self, env: int) -> None:
        """Nothing waits any more."""
        self._waiting[env].clear()
        self._trails[env].clear()
        self._proof[env] = _NEVER

    def _drop(self, slot: int) -> None:
        """Gives up a snapshot."""
        del self._slots[int(self._entries["cell"][slot])]
        self._free.append(slot)

    def _add(self, new: _Waiting, *, proven: bool) -> None:
        """Puts a snapshot into the archive, in the place of its cell's last one."""
        progress, failed = new.progress, 0.0
        if new.cell in self._slots:
            known = self._entries[self._slots[new.cell]]
            # A short cut through a pipe does not count, and leads no less far.
            progress = max(progress, int(known["progress"]))
            failed = float(known["failed"])
        else:
            if not self._free:
                self._make_room()
            self._slots[new.cell] = self._free.pop()
        # How episodes end that began at an older one says nothing of this one.
        self._origin[self._origin == new.cell] = _GONE
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
        at_edge = progress > furthest[stages] - _SCREEN
        chance = self._counts.chance(entries["cell"])
        # The variance p (1 - p) of whether it gets on; at the edge 1 - p more.
        uncertain = _shares((1.0 - chance) * (chance + at_edge), stages)
        failed = _shares(entries["failed"] * entries["proven"], stages)
        # Together they are less than 1 where there is no bottleneck.
        parts = (1.0 - _BOTTLENECKS) * uncertain + _BOTTLENECKS * failed
        return _shares(parts, stages)

    def offer(self, shares: FloatArray) -> tuple[IntArray, FloatArray, Snapshot]:
        """The starts that are best to begin from now.

        Args:
            shares: (stages,) weight that the starts of each stage are to have
                together.

        Returns:
            Of n starts: (n,) int64 their stages; (n,) weights, which add up to the
            shares of those stages; (n, bytes) uint8 snapshots.
        """
        slots = self._used()
        weights = self._weights(slots) * shares[self._entries["stage"][slots]]
        slots = slots[np.argsort(-weights, kind="stable")]
        # The best of every stage first, however many others share its weight.
        ranks = _ranks(self._entries["stage"][slots])
        enough = ranks >= self._num_offered // max(1, len(self._stages))
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
        items = [(env, x) for env, queue in enumerate(self._waiting) for x in queue]
        none = np.empty((0, self._snapshots.shape[1]), np.uint8)
        snapshots = np.stack([x.snapshot for _, x in items]) if items else none
        return {
            "fields": list(_ENTRY.names or ()),
            "added": self._added,
            "clear_rates": self.clear_rates.tolist(),
            "entries": torch.from_numpy(self._entries[slots].view(np.int64)),
            "snapshots": torch.from_numpy(self._snapshots[slots]),
            "waiting": [[env, *x[:-1]] for env, x in items],
            "waiting_snapshots": torch.from_numpy(snapshots),
            "trails": [[list(at) for at in trail] for trail in self._trails],
            "open": {
                name: torch.from_numpy(getattr(self, name).copy()) for name in _OPEN
            },
        }

    def restore(self, state: dict[str, Any], *, going_on: bool) -> None:
        """Continues from `state()`.

        Args:
            state: of a frontier with the same cells and levels.
            going_on: whether the open episodes go on, in as many environments.

        Raises:
            ValueError: it is of an earlier version, or the pool refuses the snapshots;
                nothing has changed then.
        """
        if state.get("fields") != list(_ENTRY.names or ()):
            raise ValueError("its archive is of an earlier version")
        entries = state["entries"].cpu().numpy().view(_ENTRY)
        snapshots = state["snapshots"].cpu().numpy()
        if len(snapshots):
            count = self._pool.num_stages + len(snapshots)
            self._pool.set_starts(np.ones(count), snapshots)
        self._added = state["added"]
        self.clear_rates = np.array(state["clear_rates"])
        self._free, self._slots = list(range(self._capacity)), {}
        self._snapshots = np.zeros((self._capacity, snapshots.shape[1]), np.uint8)
        for entry, snapshot in zip(entries, snapshots, strict=True):
            slot = self._slots[int(entry["cell"])] = self._free.pop()
            self._entries[slot], self._snapshots[slot] = entry, snapshot
        if not going_on:
            return
        for name, array in state["open"].items():
            setattr(self, name, array.cpu().numpy().copy())
        self._trails = [[(c, p) for c, p in trail] for trail in state["trails"]]
        blobs = state["waiting_snapshots"].cpu().numpy()
        for (env, *rest), snapshot in zip(state["waiting"], blobs, strict=True):
            self._waiting[env].append(_Waiting._make([*rest, snapshot]))
            self._await(env)


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
