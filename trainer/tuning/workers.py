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


class _Worker:
    """One process, and its current task."""

    def __init__(self) -> None:
        self.task = ""
        self.connection, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self.process: BaseProcess = context.Process(target=_work, args=(theirs,))
        self.process.start()
        # Only the process holds its end now, so that its death closes the connection.
        theirs.close()

    def take(self) -> Any:
        """The result of the finished task."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return Failed(f"its process ended with status {self.process.exitcode}")

    def close(self) -> None:
        """Ends the process, which has no task, and waits for it."""
        self.connection.close()
        self.process.join(_GRACE_S / 10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


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
        self._workers: list[_Worker] = []

    @property
    def free(self) -> int:
        """The number of tasks that can begin now."""
        return self._jobs - len(self.running)

    @property
    def running(self) -> list[str]:
        """Names of the running tasks."""
        return [worker.task for worker in self._workers if worker.task]

    def submit(self, name: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Starts a task; function, arguments and result are pickled."""
        worker = next((some for some in self._workers if not some.task), None)
        if worker is None:
            worker = _Worker()
            self._workers.append(worker)
        worker.task = name
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
        busy = {w.connection: w for w in self._workers if w.task}
        results = []
        for connection in wait(list(busy), seconds):
            worker = busy[connection]  # type: ignore[index]
            results.append((worker.task, worker.take()))
            worker.task = ""
            if not worker.process.is_alive():
                self._workers.remove(worker)
        return results

    def stop(self) -> list[tuple[str, Any]]:
        """Ends the running tasks; runs end with a checkpoint, and return a result."""
        for worker in self._workers:
            if worker.task:
                worker.process.terminate()
        results = []
        until = time.monotonic() + _GRACE_S
        while self.running and (left := until - time.monotonic()) > 0:
            results += self.wait(left)
        return results

    def close(self) -> None:
        """Ends the processes and their tasks; may be called again."""
        self.stop()
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()
