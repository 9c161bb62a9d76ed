"""The window of finished episodes: rates and means that a run reports."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.config.tasks import level_name, level_number
from trainer.rollout.episodes import Episode, StepColumns


class FinishedEpisodes:
    """Keeps the last episodes of the run and of each level, and counts all episodes.

    Episodes that did not begin at the start of a level are left out
    (`StepColumns.finished`). One thread may observe while another reads.
    """

    def __init__(
        self,
        window: int = 100,  # rates are over this many of the last episodes
        *,
        levels: Sequence[str] = (),  # two or more have a clear rate each
        whole_game: bool = False,  # an episode goes through several levels
        keeps_new: bool = False,  # `take_new` is called, once for each batch
    ) -> None:
        self.whole_game = whole_game
        self._several = tuple(levels) if len(levels) > 1 else ()
        self.count = 0
        # Number of the episode that first cleared a level, by the level's number.
        self._first_clears: dict[int, int] = {}
        self.best_x = 0
        self.recent: deque[Episode] = deque(maxlen=window)
        # The last episodes, by the number of the level in which they began.
        self._levels: dict[int, deque[Episode]] = {}
        self._keeps_new = keeps_new
        # The episodes of each collected batch that `take_new` has not returned yet.
        self._new: deque[list[tuple[int, Episode]]] = deque()
        self._lock = threading.Lock()

    def observe(self, columns: StepColumns) -> None:
        """Adds the episodes that the rows of one recv ended."""
        if columns.finished:  # rare
            with self._lock:
                for row, episode in columns.finished:
                    level = 0 if self.whole_game else int(columns.first_level[row])
                    self._add(level, episode)
                    if self._keeps_new:
                        self._new = self._new or deque([[]])
                        self._new[-1].append((level, episode))

    def begin_batch(self) -> None:
        """Begins a batch: the rows that follow belong to it."""
        if self._keeps_new:
            with self._lock:
                self._new.append([])

    def take_new(self) -> list[tuple[int, Episode]]:
        """The episodes that ended in the next batch, for `add`.

        Episodes of later batches are left out: another thread may already be
        collecting such a batch, and the result must not depend on its progress.
        """
        with self._lock:
            return self._new.popleft() if self._new else []

    def add(self, new: Sequence[tuple[int, Episode]]) -> None:
        """Adds episodes that another `FinishedEpisodes` has observed."""
        with self._lock:
            for level, episode in new:
                self._add(level, episode)

    def _add(self, level: int, episode: Episode) -> None:
        """Adds an episode that began in a level; 0: the task has no levels."""
        self.count += 1
        self.best_x = max(self.best_x, episode.best_x)
        if episode.cleared:
            self._first_clears.setdefault(level, self.count)
        self.recent.append(episode)
        if level:
            window = deque[Episode](maxlen=self.recent.maxlen)
            self._levels.setdefault(level, window).append(episode)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, in plain types."""
        with self._lock:
            return {
                "count": self.count,
                "first_clears": dict(self._first_clears),
                "best_x": self.best_x,
                "recent": [list(episode) for episode in self.recent],
                "levels": {
                    level: [list(episode) for episode in episodes]
                    for level, episodes in self._levels.items()
                },
                "new": [[[k, list(episode)] for k, episode in b] for b in self._new],
            }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state()` of episodes with the same window."""
        with self._lock:
            self.count, self.best_x = state["count"], state["best_x"]
            self._first_clears = dict(state["first_clears"])
            self.recent.clear()
            self.recent.extend(Episode(*episode) for episode in state["recent"])
            self._levels = {
                level: deque(
                    (Episode(*episode) for episode in episodes),
                    maxlen=self.recent.maxlen,
                )
                for level, episodes in state["levels"].items()
            }
            batches = state.get("new", [])  # older checkpoints lack this field
            self._new = deque([(k, Episode(*e)) for k, e in b] for b in batches)

    @property
    def first_clear(self) -> int | None:
        """Number of the first episode that cleared its level, from 1; None: none."""
        return min(self._first_clears.values(), default=None)

    def cleared_levels(self) -> list[str]:
        """Levels in the order of their first clears; "" for a task without levels."""
        with self._lock:
            levels = sorted(self._first_clears, key=self._first_clears.__getitem__)
        return [level_name(level) if level else "" for level in levels]

    def clear_rates(self) -> list[float]:
        """Clear rate of each level, or of all, over its last `window` episodes.

        Missing episodes count as failures, so that a few early clears do not give a
        high rate.
        """
        window = self.recent.maxlen or 1
        with self._lock:
            episodes: list[Sequence[Episode]] = [self.recent]
            if self._several:
                numbers = map(level_number, self._several)
                episodes = [self._levels.get(number, ()) for number in numbers]
            return [sum(e.cleared for e in some) / window for some in episodes]

    def levels_passed(self) -> float:
        """Mean levels passed in the last `window` episodes; missing ones count as 0."""
        with self._lock:
            passed = sum(episode.levels_passed for episode in self.recent)
        return passed / (self.recent.maxlen or 1)

    def score(self) -> float:
        """Score of the policy over the last `window` episodes; higher is better.

        Levels passed in a whole game, otherwise the mean of the levels' clear rates.
        """
        if self.whole_game:
            return self.levels_passed()
        rates = self.clear_rates()
        return sum(rates) / len(rates)

    def level_statistics(self) -> dict[str, float]:
        """Means of each level over its last `window` episodes.

        For level 4-2: `levels/4-2` (the clear rate), `level_best_x/4-2` and
        `level_return/4-2`. Levels without a finished episode are left out. Empty for a
        task of one level, or one that does not report levels. An episode belongs to
        the level in which it began.
        """
        with self._lock:
            levels = {k: list(v) for k, v in sorted(self._levels.items()) if v}
        if len(levels) < 2:
            return {}
        parts = {
            "levels": "cleared",
            "level_best_x": "best_x",
            "level_return": "total_reward",
        }
        return {
            f"{name}/{level_name(k)}": float(
                np.mean([getattr(episode, field) for episode in episodes])
            )
            for name, field in parts.items()
            for k, episodes in levels.items()
        }

    def statistics(self) -> dict[str, float]:
        """Means over the window; `best_x_50` over the last 50 episodes.

        With several levels `clear_rate` is the mean of their rates, each over its own
        window because hard levels may be played more often; `worst_clear_rate` is
        the lowest rate.
        `best_x_max` is the maximum of the window, `best_x_run` of all episodes.
        `first_clear_episode` exists after the first clear, `levels_passed` only for
        a whole game.
        """
        with self._lock:
            result = {"episodes": float(self.count)}
            if self.first_clear is not None:
                result["first_clear_episode"] = float(self.first_clear)
            recent = list(self.recent)
        if not recent:
            return result
        clear_rate = float(np.mean([e.cleared for e in recent]))
        if self._several:
            rates = self.clear_rates()
            clear_rate, result["worst_clear_rate"] = float(np.mean(rates)), min(rates)
        if self.whole_game:
            result["levels_passed"] = float(np.mean([e.levels_passed for e in recent]))
        return result | {
            "return": float(np.mean([e.total_reward for e in recent])),
            "episode_steps": float(np.mean([e.steps for e in recent])),
            "best_x": float(np.mean([e.best_x for e in recent])),
            "best_x_50": float(np.mean([e.best_x for e in recent[-50:]])),
            "best_x_max": float(max(e.best_x for e in recent)),
            "best_x_run": float(self.best_x),
            "clear_rate": clear_rate,
        }
