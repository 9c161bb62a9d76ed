"""Writes a report about runs or a campaign: `python -m trainer.report RUN_DIR ...`.

    python -m trainer.report runs/SuperMarioBros-1-1-v0-20260101-120000
    python -m trainer.report runs/seed-1 runs/seed-2 runs/seed-3

The report is one HTML file that needs no network: curves, settings, evaluations, and
the pictures and videos of the run folder. For one run it is RUN_DIR/report.html,
which `trainer.run` also writes at its end. For several runs it is comparison.html
beside the first run folder, with their curves in the same charts.

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from trainer.cli import main_of
from trainer.show import campaign, page


@dataclass(frozen=True)
class ReportConfig:
    """Writes a report about a run, several runs, or a campaign."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or the folder of a campaign."""

    output: Path | None = None
    """File to write; the default is report.html in the run folder or, for several runs,
    comparison.html beside the first run folder."""


def _report(config: ReportConfig) -> None:
    if not config.runs:
        raise ValueError("name at least one run folder, such as runs/<run>")
    campaigns = [folder for folder in config.runs if campaign.is_campaign(folder)]
    if campaigns and len(config.runs) > 1:
        raise ValueError(
            f"{campaigns[0]} is a campaign, which has a separate report: name no other "
            "folder"
        )
    if campaigns:
        written = campaign.write(campaigns[0], config.output)
    else:
        written = page.write(config.runs, config.output)
    print(f"wrote {written}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(ReportConfig, _report, "report", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
