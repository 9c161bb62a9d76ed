"""The command line of a run, with the defaults of a preset or of an earlier run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tyro

from trainer import resume
from trainer.config import RunConfig
from trainer.device import choose_device
from trainer.presets import choose_preset, preset


def parse(argv: Sequence[str], description: str = "") -> RunConfig:
    """Reads the command line, with the defaults of the run or preset it names.

    Args:
        argv: arguments without the program's name.
        description: of the program, for --help.

    Raises:
        ValueError, OSError: `--resume` names no checkpoint to go on from.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--preset", default="auto")
    early.add_argument("--device", default="auto")
    early.add_argument("--resume", type=Path)
    early.add_argument("--task")
    known, _ = early.parse_known_args(argv)
    if known.resume is not None:
        if known.preset != "auto":
            raise ValueError(
                f"--resume goes on with the options of its run: leave --preset "
                f"{known.preset} out, and give single options instead"
            )
        known.resume = resume.locate(known.resume, known.task)
        default = resume.config_of(known.resume)
    else:
        name = known.preset
        if name == "auto":
            name = choose_preset(choose_device(known.device))
        default = preset(name)
    config = tyro.cli(
        RunConfig,
        args=list(argv),
        default=replace(default, preset="auto"),
        prog="python -m trainer.run",
        description=description,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return replace(config, resume=known.resume)
