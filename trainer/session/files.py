"""The folder of a run: which one it is, and what is in it before the first update."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.config import plain
from trainer.config.schema import RunConfig
from trainer.machine.files import drop_after, same_folder
from trainer.models import checkpoint


def choose_run_dir(config: RunConfig, source: Path | None) -> Path:
    """The folder of a run, which may be there already.

    Args:
        config: of the run.
        source: folder of the run that is resumed; None: of no run.

    Raises:
        ValueError: the folder is that of another run.
    """
    run_dir = config.run_dir or source or new_run_dir(config.env.task)
    if not same_folder(source, run_dir) and checkpoint.list_files(run_dir):
        raise ValueError(
            f"{run_dir} holds the checkpoints of another run: go on with it "
            f"(--resume {run_dir}), or choose another --run-dir"
        )
    return run_dir


def new_run_dir(task: str) -> Path:
    """runs/TASK-TIME, with a number where two runs start in one second."""
    name = f"{task}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = Path("runs") / name, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


@contextmanager
def writing_to(run_dir: Path) -> Iterator[None]:
    """Explains errors of a block that begins to write to a run folder.

    Raises:
        OSError: the block raised one; with the folder and what to do.
    """
    try:
        yield
    except OSError as error:
        raise OSError(
            f"cannot write to the run folder {run_dir} ({error.strerror}); "
            "choose another with --run-dir"
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
    """Drops the rows of another course of the run, and writes config.json.

    Args:
        config: of the run.
        run_dir: existing folder that belongs to this process.
        resumed: whether the run continues in its own folder.
        step: that the run begins at.
        device: in words, for config.json.
        log: receives a message where rows of an unknown run are dropped.

    Raises:
        OSError: something cannot be written.
    """
    # A run that was killed before its first checkpoint leaves lines, too.
    lost = drop_after(run_dir, step)
    if lost and not resumed:
        lines = "lines of a run without a checkpoint, which are dropped"
        log(f"{run_dir} had {lost} {lines}")
    plain.save(
        config,
        run_dir / "config.json",
        commit=_commit(),
        device_used=device,
        command=command_line(),
    )


def command_line() -> str:
    """The command that this process was started with, as a shell takes it."""
    return shlex.join(sys.orig_argv)


def _commit() -> str | None:
    """The commit of the trainer's own repository, "-dirty" if it was changed."""
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
