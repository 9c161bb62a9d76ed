"""Finished episodes: rates and means that a run reports, and a line for each."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainer.config.tasks import level_name, level_number
from trainer.rollout.episodes import Episode, StepColumns


class Ended(NamedTuple):
    """An episode that ended."""

    level: int  # number of the level in which it began; 0: the task has no levels
    episode: Episode
    line: dict[str, Any]  # see `StepColumns.line`


class FinishedEpisodes:
    """Keeps the last episodes of the run and of each level, and counts all episodes.

    Episodes from snapshots, or with actions of a teacher, are in no rate and no mean.
    One thread may observe while another reads. `take_new` must be called once for each
    batch.
    """

    def __init__(
        self,
        window: int = 100,  # rates are over this many of the last episodes
        *,
        levels: Sequence[str] = (),  # two or more have a clear rate each
        whole_game: bool = False,  # an episode goes through several levels
    ) -> None:
        self.whole_game = whole_game
        self.window = window
        self._several = tuple(levels) if len(levels) > 1 else ()
        self.count = 0
        # Number of the episode that first cleared a level, by the level's number.
        self._first_clears: dict[int, int] = {}
        self.best_x = 0
        self.recent = self._last()
        # The last episodes, by the number of the level in which they began.
        self._levels: dict[int, deque[Episode]] = {}
        # The episodes of each collected batch that `take_new` has not returned yet.
        self._new: deque[list[Ended]] = deque()
        self._lock = threading.Lock()

    def observe(self, columns: StepColumns) -> None:
        """Adds the episodes that the rows of one recv ended."""
        if columns.ended:  # rare
            with self._lock:
                self._new = self._new or deque([[]])
                for row, episode in columns.ended:
                    level = 0 if self.whole_game else int(columns.first_level[row])
                    ended = Ended(level, episode, columns.line(row, episode))
                    self._add(ended)
                    self._new[-1].append(ended)

    def begin_batch(self) -> None:
        """Begins a batch: the rows that follow belong to it."""
        with self._lock:
            self._new.append([])

    def take_new(self) -> list[Ended]:
        """The episodes that ended in the next batch, for `add` and episodes.jsonl.

        Episodes of later batches are left out: another thread may already be
        collecting such a batch, and the result must not depend on its progress.
        """
        with self._lock:
            return self._new.popleft() if self._new else []

    def drop_new(self) -> None:
        """Drops what `take_new` would return: these batches are collected again."""
        with self._lock:
            self._new.clear()

    def add(self, new: Sequence[Ended]) -> None:
        """Adds episodes that another `FinishedEpisodes` has observed."""
        with self._lock:
            for ended in new:
                self._add(ended)

    def _add(self, ended: Ended) -> None:
        """Adds an episode, unless it began from a snapshot or a teacher helped.

        A clear may take an episode from a snapshot a few steps.
        """
        if ended.line["from_snapshot"] or ended.line.get("taught"):
            return
        level, episode, _ = ended
        self.count += 1
        self.best_x = max(self.best_x, episode.best_x)
        if episode.cleared:
            self._first_clears.setdefault(level, self.count)
        self.recent.append(episode)
        if level:
            self._levels.setdefault(level, self._last()).append(episode)

    def _last(self, episodes: Iterable[Iterable[Any]] = ()) -> deque[Episode]:
        """The last of some episodes, and of those that follow."""
        return deque(map(Episode._make, episodes), self.window)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, in plain types."""
        with self._lock:
            return {
                "count": self.count,
                "first_clears": dict(self._first_clears),
                "best_x": self.best_x,
                "recent": list(map(list, self.recent)),
                "levels": {k: list(map(list, v)) for k, v in self._levels.items()},
                "ended": [[[k, list(e), line] for k, e, line in b] for b in self._new],
            }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state()` of episodes with the same window."""
        with self._lock:
            self.count, self.best_x = state["count"], state["best_x"]
            self._first_clears = dict(state["first_clears"])
            self.recent = self._last(state["recent"])
            self._levels = {k: self._last(v) for k, v in state["levels"].items()}
            batches = state.get("ended", [])  # older checkpoints lack this field
            self._new = deque(
                [Ended(k, Episode(*e), line) for k, e, line in b] for b in batches
            )

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
        with self._lock:
            episodes: list[Sequence[Episode]] = [self.recent]
            if self._several:
                numbers = map(level_number, self._several)
                episodes = [self._levels.get(number, ()) for number in numbers]
            return [sum(e.cleared for e in some) / self.window for some in episodes]

    def score(self) -> float:
        """Score of the policy over the last `window` episodes; higher is better.

        Levels passed in a whole game, otherwise the mean of the levels' clear rates.
        Missing episodes count as failures.
        """
        if self.whole_game:
            with self._lock:
                return sum(e.levels_passed for e in self.recent) / self.window
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
        result = {}
        for name, mean in ((level_name(k), _mean(v)) for k, v in levels.items()):
            result[f"levels/{name}"] = float(mean.cleared)
            result[f"level_best_x/{name}"] = mean.best_x
            result[f"level_return/{name}"] = mean.total_reward
        return result

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
            if self._first_clears:
                result["first_clear_episode"] = float(min(self._first_clears.values()))
            recent = list(self.recent)
        if not recent:
            return result
        mean = _mean(recent)
        clear_rate = float(mean.cleared)
        if self._several:
            rates = self.clear_rates()
            clear_rate, result["worst_clear_rate"] = float(np.mean(rates)), min(rates)
        if self.whole_game:
            result["levels_passed"] = mean.levels_passed
        return result | {
            "return": mean.total_reward,
            "episode_steps": mean.steps,
            "best_x": mean.best_x,
            "best_x_50": _mean(recent[-50:]).best_x,
            "best_x_max": float(max(e.best_x for e in recent)),
            "best_x_run": float(self.best_x),
            "clear_rate": clear_rate,
        }


def _mean(episodes: Sequence[Episode]) -> Episode:
    """The mean of each field."""
    return Episode(*np.mean(episodes, axis=0).tolist())
