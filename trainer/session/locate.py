"""The checkpoint that --resume names, and its content."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from trainer.config import flags, shown
from trainer.config.options import flag_of
from trainer.config.plain import from_dict
from trainer.config.schema import RunConfig
from trainer.config.tasks import played
from trainer.machine.imports import check_named
from trainer.models import checkpoint, hub, released
from trainer.session.checkpoints import is_taken

# Keys that a checkpoint needs for a run to resume.
NEEDS = (
    "config", "model", "learner", "steps", "progress", "spaces", "rng", "episodes",
    "collecting", "explore", "replay",
)  # fmt: skip

AUTO = Path("auto")

_logger = logging.getLogger(__name__)


def locate(path: Path, task: str | None = None) -> Path:
    """The checkpoint file that `--resume` names."""
    names = str(path).startswith(released.PREFIX) or hub.is_address(path)
    if names or path.suffix == released.SUFFIX:
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


def config_of(path: Path, code: Mapping[str, str] = MappingProxyType({})) -> RunConfig:
    """The config of the run of a checkpoint, to continue in its folder."""
    state = checkpoint.load(path, torch.device("cpu"), NEEDS)
    config = from_dict(RunConfig, _with_secrets(state["config"], path))
    config = flags.change(config, **code) if code else config
    check_named(path, flags.code_of(config), code.values())
    return dataclasses.replace(config, resume=path, run_dir=None)


def _with_secrets(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """The config of a checkpoint with the secrets in config.json of its run folder."""
    folder, complete = checkpoint.run_dir_of(path), None
    with suppress(OSError, ValueError):
        complete = json.loads((folder / "config.json").read_bytes()) if folder else None
    known = complete if isinstance(complete, dict) else {}
    config, lost = shown.with_secrets(config, known)
    for name in lost:
        _logger.warning(
            "%s has no value of %s, which only config.json in its run folder records: "
            "this run has none unless you give it again",
            path,
            flag_of(name),
        )
    return config


def best_in(run_dir: Path) -> float:
    """The score in the best.pt of a run folder; 0 without that file."""
    path = run_dir / checkpoint.FOLDER / checkpoint.BEST
    try:
        state = checkpoint.load(path, torch.device("cpu"), NEEDS)
    except (OSError, ValueError):
        return 0.0
    return float(state["progress"]["best_score"])
