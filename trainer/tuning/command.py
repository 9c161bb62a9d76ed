"""What the commands search and population have in common."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.config.plain import to_dict
from trainer.config.schema import RunConfig


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags before "--", and those behind it, which are the trainer's."""
    args = list(argv)
    where = args.index("--") if "--" in args else len(args)
    return args[:where], args[where + 1 :]


def check_flags(flags: Sequence[str], instead: Mapping[str, str]) -> None:
    """Raises ValueError for a flag behind `--` that the command would overrule.

    Args:
        flags: of the trainer, as given for all runs.
        instead: flags that are not among those, and what to give before `--`.
    """
    for flag in flags:
        name = flag.split("=")[0].replace("_", "-")
        if name in instead:
            raise ValueError(
                f"{name} behind -- would be overruled; give {instead[name]} before --"
            )


def check_own(flags: Sequence[str], own: Sequence[str]) -> None:
    """Raises ValueError for a flag behind `--` that the command sets itself.

    Args:
        flags: of the trainer, as given for all runs.
        own: flags that are not among those.
    """
    for flag in flags:
        name = flag.split("=")[0].replace("_", "-")
        if name.replace("--no-", "--") in own:
            raise ValueError(
                f"{name} behind -- would be overruled: this command sets it itself; "
                "leave it out"
            )


def check_base(base: RunConfig) -> None:
    """Raises ValueError for options that every run of a search has for itself."""
    if base.notify:
        raise ValueError(
            "--notify is for a single run, and would tell of each of many; leave it out"
        )
    for name in ("resume", "run_dir"):
        if getattr(base, name) is not None:
            flag = name.replace("_", "-")
            raise ValueError(
                f"--{flag} cannot hold for several runs, each has a folder of its own; "
                "leave it out"
            )


def setup(base: RunConfig, **options: Any) -> dict[str, Any]:
    """What must stay the same when a search is resumed, as plain JSON types."""
    everything = {**options, "trainer flags": to_dict(base)}
    result: dict[str, Any] = json.loads(json.dumps(everything))
    return result


def check_setup(name: str, known: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raises ValueError where two results of `setup` differ."""
    changed = [key for key, value in new.items() if known.get(key) != value]
    if changed:
        raise ValueError(
            f"{name!r} was begun with another {', '.join(changed)}; choose another "
            "--name, or give what it was begun with"
        )


def load(where: str, flag: str) -> Any:
    """Loads what a flag names: an object of a Python module or file.

    Args:
        where: MODULE:NAME or FILE.py:NAME.
        flag: for errors, with dashes.

    Raises:
        ValueError: it is neither, or there is no such module, file or name, or the
            module cannot be imported.
    """
    source, _, name = where.rpartition(":")
    if not (source and name):
        raise ValueError(f"{flag} is MODULE:NAME or FILE.py:NAME, got {where!r}")
    try:
        is_file = source.endswith(".py")
        module = _run_file(source) if is_file else importlib.import_module(source)
    except Exception as error:  # whatever the code raises
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise ValueError(f"{flag}: cannot load {source} ({reason})") from error
    if not hasattr(module, name):
        raise ValueError(f"{flag}: {source} has no {name}")
    return getattr(module, name)


def _run_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
