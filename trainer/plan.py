"""Finds a way to the flag without a network: `python -m trainer.plan --levels all`.

The search works on snapshots. It keeps a snapshot of every place that it has reached,
returns to one, tries random buttons, and keeps snapshots of new places. Then it
searches for shorter ways for the same time again. The result is a demonstration: a
small JSON file with the buttons of every frame and no content of the game. On the same
ROM a demonstration always plays the same; the command plays it once before it writes
the file.

    python -m trainer.plan --levels 1-1
    python -m trainer.plan --levels all
    python -m trainer.plan --whole-game --fm2
    python -m trainer.plan --replay runs/plans/1-1.json --video
    python -m trainer.plan --import speedrun.fm2
    python -m trainer.plan --replay demos/*.json --minari mario/1-1-v0

An existing demonstration of the same game is replaced only by one with fewer
frames. `--fm2` writes a movie for FCEUX, and `--bk2` a movie for BizHawk. Movies begin
at power-on, so they need the whole game, or 1-1 with `--no-cut-waits`. `--import`
converts such movies to demonstrations, also out of .zip and .gz.

Ctrl-C keeps all ways found so far. A search of the whole game keeps only a complete
way.

`trainer.planning.search.plan` is the same search in Python, for custom goals.

Exit status: 0, 1 if a level has no way or a demonstration does not play, 128 plus the
number of a signal that ended it (130 after Ctrl-C), or 2 with one line `error: ...` on
stderr. Of --import: 0 if every movie plays to the end of the game, 1 if a file cannot
be imported, 3 if a movie stops before the end, in the level that is printed, 4 if a
movie is for another ROM; of several numbers the highest.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mario_envpool.env import FRAMES_PER_SECOND
from mario_envpool.rom import ROMS, RomError
from trainer.cli import main_of
from trainer.config.options import check_ranges, option
from trainer.config.tasks import all_levels, game_of, parse_levels
from trainer.film.draw import VideoWriter, enlarge
from trainer.film.filmed_env import HEIGHT, WIDTH
from trainer.machine.files import make_folder
from trainer.machine.process import Interrupted, complain
from trainer.planning import demonstration, minari_data, movies
from trainer.planning.demonstration import Demonstration
from trainer.planning.levels import Budget, Found, plan_game, plan_level

# Exit status of --import.
_FAILED, _STOPS, _OTHER_ROM = 1, 3, 4


@dataclass(frozen=True)
class PlanConfig(Budget):
    """Searches for ways to the flag, or plays and converts demonstrations."""

    levels: str = ""
    """Levels such as 1-1 or 1-1,4-2, or "all". The default is the first level."""

    whole_game: bool = False
    """Search from power-on to the end of the last level, without warps. Each level
    begins in the state in which the previous level ended, and waits have full
    length."""

    task: str = "SuperMarioBros-v0"
    """The game: SuperMarioBros-v0 to -v3, or SuperMarioBros2-v0 or -v1 (the Lost
    Levels, worlds 1 to 4)."""

    out: Path = Path("runs/plans")
    """Folder for the demonstrations, one file per level."""

    replay: tuple[Path, ...] = ()
    """Demonstrations to play instead of a search; the command prints whether each
    reaches its end. Videos and movies are written beside these files."""

    imported: Annotated[tuple[Path, ...], tyro.conf.arg(name="import")] = ()
    """Movies to import instead of a search, .fm2 of FCEUX or .bk2 of BizHawk, also in
    .zip or .gz. Their demonstrations are written to --out."""

    rom: str = ""
    """The ROM of the movies of --import: vanilla, downsample, pixel, rectangle, world,
    lost-levels or lost-levels-downsample. The default is the one with the movie's
    checksum."""

    minari: str = ""
    """Also write the demonstrations of --replay as a Minari data set of this name, such
    as mario/1-1-v0."""

    minari_obs: Literal["gray", "rgb", "tiles"] = "gray"
    """Observations of the data set: the brightness of the picture, its colours, or
    tiles and motion."""

    video: bool = False
    """Also write a video of each demonstration, .mp4."""

    fm2: bool = False
    """Also write a movie for FCEUX, .fm2."""

    bk2: bool = False
    """Also write a movie for BizHawk, .bk2."""

    max_seconds: float = option(600.0, least=0)

    cut_waits: bool = True
    """Shorten the waits at pipes and doors, as environments do (this writes to RAM)."""


def check(config: PlanConfig) -> None:
    """Raises ValueError if an option is out of range or has no effect."""
    check_ranges(config)
    if not math.isfinite(config.shorten):
        raise ValueError(f"shorten must be a finite number, got {config.shorten}")
    for flag, files in (("--replay", config.replay), ("--import", config.imported)):
        if files and (config.levels or config.whole_game):
            raise ValueError(
                f"{flag} does not search: leave out --levels and --whole-game"
            )
    if config.replay and config.imported:
        raise ValueError("give either --replay or --import, not both")
    if config.rom and not config.imported:
        raise ValueError("--rom names the ROM of movies: it needs --import FILES")
    if config.rom and config.rom not in ROMS:
        raise ValueError(f"rom must be one of {', '.join(ROMS)}, got {config.rom!r}")
    if config.minari and not config.replay:
        raise ValueError("--minari makes a data set of files: it needs --replay FILES")
    if config.minari_obs != "gray" and not config.minari:
        raise ValueError("--minari-obs is of a data set: it needs --minari NAME")
    if config.whole_game and config.levels:
        raise ValueError("--whole-game plays all levels: leave out --levels")
    if config.whole_game and not config.cut_waits:
        raise ValueError(
            "--whole-game always plays waits at full length: leave out --no-cut-waits"
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


def run(config: PlanConfig) -> int:
    """Searches, replays or imports; returns the exit status."""
    check(config)
    if config.replay:
        valid, failures = _each(_replay, config, config.replay)
        if config.minari and valid:
            folder = minari_data.export(valid, config.minari, config.minari_obs)
            print(f"wrote {folder}", flush=True)
        return _FAILED if failures else 0
    make_folder(config.out)
    if config.imported:
        made, failures = _each(_import, config, config.imported)
        others = [isinstance(failure, RomError) for failure in failures]
        status = [_OTHER_ROM if other else _FAILED for other in others]
        status += [_STOPS for one in made if one.ending != demonstration.ENDINGS[0]]
        return max(status, default=0)
    complete: dict[str, bool] = {}
    for result in _search(config):
        complete[result.level] = result.plan is not None
        print(_line(result, config), flush=True)
        if result.plan is None:
            continue
        if result.demonstration is not None:
            _keep(config, result.level, result.demonstration)
        if result.plan.interrupted:
            raise Interrupted(result.plan.interrupted)
    missing = [level for level, done in complete.items() if not done]
    if len(complete) > 1:
        lost = f"; missing: {', '.join(missing)}" if missing else ""
        print(f"{sum(complete.values())} of {len(complete)} levels{lost}")
    return _FAILED if missing else 0


def _search(config: PlanConfig) -> Iterator[Found]:
    """Searches level by level; keeps the demonstration of the whole game at its end."""
    if config.whole_game:
        budget = _reporting(config, "the whole game")
        yield from plan_game(
            config.task, budget, lambda made: _keep(config, "whole-game", made)
        )
        return
    for level in parse_levels(config.levels or all_levels(config.task)[0], config.task):
        budget = _reporting(config, level)
        yield plan_level(config.task, level, budget, cut_waits=config.cut_waits)


def _reporting(config: PlanConfig, what: str) -> PlanConfig:
    """The options with a report of a search, which is printed."""
    return replace(config, report=lambda line: print(f"{what}: {line}", flush=True))


def _each(
    read: Callable[[PlanConfig, Path], Demonstration],
    config: PlanConfig,
    paths: Sequence[Path],
) -> tuple[list[Demonstration], list[Exception]]:
    """Reads every file, even after a failure; prints and returns the errors."""
    valid: list[Demonstration] = []
    failures: list[Exception] = []
    for path in paths:
        try:
            valid.append(read(config, path))
        except (ValueError, FileNotFoundError) as error:
            name = "" if str(path) in str(error) else f"{path}: "
            complain(f"error: {name}{error}")
            failures.append(error)
    return valid, failures


def _replay(config: PlanConfig, path: Path) -> Demonstration:
    """Plays a demonstration."""
    made = demonstration.load(path)
    demonstration.verify(made)
    print(f"{path}: {_summary(made)}{_to_its_end(made)}", flush=True)
    _export(config, made, path)
    return made


def _import(config: PlanConfig, path: Path) -> Demonstration:
    """Converts a movie to a demonstration."""
    made = demonstration.from_movie(path, config.rom)
    to = config.out / f"{movies.name_of(path)}.json"
    _write(config, made, to, _to_its_end(made))
    return made


def _write(config: PlanConfig, made: Demonstration, path: Path, more: str = "") -> None:
    """Writes a demonstration and plays the file."""
    made.save(path)
    demonstration.verify(demonstration.load(path))
    print(f"wrote {path}: {_summary(made)}{more}", flush=True)
    _export(config, made, path)


def _to_its_end(made: Demonstration) -> str:
    if made.ending == "cleared":
        return ", plays to its end"
    level = demonstration.last_level(made) if made.start == "power-on" else ""
    place = f" in {level}" if level else ""
    return f", plays as recorded (it {made.ending}{place})"


def _keep(config: PlanConfig, name: str, new: Demonstration) -> None:
    """Writes a demonstration, unless one of the same game has no more frames."""
    game = "" if config.task == PlanConfig.task else f"{config.task}-"
    waits = "" if config.cut_waits else "-full-waits"
    path = config.out / f"{game}{name}{waits}.json"
    old = _usable(path, new)
    if old is not None and not _same_game(old, new):
        # Another game, such as another ROM in MARIO_ROM.
        path = path.with_stem(f"{path.stem}-{new.rom_sha1[:8]}")
        old = _usable(path, new)
    if old is None or old.level != new.level or old.frames > new.frames:
        _write(config, new, path)
    else:
        print(f"kept {path}: {_summary(old)}", flush=True)
        _export(config, old, path)


def _usable(path: Path, new: Demonstration) -> Demonstration | None:
    """The demonstration in a file, unless it is damaged or does not play.

    A demonstration of another game than `new` is not played.
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
    """Writes the movies and the video that the options ask for."""
    for wanted, suffix, save in (
        (config.fm2, ".fm2", demonstration.save_fm2),
        (config.bk2, ".bk2", demonstration.save_bk2),
        (config.video, ".mp4", _film),
    ):
        if wanted:
            save(made, path.with_suffix(suffix))
            print(f"wrote {path.with_suffix(suffix)}", flush=True)


