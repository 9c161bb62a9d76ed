"""Checkpoints: everything that has to continue, written whole or not at all.

A file is `torch.load(weights_only=True)`-able: tensors and plain types only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

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


def load(path: Path, device: torch.device) -> dict[str, Any]:
    """Reads a checkpoint without running any code from it.

    Args:
        path: the file.
        device: where its tensors go; generator states stay on the host.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is of another version, or none of ours.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"no checkpoint at {path}; runs write theirs to RUN_DIR/checkpoint.pt"
        )
    state = torch.load(path, map_location=device, weights_only=True)
    if not isinstance(state, dict) or state.get("version") != VERSION:
        found = state.get("version") if isinstance(state, dict) else type(state)
        raise ValueError(
            f"{path} is a checkpoint of version {found}; this trainer reads {VERSION}"
        )
    return state
