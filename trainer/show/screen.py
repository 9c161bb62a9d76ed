"""The dashboard of a run: its state, and the picture of it that fits a terminal.

80x24 shows every number; larger terminals also show charts.
"""

from __future__ import annotations

import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainer.machine.timings import format_seconds
from trainer.show.display import RunInfo
from trainer.show.metrics import METRICS, Metric, bottleneck, in_panel, level_rates

Point = tuple[float, float]  # seconds since the start, value

# Parts of the time of a thread, and their colours.
_PARTS = {
    "wait": "#5f87af",
    "send": "#5fafaf",
    "copy": "#8787af",
    "act": "#d7af5f",
    "store": "#af875f",
    "learn": "#87af5f",
    "held": "#af5f5f",
}
# Greys that are readable on black and on white, which a terminal's greys often are not.
LABEL, FRAME, CURVE = "#8a8a8a", "#6c6c6c", "#87af5f"
ALARM = "bold white on #af0000"

# The bits of a Braille character's dots, by row and column.
_BRAILLE = np.array([[1, 8], [2, 16], [4, 32], [64, 128]])

CHARTS = [metric for metric in METRICS.values() if metric.chart]
# The lowest clear rate of several levels, which decides whether a run is solved.
WORST = METRICS["rollout/worst_clear_rate"]
_MAX_POINTS = 1024
# Points for the estimate of when the level is solved, and the smallest rise of the
# clear rate over these points that does not count as flat.
_TREND_POINTS, _LEAST_RISE = 8, 0.02


@dataclass
class Status:
    """The state of a run. One thread writes a field; other threads read it."""

    info: RunInfo
    started: float = field(default_factory=time.perf_counter)
    values: Mapping[str, float] = field(default_factory=dict)
    end: float | None = None
    """End of the run in seconds since the start, unless it is solved earlier."""
    curves: dict[str, tuple[Point, ...]] = field(default_factory=dict)
    saved: tuple[float, int, Path] | None = None
    """The last checkpoint: seconds since the start, step, path."""
    alarms: Mapping[str, str] = field(default_factory=dict)
    """Texts of the current alarms, by name."""
    messages: deque[tuple[float, str]] = field(
        default_factory=lambda: deque(maxlen=100)
    )

    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started

    def report(self, values: Mapping[str, float], eta_s: float) -> None:
        """Takes one point of the curves; see `Display.report`."""
        now = self.seconds()
        self.values, self.end = dict(values), now + eta_s
        for key in [metric.key for metric in (*CHARTS, WORST)]:
            value = values.get(key)
            if value is None or not np.isfinite(value):
                continue
            points = self.curves.get(key, ())
            if len(points) >= _MAX_POINTS:
                # Old points lose half of their resolution; recent points keep theirs.
                half = _MAX_POINTS // 2
                points = points[:half:2] + points[half:]
            self.curves[key] = (*points, (now, value))


def seconds_to_rate(points: Sequence[Point], target: float) -> float | None:
    """Seconds until a rate reaches a target, by the slope of its last points."""
    if points and points[-1][1] >= target:
        return 0.0
    recent = np.array(points[-_TREND_POINTS:])
    if len(recent) < 3 or np.ptp(recent[:, 0]) <= 0:
        return None
    slope, offset = np.polyfit(recent[:, 0] - recent[-1, 0], recent[:, 1], 1)
    if slope * np.ptp(recent[:, 0]) < _LEAST_RISE:
        return None
    return max(0.0, float((target - offset) / slope))


# -- the layout --------------------------------------------------------------

# Draws the inside of a panel with given columns and lines: a title and the lines.
_Drawing = Callable[[Status, int, int], tuple[str, RenderableType]]


def view(status: Status, width: int, height: int) -> RenderableType:
    """Draws a run."""
    parts = [Layout(_header(status), size=2)]
    if status.alarms and height > 12:
        alarms = [
            Text(f" ALARM  {name}: {text}", no_wrap=True, overflow="ellipsis")
            for name, text in list(status.alarms.items())[:3]
        ]
        lines = Padding(Group(*alarms), style=ALARM)
        parts.insert(0, Layout(lines, size=len(alarms)))
    room = height - sum(part.size or 0 for part in parts)
    layout = Layout(size=height)
    layout.split_column(*parts, *_rows(status, width, room))
    return layout


