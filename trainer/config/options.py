"""What the schema says of an option beside its type, its default and its help.

A field of the schema is `option(default, ...)` where there is more to say: the range of
its number, another option without which it does not matter, another name on the command
line, or that it has no flag. A field whose type is a union of dataclasses is a choice:
one flag with a word for each of them, and their fields are further flags.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

# In the metadata of a dataclass field.
_KEY = "option"

# The word for None among the kinds of a choice.
NONE = "none"


class Need(NamedTuple):
    """Another option, and the values of it beside which an option matters.

    Attributes:
        option: its name.
        text: those values, for people, such as "--memory gtrxl".
        met: whether a value is one of them.
    """

    option: str
    text: str
    met: Callable[[Any], bool]


# Of each tuple at least one must be met.
Needs = tuple[tuple[Need, ...], ...]


class About(NamedTuple):
    """What a field is as an option; see `option`."""

    name: str
    flag: bool = True
    needs: Needs = ()
    least: float | None = None
    above: float | None = None
    between: tuple[float, float] | None = None
    needed_by: object = None


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
) -> Any:
    """A dataclass field with what is known of it as an option.

    Args:
        default: of the field.
        name: of the option, by default the field's.
        flag: False for a field that only Python sets.
        needs: what must be so for the option to matter: all of these, and of a tuple
            among them any one.
        needed_by: the one value that does not matter without `needs`; None: all values.
        least: smallest number.
        above: number that the value must exceed.
        between: smallest and largest number.
    """
    some = (needs,) if isinstance(needs, Need) else needs
    ways = tuple((need,) if isinstance(need, Need) else need for need in some)
    known = About(name, flag, ways, least, above, between, needed_by)
    return dataclasses.field(default=default, metadata={_KEY: known})


def about(field: dataclasses.Field[Any]) -> About:
    """What is known of a field as an option."""
    known: About = field.metadata.get(_KEY, About(field.name))
    return known if known.name else known._replace(name=field.name)


def one_of(option: str, *values: str) -> Need:
    """The need of an option that it has one of these values."""
    *others, last = values
    words = f"{', '.join(others)} or {last}" if others else last
    return Need(option, f"{flag_of(option)} {words}", lambda value: value in values)


def in_use(option: str) -> Need:
    """The need of an option that it is on, above 0, or not empty."""
    return Need(option, flag_of(option), bool)


def flag_of(name: str, value: object = None) -> str:
    """An option as on the command line, with its value if that is given."""
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
    """The first need that no value meets, with its alternatives; () if there is none.

    Args:
        needs: of an option.
        values: of all options, by name.
    """
    for ways in needs:
        if not any(way.met(values[way.option]) for way in ways):
            return ways
    return ()


def kinds_of(hint: Any) -> dict[str, type[Any] | None]:
    """The dataclasses of a choice by their words; {} if a type is no choice.

    Args:
        hint: type of a field. A choice is a union of dataclasses, each with its word
            in `kind`, and None where nothing may be chosen.
    """
    if not isinstance(hint, types.UnionType):
        return {}
    kinds = [None if kind is types.NoneType else kind for kind in typing.get_args(hint)]
    if not all(kind is None or dataclasses.is_dataclass(kind) for kind in kinds):
        return {}
    return {kind_of(kind): cast("type[Any] | None", kind) for kind in kinds}


def kind_of(value: Any) -> str:
    """The word of a chosen dataclass, or of one of its objects."""
    return NONE if value is None else str(value.kind)
