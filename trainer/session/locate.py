"""The checkpoint that a run continues from, and its content.

--resume names a checkpoint, or torchrun (--max-restarts) has restarted all processes
with the same command because one of them has died. For that, the run records its run
folder in a folder that torchrun keeps for its lifetime, so that the next start finds
the last checkpoint, whatever --run-dir is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from trainer.config import flags, shown
from trainer.config.options import flag_of
from trainer.config.plain import from_dict
from trainer.config.schema import RunConfig
from trainer.config.tasks import played
from trainer.machine.files import write_json
from trainer.machine.imports import check_named
from trainer.machine.ranks import Ranks, agent_folder
from trainer.models import checkpoint, hub, released
from trainer.session.files import is_taken

# Keys that a checkpoint needs for a run to resume.
NEEDS = (
    "config", "model", "learner", "steps", "progress", "spaces", "rng", "episodes",
    "collecting", "explore", "replay",
)  # fmt: skip

AUTO = Path("auto")

_NOTE = "mario-run.json"  # of an earlier start, in the folder of torchrun

_logger = logging.getLogger(__name__)


def locate(path: Path, task: str | None = None) -> tuple[Path, dict[str, Any]]:
    """The checkpoint file that `--resume` names, and its content."""
    names = str(path).startswith(released.PREFIX) or hub.is_address(path)
    if names or path.suffix == released.SUFFIX:
        raise ValueError(
            f"{path} is a policy (weights only): --resume needs a checkpoint or a run "
            "folder; --loss distillation --teachers learns from policies"
        )
    if path != AUTO:
        return _load(path)
    runs = [p for p in Path("runs").glob("*") if checkpoint.list_files(p)]
    runs.sort(key=_written_at, reverse=True)
    skipped = []
    for run_dir in runs:
        if is_taken(run_dir):
            why_not = "running"
        else:
            try:
                file, state = _load(run_dir)
            except (OSError, ValueError):
                why_not = "no valid checkpoint"
            else:
                why_not = _why_not(state, task)
                if not why_not:
                    return file, state
        skipped.append(f"{run_dir.name} ({why_not})")
    tried = f" (skipped: {', '.join(skipped[:3])})" if skipped else ""
    raise FileNotFoundError(
        f"--resume auto finds no run to resume in {Path('runs').resolve()}{tried}; "
        "name a run (--resume RUN_DIR), or leave out --resume to begin a new run"
    )


def _load(path: Path) -> tuple[Path, dict[str, Any]]:
    # Not on the device, because rank 0 reads it for all ranks.
    return checkpoint.load_newest(path, torch.device("cpu"), NEEDS)


def _written_at(run_dir: Path) -> float:
    return max(path.stat().st_mtime for path in checkpoint.list_files(run_dir))


def _why_not(state: dict[str, Any], task: str | None) -> str:
    """Why a run cannot be resumed automatically; "" if it can."""
    env = state["config"]["env"]
    there = played(env["task"], env["levels"])
    if task not in (None, env["task"]) and played(task, ()) != there:
        return f"task {env['task']}"
    return str(state["progress"]["ended"])


def config_of(
    path: Path,
    code: Mapping[str, str] = MappingProxyType({}),
    task: str | None = None,
) -> RunConfig:
    """The config of the run that `--resume` names, to continue in its folder."""
    return _config_in(*locate(path, task), code)


def _config_in(path: Path, state: dict[str, Any], code: Mapping[str, str]) -> RunConfig:
    config = from_dict(RunConfig, _with_secrets(state["config"], path))
    config = flags.change(config, **code) if code else config
    check_named(path, flags.code_of(config), code.values())
    return replace(config, resume=path, run_dir=None)


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
    try:
        _, state = _load(run_dir / checkpoint.FOLDER / checkpoint.BEST)
    except (OSError, ValueError):
        return 0.0
    return float(state["progress"]["best_score"])


def note(run_dir: Path, resume: Path | None, ranks: Ranks) -> None:
    """Records the run folder before the run writes to it; once per machine."""
    folder = agent_folder()
    if folder is None or ranks.local_rank:
        return
    content = {
        "run_dir": str(run_dir.resolve()),
        "resume": str(resume.resolve()) if resume else None,
        # Checkpoints of another run, or of an abandoned part of this run.
        "had": [path.name for path in checkpoint.list_files(run_dir)],
    }
    if not (folder / _NOTE).exists():
        write_json(folder / _NOTE, content)


def config_after_restart(
    ranks: Ranks,
    parse: Callable[[], RunConfig],
    code: Mapping[str, str] = MappingProxyType({}),
) -> RunConfig | None:
    """The config of a new or continued run on all ranks; None if it has ended."""
    # Rank 0 may be on a machine that joined later, without a record.
    notes = [noted for noted in ranks.gather(_read_note()) if noted is not None]
    return ranks.first(
        lambda: _noted_config(notes[0], parse, code) if notes else parse()
    )


def _read_note() -> dict[str, Any] | None:
    folder = agent_folder()
    if folder is None or not (folder / _NOTE).exists():
        return None
    content: dict[str, Any] = json.loads((folder / _NOTE).read_text())
    return content


def _noted_config(
    noted: dict[str, Any], parse: Callable[[], RunConfig], code: Mapping[str, str]
) -> RunConfig | None:
    """The config of a recorded run; None if the run has ended."""
    run_dir = Path(noted["run_dir"])
    names = {path.name for path in checkpoint.list_files(run_dir)}
    if not names - set(noted["had"]):
        # The run died before its first checkpoint.
        resume = noted["resume"]
        given = replace(parse(), run_dir=run_dir)
        return replace(given, resume=Path(resume)) if resume else given
    path, state = _load(run_dir)
    return None if state["progress"]["ended"] else _config_in(path, state, code)
