"""Starts that move backwards along demonstrations as the policy improves.

The method is that of Salimans & Chen 2018 ("Learning Montezuma's Revenge from a single
demonstration", arXiv:1812.03381, section 2), also the second phase of Go-Explore
(Ecoffet et al. 2021): episodes begin a little before the end of a demonstration, and
move a little earlier as soon as a fifth of them clear the level.

There are two additions. Half of these episodes begin anywhere between that place and
the end, and if no episode clears the level, the place moves towards the end again.
Without the additions, a policy forgot the end of a level while it learned the part
before, and then made no more progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.explore.cells import BoolArray, FloatArray, add_clear
from trainer.explore.demonstrations import ReplayedWay
from trainer.planning.search import Snapshot
from trainer.rollout.arrays import IntArray
from trainer.rollout.episodes import StepColumns

# The place where episodes begin is this many snapshots wide.
_WINDOW = 4
# The place moves after this many episodes from it: backwards, by at most the third
# number in snapshots, if at least this share of them cleared; forwards if none did.
_EPISODES, _EARNED, _FURTHEST = 16, 0.2, 4
# Share of the episodes that begin between the place and the end, and the number of
# snapshots that they begin from.
_REHEARSED, _BEHIND = 0.5, 8


class Backward:
    """Where episodes begin on demonstrations; offers snapshots as an `Archive` does."""

    def __init__(self, num_stages: int, num_envs: int) -> None:
        self.clear_rates: FloatArray = np.zeros(num_stages)
        self._ways: list[ReplayedWay] = []
        # Of each stage: snapshots from the demonstrations' ends back to the place where
        # episodes begin, episodes from there so far, and clears among these episodes.
        self._back, self._longest = np.zeros((2, num_stages), np.int64)
        self._ended, self._cleared = np.zeros((2, num_stages), np.int64)
        self._at_place: BoolArray = np.zeros(0, bool)  # of each snapshot on offer
        # Of the open episode of each environment: the position of the place, if the
        # episode began there; else -1.
        self._begun = np.full(num_envs, -1, np.int64)

    def __len__(self) -> int:
        """Demonstrations."""
        return len(self._ways)

    def take(self, ways: Sequence[ReplayedWay]) -> None:
        """Takes the demonstrations; the places on them do not change."""
        # Observations are large, and only imitation needs them.
        self._ways = [way._replace(obs=np.empty(0, np.uint8)) for way in ways]
        for way in ways:
            self._longest[way.stage] = max(self._longest[way.stage], _most_back(way))

    def offer(self, shares: FloatArray) -> tuple[IntArray, FloatArray, Snapshot]:
        """The snapshots from the places to the ends."""
        self._move()
        per_stage = np.bincount([way.stage for way in self._ways])
        columns = []
        for way in self._ways:
            numbers = self._offered_on(way)
            at_place = numbers < numbers[0] + _WINDOW
            stages = np.full(len(numbers), way.stage)
            weights = shares[way.stage] / per_stage[way.stage] * _weights(at_place)
            columns.append((stages, weights, way.snapshots[numbers], at_place))
        *offer, self._at_place = map(np.concatenate, zip(*columns, strict=True))
        stages, weights, snapshots = offer
        return stages, weights, snapshots

    def _move(self) -> None:
        """Moves the places from which enough episodes have ended."""
        for stage in (self._ended >= _EPISODES).nonzero()[0].tolist():
            rate = self._cleared[stage] / self._ended[stage]
            back = int(self._back[stage])
            if rate >= _EARNED:
                back += 1 + round((_FURTHEST - 1) * (rate - _EARNED) / (1.0 - _EARNED))
            elif rate == 0.0:
                back -= 1
            self._back[stage] = min(max(back, 0), int(self._longest[stage]))
            self._ended[stage] = self._cleared[stage] = 0

    def _offered_on(self, way: ReplayedWay) -> IntArray:
        """Snapshots on offer: those at the place, and a few from there to the end."""
        count, first = len(way.snapshots), self._first(way)
        behind = np.arange(first + _WINDOW, count)
        if len(behind) > _BEHIND:
            behind = behind[np.linspace(0, len(behind) - 1, _BEHIND).astype(np.int64)]
        return np.concatenate([np.arange(first, min(first + _WINDOW, count)), behind])

    def _first(self, way: ReplayedWay) -> int:
        """Index of the place's first snapshot on a way."""
        return max(0, _most_back(way) - int(self._back[way.stage]))

    def observe(self, columns: StepColumns) -> None:
        """Takes the rows of one recv."""
        c = columns
        if np.count_nonzero(c.is_first):  # rare
            envs, stages = c.env_id[c.is_first], c.first_place[c.is_first]
            there = c.from_snapshot[c.is_first].copy()
            numbers = c.start[c.is_first][there] - len(self.clear_rates)
            # In async mode an episode may begin from an earlier offer.
            numbers = np.minimum(numbers, len(self._at_place) - 1)
            there[there] = self._at_place[numbers]
            self._begun[envs] = np.where(there, self._back[stages], -1)
        if np.count_nonzero(c.done):  # rare
            for row in (c.done & c.from_snapshot).nonzero()[0].tolist():
                stage, cleared = int(c.first_place[row]), bool(c.cleared[row])
                add_clear(self.clear_rates, stage, cleared)
                # Not of an episode from elsewhere, or if the place has moved since.
                if self._begun[c.env_id[row]] == self._back[stage]:
                    self._ended[stage] += 1
                    self._cleared[stage] += cleared

    def statistics(self) -> dict[str, float]:
        """`demonstration_left`: mean fraction of a demonstration before its start."""
        left = [self._first(way) / max(1, _most_back(way)) for way in self._ways]
        return {"demonstration_left": float(np.mean(left))} if left else {}

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
        """Continues from `state()`."""
        self.clear_rates = np.array(state["clear_rates"])
        for name in ("back", "ended", "cleared"):
            setattr(self, f"_{name}", np.array(state[name], np.int64))
        if going_on:
            self._begun = np.array(state["begun"], np.int64)


def _most_back(way: ReplayedWay) -> int:
    """Number of snapshots from the last possible place on a way to the first."""
    return max(0, len(way.snapshots) - _WINDOW)


def _weights(at_place: BoolArray) -> FloatArray:
    """Weights of the snapshots from a place to the end; they add up to 1."""
    weights: FloatArray = at_place / at_place.sum()
    behind = (~at_place).sum()
    if behind:
        weights = (1.0 - _REHEARSED) * weights + _REHEARSED * ~at_place / behind
    return weights
