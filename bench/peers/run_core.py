"""Runner of the bare console in play: frames with and without a picture.

Not a peer, but a part of our own step (bench/parts.py), measured the same way. Its
`steps` are frames. The option `draw` says whether each frame is drawn. The loop around
`Console.step` is the same both ways, so the difference is the picture.
"""

from __future__ import annotations

import workload

from mario_envpool import rom
from mario_envpool.nes import Console

FRAMES = 64  # between two looks at the clock
START = 8  # the Start button
OPER_MODE = 0x770  # 0: title, 1: play, 2: victory, 3: game over
BITS = {"A": 1, "B": 2, "up": 16, "down": 32, "left": 64, "right": 128}


class Frames:
    """Plays as the pool would: each action of the tape for FRAME_SKIP frames."""

    def __init__(self, request: workload.Request) -> None:
        """Powers a console on; the warm-up passes the title."""
        self.resets = 0
        image = rom.load(request.options.get("rom", "vanilla"), "")
        self._console = Console(image)
        self._draw = bool(request.options["draw"])
        table = workload.ACTION_SETS[workload.ACTIONS[request.actions]]
        buttons = [sum(BITS[name] for name in action) for action in table]
        tape = workload.action_tape(request.actions, 1, request.seed)[:, 0]
        self._tape = [buttons[action] for action in tape.tolist()]
        self._frame = 0

    def step(self) -> int:
        """FRAMES frames; Start is tapped wherever the game is not in play."""
        console, draw, tape = self._console, self._draw, self._tape
        ram = console.ram
        for frame in range(self._frame, self._frame + FRAMES):
            if ram[OPER_MODE] == 1:
                buttons = tape[frame // workload.FRAME_SKIP % workload.TAPE_STEPS]
            else:
                buttons = START if frame & 8 else 0
            console.step(buttons, draw)
        self._frame += FRAMES
        return FRAMES

    def close(self) -> None:
        """Nothing to free."""


if __name__ == "__main__":
    workload.serve(Frames)
