"""How a run continues after torchrun has restarted its processes.

torchrun (--max-restarts) restarts all processes with the same command when one of them
has died. The run records its run folder in a folder that torchrun keeps for its
lifetime, so that the next start finds the last checkpoint, whatever --run-dir is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from trainer.config.schema import RunConfig
from trainer.machine.files import write_json
from trainer.machine.ranks import Ranks, agent_folder
from trainer.models import checkpoint
from trainer.session import locate

_NOTE = "mario-run.json"


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


def config_of(
    ranks: Ranks,
    parse: Callable[[], RunConfig],
    code: Mapping[str, str] = MappingProxyType({}),
) -> RunConfig | None:
    """The config of a new or continued run; the same on all ranks."""
    # Rank 0 may be on a machine that joined later, without a record.
    notes = [found for found in ranks.gather(_read()) if found is not None]
    return ranks.first(lambda: _goes_on(notes[0], parse, code) if notes else parse())


def _read() -> dict[str, Any] | None:
    """The record of an earlier start."""
    folder = agent_folder()
    if folder is None or not (folder / _NOTE).exists():
        return None
    content: dict[str, Any] = json.loads((folder / _NOTE).read_text())
    return content


def _goes_on(
    noted: dict[str, Any], parse: Callable[[], RunConfig], code: Mapping[str, str]
) -> RunConfig | None:
    """The config of a recorded run."""
    run_dir = Path(noted["run_dir"])
    names = {path.name for path in checkpoint.list_files(run_dir)}
    if not names - set(noted["had"]):
        # The run died before its first checkpoint.
        resume = noted["resume"]
        given = replace(parse(), run_dir=run_dir)
        return replace(given, resume=Path(resume)) if resume else given
    path = checkpoint.find(run_dir, locate.NEEDS)
    state = checkpoint.load(path, torch.device("cpu"), locate.NEEDS)
    return None if state["progress"]["ended"] else locate.config_of(path, code)
