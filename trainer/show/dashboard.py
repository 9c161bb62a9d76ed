"""The live dashboard of a run, for terminals, and the choice of the display."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import (
    ExitStack,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from pathlib import Path

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from trainer.show.display import Display, PlainDisplay, RecordDisplay, RunInfo
from trainer.show.screen import Status, view

# Largest share of the time that drawing may take.
_MOST_OF_THE_TIME = 0.005


class LiveDisplay(RecordDisplay):
    """A dashboard that fills the terminal; messages also scroll above it.

    A separate thread draws it once a second and after the terminal has changed its
    size. Text that other code prints or logs meanwhile also becomes a message.
    """

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or Console(file=sys.stdout, highlight=False)
        self._status: Status | None = None
        self._closing = ExitStack()
        self._stop = threading.Event()
        self._size: ConsoleDimensions | None = None  # of the last picture
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def start(self, info: RunInfo) -> None:
        """Prints a description of the run, and starts to draw."""
        super().start(info)
        self.log(info.banner())
        self._status = Status(info)
        self._status.messages.append(
            (0.0, f"writing to {info.run_dir}/; Ctrl-C ends the run with a checkpoint")
        )
        self._live.start()
        # A process that Ctrl-Z stops leaves the cursor as it is.
        self._console.show_cursor(True)
        self._closing.callback(self._leave)
        self._refresh()
        self._closing.enter_context(_captured(self.log))
        thread = threading.Thread(target=self._redraw, name="dashboard", daemon=True)
        thread.start()
        self._closing.callback(thread.join)
        self._closing.callback(self._stop.set)

    def log(self, text: str) -> None:
        """Prints a message above the dashboard, and shows it inside for a while."""
        status = self._status
        if status is not None:
            status.messages.append((status.seconds(), text))
        super().log(text)
        with suppress(OSError):  # the terminal is gone, but the run continues
            self._console.print(Text(text), soft_wrap=True)
            self._park()

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Takes the values to draw."""
        if self._status is not None:
            self._status.report(values, eta_s)

    def checkpoint(self, path: Path, step: int) -> None:
        """Takes the last checkpoint to draw."""
        if self._status is not None:
            self._status.saved = (self._status.seconds(), step, path)

    def alarm(self, name: str, text: str) -> None:
        """Takes an alarm to draw above everything else, or ends it."""
        if self._status is not None:
            others = {n: t for n, t in self._status.alarms.items() if n != name}
            self._status.alarms = others | ({name: text} if text else {})

    def close(self) -> None:
        """Leaves the last picture, and restores the terminal."""
        self._closing.close()
        self._size = None
        super().close()
        self._status = None

    def _redraw(self) -> None:
        """The thread: draws once a second, or less often if drawing takes long."""
        due = 0.0
        while not self._stop.wait(0.25):
            began = time.perf_counter()
            if began >= due or self._console.size != self._size:
                self._refresh()
                now = time.perf_counter()
                # Wall-clock time, because other threads may wait for the whole drawing.
                due = now + min(10.0, max(1.0, (now - began) / _MOST_OF_THE_TIME))

    def _refresh(self) -> None:
        with suppress(OSError):  # as in `log`
            self._live.refresh()
            self._park()

    def _leave(self) -> None:
        with suppress(OSError):  # as in `log`
            self._live.stop()

    def _park(self) -> None:
        """Puts the cursor where the terminal's own ^C does not begin a new line."""
        if self._size is not None:
            self._console.control(Control(ControlType.CARRIAGE_RETURN))

    def _draw(self) -> RenderableType:
        size, status = self._console.size, self._status
        # The picture fills the terminal, so its place is known, whatever other code has
        # written meanwhile. Only the first picture follows earlier output.
        if self._size is not None:
            self._console.control(Control.home())
        if self._size not in (None, size):
            self._console.control(Control.clear())
        self._size = size
        if status is None:
            return Text("")
        try:
            return view(status, size.width, size.height)
        except Exception as error:  # a failed drawing must not end the run
            return Text(f"the dashboard cannot be drawn: {error!r}")


class _Lines(io.TextIOBase):
    """A text file that turns lines into messages."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log, self._rest = log, threading.local()

    def write(self, text: str) -> int:
        """Logs whole lines, and keeps the rest for each thread."""
        *lines, self._rest.text = (getattr(self._rest, "text", "") + text).split("\n")
        if any(lines):
            self._log("\n".join(lines))
        return len(text)

    def writable(self) -> bool:
        """Always true."""
        return True


def _captured(log: Callable[[str], None]) -> ExitStack:
    """Turns printed and logged text into messages, until the stack is closed."""
    stack, lines = ExitStack(), _Lines(log)
    # Handlers of the logging module keep a reference to the original stderr.
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            stack.callback(handler.setStream, handler.stream)
            handler.setStream(lines)
    stack.enter_context(redirect_stdout(lines))
    stack.enter_context(redirect_stderr(lines))
    return stack


def make_display(mode: str) -> Display:
    """The display for stdout."""
    # A program without a console has no stdout.
    terminal = sys.stdout is not None and sys.stdout.isatty()
    if mode == "on" and not terminal:
        raise ValueError(
            "dashboard=on needs a terminal, and stdout is a file or a pipe; choose "
            "dashboard=auto or off"
        )
    able = terminal and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    # The dashboard needs a UTF encoding.
    able = able and (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    live = mode == "on" or (mode == "auto" and able)
    return LiveDisplay() if live else PlainDisplay()
