"""Checkpoints: the state that a resumed run needs, written atomically.

A run keeps the last few checkpoints in RUN_DIR/checkpoints (step-000204800.pt and so
on), and best.pt from the time of its highest score. A file is a zip archive of
tensors and plain types (`torch.load(weights_only=True)`): reading a file never runs
code from it, and the archive's checksums detect a changed bit.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from trainer.machine.files import copy, replacing

VERSION = 6

FOLDER = "checkpoints"
BEST = "best.pt"

_logger = logging.getLogger(__name__)


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Writes tensors and plain types to a file, atomically: see `replacing`."""
    with replacing(path) as file:
        dump({"version": VERSION, **state}, file)


def dump(state: dict[str, Any], file: BinaryIO) -> None:
    """Calls torch.save, but raises the file's own error, or a signal's, if any."""
    try:
        torch.save(state, file)
    except RuntimeError as error:
        # PyTorch's writer reports a full disk, and Ctrl-C, as an unexpected position.
        if isinstance(error.__context__, (OSError, KeyboardInterrupt)):
            raise error.__context__ from None
        raise


def load(path: Path, device: torch.device, needs: Iterable[str] = ()) -> dict[str, Any]:
    """Reads a checkpoint without running any code from it.

    Args:
        path: the file, or a run folder, whose newest valid checkpoint is read. The log
            has a warning for each damaged newer one.
        device: the device of the tensors.
        needs: names that the checkpoint must have.

    Raises:
        FileNotFoundError: there is no checkpoint.
        OSError: the file cannot be read.
        ValueError: the file is damaged, of another version, or not a checkpoint.
    """
    return load_newest(path, device, needs)[1]


def find(path: Path, needs: Iterable[str] = ()) -> Path:
    """The file that `load` reads, given a file (returned unread) or a run folder.

    Raises:
        FileNotFoundError: the folder has no checkpoint.
        OSError: a file cannot be read.
        ValueError: all files are damaged, of another version, or not checkpoints.
    """
    return load_newest(path, torch.device("cpu"), needs)[0] if path.is_dir() else path


def load_newest(
    path: Path, device: torch.device, needs: Iterable[str]
) -> tuple[Path, dict[str, Any]]:
    """The file that `load` reads, and its content."""
    needs = list(needs)
    if not path.is_dir():
        return path, _read(path, device, needs)
    files = list_files(path)
    if not files:
        raise _none_at(path)
    for number, file in enumerate(files):
        try:
            return file, _read(file, device, needs)
        except (OSError, ValueError) as error:
            if number + 1 == len(files):
                raise
            _logger.warning("%s; trying %s", error, files[number + 1].name)
    raise AssertionError("the last file returns or raises")


def _none_at(path: Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"no checkpoint at {path}; runs write their checkpoints to RUN_DIR/{FOLDER}/"
    )


def hand_over(source: Path, run_dir: Path) -> None:
    """Makes a checkpoint the only one of another run, which is not active.

    After an interruption, call it again to complete it.
    """
    folder = run_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    copy(source, folder / source.name)
    for path in list_files(run_dir):
        if path.name != source.name:
            path.unlink()


def list_files(run_dir: Path) -> list[Path]:
    """Checkpoints of a run or of a checkpoint folder, newest first, best.pt last."""
    folder = run_dir if run_dir.name == FOLDER else run_dir / FOLDER
    # Not folders of these names.
    files = [path for path in folder.glob("*.pt") if path.is_file()]
    steps = [path for path in files if step_of(path) is not None]
    best = [path for path in files if path.name == BEST]
    return sorted(steps, key=lambda path: step_of(path) or 0, reverse=True) + best


def step_of(path: Path) -> int | None:
    """Environment steps in the name of a checkpoint, None if the name has none."""
    match = re.fullmatch(r"step-(\d+)\.pt", path.name)
    return int(match[1]) if match else None


