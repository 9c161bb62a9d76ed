"""Results of an evaluation: of a task, of single levels, and of levels in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from trainer.config import shown
from trainer.config.tasks import all_levels
from trainer.evaluation.play import Played, wilson
from trainer.rollout.episodes import Place, end_of, place_of

# Steps without a new best position after which an episode of a level has failed.
STALL_STEPS = 250


@dataclass(frozen=True)
class LevelResult:
    """The result of a policy in one level.

    Every episode either cleared, died, stalled or timed out.

    Attributes:
        level: such as "1-1".
        argmax: whether actions were greedy instead of sampled.
        repeat_action_probability: probability per frame that the buttons stayed as
            they were (sticky actions).
        episodes: number of episodes.
        clears: number of episodes that reached the flag or the axe.
        clear_rate: clears / episodes.
        interval: 95 % confidence interval of the clear rate. It means little with
            argmax and no sticky actions, where the episodes are all possible starts.
        return_mean: mean return, in rewards of the run.
        best_x_median: median of the largest x of an episode.
        steps_to_clear_median: median length of the cleared episodes.
        stalled: number of episodes without progress for too long.
        timed_out: number of episodes in which the game's clock ran out.
        deaths: where episodes died.
        stalls: where episodes stalled.
        cleared_starts: with argmax, the idle frames before the cleared episodes.
        episode_steps: length of each episode, in the order in which they ended.
        episode_best_x: largest x of each episode, in the same order.
        unseen: whether a run of several levels never trained on this level.
    """

    level: str
    argmax: bool
    repeat_action_probability: float
    episodes: int
    clears: int
    clear_rate: float
    interval: tuple[float, float]
    return_mean: float
    best_x_median: float
    steps_to_clear_median: float | None
    stalled: int
    timed_out: int
    deaths: list[Place]
    stalls: list[Place]
    cleared_starts: list[int] | None
    episode_steps: list[int]
    episode_best_x: list[int]
    unseen: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


def level_result(
    level: str,
    played: Sequence[Played],
    *,
    repeat_action_probability: float,
    starts: Sequence[int] | None = None,
    unseen: bool = False,
) -> LevelResult:
    """The result of one level's episodes."""
    ends = [end_of(p.last) for p in played]
    clears = [p.episode.steps for p in played if p.episode.cleared]
    cleared_starts = None
    if starts is not None:
        cleared_starts = sorted(starts[p.env] for p in played if p.episode.cleared)

    def places(end: str) -> list[Place]:
        return sorted(
            place_of(p.last) for p, e in zip(played, ends, strict=True) if e == end
        )

    return LevelResult(
        level=level,
        argmax=starts is not None,
        repeat_action_probability=repeat_action_probability,
        episodes=len(played),
        clears=len(clears),
        clear_rate=len(clears) / len(played),
        interval=wilson(len(clears), len(played)),
        return_mean=float(np.mean([p.episode.total_reward for p in played])),
        best_x_median=float(np.median([p.episode.best_x for p in played])),
        steps_to_clear_median=float(np.median(clears)) if clears else None,
        stalled=ends.count("stalled"),
        timed_out=ends.count("timed out"),
        deaths=places("died"),
        stalls=places("stalled"),
        cleared_starts=cleared_starts,
        episode_steps=[p.episode.steps for p in played],
        episode_best_x=[p.episode.best_x for p in played],
        unseen=unseen,
    )


