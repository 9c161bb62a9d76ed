"""The three action lists of gym-super-mario-bros, for ``JoypadSpace``.

They are lists of lists of button names, as upstream: ``SIMPLE_MOVEMENT[2]`` is
``["right", "A"]``.
"""

from __future__ import annotations

from .. import actions as _native


def _buttons(names: tuple[str, ...]) -> list[list[str]]:
    return [name.split("+") for name in names]


#: Five actions, only to the right.
RIGHT_ONLY = _buttons(_native.RIGHT_ONLY)
#: Seven actions: the five, a jump on the spot, and left.
SIMPLE_MOVEMENT = _buttons(_native.SIMPLE_MOVEMENT)
#: Twelve actions: the seven, and jumps and runs to the left, down and up.
COMPLEX_MOVEMENT = _buttons(_native.COMPLEX_MOVEMENT)

__all__ = ["COMPLEX_MOVEMENT", "RIGHT_ONLY", "SIMPLE_MOVEMENT"]
