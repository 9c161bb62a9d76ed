"""The figure of a timeline: phases, busy cores and threads over one update."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

if TYPE_CHECKING:
    from timeline import Floats, Recording

_KINDS = {
    "main": "#1b4f8a",
    "collector": "#7b3294",
    "shards": "#4d9bd6",
    "emulation": "#2b8a3e",
    "other": "#8a8a8a",
}
# Colours of phases by their innermost name; other phases are grey.
_PHASES = {
    "wait": "#d9ead3",
    "wait_batch": "#d9ead3",
    "act": "#f4a259",
    "send": "#c1121f",
    "copy": "#8d6a9f",
    "store": "#f2d16b",
    "explore": "#a3785b",
    "gradients": "#a9d0f5",
    "optimizer": "#e56b9d",
    "targets": "#5e60ce",
}
_REST = {"collect": "#b8bfb2", "learn": "#aab4c4"}
_TOPS = {"collect": "#eef6ea", "learn": "#e8f0fa"}
_GREY = "#cccccc"
_SMALL: dict[str, Any] = {"fontsize": 9, "color": "#444444"}
# Share of a column's width, and of the enlarged part.
_SLICES = 320
_FINE_S = 5e-4
_ENLARGED_S = 0.04
# Threads that ran less than this share of the update have no lane.
_LEAST = 0.002


def draw(recording: Recording, path: Path) -> None:
    """Draws the update of median length, and parts of it enlarged."""
    lengths = np.diff(recording.updates)
    chosen = int(np.argsort(lengths)[len(lengths) // 2])
    start, end = recording.updates[chosen : chosen + 2]
    windows = [(start, end, f"one update, {(end - start) * 1e3:.0f} ms")]
    for top in ("collect", "learn"):
        window = _middle(recording, top, start, end)
        if window is not None:
            length = (window[1] - window[0]) * 1e3
            windows.append((*window, f"{length:.0f} ms of `{top}`"))
    whole = np.array([start, end])
    threads = [
        thread
        for thread in recording.kinds
        if recording.busy(thread, whole)[0] > _LEAST * (end - start)
    ]
    heights = [0.55, 2.2] + [0.8] * len(threads)
    figure = Figure(figsize=(17, 1.9 + 0.78 * sum(heights)), dpi=110)
    grid = figure.subplots(
        len(heights),
        len(windows),
        squeeze=False,
        sharex="col",
        gridspec_kw={
            "height_ratios": heights,
            "width_ratios": [2.1] + [1.0] * (len(windows) - 1),
            "hspace": 0.14,
            "wspace": 0.05,
            "left": 0.075,
            "right": 0.99,
            "top": 1 - 0.62 / figure.get_figheight(),
            "bottom": 1.15 / figure.get_figheight(),
        },
    )
    for column, (left, right, title) in enumerate(windows):
        axes: list[Axes] = list(grid[:, column])
        edges = _edges(left, right, fine=column > 0)
        axes[0].set_title(title, fontsize=11, loc="left")
        _draw_phases(axes[0], recording, left, right)
        _draw_sum(axes[1], recording, edges, left)
        for axis, thread in zip(axes[2:], threads, strict=True):
            share = recording.busy(thread, edges) / np.diff(edges)
            colour = _KINDS[recording.kinds[thread]]
            axis.stairs(
                np.minimum(share, 1.0), (edges - left) * 1e3, fill=True, color=colour
            )
            axis.set_ylim(0, 1.05)
        for axis in axes[1:]:
            _shade(axis, recording, left, right, leaves=column > 0)
        for axis in axes:
            _tidy(axis, (right - left) * 1e3, first=column == 0)
        axes[-1].set_xlabel("ms", fontsize=9)
        axes[-1].tick_params(labelbottom=True, bottom=True)
    labels = ["phase", "busy cores", *(recording.names[thread] for thread in threads)]
    for axis, label in zip(grid[:, 0], labels, strict=True):
        axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=10)
    _legend(figure, recording, threads)
    taken = recording.taken / recording.cores / float(sum(lengths))
    note = f"other processes used {taken:.0%} of the cores"
    figure.text(0.99, 0.08 / figure.get_figheight(), note, ha="right", **_SMALL)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _middle(
    recording: Recording, top: str, start: float, end: float
) -> tuple[float, float] | None:
    """A short part from the middle of the phases inside `top`."""
    inside = [
        (a, b)
        for a, b, path in _segments(recording, start, end)
        if path and path[0] == top
    ]
    if not inside:
        return None
    left, right = inside[0][0], inside[-1][1]
    half = min(_ENLARGED_S, right - left) / 2
    middle = (left + right) / 2
    return middle - half, middle + half


def _segments(
    recording: Recording, left: float, right: float
) -> list[tuple[float, float, tuple[str, ...]]]:
    """Phases between two times, clipped to these times."""
    edges = recording.edges
    return [
        (max(a, left), min(b, right), path)
        for a, b, path in zip(edges, edges[1:], recording.paths, strict=False)
        if b > left and a < right and b > a
    ]


def _edges(left: float, right: float, *, fine: bool) -> Floats:
    """Slices of a column, not shorter than the time between samples."""
    most = int((right - left) / _FINE_S)
    count = max(most if fine else min(most, _SLICES), 1)
    return np.linspace(left, right, count + 1)


def _colour(path: tuple[str, ...]) -> str:
    if not path:
        return _GREY
    if len(path) == 1:
        return _REST.get(path[0], _GREY)
    return _PHASES.get(path[1], _GREY)


def _draw_phases(axis: Axes, recording: Recording, left: float, right: float) -> None:
    """Draws outer phases with their names above, and inner phases below."""
    outer: list[tuple[float, float, str]] = []
    for a, b, path in _segments(recording, left, right):
        span = ((a - left) * 1e3, (b - a) * 1e3)
        axis.broken_barh([span], (0, 0.5), color=_colour(path), lw=0)
        name = path[0] if path else ""
        if outer and outer[-1][2] == name:
            outer[-1] = (outer[-1][0], b, name)
        else:
            outer.append((a, b, name))
    for a, b, name in outer:
        span = ((a - left) * 1e3, (b - a) * 1e3)
        axis.broken_barh([span], (0.5, 0.5), color=_REST.get(name, _GREY), lw=0)
        if b - a > 0.08 * (right - left):
            middle = ((a + b) / 2 - left) * 1e3
            axis.text(middle, 0.74, name, ha="center", va="center", fontsize=9)
    axis.set_ylim(0, 1)


def _draw_sum(axis: Axes, recording: Recording, edges: Floats, left: float) -> None:
    """Draws busy cores, the kinds of threads stacked."""
    below = np.zeros(len(edges) - 1)
    for kind, seconds in recording.busy_by_kind(edges).items():
        above = below + seconds / np.diff(edges)
        axis.stairs(
            above, (edges - left) * 1e3, baseline=below, fill=True, color=_KINDS[kind]
        )
        below = above
    axis.axhline(recording.cores, color="#333333", lw=1, ls="--")
    axis.set_ylim(0, recording.cores * 1.12)


def _shade(
    axis: Axes, recording: Recording, left: float, right: float, *, leaves: bool
) -> None:
    for a, b, path in _segments(recording, left, right):
        colour = _colour(path) if leaves else _TOPS.get(path[0] if path else "", "#fff")
        span = ((a - left) * 1e3, (b - left) * 1e3)
        axis.axvspan(*span, color=colour, alpha=0.3 if leaves else 1, lw=0, zorder=0)


def _tidy(axis: Axes, width_ms: float, *, first: bool) -> None:
    axis.set_xlim(0, width_ms)
    axis.tick_params(labelsize=8, labelbottom=False, bottom=False, length=2)
    top = axis.get_ylim()[1]
    axis.set_yticks([] if top <= 1.05 else range(int(top) + 1))
    axis.tick_params(labelleft=first)
    for side in ("top", "right", "left", "bottom"):
        axis.spines[side].set_color("#bbbbbb")
        axis.spines[side].set_linewidth(0.6)


def _legend(figure: Figure, recording: Recording, threads: list[int]) -> None:
    kinds = dict.fromkeys(recording.kinds[thread] for thread in threads)
    paths = sorted({path[:2] for path in recording.paths if path})
    names = {p[-1] if len(p) > 1 else f"{p[0]}: rest": _colour(p) for p in paths}
    for y, title, entries in (
        (0.42, "phases of the main thread", names),
        (0.08, "threads, as shares of a core", {k: _KINDS[k] for k in kinds}),
    ):
        figure.legend(
            handles=[Patch(color=colour) for colour in entries.values()],
            labels=list(entries),
            title=None,
            loc="lower left",
            bbox_to_anchor=(0.2, y / figure.get_figheight()),
            ncols=len(entries),
            frameon=False,
            fontsize=9,
            handlelength=1.2,
            columnspacing=1.4,
        )
        figure.text(
            0.19,
            (y + 0.19) / figure.get_figheight(),
            title,
            ha="right",
            va="center",
            **_SMALL,
        )
