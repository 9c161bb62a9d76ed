"""Reports of a run in training: one point of every curve, and first clears."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainer.config.schema import RunConfig
from trainer.config.tasks import is_native
from trainer.film.record import Filmer
from trainer.machine.files import replacing
from trainer.machine.timings import Timings, format_seconds
from trainer.models.checkpoint import dump
from trainer.rollout.batch import Batch, observations
from trainer.rollout.finished import FinishedEpisodes
from trainer.session.progress import Clock, Progress
from trainer.show.display import Display
from trainer.show.tracking import MetricsWriter

# A prefix of names, and a function that returns values by name.
Source = tuple[str, Callable[[], Mapping[str, float]]]

# Largest discounted return that suits the critic's Huber loss and the gradient clip,
# and the return from which the user is warned.
_RETURNS, _RETURNS_LIMIT = 15, 45

# Without a clear after this many steps, other starts are suggested; 1-1 needs far
# fewer.
_SUGGEST_STEPS = 300_000


class Reporter:
    """Collects the values of all curves, and writes and shows them.

    Attributes:
        values: of the last point.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        sources: Sequence[Source],
        timings: Timings,
        writer: MetricsWriter,
        display: Display,
        filmer: Filmer | None,
        progress: Progress,
        clock: Clock,
    ) -> None:
        """Starts the time to the first point."""
        self.values: dict[str, float] = {}
        self._config, self._sources, self._timings = config, sources, timings
        self._writer, self._display, self._filmer = writer, display, filmer
        self._progress, self._clock = progress, clock
        self._warn_of_returns = not config.model.popart
        self._first_step = self._last_step = progress.steps
        self._last = clock.started

    def due(self) -> bool:
        """Whether it is time for the next point."""
        return time.perf_counter() - self._last >= self._config.log_seconds

    def skip(self, seconds: float) -> None:
        """Excludes seconds that were not training from all speeds and shares."""
        self._last += seconds
        self._timings.skip(seconds)

    def report(self) -> None:
        """Writes one point of every curve, and shows it."""
        now, steps = time.perf_counter(), self._progress.steps
        sps = (steps - self._last_step) / (now - self._last)
        values = {
            prefix + name: value
            for prefix, read in self._sources
            for name, value in read().items()
        }
        if "system/emulate" in values:  # also a share of time, of the emulation threads
            values["time/share_emulate"] = values.pop("system/emulate")
        values["time/sps"] = sps
        values["time/frames_per_s"] = sps * self._config.env.frame_skip
        values["time/seconds"] = self._clock.seconds()
        values["time/eta_seconds"] = self._eta_s()
        self._writer.write(steps, values)
        self._display.report(steps, values, values["time/eta_seconds"])
        self._check_returns(values.get("learn/largest_return", 0.0))
        if self._filmer is not None:
            self._filmer.show(self._writer.write_video)
        self.values = values
        self._last, self._last_step = now, steps

    def _check_returns(self, largest: float) -> None:
        """Warns once of returns that are too large for the losses."""
        if self._warn_of_returns and largest > _RETURNS_LIMIT:
            self._warn_of_returns = False
            scale = self._config.env.reward_scale * _RETURNS / largest
            advice = f"--reward-scale {scale:.1g}"
            if self._config.env.reward_fn or not is_native(self._config.env.task):
                advice = "smaller rewards"
            self._display.log(
                f"discounted returns reach {largest:,.0f}, and the losses are made for "
                f"at most {_RETURNS}: choose {advice}, or --popart"
            )

    def _eta_s(self) -> float:
        """Seconds to the first of max_steps and max_seconds at the mean speed so far.

        Infinite without a limit. A run that is solved ends earlier.
        """
        config, steps = self._config, self._progress.steps
        rate = (steps - self._first_step) / max(self._clock.elapsed(), 1e-9)
        eta = math.inf
        if config.max_steps:
            eta = (config.max_steps - steps) / max(rate, 1e-9)
        if config.max_seconds:
            eta = min(eta, config.max_seconds - self._clock.seconds())
        return max(eta, 0.0)


class FirstClears:
    """Logs the first clear of each level, or advice if there is none."""

    def __init__(
        self,
        config: RunConfig,
        *,
        episodes: FinishedEpisodes,
        progress: Progress,
        clock: Clock,
        run_dir: Path,
        log: Callable[[str], None],
    ) -> None:
        """Takes the levels that are already cleared as known."""
        self._task, self._run_dir, self._log = config.env.task, run_dir, log
        self._episodes, self._progress, self._clock = episodes, progress, clock
        self._first_step = progress.steps
        self._known = len(episodes.cleared_levels())
        self._suggest = config.explore.starts == "level" and is_native(self._task)

    def log_new(self) -> None:
        """Logs a line for each level that was first cleared since the last call."""
        cleared = self._episodes.cleared_levels()
        seconds = format_seconds(self._clock.seconds())
        when = f"after {self._progress.steps:,} steps, {seconds}"
        for level in cleared[self._known :]:
            self._log(f"first clear of {level or self._task} {when}")
        self._known = len(cleared)
        steps = self._progress.steps - self._first_step
        if self._suggest and (cleared or steps >= _SUGGEST_STEPS):
            self._suggest = False
            if not cleared:
                self._log(
                    f"no clear in {steps:,} steps: --resume {self._run_dir} "
                    "--starts frontier may help (docs/hard-levels.md)"
                )


def check_loss(
    values: Mapping[str, float],
    batch: Batch,
    run_dir: Path,
    obs_shape: tuple[int, ...],
) -> None:
    """Saves the batch if the loss is not finite, to help find the cause."""
    loss = values.get("learn/loss/total", 0.0)
    if math.isfinite(loss):
        return
    fields = batch._asdict()
    # Only the frames of this batch, not the whole store.
    fields["obs"] = observations(fields.pop("frames"), fields.pop("stacks"), obs_shape)
    path = run_dir / "nan_batch.pt"
    text = f"the loss is {loss}; the last batch is in {path}"
    try:
        with replacing(path) as file:
            dump(fields, file)
    except OSError as error:
        text = f"the loss is {loss}; {path} could not be written ({error.strerror})"
    raise RuntimeError(f"{text}. Try a lower --lr, or --precision fp32")
