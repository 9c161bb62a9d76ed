"""Policies as files of their own: weights and what they are for, in safetensors.

A file has weights in half precision, or large matrices as bytes with a scale for each
row, and as its metadata the parts of the run's config that decide what the network sees
and does, and the SHA-1 of the ROM that it was trained on. Reading it runs no code.
There is nothing of the game in it.
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
# Matrices with as many numbers or more are large; the name of their scales.
_LARGE, _SCALES = 1 << 14, ".scales"


class PolicyFile(NamedTuple):
    """What a file holds.

    Attributes:
        env: the environments, as config.json has them.
        model: the network.
        precision: of the run.
        steps: environment steps that it was trained for.
        rom_sha1: of the ROM, in hexadecimal.
        averaged: whether the weights are a moving average (`ema`).
        weights: float32, by name.
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
        path: of the file.
        policy: its content.
        bits: 8 or 16, of a number in a large matrix.

    Raises:
        OSError: it cannot be written; what was there is as it was.
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
        FileNotFoundError: there is none.
        ValueError: it is damaged, or another file.
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
            f"{path} is no policy of this trainer: its format is "
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
    """Looks at the first bytes: the length of the header, and the header.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it is a pickle, which can run code when it is read.
    """
    try:
        with path.open("rb") as file:
            beginning = file.read(9)
    except FileNotFoundError:
        raise FileNotFoundError(f"no policy at {path}") from None
    # PyTorch writes zip archives of pickles, and wrote bare ones.
    pickled = beginning.startswith((b"PK", b"\x80"))
    if pickled and beginning[8:] != b"{":
        raise ValueError(
            f"{path} is a pickle with the name of a {SUFFIX} file: such files can run "
            "code, and are not loaded"
        )
