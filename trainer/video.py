"""Films a policy: `python -m trainer.video --checkpoint RUN_OR_FILE`.

Writes an MP4 (or GIF) of an episode at 60 frames per second, with the buttons, the
policy's probabilities and the critic's value beside the picture. It uses the seeds of
evaluations, which no run trains with.

    python -m trainer.video --checkpoint runs/TASK-TIME
    python -m trainer.video --checkpoint runs/TASK-TIME --level 4-2 --out 4-2.gif
    python -m trainer.video --policy released:8-1
    python -m trainer.video --checkpoint runs/TASK-TIME --levels all --grid

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from PIL import Image, ImageDraw

from mario_envpool.env import FRAMES_PER_SECOND
from trainer.cli import main_of
from trainer.config.tasks import parse_levels
from trainer.evaluation.play import first_seed
from trainer.evaluation.results import STALL_STEPS
from trainer.film.draw import (
    BACKGROUND,
    ENDINGS,
    SURFACE,
    TEXT,
    Camera,
    VideoWriter,
    check_suffix,
    enlarge,
    font,
)
from trainer.film.filmed_env import (
    HEIGHT,
    WIDTH,
    FilmedEnv,
    Picture,
    Player,
    film_episode,
    game_config,
    trained,
)
from trainer.models.policy import (
    Policy,
    load_policy,
    playing_device,
    policy_name,
    run_folder,
)

HEADER_HEIGHT = 12  # of a game's place in the grid, in pixels of the game's picture

_STILL_SECONDS = 1.5  # at the end
_MAX_COLUMNS = 8


@dataclass(frozen=True)
class VideoConfig:
    """Films a policy."""

    checkpoint: Annotated[Path, tyro.conf.arg(aliases=["--policy"])]
    """Checkpoint, run folder, policy file, released:8-1, or an address on the Hub,
    hf://user/name."""

    model: str = ""
    """Network of your own, module:Class, if the policy has one: code that a file names
    is imported only if you name it here."""

    levels: Annotated[str, tyro.conf.arg(aliases=["--level"])] = ""
    """Levels such as 1-1 or 1-1,4-2, or "all"; the default is what the run plays."""

    grid: bool = False
    """Show all levels at once in a grid, instead of one after the other."""

    episodes: int = 1
    """Episodes per level; a grid shows one."""

    out: Path | None = None
    """File to write, .mp4 or .gif; the default is in RUN_DIR/videos or, for a policy
    outside a run folder, in ./videos, with the name of the policy."""

    overlay: bool = True
    """Show buttons, probabilities, value and score beside the picture."""

    scale: int = 0
    """Factor by which to enlarge the picture; 0: 2, or 1 in a grid."""

    fps: Literal[0, 60, 30, 20, 15, 10] = 0
    """Frames per second of the video; 0: 60, or 30 in a grid, or 20 in a GIF."""

    max_seconds: float = 300.0
    """Longest video in seconds; later parts are cut off."""

    argmax: bool = False
    """Take greedy (most probable) actions; otherwise actions are sampled, as in
    training."""

    ema: bool = True
    """Play the averaged weights if the checkpoint has them."""

    seed: int = 1
    """Seed of environments and actions, 0 to 20000."""

    device: str = "auto"
    """auto (cuda if there is a usable GPU, else cpu), cpu, cuda or cuda:N."""


