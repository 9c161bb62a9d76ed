"""Levels and positions in what a pool tells of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
# A level's number has its stage in so many bits, and its world, below a limit, above.
_STAGE_BITS, _WORLD_LIMIT = 4, 16


def level_numbers(info: Mapping[str, Any]) -> IntArray:
    """A number for each row's level, as `level_number` has it."""
    worlds = info["world"].astype(np.int64)
    numbers: IntArray = (worlds << _STAGE_BITS) | info["stage"]
    return numbers


def x_in_room(info: Mapping[str, Any]) -> IntArray:
    """Positions of rows from the left end of their rooms, (n,) int64.

    Some pixels to the left of it `x_pos` is near 65,535, as the game counts.
    """
    x: IntArray = info["x_pos"].astype(np.int64)
    x *= x < 0x8000
    return x


def level_number(name: str) -> int:
    """The number of a level such as "4-2"."""
    world, stage = map(int, name.split("-"))
    return world << _STAGE_BITS | stage


def level_name(number: int) -> str:
    """The name of the level with a number."""
    return f"{number >> _STAGE_BITS}-{number & (1 << _STAGE_BITS) - 1}"


class LevelPlaces:
    """Which of a run's levels an environment is in, counted from 0."""

    def __init__(self, levels: Sequence[str]) -> None:
        """Takes the levels in their order."""
        # The last place is for worlds that are none, as the minus world, 36.
        self._places = np.full((_WORLD_LIMIT << _STAGE_BITS) + 1, -1, np.int64)
        for place, level in enumerate(levels):
            self._places[level_number(level)] = place

    def __call__(self, numbers: IntArray) -> IntArray:
        """The places of levels, (n,) int64; -1 for another level.

        Args:
            numbers: (n,) int64 of the levels, as `level_numbers` has them.
        """
        return self._places[np.minimum(numbers, len(self._places) - 1)]
