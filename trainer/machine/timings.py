"""Time spent in the parts of a loop, and seconds as text."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.machine.monitor import mark


class Timings:
    """Seconds spent in named parts of a loop.

    Several threads may share one object if each uses its own names: a name has a single
    writer, and its total only grows.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._reported: dict[str, float] = {}
        self._since = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Counts the time of a `with` block under `name`, also the name of its mark."""
        began = time.perf_counter()
        try:
            with mark(name):
                yield
        finally:
            spent = time.perf_counter() - began
            self._seconds[name] = self._seconds.get(name, 0.0) + spent

    def skip(self, seconds: float) -> None:
        """Excludes `seconds` from the time that shares refer to."""
        self._since += seconds

    def shares(self) -> dict[str, float]:
        """Share of the wall-clock time since the last call, by name, at most 1.

        The shares of one thread add up to 1 if they cover its loop.
        """
        now = time.perf_counter()
        seconds = dict(self._seconds)  # a copy, because other threads add names
        total = max(now - self._since, 1e-9)
        # A block counts when it ends; it may have begun before the last call.
        result = {
            name: min((value - self._reported.get(name, 0.0)) / total, 1.0)
            for name, value in seconds.items()
        }
        self._reported, self._since = seconds, now
        return result


def format_seconds(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss; "-" if they are infinite."""
    if math.isinf(seconds):
        return "-"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
