"""The report of one run or several: one HTML file that needs no network."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trainer.config.plain import flat, to_dict
from trainer.config.schema import RunConfig
from trainer.machine.files import replacing
from trainer.machine.timings import format_seconds
from trainer.show.figures import curves
from trainer.show.run_files import RunFiles, read_run

# Most bytes of pictures and videos in a page; further files are linked.
MAX_EMBEDDED = 64 * 2**20
_MAX_FILE = 24 * 2**20

_KINDS = {".png": "image/png", ".gif": "image/gif", ".mp4": "video/mp4"}


# -- tables ------------------------------------------------------------------


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """An HTML table of plain text; "" without rows."""
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_text(c))}</td>" for c in row) + "</tr>"
        for row in rows
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>' if body else ""


def _text(value: Any) -> str:
    """The text of a cell; "-" for no value."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _rate(result: Mapping[str, Any]) -> str:
    """A clear rate with its interval."""
    rate = result.get("clear_rate")
    interval = result.get("interval") or result.get("clear_rate_95")
    if rate is None:
        return "-"
    return f"{rate:.0%}" + (
        f" ({interval[0]:.0%} to {interval[1]:.0%})" if interval else ""
    )


def _whole(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, (int, float)) else "-"


def _return(result: Mapping[str, Any]) -> str | None:
    """The mean return, with two decimals."""
    value = result.get("return_mean")
    return f"{value:.2f}" if isinstance(value, (int, float)) else None


def _evaluations(runs: Sequence[RunFiles]) -> str:
    """A table of the evaluations that the runs have played."""
    heads = ["run", "evaluation", "after steps", "time", "episodes", "cleared (95 %)"]
    heads += ["return", "best x, median", "steps to clear, median"]
    rows = [
        (run.folder.name, e.get("name"), _whole(e.get("steps")),
         format_seconds(e.get("seconds") or 0), e.get("episodes"), _rate(e),
         _return(e), _whole(e.get("best_x_median")),
         _whole(e.get("steps_to_clear_median")))
        for run in runs for e in run.evaluations
    ]  # fmt: skip
    skip = 0 if len(runs) > 1 else 1
    return table(heads[skip:], [row[skip:] for row in rows])


def _evaluated_levels(run: RunFiles) -> str:
    """The results of `trainer.evaluate`."""
    about = run.table
    table = level_table(about.get("results", []), str(about.get("task")))
    what = f"{about.get('checkpoint')}, {_whole(about.get('trained_steps'))} steps"
    return table and f"<p>{escape(what)}:</p>{table}"


def _own_levels(run: RunFiles) -> str:
    """The last evaluation of the run, by level."""
    played = [e for e in run.evaluations if e.get("levels")]
    if not played:
        return ""
    last = played[-1]
    what = f"{last.get('name')}, after {_whole(last.get('steps'))} steps"
    test = last.get("test_clear_rate")
    if test is not None:
        what += f"; training levels {_rate(last)}, test levels {test:.0%}"
    return f"<p>{escape(what)}:</p>{level_table(last['levels'], run.task)}"


def level_table(results: Sequence[Any], task: str) -> str:
    """A table with a row per result of a level; "" without results."""
    heads = ["level", "actions", "sticky", "episodes", "cleared (95 %)", "return"]
    heads += ["best x, median", "steps to clear, median", "died", "stalled"]
    heads += ["timed out"]
    rows = [
        ((r.get("level") or task) + " (test)" * bool(r.get("unseen")),
         "greedy" if r.get("argmax") else "sampled",
         r.get("repeat_action_probability"), r.get("episodes"), _rate(r), _return(r),
         _whole(r.get("best_x_median")), _whole(r.get("steps_to_clear_median")),
         len(r["deaths"]) if "deaths" in r else None, r.get("stalled"),
         r.get("timed_out"))
        for r in results if isinstance(r, dict)
    ]  # fmt: skip
    return table(heads, rows)


def _levels(run: RunFiles) -> str:
    """Clear rates and mean best x of training."""
    rates = {k[7:]: v for k, v in run.last.items() if k.startswith("levels/")}
    best_x = {level: run.last.get(f"level_best_x/{level}") for level in rates}
    return level_grid(
        rates, {k: f"x {x:.0f}" for k, x in best_x.items() if x is not None}
    )


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


