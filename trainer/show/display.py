"""Displays of a run: no output, messages in the run folder, or lines.

dashboard.py has the display for terminals.
"""

from __future__ import annotations

import io
import textwrap
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TextIO

import torch

from trainer.config.schema import RunConfig
from trainer.config.tasks import describe_levels
from trainer.machine.cpu import NICE_VARIABLE, emulation_nice
from trainer.machine.device import describe
from trainer.machine.process import say
from trainer.machine.timings import format_seconds
from trainer.models import ModelSize
from trainer.show.metrics import METRICS, bottleneck


@dataclass(frozen=True)
class RunInfo:
    """Facts about a run for its display."""

    config: RunConfig  # resolved
    run_dir: Path
    device: torch.device  # of the learner
    dtype: torch.dtype | None  # autocast type of the network, None for float32
    size: ModelSize
    replay_capacity: int  # unrolls; 0: no replay
    steps: Callable[[], int]  # returns the current number of environment steps
    ranks: int = 1

    @property
    def task(self) -> str:
        """The task and its levels, as text."""
        env = self.config.env
        return describe_levels(env.task, env.levels, env.test_levels)

    @cached_property
    def hardware(self) -> str:
        """The device and the data type of the network, as text."""
        return describe(self.device, self.dtype)

    def banner(self) -> str:
        """A description of the run, its device and its folder."""
        config, env, size = self.config, self.config.env, self.size
        overlap = (
            f"collecting up to {config.lag} batches ahead of learning"
            if config.lag
            else "collecting and learning take turns"
        )
        fallback = ""
        if config.device == "auto" and self.device.type == "cpu":
            fallback = " (--device auto found no usable GPU)"
        shared = f", on {self.ranks} processes" if self.ranks > 1 else ""
        lower = emulation_nice()
        priority = (
            f"emulation threads at nice {lower}: faster on an idle machine, slower "
            f"beside other busy processes ({NICE_VARIABLE}=0 turns this off)\n"
        )
        return (
            f"{self.task}: {env.num_envs} environments in {env.groups} groups, "
            f"{config.mode}, {overlap}{shared}\n"
            f"{config.model.name}: {size.parameters:,} parameters, "
            f"{size.forward_flops / 1e6:.1f} MFLOP per observation, on "
            f"{self.hardware}{fallback}\n"
            f"{priority if lower else ''}"
            f"writing to {self.run_dir}/ (tensorboard --logdir {self.run_dir.parent})"
        )


class Display:
    """Shows a run, here nothing: another program reports. All threads may call it."""

    def start(self, info: RunInfo) -> None:
        """Shows a description of the run, after it is built."""

    def log(self, text: str) -> None:
        """Shows a message that stays."""

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Shows one point of the curves."""

    def checkpoint(self, path: Path, step: int) -> None:
        """Records that a checkpoint was written."""

    def alarm(self, name: str, text: str) -> None:
        """Shows an alarm while it lasts, "" ends it; the caller also logs it."""

    def close(self) -> None:
        """Ends the display; may be called again."""


class RecordDisplay(Display):
    """Writes messages to messages.txt in the run folder, with the time of the run."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._early = io.StringIO()  # before there is a folder
        self._file: TextIO = self._early

    def start(self, info: RunInfo) -> None:
        """Opens the file, and writes the earlier messages to it."""
        with suppress(OSError):
            path = info.run_dir / "messages.txt"
            self._file = path.open("a", buffering=1, encoding="utf-8")
            self._file.write(self._early.getvalue())
        self._began = time.perf_counter()

    def log(self, text: str) -> None:
        """Writes a message; it is lost if the disk is full."""
        stamp = format_seconds(time.perf_counter() - self._began)
        text = textwrap.indent(text, " " * 10).lstrip()
        with suppress(OSError, ValueError):
            self._file.write(f"{stamp:>8}  {text}\n")

    def close(self) -> None:
        """Closes the file of messages; may be called again."""
        with suppress(OSError):
            self._file.close()


class PlainDisplay(RecordDisplay):
    """A line per point and per message, for files and pipes."""

    def __init__(self) -> None:
        super().__init__()
        self._overlapped = False
        self._bottleneck = ""

    def start(self, info: RunInfo) -> None:
        """Prints a description of the run, and of the columns of its lines."""
        self._overlapped = info.config.lag > 0
        super().start(info)
        self.log(info.banner())
        say(progress_legend(info.config.env.frame_skip))

    def log(self, text: str) -> None:
        """Prints a message."""
        super().log(text)
        say(text)

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Prints a line, and the bottleneck if it has changed."""
        say(progress_line(step, values, eta_s))
        text = bottleneck(values, self._overlapped)
        kind = text.partition(":")[0]
        if kind != self._bottleneck:
            self.log(text)
            self._bottleneck = kind


def progress_legend(frame_skip: int) -> str:
    """The meaning of the columns of `progress_line`."""
    columns = [f"columns: environment steps ({frame_skip} frames each)"]
    columns += [f"{m.label}: {m.title}" for m in METRICS.values() if m.line]
    columns.append("ETA: to max_steps or max_seconds")
    return textwrap.fill(" | ".join(columns), 100)


def progress_line(step: int, values: Mapping[str, float], eta_s: float) -> str:
    """The line that reports the progress of a run."""
    columns = [metric for metric in METRICS.values() if metric.line]
    parts = [f"{m.label} {m.text(values):>6}" for m in columns if m.key in values]
    if "rollout/return" not in values:
        parts.insert(0, "no episode has ended yet")
    return " | ".join([f"{step:>9,} steps", *parts, f"ETA {format_seconds(eta_s)}"])
