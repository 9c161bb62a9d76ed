"""Where episodes begin: at the starts of levels, at the frontier, on demonstrations.

The pool draws the start of every episode by weight (`set_starts`). Between two
batches, when all environments wait, `Starts` gives it new weights: some levels get more
of the episodes than others, and within a level a share of them begins from snapshots:
of the frontier of what is reached, or of demonstrations.
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

# Least weight of a level, where 1 is that of one that is being learned.
LEVEL_FLOOR = 0.1

# The curriculum: levels at a time, and the clear rate from which on, or the steps after
# which, another one has its turn. A hard level alone takes some 250,000 steps.
_AT_A_TIME, _LEARNED, _TURN_STEPS = 4, 0.9, 250_000


def level_weights(
    rates: FloatArray,
    best: FloatArray,
    kind: str,
    *,
    floor: float,
    chances: FloatArray | None = None,
) -> FloatArray:
    """How often each level is to be played.

    Args:
        rates: (levels,) clear rates of episodes that began at the level's start.
        best: (levels,) the highest they have been.
        kind: ExploreConfig.level_sampling: as the outcome of an episode is uncertain,
            or by what was lost of its best rate (learnability), as often as it is
            failed (success), or all alike (uniform).
        chances: (levels,) clear rates of all episodes, wherever they begin; None:
            `rates`.
        floor: least weight against 1, so that what is solved is not forgotten.

    Returns:
        (levels,) float64 weights, which add up to 1.
    """
    weights = np.ones(len(rates))
    if kind == "success":
        weights = 1.0 - rates
    elif kind == "learnability":
        # The variance of the outcome, 1 where it is largest. It is 0 again for what
        # was learned and forgotten while others were played.
        p = rates if chances is None else chances
        weights = np.maximum(4.0 * p * (1.0 - p), best - rates)
    weights = np.maximum(weights, floor)
    return _add_up_to_1(weights)


def curriculum_weights(
    rates: FloatArray, best: FloatArray, steps: IntArray, *, floor: float
) -> FloatArray:
    """How often each level is to be played, where a few are learned at a time.

    All at once are in each other's way, and so many have too few episodes each.

    Args:
        rates: (levels,) clear rates of episodes that began at the level's start.
        best: (levels,) the highest they have been.
        steps: (levels,) environment steps in each so far.
        floor: weight, against 1 for those being learned, of what has been.

    Returns:
        (levels,) float64 weights, which add up to 1.
    """
    # What was learned is rehearsed, the more of it is lost the more.
    weights = np.maximum(floor * best, best - rates)
    turns = steps // _TURN_STEPS
    waiting = np.flatnonzero(rates < _LEARNED)
    weights[waiting[np.argsort(turns[waiting], kind="stable")[:_AT_A_TIME]]] = 1.0
    return _add_up_to_1(weights)


def _add_up_to_1(weights: FloatArray) -> FloatArray:
    """Weights divided by their sum; all alike where that is 0."""
    total = weights.sum()
    # It is 0 with no floor and nothing left to learn.
    return weights / total if total else np.full(len(weights), 1.0 / len(weights))


class Offers(Protocol):
    """Snapshots to begin from: of the frontier, or of demonstrations.

    Attributes:
        clear_rates: (stages,) shares of clears in the episodes from each stage's
            snapshots, late ones counting more.
    """

    clear_rates: FloatArray

    def __len__(self) -> int:
        """Snapshots that there are, or the demonstrations that have them."""

    def offer(self, shares: FloatArray) -> tuple[IntArray, FloatArray, Snapshot]:
        """The starts that are best to begin from now.

        Args:
            shares: (stages,) weight that the starts of each stage are to have
                together.

        Returns:
            Of n starts: (n,) int64 their stages; (n,) weights, which add up to the
            shares of those stages; (n, bytes) uint8 snapshots.
        """


class Starts:
    """Composes the starts of a pool's episodes, and counts who began where."""

    def __init__(
        self,
        pool: Any,
        config: ExploreConfig,
        *,
        offers: Offers | None = None,
        ranks: int = 1,
    ) -> None:
        """Prepares; the pool gets its first starts with `apply`.

        Args:
            pool: with set_starts and num_stages.
            config: how to sample.
            offers: snapshots that are starts, too.
            ranks: processes that collect as much each; steps are those of all.
        """
        self._pool, self._config = pool, config
        self._offers, self._ranks = offers, ranks
        self._begun, self._ended = np.zeros((2, 2), np.int64)
        #: The highest clear rate of each of the pool's stages so far.
        self.best_rates: FloatArray = np.zeros(pool.num_stages)
        #: Environment steps in each of them so far.
        self.steps: IntArray = np.zeros(pool.num_stages, np.int64)

    def apply(self, rates: Sequence[float]) -> None:
        """Gives the pool new weights.

        Args:
            rates: of the pool's stages, the clear rates from their starts.
        """
        c = self._config
        cleared = np.array(rates)
        self.best_rates = np.maximum(self.best_rates, cleared)
        shares, chances = np.zeros(len(cleared)), cleared
        if self._offers is not None and len(self._offers):
            # What is cleared from its start needs no more practice at its end.
            shares = c.snapshot_share * (1.0 - cleared)
            # What is cleared from snapshots is about to be cleared from the start.
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
        # The first bin is for levels that are none of the run's.
        counts = np.bincount(c.place + 1, minlength=len(self.steps) + 1)[1:]
        self.steps += self._ranks * counts
        if np.count_nonzero(c.is_first):  # seldom
            self._begun += (c.is_first.sum(), (c.is_first & c.from_snapshot).sum())
        if np.count_nonzero(c.done):  # seldom
            ended = c.done & c.from_snapshot
            self._ended += (ended.sum(), (ended & c.cleared).sum())

    def statistics(self) -> dict[str, float]:
        """About the episodes since the last call.

        `snapshot_share` of them began from snapshots; `snapshot_clear_rate` is of
        those alone.
        """
        (all_begun, begun), (ended, cleared) = self._begun, self._ended
        self._begun, self._ended = np.zeros((2, 2), np.int64)
        if self._offers is None:
            return {}
        return {
            "snapshot_share": float(begun / max(all_begun, 1)),
            "snapshot_clear_rate": float(cleared / max(ended, 1)),
        }
