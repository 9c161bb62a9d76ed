"""The training loop: update, report, evaluate, until there is a reason to end."""

from __future__ import annotations

import copy
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

import torch

from trainer.config import RunConfig
from trainer.evaluate import evaluate_policy
from trainer.metrics import format_seconds
from trainer.monitor import profiler
from trainer.rollouts import Batch, observations

if TYPE_CHECKING:
    from trainer.run import Run

# Episodes between two attempts to show that a level is solved.
_EPISODES_BETWEEN_ATTEMPTS = 50


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
        # Python's files are not reentrant; the message may be lost, the signal not.
        with suppress(RuntimeError):
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
        self._first_step = self._last_step = run.steps
        self._last_log = self._last_save = started
        self._values: dict[str, float] = {}
        self._attempts = 0
        self._next_attempt = 0
        self._evaluated: dict[str, float] = {}

    def run(self) -> dict[str, float]:
        """Trains; see `train`."""
        run, config = self._run, self._run.config
        reason = ""
        with profiler(config.profile, run.run_dir, run.device) as updated:
            while not reason:
                batch = run.update()
                updated()
                reason = self._reason_to_end()
                if reason or self._seconds_since(self._last_log) >= config.log_seconds:
                    self._report(batch)
                if self._seconds_since(self._last_save) >= config.checkpoint_seconds:
                    run.save()
                    self._last_save = time.perf_counter()
        seconds = self._seconds_since(self._started)
        run.display.say(
            f"{reason} after {run.steps:,} steps, {format_seconds(seconds)}"
        )
        return (
            self._values
            | self._evaluated
            | {
                "steps": float(run.steps),
                "seconds": seconds,
                "solved": float(reason.startswith("solved")),
                "signal": float(self._stopping.signal),
            }
        )

    def _seconds_since(self, then: float) -> float:
        return time.perf_counter() - then

    def _report(self, batch: Batch) -> None:
        """One point of every curve, and a line for people."""
        run, config = self._run, self._run.config
        now, steps = time.perf_counter(), run.steps
        sps = (steps - self._last_step) / (now - self._last_log)
        shares = run.timings.shares()
        hardware = run.monitor.statistics()
        if "emulate" in hardware:
            shares["emulate"] = hardware.pop("emulate")
        values = {f"rollout/{k}": v for k, v in run.episodes.statistics().items()}
        values |= {f"levels/{k}": v for k, v in run.episodes.level_rates().items()}
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
        values["time/seconds"] = now - self._started
        run.writer.write(steps, values)
        eta = _eta_s(config, now - self._started, steps - self._first_step, steps)
        run.display.report(steps, values, eta)
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
            return "interrupted"
        if config.stop_when_solved and self._solved():
            return f"solved: {self._evaluated['evaluation/clear_rate']:.0%} cleared"
        if run.steps >= config.max_steps:
            return "max_steps reached"
        seconds = self._seconds_since(self._started)
        if config.max_seconds and seconds >= config.max_seconds:
            return "max_seconds reached"
        return ""

    def _solved(self) -> bool:
        """Whether an evaluation confirms what the training episodes suggest."""
        run, config = self._run, self._run.config
        count = run.episodes.count
        rate = run.episodes.clear_rate()
        if not rate or rate < config.solve_rate or count < self._next_attempt:
            return False
        self._next_attempt = count + _EPISODES_BETWEEN_ATTEMPTS
        steps, seconds = run.steps, self._seconds_since(self._started)
        run.display.say(
            f"{rate:.0%} of the last 100 training episodes cleared the level after "
            f"{steps:,} steps, {format_seconds(seconds)}"
        )
        if self._evaluate("evaluation") < config.solve_rate:
            return False
        # The first one was chosen by its result; this one was not.
        self._evaluate("second evaluation")
        return True

    def _evaluate(self, name: str) -> float:
        """Plays fresh episodes; returns their clear rate."""
        run, config = self._run, self._run.config
        model = copy.deepcopy(run.model)
        if run.learner.ema is not None:
            run.learner.ema.copy_to(model)
        self._attempts += 1
        began = time.perf_counter()
        result = evaluate_policy(
            model,
            config.env,
            episodes=config.solve_episodes,
            seed=config.seed,
            stream=self._attempts,
            device=run.device,
            dtype=run.dtype,
        )
        # Not the speed of training.
        self._last_log += self._seconds_since(began)
        run.timings.skip(self._seconds_since(began))
        seconds = self._seconds_since(self._started)
        result |= {"steps": run.steps, "seconds": seconds, "name": name}
        low, high = result["clear_rate_95"]
        run.display.say(
            f"{name}: {result['clears']} of {result['episodes']} episodes cleared "
            f"(95 % interval {low:.1%} to {high:.1%}), {format_seconds(seconds)}"
        )
        with (run.run_dir / "evaluations.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")
        rate = float(result["clear_rate"])
        self._evaluated["evaluation/clear_rate"] = rate
        run.writer.write(run.steps, {"evaluation/clear_rate": rate})
        return rate


def _eta_s(config: RunConfig, seconds: float, done: int, steps: int) -> float:
    """Seconds to the first of max_steps and max_seconds; solving ends sooner."""
    rate = done / max(seconds, 1e-9)
    eta = (config.max_steps - steps) / max(rate, 1e-9)
    if config.max_seconds:
        eta = min(eta, config.max_seconds - seconds)
    return eta
