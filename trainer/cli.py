"""The command line of a run, with its defaults, and code shared by all commands."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from trainer.config import flags
from trainer.config.options import Option, flag_of
from trainer.config.presets import (
    choose_preset,
    for_algorithm,
    for_lag,
    for_levels,
    for_memory,
    preset,
)
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
from trainer.session import files

Config = TypeVar("Config")

# Groups of the options that --help shows. Those of --help-all are parts of the schema.
_EVERYDAY = {
    "game": "task levels test_levels obs action_set frame_skip stack_num starts",
    "network": "model memory memory_size",
    "learning": "loss optimizer lr gamma epochs unrolls_per_batch minibatch_size "
    "entropy replay_share",
    "hardware": "preset device num_envs num_threads mode lag",
    "run": "seed max_steps max_seconds stop_when_solved run_dir resume log_seconds "
    "videos dashboard",
}


def main_of(
    kind: type[Config],
    work: Callable[[Config], object],
    name: str,
    description: str | None,
    argv: Sequence[str] | None,
    interrupted: str = "",
) -> int:
    """Reads the options of a command and runs it."""
    open_streams()
    try:
        with raise_on_signal(), checked_stdout() as stdout:
            _check_once(sys.argv[1:] if argv is None else argv, kind)
            given: Any = tyro.cli(
                _flags_of(kind.__name__, (o for o in flags.options_of(kind) if o.flag)),
                args=argv,
                prog=f"python -m trainer.{name}",
                description=description,
            )
            work(kind(**vars(given)))
            stdout.flush()
    except (ValueError, RuntimeError, OSError, ImportError) as failure:
        complain(f"error: {failure}")
        return 2
    except KeyboardInterrupt as signalled:
        if interrupted:
            complain(interrupted)
        return 128 + signal_of(signalled)
    return 0


def main_of_runs(
    kind: type[Config],
    work: Callable[[Config, list[str]], object],
    name: str,
    description: str | None,
    argv: Sequence[str] | None,
    *,
    instead: Mapping[str, str],
    own: Sequence[str] = (),
    interrupted: str = "",
) -> int:
    """Reads and runs a command of many runs, which take the flags after `--`.

    `instead` names what to give before `--`, and `own` what the command sets.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index("--") if "--" in words else len(words)

    def checked(config: Config) -> None:
        for word in words[end + 1 :]:
            flag = word.split("=")[0].replace("_", "-")
            if flag in instead:
                raise ValueError(
                    f"{flag} after -- has no effect; give {instead[flag]} before --"
                )
            if flag.replace("--no-", "--") in own:
                raise ValueError(
                    f"{flag} after -- has no effect, because this command sets it; "
                    "leave it out"
                )
        work(config, words[end + 1 :])

    return main_of(kind, checked, name, description, words[:end], interrupted)


def _flags_of(title: str, options: Iterable[Option]) -> type[Any]:
    """A dataclass from which tyro makes a group of flags."""
    fields = []
    for option in options:
        # Given, because tyro would keep some of its line breaks.
        text: Any = tyro.conf.arg(help=_help_of(option))
        default = dataclasses.field(default=option.default)
        fields.append((option.name, Annotated[option.hint, text], default))
    return dataclasses.make_dataclass(
        title, fields, frozen=True, namespace={"__doc__": ""}
    )


def _check_once(argv: Sequence[str], kind: type[Any]) -> None:
    """Raises ValueError if an option with several names is given twice."""
    words = [word.split("=")[0].replace("_", "-") for word in argv]
    for option in flags.options_of(kind):
        marks, names = getattr(option.hint, "__metadata__", ()), [flag_of(option.name)]
        names += [name for m in marks for name in getattr(m, "aliases", None) or ()]
        repeated = [word for word in words if word in names]
        if len(names) > 1 and len(repeated) > 1:
            raise ValueError(
                f"{' and '.join(repeated)}: give {names[0]} once; "
                f"{' and '.join(names[1:])} is another name of it"
            )


def parse(argv: Sequence[str], description: str = "") -> RunConfig:
    """Reads the command line, with the defaults of the run or preset that it names.

    `--help` shows the options that most runs need, `--help-all` shows all.
    """
    words = [word for word in argv if word not in ("-h", "--help", "--help-all")]
    given = _given(words)
    if len(words) < len(argv):
        default, _ = _defaults(given)
        everyday = "--help-all" not in argv
        try:
            _read(["--help"], default, description, everyday)
        finally:
            if everyday:
                print("All options: python -m trainer.run --help-all")
    return _config(given)


