"""What one of several processes does of a run: its share of it."""

from __future__ import annotations

from dataclasses import replace

from trainer.config.presets import share_cores
from trainer.config.schema import RunConfig
from trainer.machine.ranks import Ranks


def share_of(config: RunConfig, ranks: Ranks) -> RunConfig:
    """The config that a process builds its part of a run from.

    The processes of a machine share its cores, where options do not say how many
    threads each has. What a run writes, rank 0 alone writes.

    Args:
        config: of the whole run.
        ranks: of the run.

    Raises:
        ValueError: the run cannot be divided by the number of processes.
    """
    share = share_cores(config.share(ranks.size), ranks.local_size)
    return share if ranks.is_first else replace(share, videos=False, profile=0)
