"""Imports objects of the user by name, module:name.

Only a name on the command line, or in a program of the user, is imported. Files have
such names too, those of the run that wrote them, and anybody may have written a file:
code that reads a config out of a file calls `check_named` before the config is used.
"""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Collection, Mapping
from typing import Any


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


def load(name: str, option: str, form: str) -> Any:
    """The object that `module:name` names."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"{option} {name!r}: the name must be {form}")
    try:
        result = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise ValueError(
            f"{option} {name!r}: module {module!r} cannot be imported ({error}); run "
            "in the folder that holds it, or add that folder to PYTHONPATH"
        ) from error
    except Exception as error:  # code of the user, which raises anything
        raise ValueError(
            f"{option} {name!r}: module {module!r} cannot be imported "
            f"({type(error).__name__}: {error}); the name must be {form}"
        ) from error
    if result is None:
        raise ValueError(
            f"{option} {name!r}: module {module!r} has no {attribute!r}; the name "
            f"must be {form}"
        )
    return result
