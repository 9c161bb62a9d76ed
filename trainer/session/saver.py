"""When a run writes which checkpoints."""

from __future__ import annotations

import time

from trainer.models.checkpoint import list_files
from trainer.rollout.pipeline import Pipeline
from trainer.session import resume
from trainer.session.alarms import Alarms
from trainer.session.checkpoints import Checkpoints
from trainer.show.display import Display

# Seconds of training until the first checkpoint of a run folder.
_FIRST_S = 5.0


class Saver:
    """Writes checkpoints of a run: on request, when due, or when it is best."""

    def __init__(
        self,
        parts: resume.RunParts,
        *,
        pipeline: Pipeline,
        checkpoints: Checkpoints | None,
        display: Display,
        alarms: Alarms,
        seconds: float,
    ) -> None:
        """Starts the time to the first checkpoint."""
        self._parts, self._pipeline = parts, pipeline
        self._checkpoints, self._display = checkpoints, display
        self._alarms = alarms
        self._seconds, self._last = seconds, time.perf_counter()
        is_new = checkpoints is not None and not list_files(checkpoints.folder)
        self._wait = min(seconds, _FIRST_S) if is_new else seconds

    def save(self, *, best: bool = False, complete: bool = True) -> bool:
        """Writes a checkpoint, or logs why it cannot.

        All ranks save a complete checkpoint together; rank 0 alone saves other
        checkpoints.
        """
        parts = self._parts
        if not all(bool(p.isfinite().all()) for p in parts.model.parameters()):
            self._alarms.set(
                "weights", "the weights are not finite; they are not saved"
            )
            return False
        together = complete and not best
        at_rest = together and self._pipeline.settle()
        state = resume.capture(
            parts, complete=at_rest, explored=not best, together=together
        )
        if together:
            self._last, self._wait = time.perf_counter(), self._seconds
        if self._checkpoints is None:
            return True
        steps = parts.progress.steps
        if best:
            path = self._checkpoints.save_best(state)
        else:
            path = self._checkpoints.save(state, steps)
        failed = "the last one could not be written, for the reason above"
        self._alarms.set("checkpoint", failed if path is None else "")
        if path is not None:
            self._display.checkpoint(path, steps)
        return path is not None

    def due(self, *, best: bool) -> bool:
        """Whether it is time for a complete checkpoint."""
        first_best = best and not self._parts.progress.best_score
        return first_best or time.perf_counter() - self._last >= self._wait

    def improved(self) -> bool:
        """Whether the score of the last episodes is the best one."""
        return self._parts.episodes.score() > self._parts.progress.best_score

    def save_best(self) -> None:
        """Writes the weights of the best score of the last episodes to best.pt."""
        progress = self._parts.progress
        best = progress.best_score
        progress.best_score = self._parts.episodes.score()
        if not self.save(best=True):
            progress.best_score = best
