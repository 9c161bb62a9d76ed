"""Displays of a run: lines for a file or pipe, or no output.

dashboard.py has the display for terminals.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

import torch

from trainer.config.schema import RunConfig
from trainer.config.tasks import describe_levels
from trainer.machine.cpu import NICE_VARIABLE, emulation_nice
from trainer.machine.device import describe
from trainer.machine.process import say
from trainer.machine.timings import format_seconds
from trainer.models import ModelSize
from trainer.show.bottleneck import bottleneck_of


@dataclass(frozen=True)
class RunInfo:
    """Facts about a run for its display.

    Attributes:
        config: of the run, resolved.
        run_dir: folder of the run.
        device: of the learner.
        dtype: autocast type of the network, None for float32.
        size: of the network.
        replay_capacity: unrolls; 0: no replay.
        steps: returns the current number of environment steps.
        ranks: processes of the run.
    """

    config: RunConfig
    run_dir: Path
    device: torch.device
    dtype: torch.dtype | None
    size: ModelSize
    replay_capacity: int
    steps: Callable[[], int]
    ranks: int = 1

    @property
    def task(self) -> str:
        """The task and its levels, as text."""
        env = self.config.env
        return describe_levels(env.task, env.levels, env.test_levels)

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
            f"{describe(self.device, self.dtype)}{fallback}\n"
            f"{priority if lower else ''}"
            f"writing to {self.run_dir}/ (tensorboard --logdir {self.run_dir.parent})"
        )


class Display(Protocol):
    """Shows a run. Any thread may call any method."""

    def start(self, info: RunInfo) -> None:
        """Shows a description of the run, after it is built."""

    def log(self, text: str) -> None:
        """Shows a message that stays."""

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Shows one point of the curves."""

    def checkpoint(self, path: Path, step: int) -> None:
        """Records that a checkpoint was written."""

    def alarm(self, name: str, text: str) -> None:
        """Shows an alarm while it lasts; the caller also logs it."""

    def close(self) -> None:
        """Ends the display; may be called again."""


class MessageFile:
    """Writes messages to messages.txt in the run folder, with the time of the run."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._early: list[str] = []
        self._file: TextIO | None = None

    def open(self, folder: Path) -> None:
        """Opens the file, and writes the earlier messages to it."""
        with suppress(OSError):
            path = folder / "messages.txt"
            self._file = path.open("a", buffering=1, encoding="utf-8")
        self._began = time.perf_counter()
        early, self._early = self._early, []
        for text in early:
            self.add(text)

    def add(self, text: str) -> None:
        """Adds a message; it is lost if the disk is full."""
        stamp = format_seconds(time.perf_counter() - self._began)
        if self._file is None:
            self._early.append(text)
            return
        with suppress(OSError, ValueError):
            text = textwrap.indent(text, " " * 10).lstrip()
            self._file.write(f"{stamp:>8}  {text}\n")

    def close(self) -> None:
        """Closes the file; may be called again."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


class PlainDisplay:
    """A line per point and per message, for files and pipes."""

    def __init__(self) -> None:
        self._record = MessageFile()
        self._overlapped = False
        self._bottleneck = ""

    def start(self, info: RunInfo) -> None:
        """Prints a description of the run, and of the columns of its lines."""
        self._overlapped = info.config.lag > 0
        self._record.open(info.run_dir)
        self.log(info.banner())
        say(progress_legend(info.config.env.frame_skip))

    def log(self, text: str) -> None:
        """Prints a message."""
        self._record.add(text)
        say(text)

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Prints a line, and the bottleneck if it has changed."""
        say(progress_line(step, values, eta_s))
        text = bottleneck_of(values, self._overlapped)
        kind = text.partition(":")[0]
        if kind != self._bottleneck:
            self.log(text)
            self._bottleneck = kind

    def checkpoint(self, path: Path, step: int) -> None:
        """Prints nothing: checkpoints are too frequent."""

    def alarm(self, name: str, text: str) -> None:
        """Prints nothing: the log message stays on the screen."""

    def close(self) -> None:
        """Closes the file of messages."""
        self._record.close()


class QuietDisplay:
    """No output, for runs that another program reports on."""

    def start(self, info: RunInfo) -> None:
        """Shows nothing."""

    def log(self, text: str) -> None:
        """Shows nothing."""

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Shows nothing."""

    def checkpoint(self, path: Path, step: int) -> None:
        """Shows nothing."""

    def alarm(self, name: str, text: str) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Has nothing to close."""


class RecordDisplay(QuietDisplay):
    """Shows nothing, and writes messages to the run folder."""

    def __init__(self) -> None:
        self._record = MessageFile()

    def start(self, info: RunInfo) -> None:
        """Opens the file of messages."""
        self._record.open(info.run_dir)

    def log(self, text: str) -> None:
        """Writes a message."""
        self._record.add(text)

    def close(self) -> None:
        """Closes the file of messages."""
        self._record.close()


def progress_legend(frame_skip: int) -> str:
    """The meaning of the columns of `progress_line`."""
    return (
        f"columns: environment steps ({frame_skip} frames each) | SPS: environment "
        "steps per second | return: mean of the\n"
        "last 100 episodes | x mean50: furthest x of an episode, mean of the last 50 | "
        "max: furthest x of\n"
        "this run | clear: share of the last 100 episodes of each level that cleared | "
        "ETA: to max_steps or max_seconds"
    )


def progress_line(step: int, values: Mapping[str, float], eta_s: float) -> str:
    """The line that reports the progress of a run."""
    parts = [f"{step:>9,} steps", f"{values.get('time/sps', 0.0):6,.0f} SPS"]
    if "rollout/return" in values:
        parts += [
            f"return {values['rollout/return']:7.2f}",
            f"x mean50 {values['rollout/best_x_50']:5.0f}",
            f"max {values['rollout/best_x_run']:5.0f}",
            f"clear {values['rollout/clear_rate']:4.0%}",
        ]
        if "rollout/levels_passed" in values:  # of a whole game
            parts.append(f"levels passed {values['rollout/levels_passed']:4.1f}")
    else:
        parts.append("no episode has ended yet")
    parts.append(f"ETA {format_seconds(eta_s)}")
    return " | ".join(parts)
