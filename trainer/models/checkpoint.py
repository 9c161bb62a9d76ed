"""Checkpoints: everything that has to continue, written whole or not at all.

A run keeps the last few in RUN_DIR/checkpoints, step-000204800.pt and so on, and
best.pt from when most of its episodes were clears. A file is a zip archive of
tensors and plain types (`torch.load(weights_only=True)`): reading one never runs
code from it, and the checksums of the archive tell when a bit of it has changed.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.machine.files import replacing

VERSION = 6

FOLDER = "checkpoints"
BEST = "best.pt"

_logger = logging.getLogger(__name__)


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint atomically.

    Args:
        path: of the file, which may exist; its folder does.
        state: tensors, numbers, strings, and lists and dicts of these.

    Raises:
        OSError: the disk is full, for example. What was at `path` is as before, and
            nothing else is.
    """
    with replacing(path) as file:
        _dump({"version": VERSION, **state}, file)


def _dump(state: dict[str, Any], file: Any) -> None:
    """torch.save, with the file's own error where there is one."""
    try:
        torch.save(state, file)
    except RuntimeError as error:
        # PyTorch's writer reports a full disk as an unexpected position.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def load(path: Path, device: torch.device, needs: Iterable[str] = ()) -> dict[str, Any]:
    """Reads a checkpoint without running any code from it.

    Args:
        path: the file, or the folder of its run: then the newest valid one. Where
            newer ones are damaged, the log says so.
        device: where its tensors go.
        needs: names that must be in it.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        ValueError: it is damaged, of another version, or none of ours.
    """
    return _load(path, device, needs)[1]


def find(path: Path, needs: Iterable[str] = ()) -> Path:
    """The file that `load` reads, given a file, itself unread, or a run's folder.

    Raises:
        FileNotFoundError: there is none in the folder.
        OSError: it cannot be read.
        ValueError: it is damaged, of another version, or none of ours.
    """
    return _load(path, torch.device("cpu"), needs)[0] if path.is_dir() else path


def _load(
    path: Path, device: torch.device, needs: Iterable[str]
) -> tuple[Path, dict[str, Any]]:
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
        f"no checkpoint at {path}; runs write theirs to RUN_DIR/{FOLDER}/"
    )


def hand_over(source: Path, run_dir: Path) -> None:
    """Makes a checkpoint the only one of another run.

    Whenever it is interrupted, doing it again brings it to its end.

    Args:
        source: file, named by its step.
        run_dir: folder of a run that is not going on.
    """
    folder = run_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as given, replacing(folder / source.name) as file:
        shutil.copyfileobj(given, file)
    for path in list_files(run_dir):
        if path.name != source.name:
            path.unlink()


def list_files(run_dir: Path) -> list[Path]:
    """Checkpoints of a run (or in a folder of them), newest first, best.pt last."""
    folder = run_dir if run_dir.name == FOLDER else run_dir / FOLDER
    steps = [path for path in folder.glob("step-*.pt") if step_of(path) is not None]
    best = [folder / BEST] if (folder / BEST).exists() else []
    return sorted(steps, key=lambda path: step_of(path) or 0, reverse=True) + best


def step_of(path: Path) -> int | None:
    """Environment steps in the name of a checkpoint, None if it has none."""
    match = re.fullmatch(r"step-(\d+)\.pt", path.name)
    return int(match[1]) if match else None


def run_dir_of(path: Path) -> Path | None:
    """The folder of the run that a checkpoint file lies in, None if it is elsewhere."""
    if path.resolve().parent.name != FOLDER:
        return None
    # The parent of "." is "." in pathlib.
    return Path(os.path.normpath(path.parent / ".."))


def _read(path: Path, device: torch.device, needs: list[str]) -> dict[str, Any]:
    """Reads one file, after its checksums."""
    _check_archive(path)
    foreign = f"{path} is not a checkpoint of this trainer"
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except OSError:
        raise
    except Exception as error:
        # Whatever else is in an archive ends in any of a dozen types, with pages
        # of advice on how to load it unsafely.
        code = re.search(r"GLOBAL ([\w.]+)", str(error))
        if code:
            raise ValueError(
                f"{foreign}: it holds {code[1]}, which is code and not data; it was "
                "not run"
            ) from error
        raise ValueError(f"{path} is damaged: PyTorch cannot read it") from error
    if not isinstance(state, dict) or "version" not in state:
        raise ValueError(f"{foreign}: it is another file of PyTorch's, with no version")
    if state["version"] != VERSION:
        raise ValueError(
            f"{path} is a checkpoint of version {state['version']}; this trainer reads "
            f"version {VERSION}; use the trainer that wrote it, or train again"
        )
    missing = [name for name in needs if name not in state]
    if missing:
        raise ValueError(f"{path} is incomplete: no {', '.join(missing)} in it")
    _check_finite(path, state)
    return state


def _check_archive(path: Path) -> None:
    """Raises unless a file is a whole archive of PyTorch's."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
            if not start:
                raise ValueError(f"{path} is empty: its writing was cut off")
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
        if error.errno == errno.EINVAL:  # a place before the beginning
            raise ValueError(f"{path} is damaged: wrong table of contents") from error
        raise OSError(f"cannot read {path} ({error.strerror})") from error
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError) as error:
        # What zipfile says to bits of its table of contents that have changed.
        raise ValueError(f"{path} is damaged: {error}") from error


def _check_records(path: Path, archive: zipfile.ZipFile) -> None:
    """Compares the checksums of all records; PyTorch itself ignores them."""
    damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{path} is damaged: the checksum of {damaged} is wrong")
    if not any(name.endswith("/data.pkl") for name in archive.namelist()):
        raise ValueError(
            f"{path} is not a checkpoint of this trainer: it is a zip archive, but not "
            "one of PyTorch's"
        )


def _check_finite(path: Path, state: Mapping[str, Any]) -> None:
    """Raises ValueError for weights that are NaN or infinite."""
    for kind in ("model", "ema"):
        for name, tensor in (state.get(kind) or {}).items():
            if not bool(tensor.isfinite().all()):
                raise ValueError(
                    f"{path} is of no use: {name} in {kind} is not finite, which "
                    "happens when a run diverges; take an older one"
                )


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Puts a checkpoint's weights into a network.

    Raises:
        ValueError: they are those of a network of another shape.
    """
    check_shapes(model, weights)
    model.load_state_dict(weights)


def check_shapes(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Raises ValueError for weights of a network of another shape."""
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted({*own, *given}):
        if own.get(name) != given.get(name):
            raise ValueError(
                f"the checkpoint's weights do not fit: {name} is {given.get(name)} "
                f"there and {own.get(name)} here; choose the model, the actions and "
                "the image that it was trained with"
            )
