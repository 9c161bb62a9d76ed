"""What all cores do over some updates of a run: which threads work, and which wait.

A separate thread reads the CPU time of every thread about every half millisecond. The
main thread also reads it at every mark (`trainer.machine.monitor.mark`), for a more
precise share of each phase. The clock is the thread's own (clock_gettime), which is
exact while a thread runs; /proc/self/task/*/schedstat has the same time, but is updated
only at ticks and takes 40 times as long to read.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from timeline_figure import draw

from trainer.config.schema import RunConfig
from trainer.machine import monitor
from trainer.machine.cpu import available_cores, thread_ids
from trainer.machine.cuda import own_stream, wait_for_device
from trainer.machine.device import choose_device
from trainer.session.build import Run
from trainer.session.training import open_run, update

Floats = npt.NDArray[np.float64]
Path_ = tuple[str, ...]  # marks that are open, the outermost first

KINDS = ("main", "collector", "shards", "emulation", "other")
INTERVAL_S = 5e-4
# Shortest time between a mark's sample and the sample before it.
_FRESH_S = 1e-4
_TASKS = Path("/proc/self/task")
WARM_UP = 3

# Marks in which the main thread waits for other threads.
_WAITS = ("wait", "wait_batch", "gradients")
_STALLED = "main thread blocked: no core, or Python's lock"
_OUTSIDE = "one thread: between two updates"
_CAUSES = {
    ("collect", "wait"): "emulation: a group's last environments",
    ("collect", "wait_batch"): "main waits for the collector",
    ("collect", "act"): "one thread acts, too few environments run",
    ("collect", "send"): "one thread sends, too few environments run",
    ("collect", "copy"): "one thread copies, too few environments run",
    ("collect", "store"): "one thread stores, too few environments run",
    ("collect", "explore"): "one thread explores, too few environments run",
    ("collect",): "one thread reads info, too few environments run",
    ("learn", "gradients"): "shards start late, or wait for each other",
    ("learn", "optimizer"): "one thread: the optimiser's step",
    ("learn", "targets"): "one thread: targets",
    ("learn",): "one thread: batches and minibatches",
}


class Sampler:
    """CPU time of every thread of this process, about every half millisecond.

    The sampler looks for new threads every 100 samples. The clock of a new thread has
    its earlier CPU time, but a thread that ended before is missed.
    """

    def __init__(self) -> None:
        """Finds the threads; reading begins with the `with` block."""
        self._threads: tuple[int, ...] = ()
        self._samples: list[tuple[float, tuple[int, ...], list[int]]] = []
        self._last = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        """Starts the thread."""
        self._thread.start()
        self._find()
        self.take()
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the thread."""
        self.take()
        self._stop.set()
        self._thread.join()

    @property
    def id(self) -> int:
        """Id of the thread that samples."""
        assert self._thread.native_id is not None
        return self._thread.native_id

    def _run(self) -> None:
        for count in range(sys.maxsize):
            if self._stop.is_set():
                return
            if count % 100 == 0:
                self._find()
            self.take()
            time.sleep(INTERVAL_S)

    def _find(self) -> None:
        self._threads = tuple(sorted(int(name) for name in os.listdir(_TASKS)))

    def take(self) -> None:
        """Reads all clocks."""
        threads, start = self._threads, time.perf_counter()
        try:
            clocks = [time.clock_gettime_ns(_clock(thread)) for thread in threads]
        except OSError:  # a thread has ended
            self._find()
            return
        self._last = time.perf_counter()
        self._samples.append(((start + self._last) / 2, threads, clocks))

    def take_unless_fresh(self) -> None:
        """Reads all clocks, unless they have just been read."""
        if time.perf_counter() - self._last > _FRESH_S:
            self.take()

    def curves(self) -> dict[int, tuple[Floats, Floats]]:
        """For each thread: sample times (s), and CPU time (s) since the beginning."""
        found: dict[int, list[tuple[float, int]]] = {}
        # Two threads take samples, and one may overtake the other.
        for when, threads, clocks in sorted(self._samples, key=lambda s: s[0]):
            for thread, clock in zip(threads, clocks, strict=True):
                found.setdefault(thread, []).append((when, clock))
        began = min(when for when, *_ in self._samples)
        curves = {}
        for thread, points in found.items():
            times, spent = (np.array(x) for x in zip(*points, strict=True))
            if times[0] > began:  # a new thread, whose clock began at 0
                times, spent = np.append(began, times), np.append(0, spent)
            spent = np.maximum.accumulate(spent)
            curves[thread] = times, (spent - spent[0]) * 1e-9
        return curves


