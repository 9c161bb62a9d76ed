"""Charts of the curves of runs, as SVG in the colours of the page."""

from __future__ import annotations

import colorsys
import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, TypeVar

import numpy as np

from trainer.show.run_files import RunFiles

Line = tuple[Sequence[float], Sequence[float]]  # x, y
Mark = tuple[int, float, float, float, float]  # line, x, y, low and high end

# Charts: a name in metrics.jsonl, a title, and whether the value is a share of 1.
_CURVES = (
    ("rollout/clear_rate", "Clear rate, last 100 episodes", True),
    ("rollout/levels_passed", "Levels passed, mean of 100 episodes", False),
    ("rollout/return", "Return, mean of 100 episodes", False),
    ("rollout/best_x_50", "Best x, mean of 50 episodes", False),
    ("time/sps", "Environment steps per second", False),
    ("learn/loss/total", "Loss", False),
    ("learn/loss/policy", "Policy loss", False),
    ("learn/loss/value", "Value loss", False),
    ("learn/loss/entropy", "Entropy", False),
    ("learn/loss/kl", "KL of old and new policy", False),
    ("learn/explained_variance", "Explained variance", False),
    ("learn/learning_rate", "Learning rate", False),
    ("learn/gradient_norm", "Gradient norm", False),
    ("explore/frontier_x", "Furthest snapshot, pixels from a level's start", False),
    ("explore/snapshot_share", "Episodes that begin from snapshots", True),
    ("explore/snapshot_clear_rate", "Clear rate of episodes from snapshots", True),
    ("explore/demonstration_left", "Share of the demonstrations still ahead", True),
    ("explore/cells", "Cells reached", False),
    ("explore/novelty", "Bonus for new cells, per step", False),
    ("explore/count_bonus", "Bonus for rare cells, per step", False),
)
# Colours of lines, distinct on white and on black.
_COLOURS = (
    "#3b82c4", "#d97b29", "#4a9d5b", "#b0518f", "#8a6fc8", "#8c7a3f", "#c8403a",
    "#2fa9a6", "#e391b4", "#6b7480", "#d9b93a", "#7fc4e8",
)  # fmt: skip
_INK = "#010203"  # becomes the colour of the page's text
_MAX_POINTS, _MAX_COLUMNS = 600, 150
_T = TypeVar("_T")


def curves(runs: Sequence[RunFiles]) -> str:
    """Charts of the curves of runs, overlaid, as HTML; "" if there are none."""
    charts = [
        _curve(runs, name, title, share=share, by_time=False)
        for name, title, share in _CURVES
    ]
    title = "Clear rate over time"
    charts.insert(
        1, _curve(runs, "rollout/clear_rate", title, share=True, by_time=True)
    )
    if len(runs) == 1:
        names = ["wait", "send", "copy", "act", "store", "explore", "learn"]
        points = [p for p in runs[0].points if "time/share_learn" in p]
        parts = {n: [p.get(f"time/share_{n}") or 0.0 for p in points] for n in names}
        title = "Shares of time"
        charts.append(_stacked_chart(title, [p["step"] for p in points], parts))
        charts.append(_levels_chart(runs[0]))
    drawn = f'<div class="charts">{"".join(charts)}</div>' if any(charts) else ""
    if len(runs) == 1:
        return drawn
    keys = "".join(
        f'<span style="--key:{_colour(number)}">{escape(run.folder.name)}</span>'
        for number, run in enumerate(runs)
    )
    return f'<p class="keys">{keys}</p>{drawn}'


def _curve(
    runs: Sequence[RunFiles], name: str, title: str, *, share: bool, by_time: bool
) -> str:
    """One curve of every run, over steps or minutes; "" if no run has it."""
    lines: list[Line] = []
    marks: list[Mark] = []
    for number, run in enumerate(runs):
        points = [p for p in run.points if isinstance(p.get(name), (int, float))]
        x = [p.get("time/seconds", 0) / 60 if by_time else p["step"] for p in points]
        lines.append((x, [p[name] for p in points]))
        if name != "rollout/clear_rate" or by_time:
            continue
        for e in run.evaluations:
            if e.get("clear_rate") is not None:
                low, high = e["clear_rate_95"]
                marks.append((number, e.get("steps", 0), e["clear_rate"], low, high))
    below = "minutes" if by_time else "environment steps"
    return _line_chart(title, lines, marks, below=below, share=share)


