"""Bonuses: rewards that the trainer adds, for new places and along demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.config.learning import linear
from trainer.config.schema import ExploreConfig
from trainer.explore.cells import BoolArray, CellCounts, Entered
from trainer.explore.demonstrations import ReplayedWay
from trainer.rollout.arrays import IntArray, span
from trainer.rollout.episodes import StepColumns

FloatArray = npt.NDArray[np.float32]

# Steps left for an episode that has not yet met a demonstration.
_UNKNOWN = -1


class Bonuses:
    """Rewards episodes for cells that are new or were rarely entered."""

    def __init__(self, config: ExploreConfig, counts: CellCounts) -> None:
        self._config, self._counts = config, counts
        self._paid = dict.fromkeys(("novelty", "count_bonus"), 0.0)
        self._rows = 0

    def pay(
        self, is_first: BoolArray, obs: Tensor, entered: Entered, run_steps: int
    ) -> FloatArray:
        """The bonuses for the n rows of one recv, in addition to the game's reward.

        Those of this class do not look at the observations, (n, C, H, W) uint8 on the
        device of the run.
        """
        c = self._config
        walked = ~is_first[entered.rows]
        rows, cells = entered.rows[walked], entered.cells[walked]
        novelty = entered.new[walked].astype(np.float64)
        if c.novelty_by_count:
            novelty /= np.sqrt(self._counts.episodes[cells])
        novelty *= linear(c.novelty, 0.0, c.bonus_steps, run_steps)
        # The term of UCB1 (Auer et al. 2002), with cells as the bandit's arms.
        entries = self._counts.entries[cells]
        ucb = np.sqrt(2.0 * np.log(max(self._counts.total, 1)) / entries)
        ucb *= linear(c.count_bonus, 0.0, c.bonus_steps, run_steps)
        self._paid["novelty"] += float(novelty.sum())
        self._paid["count_bonus"] += float(ucb.sum())
        self._rows += len(is_first)
        bonus = np.zeros(len(is_first), np.float32)
        bonus[rows] = novelty + ucb
        return bonus

    def statistics(self) -> dict[str, float]:
        """Mean of each bonus per step since the last call."""
        means = {name: paid / max(self._rows, 1) for name, paid in self._paid.items()}
        self._paid, self._rows = dict.fromkeys(self._paid, 0.0), 0
        return means


class Guide:
    """Rewards progress along demonstrations.

    The game's own progress, pixels to the right, leads into dead ends: to the warp zone
    behind the exit of 1-2, or into the wrong lane of a maze. A demonstration gives, for
    each cell that it passes, the number of steps left to the end of the level. An
    episode that enters a cell with fewer steps left than all its cells before gets a
    bonus for the difference; cells that no demonstration passes give no bonus.

    The bonus resembles the potential of Ng et al. 1999 ("Policy invariance under reward
    transformations"), but an episode that moves back does not lose it, so the bonus can
    change which policy is optimal.
    """

    def __init__(self, weight: float, num_envs: int) -> None:
        self._weight = weight
        self._cells, self._steps = np.zeros((2, 1), np.int64)
        # Of the open episode of each environment: the fewest steps left so far.
        self._left = np.full(num_envs, _UNKNOWN, np.int64)
        self._paid, self._rows = 0.0, 0

    def take(self, ways: Sequence[ReplayedWay]) -> None:
        """Takes the demonstrations."""
        left: dict[int, int] = {}
        for way in ways:
            last = len(way.cells) - 1
            for step, cell in enumerate(way.cells.tolist()):
                left[cell] = min(left.get(cell, last), last - step)
        if not left:
            return  # no demonstrations: no bonuses
        self._cells = np.array(sorted(left), np.int64)
        self._steps = np.array([left[cell] for cell in sorted(left)], np.int64)

    def pay(self, columns: StepColumns, keys: IntArray) -> FloatArray:
        """The bonuses for the rows of one recv, in addition to the game's reward."""
        place = np.minimum(np.searchsorted(self._cells, keys), len(self._cells) - 1)
        on_way = self._cells[place] == keys
        at = span(columns.env_id)
        before = np.where(columns.is_first, _UNKNOWN, self._left[at])
        now = np.where(on_way, self._steps[place], _UNKNOWN)
        met = (before != _UNKNOWN) & on_way
        gain = np.where(met, np.maximum(before - now, 0), 0)
        self._left[at] = np.where(met, before - gain, np.where(on_way, now, before))
        paid = (self._weight * gain).astype(np.float32)
        self._paid += float(paid.sum())
        self._rows += len(paid)
        return paid

    def statistics(self) -> dict[str, float]:
        """`guide`: mean bonus per step since the last call."""
        mean = self._paid / max(self._rows, 1)
        self._paid, self._rows = 0.0, 0
        return {"guide": mean}

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, in plain types and tensors."""
        return {"left": torch.from_numpy(self._left.copy())}

    def restore(self, state: dict[str, Any], *, going_on: bool) -> None:
        """Continues from `state()`."""
        if going_on:
            self._left = state["left"].cpu().numpy().copy()
