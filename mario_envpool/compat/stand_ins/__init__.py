"""Modules with the names of gym-super-mario-bros and nes-py, for ``install``.

The packages in this folder export what ``mario_envpool.compat`` has. They are found
under their own names once the folder is in ``sys.path``, in processes that
``multiprocessing`` starts, too.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from ...rom import STAND_INS
from ..libraries import LIBRARY, check_library

_PACKAGES = ("gym_super_mario_bros", "nes_py")


def install(library: str = "gym") -> None:
    """Lets ``import gym_super_mario_bros`` and ``import nes_py`` find this package.

    Call it before the first import of either. ``python -m mario_envpool.compat
    PROGRAM`` does this for an unmodified program.

    Args:
        library: "gym": environments with 4-tuples are those of old Gym where it is
            installed. "gymnasium": they are always Gymnasium's, for programs that
            use its wrappers around 4-tuples. The choice holds for this process and
            those that it starts (``MARIO_COMPAT_LIBRARY``).

    Raises:
        ImportError: one of the two packages is imported already.
        ValueError: there is no such library.
    """
    check_library("library", library)
    for name in _PACKAGES:
        file = getattr(sys.modules.get(name), "__file__", None)
        if name in sys.modules and STAND_INS not in Path(file or "").parents:
            raise ImportError(
                f"{name} is imported already, from {file}; call "
                "mario_envpool.compat.install() before the first import of "
                f"{' or '.join(_PACKAGES)}"
            )
    os.environ[LIBRARY] = library
    if str(STAND_INS) not in sys.path:
        sys.path.insert(0, str(STAND_INS))
        importlib.invalidate_caches()
