"""The chart of `sps.py --peers --chart FILE`: steps per second of all programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

_OURS, _THEIRS = "#1b4f8a", "#b8bfb2"
_SMALL: dict[str, Any] = {"fontsize": 9, "color": "#333333"}
_ROW_INCHES = 0.34


@dataclass(frozen=True)
class Bar:
    """One program.

    Attributes:
        name: name of the program.
        rate: its steps per second.
        ratio: mario_envpool's rate divided by this one; 0 for mario_envpool itself.
    """

    name: str
    rate: float
    ratio: float = 0


def draw(groups: Mapping[str, Sequence[Bar]], path: Path) -> None:
    """Draws bars from 0, a panel for each group, all on one scale.

    Args:
        groups: bars by a common property, such as the number of cores.
        path: the file; its suffix selects the format.
    """
    counts = [len(bars) for bars in groups.values()]
    height = _ROW_INCHES * (sum(counts) + 1.6 * len(counts))
    figure = Figure(figsize=(7.6, height), layout="constrained")
    panels = figure.subplots(
        len(groups), 1, sharex=True, squeeze=False, height_ratios=counts
    )
    longest = max(bar.rate for bars in groups.values() for bar in bars)
    for axes, (title, bars) in zip(panels[:, 0], groups.items(), strict=True):
        places = range(len(bars))
        colors = [_THEIRS if bar.ratio else _OURS for bar in bars]
        axes.barh(places, [bar.rate for bar in bars], color=colors, height=0.7)
        for place, bar in zip(places, bars, strict=True):
            said = f" {bar.rate:,.0f}"
            if bar.ratio:
                said += f"   (ours: {bar.ratio:,.{1 if bar.ratio < 10 else 0}f} times)"
            axes.text(bar.rate, place, said, va="center", **_SMALL)
        axes.set_yticks(places, [bar.name for bar in bars], **_SMALL)
        axes.invert_yaxis()
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlim(0, longest * 1.12)
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    panels[-1, 0].set_xlabel("environment steps per second, 4 frames each", **_SMALL)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "peers"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
