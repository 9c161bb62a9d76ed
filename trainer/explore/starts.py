"""Where episodes begin: at the starts of levels, at the frontier, on demonstrations.

The pool draws the start of every episode by weight (`set_starts`). Between two batches,
when all environments wait, `Starts` sets new weights: some levels get more episodes
than others, and a share of a level's episodes begins from snapshots of the frontier or
of demonstrations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trainer.config.schema import ExploreConfig
from trainer.rollout.episodes import StepColumns

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Snapshot = npt.NDArray[np.uint8]

# Lowest weight of a level, relative to 1 for a level that is being learned.
LEVEL_FLOOR = 0.1

# The curriculum: levels at a time, and the clear rate or the steps after which the next
# level follows. A single hard level takes about 250,000 steps.
_AT_A_TIME, _LEARNED, _TURN_STEPS = 4, 0.9, 250_000


def level_weights(
    rates: FloatArray,
    best: FloatArray,
    kind: str,
    *,
    floor: float,
    chances: FloatArray | None = None,
) -> FloatArray:
    """How often to play each level."""
    weights = np.ones(len(rates))
    if kind == "success":
        weights = 1.0 - rates
    elif kind == "learnability":
        # The variance of the outcome, scaled to a maximum of 1. It is also 0 for a
        # level that was learned and then forgotten while other levels were played.
        p = rates if chances is None else chances
        weights = np.maximum(4.0 * p * (1.0 - p), best - rates)
    weights = np.maximum(weights, floor)
    return _add_up_to_1(weights)


def curriculum_weights(
    rates: FloatArray, best: FloatArray, steps: IntArray, *, floor: float
) -> FloatArray:
    """How often to play each level if the policy learns a few levels at a time.

    Many levels at once disturb each other, and each gets too few episodes.
    """
    # Learned levels are repeated, more often the further their clear rate has fallen.
    weights = np.maximum(floor * best, best - rates)
    turns = steps // _TURN_STEPS
    waiting = np.flatnonzero(rates < _LEARNED)
    weights[waiting[np.argsort(turns[waiting], kind="stable")[:_AT_A_TIME]]] = 1.0
    return _add_up_to_1(weights)


def _add_up_to_1(weights: FloatArray) -> FloatArray:
    """Weights divided by their sum; equal weights if the sum is 0."""
    total = weights.sum()
    # The sum is 0 if the floor is 0 and there is nothing left to learn.
    return weights / total if total else np.full(len(weights), 1.0 / len(weights))


class Offers(Protocol):
    """Snapshots to begin from, of the frontier or of demonstrations.

    Attributes:
        clear_rates: (stages,) clear rates of the episodes from each stage's snapshots,
            with more weight for recent ones.
    """

    clear_rates: FloatArray

    def __len__(self) -> int:
        """Number of snapshots, or of the demonstrations that have them."""

    def offer(self, shares: FloatArray) -> tuple[IntArray, FloatArray, Snapshot]:
        """The best snapshots to begin from now."""


class Starts:
    """Sets the starts of a pool's episodes, and counts where episodes began."""

    def __init__(
        self,
        pool: Any,
        config: ExploreConfig,
        *,
        offers: Offers | None = None,
        ranks: int = 1,
    ) -> None:
        """Prepares; `apply` sets the pool's first starts."""
        self._pool, self._config = pool, config
        self._offers, self._ranks = offers, ranks
        self._begun, self._ended = np.zeros((2, 2), np.int64)
        #: The highest clear rate of each of the pool's stages so far.
        self.best_rates: FloatArray = np.zeros(pool.num_stages)
        #: Environment steps in each of the pool's stages so far.
        self.steps: IntArray = np.zeros(pool.num_stages, np.int64)

    def apply(self, rates: Sequence[float]) -> None:
        """Gives the pool new weights."""
        c = self._config
        cleared = np.array(rates)
        self.best_rates = np.maximum(self.best_rates, cleared)
        shares, chances = np.zeros(len(cleared)), cleared
        if self._offers is not None and len(self._offers):
            # A level that is cleared from its start needs no more practice at its end.
            shares = c.snapshot_share * (1.0 - cleared)
            # A level cleared from snapshots will soon be cleared from its start.
            chances = (1.0 - shares) * cleared + shares * self._offers.clear_rates
        about = cleared, self.best_rates
        if c.level_sampling == "curriculum":
            weights = curriculum_weights(*about, self.steps, floor=LEVEL_FLOOR)
        else:
            weights = level_weights(
                *about, c.level_sampling, floor=LEVEL_FLOOR, chances=chances
            )
        if self._offers is None or not shares.any():
            self._pool.set_starts(weights)
            return
        stages, parts, snapshots = self._offers.offer(weights * shares)
        rest = weights - np.bincount(stages, parts, len(weights))
        starts = np.concatenate([np.maximum(rest, 0.0), parts])  # rounded below 0
        self._pool.set_starts(starts, snapshots)

    def observe(self, columns: StepColumns) -> None:
        """Takes the rows of one recv."""
        c = columns
        # The first bin is for levels that are not among the run's.
        counts = np.bincount(c.place + 1, minlength=len(self.steps) + 1)[1:]
        self.steps += self._ranks * counts
        if np.count_nonzero(c.is_first):  # rare
            self._begun += (c.is_first.sum(), (c.is_first & c.from_snapshot).sum())
        if np.count_nonzero(c.done):  # rare
            ended = c.done & c.from_snapshot
            self._ended += (ended.sum(), (ended & c.cleared).sum())

    def statistics(self) -> dict[str, float]:
        """Statistics of the episodes since the last call.

        `snapshot_share` is the share of episodes that began from snapshots;
        `snapshot_clear_rate` is the clear rate of these episodes.
        """
        (all_begun, begun), (ended, cleared) = self._begun, self._ended
        self._begun, self._ended = np.zeros((2, 2), np.int64)
        if self._offers is None:
            return {}
        return {
            "snapshot_share": float(begun / max(all_begun, 1)),
            "snapshot_clear_rate": float(cleared / max(ended, 1)),
        }
