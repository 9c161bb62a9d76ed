"""The metrics that people see, a row each: terminal, lines, charts and reports read it.

All other metrics of a run are in metrics.jsonl, TensorBoard and W&B only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Panel = Literal[
    "", "progress", "more progress", "speed", "shares", "emulation", "hardware",
    "learning", "starts", "replay", "slots",
]  # fmt: skip


@dataclass(frozen=True)
class Metric:
    """A metric, its format, and where people see it."""

    key: str  # in metrics.jsonl
    panel: Panel = ""  # of the dashboard; "" for none
    label: str = ""  # there; in a panel of sentences, equal labels share a line
    form: str = "{:,.0f}"
    title: str = ""  # of its chart in reports; "" for none
    low: float | None = None  # bounds of its chart; None: that of the values
    high: float | None = None
    chart: bool = False  # whether the dashboard also has a chart
    line: bool = False  # whether the printed lines have a column
    optional: bool = False  # whether its panel omits it where a run has no value

    def text(self, values: Mapping[str, Any]) -> str:
        """The value as people see it; "-" if there is none."""
        value = values.get(self.key)
        known = value is not None and math.isfinite(value)
        return self.form.format(value) if known else "-"


# fmt: off
METRICS = {metric.key: metric for metric in (
    Metric("rollout/clear_rate", "progress", "clear rate", "{:.0%}",
           "Clear rate, last 100 episodes", 0, 1, chart=True, line=True),
    Metric("rollout/worst_clear_rate"),
    Metric("rollout/best_x_50", "progress", "best x", "{:,.0f}",
           "Best x, mean of 50 episodes", 0, chart=True, line=True),
    Metric("rollout/return", "progress", "return", "{:.2f}",
           "Return, mean of 100 episodes", chart=True, line=True),
    Metric("rollout/levels_passed", "progress", "levels done", "{:.1f}",
           "Levels passed, mean of 100 episodes", line=True, optional=True),
    Metric("rollout/best_x_run", "progress", "furthest x", "{:,.0f}",
           "Furthest x of the run", 0, line=True),
    Metric("rollout/episodes", "progress", "episodes"),
    Metric("rollout/first_clear_episode", "progress", "first clear"),
    Metric("rollout/episode_steps", "more progress", "ep. steps"),
    Metric("rollout/stagnation_envs", "more progress", "stuck envs"),
    Metric("time/frames_per_s", "more progress", "frames/s"),
    Metric("time/sps", "speed", "SPS", "{:,.0f}",
           "Environment steps per second", 0, chart=True, line=True),
    Metric("time/share_wait", "shares", "wait"),
    Metric("time/share_send", "shares", "send"),
    Metric("time/share_copy", "shares", "copy"),
    Metric("time/share_act", "shares", "act"),
    Metric("time/share_store", "shares", "store"),
    Metric("time/share_explore", "shares", "explore"),
    Metric("time/share_learn", "shares", "learn"),
    Metric("time/share_wait_learner", "shares", "held"),
    Metric("time/share_wait_batch"),
    Metric("time/share_emulate", "emulation", "emulation", "{:.0%} of worker time"),
    Metric("system/cpu_percent", "hardware", "CPU", "{:.0f}%"),
    Metric("system/host_memory_gb", "hardware", "CPU", "{:.1f} GB"),
    Metric("system/gpu_utilisation", "hardware", "GPU", "{:.0%}"),
    Metric("system/gpu_memory_gb", "hardware", "GPU", "{:.1f} GB"),
    Metric("learn/loss/total", "learning", "loss", "{:.4f}", "Loss"),
    Metric("learn/loss/policy", "learning", "policy", "{:.4f}", "Policy loss"),
    Metric("learn/loss/value", "learning", "value", "{:.4f}", "Value loss"),
    Metric("learn/loss/entropy", "learning", "entropy", "{:.3f}", "Entropy",
           0, chart=True),
    Metric("learn/loss/kl", "learning", "KL", "{:.4f}", "KL of old and new policy"),
    Metric("learn/explained_variance", "learning", "expl. var.", "{:.2f}",
           "Explained variance", 0, 1, chart=True),
    Metric("learn/learning_rate", "learning", "rate", "{:.1e}", "Learning rate"),
    Metric("learn/gradient_norm", "learning", "gradient", "{:.2f}", "Gradient norm"),
    Metric("learn/loss/clipped", "learning", "clipped", "{:.2f}"),
    Metric("learn/taught", "learning", "teachers", "{:.0%} of actions",
           "Actions that teachers choose", 0, 1),
    Metric("learn/policy_lag", "learning", "lag", "{:.1f}"),
    Metric("learn/advantage", "learning", "advantage", "{:.3f}"),
    Metric("learn/updates", "learning", "updates"),
    Metric("explore/snapshots", "starts", "frontier", "{:,.0f} places"),
    Metric("explore/frontier_x", "starts", "frontier", "{:,.0f} px in",
           "Furthest snapshot, pixels from a level's start"),
    Metric("explore/demonstration_left", "starts", "backward", "{:.0%} still ahead",
           "Share of the demonstrations still ahead", 0, 1),
    Metric("explore/snapshot_share", "starts", "snapshots", "{:.0%} of starts",
           "Episodes that begin from snapshots", 0, 1),
    Metric("explore/snapshot_clear_rate", "starts", "snapshots", "{:.0%} clear",
           "Clear rate of episodes from snapshots", 0, 1),
    Metric("explore/cells", title="Cells reached"),
    Metric("explore/novelty", title="Bonus for new cells, per step"),
    Metric("explore/count_bonus", title="Bonus for rare cells, per step"),
    Metric("replay/unrolls", "replay", "replay"),
    Metric("learn/replay/age", "replay", "replay", "age {:.1f}"),
    Metric("learn/replay/share", "replay", "", "{:.0%} of batch"),
    Metric("learn/replay/kept", "replay", "", "{:.0%} kept"),
    Metric("queue/free_slots", "slots", "slots", "{:,.0f} free"),
)}
# fmt: on


def in_panel(panel: Panel) -> list[Metric]:
    """The metrics of a panel of the dashboard."""
    return [metric for metric in METRICS.values() if metric.panel == panel]


def level_rates(values: Mapping[str, float]) -> dict[str, float]:
    """The clear rates of levels at a point of the curves, by level."""
    keys = [key for key in values if key.startswith("levels/")]
    return {key.removeprefix("levels/"): values[key] for key in keys}


# -- the bottleneck ----------------------------------------------------------

# A part of the loop is the bottleneck if it takes at least the first share of the time
# of its thread. A thread that waits for the other thread for at least the second share
# is held up.
_BOUND, _HELD_UP = 0.4, 0.1
# A GPU that runs kernels for at least this share of the time is the bottleneck.
_GPU_BUSY = 0.8


def bottleneck(values: Mapping[str, float], overlapped: bool) -> str:
    """The bottleneck at a point of the curves and what to change, in one line."""
    name, share = _dominant(values, overlapped)
    gpu_busy = METRICS["system/gpu_utilisation"].text(values)
    utilisation = values.get("system/gpu_utilisation", 0.0)
    less = "use a smaller --model or fewer --epochs; faster environments would not help"
    if name == "wait":
        return (
            f"emulation-bound: acting waits {share:.0%} of the time for environments; "
            "use more cores and --num-threads; a larger --model costs little"
        )
    if utilisation >= _GPU_BUSY:
        return f"GPU-bound: kernels run {gpu_busy} of the time; {less}"
    if name == "act":
        return (
            f"acting-bound (CPU): acting and storing take {share:.0%} of the time; use "
            "larger groups (more --num-envs, fewer --groups) or a smaller --model"
        )
    if not name:
        return "balanced: no part waits for another; only faster hardware would help"
    learning = f"learning-bound (CPU): learning takes {share:.0%} of the time"
    if gpu_busy == "-":
        return f"{learning}; {less}"
    return (
        f"{learning}, yet the GPU runs kernels for only {gpu_busy}; use a larger "
        "--minibatch-size, --cuda-graphs"
        + ("" if overlapped else ", or --lag 1 to collect meanwhile")
    )


def _dominant(values: Mapping[str, float], overlapped: bool) -> tuple[str, float]:
    """The part of the loop that is the bottleneck, and its share; "" for none.

    If two threads overlap, the part belongs to the thread that the other waits for.
    """

    def share(*names: str) -> float:
        keys = [METRICS[f"time/share_{name}"].key for name in names]
        return sum(values.get(key, 0.0) for key in keys)

    parts = {
        # Sending counts as waiting: it takes long if workers lack free cores.
        "wait": share("wait", "send"),
        "act": share("copy", "act", "store", "explore"),
        "learn": share("learn"),
    }
    if overlapped:
        collector_waits, learner_waits = share("wait_learner"), share("wait_batch")
        if max(collector_waits, learner_waits) < _HELD_UP:
            return "", 0.0
        for name in ("wait", "act") if collector_waits > learner_waits else ("learn",):
            del parts[name]
    name = max(parts, key=lambda part: parts[part])
    return (name, parts[name]) if parts[name] >= _BOUND else ("", 0.0)