def summarise(played: Sequence[Played], *, whole_game: bool = False) -> dict[str, Any]:
    """Rates, means and medians of a task; None for a number that it does not have."""
    episodes = [p.episode for p in played]
    has_flag = "flag_get" in played[0].last
    clears = [e.steps for e in episodes if e.cleared]
    best = [e.best_x for e in episodes]
    result: dict[str, Any] = {
        "episodes": len(episodes),
        "clears": len(clears) if has_flag else None,
        "clear_rate": len(clears) / len(episodes) if has_flag else None,
        "clear_rate_95": wilson(len(clears), len(episodes)) if has_flag else None,
        "best_x_mean": float(np.mean(best)) if has_flag else None,
        "best_x_median": float(np.median(best)) if has_flag else None,
        "return_mean": float(np.mean([e.total_reward for e in episodes])),
        "episode_steps_mean": float(np.mean([e.steps for e in episodes])),
        "episode_steps": [e.steps for e in episodes],
        "episode_best_x": best,
    }
    if whole_game:
        passed = [e.levels_passed for e in episodes]
        result["levels_passed_mean"] = float(np.mean(passed))
        result["episode_levels_passed"] = passed
    for name, function in (("mean", np.mean), ("median", np.median)):
        result[f"steps_to_clear_{name}"] = float(function(clears)) if clears else None
    return result


def summarise_levels(results: Sequence[LevelResult]) -> dict[str, Any]:
    """One evaluation of several levels, for a line of evaluations.jsonl.

    Rates and means are those of the training levels. `test_clear_rate` is the rate of
    the test levels, None if there are none. `levels` has the result of each level.
    """
    train = [r for r in results if not r.unseen]
    test = [r for r in results if r.unseen]
    clears, episodes = sum(r.clears for r in train), sum(r.episodes for r in train)
    worst = min(train, key=lambda result: result.clear_rate)
    return {
        "episodes": episodes,
        "clears": clears,
        "clear_rate": clears / episodes,
        "clear_rate_95": wilson(clears, episodes),
        "return_mean": float(np.mean([r.return_mean for r in train])),
        "worst_level": worst.level,
        "worst_clear_rate": worst.clear_rate,
        "test_clear_rate": (
            sum(r.clears for r in test) / sum(r.episodes for r in test)
            if test
            else None
        ),
        "levels": [result.to_dict() for result in results],
    }


def levels_in_a_row(results: Sequence[LevelResult]) -> float | None:
    """The mean number of levels from 1-1 on that are cleared at the first attempt.

    With sampled actions it is the sum of p1, p1 p2, p1 p2 p3, ..., the expected number
    for independent levels. With greedy actions it is the number of successive levels
    that are cleared from a start, as a mean over the starts.
    """
    row = []
    for level, result in zip(all_levels("SuperMarioBros-v0"), results, strict=False):
        if result.level != level:
            break
        row.append(result)
    if len(row) < 2:
        return None
    if not row[0].argmax:
        return float(np.cumprod([result.clear_rate for result in row]).sum())
    cleared = np.zeros((len(row), row[0].episodes), bool)
    for k, result in enumerate(row):
        cleared[k, result.cleared_starts] = True
    return float(np.cumprod(cleared, axis=0).sum(axis=0).mean())


def by_options(
    results: Sequence[LevelResult],
) -> dict[tuple[float, bool], list[LevelResult]]:
    """Results by (repeat_action_probability, argmax), in their order."""
    parts: dict[tuple[float, bool], list[LevelResult]] = {}
    for result in results:
        key = (result.repeat_action_probability, result.argmax)
        parts.setdefault(key, []).append(result)
    return parts


class Evaluation(NamedTuple):
    """All numbers of one evaluation of a checkpoint.

    Attributes:
        about: what was played: task, steps of the checkpoint, levels and options.
        levels: results by level; for each probability of sticky actions first with
            sampled actions, then with greedy actions.
        rows: results of `evaluate_policy`, for tasks without levels.
        episodes: lines as in a run's episodes.jsonl, in the order of their ends.
    """

    about: dict[str, Any]
    levels: list[LevelResult]
    rows: list[dict[str, Any]]
    episodes: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: the content of table.json, which others may see."""
        about = shown.settings(self.about)
        if not self.levels:
            return about | {"results": self.rows}
        return about | {
            "results": [result.to_dict() for result in self.levels],
            "levels_in_a_row": [
                {
                    "repeat_action_probability": chance,
                    "argmax": argmax,
                    "levels": levels_in_a_row(part),
                }
                for (chance, argmax), part in by_options(self.levels).items()
            ],
        }
