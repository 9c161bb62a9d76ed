"""What a campaign's processes do: train a level for a while, choose, and evaluate.

Every function here runs in a process of `workers.py`, and what it is given and gives
are plain types and paths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainer.config.learning import Muon
from trainer.config.schema import RunConfig
from trainer.evaluation.protocol import evaluate_checkpoint
from trainer.learn.optim import learning_rate_factor
from trainer.models import checkpoint
from trainer.models.policy import save_policy
from trainer.session.training import run_training
from trainer.show.display import Display, QuietDisplay

# Seconds of a run until the speed of its training is known.
_AT_LEAST = 5.0


@dataclass(frozen=True)
class Slice:
    """Some seconds of a level's training.

    Attributes:
        config: of the level's run; its folder may hold a part of the run already.
        seconds: to train.
        last: whether the schedules end with it: rates at 0, no entropy bonus.
    """

    config: RunConfig
    seconds: float
    last: bool


def train(work: Slice, display: Display | None = None) -> dict[str, float]:
    """Trains a level until it is solved or the time is over.

    Args:
        work: what to train.
        display: shows the run; None: nothing does.

    Returns:
        The run's metrics, as of `run_training`.

    Raises:
        ValueError, RuntimeError, OSError: as of `run_training`.
    """
    config, folder = work.config, work.config.run_dir
    assert folder is not None
    seconds = 0.0
    if checkpoint.list_files(folder):
        path = checkpoint.find(folder)
        state = checkpoint.load(path, torch.device("cpu"), ("progress", "steps"))
        seconds = float(state["progress"]["seconds"])
        config = replace(config, resume=path)
        if work.last and seconds >= _AT_LEAST:
            steps = int(state["steps"])
            config = ending(config, steps, round(steps / seconds * work.seconds))
    config = replace(config, max_seconds=seconds + work.seconds)
    return dict(run_training(config, display or QuietDisplay()))


def ending(config: RunConfig, steps: int, more: int) -> RunConfig:
    """A config whose schedules end after `more` steps: small steps, no entropy bonus.

    Constant entropy bonuses keep precise policies from forming; with rates that fall to
    0 a mean clear rate of twelve levels rose from 66 to 94 % elsewhere.

    Args:
        config: of a run.
        steps: that it has made.
        more: that are left.
    """
    learner = config.learner
    # From the rate that the run has now, on a straight line to 0.
    scale = learning_rate_factor(learner, steps, 0) * (steps + more) / max(1, more)
    if isinstance(learner.optimizer, Muon):
        muon = replace(learner.optimizer, matrix_lr=learner.optimizer.matrix_lr * scale)
        learner = replace(learner, optimizer=muon)
    learner = replace(
        learner,
        lr=learner.lr * scale,
        lr_end=0.0,
        lr_steps=steps + max(1, more),
        lr_schedule="linear",
        warmup_updates=0,
        entropy=0.0,
        entropy_end=0.0,
    )
    return replace(config, learner=learner)


def choose(
    run_dir: Path, to: Path, level: str, episodes: int, seed: int
) -> dict[str, Any]:
    """Plays the checkpoints of a level, and writes the policy of the best one.

    Args:
        run_dir: of the level.
        to: file of the policy.
        level: its name.
        episodes: of each checkpoint, sampled, with 0 to 30 idle frames.
        seed: of the episodes.

    Returns:
        `clear_rate` and `checkpoint`, its name.

    Raises:
        FileNotFoundError: the level has none.
    """
    best: tuple[float, Path] | None = None
    for path in checkpoint.list_files(run_dir):
        played = evaluate_checkpoint(
            path, levels=level, episodes=episodes, seed=seed, argmax=False, device="cpu"
        )
        rate = played.levels[0].clear_rate
        # The newest one first; of equals it stays.
        if best is None or rate > best[0]:
            best = rate, path
    if best is None:
        raise FileNotFoundError(f"no checkpoint of {level} in {run_dir}")
    save_policy(best[1], to)
    return {"clear_rate": best[0], "checkpoint": best[1].name}


def evaluate(path: Path, levels: str, episodes: int, seed: int) -> dict[str, Any]:
    """Plays a policy, sampled and with the likeliest actions; plain types."""
    played = evaluate_checkpoint(
        path, levels=levels, episodes=episodes, seed=seed, device="cpu"
    )
    return played.to_dict()
