"""The state of a run that the live dashboard draws."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainer.show.charts import Point

# Curves with a chart: name in metrics.jsonl, title, format and bounds; None: the bound
# is that of the values.
CHARTS: dict[str, tuple[str, str, float | None, float | None]] = {
    "rollout/clear_rate": ("Clear rate", ".0%", 0.0, 1.0),
    "rollout/best_x_50": ("Best x, mean of 50 episodes", ",.0f", 0.0, None),
    "rollout/return": ("Return", ".1f", None, None),
    "time/sps": ("Steps per second", ",.0f", 0.0, None),
    "learn/loss/entropy": ("Entropy", ".2f", 0.0, None),
    "learn/explained_variance": ("Explained variance", ".2f", 0.0, 1.0),
}
# The lowest clear rate of several levels, which decides whether a run is solved.
WORST = "rollout/worst_clear_rate"
_MAX_POINTS = 1024
# Points for the estimate of when the level is solved, and the smallest rise of the
# clear rate over these points that does not count as flat.
_TREND_POINTS, _LEAST_RISE = 8, 0.02


@dataclass
class Status:
    """The state of a run. One thread writes a field; other threads read it."""

    task: str
    about: str
    """Network and device, in a few words."""
    max_steps: int
    max_seconds: float = 0.0
    solve_rate: float = 0.9
    overlapped: bool = False
    replay_capacity: int = 0
    """Unrolls; 0: no replay."""
    started: float = field(default_factory=time.perf_counter)
    step: int = 0
    values: Mapping[str, float] = field(default_factory=dict)
    end: float | None = None
    """End of the run in seconds since the start, unless it is solved earlier."""
    curves: dict[str, tuple[Point, ...]] = field(default_factory=dict)
    saved: tuple[float, int, str] | None = None
    """The last checkpoint: seconds since the start, step, path."""
    alarms: Mapping[str, str] = field(default_factory=dict)
    """Texts of the current alarms, by name."""
    messages: deque[tuple[float, str]] = field(
        default_factory=lambda: deque(maxlen=100)
    )

    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started

    def report(self, step: int, values: Mapping[str, float], eta_s: float) -> None:
        """Takes one point of the curves; see `Display.report`."""
        now = self.seconds()
        self.step, self.values, self.end = step, dict(values), now + eta_s
        for name in (*CHARTS, WORST):
            value = values.get(name)
            if value is None or not np.isfinite(value):
                continue
            points = self.curves.get(name, ())
            if len(points) >= _MAX_POINTS:
                # Old points lose half of their resolution; recent points keep theirs.
                half = _MAX_POINTS // 2
                points = points[:half:2] + points[half:]
            self.curves[name] = (*points, (now, value))


def seconds_to_rate(points: Sequence[Point], target: float) -> float | None:
    """Seconds until a rate reaches a target, by the slope of its last points."""
    if points and points[-1][1] >= target:
        return 0.0
    recent = np.array(points[-_TREND_POINTS:])
    if len(recent) < 3 or np.ptp(recent[:, 0]) <= 0:
        return None
    slope, offset = np.polyfit(recent[:, 0] - recent[-1, 0], recent[:, 1], 1)
    if slope * np.ptp(recent[:, 0]) < _LEAST_RISE:
        return None
    return max(0.0, float((target - offset) / slope))


def about_seconds(seconds: float) -> str:
    """A duration, rounded so that the text does not change at every drawing."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    minutes = seconds / 60
    if minutes < 90:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h"
