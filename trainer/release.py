"""Makes a release of a campaign's policies: `python -m trainer.release CAMPAIGN`.

A release is a folder with the policies (weights only), a card (card.json: results, how
the policies were trained and played, their licence, and the hash of the ROM that they
need) and README.md, the card as text for people.

    python -m trainer.release runs/campaign-TIME
    python -m trainer.evaluate --policy runs/campaign-TIME/release

The second command plays all policies again as the card describes.

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from trainer.cli import main_of
from trainer.config.plain import from_dict
from trainer.machine.files import copy, write_text
from trainer.models.released import CARD, SUFFIX, Card, write_card
from trainer.show.campaign import OPTIONS, TABLE
from trainer.tuning import releases
from trainer.tuning.campaign import ONE, POLICIES
from trainer.tuning.campaign_config import CampaignConfig, command_of

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

    to: Path | None = None
    """Folder to write to; the default is CAMPAIGN/release."""


def make(campaign: Path, to: Path) -> Card:
    """Copies the policies of a campaign, and writes their card."""
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
    write_text(to / releases.README, releases.readme(card))
    write_card(to, card)
    return card


def _release(config: ReleaseConfig) -> None:
    folder = config.to or config.campaign / "release"
    card = make(config.campaign, folder)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
    print(f"wrote {len(card.policies)} policies, {size:.1f} MiB, to {folder}/")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(ReleaseConfig, _release, "release", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
