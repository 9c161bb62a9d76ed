"""Films a policy: `python -m trainer.video --checkpoint RUN_OR_FILE`.

Writes an MP4 (or GIF) of an episode at the game's own 60 pictures a second, with
the buttons, the policy's probabilities and the critic's value beside the picture.
Seeds are those of evaluations, which no run trains with.

    python -m trainer.video --checkpoint runs/TASK-TIME
    python -m trainer.video --checkpoint runs/TASK-TIME --level 4-2 --out 4-2.gif
    python -m trainer.video --checkpoint runs/TASK-TIME --levels all --grid

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mario_envpool.env import FRAMES_PER_SECOND
from trainer.cli import main_of
from trainer.config.tasks import parse_levels
from trainer.evaluation.play import first_seed
from trainer.evaluation.results import STALL_STEPS
from trainer.film.draw import Grid, tint
from trainer.film.encode import VideoWriter, check_suffix
from trainer.film.filmed_env import FilmedEnv, Step, game_config
from trainer.film.play import Camera, Player, film_episode, trained
from trainer.models.policy import Policy, load_policy, playing_device, run_folder

_STILL_SECONDS = 1.5  # at the end of a grid
_MOST_COLUMNS = 8


@dataclass(frozen=True)
class VideoConfig:
    """Films a policy."""

    checkpoint: Path
    """Checkpoint, or the folder of a run."""

    levels: Annotated[str, tyro.conf.arg(aliases=["--level"])] = ""
    """Levels such as 1-1 or 1-1,4-2, or "all"; by default what the run plays."""

    grid: bool = False
    """All levels at once, one tile each, instead of one after the other."""

    episodes: int = 1
    """Episodes of each level; a grid has one."""

    out: Path | None = None
    """File to write, .mp4 or .gif; by default in the videos folder of the run."""

    overlay: bool = True
    """Show buttons, probabilities, value and score beside the picture."""

    scale: int = 0
    """Enlarges every pixel so many times; 0: 2, or 1 in a grid."""

    fps: Literal[0, 60, 30, 20, 15, 10] = 0
    """Pictures per second; 0: 60, or 30 in a grid, or 20 in a GIF."""

    max_seconds: float = 300.0
    """Longest video; what has not ended by then is cut off."""

    argmax: bool = False
    """Take the likeliest action; otherwise actions are sampled, as in training."""

    ema: bool = True
    """Play the averaged weights where the checkpoint has them."""

    seed: int = 1
    """Seed of environments and actions, 0 to 20,000."""

    device: str = "auto"
    """auto (cuda where there is one), cpu, cuda or cuda:N."""


def film(config: VideoConfig) -> Path:
    """Writes the video that a config asks for; returns its path.

    Raises:
        ValueError: an option is out of range.
        FileNotFoundError: there is no checkpoint.
        OSError: the file cannot be written.
    """
    for name, least in (("episodes", 1), ("scale", 0), ("max_seconds", 1)):
        if getattr(config, name) < least:
            raise ValueError(
                f"{name} must be at least {least}, got {getattr(config, name)}"
            )
    if config.grid and config.episodes > 1:
        raise ValueError(
            f"a grid shows one episode of each level, got episodes={config.episodes}"
        )
    if config.out is not None:
        check_suffix(config.out)
    policy = load_policy(
        config.checkpoint, playing_device(config.device), ema=config.ema
    )
    # "" is what the run plays.
    levels = parse_levels(config.levels, policy.env.task) if config.levels else ("",)
    seed = first_seed(config.seed)
    games = [
        FilmedEnv(
            game_config(
                policy.env,
                level=level,
                repeat_action_probability=0.0,
                stall_steps=STALL_STEPS,
            ),
            seed=seed + i,
        )
        for i, level in enumerate(levels)
    ]
    if config.grid:
        return _film_grid(config, policy, games, levels)
    return _film_in_turn(config, policy, games, levels)


def _every(config: VideoConfig, path: Path) -> int:
    """Frames of the game per picture of the video."""
    default = 20 if path.suffix.lower() == ".gif" else 30 if config.grid else 60
    return 60 // (config.fps or default)


def _out(config: VideoConfig, name: str) -> Path:
    """Where to write: beside the run's own videos, if nothing else is said."""
    if config.out is not None:
        return config.out
    run_dir = run_folder(config.checkpoint) or Path()
    return run_dir / "videos" / f"{name}.mp4"