def _colour(number: int) -> str:
    """The colour of a line, unique in its chart."""
    if number < len(_COLOURS):
        return _COLOURS[number]
    # The golden ratio spreads any number of hues evenly.
    hue, light = number * 0.618034 % 1, (0.38, 0.5, 0.62)[number % 3]
    red, green, blue = colorsys.hls_to_rgb(hue, light, 0.5)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def _line_chart(
    title: str,
    lines: Sequence[Line],
    marks: Sequence[Mark] = (),
    *,
    below: str,
    share: bool,
) -> str:
    """A chart of overlaid curves."""
    if not marks and not any(len(x) > 1 for x, _ in lines):
        return ""
    axes = _axes(share)
    for number, (x, y) in enumerate(lines):
        axes.plot(_thinned(x), _thinned(y), color=_colour(number), linewidth=1.6)
    for number, at, rate, low, high in marks:
        spread = [[max(0.0, rate - low)], [max(0.0, high - rate)]]
        style = {"fmt": "o", "markersize": 4, "capsize": 2, "elinewidth": 1}
        axes.errorbar(at, rate, spread, color=_colour(number), **style)
    if not share and axes.get_ylim()[0] > 0:
        axes.set_ylim(bottom=0)
    return _figure(title, axes, below)


def _stacked_chart(
    title: str, x: Sequence[float], parts: Mapping[str, Sequence[float]]
) -> str:
    """A chart of stacked shares over environment steps."""
    if len(x) < 2 or not any(map(any, parts.values())):
        return ""
    axes = _axes(share=True)
    rows = [_thinned(row) for row in parts.values()]
    colours = [_colour(number) for number in range(len(rows))]
    axes.stackplot(_thinned(x), rows, labels=list(parts), colors=colours, alpha=0.85)
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(rows), frameon=False,
        fontsize=8, columnspacing=1, handlelength=0.8, handletextpad=0.4,
        labelcolor=_INK,
    )  # fmt: skip
    return _figure(title, axes, "environment steps")


def _levels_chart(run: RunFiles) -> str:
    """Clear rates in training, a row per level; "" for a run without --levels."""
    points = [p for p in run.points if any(k.startswith("levels/") for k in p)]
    points = [*_thinned(points, _MAX_COLUMNS)]
    names = {k[7:] for p in points for k in p if k.startswith("levels/")}
    levels = sorted(names, key=lambda name: [int(part) for part in name.split("-")])
    if not levels:
        return ""
    from matplotlib.ticker import PercentFormatter

    from trainer.evaluation.plots import SHADES

    rates = np.array([[p.get(f"levels/{n}", np.nan) for p in points] for n in levels])
    axes = _axes(share=False, height=0.5 + max(1.8, 0.14 * len(levels)))
    axes.grid(visible=False)
    # Each point covers the time since the previous point.
    steps = [0.0, *(p["step"] for p in points)]
    edges = np.arange(len(levels) + 1) - 0.5
    mesh = axes.pcolormesh(
        steps, edges, rates, cmap=SHADES, vmin=0, vmax=1, rasterized=True
    )
    axes.set_yticks(range(len(levels)), levels, fontsize=6)
    axes.invert_yaxis()
    bar = axes.figure.colorbar(mesh, format=PercentFormatter(1), aspect=40)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=_INK, labelsize=8, length=0)
    return _figure("Clear rate by level, last 100 episodes", axes, "environment steps")


def _thinned(values: Sequence[_T], most: int = _MAX_POINTS) -> Sequence[_T]:
    """At most `most` points, evenly spaced, including the last one."""
    step = len(values) // most + 1
    return values[::-step][::-1]


def _axes(share: bool, height: float = 2.3) -> Any:
    """Empty axes in the colours of the page."""
    # Not pyplot, which opens windows and must run in the main thread.
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    axes = Figure(figsize=(4.6, height), layout="constrained").add_subplot()
    axes.spines[:].set_visible(False)
    axes.grid(color=_INK, alpha=0.15, linewidth=0.6)
    axes.tick_params(colors=_INK, labelsize=8, length=0)
    axes.xaxis.set_major_formatter(_short)
    axes.yaxis.set_major_formatter(_short)
    if share:
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    return axes


def _short(value: float, position: float) -> str:
    """A number on an axis: 1.5k, 2M."""
    del position
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _figure(title: str, axes: Any, below: str) -> str:
    """A drawn chart with its title, as HTML."""
    import matplotlib

    axes.set_xlabel(below, color=_INK, fontsize=8, alpha=0.7)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        axes.figure.savefig(buffer, format="svg", transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    # HTML needs no namespaces, and ids must be unique in the page.
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (xmlns(:\w+)?="[^"]*"|id="[\w.]+_\d+")', "", svg)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"
