"""A trial: runs with the values that Optuna suggests, and their score."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import optuna
from optuna.storages import RetryHeartbeatStaleTrialCallback

from trainer.config import shown
from trainer.config.options import MAX_SEED
from trainer.config.presets import share_cores
from trainer.config.schema import RunConfig
from trainer.machine.process import Interrupted
from trainer.machine.timings import format_seconds
from trainer.show.display import QuietDisplay
from trainer.tuning import options
from trainer.tuning.search_config import SearchConfig
from trainer.tuning.spaces import Space

Train = Callable[[RunConfig, QuietDisplay], dict[str, float]]

# Points of a trial at which it is compared with other trials.
REPORTS = 20

# Exceptions that make a trial fail. Others are bugs, or come from the database.
FAILURES = (ValueError, RuntimeError, OSError, ImportError, MemoryError)


class TrialDisplay(QuietDisplay):
    """Reports a run's progress to Optuna, and ends a hopeless run."""

    def __init__(self, trial: optuna.Trial, config: SearchConfig, seed: int) -> None:
        self._trial, self._minimise = trial, config.minimise
        self._every = max(1, config.max_steps // REPORTS)
        self._point = seed * REPORTS
        self._next = self._every

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Reports the clear rate at the same steps in all trials."""
        if step < self._next:
            return
        rate = values.get("rollout/clear_rate", 0.0)
        while self._next <= step:
            self._point += 1
            # Lower is better if the objective is a time.
            self._trial.report(1 - rate if self._minimise else rate, self._point)
            self._next += self._every
        if self._trial.should_prune():
            self._trial.set_user_attr("clear_rate", rate)
            self._trial.set_user_attr("steps", step)
            raise optuna.TrialPruned


class Objective:
    """One trial: one run per seed, and their mean value."""

    def __init__(
        self, config: SearchConfig, base: RunConfig, space: Space, train: Train
    ) -> None:
        """Keeps the parts that all trials share."""
        self._config, self._space, self._train = config, space, train
        self._base = share_cores(base, config.jobs)

    def __call__(self, trial: optuna.Trial) -> float:
        """Runs a trial and returns its value."""
        began = time.perf_counter()
        outcome = "failed"
        try:
            values = self._space(trial)
            trial.set_user_attr("options", values)
            used = options.that_matter(self._base, values)
            print(f"trial {trial.number}: begins; {options.flags(used)}", flush=True)
            config = options.apply(self._base, values)
            runs = range(self._config.seeds)
            value = math.fsum(self._run(trial, config, i) for i in runs) / len(runs)
            outcome = f"{value:.4g} (clear {trial.user_attrs['clear_rate']:.0%})"
            return value
        except optuna.TrialPruned:
            outcome = "pruned"
            raise
        except KeyboardInterrupt:
            outcome = "interrupted"
            study = trial.study
            RetryHeartbeatStaleTrialCallback()(study, study.trials[trial.number])
            raise
        except FAILURES as error:
            reason = str(error).split("\n")[0]
            trial.set_user_attr("error", shown.message(reason))
            outcome = f"failed: {trial.user_attrs['error']}"
            raise
        finally:
            seconds = time.perf_counter() - began
            trial.set_user_attr("seconds", seconds)
            print(
                f"trial {trial.number}: {outcome}, {format_seconds(seconds)}",
                flush=True,
            )

    def _run(self, trial: optuna.Trial, config: RunConfig, index: int) -> float:
        """One run of a trial."""
        search, seeds = self._config, self._config.seeds
        run_dir = search.folder / f"trial-{trial.number:03}"
        seed = self._base.seed + trial.number * seeds + index
        config = replace(
            config,
            seed=seed % (MAX_SEED + 1),
            run_dir=run_dir / f"seed-{index}" if seeds > 1 else run_dir,
        )
        metrics = self._train(config, TrialDisplay(trial, search, index))
        if metrics["signal"]:
            raise Interrupted(int(metrics["signal"]))
        rate = metrics.get("rollout/clear_rate", 0.0)
        trial.set_user_attr("clear_rate", rate)
        trial.set_user_attr("steps", int(metrics["steps"]))
        trial.set_user_attr("solved", bool(metrics["solved"]))
        if not search.minimise:
            return rate
        if metrics["solved"]:
            return min(metrics["seconds"], search.max_seconds)
        return search.max_seconds * (2 - rate)
