"""The demonstrations of a run: from files, from its checkpoint, or from a search."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from trainer.config.tasks import own_levels
from trainer.explore import demonstrations
from trainer.machine.process import Interrupted, raise_on_signal
from trainer.session.build import Run
from trainer.session.resume import capture


def demonstrate(run: Run) -> None:
    """Gives a run the demonstrations that it learns from.

    The time of the search counts as time of the run. Only rank 0 searches.
    """
    config, env = run.config, run.config.env
    if config.explore.demos:
        run.ways.found = demonstrations.read_ways(
            env,
            env.levels or own_levels(env.task),
            config.seed,
            [Path(name) for name in config.explore.demos],
            run.display.log,
        )
        run.ways.complete = True
        replayed = _replay(run)
    else:
        replayed = _saved_or_new(run)
    imitation = config.learner.imitation
    if imitation and run.progress.steps >= config.learner.entropy_steps:
        run.display.log(
            "the weight of imitation is 0, because the run is past --entropy-steps "
            f"{config.learner.entropy_steps:,}"
        )
    if run.explorer is not None:
        run.explorer.take_demonstrations(replayed)
    if replayed and (imitation or config.explore.demos):
        run.learner.take_demonstrations(
            torch.from_numpy(np.concatenate([way.obs for way in replayed])),
            torch.from_numpy(np.concatenate([way.actions for way in replayed])),
        )
    # A resumed run was cloned when it began.
    if config.explore.demos and config.learner.cloning_steps and not config.resume:
        _clone(run)


def _replay(run: Run) -> list[demonstrations.ReplayedWay]:
    """Plays the demonstrations that the run has."""
    config = run.config
    return demonstrations.walk(
        config.env, run.ways.found, config.seed, config.explore.cell_size
    )


def _saved_or_new(run: Run) -> list[demonstrations.ReplayedWay]:
    """Takes saved demonstrations or searches for new ones, and plays them."""
    ways, progress, log = run.ways, run.progress, run.display.log
    replayed: list[demonstrations.ReplayedWay] = []
    try:
        replayed = _replay(run)
    except ValueError as error:
        log(f"the saved demonstrations are replaced by a new search: {error}")
        ways.forget()
    if ways.complete:
        return replayed
    began = time.monotonic() - progress.seconds
    try:
        with raise_on_signal():
            _search(run)
            replayed = _replay(run)
    except Interrupted:
        progress.seconds = time.monotonic() - began
        what = "its results are not saved, and the run is unchanged"
        if not progress.steps and run.ranks.is_first:
            state = capture(run, complete=False, together=False)
            if run.checkpoints.save(state, progress.steps) is None:
                raise  # the reason is logged
            what = f"the {len(ways.found)} found so far are saved"
        log(
            f"interrupted in the search for demonstrations: {what}; continue with "
            f"--resume {run.run_dir}"
        )
        raise
    progress.seconds = time.monotonic() - began
    return replayed


def _search(run: Run) -> None:
    """Searches for the demonstrations that are missing."""
    config, ways = run.config, run.ways

    def search() -> list[demonstrations.Way]:
        demonstrations.find_ways(
            config.env,
            config.env.levels or own_levels(config.env.task),
            config.seed,
            per_level=config.explore.demonstrations,
            log=run.display.log,
            ways=ways,
        )
        return ways.found

    ways.found, ways.complete = run.ranks.first(search), True


def _clone(run: Run) -> None:
    """Clones the policy of a new run from the demonstrations, and saves it."""
    if run.ranks.size > 1:
        raise ValueError(
            f"cloning works in a run with one process, and this run has "
            f"{run.ranks.size}: give --cloning-steps 0, or clone with one process "
            "and continue with --resume"
        )
    began = time.monotonic()
    try:
        with raise_on_signal():
            losses = list(run.learner.clone(run.config.learner.cloning_steps))
    except Interrupted:
        run.progress.seconds += time.monotonic() - began
        run.display.log("interrupted while cloning: the weights are not saved")
        raise
    run.progress.seconds += time.monotonic() - began
    last = losses[-max(1, len(losses) // 10) :]
    path = run.checkpoints.save(capture(run, complete=False), 0)
    run.display.log(
        f"cloned in {len(losses):,} steps, {time.monotonic() - began:.1f} s: "
        f"cross-entropy {np.mean(last):.3f}; {path or 'its policy is not kept'}"
    )
