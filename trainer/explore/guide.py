"""A guide: what the trainer pays for getting on along demonstrations.

The game's own progress, pixels to the right, leads into dead ends: to the warp zone
behind the way out of 1-2, or onto the wrong lane of a maze. A demonstration says of
each cell that it passes how many steps from there it needs to the end of the level. Who
comes into a cell with fewer steps left than all before it in this episode is paid for
the difference; places that no demonstration passes pay nothing.

It is like the potential of Ng et al. 1999 ("Policy invariance under reward
transformations"), but what was paid is not taken back where an episode moves away
again, so that it does change which policy is the best one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainer.explore.demonstrations import Walked
from trainer.rollout.arrays import IntArray, span
from trainer.rollout.episodes import StepColumns

FloatArray = npt.NDArray[np.float32]

# Steps left of an episode that has not yet met a demonstration.
_UNKNOWN = -1


class Guide:
    """Knows the steps that are left from every cell on a demonstration."""

    def __init__(self, weight: float, num_envs: int) -> None:
        """Begins without demonstrations.

        Args:
            weight: reward for each step of a demonstration.
            num_envs: of the pool.
        """
        self._weight = weight
        self._cells, self._steps = np.zeros((2, 1), np.int64)
        # Of the open episode of each environment: the fewest steps left so far.
        self._left = np.full(num_envs, _UNKNOWN, np.int64)
        self._paid, self._rows = 0.0, 0

    def take(self, ways: Sequence[Walked]) -> None:
        """Gets its demonstrations."""
        left: dict[int, int] = {}
        for way in ways:
            last = len(way.cells) - 1
            for step, cell in enumerate(way.cells.tolist()):
                left[cell] = min(left.get(cell, last), last - step)
        if not left:
            return  # nothing was found: nothing is paid
        self._cells = np.array(sorted(left), np.int64)
        self._steps = np.array([left[cell] for cell in sorted(left)], np.int64)

    def pay(self, columns: StepColumns, keys: IntArray) -> FloatArray:
        """What the rows of one recv earn, beside the game's reward.

        Args:
            columns: the rows.
            keys: (n,) their cells, of `cell_keys`.

        Returns:
            (n,) float32.
        """
        place = np.minimum(np.searchsorted(self._cells, keys), len(self._cells) - 1)
        known = self._cells[place] == keys
        at = span(columns.env_id)
        before = np.where(columns.is_first, _UNKNOWN, self._left[at])
        now = np.where(known, self._steps[place], _UNKNOWN)
        met = (before != _UNKNOWN) & known
        gain = np.where(met, np.maximum(before - now, 0), 0)
        self._left[at] = np.where(met, before - gain, np.where(known, now, before))
        paid = (self._weight * gain).astype(np.float32)
        self._paid += float(paid.sum())
        self._rows += len(paid)
        return paid

    def statistics(self) -> dict[str, float]:
        """`guide`: mean pay per step since the last call."""
        mean = self._paid / max(self._rows, 1)
        self._paid, self._rows = 0.0, 0
        return {"guide": mean}

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, in plain types and tensors."""
        return {"left": torch.from_numpy(self._left.copy())}

    def restore(self, state: dict[str, Any], *, going_on: bool) -> None:
        """Continues from `state()`.

        Args:
            state: of a run over the same levels.
            going_on: whether the open episodes go on, in as many environments.
        """
        if going_on:
            self._left = state["left"].cpu().numpy().copy()
