"""Bonuses: rewards that the trainer adds for new places."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from trainer.config.schedules import linear
from trainer.config.schema import ExploreConfig
from trainer.explore.cells import BoolArray, CellCounts, Entered

FloatArray = npt.NDArray[np.float32]


class Bonuses:
    """Rewards episodes for cells that are new or were rarely entered."""

    def __init__(self, config: ExploreConfig, counts: CellCounts) -> None:
        """Takes the configuration and the counts."""
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
