"""Worker processes that run tasks one at a time and end with their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

# Seconds that a task may take to end after SIGTERM, for example to write a checkpoint.
_GRACE_S = 30.0


class Failed(NamedTuple):
    """The result of a task that raised an exception, or whose process died."""

    reason: str  # one line
    details: str = ""  # the traceback of an exception


class _Worker(NamedTuple):
    """A process, and the connection over which it gets tasks and returns results."""

    process: BaseProcess
    connection: Connection


def _start() -> _Worker:
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_work, args=(theirs,))
    process.start()
    # Only the process holds its end now, so that its death closes the connection.
    theirs.close()
    return _Worker(process, ours)


def _work(connection: Connection) -> None:
    """The process: runs the tasks that it receives until the connection closes."""
    # A new session, so that only the parent receives Ctrl-C; it sends SIGTERM.
    os.setsid()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        # Also after kill -9 of the parent, a run ends as after SIGTERM.
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            function, arguments = connection.recv()
            try:
                result = function(*arguments)
            except Exception as error:
                text = str(error).split("\n")[0]
                result = Failed(
                    f"{type(error).__name__}: {text}", traceback.format_exc()
                )
            connection.send(result)


class Workers:
    """A few processes; each task has a name."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._idle: list[_Worker] = []
        self._busy: dict[Any, tuple[str, _Worker]] = {}  # by their connections

    @property
    def free(self) -> int:
        """The number of tasks that can begin now."""
        return self._jobs - len(self._busy)

    @property
    def running(self) -> list[str]:
        """Names of the running tasks."""
        return [name for name, _ in self._busy.values()]

    def submit(self, name: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Starts a task; function, arguments and result are pickled."""
        worker = self._idle.pop() if self._idle else _start()
        self._busy[worker.connection] = name, worker
        worker.connection.send((function, arguments))

    def do(
        self, tasks: Iterable[tuple[Any, ...]], waiting: Callable[[], object] = int
    ) -> Iterator[tuple[str, Any]]:
        """Runs tasks, at most `jobs` at a time."""
        left = deque(tasks)
        while left or self.running:
            while left and self.free:
                self.submit(*left.popleft())
            yield from self.wait(1.0)
            waiting()

    def wait(self, seconds: float | None = None) -> list[tuple[str, Any]]:
        """Names and results of the finished tasks; a failed task has `Failed`."""
        results = []
        for connection in wait(list(self._busy), seconds):
            name, worker = self._busy.pop(connection)
            try:
                result = worker.connection.recv()
                self._idle.append(worker)
            except (EOFError, OSError):
                worker.process.join()
                status = worker.process.exitcode
                result = Failed(f"its process ended with status {status}")
            results.append((name, result))
        return results

    def stop(self) -> list[tuple[str, Any]]:
        """Ends the running tasks; runs end with a checkpoint, and return a result."""
        for _, worker in self._busy.values():
            worker.process.terminate()
        results = []
        until = time.monotonic() + _GRACE_S
        while self.running and (left := until - time.monotonic()) > 0:
            results += self.wait(left)
        return results

    def close(self) -> None:
        """Ends the processes and their tasks; may be called again."""
        self.stop()
        workers = self._idle + [worker for _, worker in self._busy.values()]
        self._idle, self._busy = [], {}
        for process, connection in workers:
            connection.close()
            process.join(_GRACE_S / 10)
            process.kill()
            process.join()
