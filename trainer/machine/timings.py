"""Where the time of a loop goes, and seconds for people."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timings:
    """Seconds spent in named parts of a loop.

    Several threads may share one, each with names of its own: a name has a single
    writer, and its total only grows.
    """

    def __init__(self) -> None:
        """Starts the clock."""
        self._seconds: dict[str, float] = {}
        self._reported: dict[str, float] = {}
        self._since = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Counts the time of a `with` block under `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self._seconds[name] = self._seconds.get(name, 0.0) + spent

    def skip(self, seconds: float) -> None:
        """Leaves the last `seconds` out of the time that shares are of."""
        self._since += seconds

    def shares(self) -> dict[str, float]:
        """Share of the wall-clock time since the last call, by name.

        The names of one thread add up to 1 where they cover its loop. A block
        counts when it ends; one that began before the last call may bring a share
        to its bound of 1.
        """
        now, seconds = time.perf_counter(), dict(self._seconds)
        total = max(now - self._since, 1e-9)
        result = {
            name: min((value - self._reported.get(name, 0.0)) / total, 1.0)
            for name, value in seconds.items()
        }
        self._reported, self._since = seconds, now
        return result


def format_seconds(seconds: float) -> str:
    """m:ss or h:mm:ss."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
