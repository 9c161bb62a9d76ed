"""What a run reports: episodes, time shares and curves."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainer.envs.levels import level_name, level_number, level_numbers, x_in_room

# Steps without a new best position after which an environment stagnates.
STAGNATION_STEPS = 50


class Episode(NamedTuple):
    """One finished episode."""

    total_reward: float
    steps: int
    best_x: int
    cleared: bool


class EpisodeTracker:
    """Adds up rewards and positions per environment, and keeps the last episodes.

    With next-step autoreset the row after a `done` row is the reset: it opens the
    next episode, and its reward is 0. One thread may add while another reads.

    Episodes that began elsewhere than at the start of a level count for nothing: they
    may be clears of a few steps.
    """

    # Arrays of one number per environment, about its open episode.
    _OPEN = ("_reward", "_steps", "_best_x", "_best_step", "_over", "_level",
             "_elsewhere")  # fmt: skip

    def __init__(
        self,
        num_envs: int,
        window: int = 100,
        *,
        num_stages: int | None = None,
        levels: Sequence[str] = (),
    ) -> None:
        """Starts with no episodes.

        Args:
            num_envs: environments in the pool.
            window: rates are over so many episodes, the last ones.
            num_stages: where info's `start` is this or more, an episode began
                elsewhere; None: none does.
            levels: of several, each has a clear rate of its own; with less there is
                one of all episodes.
        """
        self._num_stages = num_stages
        self._several = tuple(levels) if len(levels) > 1 else ()
        self._elsewhere = np.zeros(num_envs, bool)
        self.count = 0
        # Which episode was the first clear of each level, by the level's number.
        self._first_clears: dict[int, int] = {}
        self.best_x = 0
        self.recent: deque[Episode] = deque(maxlen=window)
        self._reward = np.zeros(num_envs)
        self._steps = np.zeros(num_envs, np.int64)
        self._best_x = np.zeros(num_envs, np.int64)
        self._best_step = np.zeros(num_envs, np.int64)
        self._over = np.ones(num_envs, bool)
        self._lock = threading.Lock()
        # Growth of the best positions, and steps, since the last statistics().
        self._grown, self._grown_in = 0, 0
        self._has_x = False
        # The last episodes by the level they began in, a number for each.
        self._levels: dict[int, deque[Episode]] = {}
        self._level = np.zeros(num_envs, np.int64)

    def add(
        self,
        env_id: npt.NDArray[np.int32],
        reward: npt.NDArray[np.float32],
        done: npt.NDArray[np.bool_],
        info: Mapping[str, Any],
    ) -> list[tuple[int, Episode]]:
        """Takes the rows of one recv.

        `x_pos`, `flag_get`, `world` and `stage` may be missing.

        Returns:
            The environments whose rows ended episodes that count, and these.
        """
        with self._lock:
            opening = self._over[env_id]
            if opening.any():  # seldom
                self._open(env_id[opening], opening, info)
            self._over[env_id] = done
            self._reward[env_id] += reward
            self._steps[env_id] += 1
            if "x_pos" in info:
                self._add_positions(env_id, opening, x_in_room(info))
            flags = info.get("flag_get")
            finished = []
            for row in np.flatnonzero(done):
                cleared = bool(flags[row]) if flags is not None else False
                env = int(env_id[row])
                if not self._elsewhere[env]:
                    finished.append((env, self._add_episode(env, cleared)))
            return finished

    def _open(
        self,
        fresh: npt.NDArray[np.int32],
        opening: npt.NDArray[np.bool_],
        info: Mapping[str, Any],
    ) -> None:
        """Begins the episodes of environments, those of some rows."""
        self._reward[fresh] = 0.0
        self._steps[fresh] = -1
        self._best_x[fresh] = 0
        self._best_step[fresh] = 0
        if "world" in info and "stage" in info:
            self._level[fresh] = level_numbers(info)[opening]
        if self._num_stages is not None:
            self._elsewhere[fresh] = info["start"][opening] >= self._num_stages

    def _add_positions(
        self,
        env_id: npt.NDArray[np.int32],
        opening: npt.NDArray[np.bool_],
        x_pos: npt.NDArray[np.int64],
    ) -> None:
        """Follows the best positions; where an episode opens is no progress."""
        self._has_x = True
        old = self._best_x[env_id]
        best = np.maximum(old, x_pos)
        self._best_x[env_id] = best
        better = env_id[best > old]
        self._best_step[better] = self._steps[better]
        self._grown += int((best - old)[~opening].sum())
        self._grown_in += int((~opening).sum())

    def _add_episode(self, env: int, cleared: bool) -> Episode:
        self.count += 1
        level = int(self._level[env])
        self.best_x = max(self.best_x, int(self._best_x[env]))
        if cleared:
            self._first_clears.setdefault(level, self.count)
        episode = Episode(
            float(self._reward[env]),
            int(self._steps[env]),
            int(self._best_x[env]),
            cleared,
        )
        self.recent.append(episode)
        if level:
            window = deque[Episode](maxlen=self.recent.maxlen)
            self._levels.setdefault(level, window).append(episode)
        return episode

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, in plain types and tensors."""
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
                "has_x": self._has_x,
                "open": {
                    name: torch.from_numpy(getattr(self, name).copy())
                    for name in self._OPEN
                },
            }

    def restore(self, state: dict[str, Any], *, going_on: bool) -> None:
        """Continues from `state()`.

        Args:
            state: of a tracker with the same window.
            going_on: whether the open episodes go on, too, in as many environments;
                otherwise new ones begin.
        """
        with self._lock:
            self.count = state["count"]
            # Early versions knew one for all levels.
            first = state.get("first_clear")
            early = {} if first is None else {0: first}
            self._first_clears = dict(state.get("first_clears", early))
            self.best_x, self._has_x = state["best_x"], state["has_x"]
            self.recent.clear()
            self.recent.extend(Episode(*episode) for episode in state["recent"])
            self._levels = {
                # Early versions kept clears alone.
                level: deque(
                    (Episode(*e) for e in episodes if isinstance(e, list)),
                    maxlen=self.recent.maxlen,
                )
                for level, episodes in state["levels"].items()
            }
            for name, values in state["open"].items() if going_on else ():
                setattr(self, name, values.cpu().numpy().copy())

    @property
    def first_clear(self) -> int | None:
        """Number of the first episode that cleared its level, from 1; None: none."""
        return min(self._first_clears.values(), default=None)

    def cleared_levels(self) -> list[str]:
        """Levels in the order of their first clears; "" is one without a name."""
        with self._lock:
            levels = sorted(self._first_clears, key=self._first_clears.__getitem__)
        return [level_name(level) if level else "" for level in levels]

    def clear_rates(self) -> list[float]:
        """Share of clears of each level, or of all, over its last `window` episodes.

        Those that have not been played yet count as failures, so that a few lucky
        ones are no rate.
        """
        window = self.recent.maxlen or 1
        with self._lock:
            episodes: list[Sequence[Episode]] = [self.recent]
            if self._several:
                numbers = map(level_number, self._several)
                episodes = [self._levels.get(number, ()) for number in numbers]
            return [sum(e.cleared for e in some) / window for some in episodes]

    def level_statistics(self) -> dict[str, float]:
        """Means by level over each one's last `window` episodes.

        As "levels/4-2", the share of clears, `level_best_x/4-2` and
        `level_return/4-2`. Levels without a finished episode are not there. Empty
        for a task of one level, or one that does not tell. An episode belongs to the
        level it began in.
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

        With several levels `clear_rate` is the mean of their rates, each over its
        own window, as hard ones may be played oftener; `worst_clear_rate` is the
        least.
        `best_x_max` is the maximum of the window, `best_x_run` of all episodes.
        `env_progress_dx` is the mean growth of an episode's best position per step
        since the last call, and `stagnation_envs` counts the environments without
        a new one for STAGNATION_STEPS steps by now; both need positions.
        `first_clear_episode` is there from the first clear on.
        """
        with self._lock:
            result = {"episodes": float(self.count)}
            if self.first_clear is not None:
                result["first_clear_episode"] = float(self.first_clear)
            recent = list(self.recent)
            if self._has_x:
                idle = self._steps - self._best_step >= STAGNATION_STEPS
                result["stagnation_envs"] = float((idle & ~self._over).sum())
                result["env_progress_dx"] = self._grown / max(self._grown_in, 1)
                self._grown, self._grown_in = 0, 0
        if not recent:
            return result
        clear_rate = float(np.mean([e.cleared for e in recent]))
        if self._several:
            rates = self.clear_rates()
            clear_rate, result["worst_clear_rate"] = float(np.mean(rates)), min(rates)
        return result | {
            "return": float(np.mean([e.total_reward for e in recent])),
            "episode_steps": float(np.mean([e.steps for e in recent])),
            "best_x": float(np.mean([e.best_x for e in recent])),
            "best_x_50": float(np.mean([e.best_x for e in recent[-50:]])),
            "best_x_max": float(max(e.best_x for e in recent)),
            "best_x_run": float(self.best_x),
            "clear_rate": clear_rate,
        }
