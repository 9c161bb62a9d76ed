"""Makes a release of a campaign's policies: `python -m trainer.release CAMPAIGN`.

A release is a folder with the policies, weights alone, a card (card.json: what they
reach, how they were trained and played, their licence, the hash of the ROM they need)
and README.md, which says the same to people.

    python -m trainer.release runs/campaign-TIME
    python -m trainer.evaluate --policy runs/campaign-TIME/release

The second command plays all of them again as the card says.

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from trainer.cli import main_of
from trainer.tuning import releases


@dataclass(frozen=True)
class ReleaseConfig:
    """Makes a release of a campaign's policies."""

    campaign: tyro.conf.Positional[Path]
    """Folder of a campaign that has come to its end."""

    to: Path | None = None
    """Folder of the release; by default release in that of the campaign."""


def _release(config: ReleaseConfig) -> None:
    folder = config.to or config.campaign / "release"
    card = releases.make(config.campaign, folder)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
    print(f"wrote {len(card.policies)} policies, {size:.1f} MiB, to {folder}/")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(ReleaseConfig, _release, "release", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
