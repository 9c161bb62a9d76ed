"""Seeds of the random generators of a run: one for each purpose.

Generators with the same seed would draw weights, actions and minibatches from the same
sequence. NumPy's `SeedSequence` derives independent seeds from one seed (O'Neill 2015,
"Developing a seed_seq alternative").
"""

from __future__ import annotations

import enum

import numpy as np


class Stream(enum.IntEnum):
    """The purpose of a generator; its number is part of the derived seed."""

    WEIGHTS = 0
    ACTIONS = 1
    MINIBATCHES = 2


def seed_of(seed: int, stream: Stream, rank: int = 0) -> int:
    """The 64-bit seed of one generator of a run."""
    key = (int(stream), rank) if rank else (int(stream),)
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    return int(sequence.generate_state(1, np.uint64)[0])
