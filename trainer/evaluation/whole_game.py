"""Attempts at the whole game: how far policies come with three lives, and where not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from trainer.config import shown
from trainer.config.tasks import LevelPlaces
from trainer.evaluation.play import wilson
from trainer.rollout.episodes import StepColumns


@dataclass
class Attempt:
    """One attempt, from power-on to the last castle or to the last life.

    Attributes:
        steps: of the environment.
        finished: whether the last castle was cleared.
        game_over: whether the last life was lost.
        passed: levels that were played to their end. The way through a warp zone ends
            a level, too.
        skipped: levels that warp zones left out.
        passed_before_death: `passed` at the first lost life.
        entered: the levels, each once.
        lost: the level of each lost life.
    """

    steps: int = 0
    finished: bool = False
    game_over: bool = False
    passed: int = 0
    skipped: int = 0
    passed_before_death: int = 0
    entered: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


class Attempts:
    """Follows all environments of a pool through the levels."""

    def __init__(self, num_envs: int, levels: Sequence[str]) -> None:
        self._levels = levels
        self._places = LevelPlaces(levels)
        self._place = np.full(num_envs, -1, np.int64)
        self._open = [Attempt() for _ in range(num_envs)]
        self.ended: list[Attempt] = []
        """Attempts, in the order in which they ended."""

    def observe(self, columns: StepColumns) -> None:
        """Takes the rows of one recv."""
        place, env_id = self._places(columns.level), columns.env_id
        moved = (place >= 0) & (place != self._place[env_id])
        for row in np.flatnonzero(columns.is_first):
            self._open[env_id[row]] = Attempt()
            self._place[env_id[row]] = -1
        for row in np.flatnonzero(moved | columns.is_first):
            self._enter(int(env_id[row]), int(place[row]))
        died = columns.done & ~columns.truncated & ~columns.cleared
        for row in np.flatnonzero(columns.lost_life | died):
            self._lose(int(env_id[row]))
        for row in np.flatnonzero(died):
            self._open[env_id[row]].game_over = True
        for row in np.flatnonzero(columns.done):
            env = int(env_id[row])
            attempt = self._open[env]
            attempt.steps = int(columns.step[row])
            if columns.cleared[row]:
                attempt.finished = True
                attempt.passed += 1
            if not attempt.lost:
                attempt.passed_before_death = attempt.passed
            self.ended.append(attempt)

    def _enter(self, env: int, place: int) -> None:
        attempt, before = self._open[env], int(self._place[env])
        if attempt.entered:
            attempt.passed += 1
            attempt.skipped += max(place - before - 1, 0)
        self._place[env] = place
        if (level := self._levels[place]) not in attempt.entered:
            attempt.entered.append(level)

    def _lose(self, env: int) -> None:
        attempt = self._open[env]
        if not attempt.lost:
            attempt.passed_before_death = attempt.passed
        attempt.lost.append(self._levels[int(self._place[env])])


class GameEvaluation(NamedTuple):
    """All numbers of whole games.

    Attributes:
        about: what was played: policies, steps of their training, and options.
        results: for each probability of sticky actions first with sampled actions, then
            with greedy actions.
        episodes: lines of attempts, see `Evaluation`.
    """

    about: dict[str, Any]
    results: list[GameResult]
    episodes: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: the content of whole-game.json, which others may see."""
        results = [result.to_dict() for result in self.results]
        return shown.settings(self.about) | {"results": results}


@dataclass(frozen=True)
class GameResult:
    """The attempts with sampled or with greedy actions.

    Attributes:
        argmax: whether actions were greedy instead of sampled.
        repeat_action_probability: probability per frame that the buttons stayed as
            they were (sticky actions).
        episodes: number of attempts.
        finished: number of attempts that cleared the last castle.
        finish_rate: finished / episodes.
        interval: 95 % confidence interval of the finish rate (Wilson).
        passed_before_death_mean: mean number of levels before the first lost life.
        passed_before_death_95: its 95 % interval, of a normal distribution.
        passed_mean: mean number of levels that an attempt played to their end.
        skipped_mean: mean number of levels that warp zones left out.
        lost_mean: mean number of lost lives.
        steps_mean: mean length in steps.
        reached: by level, in how many attempts it was entered.
        lost: by level, how many lives were lost there.
        ended: by level, how many attempts lost their last life there.
        attempts: every attempt.
    """

    argmax: bool
    repeat_action_probability: float
    episodes: int
    finished: int
    finish_rate: float
    interval: tuple[float, float]
    passed_before_death_mean: float
    passed_before_death_95: tuple[float, float]
    passed_mean: float
    skipped_mean: float
    lost_mean: float
    steps_mean: float
    reached: dict[str, int]
    lost: dict[str, int]
    ended: dict[str, int]
    attempts: list[Attempt]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


def game_result(
    attempts: Sequence[Attempt],
    levels: Sequence[str],
    *,
    argmax: bool,
    repeat_action_probability: float,
) -> GameResult:
    """The numbers of some attempts."""
    count = len(attempts)
    finished = sum(attempt.finished for attempt in attempts)
    before = np.array([attempt.passed_before_death for attempt in attempts])
    half = 1.959964 * float(before.std(ddof=1)) / count**0.5 if count > 1 else 0.0
    reached = Counter(level for a in attempts for level in a.entered)
    lost = Counter(level for a in attempts for level in a.lost)
    ended = Counter(a.lost[-1] for a in attempts if a.game_over)
    mean = float(before.mean())
    return GameResult(
        argmax=argmax,
        repeat_action_probability=repeat_action_probability,
        episodes=count,
        finished=finished,
        finish_rate=finished / count,
        interval=wilson(finished, count),
        passed_before_death_mean=mean,
        passed_before_death_95=(max(mean - half, 0.0), mean + half),
        passed_mean=float(np.mean([a.passed for a in attempts])),
        skipped_mean=float(np.mean([a.skipped for a in attempts])),
        lost_mean=float(np.mean([len(a.lost) for a in attempts])),
        steps_mean=float(np.mean([a.steps for a in attempts])),
        reached={level: reached[level] for level in levels if reached[level]},
        lost={level: lost[level] for level in levels if lost[level]},
        ended={level: ended[level] for level in levels if ended[level]},
        attempts=list(attempts),
    )
