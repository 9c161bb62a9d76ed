"""The checkpoints of one run folder, with one writer at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from trainer.machine.files import TEMPORARY
from trainer.models.checkpoint import BEST, FOLDER, list_files, save, step_of

# File in a run folder that the process which writes to the folder holds locked.
_LOCK = ".lock"


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
