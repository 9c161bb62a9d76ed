"""What stands in where episodes are watched: a screen."""

from __future__ import annotations

from trainer.film.live import QuitError


class FakeScreen:
    """Notes what is shown; presses the given buttons; quits in the end."""

    def __init__(self, pressed=0, last=10**9):
        self.pressed, self.last = pressed, last
        self.readings, self.closed = [], 0

    def show(self, frame, reading):
        assert frame.shape == (240, 256, 3)
        self.readings.append(reading)
        if len(self.readings) > self.last:
            raise QuitError

    def buttons(self):
        return self.pressed

    def close(self):
        self.closed += 1
