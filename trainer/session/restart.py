"""How a run goes on after torchrun has started its processes anew.

torchrun (--max-restarts) does so when one of them has died, with the same command. It
keeps a folder of its own for as long as it lives, where the run notes its run folder:
so the next start finds the run's own last checkpoint, whatever --run-dir is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainer.config.schema import RunConfig
from trainer.machine.files import write_json
from trainer.machine.ranks import Ranks, agent_folder
from trainer.models import checkpoint
from trainer.session import locate

_NOTE = "mario-run.json"


def note(run_dir: Path, resume: Path | None, ranks: Ranks) -> None:
    """Notes where a run writes, before it does; once on each machine.

    Args:
        run_dir: folder of the run.
        resume: checkpoint or run that it goes on from, None for a new one.
        ranks: of the run.
    """
    folder = agent_folder()
    if folder is None or ranks.local_rank:
        return
    content = {
        "run_dir": str(run_dir.resolve()),
        "resume": str(resume.resolve()) if resume else None,
        # Of another run, or of a course of this one that was given up.
        "had": [path.name for path in checkpoint.list_files(run_dir)],
    }
    if not (folder / _NOTE).exists():
        write_json(folder / _NOTE, content)


def config_of(ranks: Ranks, parse: Callable[[], RunConfig]) -> RunConfig | None:
    """The config of a run, new or going on; the same on all ranks.

    Args:
        ranks: of the run, which all call this.
        parse: reads the command line, on rank 0.

    Returns:
        None if the run had come to its end when a process died.

    Raises:
        ValueError, OSError: as `parse`, on rank 0.
    """
    # Rank 0 may be on a machine that has joined later.
    notes = [found for found in ranks.gather(_read()) if found is not None]
    return ranks.first(lambda: _goes_on(notes[0], parse) if notes else parse())


def _read() -> dict[str, Any] | None:
    """The note of an earlier start."""
    folder = agent_folder()
    if folder is None or not (folder / _NOTE).exists():
        return None
    content: dict[str, Any] = json.loads((folder / _NOTE).read_text())
    return content


def _goes_on(noted: dict[str, Any], parse: Callable[[], RunConfig]) -> RunConfig | None:
    """The config of a run that was noted."""
    run_dir = Path(noted["run_dir"])
    names = {path.name for path in checkpoint.list_files(run_dir)}
    if not names - set(noted["had"]):
        # It died before its first checkpoint.
        resume = noted["resume"]
        given = replace(parse(), run_dir=run_dir)
        return replace(given, resume=Path(resume)) if resume else given
    path = checkpoint.find(run_dir, locate.NEEDS)
    state = checkpoint.load(path, torch.device("cpu"), locate.NEEDS)
    return None if state["progress"]["ended"] else locate.config_of(path)
