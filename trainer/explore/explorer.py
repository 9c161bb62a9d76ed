"""Exploration: bonuses for new places, and starts of episodes.

Both use the same cells (cells.py). Bonuses are added only to the reward that the policy
learns from; reported returns do not include them.

The pool draws the start of every episode by weight (`set_starts`). Between two batches
`Starts` sets new weights; in sync mode all environments wait then. Some levels get more
episodes than others, and a share of a level's episodes begins from snapshots of the
frontier or of demonstrations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.config.learning import linear
from trainer.config.schema import ExploreConfig, RunConfig
from trainer.config.tasks import is_native
from trainer.explore.backward import Backward
from trainer.explore.cells import BoolArray, CellCounts, Entered, FloatArray, cell_keys
from trainer.explore.demonstrations import ReplayedWay
from trainer.explore.frontier import Archive, Frontier
from trainer.explore.saved import SavedStates
from trainer.rollout.arrays import IntArray, span
from trainer.rollout.episodes import StepColumns

BonusArray = npt.NDArray[np.float32]

# Steps left for an episode that has not yet met a demonstration.
_UNKNOWN = -1

# Lowest weight of a level, relative to 1 for a level that is being learned.
LEVEL_FLOOR = 0.1

# The curriculum: levels at a time, and the clear rate or the steps after which the next
# level follows. A single hard level takes about 250,000 steps.
_AT_A_TIME, _LEARNED, _TURN_STEPS = 4, 0.9, 250_000


def level_weights(
    kind: str,
    rates: FloatArray,
    best: FloatArray,
    chances: FloatArray,
    steps: IntArray,
) -> FloatArray:
    """How often to play each level; the weights add up to 1."""
    weights = np.ones(len(rates))
    if kind == "success":
        weights = 1.0 - rates
    elif kind == "learnability":
        # The variance of the outcome, scaled to a maximum of 1. It is also 0 for a
        # level that was learned and then forgotten while other levels were played.
        weights = np.maximum(4.0 * chances * (1.0 - chances), best - rates)
    if kind == "curriculum":
        # Many levels at once disturb each other, and each gets too few episodes.
        # Learned levels are repeated, more often the further their clear rate has
        # fallen.
        weights = np.maximum(LEVEL_FLOOR * best, best - rates)
        turns = steps // _TURN_STEPS
        waiting = np.flatnonzero(rates < _LEARNED)
        weights[waiting[np.argsort(turns[waiting], kind="stable")[:_AT_A_TIME]]] = 1.0
    else:
        weights = np.maximum(weights, LEVEL_FLOOR)
    shares: FloatArray = weights / weights.sum()
    return shares


class Starts:
    """Sets the starts of a pool's episodes, and counts where episodes began."""

    def __init__(
        self,
        pool: Any,
        config: ExploreConfig,
        *,
        offers: Archive | Backward | SavedStates | None = None,
        ranks: int = 1,
    ) -> None:
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
        shares, chances = np.zeros(len(cleared)), cleared
        if self._offers is not None and len(self._offers):
            # A level that is cleared from its start needs no more practice at its end.
            needs = 1.0 - cleared
            if isinstance(self._offers, SavedStates):
                # But the user's own starts have to be learned, too.
                needs = self._offers.present
            shares = c.snapshot_share * needs
            # A level cleared from snapshots will soon be cleared from its start.
            chances = (1.0 - shares) * cleared + shares * self._offers.clear_rates
            if isinstance(self._offers, SavedStates):
                cleared = chances
        self.best_rates = np.maximum(self.best_rates, cleared)
        weights = level_weights(
            c.level_sampling, cleared, self.best_rates, chances, self.steps
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
        """The share of episodes from snapshots, and their clear rate."""
        (all_begun, begun), (ended, cleared) = self._begun, self._ended
        self._begun, self._ended = np.zeros((2, 2), np.int64)
        if self._offers is None:
            return {}
        return {
            "snapshot_share": float(begun / max(all_begun, 1)),
            "snapshot_clear_rate": float(cleared / max(ended, 1)),
        }


class Bonuses:
    """Rewards episodes for cells that are new or were rarely entered."""

    def __init__(self, config: ExploreConfig, counts: CellCounts) -> None:
        self._config, self._counts = config, counts
        self._paid = dict.fromkeys(("novelty", "count_bonus"), 0.0)
        self._rows = 0

    def pay(
        self, is_first: BoolArray, obs: Tensor, entered: Entered, run_steps: int
    ) -> BonusArray:
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

    def pay(self, columns: StepColumns, keys: IntArray) -> BonusArray:
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


def make_explorer(
    pool: Any,
    config: RunConfig,
    levels: Sequence[str],
    rates: Callable[[], list[float]],
    ranks: int = 1,
) -> Explorer | None:
    """Makes the explorer of a run; None if the run does not need one."""
    explore, task = config.explore, config.env.task
    wanted = explore.starts != "level" or explore.pays or explore.guide > 0
    if not is_native(task):
        if wanted:
            raise ValueError(
                f"task {task} reports no positions, which --starts frontier, --starts "
                "backward, --guide, --novelty and --count-bonus need: use a Super "
                "Mario Bros. task, or leave these options out"
            )
        return None
    if wanted or len(levels) > 1:
        return Explorer(pool, explore, levels=levels, rates=rates, ranks=ranks)
    return None


class Explorer:
    """Sets where the pool's episodes begin, and pays bonuses for new places.

    The collector calls `set_starts` and `observe`. One thread may observe while another
    reads statistics or the state.
    """

    def __init__(
        self,
        pool: Any,
        config: ExploreConfig,
        *,
        levels: Sequence[str],
        rates: Callable[[], list[float]],
        ranks: int = 1,
    ) -> None:
        num_envs = len(pool.all_env_ids)
        self._config, self._levels, self._rates = config, levels, rates
        self._counts: CellCounts | None = None
        self._frontier: Frontier | None = None
        self._bonuses: Bonuses | None = None
        self._backward: Backward | None = None
        self._saved: SavedStates | None = None
        self._starts: Starts | None = None
        if config.starts == "frontier" or config.pays:
            self._counts = CellCounts(num_envs)
            if config.pays:
                self._bonuses = Bonuses(config, self._counts)
            if config.starts == "frontier":
                self._frontier = Frontier(pool, self._counts, levels, num_envs)
        if config.starts == "backward":
            self._backward = Backward(len(levels), num_envs)
        if config.state_files:
            self._saved = SavedStates.read(pool, config.state_files, levels)
        self._guide = Guide(config.guide, num_envs) if config.guide else None
        # Not `or`: what offers nothing yet is false.
        offers: Archive | Backward | SavedStates | None = self._saved
        if self._backward is not None:
            offers = self._backward
        if self._frontier is not None:
            offers = self._frontier.archive
        if offers is not None or len(levels) > 1:
            self._starts = Starts(pool, config, offers=offers, ranks=ranks)
        # What a resumed run continues, by name; None: the run has no such part.
        self._parts: dict[str, Any] = {
            "counts": self._counts,
            "frontier": self._frontier,
            "backward": self._backward,
            "saved": self._saved,
            "guide": self._guide,
        }
        self._lock = threading.Lock()

    def take_demonstrations(self, ways: Sequence[ReplayedWay]) -> None:
        """Takes the demonstrations, before the run starts."""
        if self._backward is not None:
            self._backward.take(ways)
        if self._guide is not None:
            self._guide.take(ways)

    def set_starts(self) -> None:
        """Sets where episodes begin from now on; call it between two batches."""
        if self._starts is not None:
            rates = self._rates()
            with self._lock:
                self._starts.apply(rates)

    def observe(
        self, columns: StepColumns, obs: Tensor, run_steps: int
    ) -> BonusArray | None:
        """Takes the rows of one recv, before actions are sent; returns their bonuses.

        The observations, (n, C, H, W) uint8, are on the device of the run, where a
        bonus may run a network on them. None: there are no bonuses.
        """
        with self._lock:
            for part in (self._starts, self._backward, self._saved):
                if part is not None:
                    part.observe(columns)
            if self._counts is None and self._guide is None:
                return None
            keys, paid = cell_keys(columns, self._config.cell_size), []
            if self._guide is not None:
                paid.append(self._guide.pay(columns, keys))
            if self._counts is not None:
                entered = self._counts.enter(columns, keys)
                if self._frontier is not None:
                    self._frontier.observe(columns, entered)
                if self._bonuses is not None:
                    first = columns.is_first
                    paid.append(self._bonuses.pay(first, obs, entered, run_steps))
            return np.sum(paid, axis=0) if paid else None

    def statistics(self) -> dict[str, float]:
        """Statistics for the curves; means and shares are since the last call.

        `cells` counts the cells seen so far; `frontier_x` is the largest distance in
        pixels from a level's start to a cell that an episode can begin from.
        """
        result: dict[str, float] = {}
        with self._lock:
            if self._counts is not None:
                result["cells"] = float(len(self._counts))
            if self._frontier is not None:
                result["snapshots"] = float(len(self._frontier.archive))
                result["frontier_x"] = float(self._frontier.archive.progress)
            for part in (self._starts, self._backward, self._bonuses, self._guide):
                if part is not None:
                    result |= part.statistics()
        return result

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, in plain types and tensors."""
        starts = self._starts
        with self._lock:
            state: dict[str, Any] = {
                name: None if part is None else part.state()
                for name, part in self._parts.items()
            }
            return state | {
                "cell_size": self._config.cell_size,
                "levels": list(self._levels),
                "best_rates": starts.best_rates.tolist() if starts else [],
                "level_steps": starts.steps.tolist() if starts else [],
            }

    def restore(self, state: dict[str, Any], *, going_on: bool) -> None:
        """Continues from `state()`, before the run has started."""
        if state["levels"] != list(self._levels):
            raise ValueError("its levels are others")
        continued = {
            name: part
            for name, part in self._parts.items()
            if part is not None and state.get(name) is not None
        }
        if "counts" in continued and state["cell_size"] != self._config.cell_size:
            raise ValueError("its cells are of another size")
        if self._starts is not None and state["best_rates"]:
            self._starts.best_rates = np.array(state["best_rates"])
            self._starts.steps = np.array(state["level_steps"], np.int64)
        for name, part in continued.items():
            part.restore(state[name], going_on=going_on)
