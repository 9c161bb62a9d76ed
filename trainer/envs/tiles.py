"""Tiles and motion as one array of bytes, which the trainer treats as a picture.

A frame is 16 x 16 bytes: 13 rows of tiles, and the 8 x 6 numbers of motion in the last
three rows (docs/observations.md). Everything between pool and network, such as the
store of unrolls and replay, works as with pictures, with 256 bytes a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from mario_envpool import tiles
from trainer.config.schema import TILES_ROWS, TILES_SHAPE

#: The option of the pool that `packed` needs.
OBS_TYPE = ["tiles", "motion"]


def packed(
    grids: npt.NDArray[np.uint8], motion: npt.NDArray[np.int8]
) -> npt.NDArray[np.uint8]:
    """Joins tiles and motion to frames."""
    frames = np.empty((*grids.shape[:-3], *TILES_SHAPE), np.uint8)
    frames[..., :TILES_ROWS, :] = grids
    frames[..., TILES_ROWS:, :] = motion.view(np.uint8).reshape(
        *motion.shape[:-2], 1, -1, TILES_SHAPE[-1]
    )
    return frames


def tiles_picture(frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The tiles of a packed frame (1, 16, 16) in colours, (208, 256, 3) uint8."""
    return tiles.picture(frame[0, :TILES_ROWS])


class TilesPool:
    """A pool with packed observations; everything else is the wrapped pool's."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.observation_space = Box(0, 255, TILES_SHAPE, np.uint8)

    def recv(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The pool's `recv`, with observations (n, 1, 16, 16) uint8."""
        obs, *results = self._pool.recv(*args, **kwargs)
        return packed(obs["tiles"], obs["motion"]), *results

    def reset(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The pool's `reset`, with observations as from `recv`."""
        obs, info = self._pool.reset(*args, **kwargs)
        return packed(obs["tiles"], obs["motion"]), info

    def step(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The pool's `step`, with observations as from `recv`."""
        obs, *results = self._pool.step(*args, **kwargs)
        return packed(obs["tiles"], obs["motion"]), *results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)
