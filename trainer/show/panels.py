"""The panels of the live dashboard."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from trainer.machine.timings import format_seconds
from trainer.show.bottleneck import bottleneck_of
from trainer.show.charts import chart, sparkline
from trainer.show.status import CHARTS, WORST, Status, about_seconds, seconds_to_rate

# Parts of the time of a thread, and their colours.
_PARTS = {
    "wait": "#5f87af",
    "send": "#5fafaf",
    "copy": "#8787af",
    "act": "#d7af5f",
    "store": "#af875f",
    "learn": "#87af5f",
    "held": "#af5f5f",
}
# Greys that are readable on black and on white, which a terminal's greys often are not.
LABEL, FRAME, CURVE = "#8a8a8a", "#6c6c6c", "#87af5f"
ALARM = "bold white on #af0000"

# Draws the inside of a panel with given columns and lines: a title and the lines.
Drawing = Callable[[Status, int, int], tuple[str, RenderableType]]


def _facts(rows: Iterable[tuple[str, str, str]], width: int) -> Text:
    """Lines with a label, a right-aligned value, and a curve."""
    result = Text(no_wrap=True, overflow="ellipsis")
    for label, value, more in rows:
        result.append(f"{label:<11}", LABEL).append(f"{value:>9}  ")
        result.append(more[: max(0, width - 22)] + "\n", CURVE)
    return result


def _number(values: Mapping[str, float], name: str, form: str) -> str:
    """A value of the curves as text; "-" if there is none."""
    value = values.get(name)
    return "-" if value is None or not np.isfinite(value) else format(value, form)


def progress(status: Status, width: int, height: int) -> tuple[str, RenderableType]:
    """Results of the training episodes."""
    values = status.values
    room = width - 22

    def spark(name: str) -> str:
        _, _, low, high = CHARTS[name]
        return sparkline(status.curves.get(name, ()), room, low, high)

    # A run of several levels is solved when the worst level is.
    worst = status.curves.get(WORST)
    rates = worst or status.curves.get("rollout/clear_rate", ())
    wait = seconds_to_rate(rates, status.solve_rate)
    solved = (
        "-" if wait is None else f"about {about_seconds(wait)}" if wait else "reached"
    )
    rows = [
        (label, _number(values, name, form), spark(name))
        for label, name, form in (
            ("clear rate", "rollout/clear_rate", ".0%"),
            ("best x", "rollout/best_x_50", ",.0f"),
            ("return", "rollout/return", ".2f"),
        )
    ]
    if "rollout/levels_passed" in values:
        passed = _number(values, "rollout/levels_passed", ".1f")
        rows.append(("levels", f"{passed} passed", ""))
    counts = {
        "furthest x": "rollout/best_x_run",
        "episodes": "rollout/episodes",
        "first clear": "rollout/first_clear_episode",
    }
    more = {
        "ep. steps": "rollout/episode_steps",
        "stuck envs": "rollout/stagnation_envs",
        "frames/s": "time/frames_per_s",
    }
    rows += [(k, _number(values, name, ",.0f"), "") for k, name in counts.items()]
    text = _facts(rows, width)
    text.append(f"{f'{status.solve_rate:.0%} in':<11}", LABEL).append(f"  {solved}\n")
    rows = [(k, _number(values, name, ",.0f"), "") for k, name in more.items()]
    text.append(_facts(rows, width))
    return "Progress, last 100 episodes", text


def _shares(parts: Mapping[str, float], width: int) -> Text:
    """A bar of shares of a thread's time; the rest is dark."""
    text, used, total = Text(no_wrap=True), 0, 0.0
    for name, share in parts.items():
        total = min(total + share, 1.0)
        cells = round(width * total) - used
        text.append("█" * cells, _PARTS[name])
        used += cells
    return text.append("█" * (width - used), FRAME)