def _clock(thread: int) -> int:
    """Linux's clock id of a thread, as from pthread_getcpuclockid."""
    return ~thread << 3 | 6


class Phases:
    """Which marks of one thread are open, and since when."""

    def __init__(self, sampler: Sampler) -> None:
        """Watches the calling thread."""
        self._thread = threading.get_ident()
        self._sampler = sampler
        self._open: Path_ = ()
        self.changes: list[tuple[float, Path_]] = []
        self.seconds = 0.0  # spent here

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """What `mark` opens."""
        if threading.get_ident() != self._thread:
            return nullcontext()
        return self._phase(name)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        before = self._open
        self._change((*before, name))
        try:
            yield
        finally:
            self._change(before)

    def _change(self, now: Path_) -> None:
        when = time.perf_counter()
        self._sampler.take_unless_fresh()
        self._open = now
        self.changes.append((when, now))
        self.seconds += time.perf_counter() - when


@dataclass(frozen=True)
class Recording:
    """Some updates of a run.

    Attributes:
        cores: number of cores that the process may use.
        steps: environment steps of all updates.
        updates: beginning of each update (s), and the end of the last.
        edges: (n + 1,) times at which phases begin and end (s).
        paths: the open marks of each of the n phases.
        curves: times and CPU time (s) of each thread.
        kinds: kind of each thread, one of KINDS.
        names: readable name of each thread.
        taken: core seconds of other processes, which count as idle time here.
        lines: further lines to print.
    """

    cores: int
    steps: int
    updates: list[float]
    edges: Floats
    paths: list[Path_]
    curves: dict[int, tuple[Floats, Floats]]
    kinds: dict[int, str]
    names: dict[int, str]
    taken: float
    lines: list[str]

    def busy(self, thread: int, edges: Floats) -> Floats:
        """Seconds (n,) that a thread ran in each of n slices."""
        return np.diff(np.interp(edges, *self.curves[thread]))

    def busy_by_kind(self, edges: Floats) -> dict[str, Floats]:
        """Seconds (n,) that all threads of each kind ran in each of n slices."""
        result: dict[str, Floats] = {}
        for kind in KINDS:
            threads = [t for t, k in self.kinds.items() if k == kind]
            if threads:
                result[kind] = sum(
                    (self.busy(thread, edges) for thread in threads),
                    np.zeros(len(edges) - 1),
                )
        return result


@dataclass
class Row:
    """A phase: its wall time, and the CPU time of each kind of thread (s)."""

    wall: float
    busy: dict[str, float]

    def idle(self, cores: int) -> float:
        """Core seconds in which no thread of this process ran."""
        return cores * self.wall - sum(self.busy.values())


def rows_of(recording: Recording) -> dict[Path_, Row]:
    """Each phase without those inside it, in order of appearance."""
    walls = np.diff(recording.edges)
    busy = recording.busy_by_kind(recording.edges)
    rows: dict[Path_, Row] = {}
    for number, path in enumerate(recording.paths):
        row = rows.setdefault(path[:2], Row(0.0, dict.fromkeys(busy, 0.0)))
        row.wall += walls[number]
        for kind, seconds in busy.items():
            row.busy[kind] += seconds[number]
    return rows


def total(rows: Mapping[Path_, Row], top: str | None = None) -> Row:
    """The sum of phases: all, or those inside the mark `top`."""
    some = [row for path, row in rows.items() if top is None or path[:1] == (top,)]
    kinds = next(iter(rows.values())).busy
    return Row(
        sum(row.wall for row in some),
        {kind: sum(row.busy[kind] for row in some) for kind in kinds},
    )


