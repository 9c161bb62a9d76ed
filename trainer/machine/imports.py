"""Imports extras of the package, and objects of the user by name.

Names are module:name or file.py:name. Only a name on the command line, or in a program
of the user, is imported. Files have such names too, those of the run that wrote them,
and anybody may have written a file: code that reads a config out of a file calls
`check_named` before the config is used.
"""

from __future__ import annotations

import importlib
import runpy
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainer.machine.process import first_line


def check_named(
    where: object, options: Mapping[str, Any], named: Collection[str]
) -> None:
    """Raises ValueError if a file names code that the command line does not name."""
    for option, text in options.items():
        if ":" in str(text) and text not in named:
            flag = f"--{option.replace('_', '-')} {shlex.quote(ascii(str(text))[1:-1])}"
            raise ValueError(
                f"{where} names code that is not part of this package: add {flag} to "
                "this command if you trust that module; it was not imported"
            )


@contextmanager
def extra(name: str, needs: str) -> Iterator[None]:
    """Says in errors of the imports in the block which extra of the package to add."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{needs}: pip install 'mario-envpool[{name}]'") from error


def load(name: str, option: str, form: str) -> Any:
    """The object that `module:name` or `file.py:name` names."""
    source, colon, attribute = name.rpartition(":")
    if not colon:
        raise ValueError(f"{option} {name!r}: the name must be {form}")
    try:
        if source.endswith(".py"):
            names = runpy.run_path(source)
        else:
            names = vars(importlib.import_module(source))
    except Exception as error:  # code of the user, which raises anything
        raise ValueError(
            f"{option} {name!r}: {source!r} cannot be imported "
            f"({type(error).__name__}: {first_line(error)}); the name must be {form}, "
            "of a module in this folder or on PYTHONPATH"
        ) from error
    if names.get(attribute) is None:
        raise ValueError(
            f"{option} {name!r}: {source!r} has no {attribute!r}; the name must be "
            f"{form}"
        )
    return names[attribute]
