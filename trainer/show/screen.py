"""The layout of the live dashboard: panels and charts that fit a terminal.

80x24 shows every number; larger terminals also show charts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.text import Text

from trainer.machine.timings import format_seconds
from trainer.show import panels
from trainer.show.panels import CURVE, FRAME, LABEL, Drawing
from trainer.show.status import CHARTS, Status


def view(status: Status, width: int, height: int) -> RenderableType:
    """Draws a run."""
    if status.alarms and height > 12:
        lines = panels.alarms(status, width)
        whole = Layout(size=height)
        rest = Layout(_view(status, width, height - len(lines)))
        whole.split_column(Layout(Group(*lines), size=len(lines)), rest)
        return whole
    return _view(status, width, height)


def _view(status: Status, width: int, height: int) -> RenderableType:
    """See `view`; without alarms."""
    layout = Layout(size=height)
    header = Layout(_header(status, width), size=2)
    if width < 76 or height < 24:
        small = [(panels.progress, 9), (panels.speed, 9)]
        rows = [_row(status, width, size, [panel]) for panel, size in small]
        count = max(0, min(2, (height - 2) // 9))
        rest = [panels.messages] if height - 2 - 9 * count > 2 else []
        layout.split_column(
            header, *rows[:count], _row(status, width, height - 2 - 9 * count, rest)
        )
        return layout
    facts = [panels.progress, panels.speed, panels.learning, panels.storage]
    # Taller panels have room for the reason of the bottleneck and for more values.
    first, second = (12, 8) if height >= 38 else (9, 6)
    if width >= 160:
        rows = [_row(status, width, first, facts)]
    else:
        rows = [_row(status, width, first, facts[:2])]
        rows.append(_row(status, width, second, facts[2:]))
    left = height - 2 - sum(row.size or 0 for row in rows)
    bottom = max(7, min(9, left // 3))
    last: list[Drawing] = [panels.messages]
    if panels.level_names(status):
        last.insert(0, panels.levels)
    charts = _chart_rows(status, width, left - bottom)
    if not charts:
        bottom = left
    layout.split_column(header, *charts, *rows, _row(status, width, bottom, last))
    return layout


def _row(status: Status, width: int, size: int, drawings: Sequence[Drawing]) -> Layout:
    """Panels side by side, of equal width."""
    row = Layout(Text(""), size=size)
    frames = []
    for i, drawing in enumerate(drawings):
        share = width * (i + 1) // len(drawings) - width * i // len(drawings)
        # A frame and a space at each side.
        title, inside = drawing(status, share - 4, size - 2)
        panel = Panel(
            inside,
            title=Text(title, "bold default"),
            title_align="left",
            box=ROUNDED,
            border_style=FRAME,
            height=size,
        )
        frames.append(Layout(panel, size=share))
    if frames:
        row.split_row(*frames)
    return row


def _chart_rows(status: Status, width: int, room: int) -> list[Layout]:
    """Rows of charts, as many as fit."""
    if room < 6:
        return []
    drawings = [partial(panels.curve, name=name) for name in CHARTS]
    across = 3 if width >= 150 else 2
    count = 2 if room >= 18 else 1
    sizes = [room // count + (i < room % count) for i in range(count)]
    return [
        _row(status, width, size, drawings[across * i : across * (i + 1)])
        for i, size in enumerate(sizes)
    ]


def _header(status: Status, width: int) -> RenderableType:
    """Two lines: task and time; progress bar and remaining time."""
    seconds = status.seconds()
    end = f"{format_seconds(seconds)} "
    room = width - len(status.task) - len(end) - 4
    parts = status.about.split(", ")
    while parts and len(", ".join(parts)) > room:
        parts.pop()
    first = Text(f" {status.task}", "bold", no_wrap=True, overflow="crop")
    first.append(f"  {', '.join(parts)}", f"not bold {LABEL}")
    first.truncate(width - len(end) - 1)
    first.append(" " * (width - first.cell_len - len(end)) + end)
    limits = ((status.step, status.max_steps), (seconds, status.max_seconds))
    done = min(1.0, max((now / most for now, most in limits if most), default=0.0))
    left = "-" if status.end is None else format_seconds(status.end - seconds)
    most = f" of {status.max_steps:,}" if status.max_steps else ""
    counts = f"{status.step:,}{most} steps"
    tail = f" {done:4.0%}  {counts:>{2 * len(most) + 2 if most else 18}}"
    tail += f"  ETA {left:>8} "
    room = max(0, width - len(tail) - 1)
    filled = round(room * done)
    second = Text(" ", no_wrap=True, overflow="crop")
    second.append("━" * filled, CURVE).append("━" * (room - filled), FRAME)
    second.append(tail)
    return Group(first, second)
