"""Code shared by the commands search, population and campaign."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import Timeout

from trainer.config import shown
from trainer.config.plain import to_dict
from trainer.config.schema import RunConfig
from trainer.session.files import take

# The settings of the runs in the result of `setup`.
_FLAGS = "trainer flags"


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags before `--`, and the flags of trainer.run after it."""
    args = list(argv)
    where = args.index("--") if "--" in args else len(args)
    return args[:where], args[where + 1 :]


def check_flags(
    flags: Sequence[str], instead: Mapping[str, str], own: Sequence[str] = ()
) -> None:
    """Raises ValueError for a flag after `--` that the command overrides or sets."""
    for flag in flags:
        name = flag.split("=")[0].replace("_", "-")
        if name in instead:
            raise ValueError(
                f"{name} after -- has no effect; give {instead[name]} before --"
            )
        if name.replace("--no-", "--") in own:
            raise ValueError(
                f"{name} after -- has no effect, because this command sets it; "
                "leave it out"
            )


def check_least(config: object, **least: float) -> None:
    """Raises ValueError for an option below its least value."""
    for name, number in least.items():
        if (value := getattr(config, name)) < number:
            raise ValueError(f"{name} must be at least {number:g}, got {value}")


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
    everything = {**options, _FLAGS: shown.settings(to_dict(base))}
    result: dict[str, Any] = json.loads(json.dumps(everything))
    return result


def check_setup(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raises ValueError if two results of `setup` differ."""
    old = dict(old)
    if isinstance(old.get(_FLAGS), dict):  # earlier versions wrote whole paths
        old[_FLAGS] = shown.settings(old[_FLAGS])
    changed = [key for key, value in new.items() if old.get(key) != value]
    if changed:
        raise ValueError(
            f"{name!r} was begun with another {', '.join(changed)}; choose another "
            "--name, or give the original values"
        )


@contextmanager
def alone(folder: Path, taken: str) -> Iterator[None]:
    """Makes a folder and locks it during the block; `taken` is the error if it is."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = take(folder)
    except Timeout:
        raise ValueError(taken) from None
    try:
        yield
    finally:
        lock.release()


def load(where: str, flag: str) -> Any:
    """Loads an object of a Python module or file that a flag names."""
    source, _, name = where.rpartition(":")
    if not (source and name):
        raise ValueError(f"{flag} must be MODULE:NAME or FILE.py:NAME, got {where!r}")
    try:
        if source.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(source).stem, source)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(source)
    except Exception as error:  # code of the user, which raises anything
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise ValueError(f"{flag}: cannot load {source} ({reason})") from error
    if not hasattr(module, name):
        raise ValueError(f"{flag}: {source} has no {name}")
    return getattr(module, name)