def speed(status: Status, width: int, height: int) -> tuple[str, RenderableType]:
    """Speed, where the time goes, and the bottleneck."""
    values = status.values
    parts = {name: values.get(f"time/share_{name}", 0.0) for name in _PARTS}
    parts["held"] = values.get("time/share_wait_learner", 0.0)
    parts["store"] += values.get("time/share_explore", 0.0)  # cells and snapshots
    spark = sparkline(status.curves.get("time/sps", ()), width - 22, 0.0)
    text = _facts([("SPS", _number(values, "time/sps", ",.0f"), spark)], width)
    learn = parts["learn"]
    shown = [n for n in _PARTS if n != ("learn" if status.overlapped else "held")]
    text.append(_shares({name: parts[name] for name in shown}, width)).append("\n")
    cell = width // 3
    for i, name in enumerate(shown):
        text.append("■ ", _PARTS[name]).append(f"{name:<5}", LABEL)
        text.append(f"{parts[name]:4.0%}" if values else "   -")
        text.append(" " * (cell - 11) if i % 3 < 2 else "\n")
    if status.overlapped:
        text.append(f"{'learner':<11}", LABEL)
        text.append(_shares({"learn": learn}, width - 17))
        text.append(f" {learn:5.0%}\n")
    else:
        emulate = _number(values, "time/share_emulate", ".0%")
        text.append(f"{'emulation':<11}", LABEL).append(f"{emulate:>9}")
        text.append("  of worker time\n", LABEL)
    bottleneck = bottleneck_of(values, status.overlapped) if values else "-"
    kind, _, reason = bottleneck.partition(": ")
    text.append(f"{kind}\n", "bold")
    text.append(_hardware(values))
    return "Speed", Group(text, Text(reason, LABEL)) if height > 7 else text


def _hardware(values: Mapping[str, float]) -> Text:
    """Processor and memory, and those of a GPU."""
    text = Text(no_wrap=True, overflow="ellipsis")

    def memory(name: str) -> str:
        size = values.get(name)
        return (
            ""
            if size is None
            else f", {size:.1f} GB"
            if size < 100
            else f", {size:.0f} GB"
        )

    text.append("CPU ", LABEL).append(_number(values, "system/cpu_percent", ".0f"))
    text.append("%" if "system/cpu_percent" in values else "")
    text.append(memory("system/host_memory_gb"))
    if "system/gpu_utilisation" in values or "system/gpu_memory_gb" in values:
        text.append("  GPU ", LABEL)
        text.append(_number(values, "system/gpu_utilisation", ".0%"))
        text.append(memory("system/gpu_memory_gb"))
    return text


def learning(status: Status, width: int, height: int) -> tuple[str, RenderableType]:
    """Numbers of the last updates."""
    names = {
        "loss": ("learn/loss/total", ".4f"),
        "policy": ("learn/loss/policy", ".4f"),
        "value": ("learn/loss/value", ".4f"),
        "entropy": ("learn/loss/entropy", ".3f"),
        "KL": ("learn/loss/kl", ".4f"),
        "expl. var.": ("learn/explained_variance", ".2f"),
        "rate": ("learn/learning_rate", ".1e"),
        "gradient": ("learn/gradient_norm", ".2f"),
        "clipped": ("learn/loss/clipped", ".2f"),
        "lag": ("learn/policy_lag", ".1f"),
        "advantage": ("learn/advantage", ".3f"),
        "updates": ("learn/updates", ",.0f"),
    }
    text, gap = Text(no_wrap=True), min(6, width - 34)
    for i, (label, (name, form)) in enumerate(names.items()):
        value = _number(status.values, name, form)
        if len(value) > 7:
            value = _number(status.values, name, ".1e")
        text.append(f"{label:<10}", LABEL).append(f"{value:>7}")
        text.append("\n" if i % 2 else " " * gap)
    return "Learning", text


def storage(status: Status, width: int, height: int) -> tuple[str, RenderableType]:
    """Frontier, replay and checkpoint."""
    values = status.values
    lines: list[tuple[str, str]] = []
    title = "Replay and checkpoint"
    if "explore/snapshots" in values:
        title = "Frontier, replay, checkpoint"
        places = _number(values, "explore/snapshots", ",.0f")
        x = _number(values, "explore/frontier_x", ",.0f")
        lines.append(("frontier", f"{places} places, {x} px in"))
    if "explore/demonstration_left" in values:
        title = "Backward, replay, checkpoint"
        left = _number(values, "explore/demonstration_left", ".0%")
        lines.append(("backward", f"{left} still ahead"))
    if "explore/snapshot_share" in values:
        share = _number(values, "explore/snapshot_share", ".0%")
        cleared = _number(values, "explore/snapshot_clear_rate", ".0%")
        lines.append(("", f"{share} of starts, {cleared} clear"))
    if status.replay_capacity:
        held = _number(values, "replay/unrolls", ",.0f")
        share = _number(values, "learn/replay/share", ".0%")
        age = _number(values, "learn/replay/age", ".1f")
        kept = _number(values, "learn/replay/kept", ".0%")
        lines.append(("replay", f"{held}/{status.replay_capacity:,}, age {age}"))
        lines.append(("", f"{share} of batch, {kept} kept"))
    if status.saved is None:
        lines.append(("checkpoint", "none yet"))
    else:
        when, step, path = status.saved
        ago = format_seconds(status.seconds() - when)
        lines.append(("checkpoint", f"{ago} ago, at {step:,}"))
        lines.append(("", _shortened(path, width - 11)))
    if not status.replay_capacity:
        lines.append(("replay", "off"))
    lines.append(("slots", _number(values, "queue/free_slots", ",.0f") + " free"))
    text = Text(no_wrap=True, overflow="ellipsis")
    for label, value in lines:
        text.append(f"{label:<11}", LABEL).append(f"{value}\n")
    return title, text


