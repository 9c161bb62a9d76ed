"""The environment of 7.4.0 that draws the stage of every episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .env import ALL_STAGES, SuperMarioBrosEnv
from .tasks import STAGES, WORLDS


class SuperMarioBrosRandomStagesEnv(SuperMarioBrosEnv):
    """Super Mario Bros., a random stage in every episode.

    Equal seeds draw the stages that gym-super-mario-bros 7.4.0 draws: seed 1 begins
    with 6-4.

    Args:
        rom_mode: "vanilla", "downsample", "pixel" or "rectangle".
        stages: stages to draw from, such as ``["1-4", "2-4"]``; None or []: all 32.
        render_mode: see ``SuperMarioBrosEnv``.
        api: see ``SuperMarioBrosEnv``.
        reward: see ``SuperMarioBrosEnv``.
        rom_path: see ``SuperMarioBrosEnv``.
        timing: see ``SuperMarioBrosEnv``.
    """

    def __init__(
        self,
        rom_mode: str = "vanilla",
        stages: Sequence[str] | None = None,
        render_mode: str | None = None,
        *,
        api: str | None = None,
        reward: str = "classic",
        rom_path: str = "",
        timing: str = "nes_py",
    ) -> None:
        self._arguments = {
            "rom_mode": rom_mode,
            "stages": stages,
            "render_mode": render_mode,
            "api": api,
            "reward": reward,
            "rom_path": rom_path,
            "timing": timing,
        }
        self.stages = stages
        _numbers_of(stages or ())
        self._open(ALL_STAGES)
        # With old Gym the stages come from np_random, as upstream's do.
        own = isinstance(self.np_random, np.random.RandomState)
        self._draws: Any = self.np_random if own else np.random.RandomState()
        self._start(0)

    @property
    def env(self) -> SuperMarioBrosRandomStagesEnv:
        """This environment; upstream has one per stage, and returns the current one."""
        return self

    def seed(self, seed: int | None = None) -> list[int]:
        """Seeds the draws of stages; returns the seed in a list, empty for None."""
        if seed is not None:
            self._draws.seed(seed)
        return super().seed(seed)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Any:
        """Draws a stage and starts it.

        Args:
            seed: seeds the draws, as ``seed`` does.
            options: ``{"stages": [...]}``: the stages to draw from in this reset.

        Returns:
            The observation; with the API of Gymnasium, the observation and the info.

        Raises:
            ValueError: there is no such stage.
        """
        self._opened()
        self.seed(seed)
        stages = (options or {}).get("stages", self.stages)
        if stages is not None and len(stages) > 0:
            numbers = _numbers_of(stages)
            self._start(numbers[self._draws.randint(len(numbers))])
        else:
            world = self._draws.randint(1, WORLDS + 1)
            stage = self._draws.randint(1, STAGES + 1)
            self._start((world - 1) * STAGES + stage - 1)
        return self._first_result()

    def _start(self, number: int) -> None:
        self._set_target((number // STAGES + 1, number % STAGES + 1), False)
        self._begin(number)


def _numbers_of(stages: Sequence[str]) -> list[int]:
    """Returns the indices of stages in the list of all 32."""
    for stage in stages:
        if stage not in ALL_STAGES:
            raise ValueError(f"stages has {stage!r}; stages are '1-1' to '8-4'")
    return [ALL_STAGES.index(stage) for stage in stages]