def causes_of(rows: Mapping[Path_, Row], cores: int) -> dict[str, float]:
    """Idle core seconds by cause, the largest first; their sum is the idle time."""
    causes: dict[str, float] = {}
    for path, row in rows.items():
        idle = row.idle(cores)
        # In a phase of the main thread's own work, its absence is a separate cause.
        stalled = 0.0
        if not (path and path[-1] in _WAITS):
            stalled = min(max(row.wall - row.busy["main"], 0.0), max(idle, 0.0))
        name = _CAUSES.get(
            path, f"one thread: {' / '.join(path)}" if path else _OUTSIDE
        )
        for cause, seconds in ((_STALLED, stalled), (name, idle - stalled)):
            causes[cause] = causes.get(cause, 0.0) + seconds
    return dict(sorted(causes.items(), key=lambda item: -item[1]))


def record(run: Run, updates: int) -> Recording:
    """Makes updates of a started run, after a warm-up."""
    for _ in range(WARM_UP):
        update(run)
    wait_for_device(run.device)
    workers = run.monitor.workers
    steps, delays, outside = run.collector.steps, _delays(), _machine_busy()
    sampler = Sampler()
    phases = Phases(sampler)
    began = []
    monitor.open_range = phases
    with sampler:
        for _ in range(updates):
            began.append(time.perf_counter())
            update(run)
        began.append(time.perf_counter())
    monitor.open_range = None
    steps = run.collector.steps - steps
    delays_after, outside_after = _delays(), _machine_busy()
    curves = sampler.curves()
    kinds, names = _kinds(curves, workers, sampler.id)
    edges = [began[0], *(when for when, _ in phases.changes), began[-1]]
    cores, wall = available_cores(), began[-1] - began[0]
    spent = {thread: float(values[-1]) for thread, (_, values) in curves.items()}
    taken = max(outside_after - outside - sum(spent.values()), 0.0)
    waited: dict[str, float] = {}
    for thread, kind in kinds.items():
        more = delays_after.get(thread, 0.0) - delays.get(thread, 0.0)
        waited[kind] = waited.get(kind, 0.0) + more * 1e3 / updates
    listed = ", ".join(f"{kind} {ms:.1f}" for kind, ms in waited.items())
    lines = [
        f"ready to run but without a core, ms per update: {listed}",
        f"the sampler ran {spent[sampler.id] / wall:.1%} of the time (in `other`), "
        f"and marks took {phases.seconds / wall:.1%} of the main thread's time",
    ]
    paths = [(), *(path for _, path in phases.changes)]
    return Recording(
        cores, steps, began, np.array(edges), paths, curves, kinds, names, taken, lines
    )


def _kinds(
    curves: Mapping[int, object], workers: frozenset[int], sampler: int
) -> tuple[dict[int, str], dict[int, str]]:
    """Kind and name of each thread, in order of KINDS."""
    python = {thread.native_id: thread.name for thread in threading.enumerate()}
    kinds: dict[int, str] = {}
    names: dict[int, str] = {}
    for thread in curves:
        name = python.get(thread) or _comm(thread)
        kind = "other"
        if thread == threading.get_native_id():
            kind = name = "main"
        elif thread in workers:
            kind = "emulation"
            name = f"emulation {sum(k == kind for k in kinds.values()) + 1}"
        elif name.startswith("shard_"):
            kind, name = "shards", f"shard {int(name.removeprefix('shard_')) + 1}"
        elif name == "collector":
            kind = "collector"
        elif thread == sampler:
            name = "sampler"
        kinds[thread], names[thread] = kind, name
    order = sorted(kinds, key=lambda thread: (KINDS.index(kinds[thread]), thread))
    return {t: kinds[t] for t in order}, {t: names[t] for t in order}


def _comm(thread: int) -> str:
    try:
        return (_TASKS / str(thread) / "comm").read_text().strip()
    except OSError:
        return "ended"


