"""Reports of a run in training: the curves, first clears, evaluations and alarms.

An alarm has a name and is an early warning of what would end an unattended run. It is
reported when it begins and when it ends: in the dashboard, in messages.txt, and through
`--notify`.
"""

from __future__ import annotations

import copy
import math
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from trainer.config.tasks import is_native, levels_of
from trainer.evaluation.protocol import Protocol, evaluate
from trainer.evaluation.results import summarise_levels
from trainer.evaluation.tables import as_text, level_table
from trainer.machine.files import replacing
from trainer.machine.timings import format_seconds
from trainer.models import checkpoint
from trainer.models.actor_critic import copy_weights
from trainer.rollout.frames import observations
from trainer.rollout.store import Batch
from trainer.session.build import Run
from trainer.show.display import Display
from trainer.show.tracking import Notifier

# Largest discounted return that suits the critic's Huber loss and the gradient clip,
# and the return from which the user is warned.
_RETURNS, _RETURNS_LIMIT = 15, 45

# Without a clear after this many steps, other starts are suggested; 1-1 needs far
# fewer.
_SUGGEST_STEPS = 300_000

# Episodes between two attempts to show that a level is solved.
_EPISODES_BETWEEN_ATTEMPTS = 50

# Window over which the growth of memory is measured, and the alarm limit: memory must
# last longer than this at the rate of the last window.
_WINDOW_S, _LASTS_S = 1800.0, 48 * 3600.0
# Random values rise over all parts of a window once in 40,000 times.
_PARTS = 8
_SAMPLES = 360  # at most, per window
# An alarm is due if less than this share of the memory is left.
_LEAST_LEFT = 0.05

# Free bytes that the disk needs in addition to two more checkpoints.
_DISK_BYTES = 1 << 30

# A pool without a batch for this long is stalled: a step takes a millisecond.
_STALL_S = 120.0


