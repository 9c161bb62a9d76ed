"""When a run writes checkpoints, and which ones."""

from __future__ import annotations

import time

from trainer.rollout.pipeline import Pipeline
from trainer.session import resume
from trainer.session.checkpoints import Checkpoints
from trainer.show.display import Display


class Saver:
    """Writes the state of a run to checkpoints: now, when due, or when it is best."""

    def __init__(
        self,
        parts: resume.RunParts,
        *,
        pipeline: Pipeline,
        checkpoints: Checkpoints,
        display: Display,
        seconds: float,
    ) -> None:
        """Starts the time to the first checkpoint.

        Args:
            parts: whose state a checkpoint holds.
            pipeline: comes to rest before a complete checkpoint.
            checkpoints: of the run folder.
            display: shows what was written and what could not be.
            seconds: between two periodic checkpoints.
        """
        self._parts, self._pipeline = parts, pipeline
        self._checkpoints, self._display = checkpoints, display
        self._seconds, self._last = seconds, time.perf_counter()

    def save(self, *, best: bool = False, complete: bool = True) -> bool:
        """Writes a checkpoint, or logs why it cannot.

        Args:
            best: to best.pt, instead of one of the last few, and without games and
                what was explored: it may be written often.
            complete: False if an update was interrupted: episodes will begin anew.

        Returns:
            Whether it is written.
        """
        parts = self._parts
        if not all(bool(p.isfinite().all()) for p in parts.model.parameters()):
            self._display.log("the weights are not finite: they are not saved")
            return False
        at_rest = complete and not best and self._pipeline.settle()
        state = resume.capture(parts, complete=at_rest, explored=not best)
        steps = parts.progress.steps
        if best:
            path = self._checkpoints.save_best(state)
        else:
            path = self._checkpoints.save(state, steps)
        if path is not None:
            self._display.checkpoint(path, steps)
        return path is not None

    def save_if_due(self) -> None:
        """Writes a checkpoint if the last one is old enough."""
        if time.perf_counter() - self._last >= self._seconds:
            self.save()
            self._last = time.perf_counter()

    def save_if_best(self) -> None:
        """Keeps the weights of the best score of the last episodes in best.pt."""
        progress = self._parts.progress
        score, best = self._parts.episodes.score(), progress.best_score
        if score <= best:
            return
        if not best:
            # Until then best.pt, which is without games, might be all there is.
            self.save()
            self._last = time.perf_counter()
        progress.best_score = score
        if not self.save(best=True):
            progress.best_score = best
