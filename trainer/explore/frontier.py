"""The frontier: fills the archive with snapshots that episodes have proven good.

The archive is that of Go-Explore (Ecoffet et al. 2021), filled while the policy trains:
when Mario enters a cell, the frontier keeps the environment's snapshot with its frame
stack.

A snapshot may precede a death by a few frames. It therefore waits until its episode
gets a screen further, which proves that one can get on from there. If the episode ends
first, the snapshot joins the archive only if it was taken well before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from trainer.explore.archive import Archive, Candidate
from trainer.explore.cells import BoolArray, CellCounts, Entered
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


class _Waiting(NamedTuple):
    """A snapshot that waits for its episode to reach the progress `proof`."""

    step: int
    proof: int
    candidate: Candidate


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
        self._waiting: list[deque[_Waiting]] = [deque() for _ in range(num_envs)]

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
        columns = (envs, c.step[rows], proofs, cells, stages, progress, c.clock[rows])
        values = (column.tolist() for column in columns)
        snapshots = self._pool.snapshot(envs)
        for env, step, proof, *facts, snapshot in zip(*values, snapshots, strict=True):
            # A copy, because the other snapshots of its batch may not wait as long.
            candidate = Candidate._make([*facts, snapshot.copy()])
            waiting = self._waiting[env]
            waiting.append(_Waiting(step, proof, candidate))
            if len(waiting) == 1:
                self._proof[env] = proof

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
            self.archive.take(waiting.popleft().candidate, proven=True)
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
                self.archive.take(new.candidate, proven=False)
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
        self.archive.add_clear(stage, cleared)
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
            snapshots = np.stack([x.candidate.snapshot for _, x in items])
        return archive | {
            "origins": torch.from_numpy(self._origins.view(np.int64).copy()),
            "waiting": [[env, x.step, x.proof, *x.candidate[:-1]] for env, x in items],
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
            candidate = Candidate._make([*facts, blob])
            self._waiting[env].append(_Waiting(step, proof, candidate))
            self._await(env)
