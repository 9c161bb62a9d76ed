"""The progress of a run: its counters and its clock."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """Counters that continue when a run is resumed; the parts of a run share them.

    Attributes:
        steps: environment steps learned from so far.
        seconds: wall-clock time so far.
        attempts: number of evaluations so far.
        next_attempt: number of episodes before the next evaluation may begin.
        evaluated: metrics of the last evaluation.
        best_score: score of the last episodes (`FinishedEpisodes.score`) in best.pt.
        ended: why the run ended; "": it did not.
    """

    steps: int = 0
    seconds: float = 0.0
    attempts: int = 0
    next_attempt: int = 0
    evaluated: dict[str, float] = field(default_factory=dict)
    best_score: float = 0.0
    ended: str = ""

    def state(self) -> dict[str, Any]:
        """All counters, for a checkpoint."""
        return dataclasses.asdict(self)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `state`, in place."""
        for name, value in state.items():
            setattr(self, name, value)


class Clock:
    """Wall-clock time of a run, in seconds.

    Attributes:
        started: start time, in seconds of time.perf_counter.
    """

    def __init__(self, before: float = 0.0) -> None:
        """Starts the clock."""
        self._before, self.started = before, time.perf_counter()

    def elapsed(self) -> float:
        """Seconds since the clock was started."""
        return time.perf_counter() - self.started

    def seconds(self) -> float:
        """Seconds of the whole run, including those before it was resumed."""
        return self._before + self.elapsed()
