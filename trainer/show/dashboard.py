"""What a person sees of a run: a live dashboard, or lines in a file or pipe."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import (
    ExitStack,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol, TextIO

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from trainer.config.tasks import describe_levels
from trainer.machine.device import describe
from trainer.machine.timings import format_seconds
from trainer.models import describe_model
from trainer.show.bottleneck import verdict_of
from trainer.show.panels import Board, view

if TYPE_CHECKING:
    from trainer.session.session import Run


# Share of the time that drawing may take.
_MOST_OF_THE_TIME = 0.005


class Display(Protocol):
    """Where a run tells what it does. Every method may be called from any thread."""

    def start(self, run: Run) -> None:
        """Shows what is run, once it is built."""

    def say(self, text: str) -> None:
        """Shows a message that stays."""

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Shows one point of the curves.

        Args:
            step: environment steps.
            values: as in metrics.jsonl.
            eta_s: seconds to the end of the run, unless it is solved sooner.
        """

    def checkpoint(self, path: Path, step: int) -> None:
        """Notes that a checkpoint was written."""

    def close(self) -> None:
        """Shows nothing more; may be called again."""


class _Record:
    """Keeps messages in messages.txt of the run folder, with the time of the run."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._early: list[str] = []
        self._file: TextIO | None = None

    def open(self, folder: Path) -> None:
        """From here on in a file, with what was said before."""
        with suppress(OSError):
            path = folder / "messages.txt"
            self._file = path.open("a", buffering=1, encoding="utf-8")
        self._began = time.perf_counter()
        early, self._early = self._early, []
        for text in early:
            self.add(text)

    def add(self, text: str) -> None:
        """A message; a full disk loses it."""
        stamp = format_seconds(time.perf_counter() - self._began)
        if self._file is None:
            self._early.append(text)
            return
        with suppress(OSError, ValueError):
            text = textwrap.indent(text, " " * 10).lstrip()
            self._file.write(f"{stamp:>8}  {text}\n")

    def close(self) -> None:
        """Ends the file; may be called again."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


class PlainDisplay:
    """A line per point and per message, for files and pipes."""

    def __init__(self) -> None:
        self._record = _Record()
        self._overlapped = False
        self._verdict = ""

    def start(self, run: Run) -> None:
        """Prints what is run, and what the columns of its lines are."""
        self._overlapped = run.config.lag > 0
        self._record.open(run.run_dir)
        self.say(banner(run))
        _print(progress_legend(run.config.env.frame_skip))

    def say(self, text: str) -> None:
        """Prints a message."""
        self._record.add(text)
        _print(text)

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Prints a line, and the verdict on the speed when that has changed."""
        _print(progress_line(step, values, eta_s))
        text = verdict_of(values, self._overlapped)
        kind = text.partition(":")[0]
        if kind != self._verdict:
            self.say(text)
            self._verdict = kind

    def checkpoint(self, path: Path, step: int) -> None:
        """Prints nothing: there are too many."""

    def close(self) -> None:
        """Ends the record of messages."""
        self._record.close()


def _print(text: str) -> None:
    """Prints a line; where that fails, the run goes on without it."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Nobody reads it any more: Ctrl-C ends `| tee`, too. Nor do the next lines
        # fail, or the last flush of Python, which would be another exit status.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except OSError:
        pass  # a log on a full disk; there may be room again


class QuietDisplay:
    """Nothing at all, for runs of which somebody else tells."""

    def start(self, run: Run) -> None:
        """Shows nothing."""

    def say(self, text: str) -> None:
        """Shows nothing."""

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Shows nothing."""

    def checkpoint(self, path: Path, step: int) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Nothing is open."""


