"""What has surely happened before what: streams, events, host threads, their waits.

A launch has a number, which rises. A clock says of each stream up to which launch its
work is known to be done: a stream has a clock (the work before its next launch), and so
has each host thread (the work that it has waited for, itself or through other threads).
An event is a copy of a clock. Two launches that touch the same memory must be ordered
by these clocks; how fast anything ran is of no importance.
"""

import itertools
import sys
import threading
from collections import Counter, defaultdict, namedtuple
from functools import cache
from pathlib import Path

# Work that a host thread gave to a stream; the clock of the thread goes on.
Launch = namedtuple("Launch", "name frames host")
_OWN = str(Path(__file__).parent)
_TREE = str(Path(__file__).parents[3]) + "/"


class Stream:
    """torch.cuda.Stream. Only `torch.cuda._sleep` takes time, `ms`."""

    def __init__(self, device=None, priority=0):
        self.priority, self.clock, self.ms = priority, {}, 0.0
        with lock:
            self.number = len(streams)
            streams.append(self)

    def wait_event(self, event):
        with lock:
            merge(self.clock, event.clock)
            self.ms = max(self.ms, event.ms)

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self):
        self.record_event().synchronize()


class Event:
    """torch.cuda.Event; it is reached as late as what the host knows allows."""

    def __init__(self, **options):
        self.clock, self.ms = {}, 0.0

    def record(self, stream=None):
        stream = stream or host.stream
        with lock:
            self.clock, self.ms = dict(stream.clock), stream.ms
            merge(self.clock, host.clock)

    def query(self):
        return all(host.clock.get(stream, 0) >= n for stream, n in self.clock.items())

    def synchronize(self):
        count("waits", "synchronize")
        wait(self.clock)

    def elapsed_time(self, other):
        return other.ms - self.ms


class _Host(threading.local):
    """A host thread: what it knows, its current stream, and what it records."""

    def __init__(self):
        self.clock, self.stream, self.graph = {}, streams[0], None


lock = threading.RLock()
streams: list[Stream] = []
default = Stream()
host = _Host()
launches: dict[int, Launch] = {}
#: Faults: their kind, what happened, and the lines of the tree that did it.
reports: list[tuple[str, str, list[str]]] = []
#: Of each thread: its launches, copies to the device, waits for it, and replays.
counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
#: Thread, kind, name and frame of all that is counted.
log = []
#: Called when a host thread has waited for the device.
on_wait = []
_numbers = itertools.count(1)
_seen = set()


def launch(name):
    """Numbers the next work of the current stream, behind all that the host knows."""
    number, clock = next(_numbers), host.stream.clock
    merge(clock, host.clock)
    clock[host.stream.number] = number
    launches[number] = Launch(name, frames(), host.clock)
    return number


def wait(*clocks):
    """The host thread has waited for all work of clocks."""
    with lock:
        for clock in clocks:
            merge(host.clock, clock)
        for call in on_wait:
            call()


def count(kind, name, times=1):
    """Counts launches, copies or waits of this thread."""
    thread = threading.current_thread().name
    counts[thread][kind] += times
    log.extend([(thread, kind, name, frames(1))] * times)


def report(kind, text, earlier=0):
    """Notes a fault, once for each place; `earlier` is the other launch."""
    where = lines(frames())
    key = kind, text.split(";")[0], *where[-1:]
    if key in _seen:
        return
    _seen.add(key)
    if earlier:
        other = launches[earlier]
        where += [f"  -- earlier, {other.name}:", *lines(other.frames[:3])]
    reports.append((kind, text, where))


def merge(into, other):
    """Adds to a clock what another one knows."""
    for stream, number in other.items():
        if into.get(stream, 0) < number:
            into[stream] = number


def frames(most=6):
    """Where this thread is in the tree, without the labels: the innermost first."""
    frame, found = sys._getframe(1), []
    while frame is not None and len(found) < most:
        if _in_tree(frame.f_code.co_filename):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return found


@cache
def _in_tree(path):
    return path.startswith(_TREE) and not path.startswith(_OWN)


def lines(found):
    """Frames as text, the outermost first."""
    return [
        f"{code.co_filename[len(_TREE) :]}:{line} {code.co_name}"
        for code, line in found[::-1]
    ]
