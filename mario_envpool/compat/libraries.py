"""Old Gym and Gymnasium: of which library an environment is an ``Env``.

Environments with 4-tuples are those of old Gym where it is installed: wrappers of old
Gym, shimmy and Stable-Baselines3 look for its classes and its spaces. The library is
known when an object is made, so an object gets its base class then: the classes of
this package derive from ``Joining``, and ``join`` gives the object the class with the
base of the library. Old Gym is imported only for an object with 4-tuples, and not at
all with ``MARIO_COMPAT_LIBRARY=gymnasium``: wrappers of Gymnasium around 4-tuples need
that.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import types
import warnings
from typing import Any

import gymnasium

# Attributes of a class that its joined class repeats, and the mark of joined classes.
_KEPT = ("__module__", "__qualname__", "__doc__")
_JOINED = "_joined"
# Before it, registry and EnvSpec of Gym were others.
_OLDEST = (0, 24)

#: Variable with the library of 4-tuples, "gym" or "gymnasium".
LIBRARY = "MARIO_COMPAT_LIBRARY"


def old_gym() -> types.ModuleType | None:
    """Imports old Gym; None: 4-tuples are Gymnasium's, as it is missing or unwanted.

    Raises:
        ValueError: ``MARIO_COMPAT_LIBRARY`` has another value.
    """
    library = os.environ.get(LIBRARY, "gym")
    check_library(LIBRARY, library)
    return _import_gym() if library == "gym" else None


def check_library(name: str, library: str) -> None:
    """Raises ValueError if there is no such library; `name` is what gave it."""
    if library not in ("gym", "gymnasium"):
        raise ValueError(f"{name}={library!r} is not 'gym' or 'gymnasium'")


@functools.cache
def _import_gym() -> types.ModuleType | None:
    """Imports old Gym; None: it is not installed, or does not work here."""
    try:
        module = importlib.import_module("gym")
    except ImportError:
        return None
    except Exception as error:  # an old version under a new NumPy
        warnings.warn(
            f"gym is installed, but cannot be imported ({error}); environments with "
            "4-tuples are gymnasium.Env instead of gym.Env",
            stacklevel=4,
        )
        return None
    if not hasattr(module, "Env"):  # another folder of this name is a module, too
        return None
    if _version(module) < _OLDEST:
        warnings.warn(
            f"gym {module.__version__} is older than 0.24; environments with 4-tuples "
            "are gymnasium.Env instead of gym.Env: pip install gym==0.26.2",
            stacklevel=4,
        )
        return None
    return module


def has_five(gym: types.ModuleType) -> bool:
    """Whether this version's own wrappers need 5-tuples, as those of 0.26 do."""
    return _version(gym) >= (0, 26)


def _version(gym: types.ModuleType) -> tuple[int, ...]:
    return tuple(map(int, gym.__version__.split(".")[:2]))


def library_of(env: Any) -> types.ModuleType:
    """Returns the library whose ``Env`` an environment is.

    Raises:
        TypeError: it is an ``Env`` of neither library.
    """
    old: Any = sys.modules.get("gym")
    if isinstance(env, getattr(old, "Env", ())):
        return old  # type: ignore[no-any-return]
    if isinstance(env, gymnasium.Env):
        return gymnasium
    raise TypeError(
        f"{type(env).__name__} is not a gym.Env or a gymnasium.Env, which this wrapper "
        "needs"
    )


def old_space(space: Any, gym: Any) -> Any:
    """Returns a space of Gymnasium as one of old Gym."""
    if isinstance(space, gymnasium.spaces.Dict):
        return gym.spaces.Dict({k: old_space(s, gym) for k, s in space.items()})
    if isinstance(space, gymnasium.spaces.Discrete):
        return gym.spaces.Discrete(int(space.n))
    return gym.spaces.Box(space.low, space.high, space.shape, space.dtype)


class ClassSpace:
    """A space that programs read from a class; objects have their own.

    Args:
        kind: the name of the space's class.
        *arguments: of its constructor.
    """

    def __init__(self, kind: str, *arguments: Any) -> None:
        self._kind, self._arguments = kind, arguments

    def __get__(self, instance: object, owner: type) -> Any:
        spaces: Any = (old_gym() or gymnasium).spaces
        return getattr(spaces, self._kind)(*self._arguments)


class Joining:
    """Base of classes whose objects become an ``Env`` or ``Wrapper`` when made."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        kind = type(self)
        if _JOINED not in vars(kind):
            return super().__reduce_ex__(protocol)
        return _make_blank, kind.__bases__, self.__getstate__()


def join(instance: Any, base: Any) -> None:
    """Gives an object the class that also derives from `base`."""
    kind: Any = type(instance)
    instance.__class__ = _joined(kind, base)


@functools.cache
def _joined(kind: Any, base: Any) -> Any:
    """Returns the class `kind` with one more base, under the same name."""
    if issubclass(kind, base):
        return kind
    body = {name: getattr(kind, name) for name in _KEPT} | {_JOINED: True}
    return types.new_class(kind.__name__, (kind, base), None, lambda d: d.update(body))


def _make_blank(kind: type, base: type) -> Any:
    """Makes an object for its pickled state."""
    joined = _joined(kind, base)
    return joined.__new__(joined)
