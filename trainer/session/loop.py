"""The training loop: update, report, evaluate, until there is a reason to end."""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import fmean
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from trainer.config.tasks import is_native, levels_of
from trainer.evaluation.protocol import evaluate_levels, evaluate_policy
from trainer.evaluation.results import summarise_levels
from trainer.evaluation.tables import as_text, level_table
from trainer.machine.monitor import profiler
from trainer.machine.timings import format_seconds
from trainer.rollout.batch import Batch, observations

if TYPE_CHECKING:
    from trainer.session.session import Run

_INTERRUPTED = "interrupted"  # the one reason to end after which there is more to do

# Without a clear by this step, other starts are suggested; 1-1 is cleared well before.
_SUGGEST_STEPS = 300_000

# Episodes between two attempts to show that a level is solved.
_EPISODES_BETWEEN_ATTEMPTS = 50


@dataclass
class Progress:
    """Counters that go on when a run is resumed.

    Attributes:
        seconds: wall-clock time so far.
        attempts: evaluations so far.
        next_attempt: episodes from which on the next one may be.
        evaluated: what the last one found.
        best_clear_rate: the best rolling one that best.pt is of.
        ended: why the run came to its end; "": it did not.
    """

    seconds: float = 0.0
    attempts: int = 0
    next_attempt: int = 0
    evaluated: dict[str, float] = field(default_factory=dict)
    best_clear_rate: float = 0.0
    ended: str = ""


class Stop:
    """Which signal asked the run to end; 0: none."""

    signal = 0