def _film(made: Demonstration, path: Path) -> None:
    size = 2 * WIDTH, 2 * HEIGHT
    with VideoWriter(path, size=size, fps=FRAMES_PER_SECOND) as film:
        for picture in demonstration.pictures(made):
            film.write(enlarge(picture, 2))


def _summary(made: Demonstration) -> str:
    seconds = made.frames / FRAMES_PER_SECOND
    return f"{made.frames:,} frames ({seconds:.1f} s of play), reward {made.reward:g}"


def _line(result: Found, config: PlanConfig) -> str:
    """A line about the result of the search in a level."""
    plan = result.plan
    if plan is None:
        return (
            f"{result.level}: no way found within --max-seconds {config.max_seconds:g} "
            f"and --max-steps {config.max_steps:,}; raise them, or try another --seed"
        )
    return (
        f"{result.level}: way of {len(plan.actions):,} steps (the first one had "
        f"{plan.first_steps:,}), found after {plan.found_after:,} environment steps "
        f"and {plan.seconds:.1f} s; {plan.cells:,} cells"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    ended = 0

    def work(config: PlanConfig) -> None:
        nonlocal ended
        ended = run(config)

    return main_of(PlanConfig, work, "plan", __doc__, argv) or ended


if __name__ == "__main__":
    sys.exit(main())
