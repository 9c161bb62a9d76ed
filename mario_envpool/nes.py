"""A bare NES console for tests and tools.

>>> from mario_envpool import nes, rom
>>> console = nes.Console(rom.load("vanilla"))
>>> for _ in range(60):
...     console.step(nes.START)
>>> picture = console.screen()  # (240, 256, 3) uint8

The console plays any NROM (mapper 0) cartridge. It has no sound. Training does not
use this module: environments run in the native pool.
"""

from __future__ import annotations

from typing import Final

from ._core import Console

# Bits of the pad byte that `Console.step` takes; add them up.
A: Final = 1
B: Final = 2
SELECT: Final = 4
START: Final = 8
UP: Final = 16
DOWN: Final = 32
LEFT: Final = 64
RIGHT: Final = 128
#: The same bits by the button names of actions, in the order of the bits.
BUTTONS: Final = {
    "A": A,
    "B": B,
    "select": SELECT,
    "start": START,
    "up": UP,
    "down": DOWN,
    "left": LEFT,
    "right": RIGHT,
}

__all__ = ["BUTTONS", "DOWN", "LEFT", "RIGHT", "SELECT", "START", "UP", "A", "B"]
__all__ += ["Console"]