def _delays() -> dict[int, float]:
    """Seconds that each thread was ready to run but had no core."""
    result = {}
    for thread in thread_ids():
        try:
            fields = (_TASKS / str(thread) / "schedstat").read_text().split()
        except OSError:
            continue
        result[thread] = int(fields[1]) * 1e-9
    return result


def _machine_busy() -> float:
    """Seconds that all processes ran on the cores of this process."""
    ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in ours:
            user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, fields)
            ticks += user + nice + system + irq + softirq
    return ticks / os.sysconf("SC_CLK_TCK")


def phase_table(recording: Recording, rows: Mapping[Path_, Row]) -> Table:
    """Wall time of every phase and the cores' work in it; the last row is the total."""
    updates = len(recording.updates) - 1
    everything = total(rows)
    table = Table(
        title=f"ms per update (of {updates}), us per step, and % of the cores",
        box=SIMPLE,
        padding=(0, 0, 0, 1),
    )
    table.add_column("phase", no_wrap=True)
    for column in ("ms", "us/step", *everything.busy, "idle"):
        table.add_column(column, justify="right")

    def add(name: str, row: Row, style: str = "") -> None:
        time_of_cores = max(recording.cores * row.wall, 1e-12)
        shares = [*row.busy.values(), row.idle(recording.cores)]
        table.add_row(
            name,
            f"{row.wall * 1e3 / updates:.1f}",
            f"{row.wall * 1e6 / max(recording.steps, 1):.2f}",
            *(f"{share / time_of_cores * 100:.1f}" for share in shares),
            style=style,
        )

    for top in dict.fromkeys(path[0] for path in rows if path):
        inside = {path: row for path, row in rows.items() if path[:1] == (top,)}
        add(top, total(rows, top), "bold")
        for path, row in inside.items() if len(inside) > 1 else ():
            add("  " + (path[1] if len(path) > 1 else "rest"), row)
    if () in rows:
        add("between", rows[()], "bold")
    table.add_section()
    add("update", everything, "bold")
    return table


def cause_table(recording: Recording, rows: Mapping[Path_, Row]) -> Table:
    """The causes of idle time."""
    updates = len(recording.updates) - 1
    everything = total(rows)
    whole = recording.cores * everything.wall
    table = Table(title="idle time of the cores by cause, per update", box=SIMPLE)
    table.add_column("cause", no_wrap=True)
    table.add_column("core ms", justify="right")
    table.add_column("of all", justify="right")
    for cause, seconds in causes_of(rows, recording.cores).items():
        if abs(seconds) >= 5e-4 * whole:
            table.add_row(
                cause, f"{seconds * 1e3 / updates:.1f}", f"{seconds / whole:.1%}"
            )
    idle = everything.idle(recording.cores)
    table.add_section()
    for name, seconds, style in (
        ("all", idle, "bold"),
        ("used by other processes", recording.taken, ""),
    ):
        table.add_row(
            name,
            f"{seconds * 1e3 / updates:.1f}",
            f"{seconds / whole:.1%}",
            style=style,
        )
    return table


def run_timeline(
    config: RunConfig, path: Path, updates: int, console: Console
) -> Recording:
    """Records a run, prints the tables and draws the figure.

    Args:
        config: configuration of the run; its folder is temporary.
        path: path of the figure.
        updates: number of updates to record.
        console: console to print to.

    Raises:
        RuntimeError: not on Linux.
    """
    if not sys.platform.startswith("linux"):
        raise RuntimeError("--timeline needs Linux, because it reads clocks of threads")
    with (
        tempfile.TemporaryDirectory() as folder,
        own_stream(choose_device(config.device)),
        closing(open_run(replace(config, run_dir=Path(folder)))) as run,
    ):
        run.start()
        recording = record(run, updates)
    rows = rows_of(recording)
    console.print(phase_table(recording, rows))
    console.print(cause_table(recording, rows))
    for line in recording.lines:
        console.print(line, highlight=False)
    draw(recording, path)
    console.print(f"wrote {path}", highlight=False)
    return recording
