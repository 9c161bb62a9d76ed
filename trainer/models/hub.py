"""Policies on the Hugging Face Hub: pushed with their card, fetched and checked.

`hf://user/name` works wherever a policy's file does; `hf://user/name@revision` is one
version of it, and `hf://user/name/8-1` one of several policies. Foreign files are
checked before use: their sizes before the download, then the card's ROM, the SHA-256 of
the file, that it is safetensors, and that it names no file of this machine.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mario_envpool import rom
from trainer.machine.imports import extra
from trainer.machine.process import first_line
from trainer.models import released
from trainer.models.released import CARD, SUFFIX, Card, PolicyFile

# A path has one slash where a URL has two.
_PREFIX = re.compile(r"hf:/+")
_ADDRESS = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?(?:/(?P<name>[\w-]+))?"
)
# Limits in bytes: a card has a few KB per policy, a policy 0.1 to 20 MB.
_MOST_CARD_BYTES = 4 << 20
_MOST_POLICY_BYTES = 1 << 30


class Address(NamedTuple):
    """The parts of `hf://user/name@revision/policy`."""

    repo: str  # such as user/name
    revision: str | None  # a branch, tag or commit; None: the newest
    policy: str  # its name in the card; "": the only policy

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://{self.repo}{revision}{f'/{self.policy}' if self.policy else ''}"


def is_address(path: Path | str) -> bool:
    """Whether a path is an address on the Hub."""
    return _PREFIX.match(str(path)) is not None


def parse(path: Path | str) -> Address:
    """Parses an address.

    Raises:
        ValueError: not an address.
    """
    match = _ADDRESS.fullmatch(_PREFIX.sub("", str(path)))
    if match is None:
        raise ValueError(f"{path} is not an address on the Hub; give hf://user/name")
    return Address(match["repo"], match["revision"], match["name"] or "")


def locate(path: Path) -> Path:
    """The file of a policy on the Hub or of `released:NAME`; other paths unchanged."""
    return fetch(parse(path)) if is_address(path) else released.locate(path)


def fetch(address: Address) -> Path:
    """Downloads a policy, unless it is in the Hub's cache on this machine; checks it.

    Returns:
        The file, in the Hub's cache, with the card in the same folder.

    Raises:
        ImportError: huggingface_hub is not installed.
        OSError: the Hub does not answer, or does not have the policy.
        ValueError: the card or the policy is damaged, too large or for another ROM, or
            the two do not match.
    """
    hub = library()
    try:
        api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        info = api.model_info(
            address.repo, revision=address.revision, files_metadata=True
        )
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}

        def download(name: str, most: int) -> Path:
            if name not in sizes:
                raise ValueError(f"{name} is missing; a published policy must have one")
            if sizes[name] > most:
                raise ValueError(
                    f"{name} has {sizes[name]:,} bytes; the most is {most:,}"
                )
            return Path(api.hf_hub_download(address.repo, name, revision=info.sha))

        folder = download(CARD, _MOST_CARD_BYTES).parent
        card = released.read_card(folder)
        _check_rom(card)
        names = list(card.policies)
        name = address.policy or (names[0] if len(names) == 1 else "")
        if name not in names:
            raise ValueError(
                f"it has the policies {', '.join(map(ascii, names))}: name one, such "
                f"as hf://{address.repo}/8-1"
            )
        file = str(card.policies[name]["file"])
        if not file.endswith(SUFFIX):
            raise ValueError(f"the policy must be a {SUFFIX} file, got {file!a}")
        download(file, _MOST_POLICY_BYTES)
        path = released.policy_of(folder, name)
        _check_policy(released.read_policy(path, torch.device("cpu")), card)
        return path
    except (hub.errors.HTTPError, hub.errors.EntryNotFoundError) as error:
        raise OSError(f"{address}: {first_line(error)}") from error
    except ValueError as error:
        raise ValueError(f"{address}: {error}") from error


def push(folder: Path, address: Address, *, private: bool) -> str:
    """Uploads a folder to the Hub; creates the repository if it does not exist.

    Args:
        folder: folder to upload.
        address: address without a policy.
        private: whether only the owner can read a new repository.

    Returns:
        The URL of the upload.

    Raises:
        ImportError: huggingface_hub is not installed.
        OSError: the Hub does not answer, or rejects the upload.
    """
    hub = library()
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        url = api.create_repo(address.repo, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=address.repo,
            folder_path=folder,
            revision=address.revision,
            commit_message="Published by mario-envpool",
        )
    except (hub.errors.HTTPError, hub.errors.LocalTokenNotFoundError) as error:
        raise OSError(
            f"{address}: {first_line(error)}; run hf auth login if this machine is "
            "not logged in"
        ) from error
    return str(url)


def library() -> Any:
    """The library of the Hub; raises ImportError if it is not installed."""
    with extra("hub", "hf:// needs huggingface_hub"):
        import huggingface_hub
        import huggingface_hub.errors
    return huggingface_hub


def _check_rom(card: Card) -> None:
    """Raises ValueError unless the ROM of a card is installed."""
    if not re.fullmatch("[0-9a-f]{40}", str(card.rom_sha1)):
        raise ValueError(f"{CARD} is damaged: its rom_sha1 is not a SHA-1")
    for name in rom.ROMS:
        try:
            if hashlib.sha1(rom.load(name)).hexdigest() == card.rom_sha1:
                return
        except rom.RomError:
            continue
    raise ValueError(
        f"the policy needs the ROM with SHA-1 {card.rom_sha1}, "
        f"{rom.describe(card.rom_sha1)}, which is not installed"
    )


def _check_policy(policy: PolicyFile, card: Card) -> None:
    """Raises ValueError for a file that does not match its card, or names paths."""
    # `load_policy` checks the code that a file names as its network.
    if policy.rom_sha1 != card.rom_sha1:
        raise ValueError(
            f"the policy needs the ROM with SHA-1 {policy.rom_sha1}, but its card has "
            f"{card.rom_sha1}"
        )
    for name in ("rom_path", "reward_fn"):
        if value := policy.env.get(name):
            raise ValueError(
                f"its {name} is {value!a}, a file or code of another machine; a "
                "published policy must not name any"
            )
