"""Small runs of the whole trainer on the label GPU."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import fake_pools
import pytest
import small_runs

from trainer.session import training

from .cuda import Cuda

# A run for these tests, which `options` change. Its only report is the last: a report
# waits for the device, and locks pass this on to the other threads.
_SMALL = {
    "device": "cuda", "learner_threads": 0, "max_steps": 110, "unroll": 4,
    "minibatch_size": 12, "log_seconds": 1000.0,
}  # fmt: skip
_OF_THE_GAME = {"videos": True, "max_episode_steps": 16, "img_height": 36}


def run(
    cuda: Cuda,
    folder: Path,
    options: dict[str, Any],
    *,
    resumed_after: int = 0,
    game: bool = False,
    steps: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """A run with options of the trainer.

    Args:
        cuda: the device of this process.
        folder: for the files of the run.
        options: of the trainer.
        resumed_after: steps after which the run ends, and another one resumes it.
        game: whether to play the game, with videos, and not a fake pool.
        steps: of the episodes of the fake pool; None: its own.

    Returns:
        the steps that the run has made, what it warned of, and the videos.
    """
    warnings = _Warnings()
    logging.getLogger().addHandler(warnings)
    options = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in options.items()
    }
    if game:
        options = _OF_THE_GAME | options
    else:
        kind = partial(fake_pools.FakePool, steps=steps)
        small_runs.use_pools(pytest.MonkeyPatch(), kind)
    config = small_runs.make_config(folder, **(_SMALL | options))
    if resumed_after:
        training.run_training(small_runs.change(config, max_steps=resumed_after))
        config = small_runs.change(config, resume=config.run_dir)
    metrics = training.run_training(config)
    return {
        "steps": metrics["steps"],
        "warnings": warnings.lines,
        "videos": len(list(folder.glob("run/videos/*.mp4"))),
    }


class _Warnings(logging.Handler):
    """Keeps the warnings of a run."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
