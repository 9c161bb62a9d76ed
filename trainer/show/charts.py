"""Curves drawn with characters, for the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Point = tuple[float, float]  # seconds since the start, value

_BLOCKS = " ▁▂▃▄▅▆▇█"
# The bits of a Braille character's dots, by row and column.
_BRAILLE = np.array([[1, 8], [2, 16], [4, 32], [64, 128]])


def sparkline(
    points: Sequence[Point],
    width: int,
    low: float | None = None,
    high: float | None = None,
) -> str:
    """Draws a curve in one line of block characters."""
    levels = np.clip(np.round(8 * _heights(points, width, low, high)), 1, 8)
    return "".join(_BLOCKS[int(level)] for level in levels) or " " * width


@lru_cache(maxsize=64)  # curves are drawn more often than they change
def chart(
    points: tuple[Point, ...],
    width: int,
    height: int,
    low: float | None = None,
    high: float | None = None,
) -> list[str]:
    """Draws a curve as a line of Braille dots, 2x4 in a character."""
    rows = 4 * height
    dots = np.zeros((rows, 2 * width), np.uint8)
    shares = _heights(points, 2 * width, low, high)
    old = None
    for column, row in enumerate(np.round((1 - shares) * (rows - 1)).astype(int)):
        near = row if old is None else old
        # A steep piece is a vertical line, without the dot that it starts from.
        start, end = min(row, near + (row > near)), max(row, near - (row < near))
        dots[start : end + 1, column] = 1
        old = row
    cells = dots.reshape(height, 4, width, 2).transpose(0, 2, 1, 3)
    codes = (cells * _BRAILLE).sum((2, 3), dtype=int)
    return ["".join(chr(0x2800 + c) if c else " " for c in line) for line in codes]


def _heights(
    points: Sequence[Point], width: int, low: float | None, high: float | None
) -> npt.NDArray[np.float64]:
    """The curve at each column, 0 at `low` to 1 at `high`; empty without points."""
    if not points or width < 1:
        return np.zeros(0)
    seconds, values = np.array(points).T
    times = np.linspace(0, seconds[-1], width)
    columns: npt.NDArray[np.float64] = np.interp(times, seconds, values)
    bottom = values.min() if low is None else low
    top = values.max() if high is None else high
    if top <= bottom:
        return np.zeros(width)
    shares: npt.NDArray[np.float64] = (columns - bottom) / (top - bottom)
    return shares.clip(0.0, 1.0)
