"""Curves: metrics.jsonl, TensorBoard, Weights & Biases."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.config.plain import flat
from trainer.machine.files import Lines
from trainer.show.wandb_run import WandbRun

# TensorBoard's writer does not survive a full disk: it needs this many free bytes.
_BOARD_NEEDS_BYTES = 2**20
# Curves that TensorBoard's table of hyper-parameters has columns for.
_OUTCOMES = ("rollout/clear_rate", "rollout/return", "rollout/best_x_50", "time/sps")


class MetricsWriter:
    """Writes scalars to metrics.jsonl, to TensorBoard, and to W&B if asked."""

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
        """Opens the files.

        Args:
            run_dir: existing folder.
            config: shown by W&B, and by TensorBoard as hyper-parameters.
            command: the command line of the run, shown by TensorBoard as a text.
            wandb: whether to log there as well, see `WandbRun`.
            resumed_at: step that the run goes on from, 0 for a new one: TensorBoard
                hides what it has of later ones.
            log: receives a message when something cannot be written.
        """
        self._run_dir = run_dir
        self._lines = Lines(run_dir / "metrics.jsonl", log)
        self._board = self._open_board(resumed_at)
        self._describe(config, command, resumed_at or 0)
        self._wandb: WandbRun | None = None
        if wandb:
            self._wandb = WandbRun(run_dir, config, resumed=bool(resumed_at))

    def _open_board(self, resumed_at: int | None = None) -> Any:
        # Only a run that writes curves pays for this import.
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resumed_at is None else resumed_at + 1
        return SummaryWriter(str(self._run_dir), purge_step=purge)

    def _describe(self, config: Mapping[str, Any], command: str, step: int) -> None:
        """Shows the hyper-parameters and the command in TensorBoard.

        `SummaryWriter.add_hparams` would make a second folder, which TensorBoard takes
        for another run; these are the same summaries in the files of this one.
        """
        from torch.utils.tensorboard import summary

        summaries: Any = summary  # not typed
        known = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in flat(config).items()
        }
        if not known or not self._has_room():
            return
        try:
            # The third one says that a run has ended well; nobody knows that yet.
            outcomes = dict.fromkeys(_OUTCOMES, 0.0)
            for part in summaries.hparams(known, outcomes)[:2]:
                self._board.file_writer.add_summary(part)
            if command:
                self._board.add_text("command", f"```\n{command}\n```", step)
            self._board.flush()
        except OSError:
            self._board = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one point of every curve, at an environment step.

        Where the disk is full, the point is lost and the run goes on.
        """
        written = self._lines.write({"step": step, **values})
        if written and self._has_room():
            self._write_board(step, values)
        if self._wandb is not None:
            self._wandb.write(step, values)

    def _has_room(self, size: int = 0) -> bool:
        """Whether TensorBoard can have so many bytes, and some more."""
        free = shutil.disk_usage(self._run_dir).free
        return free >= size + _BOARD_NEEDS_BYTES

    def _write_board(self, step: int, values: Mapping[str, float]) -> None:
        """One point for TensorBoard, on the disk before it returns."""
        try:
            self._board = self._board or self._open_board()
            for name, value in values.items():
                self._board.add_scalar(name, value, step)
            self._board.flush()
        except OSError:
            # Its writer is of no use after an error; the next point gets a new one.
            self._board = None

    def write_video(self, step: int, name: str, path: Path, gif: bytes) -> None:
        """Shows a video in TensorBoard and W&B.

        Args:
            step: environment step of what it shows.
            name: of the video.
            path: the MP4, for W&B.
            gif: a small GIF: what TensorBoard shows, which has no videos.
        """
        from tensorboard.compat.proto.summary_pb2 import Summary

        # Width and height stand at the same place in every GIF.
        width, height = struct.unpack("<HH", gif[6:10])
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=gif
        )
        summary = Summary(value=[Summary.Value(tag=f"videos/{name}", image=image)])
        if self._board is not None and self._has_room(len(gif)):
            try:
                self._board.file_writer.add_summary(summary, step)
                self._board.flush()
            except OSError:
                self._board = None
        if self._wandb is not None:
            self._wandb.write_video(name, path)

    def close(self) -> None:
        """Flushes and closes everything."""
        self._lines.close()
        if self._board is not None:
            with suppress(OSError):
                self._board.close()
        if self._wandb is not None:
            self._wandb.close()
