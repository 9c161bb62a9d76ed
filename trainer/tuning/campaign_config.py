"""The options of a campaign."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from trainer.config.checks import check_seed
from trainer.config.tasks import game_of, parse_levels

# Slices below this are not worth their start.
LEAST_SLICE = 5.0


@dataclass(frozen=True)
class CampaignConfig:
    """Trains a policy for each level, and one network for all levels."""

    levels: str = "all"
    """Levels such as 1-1,4-2, or all."""

    task: str = "SuperMarioBros-v0"
    """The game: SuperMarioBros-v0 to -v3, or SuperMarioBros2-v0 or -v1 (the Lost
    Levels, worlds 1 to 4)."""

    max_seconds: float = 3600.0
    """Seconds for all of the training; the evaluation comes after it. A search for
    demonstrations that has begun comes to its end."""

    merge_share: float = 0.3
    """Share of the time for the one network; 0: none, only a policy for each level."""

    slice_seconds: float = 60.0
    """Seconds for which a level trains before others have their turn."""

    jobs: int = 0
    """Levels that train at the same time, and share the cores; 0: one per core."""

    seed: int = 1
    """Seed of the runs. How far they come in the time depends on the machine."""

    episodes: int = 100
    """Sampled episodes of each level in the evaluation; 0: no evaluation."""

    merge_flags: str = ""
    """Flags of python -m trainer.run for the one network, in one text with "=" before
    it, such as --merge-flags="--widths 64 128 --features 512"."""

    run_dir: Path | None = None
    """Folder to write to; by default runs/campaign-TIME."""

    resume: Path | None = None
    """Folder of a campaign to go on with, with its own options."""

    dashboard: bool = True
    """A live board of all levels where stdout is a terminal; else lines."""

    def validate(self) -> None:
        """Raises ValueError for an option out of its range."""
        for name, least in (("max_seconds", 1), ("slice_seconds", LEAST_SLICE)):
            if not least <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} must be a number of seconds from {least:g} on, got "
                    f"{getattr(self, name)}"
                )
        if not 0 <= self.merge_share <= 0.9:
            raise ValueError(f"merge_share must be 0 to .9, got {self.merge_share}")
        for name in ("jobs", "episodes"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"{name} must be at least 0, got {getattr(self, name)}"
                )
        if self.task != game_of(self.task):
            raise ValueError(
                f"task {self.task} is one level or a selection: give --task "
                f"{game_of(self.task)} and --levels"
            )
        check_seed(self.seed)
        seconds = self.seconds_of_levels(len(parse_levels(self.levels, self.task)))
        if seconds < LEAST_SLICE:
            raise ValueError(
                f"of max_seconds {self.max_seconds:g} single levels have {seconds:g}, "
                f"and one trains for {LEAST_SLICE:g} or more: raise --max-seconds, "
                "such as to 60 for each level"
            )

    def seconds_of_levels(self, levels: int) -> float:
        """Seconds for the training of so many single levels."""
        return self.max_seconds * (1.0 - self.merge_share * (levels > 1))
