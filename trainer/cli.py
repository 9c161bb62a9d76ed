"""The command line of a run, with its defaults, and code shared by all commands."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

from trainer.config import flags
from trainer.config.options import CODE
from trainer.config.presets import choose_preset, for_algorithm, for_levels, preset
from trainer.config.renamed import check_names
from trainer.config.schema import EnvConfig, RunConfig
from trainer.config.tasks import (
    game_levels,
    game_of,
    own_levels,
    played,
    split_levels,
)
from trainer.machine.device import choose_device
from trainer.machine.process import (
    checked_stdout,
    complain,
    open_streams,
    raise_on_signal,
    signal_of,
)
from trainer.session import locate

Config = TypeVar("Config")

# Groups of the options that --help shows.
_EVERYDAY = {
    "game": "task levels test_levels obs action_set frame_skip stack_num starts",
    "network": "model memory memory_size",
    "learning": "loss optimizer lr gamma epochs unrolls_per_batch minibatch_size "
    "entropy replay_share",
    "hardware": "preset device num_envs num_threads mode lag",
    "run": "seed max_steps max_seconds stop_when_solved run_dir resume log_seconds "
    "videos dashboard",
}
# Titles of the groups that only --help-all shows, by the part of the schema.
_MORE = {
    "env": "environments",
    "model": "more_network",
    "learner": "more_learning",
    "replay": "replay",
    "explore": "exploration",
    "augmentation": "augmentation",
    "": "more_run",
}


def main_of(
    kind: type[Config],
    work: Callable[[Config], object],
    name: str,
    description: str | None,
    argv: Sequence[str] | None,
    renamed: Mapping[str, str] = MappingProxyType({}),
    interrupted: str = "",
) -> int:
    """Reads the options of a command and runs it."""
    open_streams()
    prog = f"python -m trainer.{name}"
    args = sys.argv[1:] if argv is None else argv
    if error := renamed_error(args, renamed) or _twice_error(args, kind):
        complain(error)
        return 2
    try:
        with raise_on_signal(), checked_stdout() as stdout:
            given: Any = tyro.cli(
                _with_help(kind), args=argv, prog=prog, description=description
            )
            names = [field.name for field in dataclasses.fields(given)]
            work(kind(**{name: getattr(given, name) for name in names}))
            stdout.flush()
    except (ValueError, RuntimeError, OSError, ImportError) as failure:
        complain(f"error: {failure}")
        return 2
    except KeyboardInterrupt as signalled:
        if interrupted:
            complain(interrupted)
        return 128 + signal_of(signalled)
    return 0


def _with_help(kind: type[Any]) -> type[Any]:
    """The same options with their docstrings in one line; tyro keeps line breaks."""
    hints, texts = get_type_hints(kind, include_extras=True), flags.help_of(kind)
    options = []
    for field in dataclasses.fields(kind):
        about = tyro.conf.arg(help=texts.get(field.name))
        again = dataclasses.field(
            default=field.default, default_factory=field.default_factory
        )
        options.append((field.name, Annotated[hints[field.name], about], again))
    return dataclasses.make_dataclass(kind.__name__, options, frozen=True)


def renamed_error(argv: Sequence[str], renamed: Mapping[str, str]) -> str:
    """The error line for the first renamed flag; "" if there is none."""
    for flag in (word.split("=")[0].replace("_", "-") for word in argv):
        if flag in renamed:
            return f"error: {flag} is now {renamed[flag]}"
    return ""


def _twice_error(argv: Sequence[str], kind: type[Any]) -> str:
    """The error line if an option is given under two names; "" if none is."""
    words = [word.split("=")[0].replace("_", "-") for word in argv]
    for name, hint in get_type_hints(kind, include_extras=True).items():
        about = getattr(hint, "__metadata__", ())
        others = [other for a in about for other in getattr(a, "aliases", None) or ()]
        own = f"--{name.replace('_', '-')}"
        given = [word for word in words if word in (own, *others)]
        if others and len(given) > 1:
            return (
                f"error: {' and '.join(given)}: give {own} once; "
                f"{' and '.join(others)} is another name of it"
            )
    return ""


def parse(argv: Sequence[str], description: str = "") -> RunConfig:
    """Reads the command line, with the defaults of the run or preset that it names."""
    check_names(argv)
    default, resume = _defaults(argv)
    values = _read(argv, flags.values(default), description)
    given = _given(argv)
    if resume is None and values["max_seconds"] and "max_steps" not in given:
        values["max_steps"] = 0  # who names one limit means that one
    config = flags.build(values)
    if wrong := flags.idle(config, {name: values[name] for name in given}):
        raise ValueError(next(iter(wrong.values())))
    return replace(config, resume=resume)


def code_in(argv: Sequence[str]) -> dict[str, str]:
    """The options of a run on its command line that name code, with their values."""
    known, found = flags.options(), {}
    for word, after in itertools.zip_longest(argv, argv[1:], fillvalue=""):
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and name in known and known[name].about.holds == CODE:
            found[name] = value if equals else after
    return found


def parse_each(argv: Sequence[str], levels: Sequence[str]) -> dict[str, RunConfig]:
    """Reads one command line for runs on several levels, each with its own defaults."""
    first = flags.values(parse([*argv, "--levels", levels[0]]))
    given = {name: first[name] for name in _given(argv)}
    configs = {}
    for level in levels:
        default, _ = _defaults([*argv, "--levels", level])
        values = flags.values(default) | given
        configs[level] = flags.build(values | {"levels": (level,)})
    return configs


def _defaults(argv: Sequence[str]) -> tuple[RunConfig, Path | None]:
    """The config before single flags apply, and the checkpoint to resume."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--preset", default="auto")
    early.add_argument("--device", default="auto")
    early.add_argument("--obs")
    early.add_argument("--loss", default="")
    early.add_argument("--optimizer", default="")
    early.add_argument("--levels", nargs="+", default=[])
    early.add_argument("--test-levels", "--test_levels", nargs="+", default=[])
    early.add_argument("--resume", type=Path)
    early.add_argument("--task")
    known, _ = early.parse_known_args(argv)
    _check_task(known.task, known.levels)
    if known.resume is not None:
        if known.preset != "auto":
            raise ValueError(
                f"--resume continues with the options of its run: leave out --preset "
                f"{known.preset} and give single options instead"
            )
        config = locate.config_of(known.resume, code_in(argv), known.task)
        return _with_task(config, known.task), config.resume
    name = known.preset
    if name == "auto":
        name = "tiles"
        if known.obs != name:
            name = choose_preset(choose_device(known.device))
    task = known.task or EnvConfig.task
    split = split_levels(known.levels, known.test_levels, task)
    default = for_algorithm(preset(name), known.loss, known.optimizer)
    if known.obs is not None:
        default = replace(default, env=replace(default.env, obs=known.obs))
    default = for_levels(
        default,
        split.train or own_levels(task),
        split.test,
        whole_game=not split.train and bool(game_levels(task)),
    )
    return replace(default, preset="auto"), None


