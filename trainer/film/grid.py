"""Several games at once, side by side in one video."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from mario_envpool.env import FRAMES_PER_SECOND
from trainer.film.draw import (
    BACKGROUND,
    ENDINGS,
    SURFACE,
    TEXT,
    Picture,
    enlarge,
    font,
)
from trainer.film.encode import VideoWriter
from trainer.film.filmed_env import HEIGHT, WIDTH, FilmedEnv
from trainer.film.play import Player

HEADER_HEIGHT = 12  # of a game's place in the grid, in pixels of the game's picture

_STILL_SECONDS = 1.5  # at the end
_MAX_COLUMNS = 8


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
        self.level = f"{self.step.info['world']}-{self.step.info['stage']}"
        self.total, self.count = 0.0, 0
        self.ending = ""

    def advance(self, action: int) -> None:
        self.step = self.game.step(action)
        self.total, self.count = self.total + self.step.reward, self.count + 1

    def __str__(self) -> str:
        return (
            f"{self.level}: {self.ending} after {self.count} steps at x "
            f"{self.step.info['x_pos']}, return {self.total:.2f}"
        )


def film_grid(
    games: Sequence[FilmedEnv],
    player: Player,
    path: Path,
    *,
    frame_skip: int,
    scale: int,
    every: int,
    max_seconds: float,
) -> str:
    """Films games until all have ended, and prints a line about each game."""
    tiles = [_Tile(game) for game in games]
    grid = Grid([tile.level for tile in tiles], best_columns(len(tiles)), scale)
    fps = FRAMES_PER_SECOND / every
    limit = int(max_seconds * fps)
    # Filming may take minutes.
    print(f"filming {len(tiles)} levels at once", flush=True)
    with VideoWriter(path, width=grid.width, height=grid.height, fps=fps) as writer:
        frame_number = 0
        while writer.count < limit and not all(tile.ending for tile in tiles):
            decisions = player.decide([tile.step for tile in tiles])
            for tile, decision in zip(tiles, decisions, strict=True):
                if not tile.ending:
                    tile.advance(decision.action)
            for frame in range(frame_skip):
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
        grid.label(number, tile.level, tile.ending)
        grid.show(number, tint(frames[-1], tile.ending))
        print(tile, flush=True)
