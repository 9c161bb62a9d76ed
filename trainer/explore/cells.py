"""Cells: Mario's position on a grid, and the number of visits to each cell.

A cell is a level, a room of the level, a square of the room, and the game's loop
counters, which record the way through a maze: without them, the same square could be on
the right way or on a wrong one. One integer identifies a cell. Ecoffet et al. 2021
("Go-Explore") call this a cell representation with domain knowledge.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainer.rollout.arrays import IntArray, span
from trainer.rollout.episodes import StepColumns

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]

# The most distinct cells; later ones share one number. 32 levels in squares of 16
# pixels have fewer.
MOST_CELLS = 2**18
# The counts by their names in checkpoints, as attributes.
_COUNTS = {
    "episodes": "episodes", "entries": "entries", "passed": "passed",
    "got_on": "advanced",
}  # fmt: skip
# Every later episode multiplies the weight of earlier outcomes by this factor.
DECAY = 0.98

# Bits of a cell's parts, below those of its room: enough for the largest values of the
# fields, and for loop counters many times those of the game's mazes.
_LOOP_BITS, _X_BITS, _Y_BITS = 12, 16, 9


def cell_keys(columns: StepColumns, size: int) -> IntArray:
    """The cell of each row."""
    keys = columns.room << _LOOP_BITS | columns.loop
    keys = keys << _X_BITS | columns.x_pos // size
    return keys << _Y_BITS | columns.y_pos // size


class Entered(NamedTuple):
    """The m rows of one batch that entered another cell."""

    rows: IntArray  # positions in the batch, ascending
    cells: IntArray  # numbers of their cells
    new: BoolArray  # not visited in this episode before


class CellCounts:
    """Numbers the cells of a run in the order of discovery, and counts visits."""

    def __init__(self, num_envs: int) -> None:
        self._numbers: dict[int, int] = {}
        # (MOST_CELLS,) each: episodes that were in each cell, and how often
        # it was entered, perhaps several times in one.
        self.episodes, self.entries = np.zeros((2, MOST_CELLS), np.int64)
        # Of the episodes that ended, those that had been in each cell, and those that
        # got a screen further from there; recent ones count more.
        self.passed, self.advanced = np.zeros((2, MOST_CELLS))
        self.total = 0  # of `entries`
        self._last = np.full(num_envs, -1, np.int64)
        # The cells of the open episode in the order of first visits, each with the
        # progress of the episode at that visit.
        self._trails: list[dict[int, int]] = [{} for _ in range(num_envs)]

    def __len__(self) -> int:
        """Number of cells seen so far."""
        return len(self._numbers)

    def enter(self, columns: StepColumns, keys: IntArray) -> Entered:
        """Counts the cells that environments are in now."""
        env_id, is_first, at = columns.env_id, columns.is_first, span(columns.env_id)
        # Most steps end in the cell in which they began: these skip the loop.
        (rows,) = (is_first | (keys != self._last[at])).nonzero()
        self._last[at] = keys
        cells: list[int] = []
        new: list[bool] = []
        numbers, trails = self._numbers, self._trails
        picked = (env_id, keys, is_first, columns.progress)
        parts = (column[rows].tolist() for column in picked)
        for env, key, begins, progress in zip(*parts, strict=True):
            trail = trails[env]
            if begins:
                trail.clear()
            cell = numbers.setdefault(key, min(len(numbers), MOST_CELLS - 1))
            cells.append(cell)
            new.append(cell not in trail)
            if new[-1]:
                trail[cell] = progress
        entered = Entered(rows, np.array(cells, np.int64), np.array(new, bool))
        self.total += len(cells)
        np.add.at(self.entries, entered.cells, 1)
        np.add.at(self.episodes, entered.cells[entered.new], 1)
        return entered

    def trail(self, env: int) -> tuple[IntArray, IntArray]:
        """The cells of an open episode, and its progress when it first entered each."""
        trail = self._trails[env]
        cells, progress = np.array([*trail.items()], np.int64).reshape(-1, 2).T
        return cells, progress

    def add_outcomes(self, cells: IntArray, advanced: BoolArray) -> None:
        """Adds the outcome of an episode."""
        self.passed[cells] = DECAY * self.passed[cells] + 1.0
        self.advanced[cells] = DECAY * self.advanced[cells] + advanced

    def chance(self, cells: IntArray) -> FloatArray:
        """Estimated probability that an episode gets a screen further from each cell.

        Without any outcome it is 0.5 (Laplace's rule of succession).
        """
        rate: FloatArray = (self.advanced[cells] + 1.0) / (self.passed[cells] + 2.0)
        return rate

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, in plain types and tensors."""
        used = min(len(self), MOST_CELLS)
        return {
            "keys": torch.tensor(list(self._numbers), dtype=torch.int64),
            "counts": {
                key: torch.from_numpy(getattr(self, name)[:used].copy())
                for key, name in _COUNTS.items()
            },
            "last": torch.from_numpy(self._last.copy()),
            "trails": [[list(at) for at in trail.items()] for trail in self._trails],
        }

    def restore(self, state: dict[str, Any], *, going_on: bool) -> None:
        """Continues from `state()`."""
        keys = state["keys"].tolist()
        self._numbers = {k: min(i, MOST_CELLS - 1) for i, k in enumerate(keys)}
        for key, counts in state["counts"].items():
            getattr(self, _COUNTS[key])[: len(counts)] = counts.cpu().numpy()
        self.total = int(self.entries.sum())
        if going_on:
            self._last = state["last"].cpu().numpy().copy()
            self._trails = [dict(trail) for trail in state["trails"]]


def add_clear(
    rates: FloatArray, index: int, cleared: bool, gain: float = 1.0 - DECAY
) -> None:
    """Adds an episode to one of the clear rates; recent episodes have more weight."""
    rates[index] += gain * (cleared - rates[index])