class Reporter:
    """Writes and shows the curves of a run, its first clears and its evaluations.

    Attributes:
        values: of the last point of the curves.
    """

    def __init__(self, run: Run) -> None:
        self.values: dict[str, float] = {}
        self._run, self._last = run, run.started
        self._first_step = self._last_step = run.progress.steps
        config, env = run.config, run.config.env
        self._warn_of_returns = not config.model.popart
        self._num_cleared = len(run.episodes.cleared_levels())
        self._suggest_starts = config.explore.starts == "level" and is_native(env.task)
        # Like `python -m trainer.evaluate`: the levels one by one, or else the task.
        self._levels = levels_of(env.levels, env.test_levels, env.task)

    def due(self) -> bool:
        """Whether it is time for the next point."""
        return time.perf_counter() - self._last >= self._run.config.log_seconds

    def report(self) -> None:
        """Writes one point of every curve, and shows it."""
        run = self._run
        now, steps = time.perf_counter(), run.progress.steps
        sps = (steps - self._last_step) / (now - self._last)
        values = _values(run)
        if "system/emulate" in values:  # also a share of time, of the emulation threads
            values["time/share_emulate"] = values.pop("system/emulate")
        values["time/sps"] = sps
        values["time/frames_per_s"] = sps * run.config.env.frame_skip
        values["time/seconds"] = run.seconds()
        values["time/eta_seconds"] = self._eta_s()
        run.writer.write(steps, values)
        run.display.report(steps, values, values["time/eta_seconds"])
        self._check_returns(values.get("learn/largest_return", 0.0))
        if run.filmer is not None:
            run.filmer.show(run.writer.write_video)
        self.values = values
        self._last, self._last_step = now, steps

    def _check_returns(self, largest: float) -> None:
        """Warns once of returns that are too large for the losses."""
        if self._warn_of_returns and largest > _RETURNS_LIMIT:
            self._warn_of_returns = False
            env = self._run.config.env
            advice = f"--reward-scale {env.reward_scale * _RETURNS / largest:.1g}"
            if env.reward_fn or not is_native(env.task):
                advice = "smaller rewards"
            self._run.display.log(
                f"discounted returns reach {largest:,.0f}, and the losses are made for "
                f"at most {_RETURNS}: choose {advice}, or --popart"
            )

    def _eta_s(self) -> float:
        """Seconds to the first of max_steps and max_seconds at the mean speed so far.

        Infinite without a limit. A run that is solved ends earlier.
        """
        run = self._run
        config, steps = run.config, run.progress.steps
        elapsed = max(time.perf_counter() - run.started, 1e-9)
        eta = math.inf
        if config.max_steps:
            rate = (steps - self._first_step) / elapsed
            eta = (config.max_steps - steps) / max(rate, 1e-9)
        if config.max_seconds:
            eta = min(eta, config.max_seconds - run.seconds())
        return max(eta, 0.0)

    def log_first_clears(self) -> None:
        """Logs the levels first cleared since the last call, or advice."""
        run = self._run
        cleared = run.episodes.cleared_levels()
        when = f"after {run.progress.steps:,} steps, {format_seconds(run.seconds())}"
        for level in cleared[self._num_cleared :]:
            run.display.log(f"first clear of {level or run.config.env.task} {when}")
        self._num_cleared = len(cleared)
        steps = run.progress.steps - self._first_step
        if self._suggest_starts and (cleared or steps >= _SUGGEST_STEPS):
            self._suggest_starts = False
            if not cleared:
                run.display.log(
                    f"no clear in {steps:,} steps: --resume {run.run_dir} "
                    "--starts frontier may help (docs/hard-levels.md)"
                )

    def solved(self) -> bool:
        """Whether two evaluations confirm that the run is solved."""
        config, episodes = self._run.config, self._run.episodes
        progress, levels = self._run.progress, config.env.levels
        rate, count = min(episodes.clear_rates()), episodes.count
        if not rate or rate < config.solve_rate or count < progress.next_attempt:
            return False
        progress.next_attempt = count + _EPISODES_BETWEEN_ATTEMPTS * max(1, len(levels))
        what = "the level" if len(levels) < 2 else "the worst level"
        if episodes.whole_game:
            what = "the whole game"
        self._run.display.log(
            f"{rate:.0%} of the last 100 training episodes cleared {what} after "
            f"{progress.steps:,} steps, {format_seconds(self._run.seconds())}"
        )
        # A single evaluation may pass by luck, because the run tries until one passes.
        return all(
            self._evaluate(name, config.solve_episodes) >= config.solve_rate
            for name in ("evaluation", "second evaluation")
        )

    def evaluate_at_end(self) -> None:
        """Evaluates the levels of an unsolved run, if the config asks for it."""
        config = self._run.config
        if config.env.levels and config.end_episodes:
            self._run.display.log(
                f"evaluation of {len(self._levels)} levels, "
                f"{config.end_episodes} episodes each"
            )
            self._evaluate("evaluation at the end", config.end_episodes)

    def _evaluate(self, name: str, episodes: int) -> float:
        """Plays fresh episodes with the current weights, and logs the result."""
        run, progress = self._run, self._run.progress
        progress.attempts += 1
        began = time.perf_counter()
        result, table = self._play(episodes)
        # This was not training: it counts in no speed and no share of time.
        played_s = time.perf_counter() - began
        self._last += played_s
        run.timings.skip(played_s)
        seconds = run.seconds()
        result |= {"steps": progress.steps, "seconds": seconds, "name": name}
        result |= {"seed": run.config.seed, "stream": progress.attempts}
        low, high = result["clear_rate_95"]
        run.display.log(
            f"{name}: {result['clears']} of {result['episodes']} episodes cleared "
            f"(95 % interval {low:.1%} to {high:.1%}), {format_seconds(seconds)}{table}"
        )
        run.evaluations.write(result)
        rates = {
            f"evaluation/{name}": float(result[name])
            for name in ("clear_rate", "worst_clear_rate", "test_clear_rate")
            if result.get(name) is not None
        }
        progress.evaluated |= rates
        run.writer.write(progress.steps, rates)
        return float(result.get("worst_clear_rate", result["clear_rate"]))

    def _play(self, episodes: int) -> tuple[dict[str, Any], str]:
        """Plays the averaged weights; returns the results and a table of the levels."""
        run = self._run
        model = copy.deepcopy(run.model)
        if run.learner.ema is not None:
            copy_weights(model, run.learner.ema.model)
        protocol = Protocol(
            run.device,
            run.dtype,
            episodes,
            run.config.seed,
            stream=run.progress.attempts,
        )
        result = evaluate(model, run.config.env, self._levels, protocol)
        if isinstance(result, dict):
            return result, ""
        table = f"\n{as_text(level_table(result, []))}" if len(result) > 1 else ""
        return summarise_levels(result), table


