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
    """Folder of a finished campaign."""

    to: Path | None = None
    """Folder to write to; the default is CAMPAIGN/release."""


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
