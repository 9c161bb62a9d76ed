"""How a field of the schema is declared as an option, and the range of its numbers.

A field is `option(default, ...)` if it has more properties than its type, its default
and its help, which is the text under it. A field whose type is a union of `Choice`s is
one flag with a word for each of them, whose fields are further flags.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

# Pools take 32-bit seeds, and each seed of a run stands for a block of them
# (envs/pool.py).
MAX_SEED = 20_000

# The word that stands for None in a choice.
NONE = "none"

# What an option holds that not everybody may see (`shown.py`): a secret (such as a URL
# with a password), a path of this machine, the name of code (module:name), or flags.
Holds = Literal["", "secret", "path", "code", "flags"]


class Need(NamedTuple):
    """What an option needs to have an effect: values of one of some other options."""

    options: tuple[str, ...]
    text: str  # the values as a user reads them, such as "--memory gtrxl"
    met: Callable[[Mapping[str, Any]], bool]  # takes the values of all options by name


class Choice:
    """A dataclass that an option may choose by a word, the name of the class."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.lower()


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a run.

    Attributes:
        name: unique, without dashes, such as muon_lr.
        flag: False for a field that only Python sets.
        needs: what the option needs to have an effect.
        needed_by: the only value that has no effect without `needs`; None: all values.
        least: smallest number.
        above: number that the value must exceed.
        between: smallest and largest number.
        hint: type of its values; for a choice, a Literal of the words.
        path: of the field: ("learner", "lr"), or of a choice's field
            ("learner", "optimizer", "matrix_lr").
        owners: the dataclasses with this field.
    """

    default: Any = None
    name: str = ""
    flag: bool = True
    needs: tuple[Need, ...] = ()
    needed_by: object = None
    least: float | None = None
    above: float | None = None
    between: tuple[float, float] | None = None
    holds: Holds = ""
    hint: Any = None
    is_choice: bool = False
    help: str = ""
    path: tuple[str, ...] = ()
    owners: tuple[type[Any], ...] = ()

    @property
    def part(self) -> str:
        """env, model, learner, replay, explore or augmentation; "" for RunConfig."""
        return self.path[0] if len(self.path) > 1 else ""


def option(default: Any, **properties: Any) -> Any:
    """A dataclass field with properties of `Option`."""
    declared = Option(default, **properties)
    return dataclasses.field(default=default, metadata={"option": declared})


def option_of(field: dataclasses.Field[Any]) -> Option:
    """A field as an option."""
    declared: Option = field.metadata.get("option", Option(field.default))
    return dataclasses.replace(declared, name=declared.name or field.name)


def one_of(option: str, *values: str) -> Need:
    """The need that an option has one of these values."""
    *others, last = values
    words = f"{', '.join(others)} or {last}" if others else last
    text = f"{flag_of(option)} {words}"
    return Need((option,), text, lambda run: run[option] in values)


def in_use(option: str) -> Need:
    """The need that an option is on, above 0, or not empty."""
    return Need((option,), flag_of(option), lambda run: bool(run[option]))


def any_of(*needs: Need) -> Need:
    """The need that one of several is met."""
    return Need(
        tuple(name for need in needs for name in need.options),
        " or ".join(need.text for need in needs),
        lambda run: any(need.met(run) for need in needs),
    )


def flag_of(name: str, value: object = None) -> str:
    """An option as on the command line, with its value if one is given."""
    flag = name.replace("_", "-")
    if value is None or isinstance(value, bool):
        return f"--no-{flag}" if value is False else f"--{flag}"
    if isinstance(value, tuple | list):
        return f"--{flag} {','.join(map(str, value)) or NONE}"
    return f"--{flag} {value:g}" if isinstance(value, float) else f"--{flag} {value}"


def kinds_of(hint: Any) -> dict[str, type[Choice] | None]:
    """The choices of a type by their words, and None if it may be; {}: no choices."""
    members = [kind for kind in typing.get_args(hint) if isinstance(kind, type)]
    kinds = {kind.kind: kind for kind in members if issubclass(kind, Choice)}
    return kinds | ({NONE: None} if kinds and types.NoneType in members else {})


def kind_of(value: Any) -> str:
    """The word of a choice, or of an instance of one."""
    return NONE if value is None else str(value.kind)


def check_seed(seed: int) -> None:
    """Raises ValueError if the seed is out of range for a run or an evaluation."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be 0 to {MAX_SEED}, got {seed}")


def check_ranges(config: Any) -> None:
    """Raises ValueError if a number in a config is outside the range of its field."""
    for field in dataclasses.fields(config):
        value, option = getattr(config, field.name), option_of(field)
        name, above, least = option.name, option.above, option.least
        if dataclasses.is_dataclass(value):
            check_ranges(value)
        elif above is not None and not value > above:
            raise ValueError(f"{name} must be above {above:g}, got {value}")
        elif least is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least:g}, got {value}")
        elif option.between and not option.between[0] <= value <= option.between[1]:
            first, last = option.between
            raise ValueError(f"{name} must be {first:g} to {last:g}, got {value}")
