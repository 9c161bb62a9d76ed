"""The options of a campaign, and the command that has them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.config import shown
from trainer.config.options import MAX_SEED, check_ranges, option
from trainer.config.plain import to_dict
from trainer.config.tasks import game_of, parse_levels
from trainer.show.campaign import OF_THE_COMMAND

# Shorter slices would mostly be start-up time.
LEAST_SLICE = 5.0


@dataclass(frozen=True)
class CampaignConfig:
    """Trains a policy for each level, and one network for all levels."""

    levels: str = "all"
    """Levels such as 1-1,4-2, or all."""

    task: str = "SuperMarioBros-v0"
    """The game: SuperMarioBros-v0 to -v3, or SuperMarioBros2-v0 or -v1 (the Lost
    Levels, worlds 1 to 4)."""

    max_seconds: float = option(3600.0, between=(1, 1e9))
    """Seconds for the whole training, without the evaluation after it. A search for
    demonstrations that has begun is always completed."""

    merge_share: float = option(0.3, between=(0, 0.9))
    """Share of the time for the network for all levels; 0: only train a policy for each
    level."""

    correct_share: float = option(0.1, between=(0, 0.9))
    """Share of the time of the levels in which a search corrects their policies where
    they die; 0: none."""

    correct_one_share: float = option(0.4, between=(0, 0.9))
    """Share of the time of the network for all levels in which a search corrects it
    where it dies, and it learns from that; 0, or less than 5 seconds per level:
    none."""

    slice_seconds: float = option(60.0, between=(LEAST_SLICE, 1e9))
    """Seconds for which a level trains before the next level has its turn."""

    jobs: int = option(0, least=0)
    """Number of levels that train at the same time and share the cores; 0: one per
    core."""

    seed: int = option(1, between=(0, MAX_SEED))
    """Seed of the runs. Their progress in the given time depends on the machine."""

    episodes: int = option(100, least=0)
    """Sampled episodes per level in the evaluation; 0: no evaluation."""

    merge_flags: str = ""
    """Flags of trainer.run for the network for all levels, as one text after "=", such
    as --merge-flags="--widths 64 128 --features 512"."""

    run_dir: Path | None = None
    """Folder to write to; the default is runs/campaign-TIME."""

    resume: Path | None = None
    """Folder of a campaign to resume, with its own options."""

    more_seconds: float = option(0.0, between=(0, 1e9))
    """Seconds to add to --max-seconds of the campaign of --resume. Its unsolved levels
    train further, and then the network for all levels."""

    dashboard: bool = True
    """Show a live board of all levels if stdout is a terminal; otherwise print
    lines."""

    def validate(self) -> None:
        """Raises ValueError if an option is out of range."""
        check_ranges(self)
        if self.more_seconds and self.resume is None:
            raise ValueError("--more-seconds needs --resume: give --max-seconds")
        if self.task != game_of(self.task):
            raise ValueError(
                f"task {self.task} is one level or a selection: give --task "
                f"{game_of(self.task)} and --levels"
            )
        seconds = self.seconds_of_levels(len(parse_levels(self.levels, self.task)))
        if seconds < LEAST_SLICE:
            raise ValueError(
                f"max_seconds={self.max_seconds:g} leaves {seconds:g} s for single "
                f"levels, which need at least {LEAST_SLICE:g}: raise --max-seconds, "
                "for example to 60 per level"
            )

    def seconds_of_levels(self, levels: int) -> float:
        """Seconds for the training of this many single levels."""
        return self._before_merge(levels) * (1.0 - self.correct_share)

    def seconds_to_correct(self, levels: int) -> float:
        """Seconds for the corrections of this many single levels."""
        return self._before_merge(levels) * self.correct_share

    def seconds_to_correct_one(self, levels: int) -> float:
        """Seconds for the correction of the network for this many levels."""
        seconds = self.max_seconds * self.merge_share * self.correct_one_share
        return seconds if seconds >= LEAST_SLICE * levels else 0.0

    def _before_merge(self, levels: int) -> float:
        return self.max_seconds * (1.0 - self.merge_share * (levels > 1))


def command_of(config: CampaignConfig, flags: Sequence[str]) -> str:
    """The command that started a campaign, as others may see it."""
    words = ["python", "-m", "trainer.campaign"]
    usual = to_dict(CampaignConfig())
    always = {"levels", "max_seconds", "seed"}
    for name, value in to_dict(config).items():
        if name in OF_THE_COMMAND:
            continue
        if name in always or value != usual[name]:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            words.append(f"--{name.replace('_', '-')}={text}")
    return shlex.join(shown.command([*words, *(["--", *flags] if flags else [])]))
