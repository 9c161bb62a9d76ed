"""The methods of upstream's environment that subclasses override, and their step."""

from __future__ import annotations

from typing import Any

from .info import as_float64
from .ram import RamView

# Methods of upstream that subclasses may override; a step without them is native.
_HOOKS = ("_get_reward", "_get_done", "_get_info", "_did_step")
_REWARD_HOOKS = ("_x_reward", "_time_penalty", "_death_penalty")
# Methods of upstream that are not here, because the start of a level and
# the waits are native.
_NATIVE_METHODS = (
    "_skip_start_screen",
    "_skip_change_area",
    "_skip_occupied_states",
    "_skip_end_of_world",
    "_runout_prelevel_timer",
    "_write_stage",
    "_kill_mario",
    "_get_terminated",
    "_get_truncated",
)
_LARGEST_STEP = 5  # of x, in upstream's reward; a larger one is a jump of the map
_DEATH_PENALTY = -25


class Hooks(RamView):
    """A step in upstream's parts, for subclasses that change one of them."""

    reward_range = (-15, 15)
    done: bool
    _native_reward: float = 0.0
    _native_done = False
    _arguments: dict[str, Any]
    _native: Any
    _numbers: Any
    _screen: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = [name for name in _NATIVE_METHODS if name in vars(cls)]
        if names:
            raise TypeError(
                f"{cls.__name__} overrides {', '.join(names)}, which this class never "
                "calls, because starts of levels and waits are native; override "
                f"{', '.join((*_HOOKS, *_REWARD_HOOKS))}, _will_reset, _did_reset or "
                "step, or use a wrapper"
            )

    def _has_hooks(self) -> bool:
        """Whether a subclass or an attribute changes a part of the step."""
        if self.reward_range != Hooks.reward_range:
            return True
        own = vars(self)
        return any(
            getattr(type(self), name) is not method or name in own
            for name, method in _METHODS.items()
        )

    def _check_hooks(self) -> None:
        """Refuses parts of a reward that has other parts."""
        if self._arguments["reward"] == "classic":
            return
        for name in _REWARD_HOOKS:
            if getattr(type(self), name) is not _METHODS[name]:
                raise ValueError(
                    f"{type(self).__name__} overrides {name}, a part of "
                    "reward='classic'; leave reward out, or override _get_reward"
                )

    def _step_with_hooks(self, pad: int) -> tuple[float, dict[str, Any]]:
        """Plays one frame, calls the methods of upstream, and skips the waits."""
        native = self._native
        last = native.x_last, native.time_last
        reward, self._native_done, _, fields = native.step(pad, skip_waits=False)
        native.x_last, native.time_last = last  # _x_reward and _time_penalty move them
        self._native_reward = as_float64(reward)
        self._keep(fields)
        reward = float(self._get_reward())
        self.done = bool(self._get_done())
        info = self._get_info()
        self._did_step(self.done)
        low, high = self.reward_range
        self._screen = None  # a hook may have drawn it
        return float(min(max(reward, low), high)), info

    @property
    def _x_position_last(self) -> int:
        """The position from which the next reward is counted; it can be set."""
        return int(self._opened().x_last)

    @_x_position_last.setter
    def _x_position_last(self, x: int) -> None:
        self._opened().x_last = int(x)

    @property
    def _time_last(self) -> int:
        """The clock from which the next reward is counted; it can be set."""
        return int(self._opened().time_last)

    @_time_last.setter
    def _time_last(self, time: int) -> None:
        self._opened().time_last = int(time)

    @property
    def _x_reward(self) -> float:
        """Pixels to the right since the last step; 0 after a jump of the map."""
        moved = self._x_position - self._x_position_last
        self._x_position_last = self._x_position
        return moved if abs(moved) <= _LARGEST_STEP else 0

    @property
    def _time_penalty(self) -> float:
        """Ticks of the clock since the last step, 0 or less."""
        ticks = self._time - self._time_last
        self._time_last = self._time
        return min(ticks, 0)

    @property
    def _death_penalty(self) -> float:
        """The reward of a frame in which the player is dying or dead."""
        return _DEATH_PENALTY if self._is_dying or self._is_dead else 0

    def _get_reward(self) -> float:
        """The reward of the frame, before ``reward_range`` limits it."""
        if self._arguments["reward"] != "classic":
            return self._native_reward
        return self._x_reward + self._time_penalty + self._death_penalty

    def _get_done(self) -> bool:
        """Whether the frame ends the episode."""
        return bool(self._native_done)

    def _get_info(self) -> dict[str, Any]:
        """The info of the frame."""
        return self._info(self._numbers, self._native_reward)

    def _did_step(self, done: bool) -> None:
        """Runs through the frames in which Mario cannot be controlled."""
        if not done:
            self._opened().skip_waits()

    def _will_reset(self) -> None:
        """Called before each reset."""

    def _did_reset(self) -> None:
        """Called after each reset."""

    def _opened(self) -> Any:
        raise NotImplementedError

    def _keep(self, fields: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def _info(self, numbers: dict[str, Any], reward: float) -> dict[str, Any]:
        raise NotImplementedError


_METHODS = {name: getattr(Hooks, name) for name in (*_HOOKS, *_REWARD_HOOKS)}
