"""Films a policy: `python -m trainer.video --checkpoint RUN_OR_FILE`.

Writes an MP4 (or GIF) of an episode at 60 frames per second, with the buttons, the
policy's probabilities and the critic's value beside the picture. It uses the seeds of
evaluations, which no run trains with.

    python -m trainer.video --checkpoint runs/TASK-TIME
    python -m trainer.video --checkpoint runs/TASK-TIME --level 4-2 --out 4-2.gif
    python -m trainer.video --policy released:8-1
    python -m trainer.video --checkpoint runs/TASK-TIME --levels all --grid
    python -m trainer.video --policy released:all --whole-game

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from PIL import Image, ImageDraw

from mario_envpool.env import FRAMES_PER_SECOND
from trainer.cli import main_of
from trainer.config.options import check_ranges, option
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
    GamePlayer,
    Picture,
    Player,
    Reading,
    film_episode,
    game_config,
    trained,
    whole_game,
)
from trainer.models import released
from trainer.models.level_policies import LevelPolicies, load_level_policies
from trainer.models.policy import (
    Policy,
    load_policy,
    playing_device,
    policy_name,
    run_folder,
)

HEADER_HEIGHT = 12  # of a game's place in the grid, in pixels of the game's picture

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

    whole_game: bool = False
    """Film the whole game from power-on with three lives, with the waits between
    levels. A folder of policies, such as released:all, plays each level with its
    own."""

    pause_for_rng: bool = False
    """With --whole-game: pause the game before each level and life until its random
    numbers are those of the level's own task, which the policies know. The video shows
    a second of each pause."""

    grid: bool = False
    """Show all levels at once in a grid, instead of one after the other."""

    episodes: int = option(1, least=1)
    """Episodes per level; a grid shows one."""

    out: Path | None = None
    """File to write, .mp4 or .gif; the default is in RUN_DIR/videos or, for a policy
    outside a run folder, in ./videos, with the name of the policy."""

    overlay: bool = True
    """Show buttons, probabilities, value and score beside the picture."""

    scale: int = option(0, least=0)
    """Factor by which to enlarge the picture; 0: 2, or 1 in a grid."""

    fps: Literal[0, 60, 30, 20, 15, 10] = 0
    """Frames per second of the video; 0: 60, or 30 in a grid, or 20 in a GIF."""

    max_seconds: float = option(0.0, least=0)
    """Longest video in seconds; later parts are cut off. 0: 300, and no limit with
    --whole-game."""

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
    check_ranges(config)
    if config.grid and config.episodes > 1:
        raise ValueError(
            f"a grid shows one episode of each level, got episodes={config.episodes}"
        )
    if 0 < config.max_seconds < 1:
        raise ValueError(
            f"max_seconds must be 0 or at least 1, got {config.max_seconds:g}"
        )
    if config.whole_game and (config.grid or config.levels):
        raise ValueError("a whole game plays all levels: leave out --levels and --grid")
    if config.pause_for_rng and not config.whole_game:
        raise ValueError("--pause-for-rng pauses between levels: it needs --whole-game")
    if config.out is not None:
        check_suffix(config.out)
    gif = config.out is not None and config.out.suffix.lower() == ".gif"
    every = 60 // (config.fps or (20 if gif else 30 if config.grid else 60))
    if config.whole_game:
        policies = load_level_policies(
            config.checkpoint,
            playing_device(config.device),
            ema=config.ema,
            model=config.model,
            pause_for_rng=config.pause_for_rng,
        )
        camera = Camera(scale=config.scale or 2, every=every, overlay=config.overlay)
        shots = _whole_games(config, policies, camera)
        limit = config.max_seconds or float("inf")
        return _write(config, "whole-game", camera, shots, every, limit)
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
        "rng_frames_max": 0,
        "stall_steps": STALL_STEPS,
    }
    games = {
        seed: FilmedEnv(game_config(policy.env, level=level, **changes), seed=seed)
        for seed, level in enumerate(levels, first_seed(config.seed))
    }
    view: Grid | Camera
    if config.grid:
        view = Grid(len(games), best_columns(len(games)), config.scale or 1)
        pictures = _side_by_side(config, policy, games, view, every)
    else:
        view = Camera(scale=config.scale or 2, every=every, overlay=config.overlay)
        pictures = _in_turn(config, policy, games, view)
    what = "-to-".join(dict.fromkeys((levels[0], levels[-1])))
    return _write(config, what, view, pictures, every, config.max_seconds or 300.0)


def _write(
    config: VideoConfig,
    what: str,
    view: Grid | Camera,
    pictures: Iterator[Picture],
    every: int,
    max_seconds: float,
) -> Path:
    """Writes pictures to the file; `what` was filmed, and every n-th frame."""
    path = _out(config, what)
    fps, left_out = FRAMES_PER_SECOND / every, 0
    with VideoWriter(path, size=view.size, fps=fps) as writer:
        for picture in pictures:
            if writer.count < max_seconds * fps:
                writer.write(picture)
            else:
                left_out += 1
    cut = f"; --max-seconds cuts off the last {left_out / fps:.1f} s"
    print(writer.summary() + cut * bool(left_out), flush=True)
    return path


def _out(config: VideoConfig, levels: str) -> Path:
    """The file to write: by default beside the videos of the run."""
    if config.out is not None:
        return config.out
    run_dir = run_folder(config.checkpoint) or Path()
    what = "grid" if config.grid else levels
    several = released.is_release(config.checkpoint)
    name = "" if several else policy_name(config.checkpoint)
    names = dict.fromkeys((name, what))
    return run_dir / "videos" / f"{'-'.join(filter(None, names)) or 'play'}.mp4"


def _in_turn(
    config: VideoConfig, policy: Policy, games: Mapping[int, FilmedEnv], camera: Camera
) -> Iterator[Picture]:
    """Pictures of one episode after the other; prints a line about each."""
    for seed, game in games.items():
        player = Player(policy, seed=seed, argmax=config.argmax)
        for episode in range(config.episodes):
            caption = trained(policy.steps)
            if config.episodes > 1:
                caption = f"episode {episode + 1} of {config.episodes}"
            for shot in film_episode(game, game.reset(), player, caption):
                yield from camera.develop(shot)
            print(shot.reading, flush=True)


def _whole_games(
    config: VideoConfig, policies: LevelPolicies, camera: Camera
) -> Iterator[Picture]:
    """Pictures of attempts at the whole game; prints a line about each."""
    seed = first_seed(config.seed)
    game = whole_game(policies, seed)
    player = GamePlayer(policies, seed=seed, argmax=config.argmax)
    for _ in range(config.episodes):
        caption = trained(policies.steps)
        for shot in film_episode(game, game.reset(), player, caption):
            yield from camera.develop(shot)
        print(shot.reading, flush=True)


def _side_by_side(
    config: VideoConfig,
    policy: Policy,
    games: Mapping[int, FilmedEnv],
    grid: Grid,
    every: int,
) -> Iterator[Picture]:
    """Pictures of an episode of each game; prints a line at the end of each."""
    print(f"filming {len(games)} levels at once", flush=True)  # may take minutes
    playing = {}
    for tile, (seed, game) in enumerate(games.items()):
        player = Player(policy, seed=seed, argmax=config.argmax)
        shots = film_episode(game, game.reset(), player, "")
        playing[tile] = ((frame, s.reading) for s in shots for frame in s.frames)
    readings: dict[int, Reading] = {}
    while playing:
        for tile, frames in list(playing.items()):
            if not (shown := list(islice(frames, every))):
                del playing[tile]
                print(readings[tile], flush=True)
                continue
            frame, reading = shown[-1]
            readings[tile] = reading
            grid.show(tile, frame, reading.level, reading.ending)
        yield grid.canvas
    cleared = sum(reading.ending == "cleared" for reading in readings.values())
    print(f"{cleared} of {len(games)} levels cleared")


class Grid:
    """Pictures of several games side by side, each with its level's name above."""

    GAP = 4

    def __init__(self, games: int, columns: int, scale: int) -> None:
        self._columns, self._scale = columns, scale
        rows = -(-games // columns)
        self._step_x = WIDTH * scale + self.GAP
        self._step_y = (HEIGHT + HEADER_HEIGHT) * scale + self.GAP
        self.size = columns * self._step_x + self.GAP, rows * self._step_y + self.GAP
        self.canvas: Picture = np.empty((*self.size[::-1], 3), np.uint8)
        """The whole picture, (height, width, 3) uint8."""
        self.canvas[:] = BACKGROUND

    def show(self, tile: int, picture: Picture, level: str, ending: str) -> None:
        """Puts a game's picture, (240, 256, 3), into its tile; tints it at the end."""
        if ending:
            picture = tint(picture, ending)
        header = _header(level, ending, self._scale)
        image = np.concatenate((header, enlarge(picture, self._scale)))
        row, column = divmod(tile, self._columns)
        y, x = self.GAP + row * self._step_y, self.GAP + column * self._step_x
        self.canvas[y : y + len(image), x : x + image.shape[1]] = image


@functools.cache
def _header(level: str, ending: str, scale: int) -> Picture:
    """The line above a game's picture."""
    size = (WIDTH * scale, HEADER_HEIGHT * scale)
    image = Image.new("RGB", size, ENDINGS.get(ending, SURFACE))
    pen, kind = ImageDraw.Draw(image), font(9 * scale, True)
    ink = BACKGROUND if ending else TEXT
    for x, text, anchor in ((4, level, "lm"), (252, ending, "rm")):
        where = (x * scale, size[1] / 2)
        pen.text(where, text, fill=ink, font=kind, anchor=anchor)
    return np.asarray(image)


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


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(VideoConfig, film, "video", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
