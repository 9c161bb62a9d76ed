"""The levels of a campaign: a live board in a terminal, else lines."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trainer.show.screen import LABEL, heat, level_grid

_LEGEND = (
    "%: clear rate of the last 100 training episodes   ▸ in training   ✓ solved\n"
    "search: looks for demonstrations, before the level trains"
)
_MESSAGES = 8
_CELL = 8


class Standing(NamedTuple):
    """The progress of a level."""

    rate: float | None = None  # of clears in the last 100 episodes; None: not begun
    training: bool = False
    solved: bool = False  # as two evaluations confirmed
    searching: bool = False  # for demonstrations, before it trains


class Board:
    """Shows levels and messages during a campaign."""

    def __init__(self, *, live: bool, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False)
        self._messages: deque[str] = deque(maxlen=_MESSAGES)
        self._live = Live(console=self._console, auto_refresh=False) if live else None
        self._title, self._levels = "", dict[str, Standing]()
        self.open()

    def open(self) -> None:
        """Starts to draw; may be called again after `close`."""
        if self._live is not None:
            self._live.start()

    def log(self, text: str) -> None:
        """Shows a message."""
        self._messages.append(text)
        if self._live is None or not self._live.is_started:
            self._console.print(Text(text), soft_wrap=True)
        else:
            self._draw()

    def show(self, title: str, levels: Mapping[str, Standing]) -> None:
        """Draws the levels, if there is a board."""
        self._title, self._levels = title, dict(levels)
        if self._live is not None:
            self._draw()

    def _draw(self) -> None:
        assert self._live is not None
        levels = self._levels
        parts: list[RenderableType] = [grid(levels), Text(_LEGEND, LABEL), Text("")]
        parts += [
            Text(text, no_wrap=True, overflow="ellipsis") for text in self._messages
        ]
        self._live.update(Panel(Group(*parts), title=self._title), refresh=True)

    def close(self) -> None:
        """Stops drawing and leaves the last picture; may be called again."""
        if self._live is not None:
            self._live.stop()


def grid(levels: Mapping[str, Standing]) -> Table:
    """The levels with a column per world and a line per stage."""
    return level_grid({name: _cell(level) for name, level in levels.items()}, _CELL)


def _cell(standing: Standing) -> Text:
    """The progress of a level in a few characters."""
    if standing.rate is None:
        text = Text("search" if standing.searching else "·", LABEL)
    else:
        text = Text(f"{100 * standing.rate:.0f}", heat(standing.rate))
    mark = "✓" if standing.solved else "▸" if standing.training else " "
    return text.append(mark, "default")
