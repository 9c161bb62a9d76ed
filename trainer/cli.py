"""Command lines: a run's, with its defaults, and what the others have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import tyro

from trainer.config.presets import choose_preset, for_levels, preset
from trainer.config.schema import EnvConfig, RunConfig
from trainer.config.tasks import game_of, own_levels, played, split_levels
from trainer.machine.device import choose_device
from trainer.session import locate

Config = TypeVar("Config")


def main_of(
    kind: type[Config],
    work: Callable[[Config], object],
    name: str,
    description: str | None,
    argv: Sequence[str] | None,
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Reads the options of a command and does its work.

    Args:
        kind: dataclass of the options.
        work: takes one.
        name: of the command, python -m trainer.NAME.
        description: for --help.
        argv: arguments without the program's name, None for those of the process.
        renamed: new names of flags by their old ones, which are refused.

    Returns:
        The exit status: 0, 130 after Ctrl-C, or 2 with one line `error: ...` on
        stderr.
    """
    prog = f"python -m trainer.{name}"
    args = sys.argv[1:] if argv is None else argv
    if error := renamed_error(args, renamed):
        print(error, file=sys.stderr)
        return 2
    config = tyro.cli(kind, args=argv, prog=prog, description=description)
    try:
        work(config)
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def renamed_error(argv: Sequence[str], renamed: Mapping[str, str]) -> str:
    """The line for the first flag that has another name now; "" if there is none."""
    for flag in (word.split("=")[0].replace("_", "-") for word in argv):
        if flag in renamed:
            return f"error: {flag} is now {renamed[flag]}"
    return ""


def parse(argv: Sequence[str], description: str = "") -> RunConfig:
    """Reads the command line, with the defaults of the run or preset it names.

    Args:
        argv: arguments without the program's name.
        description: of the program, for --help.

    Raises:
        ValueError, OSError: `--resume` names no checkpoint to go on from, there is no
            such level, or a task that has others.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--preset", default="auto")
    early.add_argument("--device", default="auto")
    early.add_argument("--obs")
    early.add_argument("--levels", nargs="+", default=[])
    early.add_argument("--test-levels", "--test_levels", nargs="+", default=[])
    early.add_argument("--resume", type=Path)
    early.add_argument("--task")
    known, _ = early.parse_known_args(argv)
    _check_task(known.task, known.levels)
    if known.resume is not None:
        if known.preset != "auto":
            raise ValueError(
                f"--resume goes on with the options of its run: leave --preset "
                f"{known.preset} out, and give single options instead"
            )
        known.resume = locate.locate(known.resume, known.task)
        default = _with_task(locate.config_of(known.resume), known.task)
    else:
        name = known.preset
        if name == "auto":
            name = "tiles"
            if known.obs != name:
                name = choose_preset(choose_device(known.device))
        task = known.task or EnvConfig.task
        split = split_levels(known.levels, known.test_levels, task)
        levels = split.train or own_levels(task)
        default = preset(name)
        if known.obs is not None:
            default = replace(default, env=replace(default.env, obs=known.obs))
        default = for_levels(default, levels, split.test)
    config = tyro.cli(
        RunConfig,
        args=list(argv),
        default=replace(default, preset="auto"),
        prog="python -m trainer.run",
        description=description,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return replace(config, resume=known.resume)


def _check_task(task: str | None, levels: Sequence[str]) -> None:
    """Raises ValueError where both a task of one level and other levels are named."""
    if task is None or not levels:
        return
    own = own_levels(task)
    if len(own) == 1 and split_levels(levels, (), task).train != own:
        raise ValueError(
            f"--task {task} is {own[0]} alone, and --levels {' '.join(levels)} are "
            f"others: leave out one of them, or give --task {game_of(task)}"
        )


def _with_task(config: RunConfig, task: str | None) -> RunConfig:
    """A run's config for who names a task: its levels, of another one, are left out.

    Where there was an output of the critic for each level, there is one for each of
    whatever levels there are now.
    """
    if 1 < len(config.env.levels) == config.model.value_heads:
        config = replace(config, model=replace(config.model, value_heads=0))
    env = config.env
    if task in (None, env.task) or played(task, ()) == played(env.task, env.levels):
        return config
    return replace(config, env=replace(config.env, levels=(), test_levels=()))
