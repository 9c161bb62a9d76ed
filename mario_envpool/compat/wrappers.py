"""JoypadSpace of nes-py, and a time limit for 4-tuples."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from .. import nes
from ..env import as_action
from .libraries import Joining, join, library_of

__all__ = ["JoypadSpace"]


class _Passing(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """A wrapper that passes all calls and attributes on, as wrappers of old Gym do."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env, name)


if TYPE_CHECKING:
    _Wrapper = _Passing
else:
    _Wrapper = Joining


class _EitherWrapper(_Wrapper):
    """A ``Wrapper`` of the library of the environment inside.

    Public names that the wrapper lacks are those of the environment, such as
    ``env.ram`` and ``env.seed``. Around a ``gymnasium.Env`` the arguments of the
    constructor are recorded, so that ``gymnasium.make(env.spec)`` makes it again.
    """

    def __init__(self, env: Any, **arguments: Any) -> None:
        library: Any = library_of(env)
        if library is gymnasium:
            join(self, _Passing)
            RecordConstructorArgs.__init__(self, **arguments)
        else:
            join(self, library.Wrapper)
        super().__init__(env)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Resets the environment."""
        return self.env.reset(*args, **kwargs)

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """Renders the environment."""
        return self.env.render(*args, **kwargs)


class JoypadSpace(_EitherWrapper):
    """Makes a list of button combinations the actions 0, 1, 2, ...

    It works with 4-tuples and 5-tuples, at any depth of wrappers, around each
    ``gym.Env`` or ``gymnasium.Env`` whose 256 actions are the bytes of a pad, and is a
    wrapper of the same library. Other names are passed on (``env.ram``).

    Args:
        env: the environment.
        actions: lists of buttons, such as ``SIMPLE_MOVEMENT``; a button is one of
            ``JoypadSpace.buttons()``.

    Raises:
        TypeError: the environment is not an ``Env`` of either library.
        ValueError: its actions are not pad bytes, or there is no such button.
    """

    # Subclasses may add buttons.
    _button_map: ClassVar[dict[str, int]] = {
        "right": nes.RIGHT,
        "left": nes.LEFT,
        "down": nes.DOWN,
        "up": nes.UP,
        "start": nes.START,
        "select": nes.SELECT,
        "B": nes.B,
        "A": nes.A,
        "NOOP": 0,
    }

    def __init__(self, env: Any, actions: Sequence[Sequence[str]]) -> None:
        super().__init__(env, actions=actions)
        pads = getattr(env.action_space, "n", None)
        if pads != 256:
            raise ValueError(
                f"JoypadSpace needs the 256 actions of a pad, but this environment has "
                f"{env.action_space}. Use mario_envpool.compat.make or "
                "gymnasium.make('mario_envpool_compat/SuperMarioBros-v0'); other "
                "environments of mario_envpool have the option action_set= for this"
            )
        self._action_map = dict(enumerate(map(self._pad_byte, actions)))
        self._action_meanings = dict(enumerate(map(" ".join, actions)))
        spaces: Any = library_of(env).spaces
        self.action_space = spaces.Discrete(len(self._action_map))

    @classmethod
    def _pad_byte(cls, buttons: Sequence[str]) -> int:
        for button in buttons:
            if button not in cls._button_map:
                raise ValueError(
                    f"there is no button {button!r}; an action is a list of "
                    f"{', '.join(cls._button_map)}"
                )
        return functools.reduce(
            operator.or_, map(cls._button_map.__getitem__, buttons), 0
        )

    @classmethod
    def buttons(cls) -> list[str]:
        """Returns the names of the buttons."""
        return list(cls._button_map)

    def step(self, action: SupportsIndex) -> Any:
        """Steps with the buttons of an action.

        Raises:
            TypeError: the action is not an integer.
            ValueError: the action does not exist.
        """
        number = as_action(action, len(self._action_map))
        return self.env.step(self._action_map[number])

    def get_keys_to_action(self) -> dict[tuple[int, ...], int]:
        """Returns the action of each combination of keys (their character codes)."""
        keys_of = {
            byte: keys
            for keys, byte in self.env.unwrapped.get_keys_to_action().items()  # type: ignore[attr-defined]
        }
        return {keys_of[byte]: action for action, byte in self._action_map.items()}

    def get_action_meanings(self) -> list[str]:
        """Returns the buttons of each action, such as "right A"."""
        return list(self._action_meanings.values())

    def get_action_meaning(self, action: SupportsIndex) -> str:
        """Returns the buttons of one action."""
        return self._action_meanings[operator.index(action)]


class OldTimeLimit(_EitherWrapper):
    """Ends an episode of 4-tuples after ``max_episode_steps`` steps, as old Gym did.

    The last step has ``done`` and ``info["TimeLimit.truncated"]``, which is False if
    the game ended the episode in the same step.
    """

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        super().__init__(env, max_episode_steps=max_episode_steps)
        self._most = max_episode_steps
        self._steps = 0

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Resets the environment and its count."""
        self._steps = 0
        return super().reset(*args, **kwargs)

    def step(self, action: Any) -> Any:
        """Steps and counts."""
        obs, reward, done, info = self.env.step(action)  # type: ignore[misc]
        self._steps += 1
        if self._steps >= self._most:
            info["TimeLimit.truncated"] = not done
            done = True
        return obs, reward, done, info
