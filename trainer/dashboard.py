"""What a person sees of a run: lines in a file or pipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trainer.device import describe
from trainer.metrics import format_seconds, verdict
from trainer.model import describe_model

if TYPE_CHECKING:
    from trainer.run import Run


class Display(Protocol):
    """Where a run tells what it does. Every method may be called from any thread."""

    def start(self, run: Run) -> None:
        """Shows what is run, once it is built."""

    def say(self, text: str) -> None:
        """Shows a message that stays."""

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Shows one point of the curves.

        Args:
            step: environment steps.
            values: as in metrics.jsonl.
            eta_s: seconds to the end of the run, unless it is solved sooner.
        """

    def checkpoint(self, path: Path, step: int) -> None:
        """Notes that a checkpoint was written."""

    def close(self) -> None:
        """Shows nothing more; may be called again."""


class PlainDisplay:
    """A line per point and per message, for files and pipes."""

    def __init__(self) -> None:
        self._overlapped = False
        self._verdict = ""

    def start(self, run: Run) -> None:
        """Prints what is run, and what the columns of its lines are."""
        self._overlapped = run.config.lag > 0
        self.say(banner(run))
        self.say(progress_legend(run.config.env.frame_skip))

    def say(self, text: str) -> None:
        """Prints a message."""
        print(text, flush=True)

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Prints a line, and the verdict on the speed when that has changed."""
        self.say(progress_line(step, values, eta_s))
        text = verdict_of(values, self._overlapped)
        kind = text.partition(":")[0]
        if kind != self._verdict:
            self.say(text)
            self._verdict = kind

    def checkpoint(self, path: Path, step: int) -> None:
        """Prints nothing: there are too many."""

    def close(self) -> None:
        """Nothing is open."""


class QuietDisplay:
    """Nothing at all, for runs of which somebody else tells."""

    def start(self, run: Run) -> None:
        """Shows nothing."""

    def say(self, text: str) -> None:
        """Shows nothing."""

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Shows nothing."""

    def checkpoint(self, path: Path, step: int) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Nothing is open."""


def verdict_of(values: Mapping[str, float], overlapped: bool) -> str:
    """The `verdict` on a point of the curves."""
    prefix = "time/share_"
    shares = {k.removeprefix(prefix): v for k, v in values.items() if prefix in k}
    return verdict(shares, values.get("system/gpu_utilisation"), overlapped)


def banner(run: Run) -> str:
    """What is run, where, and where it writes to."""
    config, env = run.config, run.config.env
    size = describe_model(run.model, run.obs_shape)
    overlap = (
        f"collecting up to {config.lag} batches ahead of learning"
        if config.lag
        else "collecting and learning in turns"
    )
    fallback = ""
    if config.device == "auto" and run.device.type == "cpu":
        fallback = " (--device auto found no usable GPU)"
    return (
        f"{env.task}: {env.num_envs} environments in {env.groups} groups, "
        f"{config.mode}, {overlap}\n"
        f"{config.model.name}: {size.parameters:,} parameters, "
        f"{size.forward_flops / 1e6:.1f} MFLOP per observation, on "
        f"{describe(run.device, run.dtype)}{fallback}\n"
        f"writing to {run.run_dir}/ (tensorboard --logdir {run.run_dir.parent})"
    )


def progress_legend(frame_skip: int) -> str:
    """What the columns of `progress_line` are, for the start of a run."""
    return (
        f"columns: environment steps ({frame_skip} frames each) | SPS: environment "
        "steps per second | return: mean of the\n"
        "last 100 episodes | x mean50: furthest x of an episode, mean of the last 50 | "
        "max: furthest x of\n"
        "this run | clear: share of the last 100 episodes that cleared the level | "
        "ETA: to max_steps or max_seconds"
    )


def progress_line(step: int, values: Mapping[str, float], eta_s: float) -> str:
    """The line a person reads while the run goes on."""
    parts = [f"{step:>9,} steps", f"{values.get('time/sps', 0.0):6,.0f} SPS"]
    if "rollout/return" in values:
        parts += [
            f"return {values['rollout/return']:7.2f}",
            f"x mean50 {values['rollout/best_x_50']:5.0f}",
            f"max {values['rollout/best_x_run']:5.0f}",
            f"clear {values['rollout/clear_rate']:4.0%}",
        ]
    else:
        parts.append("no episode has ended yet")
    parts.append(f"ETA {format_seconds(eta_s)}")
    return " | ".join(parts)


def make_display(mode: str) -> Display:
    """The display for stdout.

    Args:
        mode: auto, on or off, as RunConfig.dashboard says.
    """
    del mode
    return PlainDisplay()
