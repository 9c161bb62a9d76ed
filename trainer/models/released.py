"""Policies for others: their files, and releases of such files with a card.

A policy's file is safetensors: weights in half precision, or large matrices as bytes
with a scale per row. Its metadata has the parts of the run's config that determine the
network's observations and actions, and the SHA-1 of the ROM of its training. Reading a
file runs no code, and a file contains no part of the game.

A release is a folder of such files. Its `card.json` has the SHA-256 and the clear rates
of each policy and, for all of them, how they were trained and evaluated. This package
includes one release, whose policies have names such as `released:8-1`, which work
wherever a checkpoint does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer.machine.files import replacing, write_json

CARD = "card.json"
PREFIX = "released:"
# The name that stands for all policies of a release.
ALL = "all"
FOLDER = Path(__file__).parent.parent / "released"
SUFFIX = ".safetensors"

_CARD_FORMAT = "mario-envpool release 1"
_POLICY_FORMAT = "mario-envpool policy 2"
# Matrices with at least this many numbers are large; and the suffix of their scales.
_LARGE, _SCALES = 1 << 14, ".scales"


class PolicyFile(NamedTuple):
    """The contents of a policy's file; `env` and `model` are those of config.json."""

    env: dict[str, Any]
    model: dict[str, Any]
    precision: str
    steps: int  # of environments, in training
    rom_sha1: str  # in hexadecimal
    averaged: bool  # whether the weights are a moving average (`ema`)
    weights: Mapping[str, Tensor]  # float32


def write_policy(path: Path, policy: PolicyFile, *, bits: int = 16) -> None:
    """Writes a policy atomically, with 8 or 16 bits per number of a large matrix."""
    facts = policy._asdict()
    weights: dict[str, Tensor] = {}
    for name, weight in facts.pop("weights").items():
        if bits == 8 and weight.ndim == 2 and weight.numel() >= _LARGE:
            scales = (weight.abs().amax(1) / 127).half().clamp_min(1e-7)
            weights[name + _SCALES] = scales
            weight = (weight / scales.float()[:, None]).round().clamp(-127, 127).char()
        weights[name] = (
            weight.half() if weight.is_floating_point() else weight
        ).contiguous()
    metadata = {"format": _POLICY_FORMAT, "policy": json.dumps(facts)}
    with replacing(path) as file:
        file.write(safetensors.torch.save(weights, metadata))


def read_policy(path: Path, device: torch.device) -> PolicyFile:
    """Reads a policy; raises ValueError if the file is damaged or not a policy."""
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FileNotFoundError(f"no policy at {path}") from None
    except SafetensorError as error:
        raise ValueError(
            f"{path} is damaged, or no {SUFFIX} file; no code in it was run: {error}"
        ) from error
    if metadata.get("format") != _POLICY_FORMAT:
        raise ValueError(
            f"{path} is not a policy of this trainer: its format is "
            f"{metadata.get('format')!r}, not {_POLICY_FORMAT!r}"
        )
    try:
        facts: dict[str, Any] = json.loads(metadata["policy"])
        for name in [name for name in weights if name.endswith(_SCALES)]:
            matrix, scales = name.removesuffix(_SCALES), weights.pop(name)
            weights[matrix] = weights[matrix] * scales.float()[:, None]
        for name, weight in weights.items():
            if weight.is_floating_point():
                weights[name] = weight.float()
        policy = PolicyFile(weights=weights, **facts)
    # RuntimeError: scales do not fit their matrix.
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    for name, weight in policy.weights.items():
        if not bool(weight.isfinite().all()):
            raise ValueError(f"{path} is damaged: {name} is not finite")
    return policy


class Card(NamedTuple):
    """The card of a release.

    Attributes:
        about: text for readers: title, made_by, machine, version, date, environment,
            rom, data, licence.
        protocol: `episodes`, `noop_max` and `seed` of the evaluation, and the
            `processor` that it ran on.
        task: task id of the game.
        rom_sha1: SHA-1 of its ROM, in hexadecimal.
        levels: all trained levels.
        policies: by name, with `file`, `sha256`, `steps` and `results`. The results
            have one entry per level for sampled and one for greedy actions: `level`,
            `argmax`, `episodes`, `clears`, `clear_rate`, `interval`, `cleared_starts`.
    """

    about: dict[str, str]
    protocol: dict[str, Any]
    task: str
    rom_sha1: str
    levels: list[str]
    policies: dict[str, dict[str, Any]]


def is_release(path: Path) -> bool:
    """Whether a path names all policies of a release."""
    return str(path) == PREFIX + ALL or (path / CARD).is_file()


def folder_of(path: Path) -> Path:
    """The folder of a release, given the folder or `released:all`."""
    return FOLDER if str(path).startswith(PREFIX) else path


def read_card(folder: Path) -> Card:
    """Reads the card of a release.

    Raises:
        FileNotFoundError: the card does not exist.
        ValueError: the card is damaged, or of another format.
    """
    path = folder / CARD
    try:
        content = json.loads(path.read_bytes())
        if (name := content.pop("format", None)) != _CARD_FORMAT:
            raise ValueError(f"its format is {name!r}, not {_CARD_FORMAT!r}")
        card = Card(**content)
        for name, policy in card.policies.items():
            if Path(policy["file"]).name != policy["file"]:
                raise ValueError(f"the file of {name} must be in the card's folder")
            for result in policy["results"]:
                result["level"], result["argmax"], result["clears"]
                result["episodes"], result["interval"], result["cleared_starts"]
    except FileNotFoundError:
        raise FileNotFoundError(f"no release in {folder}: {CARD} is missing") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return card


def write_card(folder: Path, card: Card) -> None:
    """Writes the card of a release."""
    write_json(folder / CARD, {"format": _CARD_FORMAT} | card._asdict(), indent=1)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def locate(path: Path) -> Path:
    """The file of `released:NAME`; any other path unchanged.

    Raises:
        FileNotFoundError: the policy's file is missing.
        ValueError: the policy does not exist, or its file does not match the card.
    """
    if not str(path).startswith(PREFIX):
        return path
    return policy_of(FOLDER, str(path).removeprefix(PREFIX))


def policy_of(folder: Path, name: str) -> Path:
    """The file of a policy of a release.

    Raises:
        FileNotFoundError: there is no release, or the policy's file is missing.
        ValueError: the policy does not exist, or its file does not match the card.
    """
    card = read_card(folder)
    if name not in card.policies:
        raise ValueError(
            f"unknown released policy {name!r}; choose one of "
            f"{', '.join(card.policies)}; python -m trainer.evaluate takes {ALL}, and "
            "so do trainer.video and trainer.watch with --whole-game"
        )
    path: Path = folder / card.policies[name]["file"]
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, which {folder / CARD} names")
    if sha256(path) != card.policies[name]["sha256"]:
        raise ValueError(
            f"{path} has changed: its SHA-256 is not that of {folder / CARD}"
        )
    return path