def _values(run: Run) -> dict[str, float]:
    """The values of all curves since the last call."""
    store, replay = run.store, run.replay
    queue = {"full_unrolls": store.num_full, "free_slots": store.num_free}
    parts: list[tuple[str, Mapping[str, float]]] = [
        ("time/share_", run.timings.shares()),
        ("system/", run.monitor.statistics()),
        ("rollout/", run.episodes.statistics()),
        ("rollout/", run.collector.statistics()),
        ("", run.episodes.level_statistics()),
        ("explore/", run.explorer.statistics() if run.explorer else {}),
        ("learn/", run.learner.statistics()),
        ("queue/", {name: float(count) for name, count in queue.items()}),
        ("time/share_", run.ranks.timings.shares()),
    ]
    if replay is not None:
        parts.append(("replay/", {"unrolls": float(len(replay))}))
        parts.append(("", {k: v.item() for k, v in replay.statistics().items()}))
    return {prefix + name: v for prefix, part in parts for name, v in part.items()}


def check_loss(run: Run, loss: float, batch: Batch) -> None:
    """Saves the batch if the loss is not finite, to help find the cause."""
    if math.isfinite(loss):
        return
    fields = batch._asdict()
    # Only the frames of this batch, not the whole store.
    fields["obs"] = observations(
        fields.pop("frames"), fields.pop("stacks"), run.obs_shape
    )
    path = run.run_dir / "nan_batch.pt"
    with suppress(OSError), replacing(path) as file:  # a full disk
        checkpoint.dump(fields, file)
    raise RuntimeError(
        f"the loss is {loss}; the last batch is in {path}, if the disk had room. Try a "
        "lower --lr, or --precision fp32"
    )


# -- alarms ------------------------------------------------------------------