@contextmanager
def stop_on_signal(say: Callable[[str], None]) -> Iterator[Stop]:
    """Notes Ctrl-C and SIGTERM, and says so; a second one interrupts at once."""
    stopping = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if stopping.signal:
            raise KeyboardInterrupt
        stopping.signal = number
        # Python's files are not reentrant, and Ctrl-C may have ended who reads them;
        # the message may be lost, the signal not.
        with suppress(RuntimeError, OSError):
            say(f"{signal.Signals(number).name}: ending after this update")

    old = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class Loop:
    """Collect, learn, report, until there is a reason to end."""

    def __init__(self, run: Run, started: float, stopping: Stop) -> None:
        self._run, self._started, self._stopping = run, started, stopping
        self._progress = run.progress
        self._seconds_before = run.progress.seconds
        self._first_step = self._last_step = run.steps
        self._last_log = self._last_save = started
        self._values: dict[str, float] = {}
        self._cleared = len(run.episodes.cleared_levels())
        self._suggest = run.config.explore.starts == "level" and is_native(
            run.config.env.task
        )
        env = run.config.env
        # Those that evaluations play one by one; without --levels they play the task.
        self._levels: tuple[str, ...] = ()
        if env.levels:
            self._levels = levels_of(env.levels, env.test_levels, env.task)

    def run(self) -> dict[str, float]:
        """Trains; see `train`."""
        run, config = self._run, self._run.config
        reason = ""
        with profiler(config.profile, run.run_dir, run.device) as updated:
            while not reason:
                batch = run.update()
                updated()
                self._tell_first_clears()
                reason = self._reason_to_end()
                self._progress.seconds = self._seconds()
                if reason or self._seconds_since(self._last_log) >= config.log_seconds:
                    self._report(batch)
                    self._save_if_best()
                if self._seconds_since(self._last_save) >= config.checkpoint_seconds:
                    run.save()
                    self._last_save = time.perf_counter()
        solved = reason.startswith("solved")
        more_to_say = self._levels and not solved and not self._stopping.signal
        if more_to_say and config.end_episodes:
            run.display.say(
                f"playing {config.end_episodes} episodes of each of "
                f"{len(self._levels)} levels"
            )
            self._evaluate("evaluation at the end", config.end_episodes)
        seconds = self._seconds()
        # Not by the signal: it may have come while the last evaluation was played.
        self._progress.ended = "" if reason == _INTERRUPTED else reason
        more = f"; --resume {run.run_dir} goes on" if reason == _INTERRUPTED else ""
        run.display.say(
            f"{reason} after {run.steps:,} steps, {format_seconds(seconds)}{more}"
        )
        return (
            self._values
            | self._progress.evaluated
            | {
                "steps": float(run.steps),
                "seconds": seconds,
                "solved": float(solved),
            }
        )

    def _seconds_since(self, then: float) -> float:
        return time.perf_counter() - then

    def _seconds(self) -> float:
        """Wall-clock time of the run, with what came before it was resumed."""
        return self._seconds_before + self._seconds_since(self._started)

    def _eta_s(self) -> float:
        """Seconds to the first of max_steps and max_seconds; solving ends sooner."""
        config, steps = self._run.config, self._run.steps
        seconds = self._seconds_since(self._started)
        rate = (steps - self._first_step) / max(seconds, 1e-9)
        eta = (config.max_steps - steps) / max(rate, 1e-9)
        if config.max_seconds:
            eta = min(eta, config.max_seconds - self._seconds())
        return eta

    def _tell_first_clears(self) -> None:
        """One line for each level, after the update in which it was first cleared."""
        run = self._run
        cleared = run.episodes.cleared_levels()
        when = f"after {run.steps:,} steps, {format_seconds(self._seconds())}"
        for level in cleared[self._cleared :]:
            run.display.say(f"first clear of {level or run.config.env.task} {when}")
        self._cleared = len(cleared)
        steps = run.steps - self._first_step
        if self._suggest and (cleared or steps >= _SUGGEST_STEPS):
            self._suggest = False
            if not cleared:
                run.display.say(
                    f"no clear in {steps:,} steps: --resume {run.run_dir} "
                    "--starts frontier may help (docs/training.md, A hard level)"
                )

    def _save_if_best(self) -> None:
        """Keeps the weights of the best rolling clear rate."""
        rate = fmean(self._run.episodes.clear_rates())
        best = self._progress.best_clear_rate
        if rate > best:
            if not best:
                # Until then best.pt, which is without games, might be all there is.
                self._run.save()
                self._last_save = time.perf_counter()
            self._progress.best_clear_rate = rate
            if not self._run.save(best=True):
                self._progress.best_clear_rate = best

    def _report(self, batch: Batch) -> None:
        """One point of every curve, and a line for people."""
        run, config = self._run, self._run.config
        now, steps = time.perf_counter(), run.steps
        sps = (steps - self._last_step) / (now - self._last_log)
        shares = run.timings.shares()
        hardware = run.monitor.statistics()
        if "emulate" in hardware:
            shares["emulate"] = hardware.pop("emulate")
        episodes = run.episodes.statistics() | run.collector.statistics()
        values = {f"rollout/{k}": v for k, v in episodes.items()}
        values |= run.episodes.level_statistics()
        if run.explorer is not None:
            found = run.explorer.statistics()
            values |= {f"explore/{k}": v for k, v in found.items()}
        values |= {f"learn/{k}": v for k, v in run.learner.statistics().items()}
        values |= {f"time/share_{k}": v for k, v in shares.items()}
        values |= {f"system/{k}": v for k, v in hardware.items()}
        values["queue/full_unrolls"] = float(run.rollouts.num_full)
        values["queue/free_slots"] = float(run.rollouts.num_free)
        if run.replay is not None:
            values["replay/unrolls"] = float(len(run.replay))
            values |= {k: v.item() for k, v in run.replay.statistics().items()}
        values["time/sps"] = sps
        values["time/frames_per_s"] = sps * config.env.frame_skip
        values["time/seconds"] = self._seconds()
        run.writer.write(steps, values)
        eta = self._eta_s()
        run.display.report(steps, values, eta)
        if run.filmer is not None:
            run.filmer.show(run.writer)
        if not math.isfinite(values.get("learn/loss/total", 0.0)):
            self._save_batch(batch)
            raise RuntimeError(
                f"the loss is {values['learn/loss/total']}; the last batch is in "
                f"{run.run_dir}/nan_batch.pt. Try a lower --lr or --precision fp32"
            )
        self._values = values
        self._last_log, self._last_step = now, steps

    def _save_batch(self, batch: Batch) -> None:
        """Keeps a batch for whoever looks for the cause; its own pixels only."""
        fields = batch._asdict()
        fields["obs"] = observations(
            fields.pop("frames"), fields.pop("stacks"), self._run.obs_shape
        )
        torch.save(fields, self._run.run_dir / "nan_batch.pt")

    def _reason_to_end(self) -> str:
        """Why the run ends now, "" if it does not."""
        run, config = self._run, self._run.config
        if self._stopping.signal:
            return _INTERRUPTED
        if config.stop_when_solved and self._solved():
            rate = self._progress.evaluated["evaluation/clear_rate"]
            return f"solved: {rate:.0%} cleared"
        if run.steps >= config.max_steps:
            return "max_steps reached"
        if config.max_seconds and self._seconds() >= config.max_seconds:
            return "max_seconds reached"
        return ""

    def _solved(self) -> bool:
        """Whether an evaluation confirms what the training episodes suggest."""
        run, config = self._run, self._run.config
        levels = config.env.levels
        count = run.episodes.count
        rate = min(run.episodes.clear_rates())
        if not rate or rate < config.solve_rate or count < self._progress.next_attempt:
            return False
        between = _EPISODES_BETWEEN_ATTEMPTS * max(1, len(levels))
        self._progress.next_attempt = count + between
        steps, seconds = run.steps, self._seconds()
        what = "the level" if len(levels) < 2 else "every level, or more,"
        run.display.say(
            f"{rate:.0%} of the last 100 training episodes cleared {what} after "
            f"{steps:,} steps, {format_seconds(seconds)}"
        )
        if self._evaluate("evaluation", config.solve_episodes) < config.solve_rate:
            return False
        # The first one was chosen by its result; this one was not.
        self._evaluate("second evaluation", config.solve_episodes)
        return True

    def _evaluate(self, name: str, episodes: int) -> float:
        """Plays fresh episodes and tells of them.

        Args:
            name: of the evaluation.
            episodes: to play, of each level if there are several.

        Returns:
            Their clear rate, or the least of all trained levels.
        """
        run = self._run
        self._progress.attempts += 1
        began = time.perf_counter()
        result, table = self._play(episodes)
        # Not the speed of training.
        self._last_log += self._seconds_since(began)
        run.timings.skip(self._seconds_since(began))
        seconds = self._seconds()
        result |= {"steps": run.steps, "seconds": seconds, "name": name}
        low, high = result["clear_rate_95"]
        run.display.say(
            f"{name}: {result['clears']} of {result['episodes']} episodes cleared "
            f"(95 % interval {low:.1%} to {high:.1%}), {format_seconds(seconds)}{table}"
        )
        run.evaluations.write(result)
        names = ("clear_rate", "worst_clear_rate", "test_clear_rate")
        rates = {
            f"evaluation/{name}": float(result[name])
            for name in names
            if result.get(name) is not None
        }
        self._progress.evaluated |= rates
        run.writer.write(run.steps, rates)
        return float(result.get("worst_clear_rate", result["clear_rate"]))

    def _play(self, episodes: int) -> tuple[dict[str, Any], str]:
        """Plays the averaged weights; gives numbers, and a table of several levels."""
        run, config = self._run, self._run.config
        model = copy.deepcopy(run.model)
        if run.learner.ema is not None:
            run.learner.ema.copy_to(model)
        options: dict[str, Any] = {
            "episodes": episodes,
            "seed": config.seed,
            "stream": self._progress.attempts,
            "device": run.device,
            "dtype": run.dtype,
        }
        if not self._levels:
            return evaluate_policy(model, config.env, **options), ""
        results = evaluate_levels(model, config.env, levels=self._levels, **options)
        return summarise_levels(results), f"\n{as_text(level_table(results, []))}"