def _read(
    argv: Sequence[str], default: Mapping[str, Any], description: str
) -> dict[str, Any]:
    """The value of every option, from its flag or else from `default`.

    `--help` shows the options that most runs need, `--help-all` shows all.
    """
    args = ["--help" if arg == "--help-all" else arg for arg in argv]
    asked = {"-h", "--help"} & set(args)
    everyday = bool(asked) and "--help-all" not in argv
    groups = _everyday() if everyday else _everyday() | _others()
    kinds = {title: _group(title, some, default) for title, some in groups.items()}
    fields = [(title, kind, kind()) for title, kind in kinds.items()]
    try:
        given: Any = tyro.cli(
            dataclasses.make_dataclass("Options", fields, frozen=True),
            args=args,
            prog="python -m trainer.run",
            description=description,
            config=(tyro.conf.OmitArgPrefixes,),
        )
    except SystemExit:
        if everyday:
            print("All options: python -m trainer.run --help-all")
        raise
    found = dict(default)
    for group in vars(given).values():
        found |= vars(group)
    return found


def _group(
    title: str, some: Sequence[flags.Option], default: Mapping[str, Any]
) -> type[Any]:
    """A dataclass of options, from which tyro makes a group of flags."""
    annotated: Any = Annotated  # the types are known only at run time
    fields = []
    for option in some:
        about = tyro.conf.arg(name=option.name.replace("_", "-"), help=_help_of(option))
        hint = annotated[option.hint, about]
        fields.append(
            (option.name, hint, dataclasses.field(default=default[option.name]))
        )
    return dataclasses.make_dataclass(
        title, fields, frozen=True, namespace={"__doc__": ""}
    )


def _help_of(option: flags.Option) -> str:
    """The help of an option, and what the option needs to have an effect."""
    needs = [" or ".join(n.text for n in ways) for ways in option.about.needs]
    value = option.about.needed_by
    who = "Needs" if value in (None, True) else f"{value} needs"
    return option.help + (f" {who} {' and '.join(needs)}." if needs else "")


def _everyday() -> dict[str, list[flags.Option]]:
    """The options that --help shows, by the titles of their groups."""
    known = flags.options()
    return {
        title: [known[name] for name in names.split()]
        for title, names in _EVERYDAY.items()
    }


def _others() -> dict[str, list[flags.Option]]:
    """The options that only --help-all shows, by the titles of their groups."""
    shown = {name for names in _EVERYDAY.values() for name in names.split()}
    groups: dict[str, list[flags.Option]] = {}
    for option in flags.options().values():
        if option.about.flag and option.name not in shown:
            groups.setdefault(_MORE[option.part], []).append(option)
    return groups


def _given(argv: Sequence[str]) -> list[str]:
    """The names of the options on the command line."""
    known = flags.options()
    names = []
    for arg in argv:
        name = arg.partition("=")[0].removeprefix("--").replace("-", "_")
        name = name if name in known else name.removeprefix("no_")
        if arg.startswith("--") and name in known:
            names.append(name)
    return names


def _check_task(task: str | None, levels: Sequence[str]) -> None:
    """Raises ValueError if --task has one level and --levels names other levels."""
    if task is None or not levels:
        return
    own = own_levels(task)
    if len(own) == 1 and split_levels(levels, (), task).train != own:
        raise ValueError(
            f"--task {task} plays only {own[0]}, and --levels {' '.join(levels)} names "
            f"other levels: leave out one of them, or give --task {game_of(task)}"
        )


def _with_task(config: RunConfig, task: str | None) -> RunConfig:
    """The config of a resumed run with another task, without the levels of the old one.

    A critic with one output per level keeps one output per level of the new set.
    """
    if 1 < len(config.env.levels) == config.model.value_heads:
        config = replace(config, model=replace(config.model, value_heads=0))
    env = config.env
    if task in (None, env.task) or played(task, ()) == played(env.task, env.levels):
        return config
    return replace(config, env=replace(config.env, levels=(), test_levels=()))
