"""EnvPool's Python layer, without the environments that EnvPool brings.

``envpool/__init__.py`` imports every family of environments, and the libraries that
these are linked with (MuJoCo's renderer: libEGL, libOpenGL). This package needs only
the layer above them: ``envpool.python`` and ``envpool.registration``. Both are imported
here beside an empty stand-in for the package. A later ``import envpool`` runs the real
``__init__``, which finds these modules loaded: one registry serves both. Where that
import fails for a missing library, its error names the packages to install.
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

# Before the stand-in: Gymnasium loads plug-ins, which may import the real EnvPool.
import gymnasium  # noqa: F401

_NAME = "envpool"
_HELP = (
    "EnvPool's own environments cannot be loaded ({error}). On Debian and Ubuntu run "
    "'apt-get install libegl1 libopengl0'. The Super Mario Bros. tasks need neither: "
    "make them with mario_envpool.make"
)
_lock = threading.RLock()


@contextlib.contextmanager
def python_layer() -> Iterator[None]:
    """Allows imports of ``envpool.python`` and ``envpool.registration`` in its block.

    Outside of it, and if ``envpool`` is not imported yet, such an import would run
    ``envpool/__init__.py`` first.

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
    """Runs ``envpool/__init__.py`` beside submodules that are loaded already."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def __getattr__(self, name: str) -> Any:
        """All that is not about running the module is the real loader's."""
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
