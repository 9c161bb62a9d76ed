"""Which checkpoint --resume means, and what it holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from trainer.config.plain import from_dict
from trainer.config.schema import RunConfig
from trainer.config.tasks import played
from trainer.models import checkpoint, hub, policy_file, released
from trainer.session.checkpoints import is_taken

# What a checkpoint must hold to go on from it.
NEEDS = (
    "config", "model", "learner", "steps", "progress", "spaces", "rng", "episodes",
    "collecting", "explore", "replay",
)  # fmt: skip

AUTO = Path("auto")


def locate(path: Path, task: str | None = None) -> Path:
    """The checkpoint file that `--resume` means.

    Args:
        path: a file, the folder of a run, or "auto": the run under runs/ that wrote
            a checkpoint last, has not come to its end, and is not running now.
        task: for auto, the task of the run; None: any.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        ValueError: it is damaged, of another version, none of ours, or a policy's
            file.
    """
    names = str(path).startswith(released.PREFIX) or hub.is_address(path)
    if names or path.suffix == policy_file.SUFFIX:
        raise ValueError(
            f"{path} is a policy, weights alone: --resume goes on from a checkpoint or "
            "the folder of a run; --loss distillation --teachers learns from policies"
        )
    if path != AUTO:
        return checkpoint.find(path, NEEDS)
    runs = [p for p in Path("runs").glob("*") if checkpoint.list_files(p)]
    runs.sort(key=_written, reverse=True)
    passed = []
    for run_dir in runs:
        why_not = _why_not(run_dir, task)
        if not why_not:
            return checkpoint.find(run_dir, NEEDS)
        passed.append(f"{run_dir.name} ({why_not})")
    tried = f" (passed over: {', '.join(passed[:3])})" if passed else ""
    raise FileNotFoundError(
        f"--resume auto finds no run to go on with in {Path('runs').resolve()}{tried}; "
        "name one (--resume RUN_DIR), or leave --resume out to begin a new one"
    )


def _written(run_dir: Path) -> float:
    return max(path.stat().st_mtime for path in checkpoint.list_files(run_dir))


def _why_not(run_dir: Path, task: str | None) -> str:
    """Why a run is not one to go on with, "" if it is."""
    if is_taken(run_dir):
        return "running"
    try:
        state = checkpoint.load(run_dir, torch.device("cpu"), NEEDS)
    except (OSError, ValueError):
        return "no valid checkpoint"
    env = state["config"]["env"]
    there = played(env["task"], env["levels"])
    if task not in (None, env["task"]) and played(task, ()) != there:
        return f"task {env['task']}"
    return str(state["progress"]["ended"])


def config_of(path: Path) -> RunConfig:
    """The config of the run that a checkpoint is of, to go on in its folder."""
    state = checkpoint.load(path, torch.device("cpu"), NEEDS)
    config = from_dict(RunConfig, state["config"])
    return dataclasses.replace(config, resume=path, run_dir=None)


def best_in(run_dir: Path) -> float:
    """The score that the best.pt of a run folder was written at, 0 without one."""
    path = run_dir / checkpoint.FOLDER / checkpoint.BEST
    try:
        state = checkpoint.load(path, torch.device("cpu"), NEEDS)
    except (OSError, ValueError):
        return 0.0
    return float(state["progress"]["best_score"])
