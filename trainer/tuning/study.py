"""An Optuna study: its database, its search space, and the processes that share it."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from trainer.config.schema import RunConfig
from trainer.config.tasks import is_native
from trainer.machine.process import raise_on_signal
from trainer.machine.timings import format_seconds
from trainer.session.training import run_training
from trainer.tuning import command, options, storage
from trainer.tuning.objective import FAILURES, REPORTS, Objective, Train
from trainer.tuning.report import SURPLUS, counted
from trainer.tuning.search_config import SearchConfig
from trainer.tuning.spaces import Space

Distributions = dict[str, BaseDistribution]

_POLL_S = 2.0
# Seconds that other processes wait for the process that made a study to set it up.
_SETUP_S = 10.0


def search(
    config: SearchConfig, base: RunConfig, train: Train = run_training
) -> optuna.Study:
    """Runs a search to its end."""
    config.validate()
    command.check_base(base)
    base = _base(config, base)
    space: Space = command.load(config.space, "--space")
    ranges = dry_run(space, base)
    study = open_study(config, base, ranges)
    done = sum(trial.state.is_finished() for trial in counted(study))
    print(
        f"search {config.name!r} in {config.folder}/: {done} of {config.trials} trials "
        f"done; searching {', '.join(ranges)}; a run ends after "
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
        work(study, Objective(config, base, space, train), config.trials)
        for process in others:
            process.join()
    finally:
        # Some are left only after a signal or an error; SIGTERM ends a run cleanly.
        for process in others:
            if process.is_alive():
                process.terminate()
                process.join()
    return study


def _base(config: SearchConfig, base: RunConfig) -> RunConfig:
    """The config that all runs share."""
    if not is_native(base.env.task):
        raise ValueError(
            f"task {base.env.task} does not report clears, which a search needs; "
            "choose a task of mario_envpool"
        )
    return replace(
        base,
        max_steps=config.max_steps,
        max_seconds=config.max_seconds,
        stop_when_solved=config.minimise,
        videos=False,
        log_seconds=min(base.log_seconds, 1.0),
    )


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
    opened = storage.open_storage(config.storage, config.folder)
    study, new = _create_or_load(config, opened)
    setup = command.setup(
        base,
        objective=config.objective,
        seeds=config.seeds,
        space={name: repr(some) for name, some in ranges.items()},
    )
    known = None if new else _wait_for_setup(study)
    if known is None:
        # The first trial has the settings of the base run, for comparison.
        own = options.values_of(base, ranges)
        known_good = {k: v for k, v in own.items() if _contains(ranges[k], v)}
        study.enqueue_trial(known_good, skip_if_exists=True)
        study.set_user_attr("setup", setup)
    else:
        command.check_setup(config.name, known, setup)
    return study


def _create_or_load(
    config: SearchConfig, opened: BaseStorage
) -> tuple[optuna.Study, bool]:
    """The study of a search, and whether this process made it."""
    parts: dict[str, Any] = {
        "study_name": config.name,
        "storage": opened,
        "sampler": optuna.samplers.TPESampler(),
        "pruner": _pruner(config),
    }
    parts["direction"] = "minimize" if config.minimise else "maximize"
    try:
        return optuna.create_study(**parts), True
    except optuna.exceptions.DuplicatedStudyError:
        del parts["direction"]
        return optuna.load_study(**parts), False


def _wait_for_setup(study: optuna.Study) -> Any:
    """The setup of a study from the process that made it; None if that died."""
    for _ in range(round(_SETUP_S / _POLL_S) + 1):
        if (setup := study.user_attrs.get("setup")) is not None:
            return setup
        time.sleep(_POLL_S)
    return None


def _pruner(config: SearchConfig) -> optuna.pruners.BasePruner:
    if config.pruner == "median":
        # Results in the first fifth of a run are not conclusive.
        return optuna.pruners.MedianPruner(4, n_warmup_steps=REPORTS // 5)
    if config.pruner == "hyperband":
        most = REPORTS * config.seeds
        return optuna.pruners.HyperbandPruner(max(1, most // 9), most)
    return optuna.pruners.NopPruner()


def work(study: optuna.Study, objective: Objective, total: int) -> None:
    """Runs trials until there are `total`, including those of other processes."""

    def unless_surplus(trial: optuna.Trial) -> float:
        """Drops a trial if other processes have begun enough trials."""
        if sum(other.number < trial.number for other in counted(study)) >= total:
            trial.set_user_attr(SURPLUS, True)
            raise optuna.TrialPruned
        return objective(trial)

    parent = multiprocessing.parent_process()
    announced = False
    while parent is None or parent.is_alive():
        optuna.storages.fail_stale_trials(study)
        trials = counted(study)
        finished = sum(trial.state.is_finished() for trial in trials)
        running = sum(trial.state == TrialState.RUNNING for trial in trials)
        if finished >= total:
            return
        if finished + running < total:
            study.optimize(
                unless_surplus, n_trials=1, catch=FAILURES, gc_after_trial=True
            )
            continue
        if not announced and parent is None:
            print(
                f"waiting for {running} trials of other processes; a killed process is "
                f"detected after {storage.GRACE_S} s, and its trial restarts",
                flush=True,
            )
            announced = True
        time.sleep(_POLL_S)


def _worker(config: SearchConfig, base: RunConfig, train: Train) -> None:
    """An additional process of --jobs."""
    try:
        with raise_on_signal(), quiet_optuna():
            space: Space = command.load(config.space, "--space")
            study = open_study(config, base, dry_run(space, base))
            work(study, Objective(config, base, space, train), config.trials)
    except KeyboardInterrupt:
        return


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Turns off the log messages of Optuna."""
    old = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(old)
