"""An Optuna study: its search space, storage, trials, and the processes of it."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.storages import (
    BaseStorage,
    JournalStorage,
    RDBStorage,
    RetryHeartbeatStaleTrialCallback,
)
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import NullPool
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from trainer.config import shown
from trainer.config.options import MAX_SEED
from trainer.config.presets import share_cores
from trainer.config.schema import RunConfig
from trainer.config.tasks import is_native
from trainer.machine.imports import load
from trainer.machine.process import Interrupted, complain, raise_on_signal
from trainer.machine.timings import format_seconds
from trainer.session.training import run_training
from trainer.show.display import Display
from trainer.tuning import options
from trainer.tuning.search_config import SearchConfig, Space
from trainer.tuning.workers import Failed, Workers

Distributions = dict[str, BaseDistribution]
Train = Callable[[RunConfig, Display], dict[str, float]]

# Points of a run at which it is compared with other runs.
REPORTS = 20

# Exceptions that make a trial fail. Others are bugs, or come from the database.
FAILURES = (ValueError, RuntimeError, OSError, ImportError, MemoryError)

# The attribute of a trial that was begun while other processes completed the number.
_SURPLUS = "surplus"

_POLL_S = 2.0

# Seconds between heartbeats of a process, and after which a process without one counts
# as dead.
HEARTBEAT_S = 10
GRACE_S = 60

# Retries of a trial whose process was killed, possibly because the trial needs too much
# memory.
_RETRIES = 2

_JOURNAL = "journal:///"

# Seconds that a process waits for the write of another. Connections are closed after
# use, because Python 3.13 warns of open ones.
_SQLITE = {"connect_args": {"timeout": 60}, "poolclass": NullPool}

# Databases that need an extra, by the scheme of the URL: the driver, and the extra.
_DRIVERS = {
    "postgresql": ("postgresql+psycopg", "postgresql"),
    "postgres": ("postgresql+psycopg", "postgresql"),
    "mysql": ("mysql+pymysql", "mysql"),
    "mariadb": ("mariadb+pymysql", "mysql"),
}

# Attempts to open a database whose tables another process may be making.
_ATTEMPTS = 5


def search(
    config: SearchConfig, base: RunConfig, train: Train = run_training
) -> optuna.Study:
    """Runs a search to its end."""
    quiet_optuna()
    config.validate()
    options.check_base(base)
    if not is_native(base.env.task):
        raise ValueError(
            f"task {base.env.task} does not report clears, which a search needs; "
            "choose a task of mario_envpool"
        )
    base = replace(
        base,
        max_steps=config.max_steps,
        max_seconds=config.max_seconds,
        stop_when_solved=config.minimise,
        videos=False,
        log_seconds=min(base.log_seconds, 1.0),
    )
    study, objective = _prepare(config, base, train)
    done = sum(trial.state.is_finished() for trial in counted(study))
    print(
        f"search {config.name!r} in {config.folder}/: {done} of {config.trials} trials "
        f"done; searching {', '.join(study.user_attrs['setup']['space'])}; a run ends "
        f"after {config.max_steps:,} steps or {format_seconds(config.max_seconds)}",
        flush=True,
    )
    workers = Workers(min(config.jobs, config.trials - done) - 1)
    try:
        for number in range(workers.free):
            workers.submit(f"process {number + 2}", _worker, config, base, train)
        work(study, objective, config.trials)
        for name, result in workers.do([]):
            if isinstance(result, Failed):
                complain(f"{name}: {result.reason}")
    finally:
        workers.close()
    return study


def _prepare(
    config: SearchConfig, base: RunConfig, train: Train
) -> tuple[optuna.Study, Objective]:
    space: Space = load(config.space, "--space", "MODULE:FUNCTION or FILE.py:FUNCTION")
    study = open_study(config, base, dry_run(space, base))
    return study, Objective(config, base, space, train)


def _worker(config: SearchConfig, base: RunConfig, train: Train) -> None:
    """An additional process of --jobs."""
    quiet_optuna()
    # After a signal to the search, or its death, the trial is left to a later search.
    with suppress(KeyboardInterrupt), raise_on_signal():
        work(*_prepare(config, base, train), config.trials)


def quiet_optuna() -> None:
    """Turns off the log messages of Optuna, and what it says of experimental parts."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", ExperimentalWarning)


