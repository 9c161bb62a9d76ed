"""The training loop: update, decide, save, until there is a reason to end.

All ranks of a run execute it together. Rank 0 reports, evaluates and decides (`Lead`);
the other ranks follow its decisions.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import NamedTuple

from trainer.config.schema import RunConfig
from trainer.machine.process import Interrupted, on_signal
from trainer.machine.ranks import Ranks
from trainer.rollout.batch import Batch
from trainer.rollout.finished import FinishedEpisodes
from trainer.session.evaluator import Evaluator
from trainer.session.progress import Clock, Progress
from trainer.session.reporter import FirstClears, Reporter
from trainer.session.saver import Saver
from trainer.session.updater import Updater

INTERRUPTED = "interrupted"  # the only reason to end that leaves work to resume


class Stop:
    """The number of the signal that asked the run to end; 0: none."""

    signal = 0


@contextmanager
def stop_on_signal(log: Callable[[str], None]) -> Iterator[Stop]:
    """Records and logs a signal to end; a later second one interrupts at once."""
    stopping = Stop()

    def handle(number: int) -> None:
        if stopping.signal:
            raise Interrupted(number)
        stopping.signal = number
        # Python's files are not reentrant, and Ctrl-C may have ended the reader of
        # stdout. The message may be lost, but not the signal.
        with suppress(RuntimeError, OSError):
            log(f"{signal.Signals(number).name}: ending after this update")

    with on_signal(handle):
        yield stopping


class Decision(NamedTuple):
    """The decision of rank 0 after an update.

    Attributes:
        reason: why the run ends now; "": it continues.
        saves: whether to write a checkpoint now.
        best: whether to write best.pt now.
        signal: number of the signal that asked a rank to end; 0: none.
    """

    reason: str
    saves: bool
    best: bool
    signal: int


class Lead:
    """The work of rank 0 between two updates: to report, evaluate and decide."""

    def __init__(
        self,
        config: RunConfig,
        *,
        first_clears: FirstClears,
        reporter: Reporter,
        evaluator: Evaluator,
        saver: Saver,
        check: Callable[[Batch], None],
        progress: Progress,
        clock: Clock,
    ) -> None:
        """Takes the parts that it calls."""
        self._config, self._progress, self._clock = config, progress, clock
        self._first_clears, self._reporter = first_clears, reporter
        self._evaluator, self._saver, self._check = evaluator, saver, check

    def decide(self, batch: Batch, signalled: int) -> Decision:
        """Reports if a report is due, and decides how the run continues."""
        self._first_clears.log_new()
        reason = self._reason_to_end(signalled)
        self._progress.seconds = self._clock.seconds()
        best = False
        if reason or self._reporter.due():
            self._reporter.report()
            self._check(batch)
            best = self._saver.improved()
        return Decision(reason, self._saver.due(best=best), best, signalled)

    def end(self, reason: str, stopping: Stop) -> None:
        """Evaluates a run that ended unsolved, and records why it ended."""
        if not stopping.signal and not is_solved(reason):
            self._evaluator.at_end()
        # Not by the signal, which may have come during the last evaluation.
        self._progress.ended = "" if reason == INTERRUPTED else reason

    def _reason_to_end(self, signalled: int) -> str:
        """Why the run ends now; "" if it continues."""
        config, progress = self._config, self._progress
        if signalled:
            return INTERRUPTED
        if config.stop_when_solved and self._evaluator.solved():
            return f"solved: {progress.evaluated['evaluation/clear_rate']:.0%} cleared"
        if config.max_steps and progress.steps >= config.max_steps:
            return "max_steps reached"
        if config.max_seconds and self._clock.seconds() >= config.max_seconds:
            return "max_seconds reached"
        return ""


class Loop:
    """Calls the parts of a run in turn, until there is a reason to end."""

    def __init__(
        self,
        ranks: Ranks,
        lead: Lead | None,
        *,
        updater: Updater,
        saver: Saver,
        own_episodes: FinishedEpisodes,
        episodes: FinishedEpisodes,
        profiled: AbstractContextManager[Callable[[], None]],
        stopping: Stop,
    ) -> None:
        """Takes the parts that the loop calls."""
        self._ranks, self._lead = ranks, lead
        self._updater, self._saver = updater, saver
        self._own_episodes, self._episodes = own_episodes, episodes
        self._profiled, self._stopping = profiled, stopping

    def run(self) -> str:
        """Trains; returns why the training ended."""
        reason, first = "", self._ranks.first
        with self._profiled as updated:
            while not reason:
                batch = self._updater.update()
                updated()
                decision = first(partial(self._decide, batch, self._hear_all()))
                reason = decision.reason
                self._stopping.signal = self._stopping.signal or decision.signal
                if decision.saves:
                    self._saver.save()
                if decision.best and self._ranks.is_first:
                    self._saver.save_best()
        first(partial(self._end, reason))
        return reason

    def _hear_all(self) -> int:
        """Collects on rank 0 the new episodes of all ranks, and any signal."""
        own = self._own_episodes.take_new(), self._stopping.signal
        signalled = 0
        for episodes, number in self._ranks.gather(own):
            self._episodes.add(episodes)
            signalled = signalled or number
        return signalled

    def _decide(self, batch: Batch, signalled: int) -> Decision:
        assert self._lead is not None, "rank 0 has one"
        return self._lead.decide(batch, signalled)

    def _end(self, reason: str) -> None:
        assert self._lead is not None, "rank 0 has one"
        self._lead.end(reason, self._stopping)


def is_solved(reason: str) -> bool:
    """Whether a run ended because its task is solved."""
    return reason.startswith("solved")
