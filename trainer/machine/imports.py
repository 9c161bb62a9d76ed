"""Imports objects of the user by name, module:name."""

from __future__ import annotations

import importlib
from typing import Any


def load(name: str, option: str, form: str) -> Any:
    """The object that `module:name` names.

    Args:
        name: text of the user.
        option: name of the option, for errors.
        form: required form of the name, such as "module:Class".

    Raises:
        ValueError: the module cannot be imported, or does not have the object.
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
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
    if found is None:
        raise ValueError(
            f"{option} {name!r}: module {module!r} has no {attribute!r}; the name "
            f"must be {form}"
        )
    return found
