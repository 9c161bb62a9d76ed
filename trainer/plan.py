"""Finds a way to the flag without a network: `python -m trainer.plan --levels all`.

A search over exact snapshots: it keeps a state of every place that it has reached, goes
back to one, tries random buttons, and keeps where they lead. Then it searches for
shorter ways for as long again. What it finds is a demonstration: a small JSON file with
the buttons of every frame, played once more before it is written, that plays out the
same on the same ROM. There is nothing of the game in it.

    python -m trainer.plan --levels 1-1
    python -m trainer.plan --levels all
    python -m trainer.plan --whole-game --fm2
    python -m trainer.plan --replay runs/plans/1-1.json --video

A demonstration that is there already stays, unless the new one is shorter. `--fm2`
writes movies for FCEUX, which begin at power-on: of the whole game, and of 1-1 with
`--no-cut-waits`.

In Python, for goals of your own: `trainer.planning.search.plan`.

Exit status: 0, or 1 if no way was found somewhere, or 2 with one line `error: ...`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mario_envpool.env import FRAMES_PER_SECOND
from trainer.cli import main_of
from trainer.config.tasks import parse_levels
from trainer.film.encode import VideoWriter
from trainer.machine.cpu import available_cores
from trainer.planning import demonstration
from trainer.planning.demonstration import Demonstration
from trainer.planning.levels import Budget, Found, plan_game, plan_level


@dataclass(frozen=True)
class PlanConfig:
    """Searches for ways to the flag."""

    levels: str = "1-1"
    """Levels such as 1-1 or 1-1,4-2, or "all"."""

    whole_game: bool = False
    """From power-on to the end of the last level, each level from the state in which
    the one before it ended, without warps. Waits play at full length."""

    task: str = "SuperMarioBros-v0"
    """The game: SuperMarioBros-v0 to -v3, or SuperMarioBros2-v0 (the Lost Levels)."""

    out: Path = Path("runs/plans")
    """Folder for the demonstrations, a file for each level."""

    replay: tuple[Path, ...] = ()
    """Demonstrations to play instead of a search: says whether they reach the end."""

    video: bool = False
    """Also a video of each demonstration, .mp4."""

    fm2: bool = False
    """Also a movie for FCEUX, .fm2."""

    max_seconds: float = 600.0
    """Longest search for the first way through a level, and again for shorter ones."""

    max_steps: int = 20_000_000
    """Environment steps of the search for the first way through a level."""

    shorten: float = 1.0
    """Steps of the search for shorter ways, times those to the first; 0: none."""

    num_envs: int = 256
    """Environments that search at the same time."""

    num_threads: int = 0
    """Emulation threads; 0: one per core."""

    frame_skip: int = 4
    """Frames for which buttons are held at least."""

    cut_waits: bool = True
    """Cut waits at pipes and doors short, as environments do (writes to RAM)."""

    seed: int = 1
    """Seed of the random buttons. Equal seeds find equal ways, but for
    --max-seconds."""


def run(config: PlanConfig) -> bool:
    """Searches, or replays; returns whether all ways were found.

    Raises:
        ValueError: an option is out of range, or a demonstration does not play.
        OSError: a file cannot be read or written.
    """
    for name, least in (("num_envs", 1), ("max_steps", 1), ("frame_skip", 1)):
        if getattr(config, name) < least:
            raise ValueError(
                f"{name} must be at least {least}, got {getattr(config, name)}"
            )
    for name in ("max_seconds", "shorten", "num_threads", "seed"):
        if getattr(config, name) < 0:
            raise ValueError(f"{name} must not be below 0, got {getattr(config, name)}")
    if config.replay:
        for path in config.replay:
            known = demonstration.load(path)
            demonstration.verify(known)
            print(f"{path}: {_about(known)}, plays to its end", flush=True)
            _export(config, known, path)
        return True
    budget = Budget(
        config.num_envs,
        config.num_threads or available_cores(),
        config.frame_skip,
        config.max_steps,
        config.max_seconds,
        config.shorten,
        config.seed,
    )
    complete = True
    if config.whole_game:
        keep = _Keep(config, "whole-game")
        for found in plan_game(config.task, budget, keep):
            print(_line(found), flush=True)
            complete = complete and found.plan is not None
        return complete
    for level in parse_levels(config.levels, config.task):
        found = plan_level(config.task, level, budget, cut_waits=config.cut_waits)
        print(_line(found), flush=True)
        if found.demonstration is None:
            complete = False
        else:
            _Keep(config, level)(found.demonstration)
    return complete


class _Keep:
    """Writes a demonstration, unless there is a shorter one."""

    def __init__(self, config: PlanConfig, name: str) -> None:
        self._config, self._path = config, config.out / f"{name}.json"

    def __call__(self, new: Demonstration) -> None:
        path = self._path
        if path.exists():
            old = demonstration.load(path)
            same = (old.rom_sha1, old.options) == (new.rom_sha1, new.options)
            if same and old.level == new.level and old.frames <= new.frames:
                print(f"kept {path}: {_about(old)}", flush=True)
                _export(self._config, old, path)
                return
        new.save(path)
        demonstration.verify(demonstration.load(path))
        print(f"wrote {path}: {_about(new)}", flush=True)
        _export(self._config, new, path)


def _export(config: PlanConfig, made: Demonstration, path: Path) -> None:
    """Writes what else was asked for, beside the demonstration."""
    if config.fm2:
        movie = path.with_suffix(".fm2")
        demonstration.save_fm2(made, movie)
        print(f"wrote {movie}", flush=True)
    if config.video:
        video = path.with_suffix(".mp4")
        with VideoWriter(video, width=512, height=480, fps=FRAMES_PER_SECOND) as film:
            for picture in demonstration.pictures(made):
                film.write(np.repeat(np.repeat(picture, 2, axis=0), 2, axis=1))
        print(f"wrote {video}", flush=True)


def _about(made: Demonstration) -> str:
    seconds = made.frames / FRAMES_PER_SECOND
    return f"{made.frames:,} frames ({seconds:.1f} s of play), reward {made.reward:g}"


def _line(found: Found) -> str:
    """What became of the search in a level."""
    plan = found.plan
    if plan is None:
        return f"{found.level}: no way found; more --max-seconds, or another --seed"
    return (
        f"{found.level}: {len(plan.actions):,} steps after {plan.found_after:,} of "
        f"search and {plan.seconds:.1f} s, first {plan.first_steps:,}; "
        f"{plan.cells:,} places"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    complete = True

    def work(config: PlanConfig) -> None:
        nonlocal complete
        complete = run(config)

    status = main_of(PlanConfig, work, "plan", __doc__, argv)
    return status or int(not complete)


if __name__ == "__main__":
    sys.exit(main())
