"""The options of many runs: what they share, and those that differ by name.

The name of an option is `lr`, as on the command line, or `learner.lr`.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from trainer.config import flags as run_flags
from trainer.config import shown
from trainer.config.options import Option, flag_of
from trainer.config.plain import to_dict, typed
from trainer.config.schema import RunConfig

# Each run of a search has its own value, or the option only selects other defaults.
_NOT_SEARCHED = ("preset", "seed", "run_dir", "resume")

# The settings of the runs in the result of `setup`.
FLAGS = "trainer flags"


@functools.cache
def all_options() -> dict[str, Option]:
    """Every option that has a flag, such as lr or num_envs."""
    known = run_flags.options().items()
    return {name: option for name, option in known if option.flag}


@functools.cache
def _by_any_name() -> dict[str, Option]:
    """Every option by its name, by its part and name, and by the path of its field."""
    flags = all_options()
    names = {f"{o.part}.{o.name}": o for o in flags.values() if o.part}
    paths = {".".join(o.path): o for o in flags.values()}
    return paths | names | flags


def find(name: str) -> Option:
    """The option with a name: that of its flag, also with its part as a prefix."""
    option = _by_any_name().get(name)
    if option is None:
        last = name.rpartition(".")[2]
        near = difflib.get_close_matches(last, all_options(), 3, 0.4)
        hint = f"similar: {', '.join(near)}" if near else "no name is similar"
        raise ValueError(
            f"there is no option {name!r}; {hint} (all: python -m trainer.run "
            "--help-all)"
        )
    if option.name in _NOT_SEARCHED or option.holds == "secret":
        raise ValueError(
            f"{name} cannot be searched: each run has its own value, or the command "
            "line sets it"
        )
    return option


def apply(config: RunConfig, options: Mapping[str, Any]) -> RunConfig:
    """The config with some options changed."""
    changes: dict[str, Any] = {}
    for name, value in options.items():
        option = find(name)
        changes[option.name] = typed(name, option.hint, value)
    config = run_flags.change(config, **changes)
    config.validate()
    return config


def values_of(config: RunConfig, names: Iterable[str]) -> dict[str, Any]:
    """The values of some options in a config, without unknown names."""
    options, values = _by_any_name(), run_flags.values(config)
    return {name: values[options[name].name] for name in names if name in options}


def that_matter(config: RunConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those that have no effect beside the others.

    A run refuses options without effect, but a search space may contain them.
    """
    config = apply(config, options)
    values = {find(name).name: value for name, value in options.items()}
    useless = run_flags.without_effect(config, values)
    return {n: value for n, value in options.items() if find(n).name not in useless}


def show(value: Any) -> str:
    """A value as text, with 4 digits; a search is less exact."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The changed values, as text."""
    return ", ".join(
        f"{name} {show(value)} -> {show(new[name])}"
        for name, value in old.items()
        if new[name] != value
    )


def flags(options: Mapping[str, Any]) -> str:
    """Options as flags of `python -m trainer.run`."""
    words: list[str] = []
    for name, value in options.items():
        option = find(name).name
        if isinstance(value, (tuple, list)):
            words += [flag_of(option), *map(str, value)]
        else:
            short = float(show(value)) if isinstance(value, float) else value
            words.append(flag_of(option, short))
    return " ".join(words)


def check_base(base: RunConfig) -> None:
    """Raises ValueError for options that cannot be the same for all runs."""
    if base.notify:
        raise ValueError(
            "--notify is for a single run, and this command has many runs; leave it out"
        )
    for name in ("resume", "run_dir"):
        if getattr(base, name) is not None:
            flag = name.replace("_", "-")
            raise ValueError(
                f"--{flag} cannot apply to several runs, because each run has its own "
                "folder; leave it out"
            )


def setup(base: RunConfig, **options: Any) -> dict[str, Any]:
    """The settings that a resumed search must share, as plain JSON types.

    Others may see them: the database of a search may be that of many people.
    """
    everything = {**options, FLAGS: shown.settings(to_dict(base))}
    return dict(json.loads(json.dumps(everything)))


def check_setup(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raises ValueError if two results of `setup` differ."""
    # Version 0.1 wrote whole paths.
    old = {**old, FLAGS: shown.settings(old.get(FLAGS, {}))}
    changed = [key for key, value in new.items() if old.get(key) != value]
    if changed:
        raise ValueError(
            f"{name!r} was begun with another {', '.join(changed)}; choose another "
            "--name, or give the original values"
        )
