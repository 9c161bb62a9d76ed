"""Checkpoints: everything that has to continue, written whole or not at all.

A file is `torch.load(weights_only=True)`-able: tensors and plain types only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

VERSION = 1


def save(path: Path, state: dict[str, Any]) -> None:
    """Replaces `path` atomically: another file first, then a rename.

    Args:
        path: the checkpoint.
        state: tensors, numbers, strings, and lists and dicts of these.
    """
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        torch.save({"version": VERSION, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    # The rename itself lives in the folder.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Path, device: torch.device, needs: Iterable[str] = ()) -> dict[str, Any]:
    """Reads a checkpoint without running any code from it.

    Args:
        path: the file, or the folder of its run.
        device: where its tensors go; generator states stay on the host.
        needs: names that must be in it.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged, of another version, or none of ours.
    """
    if path.is_dir():
        path = path / "checkpoint.pt"
    if not path.is_file():
        raise FileNotFoundError(
            f"no checkpoint at {path}; runs write theirs to RUN_DIR/checkpoint.pt"
        )
    foreign = (
        f"{path} is not a checkpoint of this trainer, or it is damaged (%s); runs "
        "write theirs to RUN_DIR/checkpoint.pt"
    )
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except OSError:
        raise
    except Exception as error:
        # Bytes that are no checkpoint end in any of a dozen types, with pages of
        # advice on how to load them unsafely.
        raise ValueError(foreign % type(error).__name__) from error
    if not isinstance(state, dict) or "version" not in state:
        raise ValueError(foreign % "no version in it")
    if state["version"] != VERSION:
        raise ValueError(
            f"{path} is a checkpoint of version {state['version']}; this trainer reads "
            f"{VERSION}"
        )
    missing = [name for name in needs if name not in state]
    if missing:
        raise ValueError(foreign % f"no {', '.join(missing)} in it")
    return state


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Puts a checkpoint's weights into a network.

    Raises:
        ValueError: they are those of a network of another shape.
    """
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted({*own, *given}):
        if own.get(name) != given.get(name):
            raise ValueError(
                f"the checkpoint's weights do not fit: {name} is {given.get(name)} "
                f"there and {own.get(name)} here; choose the model, the actions and "
                "the image that it was trained with"
            )
    model.load_state_dict(weights)
