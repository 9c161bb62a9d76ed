"""What a command's process meets from outside: signals to end, and standard streams.

Every command begins with `open_streams`, and handles the same signals.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TextIO

# Ctrl-C, what batch systems and supervisors send, a closed terminal, and what Slurm
# sends with --signal. Windows has only the first two.
ENDING: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
    if hasattr(signal, name)
)

# A closed terminal sends SIGHUP from the shell and from the kernel, and torchrun passes
# on a signal that Slurm has also sent to its processes.
_SAME_REQUEST_S = 1.0


class Interrupted(KeyboardInterrupt):
    """A signal asked the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


def signal_of(error: KeyboardInterrupt) -> int:
    """The number of the signal behind an exception."""
    return error.signal if isinstance(error, Interrupted) else int(signal.SIGINT)


@contextmanager
def on_signal(handle: Callable[[int], None]) -> Iterator[None]:
    """Calls a function if a signal of `ENDING` comes in the block (main thread only).

    SIGHUP stays ignored if it was, as after nohup. Signals that come within a second
    are one request, so the function is called once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled_at = -_SAME_REQUEST_S

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal handled_at
        del frame
        now = time.monotonic()
        if now - handled_at >= _SAME_REQUEST_S:
            handled_at = now
            handle(number)

    old = {
        number: signal.signal(number, receive)
        for number in ENDING
        if not (number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN)
    }
    try:
        yield
    finally:
        for number, handler in old.items():
            # Not if another handler was set meanwhile.
            if signal.getsignal(number) is receive:
                signal.signal(number, handler)


@contextmanager
def raise_on_signal() -> Iterator[None]:
    """Makes the signals of `ENDING` raise `Interrupted` in the block; see `on_signal`.

    An exception leaves no half of a file: see `trainer.machine.files`.
    """
    received: list[int] = []

    def handle(number: int) -> None:
        received.append(number)
        raise Interrupted(number)

    with on_signal(handle):
        try:
            yield
        except KeyboardInterrupt as error:
            # Ray raises a new exception, without the number.
            if received and not isinstance(error, Interrupted):
                raise Interrupted(received[-1]) from error
            raise


def open_streams() -> None:
    """Opens the null device for each closed standard stream."""
    # Otherwise the next file would get the number, and what native code prints.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115, for the whole process
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


class StdoutError(OSError):
    """Text could not be written to stdout."""


class Stdout:
    """stdout, whose errors say that they are of stdout."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = ""  # why text could not be written, unless its reader has gone

    def write(self, text: str) -> int:
        """See `TextIO.write`."""
        with self._explained():
            return self._stream.write(text)

    def flush(self) -> None:
        """See `TextIO.flush`; raises as `write` does."""
        with self._explained():
            self._stream.flush()

    def finish(self) -> None:
        """Writes what is held back, without an error; afterwards no text can fail."""
        # Python's own attempt at its end would change the exit status.
        try:
            self.flush()
        except StdoutError:
            _discard(self._stream)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            if not isinstance(error, BrokenPipeError):  # Ctrl-C also ends `| tee`
                self.lost = reason
            raise StdoutError(f"cannot write to stdout ({reason})") from error

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's."""
        return getattr(self._stream, name)


@contextmanager
def checked_stdout() -> Iterator[Stdout]:
    """Makes errors of stdout raise `StdoutError` in the block."""
    stream = sys.stdout
    checked = Stdout(stream)
    sys.stdout = checked
    try:
        yield checked
    finally:
        checked.finish()
        sys.stdout = stream


def say(text: str) -> None:
    """Prints a line on stdout; if that fails, the program continues without it."""
    with suppress(OSError):
        print(text, flush=True)


def complain(text: str) -> None:
    """Prints a line on stderr, if that is possible."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def first_line(error: BaseException) -> str:
    """The reason in an error of a library, without the advice in the lines after it."""
    return str(error).strip().partition("\n")[0].strip() or type(error).__name__


def _discard(stream: TextIO) -> None:
    """Redirects a stream to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):  # only a real file has a number
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
