"""What a number of the options may be: seeds, and the range of each field."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainer.config.options import about

# Pools take seeds of 32 bits; a run uses a block of them per seed (envs/pool.py).
MAX_SEED = 20_000


def check_seed(seed: int) -> None:
    """Raises ValueError unless a run or an evaluation can have this seed."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be 0 to {MAX_SEED}, got {seed}")


def check_ranges(config: Any) -> None:
    """Checks each number of a dataclass, and of the dataclasses in its fields.

    Raises:
        ValueError: a number outside of the range that its field has.
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
