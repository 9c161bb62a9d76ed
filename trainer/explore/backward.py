"""Starts that move backwards along demonstrations, as fast as the policy earns it.

The method of Salimans & Chen 2018 ("Learning Montezuma's Revenge from a single
demonstration", arXiv:1812.03381, section 2; Go-Explore's second phase, Ecoffet et al.
2021, is the same): episodes begin a little before the end of a demonstration. When a
fifth of them come to the end, they begin a little earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.explore.demonstrations import SPACING, Walked
from trainer.rollout.arrays import IntArray
from trainer.rollout.episodes import StepColumns

FloatArray = npt.NDArray[np.float64]
Snapshot = npt.NDArray[np.uint8]

# Episodes begin at any of so many snapshots before the end, and of so many of them a
# share must clear until they begin earlier.
_WINDOW, _EPISODES, _EARNED = 4, 16, 0.2
# Weight of what was before with every episode.
_DECAY = 0.98


class Backward:
    """Where episodes begin on the demonstrations of each level.

    Attributes:
        clear_rates: (stages,) shares of clears in the episodes from each stage's
            snapshots, late ones counting more.
    """

    def __init__(self, num_stages: int, num_envs: int) -> None:
        """Begins without demonstrations.

        Args:
            num_stages: of the pool.
            num_envs: of the pool.
        """
        self.clear_rates: FloatArray = np.zeros(num_stages)
        self._ways: list[Walked] = []
        # Of each stage: snapshots from the demonstrations' ends to where episodes
        # begin, and episodes from there so far, and clears among them.
        self._back = np.zeros(num_stages, np.int64)
        self._longest = np.zeros(num_stages, np.int64)
        self._ended, self._cleared = np.zeros((2, num_stages), np.int64)
        # Of the open episode of each environment: where it began in this sense; -1:
        # not on a demonstration.
        self._begun = np.full(num_envs, -1, np.int64)

    def __len__(self) -> int:
        """Demonstrations."""
        return len(self._ways)

    def take(self, ways: Sequence[Walked]) -> None:
        """Gets its demonstrations; where they are at stays."""
        self._ways = list(ways)
        for way in ways:
            last = len(way.snapshots) - 1
            self._longest[way.stage] = max(self._longest[way.stage], last)

    def offer(self, shares: FloatArray) -> tuple[IntArray, FloatArray, Snapshot]:
        """The starts to begin from now.

        Args:
            shares: (stages,) weight that the starts of each stage are to have
                together.

        Returns:
            Of n starts: (n,) int64 their stages; (n,) weights, which add up to the
            shares of those stages; (n, bytes) uint8 snapshots.
        """
        self._move()
        stages, weights, snapshots = [], [], []
        per_stage = np.bincount([way.stage for way in self._ways])
        for way in self._ways:
            some = way.snapshots[self._window(way)]
            share = shares[way.stage] / per_stage[way.stage] / len(some)
            stages += [way.stage] * len(some)
            weights += [share] * len(some)
            snapshots.append(some)
        return np.array(stages), np.array(weights), np.concatenate(snapshots)

    def _move(self) -> None:
        """Episodes begin earlier where enough of them came to the end."""
        enough = self._ended >= _EPISODES
        earned = enough & (self._cleared >= _EARNED * self._ended)
        self._back = np.minimum(self._back + earned, self._longest)
        self._ended[enough] = self._cleared[enough] = 0

    def _window(self, way: Walked) -> slice:
        """Snapshots that are on offer: all, once the start has been reached."""
        count = len(way.snapshots)
        last = count - 1 - int(self._back[way.stage])
        if last <= 0:
            return slice(0, count)
        return slice(max(0, last - _WINDOW + 1), last + 1)

    def observe(self, columns: StepColumns) -> None:
        """Takes the rows of one recv."""
        c = columns
        if np.count_nonzero(c.is_first):  # seldom
            envs, stages = c.env_id[c.is_first], c.first_place[c.is_first]
            on_way = c.from_snapshot[c.is_first]
            self._begun[envs] = np.where(on_way, self._back[stages], -1)
        if np.count_nonzero(c.done):  # seldom
            for row in (c.done & c.from_snapshot).nonzero()[0].tolist():
                self._add(int(c.env_id[row]), int(c.first_place[row]), c.cleared[row])

    def _add(self, env: int, stage: int, cleared: np.bool_) -> None:
        """Counts an episode, unless others begin earlier by now."""
        rate = self.clear_rates[stage]
        self.clear_rates[stage] = _DECAY * rate + (1.0 - _DECAY) * cleared
        if self._begun[env] == self._back[stage]:
            self._ended[stage] += 1
            self._cleared[stage] += cleared

    def statistics(self) -> dict[str, float]:
        """`demonstration_left`: mean share of the demonstrations before the starts."""
        left = [
            1.0 - min(1.0, self._back[way.stage] / max(1, len(way.snapshots) - 1))
            for way in self._ways
        ]
        return {"demonstration_left": float(np.mean(left))} if left else {}

    def steps_back(self, stage: int) -> int:
        """Steps from the ends of a stage's demonstrations to where episodes begin."""
        return int(self._back[stage]) * SPACING

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, in plain types."""
        return {
            "clear_rates": self.clear_rates.tolist(),
            "back": self._back.tolist(),
            "ended": self._ended.tolist(),
            "cleared": self._cleared.tolist(),
            "begun": self._begun.tolist(),
        }

    def restore(self, state: dict[str, Any], *, going_on: bool) -> None:
        """Continues from `state()`.

        Args:
            state: of a run over the same levels.
            going_on: whether the open episodes go on, in as many environments.
        """
        self.clear_rates = np.array(state["clear_rates"])
        for name in ("back", "ended", "cleared"):
            setattr(self, f"_{name}", np.array(state[name], np.int64))
        if going_on:
            self._begun = np.array(state["begun"], np.int64)
