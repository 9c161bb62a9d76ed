"""The legend of ``obs_type="tiles"``, and pictures of it for people.

    python -m mario_envpool.tiles --level 1-1 --out tiles.png

plays the level for a moment on your own ROM and draws screen, tiles and legend side by
side. docs/observations.md describes ``tiles`` and ``motion``.

>>> from mario_envpool import tiles
>>> print(tiles.show(obs[0, -1]))  # the newest frame of environment 0
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core

#: ``NAMES[code]``: the contents of a cell.
NAMES: tuple[str, ...] = _core.tile_names
#: Mario's column, of 16; it always contains the middle of his body.
MARIO_COLUMN: int = _core.tile_mario_column
#: The columns of ``obs_type="motion"``.
MOTION = ("tile", "x", "y", "speed_x", "speed_y", "state")

# Name -> a character for terminals, a colour (RGB), the meaning.
LEGEND: dict[str, tuple[str, tuple[int, int, int], str]] = {
    "empty": (" ", (107, 140, 255), "nothing, or scenery"),
    "outside": (".", (40, 40, 40), "beyond the left or right edge of the screen"),
    "solid": ("#", (160, 80, 30), "ground, blocks, bridges, used blocks"),
    "brick": ("B", (210, 110, 50), "tall Mario breaks it; some bricks contain an item"),
    "question": ("?", (255, 200, 60), "gives a coin or an item, once"),
    "coin": ("o", (255, 235, 120), ""),
    "pipe": ("P", (40, 170, 40), "also solid"),
    "water": ("~", (60, 90, 220), "Mario swims in it"),
    "pole": ("|", (200, 255, 200), "the flag pole at the end of a level"),
    "vine": ("v", (120, 220, 60), "can be climbed"),
    "axe": ("A", (255, 255, 255), "the end of a castle"),
    "spring": ("s", (255, 120, 200), ""),
    "platform": ("=", (250, 170, 110), "moves, falls, or hangs on a rope"),
    "item": ("+", (140, 255, 200), "mushroom, flower, star"),
    "fireball": ("*", (255, 150, 0), "thrown by Mario"),
    "enemy": ("E", (220, 0, 120), "Mario may jump on it"),
    "danger": ("X", (255, 0, 0), "must not be touched: plants, spikes, fire, Bowser"),
    "small mario": ("m", (250, 230, 230), ""),
    "tall mario": ("M", (250, 200, 200), ""),
    "fire mario": ("F", (255, 255, 220), "can throw fireballs"),
    "star mario": ("S", (180, 255, 255), "cannot be hurt"),
}

_COLOURS = np.array([LEGEND[name][1] for name in NAMES], np.uint8)
_CELL = 16  # pixels
_TOP = 32  # rows of the status bar, which tiles do not cover


def show(grid: npt.NDArray[np.uint8]) -> str:
    """Returns a grid as text, one character per cell.

    Args:
        grid: one frame of tiles, (13, 16) uint8.

    Raises:
        ValueError: the grid has another shape, or a code that does not exist.
    """
    return "\n".join(
        "".join(LEGEND[NAMES[code]][0] for code in row) for row in _checked(grid)
    )


def picture(grid: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Returns a grid in the legend's colours, (208, 256, 3) uint8; see ``show``."""
    cells = _COLOURS[_checked(grid)]
    large = cells.repeat(_CELL, axis=0).repeat(_CELL, axis=1)
    large[::_CELL] //= 2
    large[:, ::_CELL] //= 2
    return large


