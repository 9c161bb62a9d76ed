"""What has surely happened before what: streams, host threads, and their waits.

A launch has a number, which rises. A clock says of each stream up to which launch its
work is known to be done: a stream has a clock (the work before its next launch), and so
has each host thread (the work that it has waited for, itself or through other threads).
An event is a copy of a clock. Two launches that touch the same memory must be ordered
by these clocks; how fast anything ran is of no importance.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Clock = dict[int, int]

_OWN = str(Path(__file__).parent)
_TREE = str(Path(__file__).parents[3]) + "/"
_FRAMES = 6


class Report(NamedTuple):
    """A fault: its kind, what happened, and the lines of the trainer that did it."""

    kind: str
    text: str
    where: list[str]


class Launch(NamedTuple):
    """Work that a host thread gave to a stream."""

    name: str
    where: list[str]
    host: Clock  # of the thread; it goes on


class _Host(threading.local):
    """The state of one host thread."""

    def __init__(self) -> None:
        self.clock: Clock = {}


class Order:
    """The clocks, the launches so far, and the faults that they show."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.host = _Host()
        self.streams: dict[int, Clock] = {}
        self.launches: dict[int, Launch] = {}
        self.reports: list[Report] = []
        #: Of each thread: its launches, copies to the device, and waits for it.
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        #: Called when a host thread has waited for the device.
        self.on_wait: list[Callable[[], None]] = []
        #: Thread, kind, name and line of all that is counted, if it is a list.
        self.log: list[tuple[str, ...]] | None = None
        self._numbers = itertools.count(1)
        self._seen: set[tuple[str, str, str]] = set()

    def launch(self, stream: int, name: str) -> int:
        """Numbers the next work of a stream, which follows all that the host knows."""
        number = next(self._numbers)
        merge(self.streams[stream], self.host.clock)
        self.streams[stream][stream] = number
        self.launches[number] = Launch(name, stack(), self.host.clock)
        return number

    def wait(self, clock: Clock) -> None:
        """The host thread has waited for all work of a clock."""
        merge(self.host.clock, clock)
        for call in self.on_wait:
            call()

    def knows(self, clock: Clock) -> bool:
        """Whether the host thread has waited for all work of a clock."""
        known = self.host.clock
        return all(known.get(stream, 0) >= n for stream, n in clock.items())

    def count(self, kind: str, name: str) -> None:
        """Counts a launch, a copy or a wait of this thread."""
        thread = threading.current_thread().name
        self.counts[thread][kind] += 1
        if self.log is not None:
            self.log.append((thread, kind, name, *stack()[-1:]))

    def report(self, kind: str, text: str, earlier: int = 0) -> None:
        """Notes a fault, once for each place; `earlier` is the other launch."""
        where = stack()
        key = (kind, text.split(";")[0], (where or [""])[-1])
        if key in self._seen:
            return
        self._seen.add(key)
        if earlier:
            launch = self.launches[earlier]
            where = [*where, f"  -- earlier, {launch.name}:", *launch.where[-3:]]
        self.reports.append(Report(kind, text, where))


def merge(into: Clock, other: Clock) -> None:
    """Adds to a clock what another one knows."""
    for stream, number in other.items():
        if into.get(stream, 0) < number:
            into[stream] = number


def stack() -> list[str]:
    """The innermost lines of the tree that are running, but for those of the labels."""
    frame, lines = sys._getframe(1), []
    while frame is not None and len(lines) < _FRAMES:
        code = frame.f_code
        path = code.co_filename
        if path.startswith(_TREE) and not path.startswith(_OWN):
            lines.append(f"{path[len(_TREE) :]}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return lines[::-1]
