"""Reports of a run in training: the curves, first clears and evaluations."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

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

# Largest discounted return that suits the critic's Huber loss and the gradient clip,
# and the return from which the user is warned.
_RETURNS, _RETURNS_LIMIT = 15, 45

# Without a clear after this many steps, other starts are suggested; 1-1 needs far
# fewer.
_SUGGEST_STEPS = 300_000

# Episodes between two attempts to show that a level is solved.
_EPISODES_BETWEEN_ATTEMPTS = 50


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
