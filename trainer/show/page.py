"""The report of one run or several: one HTML file that needs no network."""

from __future__ import annotations

import base64
import colorsys
import io
import json
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np

from trainer.config.plain import flat, to_dict
from trainer.config.schema import RunConfig
from trainer.machine.files import write_text
from trainer.machine.timings import format_seconds
from trainer.show import run_files
from trainer.show.metrics import METRICS, Metric, in_panel, level_rates
from trainer.show.run_files import RunFiles, read_run

# Most bytes of pictures and videos in a page, and of one; further files are linked.
MAX_EMBEDDED = 64 * 2**20
_MAX_FILE = 24 * 2**20

# Of charts.
_INK = "#010203"  # becomes the colour of the page's text
_MAX_POINTS, _MAX_COLUMNS = 600, 150
_CLEAR_RATE = METRICS["rollout/clear_rate"]
_T = TypeVar("_T")

_KINDS = {".png": "image/png", ".gif": "image/gif", ".mp4": "video/mp4"}


# -- parts of a page ---------------------------------------------------------


def table(
    heads: Iterable[str],
    rows: Iterable[Sequence[Any]],
    special: Collection[Sequence[Any]] = (),
) -> str:
    """An HTML table of plain text, with special rows marked; "" without rows."""
    body = "".join(
        f"<tr{' class=special' if row in special else ''}>"
        + "".join(f"<td>{escape(text(cell))}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>' if body else ""


def text(value: Any) -> str:
    """A value as people read it; "-" for none."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def level_grid(rates: Mapping[str, float], notes: Mapping[str, str]) -> str:
    """A grid of clear rates, worlds across and stages down; "" without rates."""
    names = [tuple(map(int, level.split("-"))) for level in rates]
    if not names:
        return ""
    worlds = range(1, max(world for world, _ in names) + 1)
    rows = "<tr><th></th>" + "".join(f"<th>{w}</th>" for w in worlds) + "</tr>"
    for stage in range(1, max(stage for _, stage in names) + 1):
        rows += f"<tr><th>-{stage}</th>"
        for world in worlds:
            level = f"{world}-{stage}"
            share = rates.get(level)
            heat = "" if share is None else f' style="--rate:{share:.2f}" class="heat"'
            text = "" if share is None else f"{share:.0%}"
            if note := notes.get(level):
                text += f"<div>{escape(note)}</div>"
            rows += f"<td{heat}>{text}</td>"
        rows += "</tr>"
    return f'<div class="wide"><table class="levels">{rows}</table></div>'


def header(title: str, tiles: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The head of a page: a title in HTML, key numbers and facts by their names."""
    numbers = "".join(
        f"<div><b>{escape(text(value))}</b><span>{escape(name)}</span></div>"
        for name, value in tiles.items()
    )
    lines = "".join(
        f"<dt>{name}</dt><dd>{escape(str(value))}</dd>"
        for name, value in facts.items()
        if value not in (None, "")
    )
    return f'<h1>{title}</h1><div class="tiles">{numbers}</div><dl>{lines}</dl>'


def document(title: str, head: str, sections: Mapping[str, str], note: str = "") -> str:
    """A whole page."""
    body = "".join(
        f"<section><h2>{name}</h2>{inside}</section>"
        for name, inside in sections.items()
        if inside
    )
    missing = ", ".join(name.lower() for name, inside in sections.items() if not inside)
    missing = f"No data for: {missing}. " if missing else ""
    style = Path(__file__).with_name("page.css").read_text("utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>"
        f"<header>{head}</header>{body}<footer>{missing}{escape(note)}Written "
        f"{time.strftime('%Y-%m-%d %H:%M')}.</footer></main></body></html>\n"
    )


# -- charts ------------------------------------------------------------------


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
    points = _thinned([p for p in run.points if level_rates(p)], _MAX_COLUMNS)
    names = {name for p in points for name in level_rates(p)}
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


def _short(value: float, _: float) -> str:
    """A number on an axis: 1.5k, 2M."""
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


# -- the report of runs ------------------------------------------------------


class _Media:
    """Pictures and videos: embedded in the page while there is room, else linked."""

    def __init__(self, page: Path) -> None:
        self._page, self._left = page, MAX_EMBEDDED

    def show(self, paths: Iterable[Path]) -> str:
        """Figures of the files, each with its name."""
        return "".join(self._figure(path) for path in paths if path.is_file())

    def _figure(self, path: Path) -> str:
        size, kind = path.stat().st_size, _KINDS[path.suffix]
        link = quote(os.path.relpath(path, self._page.parent))
        source, note = link, f", {size / 2**20:.0f} MB, beside this page"
        if size <= min(_MAX_FILE, self._left):
            self._left -= size
            data = base64.b64encode(path.read_bytes()).decode()
            source, note = f"data:{kind};base64,{data}", ""
        name = escape(path.stem)
        shown = f'<img alt="{name}" src="{source}">'
        if kind.startswith("video"):
            shown = f'<video controls loop muted playsinline src="{source}"></video>'
        title = f'<a href="{link}">{escape(path.name)}</a>{note}'
        return f"<figure><figcaption>{title}</figcaption>{shown}</figure>"


# Columns of the results of episodes.
_RESULTS = (
    "episodes", "cleared (95 %)", "return", "best x, median", "steps to clear, median",
)  # fmt: skip


def _results(played: Mapping[str, Any]) -> list[Any]:
    """The results of episodes, see `_RESULTS`."""
    keys = ("return_mean", "best_x_median", "steps_to_clear_median")
    return [played.get("episodes"), _rate(played), *map(played.get, keys)]


def _rate(result: Mapping[str, Any]) -> str:
    """A clear rate with its interval."""
    rate = result.get("clear_rate")
    interval = result.get("interval") or result.get("clear_rate_95")
    if rate is None:
        return "-"
    spread = f" ({interval[0]:.0%} to {interval[1]:.0%})" if interval else ""
    return f"{rate:.0%}{spread}"


def _evaluations(runs: Sequence[RunFiles]) -> str:
    """A table of the evaluations that the runs have played."""
    rows = [
        [run.folder.name, e.get("name"), e.get("steps"),
         format_seconds(e.get("seconds") or 0), *_results(e)]
        for run in runs for e in run.evaluations
    ]  # fmt: skip
    return table(("run", "evaluation", "after steps", "time", *_RESULTS), rows)


def level_table(results: Sequence[Any], task: str) -> str:
    """A table with a row per result of a level; "" without results."""
    rows = [
        [(r.get("level") or task) + " (test)" * bool(r.get("unseen")),
         "greedy" if r.get("argmax") else "sampled",
         r.get("repeat_action_probability"), *_results(r),
         len(r["deaths"]) if "deaths" in r else None, r.get("stalled"),
         r.get("timed_out")]
        for r in results if isinstance(r, dict)
    ]  # fmt: skip
    heads = ("level", "actions", "sticky", *_RESULTS, "died", "stalled", "timed out")
    return table(heads, rows)


def _levels_evaluated(run: RunFiles) -> str:
    """By level: the run's last evaluation, and the results of `trainer.evaluate`."""
    html = ""
    for last in [e for e in run.evaluations if e.get("levels")][-1:]:
        what = f"{last.get('name')}, after {text(last.get('steps'))} steps"
        test = last.get("test_clear_rate")
        if test is not None:
            what += f"; training levels {_rate(last)}, test levels {test:.0%}"
        html += f"<p>{escape(what)}:</p>{level_table(last['levels'], run.task)}"
    command = run.table
    if results := level_table(command.get("results", []), str(command.get("task"))):
        steps = text(command.get("trained_steps"))
        what = f"{command.get('checkpoint')}, {steps} steps"
        html += f"<p>{escape(what)}:</p>{results}"
    return html


# Heads and keys of the results of `trainer.evaluate --whole-game`.
_GAMES = {
    "sticky": "repeat_action_probability", "attempts": "episodes",
    "finished": "finished", "levels before a lost life": "passed_before_death_mean",
    "levels passed": "passed_mean", "left out by warps": "skipped_mean",
    "lives lost": "lost_mean", "steps": "steps_mean",
}  # fmt: skip


def _whole_game(run: RunFiles) -> str:
    """The results of `trainer.evaluate --whole-game`."""
    results = run.whole_game.get("results", [])
    rows = [
        ["greedy" if r.get("argmax") else "sampled", *map(r.get, _GAMES.values())]
        for r in results
        if isinstance(r, dict)
    ]
    played, steps = (run.whole_game.get(k) for k in ("checkpoint", "trained_steps"))
    what = f"{played}, {text(steps)} steps, three lives from power-on"
    return f"<p>{escape(what)}:</p>{table(('actions', *_GAMES), rows)}" * bool(rows)


def _levels_trained(run: RunFiles) -> str:
    """Clear rates and mean best x of training."""
    rates = level_rates(run.last)
    best_x = {level: run.last.get(f"level_best_x/{level}") for level in rates}
    return level_grid(
        rates, {k: f"x {x:.0f}" for k, x in best_x.items() if x is not None}
    )


def _settings(runs: Sequence[RunFiles]) -> str:
    """All settings; values that are not the default are marked."""
    defaults = flat(to_dict(RunConfig().resolved()))
    configs = [flat(run.config) for run in runs]
    rows = [
        [name, *(json.dumps(v) for v in (*(c.get(name, d) for c in configs), d))]
        for name, d in defaults.items()
        if any(name in c for c in configs)
    ]
    special = [row for row in rows if set(row[1:]) != {row[-1]}]
    names = [run.folder.name for run in runs] if len(runs) > 1 else ["value"]
    heads = ("setting", *names, "default")
    short = table(heads, special, special)
    return (
        (short or "<p>All settings have their defaults.</p>")
        + "<details><summary>All settings</summary>"
        + f"{table(heads, rows, special)}</details>"
    )


def _checkpoints(run: RunFiles) -> str:
    rows = []
    for path in sorted((run.folder / "checkpoints").glob("*.pt")):
        file = path.stat()
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(file.st_mtime))
        size = f"{file.st_size / 2**20:.1f} MB"
        rows.append((path.relative_to(run.folder), size, when))
    return table(("file", "size", "written"), rows)


def _headline(run: RunFiles) -> str:
    """Task, outcome, key numbers and hardware."""
    last, config = run.last, run.config
    rate, _, interval = _rate(run.rated[-1] if run.rated else {}).partition(" ")
    tiles = {
        f"cleared in the last evaluation {interval}": rate,
        "cleared, last training episodes": METRICS["rollout/clear_rate"].text(last),
        "environment steps": last.get("step"),
        "time": format_seconds(last.get("time/seconds") or 0),
        "episodes": METRICS["rollout/episodes"].text(last),
        "first clear, episode": METRICS["rollout/first_clear_episode"].text(last),
    }
    facts = {
        "hardware": config.get("device_used"),
        "model": config.get("model", {}).get("name"),
        "seed": config.get("seed"),
        "commit": config.get("commit"),
        "command": config.get("command"),
        "folder": run.folder.resolve().name,
    }
    badge = "solved" if run.solved else "not solved"
    title = f'{escape(run.what)} <em class="{badge.replace(" ", "-")}">{badge}</em>'
    return header(title, tiles, facts)


def _comparison(runs: Sequence[RunFiles]) -> str:
    """A table with a row per run."""
    heads = ("run", "task", "seed", "solved", "steps", "time", "cleared (95 %)")
    rows = [
        (run.folder.name, run.what, run.config.get("seed"),
         "yes" if run.solved else "no", run.last.get("step"),
         format_seconds(run.last.get("time/seconds") or 0),
         _rate(run.rated[-1]) if run.rated
         else METRICS["rollout/clear_rate"].text(run.last))
        for run in runs
    ]  # fmt: skip
    return f"<h1>{len(runs)} runs</h1>{table(heads, rows)}"


def write(folders: Sequence[Path], output: Path | None = None) -> Path:
    """Writes the report of one run or several."""
    runs = [read_run(folder) for folder in folders]
    run, *others = runs
    sections = {"Curves": curves(runs)}
    if others:
        page = output or run.folder.parent / "comparison.html"
        title, head = f"{len(runs)} runs", _comparison(runs)
        sections |= {"Evaluation": _evaluations(runs), "Settings": _settings(runs)}
    else:
        page = output or run.folder / "report.html"
        title, head, media = run.what, _headline(run), _Media(page)
        evaluated = (run.folder / "evaluation").glob
        ends = table(run_files.ENDS_HEADS, run_files.ends_by_level(run.episodes))
        for name, source in run_files.training_maps(run):
            ends += f'<figure><img alt="{name}" src="{source}"></figure>'
        videos = [p for p in sorted(run.folder.glob("videos/*")) if p.suffix in _KINDS]
        sections |= {
            "Levels in training": _levels_trained(run),
            "Ends in training": ends,
            "Evaluation": _evaluations(runs),
            "Evaluation by level": _levels_evaluated(run),
            "Heat map": media.show(evaluated("heatmap.png")),
            "Deaths": media.show(sorted(evaluated("deaths-*.png"))),
            "Whole game": _whole_game(run) + media.show(evaluated("whole-game.png")),
            "Videos": media.show(videos),
            "Checkpoints": _checkpoints(run),
            "Settings": _settings(runs),
            "Messages": run.messages and f"<pre>{escape(run.messages)}</pre>",
        }
    lost = sum(run.damaged for run in runs)
    note = f"{lost} damaged lines left out. " if lost else ""
    write_text(page, document(title, head, sections, note))
    return page
