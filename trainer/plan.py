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
    python -m trainer.plan --import speedrun.fm2
    python -m trainer.plan --replay demos/*.json --minari mario/1-1-v0

A demonstration of the same game that is there already stays, unless the new one has
fewer frames. `--fm2` writes a movie for FCEUX and `--bk2` one for BizHawk, which begin
at power-on: of the whole game, or of 1-1 with `--no-cut-waits`. `--import` makes
demonstrations of such movies.

Ctrl-C keeps all ways that were found. Of a whole game, only the end is kept.

In Python, for goals of your own: `trainer.planning.search.plan`.

Exit status: 0, or 1 if no way was found somewhere or a demonstration does not play, or
2 with one line `error: ...`, or 130 after Ctrl-C.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from mario_envpool.env import FRAMES_PER_SECOND
from trainer.cli import main_of
from trainer.config.tasks import all_levels, game_of, parse_levels
from trainer.film.encode import VideoWriter
from trainer.machine.cpu import available_cores
from trainer.planning import demonstration, minari_data
from trainer.planning.demonstration import Demonstration
from trainer.planning.levels import Budget, Found, plan_game, plan_level


@dataclass(frozen=True)
class PlanConfig:
    """Searches for ways to the flag."""

    levels: str = ""
    """Levels such as 1-1 or 1-1,4-2, or "all". By default the first one."""

    whole_game: bool = False
    """From power-on to the end of the last level, each level from the state in which
    the one before it ended, without warps. Waits play at full length."""

    task: str = "SuperMarioBros-v0"
    """The game: SuperMarioBros-v0 to -v3, or SuperMarioBros2-v0 or -v1 (the Lost
    Levels, worlds 1 to 4)."""

    out: Path = Path("runs/plans")
    """Folder for the demonstrations, a file for each level."""

    replay: tuple[Path, ...] = ()
    """Demonstrations to play instead of a search: says whether they reach the end.
    Videos and movies are written beside them."""

    imported: Annotated[tuple[Path, ...], tyro.conf.arg(name="import")] = ()
    """Movies to import instead of a search, .fm2 of FCEUX or .bk2 of BizHawk: writes
    demonstrations of them to --out."""

    minari: str = ""
    """Also a data set of Minari, such as mario/1-1-v0, of all that --replay names."""

    video: bool = False
    """Also a video of each demonstration, .mp4."""

    fm2: bool = False
    """Also a movie for FCEUX, .fm2."""

    bk2: bool = False
    """Also a movie for BizHawk, .bk2."""

    max_seconds: float = 600.0
    """Seconds until a way through a level must be found; the search for shorter ways
    may take as long again. 0: no limit."""

    max_steps: int = 20_000_000
    """Environment steps until a way through a level must be found."""

    shorten: float = 1.0
    """Length of the search for shorter ways, as a multiple of the search for the first
    one; 0: none."""

    num_envs: int = 256
    """Environments that search at the same time."""

    num_threads: int = 0
    """Emulation threads; 0: one per core."""

    frame_skip: int = 4
    """Frames per step; buttons change only between steps."""

    cut_waits: bool = True
    """Cut waits at pipes and doors short, as environments do (writes to RAM)."""

    seed: int = 1
    """Seed of the random buttons. With the same options and seed the search finds the
    same way, on any number of threads, unless --max-seconds ends it."""


def check(config: PlanConfig) -> None:
    """Raises ValueError for options that are out of range, or have no effect."""
    for name, least in (("num_envs", 1), ("max_steps", 1), ("frame_skip", 1)):
        if getattr(config, name) < least:
            raise ValueError(
                f"{name} must be at least {least}, got {getattr(config, name)}"
            )
    for name in ("max_seconds", "shorten", "num_threads", "seed"):
        value = getattr(config, name)
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a number from 0 on, got {value}")
    for flag, files in (("--replay", config.replay), ("--import", config.imported)):
        if files and (config.levels or config.whole_game):
            raise ValueError(
                f"{flag} searches nothing: leave out --levels, --whole-game"
            )
    if config.replay and config.imported:
        raise ValueError("give either --replay or --import")
    if config.minari and not config.replay:
        raise ValueError("--minari makes a data set of files: it needs --replay FILES")
    if config.whole_game and config.levels:
        raise ValueError("--whole-game plays all levels: leave out --levels")
    if config.whole_game and not config.cut_waits:
        raise ValueError(
            "--whole-game plays waits at full length by itself: leave out "
            "--no-cut-waits"
        )
    game = game_of(config.task)
    if config.task != game:
        raise ValueError(
            f"task {config.task} is one level or a selection: give --task {game} and "
            "--levels"
        )
    wanted = "--fm2" if config.fm2 else "--bk2" if config.bk2 else ""
    if wanted and not (config.replay or config.imported or config.whole_game):
        first = all_levels(game)[0]
        if config.cut_waits or config.levels not in ("", first):
            raise ValueError(
                f"{wanted} writes movies from power-on: it needs --whole-game, or "
                f"--levels {first} --no-cut-waits"
            )


def run(config: PlanConfig) -> bool:
    """Searches, or replays; returns whether all ways were found.

    Raises:
        ValueError: an option is out of range, or has no effect.
        OSError: a file cannot be read or written.
        KeyboardInterrupt: after Ctrl-C; what was found is written.
    """
    check(config)
    if config.replay:
        return _replay_all(config)
    try:
        config.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"cannot write to --out {config.out} ({error.strerror}); give another "
            "folder"
        ) from error
    if config.imported:
        # Each of them, however many are no movies.
        imported = [_import(config, path) for path in config.imported]
        return all(imported)
    if config.whole_game:
        return _search_game(config)
    levels = parse_levels(config.levels or all_levels(config.task)[0], config.task)
    missing = []
    for level in levels:
        found = plan_level(
            config.task, level, _budget(config, level), cut_waits=config.cut_waits
        )
        print(_line(found, config), flush=True)
        if found.plan is None or found.demonstration is None:
            missing.append(level)
            continue
        _keep(config, level, found.demonstration)
        if found.plan.interrupted:
            raise KeyboardInterrupt
    if len(levels) > 1:
        lost = f"; missing: {', '.join(missing)}" if missing else ""
        print(f"{len(levels) - len(missing)} of {len(levels)} levels{lost}")
    return not missing


def _search_game(config: PlanConfig) -> bool:
    """Plans the whole game; returns whether its end was found."""

    def keep(made: Demonstration) -> None:
        _keep(config, "whole-game", made)

    complete = True
    for found in plan_game(config.task, _budget(config, "the whole game"), keep):
        print(_line(found, config), flush=True)
        complete = complete and found.plan is not None
    return complete


def _budget(config: PlanConfig, what: str) -> Budget:
    return Budget(
        config.num_envs,
        config.num_threads or available_cores(),
        config.frame_skip,
        config.max_steps,
        config.max_seconds or math.inf,
        config.shorten,
        config.seed,
        lambda line: print(f"{what}: {line}", flush=True),
    )


def _replay_all(config: PlanConfig) -> bool:
    """Plays demonstrations, and makes a data set of those that play.

    Returns:
        Whether all of them come to their ends.
    """
    # Each of them, however many do not play.
    played = [_replay(config, path) for path in config.replay]
    known = [made for made in played if made is not None]
    if config.minari and known:
        print(f"wrote {minari_data.export(known, config.minari)}", flush=True)
    return len(known) == len(played)


def _replay(config: PlanConfig, path: Path) -> Demonstration | None:
    """Plays a demonstration; None if it does not come to its end."""
    try:
        known = demonstration.load(path)
        demonstration.verify(known)
        print(f"{path}: {_about(known)}, {_to_its_end(known)}", flush=True)
        _export(config, known, path)
    except (ValueError, FileNotFoundError) as error:
        _say(path, error)
        return None
    return known


def _import(config: PlanConfig, path: Path) -> bool:
    """Makes a demonstration of a movie; returns whether it was one."""
    try:
        made = demonstration.from_movie(path)
    except (ValueError, FileNotFoundError) as error:
        _say(path, error)
        return False
    to = config.out / f"{path.stem}.json"
    made.save(to)
    demonstration.verify(demonstration.load(to))
    print(f"wrote {to}: {_about(made)}, {_to_its_end(made)}", flush=True)
    _export(config, made, to)
    return True


def _say(path: Path, error: Exception) -> None:
    """Says what is wrong with a file, and goes on."""
    about = "" if str(path) in str(error) else f"{path}: "
    print(f"error: {about}{error}", file=sys.stderr, flush=True)


def _to_its_end(made: Demonstration) -> str:
    if made.ending == "cleared":
        return "plays to its end"
    return f"plays as recorded (it {made.ending})"


def _keep(config: PlanConfig, name: str, new: Demonstration) -> None:
    """Writes a demonstration, unless there is one as good of the same game."""
    default = PlanConfig()
    game = "" if config.task == default.task else f"{config.task}-"
    waits = "" if config.cut_waits else "-full-waits"
    path = config.out / f"{game}{name}{waits}.json"
    old = _usable(path, new)
    if old is not None and not _same_game(old, new):
        # As with another ROM of MARIO_ROM.
        path = path.with_stem(f"{path.stem}-{new.rom_sha1[:8]}")
        old = _usable(path, new)
    if old is not None and old.level == new.level and old.frames <= new.frames:
        print(f"kept {path}: {_about(old)}", flush=True)
        _export(config, old, path)
        return
    new.save(path)
    demonstration.verify(demonstration.load(path))
    print(f"wrote {path}: {_about(new)}", flush=True)
    _export(config, new, path)


def _usable(path: Path, new: Demonstration) -> Demonstration | None:
    """The demonstration in a file, unless it is damaged or does not play.

    One of another game than the new one is not played.
    """
    if not path.exists():
        return None
    try:
        old = demonstration.load(path)
        if _same_game(old, new):
            demonstration.verify(old)
    except ValueError as error:
        print(f"replacing {path}: {error}", flush=True)
        return None
    return old


def _same_game(one: Demonstration, other: Demonstration) -> bool:
    return (one.rom_sha1, one.options) == (other.rom_sha1, other.options)


def _export(config: PlanConfig, made: Demonstration, path: Path) -> None:
    """Writes what else was asked for, beside the demonstration."""
    if config.fm2:
        movie = path.with_suffix(".fm2")
        demonstration.save_fm2(made, movie)
        print(f"wrote {movie}", flush=True)
    if config.bk2:
        movie = path.with_suffix(".bk2")
        demonstration.save_bk2(made, movie)
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


def _line(found: Found, config: PlanConfig) -> str:
    """What became of the search in a level."""
    plan = found.plan
    if plan is None:
        return (
            f"{found.level}: no way found within --max-seconds {config.max_seconds:g} "
            f"and --max-steps {config.max_steps:,}; give more, or another --seed"
        )
    return (
        f"{found.level}: way of {len(plan.actions):,} steps (the first one had "
        f"{plan.first_steps:,}), found after {plan.found_after:,} environment steps "
        f"and {plan.seconds:.1f} s; {plan.cells:,} cells"
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
