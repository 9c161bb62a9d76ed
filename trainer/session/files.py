"""The run folder: its path, and its content before the first update."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.config import plain, shown
from trainer.config.schema import RunConfig
from trainer.machine.files import drop_after, same_folder
from trainer.models import checkpoint


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


@contextmanager
def writing_to(run_dir: Path) -> Iterator[None]:
    """Explains errors of a block that starts to write to a run folder."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"cannot write to the run folder {run_dir} ({error.strerror}); "
            "choose another folder with --run-dir"
        ) from error


def prepare(
    config: RunConfig,
    run_dir: Path,
    *,
    resumed: bool,
    step: int,
    device: str,
    log: Callable[[str], None],
) -> None:
    """Drops rows of an abandoned part of the run, and writes config.json."""
    # A run that was killed before its first checkpoint also leaves lines.
    lost = drop_after(run_dir, step)
    if lost and not resumed:
        log(f"dropped {lost} lines of a run without a checkpoint from {run_dir}")
    plain.save(
        config,
        run_dir / "config.json",
        commit=_commit(),
        device_used=device,
        command=command_line(),
    )


def command_line() -> str:
    """The command that started this process, as others may see it."""
    return shlex.join(shown.command(sys.orig_argv))


def _commit() -> str | None:
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