def dry_run(space: Space, base: RunConfig) -> Distributions:
    """Checks a space before any trial: the ends of every range, one at a time."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    ranges: Distributions = {}
    # Each trial fixes one value; the first fixes none.
    fixed: list[dict[str, Any]] = [{}]
    while fixed:
        study.enqueue_trial(fixed.pop(0))
        trial = study.ask()
        try:
            values = space(trial)
            if not (isinstance(values, dict) and values):
                raise ValueError(f"it returned {values!r}, not values by option")
            options.apply(base, values)
        except Exception as error:  # code of the user, which raises anything
            raise ValueError(f"--space: {error}") from error
        for name, some in trial.distributions.items():
            if name not in ranges:
                ranges[name] = some
                fixed += [{name: value} for value in _ends(some)]
    if not ranges:
        raise ValueError("--space: it suggests no values, nothing to search")
    return ranges


def _ends(some: Any) -> tuple[Any, ...]:
    """Values that represent a whole range."""
    if isinstance(some, CategoricalDistribution):
        return some.choices
    return some.low, some.high


def _contains(some: Any, value: Any) -> bool:
    if isinstance(some, CategoricalDistribution):
        return value in some.choices
    return bool(some.low <= value <= some.high)


def open_study(
    config: SearchConfig, base: RunConfig, ranges: Distributions
) -> optuna.Study:
    """The study of this name, new or old."""
    config.folder.mkdir(parents=True, exist_ok=True)
    setup = options.setup(
        base,
        objective=config.objective,
        seeds=config.seeds,
        space={name: repr(some) for name, some in ranges.items()},
    )
    study = optuna.create_study(
        study_name=config.name,
        storage=open_storage(config.storage, config.folder),
        sampler=optuna.samplers.TPESampler(),
        pruner=_pruner(config),
        direction="minimize" if config.minimise else "maximize",
        load_if_exists=True,
    )
    first_setup = study.user_attrs.get("setup")
    if first_setup is not None:
        options.check_setup(config.name, first_setup, setup)
        return study
    # The first trial has the settings of the base run, for comparison.
    values = options.values_of(base, ranges).items()
    within = {name: value for name, value in values if _contains(ranges[name], value)}
    study.enqueue_trial(within, skip_if_exists=True)
    study.set_user_attr("setup", setup)
    return study


class Journal(JournalStorage, BaseHeartbeat):
    """Optuna's journal file, with the heartbeats that Optuna has only in databases."""

    def __init__(self, path: Path) -> None:
        super().__init__(JournalFileBackend(str(path)))

    def record_heartbeat(self, trial_id: int) -> None:
        """See `BaseHeartbeat`."""
        # Another process may have considered this one dead and restarted the trial.
        with suppress(UpdateFinishedTrialError):
            self.set_trial_system_attr(trial_id, "heartbeat", time.time())

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        stale = []
        running = (TrialState.RUNNING,)
        for trial in self.get_all_trials(study_id, deepcopy=False, states=running):
            # A restarted trial inherits the heartbeat of the one before it, so its
            # start counts too.
            assert trial.datetime_start is not None
            heartbeat = float(trial.system_attrs.get("heartbeat", 0.0))
            last_sign = max(heartbeat, trial.datetime_start.timestamp())
            if last_sign < time.time() - GRACE_S:
                stale.append(trial._trial_id)
        return stale

    def get_heartbeat_interval(self) -> int:
        """See `BaseHeartbeat`."""
        return HEARTBEAT_S

    def get_heartbeat_stale_trial_callback(self) -> RetryHeartbeatStaleTrialCallback:
        """See `BaseHeartbeat`."""
        return RetryHeartbeatStaleTrialCallback(_RETRIES)