def _rows(status: Status, width: int, room: int) -> list[Layout]:
    """The rows of panels that fit."""
    if width < 76 or room < 22:
        count = max(0, min(2, room // 9))
        rows = [_row(status, width, 9, [panel]) for panel in (_progress, _speed)]
        left = room - 9 * count
        rest: list[_Drawing] = [_messages] if left > 2 else []
        return [*rows[:count], _row(status, width, left, rest)]
    facts = [_progress, _speed, _learning, _storage]
    # Taller panels have room for the reason of the bottleneck and for more values.
    first, second = (12, 8) if room >= 36 else (9, 6)
    if width >= 160:
        rows = [_row(status, width, first, facts)]
    else:
        rows = [_row(status, width, first, facts[:2])]
        rows.append(_row(status, width, second, facts[2:]))
    left = room - sum(row.size or 0 for row in rows)
    bottom = max(7, min(9, left // 3))
    charts = _chart_rows(status, width, left - bottom)
    last: list[_Drawing] = [_messages]
    if level_rates(status.values):
        last.insert(0, _levels)
    return [*charts, *rows, _row(status, width, bottom if charts else left, last)]


def _row(status: Status, width: int, size: int, drawings: Sequence[_Drawing]) -> Layout:
    """Panels side by side, of equal width."""
    row = Layout(Group(), size=size)
    frames = []
    for i, drawing in enumerate(drawings):
        share = width * (i + 1) // len(drawings) - width * i // len(drawings)
        # A frame and a space at each side.
        title, inside = drawing(status, share - 4, size - 2)
        heading = Text(title[:1].upper() + title[1:], "bold default")
        panel = Panel(
            inside, title=heading, title_align="left", border_style=FRAME, height=size
        )
        frames.append(Layout(panel, size=share))
    if frames:
        row.split_row(*frames)
    return row


def _chart_rows(status: Status, width: int, room: int) -> list[Layout]:
    """Rows of charts, as many as fit."""
    across = 3 if width >= 150 else 2
    count = 2 if room >= 18 else 1 if room >= 6 else 0
    rows = []
    for i in range(count):
        metrics = CHARTS[across * i : across * (i + 1)]
        charts = [partial(_curve, metric=metric) for metric in metrics]
        rows.append(_row(status, width, (room + i) // count, charts))
    return rows


def _header(status: Status) -> RenderableType:
    """Two lines: task and time; progress bar and remaining time."""
    config, seconds, step = status.info.config, status.seconds(), status.info.steps()
    first = Table.grid(expand=True, padding=(0, 1), pad_edge=True)
    first.add_column(no_wrap=True, overflow="crop", ratio=1)
    first.add_column(no_wrap=True)
    task = Text(status.info.task, "bold", overflow="crop")
    about = f"{config.model.name} on {status.info.hardware}, {config.mode}"
    task.append(f"  {about}", f"not bold {LABEL}")
    first.add_row(task, format_seconds(seconds))
    limits = ((step, config.max_steps), (seconds, config.max_seconds))
    done = min(1.0, max((now / most for now, most in limits if most), default=0.0))
    left = "-" if status.end is None else format_seconds(status.end - seconds)
    most = f" of {config.max_steps:,}" if config.max_steps else ""
    second = Table.grid(expand=True, padding=(0, 1), pad_edge=True)
    second.add_column(ratio=1)
    second.add_column(no_wrap=True)
    counts = f"{step:,}{most} steps"
    bar = ProgressBar(1, done, style=FRAME, complete_style=CURVE, finished_style=CURVE)
    longest = 2 * len(most) + 2 if most else 18
    second.add_row(bar, f"{done:4.0%}  {counts:>{longest}}  ETA {left:>8}")
    return Group(first, second)


# -- the panels --------------------------------------------------------------


def _facts(status: Status, metrics: Iterable[Metric], width: int) -> Text:
    """A line per metric: a label, the right-aligned value, and the curve if any."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for metric in metrics:
        if metric.optional and metric.key not in status.values:
            continue
        points = status.curves.get(metric.key, ())
        (curve,) = chart(points, max(0, width - 22), 1, metric.low, metric.high)
        text.append(f"{metric.label:<11}", LABEL)
        text.append(f"{metric.text(status.values):>9}  ").append(curve + "\n", CURVE)
    return text


def _sentences(status: Status, metrics: Iterable[Metric]) -> list[tuple[str, str]]:
    """The labels and the texts of lines, in which metrics of equal label stand."""
    return [
        (label, ", ".join(metric.text(status.values) for metric in group))
        for label, group in groupby(metrics, lambda metric: metric.label)
    ]


def _progress(status: Status, width: int, height: int) -> tuple[str, RenderableType]:
    """Results of the training episodes."""
    # A run of several levels is solved when the worst level is.
    rates = status.curves.get(WORST.key) or status.curves.get("rollout/clear_rate", ())
    rate = status.info.config.solve_rate
    wait = seconds_to_rate(rates, rate)
    solved = f"about {format_seconds(wait)}" if wait else "reached"
    text = _facts(status, in_panel("progress"), width)
    text.append(f"{f'{rate:.0%} in':<11}", LABEL)
    text.append(f"  {'-' if wait is None else solved}\n")
    text.append(_facts(status, in_panel("more progress"), width))
    return "Progress, last 100 episodes", text


def _shares(parts: Mapping[str, float], width: int) -> Text:
    """A bar of shares of a thread's time; the rest is dark."""
    text, used, total = Text(no_wrap=True), 0, 0.0
    for name, share in parts.items():
        total = min(total + share, 1.0)
        cells = round(width * total) - used
        text.append("█" * cells, _PARTS[name])
        used += cells
    return text.append("█" * (width - used), FRAME)


def _speed(status: Status, width: int, height: int) -> tuple[str, RenderableType]:
    """Speed, where the time goes, and the bottleneck."""
    values, overlapped = status.values, status.info.config.lag > 0
    parts = {m.label: values.get(m.key, 0.0) for m in in_panel("shares")}
    parts["store"] += parts.pop("explore")  # cells and snapshots
    learn = parts["learn"]
    del parts["learn" if overlapped else "held"]
    text = _facts(status, in_panel("speed"), width)
    text.append(_shares(parts, width)).append("\n")
    cell = width // 3
    for i, (name, share) in enumerate(parts.items()):
        text.append("■ ", _PARTS[name]).append(f"{name:<5}", LABEL)
        text.append(f"{share:4.0%}" if values else "   -")
        text.append(" " * (cell - 11) if i % 3 < 2 else "\n")
    if overlapped:
        text.append(f"{'learner':<11}", LABEL)
        text.append(_shares({"learn": learn}, width - 17))
        text.append(f" {learn:5.0%}\n")
    else:
        text.append(_lines(_sentences(status, in_panel("emulation"))))
    bound = bottleneck(values, overlapped) if values else "-"
    kind, _, reason = bound.partition(": ")
    text.append(f"{kind}\n", "bold")
    machine = [metric for metric in in_panel("hardware") if metric.key in values]
    for label, sentence in _sentences(status, machine):
        text.append(f"{label} ", LABEL).append(f"{sentence} ")
    return "Speed", Group(text, Text(reason, LABEL)) if height > 7 else text


def _learning(status: Status, width: int, height: int) -> tuple[str, RenderableType]:
    """Numbers of the last updates."""
    text, gap = Text(no_wrap=True), min(6, width - 34)
    for i, metric in enumerate(in_panel("learning")):
        value = metric.text(status.values)
        if len(value) > 7:
            value = f"{status.values[metric.key]:.1e}"
        text.append(f"{metric.label:<10}", LABEL).append(f"{value:>7}")
        text.append("\n" if i % 2 else " " * gap)
    return "Learning", text


def _lines(sentences: Iterable[tuple[str, str]]) -> Text:
    """Lines of a label and a text."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for label, sentence in sentences:
        text.append(f"{label:<11}", LABEL).append(f"{sentence}\n")
    return text


def _storage(status: Status, width: int, height: int) -> tuple[str, RenderableType]:
    """Starts, replay and checkpoint."""
    starts = [metric for metric in in_panel("starts") if metric.key in status.values]
    capacity = status.info.replay_capacity
    lines = _sentences(status, starts)
    if capacity:
        lines += _sentences(status, in_panel("replay"))
    if status.saved is None:
        lines.append(("checkpoint", "none yet"))
    else:
        when, step, path = status.saved
        ago = format_seconds(status.seconds() - when)
        lines.append(("checkpoint", f"{ago} ago, at {step:,}"))
        lines.append(("", path.name))
    lines += _sentences(status, in_panel("slots"))
    title = f"replay of {capacity:,}" if capacity else "no replay"
    return f"starts, {title}" if starts else title, _lines(lines)


def _levels(status: Status, width: int, height: int) -> tuple[str, RenderableType]:
    """The levels of the game; those without a clear rate have a dot."""
    cells = {f"{w}-{s}": Text("·", LABEL) for w in range(1, 9) for s in range(1, 5)}
    for level, rate in level_rates(status.values).items():
        cells[level] = Text(f"{100 * rate:.0f}", heat(rate))
    worlds = len({level.partition("-")[0] for level in cells})
    return "Levels, % cleared", level_grid(cells, max(4, min(7, (width - 3) // worlds)))


def level_grid(cells: Mapping[str, Text], width: int) -> Table:
    """Levels with a column of given width per world, and a line per stage."""
    levels = [tuple(map(int, level.split("-"))) for level in cells]
    worlds, stages = (sorted(set(numbers)) for numbers in zip(*levels, strict=True))
    table = Table(box=None, padding=0, header_style=LABEL)
    table.add_column(width=3, style=LABEL)
    for world in worlds:
        table.add_column(str(world), justify="right", width=width)
    for stage in stages:
        row = [cells.get(f"{world}-{stage}", "") for world in worlds]
        table.add_row(f"-{stage}", *row)
    return table


def heat(rate: float) -> str:
    """The colour of a rate: red at 0, yellow at 0.5, green at 1."""
    red, green = min(1.0, 2 - 2 * rate), min(1.0, 2 * rate)
    return f"#{95 + round(120 * red):02x}{95 + round(100 * green):02x}5f"


def _messages(status: Status, width: int, height: int) -> tuple[str, RenderableType]:
    """The last messages, as many as fit; long messages are wrapped."""
    rows: list[tuple[str, Text]] = []
    for when, text in reversed(list(status.messages)):
        height -= max(1, len(textwrap.wrap(text, max(1, width - 9))))
        if rows and height < 0:
            break
        rows.insert(0, (format_seconds(when), Text(text)))
    table = Table.grid(padding=(0, 2))
    table.add_column(width=7, justify="right", style=LABEL)
    for row in rows:
        table.add_row(*row)
    return "Messages", table


# -- curves ------------------------------------------------------------------


def _curve(
    status: Status, width: int, height: int, *, metric: Metric
) -> tuple[str, RenderableType]:
    """The chart of a metric."""
    points = status.curves.get(metric.key, ())
    if not points:
        return metric.title, Text("no value yet", LABEL)
    values = [value for _, value in points]
    bottom = min(values) if metric.low is None else metric.low
    top = max(values) if metric.high is None else metric.high
    margin = 8
    lines = chart(points, width - margin, height, bottom, top)
    labels = ["" for _ in lines]
    labels[-1], labels[0] = metric.form.format(bottom), metric.form.format(top)
    result = Text(no_wrap=True)
    for label, line in zip(labels, lines, strict=True):
        result.append(f"{label:>{margin - 1}} ", LABEL)
        result.append(line + "\n", CURVE)
    return f"{metric.title}  {metric.form.format(values[-1])}", result


@lru_cache(maxsize=64)  # curves are drawn more often than they change
def chart(
    points: tuple[Point, ...],
    width: int,
    height: int,
    low: float | None = None,
    high: float | None = None,
) -> list[str]:
    """Draws a curve as a line of Braille dots, 2x4 in a character."""
    if not points or width < 1:
        return [" " * width] * height
    seconds, values = np.array(points).T
    times = np.linspace(0, seconds[-1], 2 * width)
    bottom = values.min() if low is None else low
    top = max(values.max() if high is None else high, bottom + 1e-9)
    shares = ((np.interp(times, seconds, values) - bottom) / (top - bottom)).clip(0, 1)
    rows, old = 4 * height, None
    dots = np.zeros((rows, 2 * width), np.uint8)
    for column, row in enumerate(np.round((1 - shares) * (rows - 1)).astype(int)):
        near = row if old is None else old
        # A steep piece is a vertical line, without the dot that it starts from.
        start, end = min(row, near + (row > near)), max(row, near - (row < near))
        dots[start : end + 1, column] = 1
        old = row
    cells = dots.reshape(height, 4, width, 2).transpose(0, 2, 1, 3)
    codes = (cells * _BRAILLE).sum((2, 3), dtype=int)
    return ["".join(chr(0x2800 + c) if c else " " for c in line) for line in codes]
