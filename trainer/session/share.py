"""The share of a run that one of several processes has."""

from __future__ import annotations

from dataclasses import replace

from trainer.config.presets import share_cores
from trainer.config.schema import RunConfig
from trainer.machine.ranks import Ranks


def share_of(config: RunConfig, ranks: Ranks) -> RunConfig:
    """The config that a process builds its part of a run from.

    The processes of a machine share its cores, unless options give the number of
    threads. Only rank 0 writes files.
    """
    share = share_cores(config.share(ranks.size), ranks.local_size)
    return share if ranks.is_first else replace(share, videos=False, profile=0)