class Growth:
    """Whether memory grows without pause, and how long the rest of it will last."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        self._lasts = math.inf

    def lasts(self, now: float, used: float, left: float) -> float:
        """Takes a sample.

        Memory that leaks has a higher minimum in each part of the window than in the
        part before; peaks carry no information.
        """
        samples = self._samples
        # Points of the curves may be as frequent as updates are.
        if not samples or now - samples[-1][0] >= _WINDOW_S / _SAMPLES:
            samples.append((now, used))
            self._lasts = self._extrapolate(now, left)
        return self._lasts

    def _extrapolate(self, now: float, left: float) -> float:
        """The result of `lasts`, from the samples of the window."""
        samples = self._samples
        begin = now - _WINDOW_S
        if samples[0][0] > begin:
            return math.inf
        while samples[1][0] <= begin:
            samples.popleft()
        if len(samples) < _PARTS:
            return math.inf
        parts = np.array_split(np.array(samples), _PARTS)
        floors = np.array([part[:, 1].min() for part in parts])
        if not (np.diff(floors) > 0).all():
            return math.inf
        seconds = parts[-1][0, 0] - parts[0][0, 0]
        return float(left / (floors[-1] - floors[0]) * seconds)


class Alarms:
    """Checks the points of a run and its pool, and reports alarms."""

    def __init__(
        self,
        run_dir: Path,
        display: Display,
        *,
        waiting_s: Callable[[], float],
        busy: Callable[[], Sequence[int]] = tuple,
        replaced: Callable[[], Sequence[str]] = tuple,
        notifier: Notifier | None = None,
    ) -> None:
        self._run_dir, self._display, self._notifier = run_dir, display, notifier
        self._waiting_s, self._busy, self._replaced = waiting_s, busy, replaced
        self._lock = threading.Lock()
        self._active: dict[str, str] = {}
        self._growth = {"host": Growth(), "gpu": Growth()}
        self._replay, self._num_replaced = 0.0, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="alarms", daemon=True)
        self._thread.start()

    def set(self, name: str, text: str) -> None:
        """Begins an alarm, or ends it."""
        with self._lock:
            was = self._active.pop(name, "")
            if text:
                self._active[name] = text
        if not (text or was):
            return
        self._display.alarm(name, text)
        if text and not was:
            self._tell(f"ALARM: {name}", text)
        elif was and not text:
            self._tell(f"alarm is over: {name}", "")

    def _tell(self, title: str, text: str) -> None:
        """Logs, and notifies."""
        self._display.log(f"{title}: {text}" if text else title)
        self.notify(title, text)

    def notify(self, title: str, text: str = "") -> None:
        """Sends a message of the run if it has `--notify`."""
        if self._notifier is not None:
            self._notifier.send(f"{self._run_dir.name}: {title}", text or title)

    def check(self, values: Mapping[str, float]) -> None:
        """Checks a point of the curves, the disk and the replaced environments."""
        self._check_loss(values)
        self._check_memory(values)
        self._check_disk()
        self._check_replaced()

    def _check_loss(self, values: Mapping[str, float]) -> None:
        parts = {n: v for n, v in values.items() if n.startswith("learn/loss/")}
        wrong = [f"{n} is {v}" for n, v in parts.items() if not math.isfinite(v)]
        text = f"{', '.join(wrong)}: this run cannot continue" if wrong else ""
        self.set("NaN", text)

    def _check_memory(self, values: Mapping[str, float]) -> None:
        unrolls = values.get("replay/unrolls", 0.0)
        if unrolls != self._replay:  # memory grows while replay fills
            self._replay = unrolls
            self._growth = {"host": Growth(), "gpu": Growth()}
        for where, growth in self._growth.items():
            used = values.get(f"system/{where}_memory_gb")
            total = values.get(f"system/{where}_memory_total_gb")
            if used is None or total is None:
                continue
            # For a GPU, `used` counts all processes.
            left = values.get(f"system/{where}_memory_left_gb", total - used)
            lasts = growth.lasts(monotonic(), used, left)
            text = ""
            if where == "host" and left < _LEAST_LEFT * total:
                text = f"{left:.2f} of {total:.1f} GB are left; this run has "
                text += f"{used:.1f} GB"
            elif lasts < _LASTS_S:
                text = f"it grows without pause, is {used:.1f} GB, and {left:.1f} GB "
                text += f"are left, which last {format_seconds(lasts)} at this rate"
            if text:
                text += "; --resume continues from the last checkpoint with as little "
                text += "memory as a new run"
            self.set(f"memory of the {where}", text)

    def _check_disk(self) -> None:
        try:
            files = checkpoint.list_files(self._run_dir)
            needed = 2 * max((path.stat().st_size for path in files), default=0)
            free = shutil.disk_usage(self._run_dir).free
        except OSError:  # a file was just replaced, or the disk is briefly unavailable
            return
        text = ""
        if free < _DISK_BYTES + needed:
            text = f"{free / 2**30:.2f} GB are left where {self._run_dir} is; make "
            text += "room, or the run cannot write more checkpoints"
        self.set("disk", text)

    def _check_replaced(self) -> None:
        errors = self._replaced()
        for text in errors[self._num_replaced :]:
            self._tell("an environment was replaced", text)
        self._num_replaced = len(errors)

    def _watch(self) -> None:
        """The thread, which runs even while the pool stalls the training loop."""
        while not self._stop.wait(min(1.0, _STALL_S / 4)):
            seconds, text = self._waiting_s(), ""
            if seconds > _STALL_S:
                text = f"no batch for {format_seconds(seconds)}"
                if busy := self._busy():
                    text += f", environments {', '.join(map(str, busy))} are in a step"
                text += "; if this lasts, end the run and continue with --resume"
            elif "stalled pool" not in self._active:
                continue
            self.set("stalled pool", text)

    def close(self) -> None:
        """Stops watching, and waits for notifications; may be called again."""
        self._stop.set()
        self._thread.join()
        if self._notifier is not None:
            self._notifier.close()
