"""Objects of the user's own by name, as module:name."""

from __future__ import annotations

import importlib
from typing import Any


def load(name: str, option: str, form: str) -> Any:
    """The object that `module:name` names.

    Args:
        name: what the user gave.
        option: for which option, as errors name it.
        form: what the name must look like, such as "module:Class".

    Raises:
        ValueError: there is no such module, or no such object in it.
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise ValueError(
            f"{option} {name!r}: module {module!r} cannot be imported ({error}); run "
            "in the folder that holds it, or add that to PYTHONPATH"
        ) from error
    except Exception as error:  # whatever the module does when it is imported
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
