"""Curves (metrics.jsonl, TensorBoard, Weights & Biases) and notifications."""

from __future__ import annotations

import logging
import os
import re
import shutil
import struct
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from trainer.config import shown
from trainer.config.plain import flat
from trainer.machine.files import Lines, write_text
from trainer.machine.imports import extra
from trainer.show.metrics import METRICS

# Free bytes required before a write: TensorBoard's writer breaks on a full disk.
_BOARD_NEEDS_BYTES = 2**20
# Project on Weights & Biases, and the file in the run folder with the id of the run
# there, which a resumed run keeps.
_WANDB_PROJECT, _WANDB_ID = "mario-envpool", "wandb-id.txt"
# How long a run waits at its end for the last notifications.
_CLOSE_S = 20.0


class MetricsWriter:
    """Writes scalars to metrics.jsonl, to TensorBoard, and optionally to W&B.

    If the disk is full, a point is lost and the run continues.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Mapping[str, Any],
        *,
        command: str = "",
        wandb: bool = False,
        resumed_at: int | None = None,
        log: Callable[[str], None] = print,
    ) -> None:
        self._run_dir = run_dir
        self._lines = Lines(run_dir / "metrics.jsonl", log)
        self._board: Any = None
        self._purge_step = None if resumed_at is None else resumed_at + 1
        self._to_board(lambda board: _describe(board, config, command, resumed_at or 0))
        self._wandb: WandbRun | None = None
        if wandb:
            self._wandb = WandbRun(run_dir, config, resumed=bool(resumed_at))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one point of every curve, at an environment step."""

        def write(board: Any) -> None:
            for name, value in values.items():
                board.add_scalar(name, value, step)

        if self._lines.write({"step": step, **values}):
            self._to_board(write)
        if self._wandb is not None:
            self._wandb.write(step, values)

    def write_video(self, step: int, name: str, path: Path, gif: bytes) -> None:
        """Shows a video in TensorBoard and W&B."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        # Every GIF has its width and height at the same place.
        width, height = struct.unpack("<HH", gif[6:10])
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=gif
        )
        summary = Summary(value=[Summary.Value(tag=f"videos/{name}", image=image)])
        self._to_board(
            lambda board: board.file_writer.add_summary(summary, step), len(gif)
        )
        if self._wandb is not None:
            self._wandb.write_video(name, path)

    def _to_board(self, write: Callable[[Any], None], size: int = 0) -> None:
        """Writes to TensorBoard and flushes it, if the disk has room."""
        # Imported here: only a run that writes curves needs it.
        from torch.utils.tensorboard import SummaryWriter

        if shutil.disk_usage(self._run_dir).free < size + _BOARD_NEEDS_BYTES:
            return
        try:
            if self._board is None:
                folder = str(self._run_dir)
                self._board = SummaryWriter(folder, purge_step=self._purge_step)
                self._purge_step = None
            write(self._board)
            self._board.flush()
        except OSError:
            # The writer is unusable after an error; the next point opens a new one.
            self._board = None

    def close(self) -> None:
        """Flushes and closes everything."""
        self._lines.close()
        if self._board is not None:
            with suppress(OSError):
                self._board.close()
        if self._wandb is not None:
            self._wandb.close()


def _describe(board: Any, config: Mapping[str, Any], command: str, step: int) -> None:
    """Shows the hyper-parameters and the command in TensorBoard.

    `SummaryWriter.add_hparams` would make a second folder, which TensorBoard shows
    as another run. This writes the same summaries to the files of this run.
    """
    from torch.utils.tensorboard import summary

    options = {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in flat(config).items()
    }
    columns = {metric.key: 0.0 for metric in METRICS.values() if metric.line}
    hparams: Any = summary.hparams  # not typed
    # The third summary, left out, reports that the run succeeded.
    for part in hparams(options, columns)[:2] if options else ():
        board.file_writer.add_summary(part)
    if command:
        board.add_text("command", f"```\n{command}\n```", step)


class WandbRun:
    """A run on Weights & Biases.

    Weights & Biases reads its own environment variables and settings files
    (WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY, WANDB_NAME, WANDB_RUN_GROUP, WANDB_TAGS,
    WANDB_DIR, WANDB_RUN_ID, WANDB_RESUME, and so on). The defaults here apply only
    if these sources set no value.
    """

    def __init__(
        self, run_dir: Path, config: Mapping[str, Any], *, resumed: bool
    ) -> None:
        # Imported here: only a run with --wandb needs it.
        import wandb

        self._video = wandb.Video
        settings = wandb.setup().settings
        file = run_dir / _WANDB_ID
        run_id = ""
        if resumed and not settings.run_id and file.is_file():
            run_id = file.read_text("utf-8").strip()
        mode: Literal["offline"] | None = None
        if settings.mode == "online" and "WANDB_MODE" not in os.environ:
            # Without a key, `init` would ask for one and block the run.
            mode = None if wandb.login(prompt=False, verify=False) else "offline"
        # Printed lines name folders.
        console: dict[str, Any] = {}
        if "WANDB_CONSOLE" not in os.environ:
            console["console"] = "off"
        # Offline, `resume` has no effect and prints a warning.
        online = settings.mode == "online" and mode is None
        self._run: Any = wandb.init(
            project=None if settings.project else _WANDB_PROJECT,
            name=None if settings.run_name else run_dir.name,
            dir=None if "WANDB_DIR" in os.environ else str(run_dir),
            id=run_id or None,
            resume="allow" if run_id and online and not settings.resume else None,
            config=dict(config),
            allow_val_change=True,  # a resumed run may have other options
            mode=mode,
            # No command line, and no names of the host, the user and folders.
            settings=wandb.Settings(x_disable_meta=True, **console),
        )
        if not self._run.disabled:
            with suppress(OSError):  # a full disk; the run continues
                write_text(file, f"{self._run.id}\n")
        # W&B accepts only rising steps, and a killed run has logged steps after its
        # checkpoint.
        self._first_step = self._run.step if self._run.resumed else 0

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs one point of every curve, unless W&B already has this step."""
        if step >= self._first_step:
            self._run.log(dict(values), step=step)

    def write_video(self, name: str, path: Path) -> None:
        """Logs a video (MP4) with the latest point."""
        self._run.log({f"videos/{name}": self._video(str(path), format="mp4")})

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


