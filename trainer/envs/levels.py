"""Levels and positions, decoded from a pool's info."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
# The low bits of a level's number hold the stage, the bits above the world, which is
# below a limit.
_STAGE_BITS, _WORLD_LIMIT = 4, 16


def level_numbers(info: Mapping[str, Any]) -> IntArray:
    """The number of each row's level, as in `level_number`."""
    worlds = info["world"].astype(np.int64)
    numbers: IntArray = (worlds << _STAGE_BITS) | info["stage"]
    return numbers


def x_in_room(info: Mapping[str, Any]) -> IntArray:
    """Positions of rows in pixels from the left end of their rooms, (n,) int64.

    A few pixels left of that end, the game's own `x_pos` is near 65,535.
    """
    x: IntArray = info["x_pos"].astype(np.int64)
    x *= x < 0x8000
    return x


def level_number(name: str) -> int:
    """The number of a level such as "4-2"."""
    world, stage = map(int, name.split("-"))
    return world << _STAGE_BITS | stage


def level_name(number: int) -> str:
    """The name, such as "4-2", of the level with a number."""
    return f"{number >> _STAGE_BITS}-{number & (1 << _STAGE_BITS) - 1}"


class LevelPlaces:
    """Maps the numbers of levels to indices among a run's levels."""

    def __init__(self, levels: Sequence[str]) -> None:
        # The last entry is for worlds outside the game, such as the minus world (36).
        self._places = np.full((_WORLD_LIMIT << _STAGE_BITS) + 1, -1, np.int64)
        for place, level in enumerate(levels):
            self._places[level_number(level)] = place

    def __call__(self, numbers: IntArray) -> IntArray:
        """The indices of levels, (n,) int64; -1 for a level outside the run."""
        return self._places[np.minimum(numbers, len(self._places) - 1)]
