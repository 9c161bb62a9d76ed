"""The run folder: its path, its lock and checkpoints, and which one --resume names.

--resume names a checkpoint, or torchrun (--max-restarts) has restarted all processes
with the same command because one of them has died. For that, the run records its run
folder in a folder that torchrun keeps for its lifetime, so that the next start finds
the last checkpoint, whatever --run-dir is.
"""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from filelock import FileLock, Timeout

from trainer.config import flags, shown
from trainer.config.options import flag_of
from trainer.config.plain import from_dict
from trainer.config.schema import RunConfig
from trainer.config.tasks import played
from trainer.machine.files import TEMPORARY, same_folder, write_json
from trainer.machine.imports import check_named
from trainer.machine.ranks import Ranks, agent_folder
from trainer.models import checkpoint, hub, released

# File in a run folder that the process which writes to the folder holds locked.
_LOCK = ".lock"

# Keys that a checkpoint needs for a run to resume.
NEEDS = (
    "config", "model", "learner", "steps", "progress", "spaces", "rng", "episodes",
    "collecting", "explore", "replay",
)  # fmt: skip

AUTO = Path("auto")

_NOTE = "mario-run.json"  # of an earlier start, in the folder of torchrun

# The checkpoint that the command line took its options from, until the run resumes from
# it: a checkpoint may be large. The keys are its path and the time of its last change.
_read_before: dict[tuple[Path, int], dict[str, Any]] = {}

_logger = logging.getLogger(__name__)


def choose_run_dir(config: RunConfig, source: Path | None) -> Path:
    """The folder of a run; it may exist."""
    run_dir = config.run_dir or source or new_run_dir(config.env.task)
    if not same_folder(source, run_dir) and checkpoint.list_files(run_dir):
        raise ValueError(
            f"{run_dir} holds the checkpoints of another run: resume that run "
            f"(--resume {run_dir}), or choose another --run-dir"
        )
    return run_dir


def new_run_dir(task: str) -> Path:
    """runs/TASK-TIME, with a number if two runs start in the same second."""
    name = f"{task}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = Path("runs") / name, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


def command_line() -> str:
    """The command that started this process, as others may see it."""
    return shlex.join(shown.command(sys.orig_argv))


def commit() -> str | None:
    """The commit of the trainer's repository, with "-dirty" if it has changes."""
    folder = Path(__file__).resolve().parent
    options = "describe --always --dirty --abbrev=40".split()
    command = ["git", "-C", str(folder), *options]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


class Checkpoints:
    """The checkpoints of one run folder, which one process at a time may write."""

    def __init__(self, run_dir: Path, keep: int, log: Callable[[str], None]) -> None:
        """Locks the folder, and removes the remains of interrupted writes."""
        self._keep, self._log = keep, log
        self.folder = run_dir / checkpoint.FOLDER
        self.folder.mkdir(exist_ok=True)
        self._lock = take(run_dir)
        for path in self.folder.glob(f"*{TEMPORARY}"):
            if path.is_file():
                path.unlink()

    def save(self, state: Mapping[str, Any], step: int) -> Path | None:
        """Writes a checkpoint, then deletes the oldest beyond the number to keep.

        Checkpoints of later steps are deleted too. They belong to a part of the run
        that was abandoned when the run was resumed from an earlier checkpoint.
        """
        path = self._write(f"step-{step:09}.pt", state)
        if path is not None:
            others = [p for p in checkpoint.list_files(self.folder) if p != path]
            steps = [p for p in others if p.name != checkpoint.BEST]
            older = [p for p in steps if (checkpoint.step_of(p) or 0) < step]
            for old in set(steps) - set(older[: self._keep - 1]):
                old.unlink(missing_ok=True)
        return path

    def save_best(self, state: Mapping[str, Any]) -> Path | None:
        """Writes best.pt; see `save`."""
        return self._write(checkpoint.BEST, state)

    def _write(self, name: str, state: Mapping[str, Any]) -> Path | None:
        path = self.folder / name
        try:
            checkpoint.save(path, state)
        except OSError as error:
            free = shutil.disk_usage(self.folder).free
            kept = [p.name for p in checkpoint.list_files(self.folder)]
            self._log(
                f"could not write {path} ({error.strerror or error}; "
                f"{free / 1e6:,.1f} MB free); training continues, and "
                + (f"{', '.join(kept)} stay as they are" if kept else "there is none")
            )
            return None
        return path

    def close(self) -> None:
        """Releases the lock of the folder."""
        self._lock.release()


def is_taken(run_dir: Path) -> bool:
    """Whether a process is writing to a run folder; does not change the folder."""
    if not (run_dir / _LOCK).exists():
        return False
    try:
        take(run_dir).release()
    except ValueError:
        return True
    return False


def take(run_dir: Path, flag: str = "--run-dir") -> FileLock:
    """Locks a folder for this process, until it releases the lock or ends."""
    # Not bound to a thread: any thread may release the lock.
    lock = FileLock(run_dir / _LOCK, blocking=False, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"another process is writing to {run_dir} (its lock is {_LOCK} there); "
            f"wait for its end, or choose another folder with {flag}"
        ) from None
    except (OSError, NotImplementedError):
        pass  # a network file system without locks, or a read-only folder
    return lock


@contextmanager
def alone(folder: Path, flag: str = "--run-dir") -> Iterator[None]:
    """Makes a folder and locks it during the block."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = take(folder, flag)
    try:
        yield
    finally:
        lock.release()


def locate(path: Path, task: str | None = None) -> tuple[Path, dict[str, Any]]:
    """The checkpoint file that `--resume` names, and its content."""
    published = str(path).startswith(released.PREFIX) or hub.is_address(path)
    if published or path.suffix == released.SUFFIX:
        raise ValueError(
            f"{path} is a policy (weights only): --resume needs a checkpoint or a run "
            "folder; --loss distillation --teachers learns from policies"
        )
    if path.is_file() and (state := _read_before.pop(_version(path), None)):
        return path, state
    if path != AUTO:
        return _load(path)
    runs = [p for p in Path("runs").glob("*") if checkpoint.list_files(p)]
    runs.sort(
        key=lambda run: max(p.stat().st_mtime for p in checkpoint.list_files(run)),
        reverse=True,
    )
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


def _version(path: Path) -> tuple[Path, int]:
    """A file and the time of its last change, in nanoseconds."""
    return path, path.stat().st_mtime_ns


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
    _read_before.clear()
    _read_before[_version(path)] = state
    return replace(config, resume=path, run_dir=None)


def _with_secrets(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """The config of a checkpoint with the secrets in config.json of its run folder."""
    folder, complete = checkpoint.run_dir_of(path), None
    with suppress(OSError, ValueError):
        complete = json.loads((folder / "config.json").read_bytes()) if folder else None
    recorded = complete if isinstance(complete, dict) else {}
    config, lost = shown.with_secrets(config, recorded)
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