def open_storage(url: str, folder: Path) -> BaseStorage:
    """Opens the storage of a search."""
    url = os.path.expandvars(url)
    old = folder / "study.db"  # of version 0.1
    if not url:
        url = f"sqlite:///{old}" if old.exists() else f"{_JOURNAL}{folder}/study.log"
    if url.startswith(_JOURNAL):
        try:
            return Journal(Path(url.removeprefix(_JOURNAL)))
        except OSError as error:
            raise ValueError(
                f"cannot open --storage {url} ({error.strerror}); give "
                "journal:///FILE in an existing folder"
            ) from error
    short = shown.value("secret", url)
    scheme, colon, rest = url.partition(":")
    driver, extra = _DRIVERS.get(scheme, (scheme, ""))
    try:
        return _open_database(driver + colon + rest)
    except ImportError as error:
        install = f"pip install 'mario-envpool[search,{extra}]'" if extra else error
        raise ValueError(
            f"--storage {short} needs a driver that is not installed: {install}"
        ) from error
    except Exception as error:  # from SQLAlchemy, or from the driver of a database
        reason = shown.without(str(error).split("\n")[0], [url])
        raise ValueError(
            f"cannot open --storage {short} ({reason}); give journal:///FILE, "
            "sqlite:///FILE or DATABASE://USER:PASSWORD@HOST/NAME"
        ) from error


def _open_database(url: str, attempt: int = 1) -> RDBStorage:
    """Opens a database, whose tables another process may be making."""
    try:
        return RDBStorage(
            url,
            # A server may have closed an idle connection.
            _SQLITE if url.startswith("sqlite") else {"pool_pre_ping": True},
            heartbeat_interval=HEARTBEAT_S,
            grace_period=GRACE_S,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(_RETRIES),
        )
    except (IntegrityError, ProgrammingError, OperationalError) as error:
        made = "already exists" in str(error) or "duplicate key" in str(error)
        if not made or attempt == _ATTEMPTS:
            raise
    time.sleep(0.5)
    return _open_database(url, attempt + 1)


def _pruner(config: SearchConfig) -> BasePruner:
    if config.pruner == "median":
        # Results in the first fifth of a run are not conclusive.
        return MedianPruner(4, n_warmup_steps=REPORTS // 5)
    if config.pruner == "hyperband":
        most = REPORTS * config.seeds
        return HyperbandPruner(max(1, most // 9), most)
    return NopPruner()


def counted(study: optuna.Study) -> list[FrozenTrial]:
    """The trials, without restarted trials and surplus ones."""
    trials = study.get_trials(deepcopy=False)
    history = RetryHeartbeatStaleTrialCallback.retry_history
    again = {number for trial in trials for number in history(trial)}
    return [
        trial
        for trial in trials
        if trial.number not in again and _SURPLUS not in trial.user_attrs
    ]


def work(
    study: optuna.Study, objective: Callable[[optuna.Trial], float], total: int
) -> None:
    """Runs trials until there are `total`, including those of other processes."""

    def unless_surplus(trial: optuna.Trial) -> float:
        """Drops a trial if other processes have begun enough trials."""
        if sum(other.number < trial.number for other in counted(study)) >= total:
            trial.set_user_attr(_SURPLUS, True)
            raise optuna.TrialPruned
        return objective(trial)

    announced = multiprocessing.parent_process() is not None
    while True:
        optuna.storages.fail_stale_trials(study)
        states = [trial.state for trial in counted(study)]
        finished = sum(state.is_finished() for state in states)
        running = states.count(TrialState.RUNNING)
        if finished >= total:
            return
        if finished + running < total:
            study.optimize(
                unless_surplus, n_trials=1, catch=FAILURES, gc_after_trial=True
            )
            continue
        if not announced:
            print(
                f"waiting for {running} trials of other processes; a killed process is "
                f"detected after {GRACE_S} s, and its trial restarts",
                flush=True,
            )
            announced = True
        time.sleep(_POLL_S)


class Objective:
    """One trial: one run per seed, and their mean value."""

    def __init__(
        self, config: SearchConfig, base: RunConfig, space: Space, train: Train
    ) -> None:
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
            value = fmean(self._run(trial, config, index) for index in runs)
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


class TrialDisplay(Display):
    """Reports a run's progress to Optuna, and ends a hopeless run."""

    def __init__(self, trial: optuna.Trial, config: SearchConfig, index: int) -> None:
        self._trial, self._minimise = trial, config.minimise
        self._every = max(1, config.max_steps // REPORTS)
        self._point, self._next = index * REPORTS, self._every

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
