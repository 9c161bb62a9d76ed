"""A campaign for people: a live board of its levels, and its report."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trainer.config import shown
from trainer.machine.files import write_text
from trainer.machine.timings import format_seconds
from trainer.show import page
from trainer.show.run_files import read_run
from trainer.show.screen import LABEL, heat, level_grid

# Options of output, which do not change what a campaign does.
OF_THE_COMMAND = {"run_dir", "resume", "more_seconds", "dashboard"}
OPTIONS, STATE, TABLE = "campaign.json", "state.json", "table.json"
# The run of the one network, its corrections, and the copy of the run that learns them.
MERGED, CORRECTED = "merged", "corrected"
LEARNED = f"{CORRECTED}/run"

_LEGEND = (
    "%: clear rate of 100 training episodes, the last (▸: in training) or the best\n"
    "✓: solved   search: looks for demonstrations, before the level trains"
)
_CELL = 8


@dataclass
class Attempt:
    """A run of a level; each attempt of a level has another seed."""

    seconds: float = 0.0  # of training
    steps: int = 0
    rate: float = 0.0  # highest clear rate of 100 training episodes after a slice


@dataclass
class Level:
    """The progress of the training of a level, as in state.json."""

    solved: bool = False
    ended: bool = False  # its schedules
    chosen: float | None = None  # clear rate of the policy, None before the choice
    attempts: list[Attempt] = field(default_factory=lambda: [Attempt()])
    attempt: int = 0  # index of the one that trained last
    improved: bool = False  # its last slice exceeded the highest rate so far

    @property
    def seconds(self) -> float:
        """Seconds of training, of all attempts."""
        return sum(attempt.seconds for attempt in self.attempts)

    @property
    def steps(self) -> int:
        """Steps of all attempts."""
        return sum(attempt.steps for attempt in self.attempts)

    @property
    def rate(self) -> float:
        """Highest clear rate of all attempts."""
        return max(attempt.rate for attempt in self.attempts)

    @property
    def best(self) -> int:
        """Index of the attempt with the highest clear rate."""
        return [attempt.rate for attempt in self.attempts].index(self.rate)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Level:
        """The content of state.json, which had no attempts before version 0.3.0."""
        state = dict(state)
        old = {"seconds": state.pop("seconds", 0.0), "steps": state.pop("steps", 0)}
        old["rate"] = state.pop("rate", 0.0)
        attempts = [Attempt(**attempt) for attempt in state.pop("attempts", [old])]
        return cls(**state, attempts=attempts)


class Board:
    """Shows levels and messages during a campaign."""

    def __init__(self, *, live: bool, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False) if live else None
        self.open()

    def open(self) -> None:
        """Starts to draw; may be called again after `close`."""
        if self._live is not None:
            self._live.start()

    def log(self, text: str) -> None:
        """Prints a message, above the levels."""
        self._console.print(Text(text), soft_wrap=True)

    def show(
        self,
        title: str,
        levels: Mapping[str, Level],
        running: Mapping[str, float | None],
        searching: bool,
    ) -> None:
        """Draws the levels, if there is a board; see `grid`."""
        if self._live is not None:
            picture = Group(grid(levels, running, searching), Text(_LEGEND, LABEL))
            self._live.update(Panel(picture, title=title), refresh=True)

    def close(self) -> None:
        """Stops drawing and leaves the last picture; may be called again."""
        if self._live is not None:
            self._live.stop()


def grid(
    levels: Mapping[str, Level], running: Mapping[str, float | None], searching: bool
) -> Table:
    """The levels with a column per world and a line per stage.

    `running` has the current clear rate of levels in training; None: the level has not
    begun, but is `searching` for demonstrations if the runs learn from these.
    """
    cells = {}
    for name, level in levels.items():
        rate = running.get(name, level.rate if level.steps else None)
        if rate is None:
            cell = Text("search" if searching and name in running else "·", LABEL)
        else:
            cell = Text(f"{100 * rate:.0f}", heat(rate))
        mark = "✓" if level.solved else "▸" if name in running else " "
        cells[name] = cell.append(mark, "default")
    return level_grid(cells, _CELL)


# -- the report --------------------------------------------------------------


def is_campaign(folder: Path) -> bool:
    """Whether a folder belongs to a campaign."""
    return (folder / OPTIONS).is_file() and (folder / STATE).is_file()


def write(folder: Path, output: Path | None = None) -> Path:
    """Writes the report of a campaign, finished or not."""
    state, results = _read(folder / STATE), _read(folder / TABLE)
    options = _read(folder / OPTIONS)
    levels = {name: Level.of(level) for name, level in state.get("levels", {}).items()}
    one, single = results.get("one", []), results.get("single", [])
    runs = [folder / name for name in (LEARNED, MERGED) if (folder / name).is_dir()]
    merged = [read_run(run) for run in runs[:1]]  # the copy has all of the curves
    sections = {
        "A policy for each level": _results(single),
        "One network for all levels": _results(one),
        "Training of the levels": _training(levels),
        "Curves of the one network": page.curves(merged) if merged else "",
        "Options": _options(options),
    }
    command = shown.command_text(str(options.get("command", "")))
    tiles = {}
    for name, played in (("a policy for each level", single), ("one network", one)):
        # A level without a policy counts as 0.
        rates = list(_sampled(played).values())
        good = sum(rate >= 0.9 for rate in rates)
        cleared = f"cleared by {name}, {good} of {len(levels)} levels at 90 % or more"
        if rates:
            tiles[cleared] = f"{sum(rates) / len(levels):.0%}"
    head = page.header(
        f"{len(levels)} levels in {format_seconds(state.get('seconds', 0.0))}",
        tiles,
        {"command": command, "folder": folder.resolve().name},
    )
    written = output or folder / "report.html"
    write_text(written, page.document(f"{len(levels)} levels", head, sections))
    return written


def results_of(folder: Path, policies: Sequence[str]) -> dict[str, Any] | None:
    """The content of table.json, if it has results of all policies; else None."""
    try:
        results = _read(folder / TABLE)
        levels = {row["level"] for row in results["single"]}
        have = levels | {"one"} if results["one"] else levels
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return results if have == set(policies) else None


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; {} if there is no file."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it is not a JSON object")
    return content


def _sampled(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Clear rates with sampled actions, by level."""
    return {r["level"]: r["clear_rate"] for r in results if not r["argmax"]}


