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

# Free bytes required before a write: TensorBoard's writer breaks on a full disk.
_BOARD_NEEDS_BYTES = 2**20
# Curves that have a column in TensorBoard's table of hyper-parameters.
_OUTCOMES = ("rollout/clear_rate", "rollout/return", "rollout/best_x_50", "time/sps")


class MetricsWriter:
    """Writes scalars to metrics.jsonl, to TensorBoard, and optionally to W&B."""

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
        """Opens the files."""
        self._run_dir = run_dir
        self._lines = Lines(run_dir / "metrics.jsonl", log)
        self._board = self._open_board(resumed_at)
        self._describe(config, command, resumed_at or 0)
        self._wandb: WandbRun | None = None
        if wandb:
            self._wandb = WandbRun(run_dir, config, resumed=bool(resumed_at))

    def _open_board(self, resumed_at: int | None = None) -> Any:
        # Imported here: only a run that writes curves needs it.
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resumed_at is None else resumed_at + 1
        return SummaryWriter(str(self._run_dir), purge_step=purge)

    def _describe(self, config: Mapping[str, Any], command: str, step: int) -> None:
        """Shows the hyper-parameters and the command in TensorBoard.

        `SummaryWriter.add_hparams` would make a second folder, which TensorBoard shows
        as another run. This writes the same summaries to the files of this run.
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
            # The third summary, left out, reports that the run succeeded.
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

        If the disk is full, the point is lost and the run continues.
        """
        written = self._lines.write({"step": step, **values})
        if written and self._has_room():
            self._write_board(step, values)
        if self._wandb is not None:
            self._wandb.write(step, values)

    def _has_room(self, size: int = 0) -> bool:
        """Whether the disk has room for this many bytes plus a reserve."""
        free = shutil.disk_usage(self._run_dir).free
        return free >= size + _BOARD_NEEDS_BYTES

    def _write_board(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one point for TensorBoard and flushes it."""
        try:
            self._board = self._board or self._open_board()
            for name, value in values.items():
                self._board.add_scalar(name, value, step)
            self._board.flush()
        except OSError:
            # The writer is unusable after an error; the next point opens a new one.
            self._board = None

    def write_video(self, step: int, name: str, path: Path, gif: bytes) -> None:
        """Shows a video in TensorBoard and W&B."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        # Every GIF has its width and height at the same place.
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
