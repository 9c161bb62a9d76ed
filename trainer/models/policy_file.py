"""Policies as files of their own: weights and what they are for, in safetensors.

A file has half-precision weights and, as its metadata, the parts of the run's config
that decide what the network sees and does, and the SHA-1 of the ROM that it was
trained on. Reading it runs no code. There is nothing of the game in it.
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
_FORMAT = "mario-envpool policy 1"


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


def write(path: Path, policy: PolicyFile) -> None:
    """Writes a policy, atomically.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    about = policy._asdict()
    weights = {
        name: (weight.half() if weight.is_floating_point() else weight).contiguous()
        for name, weight in about.pop("weights").items()
    }
    metadata = {"format": _FORMAT, "policy": json.dumps(about)}
    with replacing(path) as file:
        file.write(safetensors.torch.save(weights, metadata))


def read(path: Path, device: torch.device) -> PolicyFile:
    """Reads a policy.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged, or another file.
    """
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
        weights = {
            name: weight.float() if weight.is_floating_point() else weight
            for name, weight in weights.items()
        }
        policy = PolicyFile(weights=weights, **about)
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    for name, weight in policy.weights.items():
        if not bool(weight.isfinite().all()):
            raise ValueError(f"{path} is damaged: {name} is not finite")
    return policy
