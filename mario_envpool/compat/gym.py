"""Gymnasium under gym's old name, for scripts written for the API before 0.26.

Replace ``import gym`` by ``from mario_envpool.compat import gym``. All names are those
of Gymnasium except ``Wrapper``, which passes attributes on as in old gym.
"""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import Env, spaces, wrappers

__all__ = ["Env", "Wrapper", "spaces", "wrappers"]


class Wrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper with the public attributes of the wrapped environment.

    Gymnasium 1.0 removed this behaviour, which scripts such as CleanRL's rely on.
    ``reset`` and ``step`` return the values of the wrapped environment, in any API.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{name!r} is private to the environment inside")
        return getattr(self.env, name)
