"""The options of a run as one flat list, for flags, searches and tests.

Every field of the schema is an option with a unique name. A choice, such as
`learner.optimizer`, is an option whose values are words, and the fields of the
dataclasses behind these words are further options: `muon_lr` is the field `matrix_lr`
of `Muon`. `values` splits a config into options, `build` makes a config from them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import docstring_parser

from trainer.config.options import (
    Option,
    flag_of,
    kind_of,
    kinds_of,
    one_of,
    option_of,
)
from trainer.config.schema import RunConfig


@functools.cache
def options() -> dict[str, Option]:
    """All options by name, in the order of the schema."""
    return {option.name: option for option in options_of(RunConfig)}


def values(config: RunConfig) -> dict[str, Any]:
    """The value of every option; the default for fields of a kind not chosen."""
    result = {}
    for option in options().values():
        *parts, field = option.path
        owner: Any = functools.reduce(getattr, parts, config)
        has_field = isinstance(owner, option.owners)
        value = getattr(owner, field) if has_field else option.default
        result[option.name] = kind_of(value) if option.is_choice else value
    return result


def build(given: Mapping[str, Any]) -> RunConfig:
    """The inverse of `values`; missing options have their defaults."""
    unknown = sorted(set(given) - set(options()))
    if unknown:
        raise TypeError(f"no option {', '.join(unknown)}")
    config: RunConfig = _build(RunConfig, given)
    return config


def change(config: RunConfig, **given: Any) -> RunConfig:
    """A config with some options changed."""
    return build(values(config) | given)


def without_effect(config: RunConfig, given: Mapping[str, Any]) -> dict[str, str]:
    """An explanation for each of some options that has no effect in a config."""
    now = values(config.resolved())
    lines: dict[str, str] = {}
    for name, value in given.items():
        option = options()[name]
        if option.needed_by not in (None, value):
            continue
        if need := next((need for need in option.needs if not need.met(now)), None):
            flag, has = flag_of(name, value), (flag_of(n, now[n]) for n in need.options)
            lines[name] = f"{flag} is for {need.text}; this run has {', '.join(has)}"
    return lines


def code_of(config: RunConfig) -> dict[str, str]:
    """The options that name code of the user, module:name, with these names."""
    code = [option.name for option in options().values() if option.holds == "code"]
    return {n: v for n, v in values(config).items() if n in code and ":" in v}


def options_of(kind: type[Any], path: tuple[str, ...] = ()) -> Iterable[Option]:
    """The fields of a dataclass as options, of a command or of a part of a run."""
    hints = typing.get_type_hints(kind, include_extras=True)
    helps: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        for text in docstring_parser.parse_from_object(base).params:
            helps[text.arg_name] = " ".join(str(text.description).split())
    # The fields of the class itself before those that it inherits.
    first = inspect.get_annotations(kind)
    for field in sorted(dataclasses.fields(kind), key=lambda f: f.name not in first):
        hint, declared = hints[field.name], option_of(field)
        where, kinds = (*path, field.name), kinds_of(hint)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from options_of(hint, where)
            continue
        is_path = hint is Path or Path in typing.get_args(hint)
        yield dataclasses.replace(
            declared,
            path=where,
            owners=(kind,),
            is_choice=bool(kinds),
            hint=Literal.__getitem__(tuple(kinds)) if kinds else hint,
            help=helps.get(field.name, ""),
            holds="path" if is_path else declared.holds,
        )
        yield from _options_of_kinds(declared.name, where, kinds)


def _options_of_kinds(
    choice: str, path: tuple[str, ...], kinds: Mapping[str, type[Any] | None]
) -> Iterable[Option]:
    """The options of a choice's dataclasses; a shared name is one option."""
    merged: dict[str, Option] = {}
    for kind in filter(None, kinds.values()):
        for option in options_of(kind, path):
            first = merged.setdefault(option.name, option)
            owners = (*first.owners, kind)
            merged[option.name] = dataclasses.replace(first, owners=owners)
    for option in merged.values():
        words = [word for word, kind in kinds.items() if kind in option.owners]
        needs = (one_of(choice, *words), *option.needs)
        yield dataclasses.replace(option, needs=needs)


def _build(kind: type[Any], given: Mapping[str, Any]) -> Any:
    made: dict[str, Any] = {}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint, name = hints[field.name], option_of(field).name
        kinds = kinds_of(hint)
        if kinds:
            hint = kinds[given.get(name, kind_of(field.default))]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            made[field.name] = _build(hint, given)
        elif kinds or name in given:
            made[field.name] = None if kinds else given[name]
    return kind(**made)