class LiveDisplay:
    """A dashboard that fills the terminal; messages also scroll away above it.

    It is drawn by a thread of its own, once a second and when the terminal has
    changed its size. What anybody prints or logs meanwhile is a message, too.
    """

    def __init__(self, console: Console | None = None) -> None:
        """Opens the terminal.

        Args:
            console: where to draw, with a file of its own; by default stdout.
        """
        self.drawing_s = 0.0
        """Processor time that drawing has taken, in seconds."""
        self._console = console or Console(file=sys.stdout, highlight=False)
        self._record = _Record()
        self._board: Board | None = None
        self._run: Run | None = None
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

    def start(self, run: Run) -> None:
        """Prints what is run, and draws from here on."""
        self._record.open(run.run_dir)
        self.say(banner(run))
        config, env = run.config, run.config.env
        model = f"{config.model.name} on {describe(run.device, run.dtype)}"
        self._run = run
        self._board = Board(
            task=describe_levels(env.task, env.levels, env.test_levels),
            about=f"{model}, {config.mode}",
            max_steps=config.max_steps,
            max_seconds=config.max_seconds,
            solve_rate=config.solve_rate,
            overlapped=config.lag > 0,
            replay_capacity=run.replay.capacity if run.replay is not None else 0,
            step=run.steps,
        )
        self._board.messages.append(
            (0.0, f"writing to {run.run_dir}/; Ctrl-C ends the run with a checkpoint")
        )
        self._live.start()
        self._closing.callback(self._live.stop)
        self._refresh()
        self._closing.enter_context(_captured(self.say))
        self._closing.enter_context(_suspendable(self._console))
        thread = threading.Thread(target=self._redraw, name="dashboard", daemon=True)
        thread.start()
        self._closing.callback(thread.join)
        self._closing.callback(self._stop.set)

    def say(self, text: str) -> None:
        """Prints a message above the dashboard, and shows it in it for a while."""
        board = self._board
        if board is not None:
            board.messages.append((board.seconds(), text))
        self._record.add(text)
        with suppress(OSError):  # the terminal is gone, the run goes on
            self._console.print(Text(text), soft_wrap=True)
            self._park()

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Takes the values that are drawn from now on."""
        if self._board is not None:
            self._board.report(step, values, eta_s)

    def checkpoint(self, path: Path, step: int) -> None:
        """Takes what is drawn of the last checkpoint."""
        if self._board is not None:
            self._board.saved = (self._board.seconds(), step, str(path))

    def close(self) -> None:
        """Leaves the last picture where it is, and the terminal as it was."""
        self._closing.close()
        self._size = None
        self._record.close()
        self._board = self._run = None

    def _redraw(self) -> None:
        """The thread: draws once a second, or less often where that costs more."""
        due = 0.0
        while not self._stop.wait(0.25):
            began, spent = time.perf_counter(), time.thread_time()
            if began >= due or self._console.size != self._size:
                self._refresh()
                now = time.perf_counter()
                # Others may wait as long as this took, not only as long as it computed.
                due = now + min(10.0, max(1.0, (now - began) / _MOST_OF_THE_TIME))
                self.drawing_s += time.thread_time() - spent

    def _refresh(self) -> None:
        self._live.refresh()
        self._park()

    def _park(self) -> None:
        """Puts the cursor where the terminal's own ^C does not begin a new line."""
        if self._size is not None:
            self._console.control(Control(ControlType.CARRIAGE_RETURN))

    def _draw(self) -> RenderableType:
        size, board, run = self._console.size, self._board, self._run
        # The picture fills the terminal, so its place is known, whatever others have
        # written meanwhile; only the first one follows what was there before.
        if self._size is not None:
            self._console.control(Control.home())
        if self._size not in (None, size):
            self._console.control(Control.clear())
        self._size = size
        if board is None or run is None:
            return Text("")
        board.step = run.steps
        try:
            return view(board, size.width, size.height)
        except Exception as error:  # a picture is no reason to end a run
            return Text(f"the dashboard cannot be drawn: {error!r}")