def _checked(grid: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    if np.shape(grid) != (13, 16):
        raise ValueError(
            f"a grid has the shape (13, 16), got {np.shape(grid)}; take one frame of "
            "one environment, such as obs[0, -1]"
        )
    if np.max(grid) >= len(NAMES):
        raise ValueError(f"tile codes are 0 to {len(NAMES) - 1}, got {np.max(grid)}")
    return grid


def side_by_side(
    screen: npt.NDArray[np.uint8], ram: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    """Returns the part of the screen that tiles cover, and the tiles, side by side.

    Args:
        screen: (240, 256, 3) uint8.
        ram: work RAM at the same moment, (2048,) uint8.

    Returns:
        (208, 528, 3) uint8.
    """

    def position(page: str, low: str) -> int:
        at = _core.ram_addresses
        return int(ram[at[page]]) * 256 + int(ram[at[low]])

    left_of_screen = position("ScreenLeftPage", "ScreenLeftX")
    column = (position("PlayerPage", "PlayerX") + 8) // _CELL - MARIO_COLUMN
    first = column * _CELL - left_of_screen  # of the screen's columns
    shown = np.full((240 - _TOP, 256, 3), LEGEND["outside"][1], np.uint8)
    low, high = max(first, 0), min(first + 256, 256)
    if low < high:
        shown[:, low - first : high - first] = screen[_TOP:, low:high]
    gap = np.full((240 - _TOP, _CELL, 3), 255, np.uint8)
    return np.concatenate([shown, gap, picture(_core.tiles(ram))], axis=1)


def _legend_picture(height: int) -> Any:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (170, height), "white")
    draw = ImageDraw.Draw(image)
    for code, name in enumerate(NAMES):
        y = 4 + 18 * code
        draw.rectangle((6, y, 20, y + 14), fill=LEGEND[name][1], outline="black")
        draw.text((28, y + 1), f"{code:2}  {LEGEND[name][0]}  {name}", fill="black")
    return image


def _play(level: str, steps: int, count: int, seed: int) -> npt.NDArray[np.uint8]:
    """Plays random steps, mostly to the right; returns `count` joined pictures."""
    from . import make

    pool = make(f"SuperMarioBros-{level}-v0", num_envs=1, obs_type="ram", seed=seed)
    rng = np.random.default_rng(seed)
    ids = np.zeros(1, np.int32)
    pictures = []
    ram, _ = pool.reset()
    for step in range(1, steps * count + 1):
        action = rng.choice(7, p=(0.02, 0.03, 0.05, 0.3, 0.5, 0.05, 0.05))
        ram = pool.step(np.array([action]))[0]
        if step % steps == 0:
            pictures.append(side_by_side(pool._render(ids, 0, 0, -1)[0], ram[0]))
    pool.close()
    return np.concatenate(pictures)


def main(arguments: list[str] | None = None) -> int:
    """Prints the legend; with ``--out`` also writes pictures."""
    parser = argparse.ArgumentParser(
        prog="python -m mario_envpool.tiles",
        description="Prints the legend of obs_type='tiles'; --out draws pictures.",
    )
    parser.add_argument(
        "--level", default="1-1", help="level, 1-1 to 8-4 (default: 1-1)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="PNG to write, with screen, tiles and legend",
    )
    parser.add_argument(
        "--count", type=int, default=3, help="number of pictures (default: 3)"
    )
    parser.add_argument(
        "--steps", type=int, default=40, help="random steps per picture (default: 40)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the steps (default: 0)"
    )
    known = parser.parse_args(arguments)
    if known.count < 1 or known.steps < 1:
        parser.error("--count and --steps must be 1 or more")
    for code, name in enumerate(NAMES):
        sign, _, meaning = LEGEND[name]
        print(f"{code:2}  {sign}  {name:12} {meaning}".rstrip())
    if known.out is None:
        return 0
    try:
        from PIL import Image
    except ImportError:
        parser.error("--out needs Pillow; run: pip install pillow")
    try:
        pictures = _play(known.level, known.steps, known.count, known.seed)
    except ValueError as error:  # no such level, or no ROM
        parser.error(str(error))
    legend = _legend_picture(max(len(pictures), 18 * len(NAMES) + 8))
    page = Image.new("RGB", (pictures.shape[1] + legend.width, legend.height), "white")
    page.paste(Image.fromarray(pictures), (0, 0))
    page.paste(legend, (pictures.shape[1], 0))
    page.save(known.out)
    print(f"{known.out}: {known.count} pictures of screen and tiles")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
