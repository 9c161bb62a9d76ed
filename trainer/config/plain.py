"""Configs as plain JSON types, and back."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from trainer.config.options import NONE, Choice, kinds_of
from trainer.config.schema import RunConfig
from trainer.machine.files import write_json

T = TypeVar("T")

# Types of fields, and what a file may have for them.
_PLAIN: dict[Any, tuple[type, ...]] = {
    str: (str,), bool: (bool,), int: (int,), float: (int, float),
}  # fmt: skip


def to_dict(config: Any) -> dict[str, Any]:
    """A config in plain JSON types; a choice is {"kind": "gru", "size": 9} or None."""
    result = {"kind": config.kind} if isinstance(config, Choice) else {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            value = to_dict(value)
        elif isinstance(value, tuple):
            value = list(value)
        result[field.name] = str(value) if isinstance(value, Path) else value
    return result


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The result of `to_dict` with dotted names: learner.lr, learner.optimizer.eps."""
    result: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            if "kind" in value:
                result[prefix + name] = value["kind"]
            rest = {key: inner for key, inner in value.items() if key != "kind"}
            result |= flat(rest, f"{prefix}{name}.")
        else:
            result[prefix + name] = value
    return result


def from_dict(kind: type[T], data: Mapping[str, Any]) -> T:
    """The inverse of `to_dict`; raises ValueError for other keys, kinds and types."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{kind.__name__} must be a table, got {data!a}")
    hints = typing.get_type_hints(kind)
    fields = {field.name for field in dataclasses.fields(cast(Any, kind))}
    unknown = sorted(set(data) - fields)
    if unknown:
        raise ValueError(
            f"{kind.__name__} has no field {', '.join(unknown)}; it has "
            f"{', '.join(sorted(fields))}"
        )
    return kind(**{name: typed(name, hints[name], data[name]) for name in data})


def typed(name: str, hint: Any, value: Any) -> Any:
    """A JSON value converted to the type of a field."""
    kinds = kinds_of(hint)
    if value is None and (NONE in kinds or types.NoneType in typing.get_args(hint)):
        return None
    if kinds:
        table = dict(value) if isinstance(value, Mapping) else {"kind": value}
        word = table.pop("kind", "")
        chosen = kinds.get(str(word))
        if chosen is None:
            raise ValueError(f"unknown kind {word!r}; choose one of {', '.join(kinds)}")
        return from_dict(chosen, table)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_dict(hint, value)
    if hint is Path or Path in typing.get_args(hint):
        return Path(str(value))
    if typing.get_origin(hint) is tuple:  # JSON has no tuples
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} must be a list, got {value!a}")
        items = typing.get_args(hint)[0]
        return tuple(typed(name, items, item) for item in value)
    words = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    if words and value not in words:
        words_text = ", ".join(map(str, words))
        raise ValueError(f"{name} must be one of {words_text}, got {value!a}")
    wanted = _PLAIN.get(hint)
    if wanted and (not isinstance(value, wanted) or type(value) is bool is not hint):
        raise ValueError(f"{name} must be of type {hint.__name__}, got {value!a}")
    return value


def save(config: RunConfig, path: Path, **extra: object) -> None:
    """Writes a config and further facts about the run as JSON, for its owner alone."""
    write_json(path, to_dict(config) | extra, private=True)
