"""Work RAM of the game under the attribute names of upstream's environment.

Third-party wrappers read ``env.unwrapped._x_position`` and similar names, which this
module provides. csrc/mario/ram_map.inc names the source of the addresses.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .. import _core
from ..codes import STATUS

_ADDRESS = _core.ram_addresses
_ENEMY_TYPES = range(_ADDRESS["EnemyType"], _ADDRESS["EnemyType"] + 5)
_BOWSER_AND_FLAGPOLE = (0x2D, 0x31)
# Player states in which the game controls Mario, or in which Mario does not move.
_BUSY = (0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x07)


class RamView:
    """Values in work RAM, as Python numbers.

    Attributes:
        ram: (2048,) uint8, work RAM or a copy of it.
    """

    ram: npt.NDArray[np.uint8]

    def _read_mem(self, address: int) -> int:
        return int(self.ram[address])

    def _read_mem_range(self, address: int, length: int) -> int:
        """Reads a number with one decimal digit per byte."""
        return int(
            "".join(str(digit) for digit in self.ram[address : address + length])
        )

    @property
    def _world(self) -> int:
        """World, from 1; the Lost Levels have 13 (10 is A)."""
        return self._read_mem(_ADDRESS["World"]) + 1

    @property
    def _stage(self) -> int:
        """Stage of the world, from 1."""
        return self._read_mem(_ADDRESS["Stage"]) + 1

    @property
    def _area(self) -> int:
        """Room of the world, from 1."""
        return self._read_mem(_ADDRESS["Area"]) + 1

    @property
    def _life(self) -> int:
        """Lives left after this one; 255 at game over."""
        return self._read_mem(_ADDRESS["Lives"])

    @property
    def _y_pixel(self) -> int:
        """Pixels from the top of the screen."""
        return self._read_mem(_ADDRESS["PixelY"])

    @property
    def _y_viewport(self) -> int:
        """0 above the screen, 1 on it, 2 and more below."""
        return self._read_mem(_ADDRESS["ViewportY"])

    @property
    def _status_value(self) -> int:
        """0 small, 1 tall, 2 and more with fireballs."""
        return self._read_mem(_ADDRESS["PowerStatus"])

    @property
    def _player_state(self) -> int:
        """8 in play, 6 dead, 11 dying; most others are waits."""
        return self._read_mem(_ADDRESS["PlayerState"])

    @property
    def _level(self) -> int:
        """Number of earlier stages, at four per world."""
        return 4 * (self._world - 1) + self._stage - 1

    @property
    def _score(self) -> int:
        return self._read_mem_range(_ADDRESS["Score"], 6)

    @property
    def _time(self) -> int:
        return self._read_mem_range(_ADDRESS["Time"], 3)

    @property
    def _coins(self) -> int:
        return self._read_mem_range(_ADDRESS["Coins"], 2)

    @property
    def _x_position(self) -> int:
        """Pixels from the left end of the area."""
        return 256 * self._read_mem(_ADDRESS["PlayerPage"]) + self._read_mem(
            _ADDRESS["PlayerX"]
        )

    @property
    def _left_x_position(self) -> int:
        """Pixels from the left edge of the screen."""
        return (
            self._read_mem(_ADDRESS["PlayerX"])
            - self._read_mem(_ADDRESS["ScreenLeftX"])
        ) % 256

    @property
    def _y_position(self) -> int:
        """Pixels from the bottom of the screen; above 255 over its top."""
        return 255 - self._y_pixel + (255 if self._y_viewport < 1 else 0)

    @property
    def _powerup_level(self) -> int:
        return min(self._status_value, 2)

    @property
    def _player_status(self) -> str:
        return STATUS[self._powerup_level]

    @property
    def _is_dying(self) -> bool:
        return self._player_state == 0x0B or self._y_viewport > 1

    @property
    def _is_dead(self) -> bool:
        return self._player_state == 0x06

    @property
    def _is_game_over(self) -> bool:
        return self._life == 0xFF

    @property
    def _is_busy(self) -> bool:
        return self._player_state in _BUSY

    @property
    def _is_world_over(self) -> bool:
        return self._read_mem(_ADDRESS["OperMode"]) == 2

    @property
    def _is_stage_over(self) -> bool:
        """Whether Mario slides down the pole, or the axe has been taken."""
        at_the_end = any(kind in _BOWSER_AND_FLAGPOLE for kind in self._enemy_types)
        return at_the_end and self._read_mem(_ADDRESS["FloatState"]) == 3

    @property
    def _flag_get(self) -> bool:
        return self._is_world_over or self._is_stage_over

    @property
    def _enemy_types(self) -> tuple[int, ...]:
        """The kinds in the five enemy slots."""
        return tuple(self._read_mem(address) for address in _ENEMY_TYPES)
