"""Releases: folders of policies with a card that describes them.

This package includes one release. Its policies have names such as `released:8-1`, which
work wherever a checkpoint does. `card.json` has the SHA-256 and the clear rates of each
policy and, for all of them, how they were trained and evaluated, and the SHA-1 of the
ROM.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from trainer.machine.files import write_json

FORMAT = "mario-envpool release 1"
CARD = "card.json"
PREFIX = "released:"
# The name that stands for all policies of a release.
ALL = "all"
FOLDER = Path(__file__).parent.parent / "released"


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
        found = content.pop("format", None)
        if found != FORMAT:
            raise ValueError(f"its format is {found!r}, not {FORMAT!r}")
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
    """Writes the card of a release.

    Raises:
        OSError: the card cannot be written.
    """
    content = {"format": FORMAT} | card._asdict()
    write_json(folder / CARD, content, indent=1)


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
        names = ", ".join(card.policies)
        raise ValueError(
            f"unknown released policy {name!r}; choose one of {names}"
            + (", or all for python -m trainer.evaluate" if name != ALL else
               "; only python -m trainer.evaluate takes all")
        )  # fmt: skip
    about = card.policies[name]
    path: Path = folder / about["file"]
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, which {folder / CARD} names")
    if sha256(path) != about["sha256"]:
        raise ValueError(
            f"{path} has changed: its SHA-256 is not that of {folder / CARD}"
        )
    return path
