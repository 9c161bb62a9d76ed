"""Modules with the names of gym-super-mario-bros and nes-py, for ``install``.

The packages in this folder export what ``mario_envpool.compat`` has. They are found
under their own names once the folder is in ``sys.path``, in processes that
``multiprocessing`` starts, too.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from ...rom import STAND_INS

_PACKAGES = ("gym_super_mario_bros", "nes_py")


def install() -> None:
    """Lets ``import gym_super_mario_bros`` and ``import nes_py`` find this package.

    Call it before the first import of either. ``python -m mario_envpool.compat
    PROGRAM`` does this for an unmodified program.

    Raises:
        ImportError: one of the two packages is imported already.
    """
    for name in _PACKAGES:
        file = getattr(sys.modules.get(name), "__file__", None)
        if name in sys.modules and STAND_INS not in Path(file or "").parents:
            raise ImportError(
                f"{name} is imported already, from {file}; call "
                "mario_envpool.compat.install() before the first import of "
                f"{' or '.join(_PACKAGES)}"
            )
    if str(STAND_INS) not in sys.path:
        sys.path.insert(0, str(STAND_INS))
        importlib.invalidate_caches()
