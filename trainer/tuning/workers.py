"""Processes that do one task after another, and do not outlive who began them."""

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

# How long a task may take to end after SIGTERM: a run writes a checkpoint.
_GRACE_S = 30.0


class Failed(NamedTuple):
    """The result of a task that raised an exception, or whose process died.

    Attributes:
        reason: in one line.
        details: where it was raised; "": its process died.
    """

    reason: str
    details: str = ""


class _Worker:
    """One process, and the task that it does."""

    def __init__(self) -> None:
        self.task = ""
        self.connection, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self.process: BaseProcess = context.Process(target=_work, args=(theirs,))
        self.process.start()
        # The process alone holds its end, so that its death is seen at this one.
        theirs.close()

    def take(self) -> Any:
        """The result of the task, which has ended."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return Failed(f"its process ended with status {self.process.exitcode}")

    def close(self) -> None:
        """Waits until the process has ended, which has nothing to do any more."""
        self.connection.close()
        self.process.join(_GRACE_S / 10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _work(connection: Connection) -> None:
    """The process: does what it is sent until nobody is left to send anything."""
    # Ctrl-C is for the parent alone, which ends its processes by SIGTERM.
    os.setsid()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        # By kill -9, too: then a run ends likewise.
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
        """Starts none yet.

        Args:
            jobs: tasks at the same time, at most.
        """
        self._jobs = jobs
        self._workers: list[_Worker] = []

    @property
    def free(self) -> int:
        """How many more tasks can be done at once."""
        return self._jobs - len(self.running)

    @property
    def running(self) -> list[str]:
        """Names of the tasks that are being done."""
        return [worker.task for worker in self._workers if worker.task]

    def submit(self, name: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Starts a task; function, arguments and result are pickled."""
        idle = [worker for worker in self._workers if not worker.task]
        if not idle:
            idle = [_Worker()]
            self._workers += idle
        idle[0].task = name
        idle[0].connection.send((function, arguments))

    def do(
        self, tasks: Iterable[tuple[Any, ...]], waiting: Callable[[], object] = int
    ) -> Iterator[tuple[str, Any]]:
        """Does tasks, as many at a time as there are processes for.

        Args:
            tasks: name, function and arguments of each, as `submit` takes them.
            waiting: called after every wait, each second or oftener.

        Yields:
            Names and results, as `wait` gives them.
        """
        left = deque(tasks)
        while left or self.running:
            while left and self.free:
                self.submit(*left.popleft())
            yield from self.wait(1.0)
            waiting()

    def wait(self, seconds: float | None = None) -> list[tuple[str, Any]]:
        """Names and results of the tasks that have ended; `Failed` for those that did.

        Args:
            seconds: to wait at most; None: until one has ended.
        """
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
        """Ends what is being done; runs end with a checkpoint, and give a result."""
        for worker in self._workers:
            if worker.task:
                worker.process.terminate()
        results = []
        until = time.monotonic() + _GRACE_S
        while self.running and (left := until - time.monotonic()) > 0:
            results += self.wait(left)
        return results

    def close(self) -> None:
        """Ends the processes, and what they do; may be called again."""
        self.stop()
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()
