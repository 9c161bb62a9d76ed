"""Searches for better settings with Optuna: `python -m trainer.search`.

Every trial is a whole run with values from the space file, in a folder of its own.
Trials that clear less than the others did at the same step are ended early. All
that is known is in a database, so a search goes on where it was after Ctrl-C or a
crash (the same command again), and several processes with one name share the work.

    python -m trainer.search --trials 20 --jobs 2
    python -m trainer.search --name mine --space mine.toml --seeds 2
    python -m trainer.search --name pipes -- --task SuperMarioBros-1-2-v0 --lag 1

Flags behind `--` are those of `python -m trainer.run` and hold for all trials.
Needs Optuna: pip install -e '.[search]'. Exit status: 0, 130 after Ctrl-C, or 2 with
one line `error: ...` on stderr.
"""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

from trainer.cli import parse
from trainer.config.checks import MAX_SEED
from trainer.config.presets import share_cores
from trainer.config.schema import RunConfig
from trainer.config.tasks import is_native
from trainer.machine.timings import format_seconds
from trainer.session.session import run_training
from trainer.show.dashboard import QuietDisplay
from trainer.tuning import space
from trainer.tuning.space import Choices, Space

try:
    import optuna
except ModuleNotFoundError:
    print(
        "error: trainer.search needs Optuna, which is not installed: pip install -e "
        "'.[search]'",
        file=sys.stderr,
    )
    raise SystemExit(2) from None

from optuna.exceptions import ExperimentalWarning, OptunaError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState

from trainer.tuning.report import counted, finish

Train = Callable[[RunConfig, QuietDisplay], dict[str, float]]

# Points of a trial at which it is compared with the others.
_REPORTS = 20

# A process that was killed is noticed this long after its last sign of life.
_HEARTBEAT_S = 10
_GRACE_S = 60
_POLL_S = 2.0

# How often a trial whose process was killed is tried again: it may be its memory.
_RETRIES = 2

# What makes a trial a failed one. Anything else is a bug, or the database's.
_FAILURES = (ValueError, RuntimeError, OSError, ImportError, MemoryError)


@dataclass(frozen=True)
class SearchConfig:
    """Searches for better settings of a run."""

    space: Path | None = None
    """TOML file with the ranges (trainer/space.py says how); by default the one of
    this package, trainer/search_space.toml."""

    trials: int = 20
    """Trials in all, those of earlier calls and of other processes included."""

    jobs: int = 1
    """Processes; they divide the cores."""

    seeds: int = 1
    """Runs per trial, each with a seed that no other trial has; their mean counts.
    Seeds differ by 30 % and more, so with 1 the best trial is partly luck."""

    name: str = "search"
    """Name of the search; a search of that name goes on."""

    storage: str = ""
    """Database that knows all trials, any URL that SQLAlchemy takes; by default
    sqlite:///OUT/NAME/study.db."""

    objective: Literal["time-to-clear", "clear-rate"] = "time-to-clear"
    """time-to-clear: seconds until the level is solved, a run that does not solve
    it counts max_seconds x (2 - its clear rate); clear-rate: of the last 100 training
    episodes when max_steps or max_seconds are over."""

    pruner: Literal["median", "hyperband", "none"] = "median"
    """What ends hopeless trials: median (below the median of the others at the same
    step), hyperband (Li et al. 2018), none."""

    max_steps: int = 400_000
    """Environment steps of a run, at most."""

    max_seconds: float = 300.0
    """Seconds of a run, at most."""

    out: Path = Path("runs/search")
    """Folder of all searches; a search writes to OUT/NAME."""

    def validate(self) -> None:
        """Raises ValueError for a value that cannot be."""
        for name in ("trials", "jobs", "seeds", "max_steps"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 1, got {getattr(self, name)}"
                )
        if self.max_seconds <= 0:
            raise ValueError(f"max_seconds must be above 0, got {self.max_seconds:g}")
        if not self.name or self.name in (".", "..") or "/" in self.name:
            raise ValueError(f"name is that of a folder, without /, got {self.name!r}")

    @property
    def folder(self) -> Path:
        """Where trials, plots and the default database are."""
        return self.out / self.name

    @property
    def minimise(self) -> bool:
        """Whether a lower value is better."""
        return self.objective == "time-to-clear"


