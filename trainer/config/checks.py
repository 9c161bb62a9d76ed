"""Checks of numeric options: seeds, and the range of each field."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainer.config.options import about

# Pools take 32-bit seeds, and each seed of a run stands for a block of them
# (envs/pool.py).
MAX_SEED = 20_000


def check_seed(seed: int) -> None:
    """Raises ValueError if the seed is out of range for a run or an evaluation."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be 0 to {MAX_SEED}, got {seed}")


def check_ranges(config: Any) -> None:
    """Checks each number of a dataclass and of its nested dataclasses.

    Raises:
        ValueError: a number is outside the range of its field.
    """
    for field in dataclasses.fields(config):
        value, known = getattr(config, field.name), about(field)
        name = known.name
        if dataclasses.is_dataclass(value):
            check_ranges(value)
            continue
        if known.above is not None and not value > known.above:
            raise ValueError(f"{name} must be above {known.above:g}, got {value}")
        if known.least is not None and not value >= known.least:
            raise ValueError(f"{name} must be at least {known.least:g}, got {value}")
        if known.between is not None:
            least, most = known.between
            if not least <= value <= most:
                raise ValueError(f"{name} must be {least:g} to {most:g}, got {value}")