def _results(results: Sequence[Mapping[str, Any]]) -> str:
    """Clear rates with sampled actions and cleared starts with greedy actions.

    The table below the grid has all results, those of a level next to each other.
    """
    if not results:
        return ""
    notes = {
        r["level"]: f"{r['clears']}/{r['episodes']}" for r in results if r["argmax"]
    }
    rates = _sampled(results)
    order = list(rates)
    rows = sorted(results, key=lambda r: (order.index(r["level"]), r["argmax"]))
    return (
        "<p>Each cell has the clear rate with sampled actions, and the number of "
        "starts cleared with greedy actions.</p>"
        f"{page.level_grid(rates, notes)}{page.level_table(rows, '')}"
    )


def _training(levels: Mapping[str, Level]) -> str:
    """A table with a row for each level."""
    heads = (
        "level", "attempts", "steps", "time", "best 100 training episodes", "solved",
        "chosen",
    )  # fmt: skip
    rows = [
        (name, len(level.attempts), level.steps, format_seconds(level.seconds),
         f"{level.rate:.0%}",
         "yes" if level.solved else "no",
         "" if level.chosen is None else f"{level.chosen:.0%}")
        for name, level in levels.items()
    ]  # fmt: skip
    return page.table(heads, rows)


def _options(options: Mapping[str, Any]) -> str:
    """The options of the campaign and the flags after `--`, as others may see them."""
    rows = [
        (name.replace("_", "-"), value if isinstance(value, float) else str(value))
        for name, value in shown.settings(options.get("options", {})).items()
        if value not in (None, "") and name not in OF_THE_COMMAND
    ]
    flags = shlex.join(shown.command(["", *options.get("flags", [])])[1:])
    return page.table(
        ("option", "value"), [*rows, ("flags of the levels' runs", flags)]
    )