class Trial(QuietDisplay):
    """Tells Optuna how a run goes, and ends it when it is hopeless."""

    def __init__(self, trial: optuna.Trial, config: SearchConfig, seed: int) -> None:
        self._trial, self._minimise = trial, config.minimise
        self._every = max(1, config.max_steps // _REPORTS)
        self._point = seed * _REPORTS
        self._next = self._every

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Reports the clear rate at steps that all trials have in common.

        Raises:
            optuna.TrialPruned: the trial is hopeless.
        """
        if step < self._next:
            return
        rate = values.get("rollout/clear_rate", 0.0)
        while self._next <= step:
            self._point += 1
            # Lower is better where the objective is a time.
            self._trial.report(1 - rate if self._minimise else rate, self._point)
            self._next += self._every
        if self._trial.should_prune():
            self._trial.set_user_attr("clear_rate", rate)
            self._trial.set_user_attr("steps", step)
            raise optuna.TrialPruned


class Objective:
    """One trial: as many runs as there are seeds, and their mean value."""

    def __init__(
        self,
        config: SearchConfig,
        base: RunConfig,
        ranges: Space,
        train: Train,
    ) -> None:
        """Notes what all trials have in common.

        Args:
            config: of the search.
            base: config of a run, before a trial's values.
            ranges: of those values.
            train: runs a config.
        """
        self._config, self._ranges, self._train = config, ranges, train
        self._base = share_cores(base, config.jobs)

    def __call__(self, trial: optuna.Trial) -> float:
        """Runs a trial and returns its value."""
        began = time.perf_counter()
        outcome = "failed"
        try:
            values = suggest(trial, self._ranges)
            print(f"trial {trial.number}: begins; {space.flags(values)}", flush=True)
            config = space.apply(self._base, self._ranges, values)
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
        except _FAILURES as error:
            trial.set_user_attr("error", str(error).split("\n")[0])
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
        metrics = self._train(config, Trial(trial, search, index))
        if metrics["signal"]:
            raise KeyboardInterrupt
        rate = metrics.get("rollout/clear_rate", 0.0)
        trial.set_user_attr("clear_rate", rate)
        trial.set_user_attr("steps", int(metrics["steps"]))
        trial.set_user_attr("solved", bool(metrics["solved"]))
        if not search.minimise:
            return rate
        if metrics["solved"]:
            return min(metrics["seconds"], search.max_seconds)
        return search.max_seconds * (2 - rate)


def suggest(trial: optuna.Trial, ranges: Space) -> dict[str, space.Value]:
    """Values of a trial, by flag."""
    values: dict[str, space.Value] = {}
    for flag, some in ranges.items():
        if isinstance(some, Choices):
            # Optuna's choices are numbers and strings only.
            labels = [_label(value) for value in some.choices]
            chosen: Any = trial.suggest_categorical(flag, labels)
            values[flag] = some.choices[labels.index(chosen)]
        elif some.whole:
            low, high, step = int(some.low), int(some.high), int(some.step or 1)
            values[flag] = trial.suggest_int(flag, low, high, step=step, log=some.log)
        else:
            values[flag] = trial.suggest_float(
                flag, some.low, some.high, step=some.step, log=some.log
            )
    return values


def _label(value: space.Value) -> bool | int | float | str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


def open_study(config: SearchConfig, base: RunConfig, ranges: Space) -> optuna.Study:
    """The study of this name, new or old.

    Raises:
        ValueError: the database cannot be opened, or the study was made with another
            space or other settings.
    """
    config.folder.mkdir(parents=True, exist_ok=True)
    url = config.storage or f"sqlite:///{config.folder / 'study.db'}"
    try:
        storage = RDBStorage(
            url,
            # How long one process waits for another one's write.
            engine_kwargs={"connect_args": {"timeout": 60}} if "sqlite" in url else {},
            heartbeat_interval=_HEARTBEAT_S,
            grace_period=_GRACE_S,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(_RETRIES),
        )
    except Exception as error:  # any of SQLAlchemy's, or of a database's driver
        reason = str(error).split("\n")[0]
        raise ValueError(
            f"cannot open --storage {url} ({reason}); a URL is sqlite:///FILE or "
            "DATABASE://USER:PASSWORD@HOST/NAME"
        ) from error
    study = optuna.create_study(
        study_name=config.name,
        storage=storage,
        load_if_exists=True,
        direction="minimize" if config.minimise else "maximize",
        sampler=optuna.samplers.TPESampler(),
        pruner=_pruner(config),
    )
    setup = space.setup(base, ranges, objective=config.objective, seeds=config.seeds)
    known = study.user_attrs.get("setup")
    if known is None:
        study.set_user_attr("setup", setup)
        # What is good already goes first, to be compared with.
        study.enqueue_trial(
            {k: _label(v) for k, v in space.defaults(base, ranges).items()},
            skip_if_exists=True,
        )
    else:
        space.check_setup(config.name, known, setup)
    return study


def _pruner(config: SearchConfig) -> optuna.pruners.BasePruner:
    if config.pruner == "median":
        # A fifth of a run says too little.
        return optuna.pruners.MedianPruner(4, n_warmup_steps=_REPORTS // 5)
    if config.pruner == "hyperband":
        most = _REPORTS * config.seeds
        return optuna.pruners.HyperbandPruner(max(1, most // 9), most)
    return optuna.pruners.NopPruner()


def work(study: optuna.Study, objective: Objective, total: int) -> None:
    """Runs trials until there are `total`, those of other processes included."""
    parent = multiprocessing.parent_process()
    told = False
    while parent is None or parent.is_alive():
        optuna.storages.fail_stale_trials(study)
        trials = counted(study)
        finished = sum(trial.state.is_finished() for trial in trials)
        running = sum(trial.state == TrialState.RUNNING for trial in trials)
        if finished >= total:
            return
        if finished + running < total:
            study.optimize(objective, n_trials=1, catch=_FAILURES, gc_after_trial=True)
            continue
        if not told and parent is None:
            print(
                f"waiting for {running} trials of other processes; a killed one is "
                f"noticed after {_GRACE_S} s and begun again",
                flush=True,
            )
            told = True
        time.sleep(_POLL_S)


def _worker(config: SearchConfig, base: RunConfig, train: Train) -> None:
    """A further process of --jobs."""
    try:
        with _quiet_optuna():
            ranges = space.read_space(config.space, base)
            study = open_study(config, base, ranges)
            work(study, Objective(config, base, ranges, train), config.trials)
    except KeyboardInterrupt:
        return


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """No lines of Optuna's own beside ours."""
    old = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(old)


def search(
    config: SearchConfig, base: RunConfig, train: Train = run_training
) -> optuna.Study:
    """Runs a search to its end.

    Args:
        config: of the search.
        base: config of a run, before a trial's values.
        train: runs a config.

    Raises:
        ValueError: something given cannot be.
        KeyboardInterrupt: Ctrl-C; the trials that were under way are tried again by
            the next call.
    """
    config.validate()
    space.check_base(base)
    base = _base(config, base)
    ranges = space.read_space(config.space, base)
    study = open_study(config, base, ranges)
    done = sum(trial.state.is_finished() for trial in counted(study))
    print(
        f"search {config.name!r}: {done} of {config.trials} trials done; "
        f"{', '.join(ranges)} in {config.folder}/; a run ends after "
        f"{config.max_steps:,} steps or {format_seconds(config.max_seconds)}",
        flush=True,
    )
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(target=_worker, args=(config, base, train))
        for _ in range(min(config.jobs, config.trials - done) - 1)
    ]
    try:
        for process in others:
            process.start()
        work(study, Objective(config, base, ranges, train), config.trials)
        for process in others:
            process.join()
    finally:
        # Only after Ctrl-C or an error is any left; SIGTERM ends its run cleanly.
        for process in others:
            if process.is_alive():
                process.terminate()
                process.join()
    return study


def _base(config: SearchConfig, base: RunConfig) -> RunConfig:
    """What all runs have in common.

    Raises:
        ValueError: it cannot be searched with.
    """
    if not is_native(base.env.task):
        raise ValueError(
            f"task {base.env.task} does not tell of clears, which a search goes by; "
            "choose one of mario_envpool's"
        )
    return replace(
        base,
        max_steps=config.max_steps,
        max_seconds=config.max_seconds,
        stop_when_solved=config.minimise,
        videos=False,
        log_seconds=min(base.log_seconds, 1.0),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    own, flags = space.split(sys.argv[1:] if argv is None else argv)
    config = tyro.cli(
        SearchConfig, args=own, prog="python -m trainer.search", description=__doc__
    )
    try:
        with _quiet_optuna():
            own_limits = {name: name for name in ("--max-steps", "--max-seconds")}
            space.check_flags(flags, own_limits)
            study = search(config, parse(flags))
            value = "seconds to clear" if config.minimise else "clear rate"
            finish(study, config.folder, value, flags)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    except (*_FAILURES, OptunaError, torch.OutOfMemoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
