"""The run folder: its path, its lock, its config.json and its checkpoints."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from trainer.config import shown
from trainer.config.schema import RunConfig
from trainer.machine.files import TEMPORARY, same_folder
from trainer.models.checkpoint import BEST, FOLDER, list_files, save, step_of

# File in a run folder that the process which writes to the folder holds locked.
_LOCK = ".lock"


def choose_run_dir(config: RunConfig, source: Path | None) -> Path:
    """The folder of a run; it may exist."""
    run_dir = config.run_dir or source or new_run_dir(config.env.task)
    if not same_folder(source, run_dir) and list_files(run_dir):
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
        self.folder = run_dir / FOLDER
        self.folder.mkdir(exist_ok=True)
        try:
            self._lock = take(run_dir)
        except Timeout:
            raise ValueError(
                f"another process is writing to {run_dir} (its lock is {_LOCK} there); "
                "wait for its end, or choose another folder with --run-dir"
            ) from None
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
            others = [p for p in list_files(self.folder) if p != path]
            steps = [p for p in others if p.name != BEST]
            older = [p for p in steps if (step_of(p) or 0) < step]
            for old in set(steps) - set(older[: self._keep - 1]):
                old.unlink(missing_ok=True)
        return path

    def save_best(self, state: Mapping[str, Any]) -> Path | None:
        """Writes best.pt; see `save`."""
        return self._write(BEST, state)

    def _write(self, name: str, state: Mapping[str, Any]) -> Path | None:
        path = self.folder / name
        try:
            save(path, state)
        except OSError as error:
            free = shutil.disk_usage(self.folder).free
            kept = [p.name for p in list_files(self.folder)]
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
    except Timeout:
        return True
    return False


def take(run_dir: Path) -> FileLock:
    """Locks a folder for this process, until it releases the lock or ends."""
    # Not bound to a thread: any thread may release the lock.
    lock = FileLock(run_dir / _LOCK, blocking=False, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise
    except (OSError, NotImplementedError):
        pass  # a network file system without locks, or a read-only folder
    return lock


@contextmanager
def alone(folder: Path, taken: str) -> Iterator[None]:
    """Makes a folder and locks it during the block; `taken` is the error if it is."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = take(folder)
    except Timeout:
        raise ValueError(taken) from None
    try:
        yield
    finally:
        lock.release()
