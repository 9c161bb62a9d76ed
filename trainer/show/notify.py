"""Notifications for `--notify`, which apprise sends."""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from trainer.config import shown

# How long a run waits at its end for the last notifications.
_CLOSE_S = 20.0


class Notifier:
    """Sends messages in a separate thread, so that a run never waits for a network."""

    def __init__(self, urls: str, log: Callable[[str], None]) -> None:
        """Checks the URLs; sends nothing yet."""
        self._log = log
        self._service = _service(urls)
        self._queue: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        # A daemon, so that a network without an answer does not block the process.
        self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
        self._thread.start()

    def send(self, title: str, text: str) -> None:
        """Sends a message; returns at once."""
        self._queue.put((title, shown.message(text)))

    def _work(self) -> None:
        while (message := self._queue.get()) is not None:
            title, text = message
            try:
                sent = self._service.notify(title=title, body=text)
            except Exception as error:  # services raise anything; the run continues
                # Not its text, which may quote the URL.
                kind = type(error).__name__
                self._log(f"could not send notification {title!r}: {kind}")
                continue
            if not sent:
                self._log(
                    f"could not send notification {title!r}: the service of --notify "
                    "refused it; check the URL and the network"
                )

    def close(self) -> None:
        """Waits a limited time for pending messages; may be called again."""
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
        # Services of apprise use modules that Python deprecates.
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
    # Added one at a time, so that the error names the URL, without a possible password.
    service = apprise.Apprise()
    # Apprise logs failures with the whole URL; `_work` logs them without it.
    logging.getLogger("apprise").setLevel(logging.CRITICAL)
    for part in urls:
        if not service.add(part):
            scheme, colon, _ = part.partition("://")
            what = (
                f"the URL that begins with {scheme!r}"
                if colon
                else "a text without ://"
            )
            raise ValueError(
                f"--notify: apprise has no service for {what}; give a URL such as "
                "ntfy://TOPIC or mailto://... "
                "(https://appriseit.com/services/)"
            )
    return service
