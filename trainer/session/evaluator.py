"""Evaluations of a run: to confirm that it is solved, and at its end."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch

from trainer.config.schema import RunConfig
from trainer.config.tasks import levels_of
from trainer.evaluation.protocol import evaluate
from trainer.evaluation.results import summarise_levels
from trainer.evaluation.tables import as_text, level_table
from trainer.machine.files import Lines
from trainer.machine.timings import format_seconds
from trainer.models import PolicyModel
from trainer.models.build import Ema, copy_weights
from trainer.rollout.finished import FinishedEpisodes
from trainer.session.progress import Clock, Progress
from trainer.show.tracking import MetricsWriter

# Episodes between two attempts to show that a level is solved.
_EPISODES_BETWEEN_ATTEMPTS = 50


class Evaluator:
    """Plays fresh episodes with the current weights, and logs the results."""

    def __init__(
        self,
        config: RunConfig,
        *,
        model: PolicyModel,
        ema: Ema | None,
        device: torch.device,
        dtype: torch.dtype | None,
        episodes: FinishedEpisodes,
        progress: Progress,
        clock: Clock,
        lines: Lines,
        writer: MetricsWriter,
        log: Callable[[str], None],
        skip: Callable[[float], None],
    ) -> None:
        """Takes the parts of a run that an evaluation uses."""
        self._config, self._model, self._ema = config, model, ema
        self._device, self._dtype = device, dtype
        self._episodes, self._progress, self._clock = episodes, progress, clock
        self._lines, self._writer = lines, writer
        self._log, self._skip = log, skip
        env = config.env
        # Like `python -m trainer.evaluate`: the levels, one at a time, or else the
        # task.
        self._levels = levels_of(env.levels, env.test_levels, env.task)

    def solved(self) -> bool:
        """Whether two evaluations confirm that the run is solved."""
        config, progress = self._config, self._progress
        levels, count = config.env.levels, self._episodes.count
        rate = min(self._episodes.clear_rates())
        if not rate or rate < config.solve_rate or count < progress.next_attempt:
            return False
        between = _EPISODES_BETWEEN_ATTEMPTS * max(1, len(levels))
        progress.next_attempt = count + between
        what = "the level" if len(levels) < 2 else "the worst level"
        if self._episodes.whole_game:
            what = "the whole game"
        self._log(
            f"{rate:.0%} of the last 100 training episodes cleared {what} after "
            f"{progress.steps:,} steps, {format_seconds(self._clock.seconds())}"
        )
        # A single evaluation may pass by luck, because the run tries until one passes.
        return all(
            self._evaluate(name, config.solve_episodes) >= config.solve_rate
            for name in ("evaluation", "second evaluation")
        )

    def at_end(self) -> None:
        """Evaluates the levels of an unsolved run, if the config asks for it."""
        episodes = self._config.end_episodes
        if self._config.env.levels and episodes:
            self._log(
                f"evaluation of {len(self._levels)} levels, {episodes} episodes each"
            )
            self._evaluate("evaluation at the end", episodes)

    def _evaluate(self, name: str, episodes: int) -> float:
        """Plays fresh episodes and logs the result."""
        progress = self._progress
        progress.attempts += 1
        began = time.perf_counter()
        result, table = self._play(episodes)
        self._skip(time.perf_counter() - began)
        seconds = self._clock.seconds()
        result |= {"steps": progress.steps, "seconds": seconds, "name": name}
        result |= {"seed": self._config.seed, "stream": progress.attempts}
        low, high = result["clear_rate_95"]
        self._log(
            f"{name}: {result['clears']} of {result['episodes']} episodes cleared "
            f"(95 % interval {low:.1%} to {high:.1%}), {format_seconds(seconds)}{table}"
        )
        self._lines.write(result)
        names = ("clear_rate", "worst_clear_rate", "test_clear_rate")
        rates = {
            f"evaluation/{name}": float(result[name])
            for name in names
            if result.get(name) is not None
        }
        progress.evaluated |= rates
        self._writer.write(progress.steps, rates)
        return float(result.get("worst_clear_rate", result["clear_rate"]))

    def _play(self, episodes: int) -> tuple[dict[str, Any], str]:
        """Plays the averaged weights; returns the results and a table of the levels."""
        config = self._config
        model = copy.deepcopy(self._model)
        if self._ema is not None:
            copy_weights(model, self._ema.model)
        options: dict[str, Any] = {
            "episodes": episodes,
            "seed": config.seed,
            "stream": self._progress.attempts,
            "device": self._device,
            "dtype": self._dtype,
        }
        result = evaluate(model, config.env, levels=self._levels, **options)
        if isinstance(result, dict):
            return result, ""
        table = f"\n{as_text(level_table(result, []))}" if len(result) > 1 else ""
        return summarise_levels(result), table
