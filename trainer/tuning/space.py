"""Ranges of config fields, read from a TOML file, for search and population.

One table per field, named as on the command line or with its part in front:

    [lr]                      # or [learner.lr]
    low = 3e-4
    high = 3e-3
    log = true                # draw its logarithm uniformly

    [epochs]
    low = 1
    high = 4                  # whole numbers for a whole-number field
    step = 1                  # optional: only every so many

    [optimizer]
    choices = ["adam", "muon"]

This module knows nothing of Optuna or torch.
"""

from __future__ import annotations

import difflib
import json
import math
import random
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainer.config import flags as run_flags
from trainer.config.checks import check_ranges
from trainer.config.plain import to_dict
from trainer.config.schema import RunConfig

DEFAULT_SPACE = Path(__file__).with_name("search_space.toml")

Value = bool | int | float | str | tuple[int, ...]

# Whoever searches sets these, or they only say where defaults come from.
_NOT_SEARCHED = ("preset", "seed", "run_dir", "resume")

# Chance that `explore` draws a value anew; the paper's tasks have 0 to .25.
_RESAMPLE = 0.25

_KEYS = {"low", "high", "log", "step", "choices"}


@dataclass(frozen=True)
class Field:
    """A config field.

    Attributes:
        part: env, model, learner or replay; "" for RunConfig itself.
        flag: on the command line, without dashes.
        hint: its type.
    """

    part: str
    flag: str
    hint: Any

    def get(self, config: RunConfig) -> Any:
        """The field's value."""
        return run_flags.values(config)[self.flag]

    def set(self, config: RunConfig, value: Value) -> RunConfig:
        """The config with another value."""
        return run_flags.change(config, **{self.flag: value})

    def takes(self, value: object) -> bool:
        """Whether a value has the field's type."""
        if typing.get_origin(self.hint) is Literal:
            return value in typing.get_args(self.hint)
        if typing.get_origin(self.hint) is tuple:
            return isinstance(value, tuple) and all(type(v) is int for v in value)
        if self.hint is float:
            return type(value) in (int, float)
        return type(value) is self.hint

    def describe(self) -> str:
        """What it takes, for people."""
        if typing.get_origin(self.hint) is Literal:
            return "one of " + ", ".join(map(str, typing.get_args(self.hint)))
        if typing.get_origin(self.hint) is tuple:
            return "lists of whole numbers"
        names = {int: "whole numbers", float: "numbers", bool: "true or false"}
        return names.get(self.hint, "strings")


