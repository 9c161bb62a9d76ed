"""Time spent in the parts of a loop, and seconds as text."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from trainer.machine.monitor import mark


class _Block:
    """Adds up the time of `with` blocks, which must not be nested.

    A block takes 0.4 us, with a contextlib generator 1.1 us; a batch has eight blocks.
    """

    __slots__ = ("_mark", "_name", "_start", "seconds")

    def __init__(self, name: str) -> None:
        self.seconds = 0.0
        self._name, self._start = name, 0.0
        self._mark: AbstractContextManager[Any] = nullcontext()

    def __enter__(self) -> None:
        self._start = time.perf_counter()
        self._mark = mark(self._name)
        self._mark.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._mark.__exit__(*error)
        self.seconds += time.perf_counter() - self._start


class Timings:
    """Seconds spent in named parts of a loop.

    Several threads may share one object if each uses its own names: a name has a single
    writer, and its total only grows.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, _Block] = {}
        self._reported: dict[str, float] = {}
        self._since = time.perf_counter()

    def __call__(self, name: str) -> _Block:
        """Counts the time of a `with` block under `name`, also the name of its mark."""
        block = self._blocks.get(name)
        if block is None:
            block = self._blocks[name] = _Block(name)
        return block

    def skip(self, seconds: float) -> None:
        """Excludes `seconds` from the time that shares refer to."""
        self._since += seconds

    def shares(self) -> dict[str, float]:
        """Share of the wall-clock time since the last call, by name, at most 1.

        The shares of one thread add up to 1 if they cover its loop.
        """
        now = time.perf_counter()
        blocks = dict(self._blocks).items()  # a copy, because other threads add names
        seconds = {name: block.seconds for name, block in blocks if block.seconds}
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