class Notifier:
    """Sends messages through apprise, in threads: a run never waits for a network."""

    def __init__(self, urls: str, log: Callable[[str], None]) -> None:
        self._log = log
        self._service = _service(urls)
        self._threads: list[threading.Thread] = []

    def send(self, title: str, text: str) -> None:
        """Sends a message; returns at once."""
        # A daemon, so that a network without an answer does not block the process.
        thread = threading.Thread(
            target=self._send, args=(title, shown.message(text)), daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def _send(self, title: str, text: str) -> None:
        reason = "the service of --notify refused it; check the URL and the network"
        try:
            if self._service.notify(title=title, body=text):
                return
        except Exception as error:  # services raise anything; the run continues
            reason = type(error).__name__  # not its text, which may quote the URL
        self._log(f"could not send notification {title!r}: {reason}")

    def close(self) -> None:
        """Waits a limited time for pending messages; may be called again."""
        until = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


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
        with extra("notify", "--notify needs apprise"):
            import apprise
        # Apprise logs failures with the whole URL; `_send` logs them without it.
        logging.getLogger("apprise").setLevel(logging.CRITICAL)
        service = apprise.Apprise()
        # One at a time, so that the error names the URL, without a possible password.
        for url in re.split(r"[,\s]+(?=\w+://)", expanded.strip()):
            if not service.add(url):
                raise ValueError(
                    f"--notify: apprise has no service for {shown.value('secret', url)}"
                    "; give a URL such as ntfy://TOPIC or mailto://... "
                    "(https://appriseit.com/services/)"
                )
        return service
