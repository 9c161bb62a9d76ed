"""Processes that do one task after another, and do not outlive who began them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

# In a worker: held while it does a task.
_busy = threading.Lock()


def _set_up() -> None:
    """Of a worker: Ctrl-C is for runs, which end with a checkpoint, and for the parent.

    When the parent is gone, by kill -9 too, a run ends likewise, and then the worker.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        if _busy.locked():
            os.kill(os.getpid(), signal.SIGTERM)
        with _busy:
            os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    with _busy:
        return function(*arguments)


class Workers:
    """A few processes; each task has a name."""

    def __init__(self, jobs: int) -> None:
        """Starts none yet.

        Args:
            jobs: tasks at the same time, at most.
        """
        self._jobs = jobs
        self._pool: ProcessPoolExecutor | None = None
        self._running: dict[Future[Any], str] = {}

    @property
    def free(self) -> int:
        """How many more tasks can be done at once."""
        return self._jobs - len(self._running)

    @property
    def running(self) -> list[str]:
        """Names of the tasks that are being done."""
        return list(self._running.values())

    def submit(self, name: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Starts a task; function and arguments are pickled."""
        try:
            future = self._started().submit(_call, function, arguments)
        except BrokenProcessPool:  # one of its processes died
            self._pool = None
            future = self._started().submit(_call, function, arguments)
        self._running[future] = name

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._jobs, context, _set_up)
        return self._pool

    def wait(self, seconds: float | None = None) -> list[tuple[str, Any]]:
        """Names and results of the tasks that have ended, in the order of submission.

        A result is the exception where the task raised one, or its process died.

        Args:
            seconds: to wait at most; None: until one has ended.
        """
        ended = wait(self._running, seconds, FIRST_COMPLETED).done
        results = []
        for future in [future for future in self._running if future in ended]:
            error = future.exception()
            result = future.result() if error is None else error
            results.append((self._running.pop(future), result))
        return results

    def close(self) -> None:
        """Ends the processes; a run that goes on ends with a checkpoint."""
        if self._pool is None:
            return
        for process in multiprocessing.active_children() if self._running else ():
            process.terminate()
        self._pool.shutdown(cancel_futures=True)
        self._pool = None
        self._running.clear()
