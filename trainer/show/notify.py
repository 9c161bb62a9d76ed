"""Notifications for `--notify`, which apprise sends."""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
import warnings
from collections.abc import Callable
from typing import Any

from trainer.config import shown

# How long a run waits at its end for the last notifications.
_CLOSE_S = 20.0


class Notifier:
    """Sends messages in a separate thread, so that a run never waits for a network."""

    def __init__(self, urls: str, log: Callable[[str], None]) -> None:
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
    expanded = os.path.expandvars(urls)
    if missing := re.search(r"\$\{?(\w+)", expanded):
        raise ValueError(
            f"--notify names the environment variable {missing[1]}, which is not set"
        )
    with warnings.catch_warnings():
        # Services of apprise use modules that Python deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            import apprise
        except ModuleNotFoundError as error:
            raise ImportError(
                "--notify needs apprise, which is not installed: pip install "
                "'mario-envpool[notify]'"
            ) from error
        # Apprise logs failures with the whole URL; `_work` logs them without it.
        logging.getLogger("apprise").setLevel(logging.CRITICAL)
        service = apprise.Apprise()
        # One at a time, so that the error names the URL, without a possible password.
        for url in re.split(r"[,\s]+(?=\w+://)", expanded.strip()):
            if not service.add(url):
                scheme, colon, _ = url.partition("://")
                what = f"the URL that begins with {scheme!r}"
                raise ValueError(
                    f"--notify: apprise has no service for "
                    f"{what if colon else 'a text without ://'}; give a URL such as "
                    "ntfy://TOPIC or mailto://... (https://appriseit.com/services/)"
                )
        return service