def _film_in_turn(
    config: VideoConfig, policy: Policy, games: list[FilmedEnv], levels: Sequence[str]
) -> Path:
    """One episode after the other."""
    path = _out(config, "-to-".join(dict.fromkeys((levels[0], levels[-1]))) or "play")
    camera = Camera(
        scale=config.scale or 2, every=_every(config, path), overlay=config.overlay
    )
    width, height = camera.size
    count, limit = 0, config.max_seconds * camera.fps
    with VideoWriter(path, width=width, height=height, fps=camera.fps) as writer:
        for i, game in enumerate(games):
            seed = first_seed(config.seed) + i
            player = Player(policy, 1, seed=seed, argmax=config.argmax)
            for episode in range(config.episodes):
                caption = trained(policy.steps)
                if config.episodes > 1:
                    caption = f"episode {episode + 1} of {config.episodes}"
                for shot in film_episode(game, game.reset(), player.alone, caption):
                    pictures = camera.develop(shot) if count < limit else ()
                    for picture in pictures:
                        writer.write(picture)
                        count += 1
                cut = "" if count < limit else ", after the end of the video"
                print(f"{shot.reading}{cut}", flush=True)
    _tell_written(path, camera.size, count, camera.fps)
    return path


def _tell_written(path: Path, size: tuple[int, int], count: int, fps: float) -> None:
    print(
        f"wrote {path} ({size[0]} x {size[1]}, {count / fps:.1f} s at {fps:.3g} "
        f"pictures a second, {path.stat().st_size / 1e6:.1f} MB)",
        flush=True,
    )


def best_columns(tiles: int) -> int:
    """Columns of a grid without gaps, if possible as wide as a screen."""

    def badness(columns: int) -> tuple[int, float]:
        rows = -(-tiles // columns)
        return rows * columns - tiles, abs(columns / rows - 16 / 9)

    return min(range(1, min(tiles, _MOST_COLUMNS) + 1), key=badness)


class _Tile:
    """One game of a grid: what it shows now, and how it ended."""

    def __init__(self, level: str, start: Step) -> None:
        self.level, self.step = level, start
        self.total, self.count = 0.0, 0
        self.ending = ""

    def advance(self, step: Step) -> None:
        self.step = step
        self.total, self.count = self.total + step.reward, self.count + 1


def _film_grid(
    config: VideoConfig, policy: Policy, games: list[FilmedEnv], levels: Sequence[str]
) -> Path:
    """All games at once, until all have ended."""
    path = _out(config, "grid")
    every = _every(config, path)
    starts = [game.reset() for game in games]
    tiles = [_Tile(f"{s.info['world']}-{s.info['stage']}", s) for s in starts]
    columns = best_columns(len(tiles))
    grid = Grid([tile.level for tile in tiles], columns, config.scale or 1)
    seed = first_seed(config.seed)
    player = Player(policy, len(games), seed=seed, argmax=config.argmax)
    fps = FRAMES_PER_SECOND / every
    count, limit = 0, int(config.max_seconds * fps)
    frame_skip = policy.env.frame_skip
    print(f"filming {len(tiles)} levels at once", flush=True)  # it may take minutes
    with VideoWriter(path, width=grid.width, height=grid.height, fps=fps) as writer:
        frame_number = 0
        while count < limit and not all(tile.ending for tile in tiles):
            decisions = player.decide([tile.step for tile in tiles])
            for game, tile, decision in zip(games, tiles, decisions, strict=True):
                if not tile.ending:
                    tile.advance(game.step(decision.action))
            for frame in range(frame_skip):
                for i, tile in enumerate(tiles):
                    if not tile.ending:
                        _show(grid, i, tile, frame)
                        _tell_end(tile)
                if frame_number % every == 0:
                    writer.write(grid.canvas)
                    count += 1
                frame_number += 1
        for _ in range(round(_STILL_SECONDS * fps)):
            writer.write(grid.canvas)
            count += 1
    for tile in tiles:
        if not tile.ending:
            tile.ending = "cut off"
            _tell_end(tile)
    cleared = sum(tile.ending == "cleared" for tile in tiles)
    print(f"{cleared} of {len(tiles)} levels cleared")
    _tell_written(path, (grid.width, grid.height), count, fps)
    return path


def _show(grid: Grid, index: int, tile: _Tile, frame: int) -> None:
    """One frame of one tile; tinted when its episode ends."""
    frames = tile.step.frames
    if frame < len(frames):
        grid.show(index, frames[frame])
    if tile.step.ending and frame >= len(frames) - 1:
        tile.ending = tile.step.ending
        grid.label(index, tile.level, tile.ending)
        grid.show(index, tint(frames[-1], tile.ending))


def _tell_end(tile: _Tile) -> None:
    """Prints a line once a tile's episode has ended."""
    if tile.ending:
        print(
            f"{tile.level}: {tile.ending} after {tile.count} steps at x "
            f"{tile.step.info['x_pos']}, return {tile.total:.2f}",
            flush=True,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(VideoConfig, film, "video", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
