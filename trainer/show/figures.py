"""Charts of the curves of runs, as SVG in the colours of the page."""

from __future__ import annotations

import colorsys
import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any, TypeVar

import numpy as np

from trainer.show.metrics import METRICS, Metric, in_panel
from trainer.show.run_files import RunFiles

_INK = "#010203"  # becomes the colour of the page's text
_MAX_POINTS, _MAX_COLUMNS = 600, 150
_CLEAR_RATE = METRICS["rollout/clear_rate"]
_T = TypeVar("_T")


def curves(runs: Sequence[RunFiles]) -> str:
    """Charts of the curves of runs, overlaid, as HTML; "" if there are none."""
    charts = [_curve(runs, metric) for metric in METRICS.values() if metric.title]
    charts.insert(1, _curve(runs, _CLEAR_RATE, by_time=True))
    if len(runs) == 1:
        charts += [_shares_chart(runs[0]), _levels_chart(runs[0])]
    drawn = f'<div class="charts">{"".join(charts)}</div>' if any(charts) else ""
    if len(runs) == 1:
        return drawn
    keys = "".join(
        f'<span style="--key:{_colour(number)}">{escape(run.folder.name)}</span>'
        for number, run in enumerate(runs)
    )
    return f'<p class="keys">{keys}</p>{drawn}'


def _curve(runs: Sequence[RunFiles], metric: Metric, *, by_time: bool = False) -> str:
    """A curve of every run, overlaid, over steps or minutes; "" if no run has it."""
    share, drawn = "%" in metric.form, False
    axes = _axes(share)
    for number, run in enumerate(runs):
        points = [p for p in run.points if p.get(metric.key) is not None]
        x = [p.get("time/seconds", 0) / 60 if by_time else p["step"] for p in points]
        y = [p[metric.key] for p in points]
        axes.plot(_thinned(x), _thinned(y), color=_colour(number), linewidth=1.6)
        marks = run.rated if metric is _CLEAR_RATE and not by_time else []
        for e in marks:
            rate, (low, high) = e["clear_rate"], e["clear_rate_95"]
            spread = [[max(0.0, rate - low)], [max(0.0, high - rate)]]
            style = {"fmt": "o", "markersize": 4, "capsize": 2, "elinewidth": 1}
            color = _colour(number)
            axes.errorbar(e.get("steps", 0), rate, spread, color=color, **style)
        drawn = drawn or len(points) > 1 or bool(marks)
    if not drawn:
        return ""
    if not share and axes.get_ylim()[0] > 0:
        axes.set_ylim(bottom=0)
    if by_time:
        return _figure("Clear rate over time", axes, "minutes")
    return _figure(metric.title, axes, "environment steps")


def _colour(number: int) -> str:
    """The colour of a line, unique in its chart."""
    # The golden ratio spreads any number of hues evenly; blue comes first.
    hue, light = (0.58 + number * 0.618034) % 1, (0.36, 0.5, 0.64)[number % 3]
    red, green, blue = colorsys.hls_to_rgb(hue, light, 0.6)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def _shares_chart(run: RunFiles) -> str:
    """A chart of the shares of time, stacked; "" if the run has none."""
    shares = [m for m in in_panel("shares") if m.label != "held"]  # by another thread
    points = _thinned([p for p in run.points if METRICS["time/share_learn"].key in p])
    rows = [[p.get(share.key) or 0.0 for p in points] for share in shares]
    if len(points) < 2 or not np.any(rows):
        return ""
    axes = _axes(share=True)
    axes.stackplot(
        [p["step"] for p in points], rows, labels=[share.label for share in shares],
        colors=[_colour(number) for number in range(len(rows))], alpha=0.85,
    )  # fmt: skip
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(rows), frameon=False,
        fontsize=8, columnspacing=1, handlelength=0.8, handletextpad=0.4,
        labelcolor=_INK,
    )  # fmt: skip
    return _figure("Shares of time", axes, "environment steps")


def _levels_chart(run: RunFiles) -> str:
    """Clear rates in training, a row per level; "" for a run without --levels."""
    rated = [p for p in run.points if any(k.startswith("levels/") for k in p)]
    points = _thinned(rated, _MAX_COLUMNS)
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
