"""Gymnasium under gym's old name, for scripts written for the API before 0.26.

``from mario_envpool.compat import gym`` in the place of ``import gym``: everything is
Gymnasium's, but for ``Wrapper``, which passes attributes on as old gym's did.
"""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import Env, spaces, wrappers

__all__ = ["Env", "Wrapper", "spaces", "wrappers"]


class Wrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that has the attributes of what it wraps, private ones excepted.

    Gymnasium 1.0 dropped that, and scripts such as CleanRL's count on it. ``reset``
    and ``step`` return what the wrapped environment returns, whatever its API.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{name!r} is private to the environment inside")
        return getattr(self.env, name)
