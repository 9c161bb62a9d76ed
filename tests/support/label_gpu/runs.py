"""Small runs of the whole trainer on the label GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_pools
import small_runs

from trainer.evaluation import protocol
from trainer.session import build, training

from .cuda import Cuda


def run(cuda: Cuda, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """A run with options of the trainer; returns its last metrics."""
    build.make_pool = protocol.make_pool = _make_pool
    base = {"device": "cuda", "max_steps": 200, "learner_threads": 0}
    config = small_runs.make_config(folder, **(base | options))
    metrics = training.run_training(config)
    return {"steps": metrics["steps"]}


def _make_pool(
    config: Any, seed: int, *, asynchronous: bool = False, **options: Any
) -> fake_pools.FakePool:
    envs = config.num_envs
    batch = envs // config.groups if asynchronous else envs
    return fake_pools.FakePool(envs, batch, seed)
