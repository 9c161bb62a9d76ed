"""The table of runs that took turns, for `nes_fps.py` and `ranks.py`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def show_ratios(title: str, unit: str, rates: Mapping[Any, Sequence[float]]) -> None:
    """Prints medians, and ratios to the first run, turn by turn.

    Args:
        title: heading of the first column, which has the names of the runs.
        unit: unit of the rates.
        rates: rates of each run, one per turn.
    """
    first = next(iter(rates.values()))
    table = Table(title, unit, "ratio", "of turns")
    for name, found in rates.items():
        ratios = [one / other for one, other in zip(found, first, strict=True)]
        table.add_row(
            str(name),
            f"{statistics.median(found):,.0f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
        )
    Console().print(table)
