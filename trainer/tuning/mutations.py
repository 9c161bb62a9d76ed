"""Options that population-based training changes, and how (Jaderberg et al. 2017)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.config.schema import RunConfig
from trainer.tuning import options

# Probability that `explore` draws a new value; 0 to 0.25 in the tasks of the paper.
_RESAMPLE = 0.25


@dataclass(frozen=True)
class Range:
    """A number between two bounds, both included.

    Attributes:
        low: the lower bound.
        high: the upper bound.
        log: draw the logarithm uniformly, and change values by a factor.
    """

    low: float
    high: float
    log: bool = False

    def __contains__(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    def draw(self, rng: random.Random) -> float:
        """A value from anywhere in the range."""
        if self.log:
            return math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return rng.uniform(self.low, self.high)

    def perturb(self, value: float, rng: random.Random) -> float:
        """A value a little below or above, within the bounds.

        With `log` a factor of 0.8 or 1.25 (1.2 in the paper, which does not undo 0.8),
        and otherwise a fifth of the range: a factor of 0.8 would move a gamma of 0.93
        out of every sensible range.
        """
        up = rng.random() < 0.5
        if self.log:
            value *= 1.25 if up else 0.8
        else:
            value += (self.high - self.low) / 5 * (1 if up else -1)
        return min(max(value, self.low), self.high)


# A list is ordered: a value changes to a neighbour.
Mutation = Range | Sequence[Any]
Mutations = Mapping[str, Mutation]

# Ranges around the values of the CPU recipe.
DEFAULT: dict[str, Mutation] = {
    "lr": Range(3e-4, 3e-3, log=True),
    "muon_lr": Range(0.01, 0.1, log=True),
    "gamma": Range(0.88, 0.99),
    "lam": Range(0.8, 1.0),
    "entropy": Range(0.001, 0.03, log=True),
    "clip_range": Range(0.1, 0.3),
    "epochs": [1, 2, 3, 4],
    "minibatch_size": [256, 512, 1024],
}


def check(mutations: Any, base: RunConfig) -> None:
    """Checks a table of mutations."""
    if not (isinstance(mutations, Mapping) and mutations):
        raise ValueError(
            f"mutations are a dictionary of options, got {type(mutations).__name__}"
        )
    for name, mutation in mutations.items():
        option = options.find(name)
        if option.part not in ("learner", "replay") or option.name == "optimizer":
            raise ValueError(
                f"{name} cannot change when weights move between members; leave it "
                "out, and search it with python -m trainer.search"
            )
        for value in _ends(name, mutation):
            options.apply(base, {name: value})


def _ends(name: str, mutation: Any) -> Sequence[Any]:
    """The values of a mutation that are worth a check."""
    if isinstance(mutation, Range):
        if not mutation.low < mutation.high or (mutation.log and mutation.low <= 0):
            raise ValueError(f"{name}: low must be below high, got {mutation}")
        return mutation.low, mutation.high
    if not isinstance(mutation, (list, tuple)) or len(mutation) < 2:
        raise ValueError(
            f"{name}: a mutation is a Range or a list of two or more values, got "
            f"{mutation!r}"
        )
    return mutation


def draw(mutations: Mutations, rng: random.Random) -> dict[str, Any]:
    """Values from anywhere in the ranges."""
    return {name: _draw(mutation, rng) for name, mutation in mutations.items()}


def explore(
    mutations: Mutations, values: Mapping[str, Any], rng: random.Random
) -> dict[str, Any]:
    """Values near the given ones; some are new draws."""
    return {
        name: _draw(mutation, rng)
        if rng.random() < _RESAMPLE
        else _perturb(mutation, values[name], rng)
        for name, mutation in mutations.items()
    }


def _draw(mutation: Mutation, rng: random.Random) -> Any:
    return mutation.draw(rng) if isinstance(mutation, Range) else rng.choice(mutation)


def _perturb(mutation: Mutation, value: Any, rng: random.Random) -> Any:
    if isinstance(mutation, Range):
        return mutation.perturb(value, rng)
    where = mutation.index(value) + rng.choice((-1, 1))
    return mutation[min(max(where, 0), len(mutation) - 1)]
