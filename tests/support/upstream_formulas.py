"""Subclasses of SuperMarioBrosEnv that give the rewards of the class itself."""

from __future__ import annotations

from typing import Any

from mario_envpool.compat import SuperMarioBrosEnv


class Formulas(SuperMarioBrosEnv):
    """Upstream's reward, end and info in terms of RAM, as programs repeat them."""

    def __init__(self, **arguments: Any) -> None:
        self.calls: list[str] = []
        super().__init__(**arguments)

    def _will_reset(self) -> None:
        self._time_last = 0
        self._x_position_last = 0
        self.calls.append("will reset")

    def _did_reset(self) -> None:
        self._time_last = self._time
        self._x_position_last = self._x_position
        self.calls.append("did reset")

    def _get_reward(self) -> float:
        moved = self._x_position - self._x_position_last
        ticks = self._time - self._time_last
        self._x_position_last, self._time_last = self._x_position, self._time
        death = -25 if self._is_dying or self._is_dead else 0
        return (moved if -5 <= moved <= 5 else 0) + min(ticks, 0) + death

    def _get_done(self) -> bool:
        if self.is_single_stage_env:
            return self._is_dying or self._is_dead or self._flag_get
        return self._is_game_over

    def _get_info(self) -> dict[str, Any]:
        return {
            "coins": self._coins,
            "flag_get": self._flag_get,
            "life": self._life,
            "score": self._score,
            "stage": self._stage,
            "status": self._player_status,
            "time": self._time,
            "world": self._world,
            "x_pos": self._x_position,
            "y_pos": self._y_position,
        }

    def _did_step(self, done: bool) -> None:
        self.calls.append(f"did step {done}")
        super()._did_step(done)


class Parts(SuperMarioBrosEnv):
    """The same reward from upstream's parts."""

    @property
    def _x_reward(self) -> float:
        return super()._x_reward

    @property
    def _time_penalty(self) -> float:
        return super()._time_penalty

    @property
    def _death_penalty(self) -> float:
        return -25 if self._is_dying or self._is_dead else 0
