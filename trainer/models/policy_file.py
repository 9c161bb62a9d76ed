"""Policies as separate files: weights and their configuration, in safetensors.

A file has weights in half precision, or large matrices as bytes with a scale per row.
Its metadata has the parts of the run's config that determine the network's observations
and actions, and the SHA-1 of the ROM of its training. Reading a file runs no code, and
a file contains no part of the game.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer.machine.files import replacing

SUFFIX = ".safetensors"
_FORMAT = "mario-envpool policy 2"
# Matrices with at least this many numbers are large; and the suffix of their scales.
_LARGE, _SCALES = 1 << 14, ".scales"


class PolicyFile(NamedTuple):
    """The contents of a policy's file.

    Attributes:
        env: the environments, in the format of config.json.
        model: configuration of the network.
        precision: precision of the run.
        steps: environment steps of its training.
        rom_sha1: SHA-1 of the ROM, in hexadecimal.
        averaged: whether the weights are a moving average (`ema`).
        weights: float32 tensors by name.
    """

    env: dict[str, Any]
    model: dict[str, Any]
    precision: str
    steps: int
    rom_sha1: str
    averaged: bool
    weights: Mapping[str, Tensor]


def write(path: Path, policy: PolicyFile, *, bits: int = 16) -> None:
    """Writes a policy, atomically.

    Args:
        path: path of the file.
        policy: contents of the file.
        bits: 8 or 16 bits per number of a large matrix.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    about = policy._asdict()
    weights: dict[str, Tensor] = {}
    for name, weight in about.pop("weights").items():
        if bits == 8 and weight.ndim == 2 and weight.numel() >= _LARGE:
            scales = (weight.abs().amax(1) / 127).half().clamp_min(1e-7)
            weights[name + _SCALES] = scales
            weight = (weight / scales.float()[:, None]).round().clamp(-127, 127).char()
        weights[name] = (
            weight.half() if weight.is_floating_point() else weight
        ).contiguous()
    metadata = {"format": _FORMAT, "policy": json.dumps(about)}
    with replacing(path) as file:
        file.write(safetensors.torch.save(weights, metadata))


def read(path: Path, device: torch.device) -> PolicyFile:
    """Reads a policy.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged, or not a policy.
    """
    _check_beginning(path)
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FileNotFoundError(f"no policy at {path}") from None
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if metadata.get("format") != _FORMAT:
        raise ValueError(
            f"{path} is not a policy of this trainer: its format is "
            f"{metadata.get('format')!r}, not {_FORMAT!r}"
        )
    try:
        about: dict[str, Any] = json.loads(metadata["policy"])
        scales = {n: weights.pop(n) for n in list(weights) if n.endswith(_SCALES)}
        weights = {
            name: weight.float() if weight.is_floating_point() else weight
            for name, weight in weights.items()
        }
        for name, scale in scales.items():
            matrix = name.removesuffix(_SCALES)
            weights[matrix] = weights[matrix] * scale.float()[:, None]
        policy = PolicyFile(weights=weights, **about)
    # RuntimeError: scales do not fit their matrix.
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    for name, weight in policy.weights.items():
        if not bool(weight.isfinite().all()):
            raise ValueError(f"{path} is damaged: {name} is not finite")
    return policy


def _check_beginning(path: Path) -> None:
    """Checks the first bytes: the length of the header, and the header.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is a pickle, which can run code when it is read.
    """
    try:
        with path.open("rb") as file:
            beginning = file.read(9)
    except FileNotFoundError:
        raise FileNotFoundError(f"no policy at {path}") from None
    # PyTorch writes zip archives of pickles; old versions wrote bare pickles.
    pickled = beginning.startswith((b"PK", b"\x80"))
    if pickled and beginning[8:] != b"{":
        raise ValueError(
            f"{path} is a pickle with the name of a {SUFFIX} file: it was not loaded, "
            "because pickles can run code"
        )
