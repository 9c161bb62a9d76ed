"""The picture of the live dashboard: what is known of a run, drawn to fit a terminal.

`Board` collects what a run reports; `view` draws it at any size. 80x24 shows every
figure; more room shows charts, too.
"""

from __future__ import annotations

import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.text import Text

from trainer.machine.timings import format_seconds
from trainer.show.bottleneck import verdict_of
from trainer.show.charts import Point, chart, sparkline

# Curves with a chart: their name in metrics.jsonl, its title, format and bounds;
# None: those of the values.
CHARTS: dict[str, tuple[str, str, float | None, float | None]] = {
    "rollout/clear_rate": ("Clear rate", ".0%", 0.0, 1.0),
    "rollout/best_x_50": ("Best x, mean of 50 episodes", ",.0f", 0.0, None),
    "rollout/return": ("Return", ".1f", None, None),
    "time/sps": ("Steps per second", ",.0f", 0.0, None),
    "learn/loss/entropy": ("Entropy", ".2f", 0.0, None),
    "learn/explained_variance": ("Explained variance", ".2f", 0.0, 1.0),
}
# The least clear rate of several levels: a run is solved by it.
_WORST = "rollout/worst_clear_rate"
# Parts of a thread's time and their colours; `waits` is what is left of the learner's.
_PARTS = {
    "wait": "#5f87af",
    "send": "#5fafaf",
    "copy": "#8787af",
    "act": "#d7af5f",
    "store": "#af875f",
    "learn": "#87af5f",
    "held": "#af5f5f",
}
# Greys that read on black and on white; the terminal's own are often neither.
_LABEL, _FRAME, _CURVE = "#8a8a8a", "#6c6c6c", "#87af5f"
_MAX_POINTS = 1024
# Points behind the estimate of when the level is solved, and the least rise of the
# clear rate over them that is not called flat.
_TREND_POINTS, _LEAST_RISE = 8, 0.02


@dataclass
class Board:
    """What is known of a run. One thread writes a field, others read it."""

    task: str
    about: str
    """Network and device, in a few words."""
    max_steps: int
    max_seconds: float = 0.0
    solve_rate: float = 0.9
    overlapped: bool = False
    replay_capacity: int = 0
    """Unrolls; 0: no replay."""
    started: float = field(default_factory=time.perf_counter)
    step: int = 0
    values: Mapping[str, float] = field(default_factory=dict)
    end: float | None = None
    """When the run ends, unless it is solved sooner, in seconds since the start."""
    curves: dict[str, tuple[Point, ...]] = field(default_factory=dict)
    saved: tuple[float, int, str] | None = None
    """Of the last checkpoint: seconds since the start, step, path."""
    messages: deque[tuple[float, str]] = field(
        default_factory=lambda: deque(maxlen=100)
    )

    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.started

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Takes one point of the curves; see `Display.report`."""
        now = self.seconds()
        self.step, self.values, self.end = step, dict(values), now + eta_s
        for name in (*CHARTS, _WORST):
            value = values.get(name)
            if value is None or not np.isfinite(value):
                continue
            points = self.curves.get(name, ())
            if len(points) >= _MAX_POINTS:
                # Old points lose half of their resolution, recent ones keep theirs.
                half = _MAX_POINTS // 2
                points = points[:half:2] + points[half:]
            self.curves[name] = (*points, (now, value))


def seconds_to_rate(points: Sequence[Point], target: float) -> float | None:
    """When a rate reaches a target, by the slope of its last points.

    Args:
        points: seconds and rate, in order of time.
        target: the rate to reach.

    Returns:
        Seconds from the last point, 0 if it is there; None when the rate is flat or
        falls, or too little is known.
    """
    if points and points[-1][1] >= target:
        return 0.0
    recent = np.array(points[-_TREND_POINTS:])
    if len(recent) < 3 or np.ptp(recent[:, 0]) <= 0:
        return None
    slope, offset = np.polyfit(recent[:, 0] - recent[-1, 0], recent[:, 1], 1)
    if slope * np.ptp(recent[:, 0]) < _LEAST_RISE:
        return None
    return max(0.0, float((target - offset) / slope))


def about_seconds(seconds: float) -> str:
    """A rough duration, rounded so that it does not change at every look."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    minutes = seconds / 60
    if minutes < 90:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h"


