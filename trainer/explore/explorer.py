"""Exploration: bonuses for new places, and starts of episodes.

Both use the same cells (cells.py). Bonuses are added only to the reward that the policy
learns from; reported returns do not include them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from trainer.config.schema import ExploreConfig, RunConfig
from trainer.config.tasks import is_native
from trainer.explore.backward import Backward
from trainer.explore.bonuses import Bonuses, FloatArray, Guide
from trainer.explore.cells import CellCounts, cell_keys
from trainer.explore.demonstrations import Walked
from trainer.explore.frontier import Frontier
from trainer.explore.starts import Starts
from trainer.rollout.episodes import StepColumns


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

    Implements the collector's `ExplorerProtocol`. One thread may observe while another
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
        """Makes the parts that the configuration asks for."""
        num_envs = len(pool.all_env_ids)
        self._config, self._levels, self._rates = config, levels, rates
        self._counts: CellCounts | None = None
        self._frontier: Frontier | None = None
        self._bonuses: Bonuses | None = None
        self._backward: Backward | None = None
        self._starts: Starts | None = None
        if config.starts == "frontier" or config.pays:
            self._counts = CellCounts(num_envs)
            if config.pays:
                self._bonuses = Bonuses(config, self._counts)
            if config.starts == "frontier":
                self._frontier = Frontier(pool, self._counts, levels, num_envs)
        if config.starts == "backward":
            self._backward = Backward(len(levels), num_envs)
        self._guide = Guide(config.guide, num_envs) if config.guide else None
        offers = self._backward if self._frontier is None else self._frontier.archive
        if offers is not None or len(levels) > 1:
            self._starts = Starts(pool, config, offers=offers, ranks=ranks)
        # What a resumed run continues, by name; None: the run has no such part.
        self._parts: dict[str, Any] = {
            "counts": self._counts,
            "frontier": self._frontier,
            "backward": self._backward,
            "guide": self._guide,
        }
        self._lock = threading.Lock()

    def take_demonstrations(self, ways: Sequence[Walked]) -> None:
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
    ) -> FloatArray | None:
        """Takes the rows of one recv, before actions are sent."""
        with self._lock:
            if self._starts is not None:
                self._starts.observe(columns)
            if self._backward is not None:
                self._backward.observe(columns)
            if self._counts is None and self._guide is None:
                return None
            keys = cell_keys(columns, self._config.cell_size)
            paid = None if self._guide is None else self._guide.pay(columns, keys)
            if self._counts is None:
                return paid
            entered = self._counts.enter(columns, keys)
            if self._frontier is not None:
                self._frontier.observe(columns, entered)
            if self._bonuses is None:
                return paid
            bonuses = self._bonuses.pay(columns.is_first, obs, entered, run_steps)
            return bonuses if paid is None else paid + bonuses

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
