"""What a run reports: episodes, time shares, curves and the progress line."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Episode(NamedTuple):
    """One finished episode."""

    total_reward: float
    steps: int
    best_x: int
    cleared: bool


class EpisodeTracker:
    """Adds up rewards and positions per environment, and keeps the last episodes.

    With next-step autoreset the row after a `done` row is the reset: it opens the
    next episode, and its reward is 0.
    """

    def __init__(self, num_envs: int, window: int = 100) -> None:
        """Starts with no episodes; rates are over the last `window`."""
        self.count = 0
        self.first_clear: int | None = None
        self.best_x = 0
        self.recent: deque[Episode] = deque(maxlen=window)
        self._reward = np.zeros(num_envs)
        self._steps = np.zeros(num_envs, np.int64)
        self._best_x = np.zeros(num_envs, np.int64)
        self._over = np.ones(num_envs, bool)

    def add(
        self,
        env_id: npt.NDArray[np.int32],
        reward: npt.NDArray[np.float32],
        done: npt.NDArray[np.bool_],
        info: Mapping[str, Any],
    ) -> None:
        """Takes the rows of one recv; `x_pos` and `flag_get` may be missing."""
        fresh = env_id[self._over[env_id]]
        self._reward[fresh] = 0.0
        self._steps[fresh] = -1
        self._best_x[fresh] = 0
        self._over[env_id] = done
        self._reward[env_id] += reward
        self._steps[env_id] += 1
        if "x_pos" in info:
            best = np.maximum(self._best_x[env_id], info["x_pos"])
            self._best_x[env_id] = best
        flags = info.get("flag_get")
        for row in np.flatnonzero(done):
            env = env_id[row]
            cleared = bool(flags[row]) if flags is not None else False
            self.count += 1
            self.best_x = max(self.best_x, int(self._best_x[env]))
            if cleared and self.first_clear is None:
                self.first_clear = self.count
            self.recent.append(
                Episode(
                    float(self._reward[env]),
                    int(self._steps[env]),
                    int(self._best_x[env]),
                    cleared,
                )
            )

    def clear_rate(self) -> float:
        """Share of clears in a full window, 0 before there is one."""
        if len(self.recent) < (self.recent.maxlen or 1):
            return 0.0
        return float(np.mean([episode.cleared for episode in self.recent]))

    def statistics(self) -> dict[str, float]:
        """Means over the window; `best_x_50` over the last 50 episodes.

        `best_x_max` is the maximum of the window, `best_x_run` of all episodes.
        """
        result = {"episodes": float(self.count)}
        if not self.recent:
            return result
        recent = list(self.recent)
        return result | {
            "return": float(np.mean([e.total_reward for e in recent])),
            "episode_steps": float(np.mean([e.steps for e in recent])),
            "best_x": float(np.mean([e.best_x for e in recent])),
            "best_x_50": float(np.mean([e.best_x for e in recent[-50:]])),
            "best_x_max": float(max(e.best_x for e in recent)),
            "best_x_run": float(self.best_x),
            "clear_rate": float(np.mean([e.cleared for e in recent])),
        }


class Timings:
    """Seconds spent in named parts of the loop."""

    def __init__(self) -> None:
        """Starts the clock."""
        self._seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Counts the time of a `with` block under `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self._seconds[name] = self._seconds.get(name, 0.0) + spent

    def shares(self) -> dict[str, float]:
        """Share of the time since the last call, by name."""
        now = time.perf_counter()
        total = max(now - self._since, 1e-9)
        result = {name: spent / total for name, spent in self._seconds.items()}
        self._seconds, self._since = {}, now
        return result


class MetricsWriter:
    """Writes scalars to TensorBoard, to metrics.jsonl, and to W&B if asked."""

    def __init__(
        self, run_dir: Path, config: Mapping[str, Any], *, wandb: bool = False
    ) -> None:
        """Opens the files.

        Args:
            run_dir: existing folder.
            config: shown by W&B.
            wandb: whether to log there; offline when no API key is found.
        """
        # Only a run that writes curves pays for these imports.
        from torch.utils.tensorboard import SummaryWriter

        self._board: Any = SummaryWriter(str(run_dir))
        self._lines = (run_dir / "metrics.jsonl").open("a")
        self._wandb: Any = None
        if wandb:
            import wandb as client

            online = bool(client.api.api_key)
            self._wandb = client.init(
                project="mario-envpool",
                name=run_dir.name,
                dir=str(run_dir),
                config=dict(config),
                mode="online" if online else "offline",
            )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one point of every curve, at an environment step."""
        for name, value in values.items():
            self._board.add_scalar(name, value, step)
        # Python writes NaN as a bare word, which is not JSON.
        plain = {k: v if np.isfinite(v) else None for k, v in values.items()}
        self._lines.write(json.dumps({"step": step, **plain}) + "\n")
        self._lines.flush()
        if self._wandb is not None:
            self._wandb.log(dict(values), step=step)

    def close(self) -> None:
        """Flushes and closes everything."""
        self._board.close()
        self._lines.close()
        if self._wandb is not None:
            self._wandb.finish()


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


def format_seconds(seconds: float) -> str:
    """m:ss or h:mm:ss."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
