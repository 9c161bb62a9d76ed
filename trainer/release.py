"""Makes a release of a campaign's policies: `python -m trainer.release CAMPAIGN`.

A release is a folder with the policies (weights only), a card (card.json: results, how
the policies were trained and played, their licence, and the hash of the ROM that they
need) and README.md, the card as text for people.

    python -m trainer.release runs/campaign-TIME
    python -m trainer.evaluate --policy runs/campaign-TIME/release

The second command plays all policies again as the card describes. Before a release
replaces another, --last compares the two cards:

    python -m trainer.release runs/campaign-TIME --last released:all --to hf://user/name

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from trainer.cli import main_of
from trainer.config.plain import from_dict
from trainer.machine.files import copy, write_text
from trainer.models import hub
from trainer.models.released import (
    CARD,
    SUFFIX,
    Card,
    folder_of,
    read_card,
    write_card,
)
from trainer.show.campaign import OPTIONS, TABLE
from trainer.tuning import releases
from trainer.tuning.campaign_config import CampaignConfig, command_of
from trainer.tuning.one_network import ONE
from trainer.tuning.progress import POLICIES

_DATA = (
    "Nothing but the game itself, played by the trainer: a search found the "
    "demonstrations. No person's play, no pictures, no RAM and no demonstrations "
    "are in the files."
)


@dataclass(frozen=True)
class ReleaseConfig:
    """Makes a release of a campaign's policies."""

    campaign: tyro.conf.Positional[Path]
    """Folder of a finished campaign."""

    to: str = ""
    """Folder to write to, or hf://user/name; the default is CAMPAIGN/release."""

    last: Path | None = None
    """The release before, a folder or released:all. Nothing is released if a policy is
    missing, or cleared a level less often: the 95 % interval of its clear rate with
    sampled actions ends below that of the last release."""

    private: bool = False
    """Make a new repository of --to hf://user/name private."""


def worse(card: Card, last: Card) -> list[str]:
    """What is worse than in the last release, beyond the 95 % intervals."""
    lines = []
    for name, before in last.policies.items():
        rows = card.policies.get(name, {"results": []})["results"]
        now = {row["level"]: row for row in rows if not row["argmax"]}
        for row in before["results"]:
            level, new = row["level"], now.get(row["level"])
            if row["argmax"]:
                continue
            if new is None:
                lines.append(f"{level} by {name} is missing")
            elif new["interval"][1] < row["interval"][0]:
                lines.append(
                    f"{level} by {name}: {new['clear_rate']:.0%}, before "
                    f"{row['clear_rate']:.0%}"
                )
    return lines


def make(
    campaign: Path, to: Path, last: Card | None = None, *, for_hub: bool = False
) -> Card:
    """Copies the policies of a campaign, and writes their card.

    Raises ValueError before it writes the card if they are worse than the last ones.
    """
    if (to / CARD).exists():
        raise FileExistsError(f"{to} holds a release; choose another folder")
    try:
        options = json.loads((campaign / OPTIONS).read_bytes())
        table = json.loads((campaign / TABLE).read_bytes())
        config = from_dict(CampaignConfig, options["options"])
        results: dict[str, list[dict[str, Any]]] = {}
        for row in table["single"]:
            results.setdefault(row["level"], []).append(row)
        if table["one"]:
            results[ONE] = table["one"]
        levels, minutes = table["levels"], table["seconds"] / 60
        protocol = {name: table[name] for name in ("episodes", "seed")}
    except FileNotFoundError as error:
        begun = (campaign / OPTIONS).exists()
        more = f"; python -m trainer.campaign --resume {campaign} continues" * begun
        raise FileNotFoundError(
            f"{error.filename} is missing: a release needs a campaign with a finished "
            f"evaluation{more}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"a file of {campaign} is damaged: {error!r}") from error
    to.mkdir(parents=True, exist_ok=True)
    for name in results:
        copy(campaign / POLICIES / f"{name}{SUFFIX}", to / f"{name}{SUFFIX}")
    about = {
        "title": f"Policies for {len(levels)} levels, from {minutes:.0f} minutes of "
        "training",
        "made_by": command_of(config, options["flags"]),
        "data": _DATA,
    }
    card = releases.make_card(to, results, about, protocol, config.task, levels)
    if last is not None and (lines := worse(card, last)):
        raise ValueError(
            f"not released, {len(lines)} results are worse than in the last release: "
            f"{'; '.join(lines)}; train longer or with another seed, or leave out "
            "--last"
        )
    head = releases.front_matter(card) if for_hub else ""
    write_text(to / releases.README, head + releases.readme(card))
    write_card(to, card)
    return card


def _release(config: ReleaseConfig) -> None:
    address = hub.parse(config.to) if hub.is_address(config.to) else None
    if address is not None and address.policy:
        raise ValueError(f"--to must be hf://user/name or a folder, got {config.to}")
    if config.private and address is None:
        raise ValueError("--private needs --to hf://user/name; leave out --private")
    if config.last and hub.is_address(config.last):
        raise ValueError("--last takes a folder or released:all, not an address")
    last = read_card(folder_of(config.last)) if config.last else None
    folder = Path(config.to) if config.to else config.campaign / "release"
    with ExitStack() as stack:
        if address is not None:
            hub.library()  # if it is missing, nothing is made
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        card = make(config.campaign, folder, last, for_hub=address is not None)
        size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
        what = f"{len(card.policies)} policies, {size:.1f} MiB,"
        if address is None:
            print(f"wrote {what} to {folder}/")
        else:
            url = hub.push(folder, address, private=config.private)
            print(f"pushed {what} to {url}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(ReleaseConfig, _release, "release", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
