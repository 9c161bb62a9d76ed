"""The checkpoint that --resume names, and its content."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from trainer.config.plain import from_dict
from trainer.config.schema import RunConfig
from trainer.config.tasks import played
from trainer.models import checkpoint, hub, policy_file, released
from trainer.session.checkpoints import is_taken

# Keys that a checkpoint needs for a run to resume.
NEEDS = (
    "config", "model", "learner", "steps", "progress", "spaces", "rng", "episodes",
    "collecting", "explore", "replay",
)  # fmt: skip

AUTO = Path("auto")


def locate(path: Path, task: str | None = None) -> Path:
    """The checkpoint file that `--resume` names.

    Args:
        path: a file, a run folder, or "auto": the run under runs/ with the newest
            checkpoint that has not finished and does not run now.
        task: for auto, the task of the run; None: any.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        OSError: the file cannot be read.
        ValueError: the file is damaged, of another version or of another program, or a
            policy file.
    """
    names = str(path).startswith(released.PREFIX) or hub.is_address(path)
    if names or path.suffix == policy_file.SUFFIX:
        raise ValueError(
            f"{path} is a policy (weights only): --resume needs a checkpoint or a run "
            "folder; --loss distillation --teachers learns from policies"
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
    tried = f" (skipped: {', '.join(passed[:3])})" if passed else ""
    raise FileNotFoundError(
        f"--resume auto finds no run to resume in {Path('runs').resolve()}{tried}; "
        "name a run (--resume RUN_DIR), or leave out --resume to begin a new run"
    )


def _written(run_dir: Path) -> float:
    return max(path.stat().st_mtime for path in checkpoint.list_files(run_dir))


def _why_not(run_dir: Path, task: str | None) -> str:
    """Why a run cannot be resumed automatically; "" if it can."""
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
    """The config of the run of a checkpoint, to continue in its folder."""
    state = checkpoint.load(path, torch.device("cpu"), NEEDS)
    config = from_dict(RunConfig, state["config"])
    return dataclasses.replace(config, resume=path, run_dir=None)


def best_in(run_dir: Path) -> float:
    """The score in the best.pt of a run folder; 0 without that file."""
    path = run_dir / checkpoint.FOLDER / checkpoint.BEST
    try:
        state = checkpoint.load(path, torch.device("cpu"), NEEDS)
    except (OSError, ValueError):
        return 0.0
    return float(state["progress"]["best_score"])
