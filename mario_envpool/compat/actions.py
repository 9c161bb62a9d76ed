"""The three action lists of gym-super-mario-bros, for ``JoypadSpace``.

Lists of lists of button names, as upstream has them: ``SIMPLE_MOVEMENT[2]`` is
``["right", "A"]``.
"""

from __future__ import annotations

from .. import actions as _native


def _buttons(names: tuple[str, ...]) -> list[list[str]]:
    return [name.split("+") for name in names]


#: The five actions that only run to the right.
RIGHT_ONLY = _buttons(_native.RIGHT_ONLY)
#: Those, a jump on the spot, and left: seven.
SIMPLE_MOVEMENT = _buttons(_native.SIMPLE_MOVEMENT)
#: Twelve, with everything to the left, down and up.
COMPLEX_MOVEMENT = _buttons(_native.COMPLEX_MOVEMENT)

__all__ = ["COMPLEX_MOVEMENT", "RIGHT_ONLY", "SIMPLE_MOVEMENT"]
