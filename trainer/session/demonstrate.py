"""The demonstrations of a run: from files, from its checkpoint, or from a search."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.config.tasks import own_levels
from trainer.explore import demonstrations, recorded
from trainer.machine.process import Interrupted, raise_on_signal
from trainer.session import resume

#: Writes a checkpoint, given its content and step; returns None if that failed.
Save = Callable[[dict[str, Any], int], Path | None]


def demonstrate(
    parts: resume.RunParts, *, run_dir: Path, log: Callable[[str], None], save: Save
) -> None:
    """Gives a run the demonstrations that it learns from.

    The time of the search counts as time of the run. Only rank 0 searches.
    """
    config, progress = parts.config, parts.progress
    if config.explore.demos:
        walked = _read(parts, log)
    else:
        walked = _found(parts, run_dir, log, save)
    imitation = config.learner.imitation
    if imitation and progress.steps >= config.learner.entropy_steps:
        log(
            "the weight of imitation is 0, because the run is past --entropy-steps "
            f"{config.learner.entropy_steps:,}"
        )
    if parts.explorer is not None:
        parts.explorer.take_demonstrations(walked)
    if walked and (imitation or config.explore.demos):
        parts.learner.take_demonstrations(
            torch.from_numpy(np.concatenate([way.obs for way in walked])),
            torch.from_numpy(np.concatenate([way.actions for way in walked])),
        )
    # A resumed run was cloned when it began.
    if config.explore.demos and config.learner.cloning_steps and not config.resume:
        _clone(parts, log, save)


def _read(
    parts: resume.RunParts, log: Callable[[str], None]
) -> list[demonstrations.Walked]:
    """Reads the demonstrations of --demos, and plays them."""
    config, ways = parts.config, parts.ways
    ways.found = recorded.read_ways(
        config.env,
        config.env.levels or own_levels(config.env.task),
        config.seed,
        [Path(name) for name in config.explore.demos],
        log,
    )
    ways.complete = True
    return _walk(parts)


def _found(
    parts: resume.RunParts, run_dir: Path, log: Callable[[str], None], save: Save
) -> list[demonstrations.Walked]:
    """Takes saved demonstrations or searches for new ones, and plays them."""
    ways, progress = parts.ways, parts.progress
    walked: list[demonstrations.Walked] = []
    try:
        walked = _walk(parts)
    except ValueError as error:
        log(f"the saved demonstrations are replaced by a new search: {error}")
        ways.forget()
    if ways.complete:
        return walked
    began = time.monotonic() - progress.seconds
    try:
        with raise_on_signal():
            _search(parts, log)
            walked = _walk(parts)
    except Interrupted as interrupted:
        progress.seconds = time.monotonic() - began
        interrupted.steps, interrupted.seconds = progress.steps, progress.seconds
        _keep_search(parts, run_dir, log, save)
        raise
    progress.seconds = time.monotonic() - began
    return walked


def _clone(parts: resume.RunParts, log: Callable[[str], None], save: Save) -> None:
    """Clones the policy of a new run from the demonstrations, and saves it."""
    if parts.ranks.size > 1:
        raise ValueError(
            f"cloning works in a run with one process, and this run has "
            f"{parts.ranks.size}: give --cloning-steps 0, or clone with one process "
            "and continue with --resume"
        )
    began = time.monotonic()
    try:
        with raise_on_signal():
            losses = list(parts.learner.clone(parts.config.learner.cloning_steps))
    except Interrupted as interrupted:
        interrupted.steps, interrupted.seconds = 0, time.monotonic() - began
        log("interrupted while cloning: the weights are not saved")
        raise
    parts.progress.seconds += time.monotonic() - began
    last = losses[-max(1, len(losses) // 10) :]
    path = save(resume.capture(parts, complete=False), 0)
    log(
        f"cloned in {len(losses):,} steps, {time.monotonic() - began:.1f} s: "
        f"cross-entropy {np.mean(last):.3f}; {path or 'its policy is not kept'}"
    )


def _walk(parts: resume.RunParts) -> list[demonstrations.Walked]:
    """Plays the demonstrations that the run has."""
    config = parts.config
    return demonstrations.walk(
        config.env, parts.ways.found, config.seed, config.explore.cell_size
    )


def _search(parts: resume.RunParts, log: Callable[[str], None]) -> None:
    """Searches for the demonstrations that are missing."""
    config, ways = parts.config, parts.ways

    def search() -> list[demonstrations.Way]:
        demonstrations.find_ways(
            config.env,
            config.env.levels or own_levels(config.env.task),
            config.seed,
            per_level=config.explore.demonstrations,
            log=log,
            ways=ways,
        )
        return ways.found

    ways.found, ways.complete = parts.ranks.first(search), True


def _keep_search(
    parts: resume.RunParts, run_dir: Path, log: Callable[[str], None], save: Save
) -> None:
    """Saves an interrupted search in a checkpoint, if the run has none."""
    steps = parts.progress.steps
    what = "its results are not saved, and the run is unchanged"
    if not steps and parts.ranks.is_first:
        state = resume.capture(parts, complete=False, together=False)
        if save(state, steps) is None:
            return  # the reason is logged
        what = f"the {len(parts.ways.found)} found so far are saved"
    log(
        f"interrupted in the search for demonstrations: {what}; continue with "
        f"--resume {run_dir}"
    )