@dataclass(frozen=True)
class Numbers:
    """A field between two bounds, both included."""

    field: Field
    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def whole(self) -> bool:
        """Whether its values are whole numbers."""
        return self.field.hint is int

    @property
    def ends(self) -> tuple[Value, ...]:
        """Values that stand for all, when they are checked."""
        return (self.low, self.high)

    def __contains__(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    def draw(self, rng: random.Random) -> Value:
        """A value from anywhere in the range."""
        if self.log:
            return self._nearest(
                math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
            )
        return self._nearest(rng.uniform(self.low, self.high))

    def perturb(self, value: Any, rng: random.Random) -> Value:
        """A value a little below or above, within the bounds.

        That is times .8 or 1.25 (Jaderberg et al. 2017 have 1.2, which does not undo
        the other) where logarithms are drawn, and elsewhere a fifth of the range: a
        gamma of .93 times .8 would leave every range that makes sense. At least one
        whole number or step.
        """
        up = rng.random() < 0.5
        width = (self.high - self.low) / 5
        change = value * (1.25 if up else 0.8) - value
        if not self.log:
            change = width if up else -width
        least = self.step or (1 if self.whole else 0)
        if abs(change) < least:
            change = least if up else -least
        return self._nearest(value + change)

    def _nearest(self, value: float) -> Value:
        if self.step:
            value = self.low + round((value - self.low) / self.step) * self.step
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else value


@dataclass(frozen=True)
class Choices:
    """A field with one of some values."""

    field: Field
    choices: tuple[Value, ...]

    @property
    def ends(self) -> tuple[Value, ...]:
        """Values that stand for all, when they are checked."""
        return self.choices

    def __contains__(self, value: Any) -> bool:
        return value in self.choices

    def draw(self, rng: random.Random) -> Value:
        """Any of the values."""
        return rng.choice(self.choices)

    def perturb(self, value: Any, rng: random.Random) -> Value:
        """A neighbour in the list: its order may mean something."""
        where = self.choices.index(value) + rng.choice((-1, 1))
        return self.choices[min(max(where, 0), len(self.choices) - 1)]


Range = Numbers | Choices
Space = dict[str, Range]


def config_fields() -> dict[str, Field]:
    """Every config field with a flag by this flag, such as lr or num_envs."""
    return {
        option.name: Field(option.part, option.name, option.hint)
        for option in run_flags.options().values()
        if option.about.flag
    }


def read_space(path: Path | None, base: RunConfig) -> Space:
    """Reads and checks a space file.

    Args:
        path: the file; None: the one of this package.
        base: config that its values are checked with, one at a time.

    Returns:
        Ranges by flag, in the file's order.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no TOML, or names an unknown field, a wrong type, an empty
            range, or a value that the field does not take.
    """
    path = path or DEFAULT_SPACE
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise OSError(
            f"cannot read the space file {path} ({error.strerror or error})"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    space: Space = {}
    known = config_fields()
    parts = {field.part for field in known.values()} - {""}
    for name, table in _flat(tables, parts):
        field = _find(known, name, path)
        if field.flag in space:
            raise ValueError(f"{path}: {field.flag} has two ranges; keep one")
        try:
            space[field.flag] = _range(field, table)
            _check_values(space[field.flag], base)
        except ValueError as error:
            raise ValueError(f"{path}: [{name}]: {error}") from error
    if not space:
        raise ValueError(f"{path} has no range; README has an example")
    return space


def _flat(tables: Mapping[str, Any], parts: set[str]) -> list[tuple[str, Any]]:
    """Tables by name; those of a part, [learner.lr], with the part in front."""
    result: list[tuple[str, Any]] = []
    for name, table in tables.items():
        nested = isinstance(table, dict) and all(
            isinstance(value, dict) for value in table.values()
        )
        if name in parts and nested:
            result += [(f"{name}.{inner}", value) for inner, value in table.items()]
        else:
            result.append((name, table))
    return result


def _find(known: Mapping[str, Field], name: str, path: Path) -> Field:
    """The field of a name with or without its part."""
    for field in known.values():
        if name in (field.flag, f"{field.part}.{field.flag}"):
            if field.flag in _NOT_SEARCHED:
                raise ValueError(
                    f"{path}: {name} cannot be searched: every trial gets its own, or "
                    "it is given on the command line"
                )
            return field
    near = difflib.get_close_matches(name.rpartition(".")[2], known, n=3, cutoff=0.4)
    hint = f"near names: {', '.join(near)}" if near else "no name is near"
    raise ValueError(
        f"{path}: there is no config field {name!r}; {hint} (all: python -m "
        "trainer.run --help-all)"
    )


def _range(field: Field, table: Any) -> Range:
    """A range from its table.

    Raises:
        ValueError: what is wrong with it.
    """
    if not isinstance(table, dict):
        raise ValueError("expected a table with low and high, or with choices")
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise ValueError(
            f"unknown key {', '.join(unknown)}; a range has low, high, log and step, "
            "or choices"
        )
    if "choices" in table:
        return _choices(field, table)
    if field.hint not in (int, float):
        raise ValueError(
            f"the field takes {field.describe()}: give choices, not low and high"
        )
    missing = [key for key in ("low", "high") if key not in table]
    if missing:
        raise ValueError(f"{' and '.join(missing)} missing")
    for key in ("low", "high", "step"):
        if key in table and not field.takes(table[key]):
            raise ValueError(
                f"{key} must be among the {field.describe()}, got {table[key]!r}"
            )
    numbers = Numbers(field, **table)
    if not isinstance(numbers.log, bool):
        raise ValueError(f"log must be true or false, got {numbers.log!r}")
    if not numbers.low < numbers.high:
        raise ValueError(
            f"the range is empty: low={numbers.low:g} must be below "
            f"high={numbers.high:g}"
        )
    if numbers.log and numbers.low <= 0:
        raise ValueError(f"log needs low above 0, got {numbers.low:g}")
    if numbers.log and numbers.step is not None:
        raise ValueError("log and step exclude each other; leave one out")
    if numbers.step is not None and not 0 < numbers.step <= numbers.high - numbers.low:
        raise ValueError(
            f"step must be above 0 and fit between low and high, got {numbers.step:g}"
        )
    return numbers


def _choices(field: Field, table: dict[str, Any]) -> Choices:
    given = table["choices"]
    if len(table) > 1 or not isinstance(given, list):
        raise ValueError("choices is a list, and excludes low, high, log and step")
    values = tuple(tuple(v) if isinstance(v, list) else v for v in given)
    wrong = [value for value in values if not field.takes(value)]
    if wrong:
        raise ValueError(f"the field takes {field.describe()}, got {wrong[0]!r}")
    if len(set(values)) < 2 or len(set(values)) < len(values):
        raise ValueError(f"choices must be two or more different values, got {given}")
    return Choices(field, values)


def _check_values(some: Range, base: RunConfig) -> None:
    """Raises ValueError for values that the field never takes."""
    for value in some.ends:
        check_ranges(some.field.set(base, value))


def apply(config: RunConfig, space: Space, values: Mapping[str, Any]) -> RunConfig:
    """The config with values from a space.

    Args:
        config: to start from.
        space: where the values are from.
        values: by flag.
    """
    given = {space[flag].field.flag: value for flag, value in values.items()}
    return run_flags.change(config, **given)


def defaults(config: RunConfig, space: Space) -> dict[str, Value]:
    """The config's own values, by flag, as far as they lie in the space."""
    own = {flag: some.field.get(config) for flag, some in space.items()}
    return {flag: value for flag, value in own.items() if value in space[flag]}


def explore(
    space: Space, values: Mapping[str, Any], rng: random.Random
) -> dict[str, Value]:
    """Values near others, some drawn anew (Jaderberg et al. 2017)."""
    return {
        flag: some.draw(rng)
        if rng.random() < _RESAMPLE
        else some.perturb(values[flag], rng)
        for flag, some in space.items()
    }


def check_base(base: RunConfig) -> None:
    """Raises ValueError for options that every run of a search has for itself."""
    for name in ("resume", "run_dir"):
        if getattr(base, name) is not None:
            flag = name.replace("_", "-")
            raise ValueError(
                f"--{flag} cannot hold for several runs, each has a folder of its own; "
                "leave it out"
            )


def check_flags(flags: Sequence[str], instead: Mapping[str, str]) -> None:
    """Raises ValueError for a flag behind `--` that would be overruled.

    Args:
        flags: of the trainer, as given for all runs.
        instead: flags that are not among those, and what to give before `--`.
    """
    for flag in flags:
        name = flag.split("=")[0].replace("_", "-")
        if name in instead:
            raise ValueError(
                f"{name} behind -- would be overruled; give {instead[name]} before --"
            )


def setup(base: RunConfig, space: Space, **options: Any) -> dict[str, Any]:
    """What must stay the same when a search goes on, as plain JSON types."""
    ranges = {flag: repr(some) for flag, some in space.items()}
    everything = {**options, "space": ranges, "trainer flags": to_dict(base)}
    result: dict[str, Any] = json.loads(json.dumps(everything))
    return result


def check_setup(name: str, known: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raises ValueError where two results of `setup` differ."""
    changed = [key for key, value in new.items() if known.get(key) != value]
    if changed:
        raise ValueError(
            f"{name!r} was begun with another {', '.join(changed)}; choose another "
            "--name, or give what it was begun with"
        )


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags before and behind "--", which are those of the trainer."""
    args = list(argv)
    where = args.index("--") if "--" in args else len(args)
    return args[:where], args[where + 1 :]


def show(value: Any) -> str:
    """A value for people: 4 digits, which is more than a search knows."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Which values became which, for people."""
    return ", ".join(
        f"{name} {show(value)} -> {show(new[name])}"
        for name, value in old.items()
        if new[name] != value
    )


def flags(values: Mapping[str, Any]) -> str:
    """Values as flags of `python -m trainer.run`."""
    words: list[str] = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", show(value)]
    return " ".join(words)
