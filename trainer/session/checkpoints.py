"""The checkpoints of one run folder: the last few are kept, by one writer at a time."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainer.machine.files import TEMPORARY
from trainer.models.checkpoint import BEST, FOLDER, list_files, save, step_of

if sys.platform != "win32":
    import fcntl


class Checkpoints:
    """The checkpoints of one run folder, which belongs to one process at a time."""

    def __init__(self, run_dir: Path, keep: int, say: Callable[[str], None]) -> None:
        """Takes the folder, and clears away what an interrupted writing left.

        Args:
            run_dir: existing folder.
            keep: how many checkpoints stay, best.pt not counted.
            say: told of what could not be written.

        Raises:
            ValueError: another process writes to it.
            OSError: the folder cannot be made.
        """
        self._keep, self._say = keep, say
        self.folder = run_dir / FOLDER
        self.folder.mkdir(exist_ok=True)
        try:
            self._lock = _lock(self.folder)
        except BlockingIOError:
            raise ValueError(
                f"another process is writing to {run_dir}; wait for its end, or give "
                "this run a folder of its own with --run-dir"
            ) from None
        for path in self.folder.glob(f"*{TEMPORARY}"):
            path.unlink()

    def save(self, state: Mapping[str, Any], step: int) -> Path | None:
        """Writes a checkpoint, then deletes the oldest beyond those that are kept.

        Those of a later step belong to a course that was given up when the run was
        resumed from an earlier one; they go, too.

        Args:
            state: see `save`.
            step: environment steps, for the name.

        Returns:
            The file, or None: it could not be written, which was said.
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
            self._say(
                f"could not write {path} ({error.strerror or error}; "
                f"{free / 1e6:,.1f} MB free); training goes on, and "
                + (f"{', '.join(kept)} stay as they are" if kept else "there is none")
            )
            return None
        return path

    def close(self) -> None:
        """Lets other processes have the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def is_taken(run_dir: Path) -> bool:
    """Whether a process is writing to a run folder; changes nothing in it."""
    try:
        os.close(_lock(run_dir / FOLDER))
    except BlockingIOError:
        return True
    return False


def _lock(folder: Path) -> int:
    """Takes a folder for this process, until what is returned is closed.

    Raises:
        BlockingIOError: another one has it.
    """
    if sys.platform == "win32":  # folders have no locks: nobody is refused
        return os.open(os.devnull, os.O_RDONLY)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise
    except OSError:
        pass  # a network file system without locks
    return lock
