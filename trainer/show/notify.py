"""Notifications wherever the user reads, for `--notify`: apprise sends them."""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

# How long the end of a run waits for its last notifications.
_CLOSE_S = 20.0


class Notifier:
    """Sends messages in a thread of its own: a run never waits for a network."""

    def __init__(self, urls: str, log: Callable[[str], None]) -> None:
        """Checks the URLs; nothing is sent yet.

        Args:
            urls: of apprise, with commas between; `$NAME` is an environment variable.
            log: receives a line about each message that is not delivered.

        Raises:
            ValueError: an environment variable is not set, or apprise knows no such
                URL.
            ImportError: apprise is not installed.
        """
        self._log = log
        self._service = _service(urls)
        self._queue: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        # A network that never answers must not keep the process.
        self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
        self._thread.start()

    def send(self, title: str, text: str) -> None:
        """Sends a message; returns at once."""
        self._queue.put((title, text))

    def _work(self) -> None:
        while (message := self._queue.get()) is not None:
            title, text = message
            try:
                sent = self._service.notify(title=title, body=text)
            except Exception as error:  # whatever a service raises: the run goes on
                self._log(f"no notification of {title!r}: {error}")
                continue
            if not sent:
                self._log(
                    f"no notification of {title!r}: the service of --notify did not "
                    "take it; check the URL and the network"
                )

    def close(self) -> None:
        """Waits a while for what is being sent; may be called again."""
        self._queue.put(None)
        self._thread.join(_CLOSE_S)


def _service(urls: str) -> Any:
    """Apprise with the services of `urls`; see `Notifier`."""
    given = os.path.expandvars(urls)
    if missing := re.search(r"\$\{?(\w+)", given):
        raise ValueError(
            f"--notify names the environment variable {missing[1]}, which is not set"
        )
    with warnings.catch_warnings():
        # Its services use modules that Python is about to drop.
        warnings.simplefilter("ignore", DeprecationWarning)
        return _added(re.split(r"[,\s]+(?=\w+://)", given.strip()))


def _added(urls: Sequence[str]) -> Any:
    """Apprise with the services of some URLs; see `Notifier`."""
    try:
        import apprise
    except ModuleNotFoundError as error:
        raise ImportError(
            "--notify needs apprise, which is not installed: pip install "
            "'mario-envpool[notify]'"
        ) from error
    # One by one, so that a wrong one is named; without what may be a password.
    service = apprise.Apprise()
    # It tells the log of a failure, URL and all; `_work` says what there is to say.
    logging.getLogger("apprise").setLevel(logging.CRITICAL)
    for part in urls:
        if not service.add(part):
            kind = part.partition("://")[0] if "://" in part else part
            raise ValueError(
                f"--notify: apprise knows no service behind the URL that begins with "
                f"{kind[:20]!r}; give one such as ntfy://TOPIC or mailto://... "
                "(https://appriseit.com/services/)"
            )
    return service