def run_dir_of(path: Path) -> Path | None:
    """The run folder that has a checkpoint file, None if the file is elsewhere."""
    if path.resolve().parent.name != FOLDER:
        return None
    # The parent of "." is "." in pathlib.
    return Path(os.path.normpath(path.parent / ".."))


def _read(path: Path, device: torch.device, needs: list[str]) -> dict[str, Any]:
    """Checks the checksums of one file and reads it."""
    _check_archive(path)
    foreign = f"{path} is not a checkpoint of this trainer"
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except OSError:
        raise
    except Exception as error:
        # Other archives raise one of a dozen error types, with long advice on how to
        # load them unsafely.
        code = re.search(r"GLOBAL ([\w.]+)", str(error))
        if code:
            raise ValueError(
                f"{foreign}: it contains the code {code[1]}, which was not run"
            ) from error
        raise ValueError(f"{path} is damaged: PyTorch cannot read it") from error
    if not isinstance(state, dict) or "version" not in state:
        raise ValueError(f"{foreign}: it is another PyTorch file, without a version")
    if state["version"] != VERSION:
        raise ValueError(
            f"{path} is a checkpoint of version {state['version']}, but this trainer "
            f"reads version {VERSION}: use the trainer that wrote it, or train again"
        )
    missing = [name for name in needs if name not in state]
    if missing:
        raise ValueError(f"{path} is incomplete: {', '.join(missing)} is missing")
    _check_finite(path, state)
    return state


def _check_archive(path: Path) -> None:
    """Raises an error unless a file is a complete PyTorch archive."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
            if not start:
                raise ValueError(f"{path} is empty: writing it was interrupted")
            if not b"PK\x03\x04".startswith(start):
                raise ValueError(
                    f"{path} is not a checkpoint of this trainer: it begins like "
                    "another kind of file"
                )
            if not zipfile.is_zipfile(file):
                raise ValueError(
                    f"{path} is cut off after {path.stat().st_size:,} bytes: the end "
                    "of the archive is missing"
                )
            _check_records(path, zipfile.ZipFile(file))
    except FileNotFoundError:
        raise _none_at(path) from None
    except OSError as error:
        if error.errno == errno.EINVAL:  # a position before the beginning
            raise ValueError(f"{path} is damaged: wrong table of contents") from error
        raise OSError(f"cannot read {path} ({error.strerror})") from error
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError) as error:
        # zipfile raises these errors if bits of its table of contents have changed.
        raise ValueError(f"{path} is damaged: {error}") from error


def _check_records(path: Path, archive: zipfile.ZipFile) -> None:
    """Compares the checksums of all records; PyTorch itself ignores them."""
    damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{path} is damaged: the checksum of {damaged} is wrong")
    if not any(name.endswith("/data.pkl") for name in archive.namelist()):
        raise ValueError(
            f"{path} is not a checkpoint of this trainer: it is a zip archive, but not "
            "a PyTorch archive"
        )


def _check_finite(path: Path, state: Mapping[str, Any]) -> None:
    """Raises ValueError for weights that are NaN or infinite."""
    for kind in ("model", "ema"):
        for name, tensor in (state.get(kind) or {}).items():
            if not bool(tensor.isfinite().all()):
                raise ValueError(
                    f"{path} cannot be used: {name} in {kind} is not finite, because "
                    "the run diverged; take an older checkpoint"
                )


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Loads a checkpoint's weights into a network; see `check_shapes`."""
    check_shapes(model, weights)
    model.load_state_dict(weights)


def check_shapes(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Raises ValueError for weights with other shapes than the network's."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    stored = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted({*shapes, *stored}):
        if shapes.get(name) != stored.get(name):
            raise ValueError(
                f"the checkpoint's weights do not fit: {name} is {stored.get(name)} in "
                f"the checkpoint, but {shapes.get(name)} in this network; use the "
                "model, the actions and the image size of its training"
            )
