"""Where the time of a loop goes, and seconds for people."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from trainer.machine.monitor import mark


class _Block:
    """Adds up the time of `with` blocks, which take turns: none within another.

    A generator of contextlib's takes 1.1 us a block, this .4 us; a batch has eight.
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

    Several threads may share one, each with names of its own: a name has a single
    writer, and its total only grows.
    """

    def __init__(self) -> None:
        """Starts the clock."""
        self._blocks: dict[str, _Block] = {}
        self._reported: dict[str, float] = {}
        self._since = time.perf_counter()

    def __call__(self, name: str) -> _Block:
        """Counts the time of a `with` block under `name`, which is its mark, too."""
        block = self._blocks.get(name)
        if block is None:
            block = self._blocks[name] = _Block(name)
        return block

    def skip(self, seconds: float) -> None:
        """Leaves the last `seconds` out of the time that shares are of."""
        self._since += seconds

    def shares(self) -> dict[str, float]:
        """Share of the wall-clock time since the last call, by name.

        The names of one thread add up to 1 where they cover its loop. A block
        counts when it ends; one that began before the last call may bring a share
        to its bound of 1.
        """
        now = time.perf_counter()
        # A copy first, as other threads add names. What never ended has no share.
        blocks = dict(self._blocks).items()
        seconds = {name: block.seconds for name, block in blocks if block.seconds}
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
