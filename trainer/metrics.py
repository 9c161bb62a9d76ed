"""What a run reports: episodes, time shares and curves."""

from __future__ import annotations

import shutil
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainer.files import Lines
from trainer.levels import level_name, level_number, level_numbers, x_in_room

# Steps without a new best position after which an environment stagnates.
STAGNATION_STEPS = 50

# A part of the loop is the bottleneck from this share of its thread's time on; a
# thread that waits for the other one longer than the second share is held up.
_BOUND, _HELD_UP = 0.4, 0.1
# TensorBoard's writer does not survive a full disk, so it is not led there.
_BOARD_NEEDS_BYTES = 2**20
# A GPU that runs kernels for this share of the time has no more to give.
_GPU_BUSY = 0.8


class Episode(NamedTuple):
    """One finished episode."""

    total_reward: float
    steps: int
    best_x: int
    cleared: bool


class EpisodeTracker:
    """Adds up rewards and positions per environment, and keeps the last episodes.

    With next-step autoreset the row after a `done` row is the reset: it opens the
    next episode, and its reward is 0. One thread may add while another reads.

    Episodes that began elsewhere than at the start of a level count for nothing: they
    may be clears of a few steps.
    """

    # Arrays of one number per environment, about its open episode.
    _OPEN = ("_reward", "_steps", "_best_x", "_best_step", "_over", "_level",
             "_elsewhere")  # fmt: skip

    def __init__(
        self,
        num_envs: int,
        window: int = 100,
        *,
        num_stages: int | None = None,
        levels: Sequence[str] = (),
    ) -> None:
        """Starts with no episodes.

        Args:
            num_envs: environments in the pool.
            window: rates are over so many episodes, the last ones.
            num_stages: where info's `start` is this or more, an episode began
                elsewhere; None: none does.
            levels: of several, each has a clear rate of its own; with less there is
                one of all episodes.
        """
        self._num_stages = num_stages
        self._several = tuple(levels) if len(levels) > 1 else ()
        self._elsewhere = np.zeros(num_envs, bool)
        self.count = 0
        # Which episode was the first clear of each level, by the level's number.
        self._first_clears: dict[int, int] = {}
        self.best_x = 0
        self.recent: deque[Episode] = deque(maxlen=window)
        self._reward = np.zeros(num_envs)
        self._steps = np.zeros(num_envs, np.int64)
        self._best_x = np.zeros(num_envs, np.int64)
        self._best_step = np.zeros(num_envs, np.int64)
        self._over = np.ones(num_envs, bool)
        self._lock = threading.Lock()
        # Growth of the best positions, and steps, since the last statistics().
        self._grown, self._grown_in = 0, 0
        self._has_x = False
        # The last episodes by the level they began in, a number for each.
        self._levels: dict[int, deque[Episode]] = {}
        self._level = np.zeros(num_envs, np.int64)

    def add(
        self,
        env_id: npt.NDArray[np.int32],
        reward: npt.NDArray[np.float32],
        done: npt.NDArray[np.bool_],
        info: Mapping[str, Any],
    ) -> list[tuple[int, Episode]]:
        """Takes the rows of one recv.

        `x_pos`, `flag_get`, `world` and `stage` may be missing.

        Returns:
            The environments whose rows ended episodes that count, and these.
        """
        with self._lock:
            opening = self._over[env_id]
            if opening.any():  # seldom
                self._open(env_id[opening], opening, info)
            self._over[env_id] = done
            self._reward[env_id] += reward
            self._steps[env_id] += 1
            if "x_pos" in info:
                self._add_positions(env_id, opening, x_in_room(info))
            flags = info.get("flag_get")
            finished = []
            for row in np.flatnonzero(done):
                cleared = bool(flags[row]) if flags is not None else False
                env = int(env_id[row])
                if not self._elsewhere[env]:
                    finished.append((env, self._add_episode(env, cleared)))
            return finished

    def _open(
        self,
        fresh: npt.NDArray[np.int32],
        opening: npt.NDArray[np.bool_],
        info: Mapping[str, Any],
    ) -> None:
        """Begins the episodes of environments, those of some rows."""
        self._reward[fresh] = 0.0
        self._steps[fresh] = -1
        self._best_x[fresh] = 0
        self._best_step[fresh] = 0
        if "world" in info and "stage" in info:
            self._level[fresh] = level_numbers(info)[opening]
        if self._num_stages is not None:
            self._elsewhere[fresh] = info["start"][opening] >= self._num_stages

    def _add_positions(
        self,
        env_id: npt.NDArray[np.int32],
        opening: npt.NDArray[np.bool_],
        x_pos: npt.NDArray[np.int64],
    ) -> None:
        """Follows the best positions; where an episode opens is no progress."""
        self._has_x = True
        old = self._best_x[env_id]
        best = np.maximum(old, x_pos)
        self._best_x[env_id] = best
        better = env_id[best > old]
        self._best_step[better] = self._steps[better]
        self._grown += int((best - old)[~opening].sum())
        self._grown_in += int((~opening).sum())

    def _add_episode(self, env: int, cleared: bool) -> Episode:
        self.count += 1
        level = int(self._level[env])
        self.best_x = max(self.best_x, int(self._best_x[env]))
        if cleared:
            self._first_clears.setdefault(level, self.count)
        episode = Episode(
            float(self._reward[env]),
            int(self._steps[env]),
            int(self._best_x[env]),
            cleared,
        )
        self.recent.append(episode)
        if level:
            window = deque[Episode](maxlen=self.recent.maxlen)
            self._levels.setdefault(level, window).append(episode)
        return episode

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, in plain types and tensors."""
        with self._lock:
            return {
                "count": self.count,
                "first_clears": dict(self._first_clears),
                "best_x": self.best_x,
                "recent": [list(episode) for episode in self.recent],
                "levels": {
                    level: [list(episode) for episode in episodes]
                    for level, episodes in self._levels.items()
                },
                "has_x": self._has_x,
                "open": {
                    name: torch.from_numpy(getattr(self, name).copy())
                    for name in self._OPEN
                },
            }

    def restore(self, state: dict[str, Any], *, going_on: bool) -> None:
        """Continues from `state()`.

        Args:
            state: of a tracker with the same window.
            going_on: whether the open episodes go on, too, in as many environments;
                otherwise new ones begin.
        """
        with self._lock:
            self.count = state["count"]
            # Early versions knew one for all levels.
            first = state.get("first_clear")
            early = {} if first is None else {0: first}
            self._first_clears = dict(state.get("first_clears", early))
            self.best_x, self._has_x = state["best_x"], state["has_x"]
            self.recent.clear()
            self.recent.extend(Episode(*episode) for episode in state["recent"])
            self._levels = {
                # Early versions kept clears alone.
                level: deque(
                    (Episode(*e) for e in episodes if isinstance(e, list)),
                    maxlen=self.recent.maxlen,
                )
                for level, episodes in state["levels"].items()
            }
            for name, values in state["open"].items() if going_on else ():
                setattr(self, name, values.cpu().numpy().copy())

    @property
    def first_clear(self) -> int | None:
        """Number of the first episode that cleared its level, from 1; None: none."""
        return min(self._first_clears.values(), default=None)

    def cleared_levels(self) -> list[str]:
        """Levels in the order of their first clears; "" is one without a name."""
        with self._lock:
            levels = sorted(self._first_clears, key=self._first_clears.__getitem__)
        return [level_name(level) if level else "" for level in levels]

    def clear_rates(self) -> list[float]:
        """Share of clears of each level, or of all, over its last `window` episodes.

        Those that have not been played yet count as failures, so that a few lucky
        ones are no rate.
        """
        window = self.recent.maxlen or 1
        with self._lock:
            episodes: list[Sequence[Episode]] = [self.recent]
            if self._several:
                numbers = map(level_number, self._several)
                episodes = [self._levels.get(number, ()) for number in numbers]
            return [sum(e.cleared for e in some) / window for some in episodes]

    def level_statistics(self) -> dict[str, float]:
        """Means by level over each one's last `window` episodes.

        As "levels/4-2", the share of clears, `level_best_x/4-2` and
        `level_return/4-2`. Levels without a finished episode are not there. Empty
        for a task of one level, or one that does not tell. An episode belongs to the
        level it began in.
        """
        with self._lock:
            levels = {k: list(v) for k, v in sorted(self._levels.items()) if v}
        if len(levels) < 2:
            return {}
        parts = {
            "levels": "cleared",
            "level_best_x": "best_x",
            "level_return": "total_reward",
        }
        return {
            f"{name}/{level_name(k)}": float(
                np.mean([getattr(episode, field) for episode in episodes])
            )
            for name, field in parts.items()
            for k, episodes in levels.items()
        }

    def statistics(self) -> dict[str, float]:
        """Means over the window; `best_x_50` over the last 50 episodes.

        With several levels `clear_rate` is the mean of their rates, each over its
        own window, as hard ones may be played oftener; `worst_clear_rate` is the
        least.
        `best_x_max` is the maximum of the window, `best_x_run` of all episodes.
        `env_progress_dx` is the mean growth of an episode's best position per step
        since the last call, and `stagnation_envs` counts the environments without
        a new one for STAGNATION_STEPS steps by now; both need positions.
        `first_clear_episode` is there from the first clear on.
        """
        with self._lock:
            result = {"episodes": float(self.count)}
            if self.first_clear is not None:
                result["first_clear_episode"] = float(self.first_clear)
            recent = list(self.recent)
            if self._has_x:
                idle = self._steps - self._best_step >= STAGNATION_STEPS
                result["stagnation_envs"] = float((idle & ~self._over).sum())
                result["env_progress_dx"] = self._grown / max(self._grown_in, 1)
                self._grown, self._grown_in = 0, 0
        if not recent:
            return result
        clear_rate = float(np.mean([e.cleared for e in recent]))
        if self._several:
            rates = self.clear_rates()
            clear_rate, result["worst_clear_rate"] = float(np.mean(rates)), min(rates)
        return result | {
            "return": float(np.mean([e.total_reward for e in recent])),
            "episode_steps": float(np.mean([e.steps for e in recent])),
            "best_x": float(np.mean([e.best_x for e in recent])),
            "best_x_50": float(np.mean([e.best_x for e in recent[-50:]])),
            "best_x_max": float(max(e.best_x for e in recent)),
            "best_x_run": float(self.best_x),
            "clear_rate": clear_rate,
        }


class Timings:
    """Seconds spent in named parts of a loop.

    Several threads may share one, each with names of its own: a name has a single
    writer, and its total only grows.
    """

    def __init__(self) -> None:
        """Starts the clock."""
        self._seconds: dict[str, float] = {}
        self._reported: dict[str, float] = {}
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

    def skip(self, seconds: float) -> None:
        """Leaves the last `seconds` out of the time that shares are of."""
        self._since += seconds

    def shares(self) -> dict[str, float]:
        """Share of the wall-clock time since the last call, by name.

        The names of one thread add up to 1 where they cover its loop. A block
        counts when it ends; one that began before the last call may bring a share
        to its bound of 1.
        """
        now, seconds = time.perf_counter(), dict(self._seconds)
        total = max(now - self._since, 1e-9)
        result = {
            name: min((value - self._reported.get(name, 0.0)) / total, 1.0)
            for name, value in seconds.items()
        }
        self._reported, self._since = seconds, now
        return result


def verdict(
    shares: Mapping[str, float], gpu_utilisation: float | None, overlapped: bool
) -> str:
    """Says in one line what bounds the speed of a run, and what to change.

    Args:
        shares: of `Timings`: wait (for environments), copy, act, send, store, learn,
            and where overlapped wait_learner (of the collector) and wait_batch (of
            the learner). Missing ones count 0.
        gpu_utilisation: share of the time that a GPU runs kernels (`Monitor`), None
            without a GPU.
        overlapped: whether collector and learner are two threads.

    Returns:
        The verdict, a colon, and its reason, whose figures change at every call.
    """
    name, share = _dominant(shares, overlapped)
    if name == "wait":
        return (
            f"emulation-bound: acting waits {share:.0%} of the time for environments; "
            "more cores and --num-threads help, a larger --model costs little"
        )
    if gpu_utilisation is not None and gpu_utilisation >= _GPU_BUSY:
        return (
            f"GPU-bound: kernels run {gpu_utilisation:.0%} of the time; a smaller "
            "--model or fewer --passes help, faster environments would not"
        )
    if name == "act":
        return (
            f"acting-bound (CPU): acting and storing take {share:.0%} of the time; "
            "larger groups (more --num-envs, fewer --groups) or a smaller --model help"
        )
    if not name:
        return "balanced: no part holds the others up; only more of everything helps"
    if gpu_utilisation is None:
        return (
            f"learning-bound (CPU): learning takes {share:.0%} of the time; a smaller "
            "--model or fewer --passes help, faster environments would not"
        )
    meanwhile = "" if overlapped else ", --lag 1 to collect meanwhile"
    return (
        f"learning-bound (CPU): learning takes {share:.0%} of the time, yet the GPU "
        f"runs kernels for only {gpu_utilisation:.0%}; a larger --minibatch-size, "
        f"--cuda-graphs{meanwhile} help"
    )


def verdict_of(values: Mapping[str, float], overlapped: bool) -> str:
    """The `verdict` on a point of the curves, `values` as in metrics.jsonl."""
    prefix = "time/share_"
    shares = {k.removeprefix(prefix): v for k, v in values.items() if prefix in k}
    return verdict(shares, values.get("system/gpu_utilisation"), overlapped)


def _dominant(shares: Mapping[str, float], overlapped: bool) -> tuple[str, float]:
    """The part of the loop that bounds its speed, and its share; "" for none.

    Where two threads overlap, it is a part of the one that the other waits for.
    """
    parts = {
        # Waking more workers than there are cores left is waiting for them, too.
        "wait": shares.get("wait", 0.0) + shares.get("send", 0.0),
        "act": sum(
            shares.get(name, 0.0) for name in ("copy", "act", "store", "explore")
        ),
        "learn": shares.get("learn", 0.0),
    }
    if overlapped:
        collector_waits = shares.get("wait_learner", 0.0)
        learner_waits = shares.get("wait_batch", 0.0)
        if max(collector_waits, learner_waits) < _HELD_UP:
            return "", 0.0
        for name in ("wait", "act") if collector_waits > learner_waits else ("learn",):
            del parts[name]
    name = max(parts, key=lambda part: parts[part])
    return (name, parts[name]) if parts[name] >= _BOUND else ("", 0.0)


class MetricsWriter:
    """Writes scalars to metrics.jsonl, to TensorBoard, and to W&B if asked."""

    def __init__(
        self,
        run_dir: Path,
        config: Mapping[str, Any],
        *,
        wandb: bool = False,
        resumed_at: int | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """Opens the files.

        Args:
            run_dir: existing folder.
            config: shown by W&B.
            wandb: whether to log there; offline when no API key is found.
            resumed_at: step that the run goes on from, 0 for a new one: TensorBoard
                hides what it has of later ones.
            say: told when something cannot be written.
        """
        self._run_dir = run_dir
        self._lines = Lines(run_dir / "metrics.jsonl", say)
        self._board = self._open_board(resumed_at)
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

    def _open_board(self, resumed_at: int | None = None) -> Any:
        # Only a run that writes curves pays for this import.
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resumed_at is None else resumed_at + 1
        return SummaryWriter(str(self._run_dir), purge_step=purge)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one point of every curve, at an environment step.

        Where the disk is full, the point is lost and the run goes on.
        """
        written = self._lines.write({"step": step, **values})
        if written and self._has_room():
            self._write_board(step, values)
        if self._wandb is not None:
            self._wandb.log(dict(values), step=step)

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
                self._board._get_file_writer().add_summary(summary, step)
                self._board.flush()
            except OSError:
                self._board = None
        if self._wandb is not None:
            import wandb as client

            video = client.Video(str(path), format="mp4")
            # Its steps only rise: this joins the latest ones.
            self._wandb.log({f"videos/{name}": video})

    def close(self) -> None:
        """Flushes and closes everything."""
        self._lines.close()
        if self._board is not None:
            with suppress(OSError):
                self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def format_seconds(seconds: float) -> str:
    """m:ss or h:mm:ss."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