def parse_each(argv: Sequence[str], levels: Sequence[str]) -> dict[str, RunConfig]:
    """Reads one command line for runs on several levels, each with its own defaults."""
    given = _given(argv)
    return {level: _config(given | {"levels": (level,)}) for level in levels}


def code_in(argv: Sequence[str]) -> dict[str, str]:
    """The options of a run on its command line that name code, with their values."""
    return _code(_named(argv))


def _code(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that name code."""
    return {n: v for n, v in given.items() if flags.options()[n].holds == "code"}


def _named(argv: Sequence[str]) -> dict[str, str]:
    """The options on the command line of a run, each with the word after its flag."""
    named = {}
    for word, after in itertools.zip_longest(argv, argv[1:], fillvalue=""):
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        name = name if name in flags.options() else name.removeprefix("no_")
        if flag.startswith("--") and name in flags.options():
            named[name] = value if equals else after
    return named


def _given(argv: Sequence[str]) -> dict[str, Any]:
    """The options on the command line of a run, with their values."""
    values = _read(argv, RunConfig())
    return {name: values[name] for name in _named(argv)}


def _config(given: Mapping[str, Any]) -> RunConfig:
    """The config of a run with some options, and with defaults that fit them."""
    default, checkpoint = _defaults(given)
    changes = dict(given)
    if checkpoint is None and given.get("max_seconds"):
        changes.setdefault("max_steps", 0)  # who names one limit means that one
    config = flags.change(default, **changes)
    if useless := flags.without_effect(config, given):
        raise ValueError(next(iter(useless.values())))
    return replace(config, resume=checkpoint)


def _defaults(given: Mapping[str, Any]) -> tuple[RunConfig, Path | None]:
    """The config before single options apply, and the checkpoint to resume."""
    name, task = given.get("preset", "auto"), given.get("task")
    levels, test_levels = given.get("levels", ()), given.get("test_levels", ())
    _check_task(task, levels)
    if resume := given.get("resume"):
        if name != "auto":
            raise ValueError(
                f"--resume continues with the options of its run: leave out --preset "
                f"{name} and give single options instead"
            )
        config = files.config_of(resume, _code(given), task)
        return _with_task(config, task), config.resume
    obs = given.get("obs", EnvConfig.obs)
    if name == "auto" and obs != "pixels":
        name = "tiles"
    elif name == "auto":
        name = choose_preset(choose_device(given.get("device", RunConfig.device)))
    default = preset(name)
    if "obs" in given:
        default = replace(default, env=replace(default.env, obs=obs))
    task = task or EnvConfig.task
    split = split_levels(levels, test_levels, task)
    optimizer = given.get("optimizer", "")
    default = for_algorithm(default, given.get("loss", ""), optimizer)
    default = for_levels(
        for_lag(default, given),
        split.train or own_levels(task),
        split.test,
        whole_game=not split.train and bool(game_levels(task)),
    )
    default = for_memory(default, given.get("memory", ""))
    return replace(default, preset="auto"), None


def _read(
    argv: Sequence[str],
    default: RunConfig,
    description: str = "",
    everyday: bool = False,
) -> dict[str, Any]:
    """The value of every option, from its flag or else from `default`."""
    values, options = flags.values(default), flags.options()
    groups = {title: names.split() for title, names in _EVERYDAY.items()}
    if not everyday:
        usual = {name for names in groups.values() for name in names}
        for option in options.values():
            if option.flag and option.name not in usual:
                groups.setdefault(option.part or "more", []).append(option.name)
    fields: list[tuple[str, Any, Any]] = []
    for title, names in groups.items():
        kind = _flags_of(title, [replace(options[n], default=values[n]) for n in names])
        fields.append((title, kind, kind()))
    read: Any = tyro.cli(
        dataclasses.make_dataclass("Options", fields, frozen=True),
        args=argv,
        prog="python -m trainer.run",
        description=description,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    for group in vars(read).values():
        values |= vars(group)
    return values


def _help_of(option: Option) -> str:
    """The help of an option, and what the option needs to have an effect."""
    if not option.needs:
        return option.help
    who = "Needs" if option.needed_by in (None, True) else f"{option.needed_by} needs"
    return f"{option.help} {who} {' and '.join(need.text for need in option.needs)}."


def _check_task(task: str | None, levels: Sequence[str]) -> None:
    """Raises ValueError if --task has one level and --levels names other levels."""
    if task is None or not levels:
        return
    only = own_levels(task)
    if len(only) == 1 and split_levels(levels, (), task).train != only:
        raise ValueError(
            f"--task {task} plays only {only[0]}, and --levels {' '.join(levels)} "
            f"names other levels: leave out one of them, or give --task {game_of(task)}"
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
