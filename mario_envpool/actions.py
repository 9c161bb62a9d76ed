"""The three action sets of gym-super-mario-bros 7.4.0, by name and in its order.

``action_set="simple"`` and ``custom_actions=list(SIMPLE_MOVEMENT)`` are equivalent.
A custom list is any list of such strings: button names (A, B, select, start, up,
down, left, right) joined by ``+``, or ``NOOP``.
"""

from __future__ import annotations

RIGHT_ONLY = ("NOOP", "right", "right+A", "right+B", "right+A+B")
SIMPLE_MOVEMENT = (*RIGHT_ONLY, "A", "left")
COMPLEX_MOVEMENT = (
    *SIMPLE_MOVEMENT,
    "left+A",
    "left+B",
    "left+A+B",
    "down",
    "up",
)
ACTION_SETS = {
    "right_only": RIGHT_ONLY,
    "simple": SIMPLE_MOVEMENT,
    "complex": COMPLEX_MOVEMENT,
}