def _shortened(path: str, width: int) -> str:
    """A path without its first folders if it is too long."""
    parts = Path(path).parts
    while len(path) > width and len(parts) > 1:
        parts = parts[1:]
        path = "/".join(("…", *parts))
    return path


def level_names(status: Status) -> list[str]:
    """The levels that have a clear rate."""
    return [k.removeprefix("levels/") for k in status.values if k.startswith("levels/")]


def levels(status: Status, width: int, height: int) -> tuple[str, RenderableType]:
    """The levels with a column per world and a line per stage."""
    names = [tuple(map(int, name.split("-"))) for name in level_names(status)]
    worlds = range(1, max(8, *(world for world, _ in names)) + 1)
    cell = max(4, min(7, (width - 3) // len(worlds)))
    text = Text(f"{'':3}", no_wrap=True, overflow="crop")
    text.append("".join(f"{world:>{cell}}" for world in worlds) + "\n", LABEL)
    for stage in range(1, max(4, *(stage for _, stage in names)) + 1):
        text.append(f"-{stage:<2}", LABEL)
        for world in worlds:
            rate = status.values.get(f"levels/{world}-{stage}")
            if rate is None:
                text.append(f"{'·':>{cell}}", LABEL)
            else:
                text.append(f"{100 * rate:{cell}.0f}", heat(rate))
        text.append("\n")
    return "Levels, % cleared", text


def heat(rate: float) -> str:
    """The colour of a rate: red at 0, yellow at 0.5, green at 1."""
    red, green = min(1.0, 2 - 2 * rate), min(1.0, 2 * rate)
    return f"#{95 + round(120 * red):02x}{95 + round(100 * green):02x}5f"


def alarms(status: Status, width: int) -> list[Text]:
    """A line per alarm, at most three."""
    lines = []
    for name, text in list(status.alarms.items())[:3]:
        line = Text(f" ALARM  {name}: {text}", ALARM, no_wrap=True, overflow="ellipsis")
        line.truncate(width, overflow="ellipsis", pad=True)
        lines.append(line)
    return lines


def messages(status: Status, width: int, height: int) -> tuple[str, RenderableType]:
    """The last messages, as many as fit; long messages are wrapped."""
    lines: list[Text] = []
    for when, text in reversed(list(status.messages)):
        parts = textwrap.wrap(text, max(1, width - 9)) or [""]
        if lines and len(lines) + len(parts) > height:
            break
        stamps = [format_seconds(when)] + [""] * len(parts)
        message = [
            Text(f"{stamp:>7}  ", LABEL, no_wrap=True).append(part, "default")
            for stamp, part in zip(stamps, parts, strict=False)
        ]
        lines = message[:height] + lines
    return "Messages", Group(*lines)


def curve(
    status: Status, width: int, height: int, *, name: str
) -> tuple[str, RenderableType]:
    """One curve, by its name in metrics.jsonl."""
    title, form, low, high = CHARTS[name]
    points = status.curves.get(name, ())
    if not points:
        return title, Text("no value yet", LABEL)
    values = [value for _, value in points]
    bottom = min(values) if low is None else low
    top = max(values) if high is None else high
    margin = 8
    lines = chart(points, width - margin, height, bottom, top)
    labels = ["" for _ in lines]
    labels[-1], labels[0] = format(bottom, form), format(top, form)
    result = Text(no_wrap=True)
    for label, line in zip(labels, lines, strict=True):
        result.append(f"{label:>{margin - 1}} ", LABEL)
        result.append(line + "\n", CURVE)
    return f"{title}  {format(values[-1], form)}", result
