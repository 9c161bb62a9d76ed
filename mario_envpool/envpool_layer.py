"""Imports EnvPool's Python layer without EnvPool's own environments.

``envpool/__init__.py`` imports every family of environments and the libraries that they
are linked with (MuJoCo's renderer: libEGL, libOpenGL). This package needs only the
layer above: ``envpool.python`` and ``envpool.registration``. This module imports both
while an empty module stands in for the package. A later ``import envpool`` runs the
real ``__init__``, which finds these modules loaded, so both share one registry. If that
import fails because a library is missing, its error names the packages to install.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

# Must precede the stand-in: Gymnasium loads plug-ins that may import the real EnvPool.
import gymnasium  # noqa: F401

_NAME = "envpool"
_HELP = (
    "EnvPool's own environments cannot be loaded ({error}). On Debian and Ubuntu run "
    "'apt-get install libegl1 libopengl0'. The Super Mario Bros. tasks do not need "
    "these libraries: make them with mario_envpool.make"
)
_lock = threading.RLock()


@contextlib.contextmanager
def python_layer() -> Iterator[None]:
    """Allows imports of ``envpool.python`` and ``envpool.registration`` in its block.

    Outside the block such an import runs ``envpool/__init__.py`` first, unless
    ``envpool`` is imported already.

    Raises:
        ModuleNotFoundError: EnvPool is not installed.
    """
    with _lock:
        if _NAME in sys.modules:
            yield
            return
        spec = importlib.util.find_spec(_NAME)
        if spec is None:
            raise ModuleNotFoundError("No module named 'envpool'", name=_NAME)
        sys.modules[_NAME] = importlib.util.module_from_spec(spec)
        try:
            yield
        finally:
            del sys.modules[_NAME]


class _Loader(importlib.abc.Loader):
    """Runs ``envpool/__init__.py`` after some of its submodules were loaded."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def __getattr__(self, name: str) -> Any:
        """Takes all other attributes from the real loader."""
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        # Importing a submodule makes it an attribute of its package, once.
        for name in list(sys.modules):
            package, _, child = name.rpartition(".")
            if package == _NAME:
                setattr(module, child, sys.modules[name])
        try:
            self._loader.exec_module(module)
        except ImportError as error:
            raise ImportError(_HELP.format(error=error), name=error.name) from error


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``envpool``, and nothing else, for `_Loader`."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _NAME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
