"""The training loop: update, report, evaluate, save, until there is a reason to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType

from trainer.config.schema import RunConfig
from trainer.rollout.batch import Batch
from trainer.session.evaluator import Evaluator
from trainer.session.progress import Clock, Progress
from trainer.session.reporter import FirstClears, Reporter
from trainer.session.saver import Saver
from trainer.session.updater import Updater

INTERRUPTED = "interrupted"  # the one reason to end after which there is more to do


class Stop:
    """Which signal asked the run to end; 0: none."""

    signal = 0


@contextmanager
def stop_on_signal(log: Callable[[str], None]) -> Iterator[Stop]:
    """Notes Ctrl-C and SIGTERM, and logs them; a second one interrupts at once."""
    stopping = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if stopping.signal:
            raise KeyboardInterrupt
        stopping.signal = number
        # Python's files are not reentrant, and Ctrl-C may have ended their reader;
        # the message may be lost, the signal not.
        with suppress(RuntimeError, OSError):
            log(f"{signal.Signals(number).name}: ending after this update")

    old = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class Loop:
    """Calls the parts of a run in turn, until there is a reason to end."""

    def __init__(
        self,
        config: RunConfig,
        *,
        updater: Updater,
        first_clears: FirstClears,
        reporter: Reporter,
        evaluator: Evaluator,
        saver: Saver,
        check: Callable[[Batch], None],
        profiled: AbstractContextManager[Callable[[], None]],
        progress: Progress,
        clock: Clock,
        stopping: Stop,
    ) -> None:
        """Takes what the loop calls.

        Args:
            config: of the run.
            updater: learns from one batch at a time.
            first_clears: logs the first clears after every update.
            reporter: writes one point of every curve.
            evaluator: decides whether the run is solved.
            saver: writes checkpoints.
            check: raises if a run must not continue after the last point; receives
                the last batch.
            profiled: entered for the updates; gives a function to call after each.
            progress: of the run.
            clock: of the run.
            stopping: holds the signal that asked the run to end.
        """
        self._config, self._updater, self._first_clears = config, updater, first_clears
        self._reporter, self._evaluator, self._saver = reporter, evaluator, saver
        self._check, self._profiled = check, profiled
        self._progress, self._clock, self._stopping = progress, clock, stopping

    def run(self) -> str:
        """Trains; returns why the training ended."""
        reason = ""
        with self._profiled as updated:
            while not reason:
                batch = self._updater.update()
                updated()
                self._first_clears.log_new()
                reason = self._reason_to_end()
                self._progress.seconds = self._clock.seconds()
                if reason or self._reporter.due():
                    self._reporter.report()
                    self._check(batch)
                    self._saver.save_if_best()
                self._saver.save_if_due()
        if not self._stopping.signal and not is_solved(reason):
            self._evaluator.at_end()
        # Not by the signal: it may have come while the last evaluation was played.
        self._progress.ended = "" if reason == INTERRUPTED else reason
        return reason

    def _reason_to_end(self) -> str:
        """Why the run ends now, "" if it does not."""
        config, progress = self._config, self._progress
        if self._stopping.signal:
            return INTERRUPTED
        if config.stop_when_solved and self._evaluator.solved():
            return f"solved: {progress.evaluated['evaluation/clear_rate']:.0%} cleared"
        if progress.steps >= config.max_steps:
            return "max_steps reached"
        if config.max_seconds and self._clock.seconds() >= config.max_seconds:
            return "max_seconds reached"
        return ""


def is_solved(reason: str) -> bool:
    """Whether a run ended because its task is solved."""
    return reason.startswith("solved")
