"""Properties of an option beyond its type, default and help.

A field of the schema is `option(default, ...)` if it has such a property: a range,
another option that it needs to have an effect, another name on the command line, or no
flag. A field whose type is a union of dataclasses is a choice: one flag with a word for
each dataclass, whose fields are further flags.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

# In the metadata of a dataclass field.
_KEY = "option"

# The word that stands for None in a choice.
NONE = "none"

# What an option holds that not everybody may see: a secret (such as a URL with a
# password), a path of this machine, the name of code (module:name), or flags.
Holds = Literal["", "secret", "path", "code", "flags"]
SECRET: Final = "secret"
PATH: Final = "path"
CODE: Final = "code"
FLAGS: Final = "flags"


class Need(NamedTuple):
    """Another option, and those of its values with which an option has an effect.

    Attributes:
        option: name of the other option.
        text: the values as a user reads them, such as "--memory gtrxl".
        met: whether a value is one of the values.
    """

    option: str
    text: str
    met: Callable[[Any], bool]


# At least one Need of each tuple must be met.
Needs = tuple[tuple[Need, ...], ...]


class About(NamedTuple):
    """The properties of an option; see `option`."""

    name: str
    flag: bool = True
    needs: Needs = ()
    least: float | None = None
    above: float | None = None
    between: tuple[float, float] | None = None
    needed_by: object = None
    holds: Holds = ""


def option(
    default: Any,
    *,
    name: str = "",
    flag: bool = True,
    needs: Need | Sequence[Need | tuple[Need, ...]] = (),
    needed_by: object = None,
    least: float | None = None,
    above: float | None = None,
    between: tuple[float, float] | None = None,
    holds: Holds = "",
) -> Any:
    """A dataclass field with the properties of an option.

    Args:
        default: of the field.
        name: of the option, by default the field's.
        flag: False for a field that only Python sets.
        needs: what the option needs to have an effect: all of these, and of each tuple
            any one.
        needed_by: the only value that has no effect without `needs`; None: all values.
        least: smallest number.
        above: number that the value must exceed.
        between: smallest and largest number.
        holds: what others may not see of it (`shown.py`), or code that it names. A
            field of type Path holds a path.
    """
    some = (needs,) if isinstance(needs, Need) else needs
    ways = tuple((need,) if isinstance(need, Need) else need for need in some)
    known = About(name, flag, ways, least, above, between, needed_by, holds)
    return dataclasses.field(default=default, metadata={_KEY: known})


def about(field: dataclasses.Field[Any]) -> About:
    """The properties of a field as an option."""
    known: About = field.metadata.get(_KEY, About(field.name))
    return known if known.name else known._replace(name=field.name)


def one_of(option: str, *values: str) -> Need:
    """The need that an option has one of these values."""
    *others, last = values
    words = f"{', '.join(others)} or {last}" if others else last
    return Need(option, f"{flag_of(option)} {words}", lambda value: value in values)


def in_use(option: str) -> Need:
    """The need that an option is on, above 0, or not empty."""
    return Need(option, flag_of(option), bool)


def flag_of(name: str, value: object = None) -> str:
    """An option as on the command line, with its value if one is given."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    if value is None:
        return f"--{flag}"
    if isinstance(value, tuple | list):
        return f"--{flag} {','.join(map(str, value)) or NONE}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"--{flag} {text}"


def unmet(needs: Needs, values: Mapping[str, Any]) -> tuple[Need, ...]:
    """The first unmet need, with its alternatives; () if all needs are met.

    Args:
        needs: of an option.
        values: of all options, by name.
    """
    for ways in needs:
        if not any(way.met(values[way.option]) for way in ways):
            return ways
    return ()


def kinds_of(hint: Any) -> dict[str, type[Any] | None]:
    """The dataclasses of a choice by their words; {} if a type is not a choice.

    Args:
        hint: type of a field. A choice is a union of dataclasses, each with its word
            in `kind`, and of None if the choice may be empty.
    """
    if not isinstance(hint, types.UnionType):
        return {}
    kinds = [None if kind is types.NoneType else kind for kind in typing.get_args(hint)]
    if not all(kind is None or dataclasses.is_dataclass(kind) for kind in kinds):
        return {}
    return {kind_of(kind): cast("type[Any] | None", kind) for kind in kinds}


def kind_of(value: Any) -> str:
    """The word of a chosen dataclass, or of an instance of one."""
    return NONE if value is None else str(value.kind)
