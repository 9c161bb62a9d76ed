"""Cells: where Mario is, in steps of some pixels, and how often he was there.

A cell is a level, a room of it, a square of the room, and what the game knows of the
way through a maze (its loop counters), without which the same square could be on the
right way or the wrong one. One integer names it (Ecoffet et al. 2021, "Go-Explore",
call this a cell representation with domain knowledge).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainer.envs.levels import level_numbers

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Cells that are told apart; later ones count as one. 32 levels in squares of 16 pixels
# have fewer.
_MOST_CELLS = 2**18
_ROOM = 1024  # for cells at first; it doubles
_COUNTS = ("episodes", "entries", "passed", "got_on")
# Weight of what became of earlier episodes with every later one.
DECAY = 0.98

# Bits of a cell's parts, from the lowest: what info's fields can hold at most, and of
# the loop counters many times what the game's mazes reach.
_BITS = {"y_pos": 9, "x_pos": 16, "loop": 12, "area_pointer": 7}


def cell_keys(info: Mapping[str, Any], size: int) -> IntArray:
    """The cell of each row.

    Args:
        info: of a batch; `loop` may be missing.
        size: width and height of a cell in pixels.

    Returns:
        (n,) int64, different for different cells.
    """
    keys = level_numbers(info)
    for name in ("area_pointer", "loop", "x_pos", "y_pos"):
        values = info.get(name, 0)
        keys = (keys << _BITS[name]) | (values // size if "pos" in name else values)
    return keys


class Entered(NamedTuple):
    """Who came into another cell in one batch of rows.

    Attributes:
        rows: (m,) int64 positions in the batch, rising.
        cells: (m,) int64 numbers of their cells.
        new: (m,) bool, not visited in this episode before.
    """

    rows: IntArray
    cells: IntArray
    new: BoolArray


class CellCounts:
    """Numbers the cells of a run in the order of discovery, and counts visits."""

    def __init__(self, num_envs: int) -> None:
        """Begins with no cells."""
        self._numbers: dict[int, int] = {}
        # (cells,) with room for more: episodes that were in each cell, and how often
        # it was entered, perhaps several times in one.
        self.episodes, self.entries = np.zeros((2, _ROOM), np.int64)
        # Of the episodes that ended, those that had been in each cell, and those that
        # got on from there; recent ones count more.
        self.passed, self.got_on = np.zeros((2, _ROOM))
        self.total = 0  # of `entries`
        self._last = np.full(num_envs, -1, np.int64)
        self._visited: list[set[int]] = [set() for _ in range(num_envs)]

    def __len__(self) -> int:
        """Cells that were ever seen."""
        return len(self._numbers)

    def enter(
        self, env_id: npt.NDArray[np.int32], first: BoolArray, keys: IntArray
    ) -> Entered:
        """Counts where environments are now.

        Args:
            env_id: (n,) distinct environments.
            first: (n,) bool, their rows begin episodes.
            keys: (n,) their cells, of `cell_keys`.
        """
        # Most steps end in the cell they began in: those cost no loop.
        rows = np.flatnonzero(first | (keys != self._last[env_id]))
        self._last[env_id] = keys
        cells, new = np.empty(len(rows), np.int64), np.empty(len(rows), bool)
        parts = (env_id[rows].tolist(), keys[rows].tolist(), first[rows].tolist())
        for i, (env, key, opens) in enumerate(zip(*parts, strict=True)):
            visited = self._visited[env]
            if opens:
                visited.clear()
            cells[i] = cell = self._number(key)
            new[i] = cell not in visited
            visited.add(cell)
        self.total += len(cells)
        np.add.at(self.entries, cells, 1)
        np.add.at(self.episodes, cells[new], 1)
        return Entered(rows, cells, new)

    def judge(self, cells: IntArray, got_on: BoolArray) -> None:
        """Notes what became of an episode.

        Args:
            cells: (n,) different ones, that it passed.
            got_on: (n,) whether it got on from each.
        """
        self.passed[cells] = DECAY * self.passed[cells] + 1.0
        self.got_on[cells] = DECAY * self.got_on[cells] + got_on

    def chance(self, cells: IntArray) -> npt.NDArray[np.float64]:
        """Estimate of whether an episode gets on from each cell, 0 to 1.

        Of nothing known it is that of a coin (Laplace's rule of succession).
        """
        rate: npt.NDArray[np.float64]
        rate = (self.got_on[cells] + 1.0) / (self.passed[cells] + 2.0)
        return rate

    def _number(self, key: int) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = min(len(self._numbers), _MOST_CELLS - 1)
            self._numbers[key] = number
            if number == len(self.episodes):
                for name in _COUNTS:
                    setattr(self, name, np.pad(getattr(self, name), (0, number)))
        return number

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, in plain types and tensors."""
        used = min(len(self), _MOST_CELLS)
        return {
            "keys": torch.tensor(list(self._numbers), dtype=torch.int64),
            "counts": {
                name: torch.from_numpy(getattr(self, name)[:used].copy())
                for name in _COUNTS
            },
            "last": torch.from_numpy(self._last.copy()),
            "visited": [sorted(visited) for visited in self._visited],
        }

    def restore(self, state: dict[str, Any], *, going_on: bool) -> None:
        """Continues from `state()`.

        Args:
            state: of counts of the same cells.
            going_on: whether the open episodes go on, in as many environments.
        """
        keys = state["keys"].tolist()
        self._numbers = {k: min(i, _MOST_CELLS - 1) for i, k in enumerate(keys)}
        for name, counts in state["counts"].items():
            room = max(_ROOM, 1 << len(counts).bit_length())
            values = np.zeros(room, getattr(self, name).dtype)
            values[: len(counts)] = counts.cpu().numpy()
            setattr(self, name, values)
        self.total = int(self.entries.sum())
        if going_on:
            self._last = state["last"].cpu().numpy().copy()
            self._visited = [set(visited) for visited in state["visited"]]
