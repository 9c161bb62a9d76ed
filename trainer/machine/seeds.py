"""Seeds of the random generators of a run: one for each purpose.

Generators with the same seed give the same numbers, so that weights, actions and
minibatches would be drawn from one sequence. NumPy's `SeedSequence` derives independent
seeds from one (O'Neill 2015, "Developing a seed_seq alternative").
"""

from __future__ import annotations

import enum

import numpy as np


class Stream(enum.IntEnum):
    """What a generator is for; the numbers are part of the derived seeds."""

    WEIGHTS = 0
    ACTIONS = 1
    MINIBATCHES = 2


def seed_of(seed: int, stream: Stream, rank: int = 0) -> int:
    """The 64-bit seed of one generator of a run.

    Args:
        seed: of the run, at least 0.
        stream: what the generator is for.
        rank: of the process, where each is to draw other numbers.
    """
    key = (int(stream), rank) if rank else (int(stream),)
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    return int(sequence.generate_state(1, np.uint64)[0])
