"""Threads and locks that pass on what a host thread knows of the device.

What a thread knew when it released a lock is known to the next that takes it; a thread
begins with what its starter knew, and who joins it knows what it knew.
"""

import threading

from . import order


class Lock:
    """threading.Lock."""

    make = staticmethod(threading.Lock)

    def __init__(self):
        self._inner, self._known = self.make(), {}

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def _pass_on(self, known, to):
        with order.lock:
            order.merge(to, known)

    def acquire(self, *args, **options):
        taken = self._inner.acquire(*args, **options)
        if taken:
            self._pass_on(self._known, order.host.clock)
        return taken

    def release(self):
        self._pass_on(order.host.clock, self._known)
        self._inner.release()

    __enter__ = acquire

    def __exit__(self, *error):
        self.release()


class RLock(Lock):
    """threading.RLock; threading.Condition takes these methods for its waits."""

    make = staticmethod(threading.RLock)

    def _release_save(self):
        self._pass_on(order.host.clock, self._known)
        return self._inner._release_save()

    def _acquire_restore(self, state):
        self._inner._acquire_restore(state)
        self._pass_on(self._known, order.host.clock)


def follow(prepare):
    """Makes all later threads and locks of the process pass on what is known.

    Each thread runs inside the context that `prepare` gives.
    """

    class Thread(threading.Thread):
        def start(self):
            self._known = dict(order.host.clock)
            super().start()

        def run(self):
            order.host.clock = self._known
            with prepare():
                super().run()

        def join(self, timeout=None):
            super().join(timeout)
            if not self.is_alive():
                with order.lock:
                    order.merge(order.host.clock, self._known)

    vars(threading).update(Lock=Lock, RLock=RLock, Thread=Thread)