def view(board: Board, width: int, height: int) -> RenderableType:
    """Draws a run.

    Args:
        board: what is known of it.
        width: columns of the terminal.
        height: lines of the terminal, all of which are used.
    """
    layout = Layout(size=height)
    header = Layout(_header(board, width), size=2)
    if width < 76 or height < 24:
        small = [(_progress, 9), (_speed, 9)]
        rows = [_row(board, width, size, [panel]) for panel, size in small]
        count = max(0, min(2, (height - 2) // 9))
        rest = [_messages] if height - 2 - 9 * count > 2 else []
        layout.split_column(
            header, *rows[:count], _row(board, width, height - 2 - 9 * count, rest)
        )
        return layout
    facts = [_progress, _speed, _learning, _storage]
    # With room for the reason of the verdict, and for more of the rest.
    first, second = (12, 8) if height >= 38 else (9, 6)
    if width >= 160:
        rows = [_row(board, width, first, facts)]
    else:
        rows = [_row(board, width, first, facts[:2])]
        rows.append(_row(board, width, second, facts[2:]))
    left = height - 2 - sum(row.size or 0 for row in rows)
    bottom = max(7, min(9, left // 3))
    last = [_levels, _messages] if _level_names(board) else [_messages]
    charts = _chart_rows(board, width, left - bottom)
    if not charts:
        bottom = left
    layout.split_column(header, *charts, *rows, _row(board, width, bottom, last))
    return layout


# What draws the inside of a panel: a title and lines, given the room in it.
Drawing = Callable[[Board, int, int], tuple[str, RenderableType]]


def _row(board: Board, width: int, size: int, drawings: Sequence[Drawing]) -> Layout:
    """Panels side by side, of equal width."""
    row = Layout(Text(""), size=size)
    panels = []
    for i, drawing in enumerate(drawings):
        share = width * (i + 1) // len(drawings) - width * i // len(drawings)
        # A frame and a space at each side.
        title, inside = drawing(board, share - 4, size - 2)
        panel = Panel(
            inside,
            title=Text(title, "bold default"),
            title_align="left",
            box=ROUNDED,
            border_style=_FRAME,
            height=size,
        )
        panels.append(Layout(panel, size=share))
    if panels:
        row.split_row(*panels)
    return row


def _chart_rows(board: Board, width: int, room: int) -> list[Layout]:
    """As many charts as there is room for."""
    if room < 6:
        return []
    drawings = [partial(_chart, name=name) for name in CHARTS]
    across = 3 if width >= 150 else 2
    count = 2 if room >= 18 else 1
    sizes = [room // count + (i < room % count) for i in range(count)]
    return [
        _row(board, width, size, drawings[across * i : across * (i + 1)])
        for i, size in enumerate(sizes)
    ]


def _chart(
    board: Board, width: int, height: int, *, name: str
) -> tuple[str, RenderableType]:
    title, form, low, high = CHARTS[name]
    points = board.curves.get(name, ())
    if not points:
        return title, Text("no value yet", _LABEL)
    values = [value for _, value in points]
    bottom = min(values) if low is None else low
    top = max(values) if high is None else high
    margin = 8
    lines = chart(points, width - margin, height, bottom, top)
    labels = ["" for _ in lines]
    labels[-1], labels[0] = format(bottom, form), format(top, form)
    result = Text(no_wrap=True)
    for label, line in zip(labels, lines, strict=True):
        result.append(f"{label:>{margin - 1}} ", _LABEL)
        result.append(line + "\n", _CURVE)
    return f"{title}  {format(values[-1], form)}", result


def _header(board: Board, width: int) -> RenderableType:
    """Task and time; the bar and what is left."""
    seconds = board.seconds()
    end = f"{format_seconds(seconds)} "
    room = width - len(board.task) - len(end) - 4
    parts = board.about.split(", ")
    while parts and len(", ".join(parts)) > room:
        parts.pop()
    first = Text(f" {board.task}", "bold", no_wrap=True, overflow="crop")
    first.append(f"  {', '.join(parts)}", f"not bold {_LABEL}")
    first.truncate(width - len(end) - 1)
    first.append(" " * (width - first.cell_len - len(end)) + end)
    done = board.step / board.max_steps
    if board.max_seconds:
        done = max(done, seconds / board.max_seconds)
    done = min(done, 1.0)
    left = "-" if board.end is None else format_seconds(board.end - seconds)
    counts = f"{board.step:,} of {board.max_steps:,} steps"
    tail = f" {done:4.0%}  {counts:>{2 * len(f'{board.max_steps:,}') + 10}}"
    tail += f"  ETA {left:>8} "
    room = max(0, width - len(tail) - 1)
    filled = round(room * done)
    second = Text(" ", no_wrap=True, overflow="crop")
    second.append("━" * filled, _CURVE).append("━" * (room - filled), _FRAME)
    second.append(tail)
    return Group(first, second)


def _facts(rows: Iterable[tuple[str, str, str]], width: int) -> Text:
    """Lines of a label, a value flush right, and what is drawn behind it."""
    result = Text(no_wrap=True, overflow="ellipsis")
    for label, value, more in rows:
        result.append(f"{label:<11}", _LABEL).append(f"{value:>9}  ")
        result.append(more[: max(0, width - 22)] + "\n", _CURVE)
    return result


def _number(values: Mapping[str, float], name: str, form: str) -> str:
    """A value of the curves; "-" where there is none."""
    value = values.get(name)
    return "-" if value is None or not np.isfinite(value) else format(value, form)


def _progress(board: Board, width: int, height: int) -> tuple[str, RenderableType]:
    values = board.values
    room = width - 22

    def spark(name: str) -> str:
        _, _, low, high = CHARTS[name]
        return sparkline(board.curves.get(name, ()), room, low, high)

    # A run of several levels is at its end when the worst of them is.
    worst = board.curves.get(_WORST)
    rates = worst or board.curves.get("rollout/clear_rate", ())
    wait = seconds_to_rate(rates, board.solve_rate)
    solved = (
        "-" if wait is None else f"about {about_seconds(wait)}" if wait else "reached"
    )
    rows = [
        (label, _number(values, name, form), spark(name))
        for label, name, form in (
            ("clear rate", "rollout/clear_rate", ".0%"),
            ("best x", "rollout/best_x_50", ",.0f"),
            ("return", "rollout/return", ".2f"),
        )
    ]
    counts = {
        "furthest x": "rollout/best_x_run",
        "episodes": "rollout/episodes",
        "first clear": "rollout/first_clear_episode",
    }
    more = {
        "ep. steps": "rollout/episode_steps",
        "stuck envs": "rollout/stagnation_envs",
        "frames/s": "time/frames_per_s",
    }
    rows += [(k, _number(values, name, ",.0f"), "") for k, name in counts.items()]
    text = _facts(rows, width)
    text.append(f"{f'{board.solve_rate:.0%} in':<11}", _LABEL).append(f"  {solved}\n")
    rows = [(k, _number(values, name, ",.0f"), "") for k, name in more.items()]
    text.append(_facts(rows, width))
    return "Progress, last 100 episodes", text


def _shares(parts: Mapping[str, float], width: int) -> Text:
    """A bar of shares of a thread's time; what none of them covers is dark."""
    text, used, total = Text(no_wrap=True), 0, 0.0
    for name, share in parts.items():
        total = min(total + share, 1.0)
        cells = round(width * total) - used
        text.append("█" * cells, _PARTS[name])
        used += cells
    return text.append("█" * (width - used), _FRAME)


def _speed(board: Board, width: int, height: int) -> tuple[str, RenderableType]:
    values = board.values
    parts = {name: values.get(f"time/share_{name}", 0.0) for name in _PARTS}
    parts["held"] = values.get("time/share_wait_learner", 0.0)
    parts["store"] += values.get("time/share_explore", 0.0)  # cells and snapshots
    spark = sparkline(board.curves.get("time/sps", ()), width - 22, 0.0)
    text = _facts([("SPS", _number(values, "time/sps", ",.0f"), spark)], width)
    learn = parts["learn"]
    shown = [n for n in _PARTS if n != ("learn" if board.overlapped else "held")]
    text.append(_shares({name: parts[name] for name in shown}, width)).append("\n")
    cell = width // 3
    for i, name in enumerate(shown):
        text.append("■ ", _PARTS[name]).append(f"{name:<5}", _LABEL)
        text.append(f"{parts[name]:4.0%}" if values else "   -")
        text.append(" " * (cell - 11) if i % 3 < 2 else "\n")
    if board.overlapped:
        text.append(f"{'learner':<11}", _LABEL)
        text.append(_shares({"learn": learn}, width - 17))
        text.append(f" {learn:5.0%}\n")
    else:
        emulate = _number(values, "time/share_emulate", ".0%")
        text.append(f"{'emulation':<11}", _LABEL).append(f"{emulate:>9}")
        text.append("  of worker time\n", _LABEL)
    said = verdict_of(values, board.overlapped) if values else "-"
    kind, _, reason = said.partition(": ")
    text.append(f"{kind}\n", "bold")
    text.append(_hardware(values))
    return "Speed", Group(text, Text(reason, _LABEL)) if height > 7 else text


def _hardware(values: Mapping[str, float]) -> Text:
    """Processor and memory, and those of a GPU."""
    text = Text(no_wrap=True, overflow="ellipsis")

    def memory(name: str) -> str:
        size = values.get(name)
        return (
            ""
            if size is None
            else f", {size:.1f} GB"
            if size < 100
            else f", {size:.0f} GB"
        )

    text.append("CPU ", _LABEL).append(_number(values, "system/cpu_percent", ".0f"))
    text.append("%" if "system/cpu_percent" in values else "")
    text.append(memory("system/host_memory_gb"))
    if "system/gpu_utilisation" in values or "system/gpu_memory_gb" in values:
        text.append("  GPU ", _LABEL)
        text.append(_number(values, "system/gpu_utilisation", ".0%"))
        text.append(memory("system/gpu_memory_gb"))
    return text


def _learning(board: Board, width: int, height: int) -> tuple[str, RenderableType]:
    names = {
        "loss": ("learn/loss/total", ".4f"),
        "policy": ("learn/loss/policy", ".4f"),
        "value": ("learn/loss/value", ".4f"),
        "entropy": ("learn/loss/entropy", ".3f"),
        "KL": ("learn/loss/kl", ".4f"),
        "expl. var.": ("learn/explained_variance", ".2f"),
        "rate": ("learn/learning_rate", ".1e"),
        "gradient": ("learn/gradient_norm", ".2f"),
        "clipped": ("learn/loss/clipped", ".2f"),
        "lag": ("learn/policy_lag", ".1f"),
        "advantage": ("learn/advantage", ".3f"),
        "updates": ("learn/updates", ",.0f"),
    }
    text, gap = Text(no_wrap=True), min(6, width - 34)
    for i, (label, (name, form)) in enumerate(names.items()):
        value = _number(board.values, name, form)
        if len(value) > 7:
            value = _number(board.values, name, ".1e")
        text.append(f"{label:<10}", _LABEL).append(f"{value:>7}")
        text.append("\n" if i % 2 else " " * gap)
    return "Learning", text


def _storage(board: Board, width: int, height: int) -> tuple[str, RenderableType]:
    """What is kept; what there is most to say of comes first."""
    values = board.values
    lines: list[tuple[str, str]] = []
    title = "Replay and checkpoint"
    if "explore/snapshots" in values:
        title = "Frontier, replay, checkpoint"
        places = _number(values, "explore/snapshots", ",.0f")
        x = _number(values, "explore/frontier_x", ",.0f")
        share = _number(values, "explore/frontier_share", ".0%")
        cleared = _number(values, "explore/frontier_clear_rate", ".0%")
        lines.append(("frontier", f"{places} places, {x} px in"))
        lines.append(("", f"{share} of starts, {cleared} clear"))
    if board.replay_capacity:
        held = _number(values, "replay/unrolls", ",.0f")
        share = _number(values, "learn/replay/share", ".0%")
        age = _number(values, "learn/replay/age", ".1f")
        kept = _number(values, "learn/replay/kept", ".0%")
        lines.append(("replay", f"{held}/{board.replay_capacity:,}, age {age}"))
        lines.append(("", f"{share} of batch, {kept} kept"))
    if board.saved is None:
        lines.append(("checkpoint", "none yet"))
    else:
        when, step, path = board.saved
        ago = format_seconds(board.seconds() - when)
        lines.append(("checkpoint", f"{ago} ago, at {step:,}"))
        lines.append(("", _shortened(path, width - 11)))
    if not board.replay_capacity:
        lines.append(("replay", "off"))
    lines.append(("slots", _number(values, "queue/free_slots", ",.0f") + " free"))
    text = Text(no_wrap=True, overflow="ellipsis")
    for label, value in lines:
        text.append(f"{label:<11}", _LABEL).append(f"{value}\n")
    return title, text


def _shortened(path: str, width: int) -> str:
    """A path without its first folders, where it is too long."""
    parts = Path(path).parts
    while len(path) > width and len(parts) > 1:
        parts = parts[1:]
        path = "/".join(("…", *parts))
    return path


def _level_names(board: Board) -> list[str]:
    """The levels that have a rate of their own."""
    return [k.removeprefix("levels/") for k in board.values if k.startswith("levels/")]


def _levels(board: Board, width: int, height: int) -> tuple[str, RenderableType]:
    """A column for each world, a line for each stage."""
    names = [tuple(map(int, name.split("-"))) for name in _level_names(board)]
    worlds = range(1, max(8, *(world for world, _ in names)) + 1)
    cell = max(4, min(7, (width - 3) // len(worlds)))
    text = Text(f"{'':3}", no_wrap=True, overflow="crop")
    text.append("".join(f"{world:>{cell}}" for world in worlds) + "\n", _LABEL)
    for stage in range(1, max(4, *(stage for _, stage in names)) + 1):
        text.append(f"-{stage:<2}", _LABEL)
        for world in worlds:
            rate = board.values.get(f"levels/{world}-{stage}")
            if rate is None:
                text.append(f"{'·':>{cell}}", _LABEL)
            else:
                text.append(f"{100 * rate:{cell}.0f}", _heat(rate))
        text.append("\n")
    return "Levels, % cleared", text


def _heat(rate: float) -> str:
    """Red at 0, yellow at a half, green at 1."""
    red, green = min(1.0, 2 - 2 * rate), min(1.0, 2 * rate)
    return f"#{95 + round(120 * red):02x}{95 + round(100 * green):02x}5f"


def _messages(board: Board, width: int, height: int) -> tuple[str, RenderableType]:
    """The last ones, as many as fit; what is long goes on below."""
    lines: list[Text] = []
    for when, said in reversed(list(board.messages)):
        parts = textwrap.wrap(said, max(1, width - 9)) or [""]
        if lines and len(lines) + len(parts) > height:
            break
        stamps = [format_seconds(when)] + [""] * len(parts)
        message = [
            Text(f"{stamp:>7}  ", _LABEL, no_wrap=True).append(part, "default")
            for stamp, part in zip(stamps, parts, strict=False)
        ]
        lines = message[:height] + lines
    return "Messages", Group(*lines)
