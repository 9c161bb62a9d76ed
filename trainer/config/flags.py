"""The options of a run as one flat list, for flags, searches and tests.

Every field of the schema is an option with a unique name. A choice, such as
`learner.optimizer`, is an option whose values are words, and the fields of the
dataclasses behind these words are further options: `muon_lr` is the field `matrix_lr`
of `Muon`. `values` splits a config into options, `build` makes a config from them.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from trainer.config.options import (
    CODE,
    About,
    about,
    flag_of,
    kind_of,
    kinds_of,
    one_of,
    unmet,
)
from trainer.config.schema import RunConfig


class Option(NamedTuple):
    """One option of a run.

    Attributes:
        name: unique, without dashes, such as muon_lr.
        path: of the field: ("learner", "lr"), or of a choice's field
            ("learner", "optimizer", "matrix_lr").
        hint: type of its values; for a choice, a Literal of the words.
        help: what the option does.
        about: its range, needs and other properties.
    """

    name: str
    path: tuple[str, ...]
    hint: Any
    help: str
    about: About

    @property
    def part(self) -> str:
        """env, model, learner, replay, explore or augmentation; "" for RunConfig."""
        return self.path[0] if len(self.path) > 1 else ""


@functools.cache
def options() -> dict[str, Option]:
    """All options by name, in the order of the schema."""
    return {option.name: option for option in _options(RunConfig, ())}


def values(config: RunConfig) -> dict[str, Any]:
    """The value of every option; the default for fields of a kind not chosen."""
    return _values(config)


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


def idle(config: RunConfig, given: Mapping[str, Any]) -> dict[str, str]:
    """Options that have no effect in this config.

    Args:
        config: of the run.
        given: names and values of the options to check.

    Returns:
        An explanation for each option without effect, by name.
    """
    now = values(config.resolved())
    lines: dict[str, str] = {}
    for name, value in given.items():
        known = options()[name].about
        needs = unmet(known.needs, now) if known.needed_by in (None, value) else ()
        if needs:
            wanted = " or ".join(need.text for need in needs)
            has = ", ".join(flag_of(n.option, now[n.option]) for n in needs)
            lines[name] = f"{flag_of(name, value)} is for {wanted}; this run has {has}"
    return lines


def code_of(config: RunConfig) -> dict[str, str]:
    """The options that name code of the user, module:name, with these names."""
    code = [name for name, option in options().items() if option.about.holds == CODE]
    return {n: v for n, v in values(config).items() if n in code and ":" in v}


def _options(kind: type[Any], path: tuple[str, ...]) -> Iterable[Option]:
    hints, texts = typing.get_type_hints(kind), help_of(kind)
    for field in dataclasses.fields(kind):
        hint, known, where = hints[field.name], about(field), (*path, field.name)
        text = texts.get(field.name, "")
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _options(hint, where)
        elif kinds := kinds_of(hint):
            words: Any = Literal.__getitem__(tuple(kinds))
            yield Option(known.name, where, words, text, known)
            yield from _fields_of_kinds(known.name, where, kinds)
        else:
            yield Option(known.name, where, hint, text, known)


def _fields_of_kinds(
    choice: str, path: tuple[str, ...], kinds: Mapping[str, type[Any] | None]
) -> Iterable[Option]:
    """The options of a choice's dataclasses; a shared name is one option."""
    found: dict[str, Option] = {}
    users: dict[str, list[str]] = {}
    for word, kind in kinds.items():
        for option in _options(kind, path) if kind is not None else ():
            found.setdefault(option.name, option)
            users.setdefault(option.name, []).append(word)
    for name, option in found.items():
        needs = ((one_of(choice, *users[name]),), *option.about.needs)
        yield option._replace(about=option.about._replace(needs=needs))


def _values(config: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), about(field).name
        if kinds := kinds_of(hints[field.name]):
            result[name] = kind_of(value)
            for kind in kinds.values():
                if kind is not None:
                    result = _values(kind()) | result
            if value is not None:
                result |= _values(value)
        elif dataclasses.is_dataclass(value):
            result |= _values(value)
        else:
            result[name] = value
    return result


def _build(kind: type[Any], given: Mapping[str, Any]) -> Any:
    made: dict[str, Any] = {}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint, name = hints[field.name], about(field).name
        kinds = kinds_of(hint)
        if kinds:
            word = given.get(name, kind_of(field.default))
            chosen = kinds[word]
            made[field.name] = None if chosen is None else _build(chosen, given)
        elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
            made[field.name] = _build(hint, given)
        elif name in given:
            made[field.name] = given[name]
    return kind(**made)


def help_of(kind: type[Any]) -> dict[str, str]:
    """The docstring under each field of a dataclass, as one line."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for node, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr):
            assert isinstance(node.target, ast.Name)
            text = ast.literal_eval(after.value)
            texts[node.target.id] = " ".join(text.split())
    return texts
