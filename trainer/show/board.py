"""The levels of a campaign: a live board in a terminal, else lines."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from trainer.show.panels import LABEL, heat

_LEGEND = (
    "%: clear rate of the last 100 training episodes   ▸ in training   ✓ solved\n"
    "search: looks for demonstrations, before the level trains"
)
_MESSAGES = 8
_CELL = 7


class Standing(NamedTuple):
    """The progress of a level.

    Attributes:
        rate: clear rate of the last 100 training episodes; None: not begun.
        training: whether the level trains now.
        solved: whether two evaluations confirmed that it is solved.
        searching: whether the search for demonstrations is still running.
    """

    rate: float | None = None
    training: bool = False
    solved: bool = False
    searching: bool = False


class Board:
    """Shows levels and messages during a campaign."""

    def __init__(self, *, live: bool, console: Console | None = None) -> None:
        """Opens the terminal."""
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


def grid(levels: Mapping[str, Standing]) -> Text:
    """The levels with a column per world and a line per stage."""
    names = [tuple(map(int, name.split("-"))) for name in levels]
    worlds = sorted({world for world, _ in names})
    text = Text(f"{'':3}", no_wrap=True, overflow="crop")
    text.append("".join(f"{world:>{_CELL}} " for world in worlds) + "\n", LABEL)
    for stage in sorted({stage for _, stage in names}):
        text.append(f"-{stage:<2}", LABEL)
        for world in worlds:
            _add(text, levels.get(f"{world}-{stage}"))
        text.append("\n")
    return text


def _add(text: Text, standing: Standing | None) -> None:
    """Adds the cell of a level; None adds an empty cell."""
    if standing is None:
        text.append(" " * (_CELL + 1))
        return
    if standing.rate is None:
        what = "search" if standing.searching else "·"
        text.append(f"{what:>{_CELL}}", LABEL)
    else:
        text.append(f"{100 * standing.rate:{_CELL}.0f}", heat(standing.rate))
    text.append("✓" if standing.solved else "▸" if standing.training else " ")