def _settings(runs: Sequence[RunFiles]) -> str:
    """All settings; values that are not the default are marked."""
    defaults = flat(to_dict(RunConfig().resolved()))
    configs = [flat(run.config) for run in runs]
    rows, notable = "", []
    for name in [n for n in defaults if any(n in c for c in configs)]:
        values = [config.get(name, defaults[name]) for config in configs]
        special = any(value != defaults[name] for value in values)
        cells = "".join(f"<td>{escape(json.dumps(v))}</td>" for v in values)
        row = f"<td>{escape(name)}</td>{cells}<td>{escape(json.dumps(defaults[name]))}"
        rows += f"<tr{' class=special' if special else ''}>{row}</td></tr>"
        notable += [f"<tr class=special>{row}</td></tr>"] if special else []
    heads = "".join(f"<th>{escape(run.folder.name)}</th>" for run in runs)
    if len(runs) == 1:
        heads = "<th>value</th>"
    head = f"<thead><tr><th>setting</th>{heads}<th>default</th></tr></thead>"
    short = f'<div class="wide"><table>{head}{"".join(notable)}</table></div>'
    return (
        (short if notable else "<p>All settings have their defaults.</p>")
        + "<details><summary>All settings</summary>"
        + f'<div class="wide"><table>{head}{rows}</table></div></details>'
    )


# -- the page ----------------------------------------------------------------


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


def _checkpoints(run: RunFiles) -> str:
    found = sorted((run.folder / "checkpoints").glob("*.pt"))
    rows = []
    for path in found:
        about = path.stat()
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about.st_mtime))
        name = path.relative_to(run.folder)
        rows.append((name, f"{about.st_size / 2**20:.1f} MB", when))
    return table(("file", "size", "written"), rows)


def _headline(run: RunFiles) -> str:
    """Task, outcome, key numbers and hardware."""
    last, config = run.last, run.config
    rated = [e for e in run.evaluations if e.get("clear_rate") is not None]
    evaluated, _, interval = (_rate(rated[-1]) if rated else "-").partition(" ")
    training = {"clear_rate": last.get("rollout/clear_rate")}
    tiles = {
        f"cleared in the last evaluation {interval}": evaluated,
        "cleared, last training episodes": _rate(training),
        "environment steps": _whole(last.get("step")),
        "time": format_seconds(last.get("time/seconds") or 0),
        "episodes": _whole(last.get("rollout/episodes")),
        "first clear, episode": _whole(last.get("rollout/first_clear_episode")),
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
    figures = "".join(
        f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>"
        for name, value in tiles.items()
    )
    known = "".join(
        f"<dt>{name}</dt><dd>{escape(str(value))}</dd>"
        for name, value in facts.items()
        if value is not None
    )
    return (
        f'<h1>{escape(run.what)} <em class="{badge.replace(" ", "-")}">{badge}</em>'
        f'</h1><div class="tiles">{figures}</div><dl>{known}</dl>'
    )


def _comparison(runs: Sequence[RunFiles]) -> str:
    """A table with a row per run."""
    heads = ("run", "task", "seed", "solved", "steps", "time", "cleared (95 %)")
    rows: list[Sequence[Any]] = []
    for run in runs:
        rated = [e for e in run.evaluations if e.get("clear_rate") is not None]
        rate = (
            rated[-1] if rated else {"clear_rate": run.last.get("rollout/clear_rate")}
        )
        seconds = format_seconds(run.last.get("time/seconds") or 0)
        solved = "yes" if run.solved else "no"
        steps = _whole(run.last.get("step"))
        seed = run.config.get("seed")
        name = run.folder.name
        rows.append((name, run.what, seed, solved, steps, seconds, _rate(rate)))
    return f"<h1>{len(runs)} runs</h1>" + table(heads, rows)


def render(runs: Sequence[RunFiles], page: Path) -> str:
    """The report as HTML."""
    media = _Media(page)
    sections = {"Curves": curves(runs)}
    if len(runs) == 1:
        run = runs[0]
        pictures = sorted((run.folder / "evaluation").glob("*.png"))
        deaths = [path for path in pictures if path.stem.startswith("deaths")]
        others = [path for path in pictures if path not in deaths]
        videos = [p for p in sorted(run.folder.glob("videos/*")) if p.suffix in _KINDS]
        sections |= {
            "Levels in training": _levels(run),
            "Evaluation": _evaluations(runs),
            "Evaluation by level": _own_levels(run) + _evaluated_levels(run),
            "Heat map": media.show(others),
            "Deaths": media.show(deaths),
            "Videos": media.show(videos),
            "Checkpoints": _checkpoints(run),
            "Settings": _settings(runs),
            "Messages": run.messages and f"<pre>{escape(run.messages)}</pre>",
        }
    else:
        sections |= {"Evaluation": _evaluations(runs), "Settings": _settings(runs)}
    lost = sum(run.damaged for run in runs)
    head = _headline(runs[0]) if len(runs) == 1 else _comparison(runs)
    title = runs[0].what if len(runs) == 1 else f"{len(runs)} runs"
    note = f"{lost} damaged lines left out. " if lost else ""
    return document(title, head, sections, note)


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


def write(folders: Sequence[Path], output: Path | None = None) -> Path:
    """Writes the report of one run or several."""
    runs = [read_run(folder) for folder in folders]
    single = folders[0] / "report.html"
    page = output or (
        single if len(runs) == 1 else folders[0].parent / "comparison.html"
    )
    with replacing(page) as file:
        file.write(render(runs, page).encode())
    return page
