"""Figures and a table of a campaign, for docs/results.md and docs/lab-book.md.

    python bench/campaign_figure.py runs/campaign-TIME --out docs/assets

It writes campaign-curves.svg, with the clear rate over minutes of each level's run and
of the one network, and campaign-deaths.svg, with the positions where episodes of the
five worst single-level policies died. It prints the table in Markdown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from trainer.evaluation.tables import pairs_of
from trainer.show.campaign_page import MERGED, TABLE
from trainer.show.run_files import read_run

_COLORS = ["#1b4f8a", "#c4621d", "#3b7d3b", "#8a1b5e"]
_SMALL: dict[str, Any] = {"fontsize": 8, "color": "#333333"}
_WORST = 5
# Pixels of a bar.
_BIN = 64

Row = Mapping[str, Any]
# By level: with sampled actions, and with greedy actions.
Results = Mapping[str, tuple[Row, Row]]


def curve(folder: Path) -> tuple[list[float], list[float]]:
    """Minutes of a run, and its clear rates in percent."""
    points = [p for p in read_run(folder).points if "rollout/clear_rate" in p]
    minutes = [float(p["time/seconds"]) / 60 for p in points]
    return minutes, [100 * float(p["rollout/clear_rate"]) for p in points]


def draw_curves(campaign: Path, levels: list[str], path: Path) -> None:
    """Draws a panel for each world, and one for the network of all levels."""
    worlds = list(dict.fromkeys(level.split("-")[0] for level in levels))
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    panels = figure.subplots(3, 3, sharey=True).flatten()
    for axes, world in zip(panels, worlds, strict=False):
        own = [level for level in levels if level.split("-")[0] == world]
        for level, color in zip(own, _COLORS, strict=False):
            axes.plot(*curve(campaign / "levels" / level), color=color, lw=1)
            axes.plot([], [], color=color, label=level)
        axes.legend(fontsize=7, frameon=False, loc="best")
    last = panels[len(worlds)]
    last.plot(*curve(campaign / MERGED), color="#333333", lw=1)
    last.set_title("one network, mean of all levels", **_SMALL)
    for axes in panels:
        axes.set_ylim(0, 100)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_visible(bool(axes.lines))
    figure.supxlabel("minutes of training on one core (one network: two)", **_SMALL)
    figure.supylabel("% of the last 100 training episodes cleared", **_SMALL)
    _save(figure, path)


def draw_deaths(results: Results, path: Path) -> list[str]:
    """Draws where episodes of the worst levels died; returns these levels."""
    rated = sorted(results, key=lambda level: results[level][0]["clear_rate"])
    worst = rated[:_WORST]
    figure = Figure(figsize=(8, 1.1 * len(worst) + 0.4), layout="constrained")
    panels = figure.subplots(len(worst), 1, squeeze=False)[:, 0]
    for axes, level in zip(panels, worst, strict=True):
        row = results[level][0]
        places = [x for _, x, _ in row["deaths"]] + [x for _, x, _ in row["stalls"]]
        most = max([*places, row["best_x_median"], _BIN])
        edges = range(0, int(most) + 2 * _BIN, _BIN)
        axes.hist(places, bins=edges, color=_COLORS[0])
        axes.set_title(
            f"{level}: {row['clears']} of {row['episodes']} cleared, "
            f"{len(row['deaths'])} died, {row['stalled']} made no progress",
            loc="left", **_SMALL,
        )  # fmt: skip
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("x at the end, in pixels of its room", **_SMALL)
    _save(figure, path)
    return worst


def _save(figure: Figure, path: Path) -> None:
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "campaign"}):
        figure.savefig(path, metadata={"Date": None})


def table(single: Results, one: Results) -> Iterator[str]:
    """A row for each level, and one for all, in Markdown."""
    yield "| Level | A policy for each level: sampled | greedy, of 31 | One network: "
    yield "sampled | greedy, of 31 |\n|---|---|---|---|---|\n"
    for level in single:
        cells = [cell for part in (single, one) for cell in _cells(part.get(level))]
        yield f"| {level} | {' | '.join(cells)} |\n"
    cells = [cell for part in (single, one) for cell in _all(part)]
    yield f"| all | {' | '.join(cells)} |"


def _cells(pair: tuple[Row, Row] | None) -> tuple[str, str]:
    if pair is None:
        return "no policy", ""
    sampled, argmax = pair
    low, high = sampled["interval"]
    clears = f"{100 * sampled['clear_rate']:.0f}"
    clears = f"**{clears}**" if sampled["clear_rate"] >= 0.9 else clears
    idle = "*" if 0 in argmax["cleared_starts"] else ""
    return f"{clears} ({100 * low:.0f}-{100 * high:.0f})", f"{argmax['clears']}{idle}"


def _all(part: Results) -> tuple[str, str]:
    rates = [sampled["clear_rate"] for sampled, _ in part.values()]
    greedy = [argmax for _, argmax in part.values()]
    good = sum(rate >= 0.9 for rate in rates)
    return (
        f"**{100 * sum(rates) / max(1, len(rates)):.1f} %**, {good} at 90 or more",
        f"{sum(r['clears'] for r in greedy)} of "
        f"{sum(r['episodes'] for r in greedy)}, "
        f"{sum(0 in r['cleared_starts'] for r in greedy)} of {len(part)} *",
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaign", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    found = json.loads((given.campaign / TABLE).read_text())
    single, one = pairs_of(found["single"]), pairs_of(found["one"])
    curves = given.out / "campaign-curves.svg"
    draw_curves(given.campaign, found["levels"], curves)
    deaths = given.out / "campaign-deaths.svg"
    worst = draw_deaths(single, deaths)
    print("".join(table(single, one)))
    print(f"\nwrote {curves}, {deaths} ({', '.join(worst)})")


if __name__ == "__main__":
    main()