class _Lines(io.TextIOBase):
    """A text file whose lines are messages."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._rest = say, threading.local()

    def write(self, text: str) -> int:
        """Keeps what is not a whole line yet, for each thread."""
        *lines, self._rest.text = (getattr(self._rest, "text", "") + text).split("\n")
        if any(lines):
            self._say("\n".join(lines))
        return len(text)

    def writable(self) -> bool:
        """It is."""
        return True


@contextmanager
def _suspendable(console: Console) -> Iterator[None]:
    """Shows the cursor while Ctrl-Z has stopped the process."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or not hasattr(signal, "SIGTSTP"):  # Windows has no such signal
        yield
        return

    def show(cursor: bool) -> None:
        # Python's files are not reentrant, and this may come amid a write.
        with suppress(RuntimeError, OSError):
            console.show_cursor(cursor)

    def suspend(number: int, frame: FrameType | None) -> None:
        del frame
        show(True)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # From here on it goes on.
        signal.signal(number, suspend)
        show(False)

    old = signal.signal(signal.SIGTSTP, suspend)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, old)


def _captured(say: Callable[[str], None]) -> ExitStack:
    """Turns into messages what is printed and logged, until it is closed."""
    stack, lines = ExitStack(), _Lines(say)
    # Handlers of the logging module keep the file that stderr once was.
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            stack.callback(handler.setStream, handler.stream)
            handler.setStream(lines)
    stack.enter_context(redirect_stdout(lines))
    stack.enter_context(redirect_stderr(lines))
    return stack


def make_display(mode: str) -> Display:
    """The display for stdout.

    Args:
        mode: auto, on or off, as `RunConfig.dashboard` says.

    Raises:
        ValueError: it is on, and stdout is not a terminal.
    """
    terminal = sys.stdout.isatty()
    if mode == "on" and not terminal:
        raise ValueError(
            "dashboard=on needs a terminal, and stdout is a file or a pipe; choose "
            "dashboard=auto or off"
        )
    able = terminal and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    # What is drawn is in no other encoding.
    able = able and (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    return (
        LiveDisplay() if mode == "on" or (mode == "auto" and able) else PlainDisplay()
    )


def banner(run: Run) -> str:
    """What is run, where, and where it writes to."""
    config, env = run.config, run.config.env
    what = describe_levels(env.task, env.levels, env.test_levels)
    size = describe_model(run.model, run.obs_shape)
    overlap = (
        f"collecting up to {config.lag} batches ahead of learning"
        if config.lag
        else "collecting and learning in turns"
    )
    fallback = ""
    if config.device == "auto" and run.device.type == "cpu":
        fallback = " (--device auto found no usable GPU)"
    return (
        f"{what}: {env.num_envs} environments in {env.groups} groups, "
        f"{config.mode}, {overlap}\n"
        f"{config.model.name}: {size.parameters:,} parameters, "
        f"{size.forward_flops / 1e6:.1f} MFLOP per observation, on "
        f"{describe(run.device, run.dtype)}{fallback}\n"
        f"writing to {run.run_dir}/ (tensorboard --logdir {run.run_dir.parent})"
    )


def progress_legend(frame_skip: int) -> str:
    """What the columns of `progress_line` are, for the start of a run."""
    return (
        f"columns: environment steps ({frame_skip} frames each) | SPS: environment "
        "steps per second | return: mean of the\n"
        "last 100 episodes | x mean50: furthest x of an episode, mean of the last 50 | "
        "max: furthest x of\n"
        "this run | clear: share of the last 100 episodes of each level that cleared | "
        "ETA: to max_steps or max_seconds"
    )


def progress_line(step: int, values: Mapping[str, float], eta_s: float) -> str:
    """The line a person reads while the run goes on."""
    parts = [f"{step:>9,} steps", f"{values.get('time/sps', 0.0):6,.0f} SPS"]
    if "rollout/return" in values:
        parts += [
            f"return {values['rollout/return']:7.2f}",
            f"x mean50 {values['rollout/best_x_50']:5.0f}",
            f"max {values['rollout/best_x_run']:5.0f}",
            f"clear {values['rollout/clear_rate']:4.0%}",
        ]
    else:
        parts.append("no episode has ended yet")
    parts.append(f"ETA {format_seconds(eta_s)}")
    return " | ".join(parts)
