"""Threads and locks that pass on what a host thread knows of the device.

What a thread knew when it released a lock is known to the next that takes it; a thread
begins with what its starter knew, and who joins it knows what it knew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .order import Clock, Order, merge

_Lock, _RLock, _Thread = threading.Lock, threading.RLock, threading.Thread


def follow(order: Order, prepare: Callable[[], Any]) -> None:
    """Makes all later threads and locks of the process pass on what is known.

    Each thread runs inside the context that `prepare` gives.
    """

    class Lock:
        _make: Callable[[], Any] = _Lock

        def __init__(self) -> None:
            self._inner, self._known = type(self)._make(), Clock()

        def _take(self) -> None:
            with order.lock:
                merge(order.host.clock, self._known)

        def _give(self) -> None:
            with order.lock:
                merge(self._known, order.host.clock)

        def acquire(self, *args: Any, **options: Any) -> bool:
            taken = bool(self._inner.acquire(*args, **options))
            if taken:
                self._take()
            return taken

        def release(self) -> None:
            self._give()
            self._inner.release()

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *error: object) -> None:
            self.release()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    class RLock(Lock):
        _make = _RLock

        # threading.Condition takes these two for its waits.
        def _release_save(self) -> Any:
            self._give()
            return self._inner._release_save()

        def _acquire_restore(self, state: Any) -> None:
            self._inner._acquire_restore(state)
            self._take()

    class Thread(_Thread):
        def start(self) -> None:
            self._known: Clock = dict(order.host.clock)
            super().start()

        def run(self) -> None:
            order.host.clock = dict(self._known)
            with prepare():
                super().run()
            self._known = dict(order.host.clock)

        def join(self, timeout: float | None = None) -> None:
            super().join(timeout)
            if not self.is_alive():
                with order.lock:
                    merge(order.host.clock, self._known)

    new: dict[str, Any] = {"Lock": Lock, "RLock": RLock, "Thread": Thread}
    for name, value in new.items():
        setattr(threading, name, value)