def film(config: VideoConfig) -> Path:
    """Writes the video that the options ask for; returns its path.

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
        config.checkpoint,
        playing_device(config.device),
        ema=config.ema,
        model=config.model,
    )
    # "" stands for the level or levels of the run.
    levels = parse_levels(config.levels, policy.env.task) if config.levels else ("",)
    changes: dict[str, Any] = {
        "repeat_action_probability": 0.0,
        "stall_steps": STALL_STEPS,
    }
    games = [
        FilmedEnv(game_config(policy.env, level=level, **changes), seed=seed)
        for seed, level in enumerate(levels, first_seed(config.seed))
    ]
    first_and_last = dict.fromkeys((levels[0], levels[-1]))
    path = _out(config, "grid" if config.grid else "-to-".join(first_and_last))
    film_all = _film_grid if config.grid else _film_in_turn
    print(film_all(config, policy, games, path), flush=True)
    return path


def _every(config: VideoConfig) -> int:
    """Frames of the game per picture of the video."""
    gif = config.out is not None and config.out.suffix.lower() == ".gif"
    default = 20 if gif else 30 if config.grid else 60
    return 60 // (config.fps or default)


def _out(config: VideoConfig, what: str) -> Path:
    """The file to write: by default beside the videos of the run."""
    if config.out is not None:
        return config.out
    run_dir = run_folder(config.checkpoint) or Path()
    names = dict.fromkeys((policy_name(config.checkpoint), what))
    return run_dir / "videos" / f"{'-'.join(filter(None, names)) or 'play'}.mp4"


def _film_in_turn(
    config: VideoConfig, policy: Policy, games: Sequence[FilmedEnv], path: Path
) -> str:
    """Films one episode after the other; returns a line about the file."""
    every, overlay = _every(config), config.overlay
    camera = Camera(scale=config.scale or 2, every=every, overlay=overlay)
    limit = config.max_seconds * camera.fps
    with VideoWriter(path, size=camera.size, fps=camera.fps) as writer:
        for seed, game in enumerate(games, first_seed(config.seed)):
            player = Player(policy, 1, seed=seed, argmax=config.argmax)
            for episode in range(config.episodes):
                caption = trained(policy.steps)
                if config.episodes > 1:
                    caption = f"episode {episode + 1} of {config.episodes}"
                for shot in film_episode(game, game.reset(), player.alone, caption):
                    pictures = camera.develop(shot) if writer.count < limit else ()
                    for picture in pictures:
                        writer.write(picture)
                cut = "" if writer.count < limit else ", after the end of the video"
                print(f"{shot.reading}{cut}", flush=True)
    return writer.summary()


class Grid:
    """Pictures of several games side by side, each with its level's name above."""

    GAP = 4

    def __init__(self, levels: Sequence[str], columns: int, scale: int) -> None:
        self._columns, self._scale = columns, scale
        rows = -(-len(levels) // columns)
        tile = (WIDTH * scale, (HEIGHT + HEADER_HEIGHT) * scale)
        self._step = (tile[0] + self.GAP, tile[1] + self.GAP)
        self.width = columns * self._step[0] + self.GAP
        self.height = rows * self._step[1] + self.GAP
        self.canvas: Picture = np.empty((self.height, self.width, 3), np.uint8)
        """The whole picture, (height, width, 3) uint8."""
        self.canvas[:] = BACKGROUND
        for i, level in enumerate(levels):
            self.label(i, level)

    def _corner(self, tile: int) -> tuple[int, int]:
        row, column = divmod(tile, self._columns)
        return self.GAP + row * self._step[1], self.GAP + column * self._step[0]

    def label(self, tile: int, level: str, ending: str = "") -> None:
        """Writes a tile's header."""
        scale = self._scale
        size = (WIDTH * scale, HEADER_HEIGHT * scale)
        image = Image.new("RGB", size, ENDINGS.get(ending, SURFACE))
        pen = ImageDraw.Draw(image)
        ink = BACKGROUND if ending else TEXT
        for x, text, anchor in ((4, level, "lm"), (252, ending, "rm")):
            where = (x * scale, size[1] / 2)
            kind = font(9 * scale, True)
            pen.text(where, text, fill=ink, font=kind, anchor=anchor)
        y, x = self._corner(tile)
        self.canvas[y : y + size[1], x : x + size[0]] = np.asarray(image)

    def show(self, tile: int, picture: Picture) -> None:
        """Puts a game's picture, (240, 256, 3), into its tile."""
        y, x = self._corner(tile)
        y += HEADER_HEIGHT * self._scale
        large = enlarge(picture, self._scale)
        self.canvas[y : y + len(large), x : x + large.shape[1]] = large


def tint(picture: Picture, ending: str) -> Picture:
    """A picture in shades of the colour of its episode's ending."""
    grey = picture.mean(axis=-1, keepdims=True) / 255
    tinted: Picture = (ENDINGS[ending] * (0.25 + 0.65 * grey)).astype(np.uint8)
    return tinted


def best_columns(tiles: int) -> int:
    """The number of columns for a grid without gaps, close to a screen's shape."""

    def badness(columns: int) -> tuple[int, float]:
        rows = -(-tiles // columns)
        return rows * columns - tiles, abs(columns / rows - 16 / 9)

    return min(range(1, min(tiles, _MAX_COLUMNS) + 1), key=badness)


class _Tile:
    """One game of a grid: its last step and its ending."""

    def __init__(self, game: FilmedEnv) -> None:
        self.game, self.step = game, game.reset()
        self.total, self.count = 0.0, 0
        self.ending = ""

    def advance(self, action: int) -> None:
        self.step = self.game.step(action)
        self.total, self.count = self.total + self.step.reward, self.count + 1

    def __str__(self) -> str:
        return (
            f"{self.game.level}: {self.ending} after {self.count} steps at x "
            f"{self.step.info['x_pos']}, return {self.total:.2f}"
        )


def _film_grid(
    config: VideoConfig, policy: Policy, games: Sequence[FilmedEnv], path: Path
) -> str:
    """Films games until all have ended, and prints a line about each game."""
    seed, every = first_seed(config.seed), _every(config)
    player = Player(policy, len(games), seed=seed, argmax=config.argmax)
    tiles = [_Tile(game) for game in games]
    levels = [tile.game.level for tile in tiles]
    grid = Grid(levels, best_columns(len(tiles)), config.scale or 1)
    fps = FRAMES_PER_SECOND / every
    limit = int(config.max_seconds * fps)
    # Filming may take minutes.
    print(f"filming {len(tiles)} levels at once", flush=True)
    with VideoWriter(path, size=(grid.width, grid.height), fps=fps) as writer:
        frame_number = 0
        while writer.count < limit and not all(tile.ending for tile in tiles):
            decisions = player.decide([tile.step for tile in tiles])
            for tile, decision in zip(tiles, decisions, strict=True):
                if not tile.ending:
                    tile.advance(decision.action)
            for frame in range(policy.env.frame_skip):
                for number, tile in enumerate(tiles):
                    if not tile.ending:
                        _show(grid, number, tile, frame)
                if frame_number % every == 0:
                    writer.write(grid.canvas)
                frame_number += 1
        for _ in range(round(_STILL_SECONDS * fps)):
            writer.write(grid.canvas)
    for tile in tiles:
        if not tile.ending:
            tile.ending = "cut off"
            print(tile, flush=True)
    cleared = sum(tile.ending == "cleared" for tile in tiles)
    print(f"{cleared} of {len(tiles)} levels cleared")
    return writer.summary()


def _show(grid: Grid, number: int, tile: _Tile, frame: int) -> None:
    """Shows one frame of a game; at the end, tints it and prints a line."""
    frames = tile.step.frames
    if frame < len(frames):
        grid.show(number, frames[frame])
    if tile.step.ending and frame >= len(frames) - 1:
        tile.ending = tile.step.ending
        grid.label(number, tile.game.level, tile.ending)
        grid.show(number, tint(frames[-1], tile.ending))
        print(tile, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(VideoConfig, film, "video", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
