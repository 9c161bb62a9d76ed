"""Options of a run by name: `lr` as on the command line, or `learner.lr`."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainer.config.schema import RunConfig

# Every run of a search has its own, or they only choose the other defaults.
_NOT_SEARCHED = ("preset", "seed", "run_dir", "resume")


@dataclass(frozen=True)
class Option:
    """A field of `RunConfig` or of one of its parts.

    Attributes:
        path: names of the fields that lead to it, such as ("learner", "lr").
        flag: its name on the command line, without dashes.
        hint: its type.
    """

    path: tuple[str, ...]
    flag: str
    hint: Any

    def get(self, config: RunConfig) -> Any:
        """The option's value."""
        return functools.reduce(getattr, self.path, config)

    def accepts(self, value: object) -> bool:
        """Whether a value has the option's type."""
        origin, arguments = typing.get_origin(self.hint), typing.get_args(self.hint)
        if origin is Literal:
            return value in arguments
        if origin is tuple:
            return isinstance(value, (tuple, list))
        if self.hint is float:
            return type(value) in (int, float)
        return type(value) is self.hint if isinstance(self.hint, type) else True

    def describe(self) -> str:
        """The values that it accepts, for people."""
        if typing.get_origin(self.hint) is Literal:
            return "one of " + ", ".join(map(str, typing.get_args(self.hint)))
        if typing.get_origin(self.hint) is tuple:
            return "a list"
        names = {int: "a whole number", float: "a number", bool: "True or False"}
        return names.get(self.hint, "a string")


@functools.cache
def all_options() -> dict[str, Option]:
    """Every option of a run by its flag, such as lr or num_envs."""
    return {option.flag: option for option in _options(RunConfig, ())}


@functools.cache
def _by_any_name() -> dict[str, Option]:
    """Every option by its flag, and by the dotted path of its field."""
    known = all_options()
    return {".".join(option.path): option for option in known.values()} | known


def _options(kind: type, path: tuple[str, ...]) -> Iterator[Option]:
    hints = typing.get_type_hints(kind)
    for name in (field.name for field in dataclasses.fields(kind)):
        inner = (*path, name)
        if dataclasses.is_dataclass(hints[name]):
            yield from _options(hints[name], inner)
        else:
            # As in ModelConfig: the network's name is --model.
            flag = "model" if inner == ("model", "name") else name
            yield Option(inner, flag, hints[name])


def find(name: str) -> Option:
    """The option of a name: its flag, or the dotted path of its field.

    Raises:
        ValueError: there is no such option, or each run has its own value of it.
    """
    option = _by_any_name().get(name)
    if option is None:
        last = name.rpartition(".")[2]
        near = difflib.get_close_matches(last, all_options(), 3, 0.4)
        hint = f"near names: {', '.join(near)}" if near else "no name is near"
        raise ValueError(
            f"there is no option {name!r}; {hint} (all: python -m trainer.run --help)"
        )
    if option.flag in _NOT_SEARCHED:
        raise ValueError(
            f"{name} cannot be searched: every run has its own, or the command line "
            "gives it"
        )
    return option


def apply(config: RunConfig, options: Mapping[str, Any]) -> RunConfig:
    """The config with other values of some options.

    Args:
        config: to start from.
        options: values by name (`find`).

    Raises:
        ValueError: there is no such option, it does not accept its value, or the
            config does not allow the values beside each other.
    """
    changes: dict[str, Any] = {}
    for name, value in options.items():
        option = find(name)
        if not option.accepts(value):
            raise ValueError(f"{name} is {option.describe()}, got {value!r}")
        part = changes
        for field in option.path[:-1]:
            part = part.setdefault(field, {})
        part[option.path[-1]] = tuple(value) if isinstance(value, list) else value
    config = _replace(config, changes)
    config.validate()
    return config


def _replace(config: Any, changes: Mapping[str, Any]) -> Any:
    """The config with other fields, of its parts where a change is a dictionary."""
    values = {
        name: _replace(getattr(config, name), value)
        if isinstance(value, dict)
        else value
        for name, value in changes.items()
    }
    return dataclasses.replace(config, **values)


def values_of(config: RunConfig, names: Iterable[str]) -> dict[str, Any]:
    """The config's own values of some options; names of no option are left out."""
    known = _by_any_name()
    return {name: known[name].get(config) for name in names if name in known}


def show(value: Any) -> str:
    """A value for people, with 4 digits: a search is less exact."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Which values became which, for people."""
    return ", ".join(
        f"{name} {show(value)} -> {show(new[name])}"
        for name, value in old.items()
        if new[name] != value
    )


def flags(options: Mapping[str, Any]) -> str:
    """Options as flags of `python -m trainer.run`."""
    words: list[str] = []
    for name, value in options.items():
        flag = find(name).flag.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, (tuple, list)):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", show(value)]
    return " ".join(words)
