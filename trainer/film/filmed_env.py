"""The game as a film: one environment whose steps return every picture.

A pool shows only the last picture of a step, about 10 a second; a film has all 60.
Game, observations and rewards equal the pool's bit for bit, because both run the same
native code. The only difference: a film does not call a `reward_fn`, but shows the
built-in reward.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mario_envpool import _core, nes, rom
from trainer.config.schema import EnvConfig
from trainer.config.tasks import check_level, is_native
from trainer.envs.pool import make_pool
from trainer.envs.tiles import packed

# Rows and columns of the game's picture.
HEIGHT, WIDTH = 240, 256

# Keys of a pool's configuration that configure the pool and not the game.
_OF_THE_POOL = {
    *("num_envs", "batch_size", "num_threads", "max_num_players", "base_path"),
    *("thread_affinity_offset", "seed", "env_seed", "gym_reset_return_info"),
    *("max_episode_steps", "reward_threshold"),
}
_SHOWN = ("left", "right", "up", "down", "select", "start", "A", "B")


def button_names(buttons: int) -> str:
    """The buttons of a pad byte, such as "right A B"; "none" for none."""
    held = [name for name in _SHOWN if buttons & nes.BUTTONS[name]]
    return " ".join(held) or "none"


class Step(NamedTuple):
    """The results of one step.

    Attributes:
        frames: (n, 240, 256, 3) uint8 RGB, every picture of the step, without the
            waits that the environment skips.
        obs: (C, H, W) uint8, as a pool returns it.
        reward: reward of the step; 0 at the start of an episode.
        terminated: the episode has ended.
        truncated: the episode was cut off.
        info: the fields of a pool's info, as Python numbers.
        opening: whether this is the start of an episode, before its first action.
    """

    frames: npt.NDArray[np.uint8]
    obs: npt.NDArray[np.uint8]
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    opening: bool = False

    @property
    def ending(self) -> str:
        """The ending of the episode: cleared, died or stopped; "" while it is open."""
        if self.info["flag_get"] and self.terminated:
            return "cleared"
        if self.terminated:
            return "died"
        return "stopped" if self.truncated else ""


def game_config(env: EnvConfig, *, level: str = "", **changes: Any) -> dict[str, Any]:
    """The options of the game in the environments of a run.

    Args:
        env: configuration of the run's environments.
        level: play this level, such as "4-2", instead of the task's levels.
        **changes: new values of other fields of `EnvConfig`.

    Raises:
        ValueError: the level does not exist, or the task is not Super Mario Bros.
    """
    if not is_native(env.task):
        raise ValueError(
            f"only Super Mario Bros. tasks can be filmed, got the task {env.task}"
        )
    if level:
        check_level(level, env.task)
    env = replace(env, num_envs=1, groups=1, num_threads=1, reward_fn="", **changes)
    pool = make_pool(env, seed=0)
    config = dict(pool.config)
    pool.close()
    if level:
        config |= {"stages": [level], "random_stages": False}
    return config


class FilmedEnv:
    """One environment that is played step by step and shows every picture."""

    def __init__(self, config: Mapping[str, Any], *, number: int = 0, seed: int = 0):
        """Starts the game.

        Args:
            config: configuration of a pool (`pool.config`), or from `game_config`.
            number: number of the environment in its pool.
            seed: seed of its idle frames and sticky actions.

        Raises:
            RomError: the ROM is not installed.
        """
        game = {k: v for k, v in config.items() if k not in _OF_THE_POOL}
        image = rom.load(game["rom"], game["rom_path"])
        self.config = game
        """The options of the game."""
        self.rom_sha1 = hashlib.sha1(image).hexdigest()
        self._env = _core._MarioEnv(image, game, number, seed)
        self._limit = int(config["max_episode_steps"])
        self._elapsed = 0
        self.buttons = self._env.buttons
        """The pad byte of each action."""
        self.level = ""
        """The level in which the episode began, such as 1-1."""
        self.played = bytearray()
        """The pad byte of every frame since the episode began, without idle frames."""

    @property
    def ram(self) -> npt.NDArray[np.uint8]:
        """Work RAM, (2048,) uint8, a copy."""
        return self._env.ram

    def reset(self, seed: int | None = None) -> Step:
        """Begins an episode; its picture is the one before the first step."""
        return self._opening(self._env.reset(seed))

    def snapshot(self) -> bytes:
        """The exact state, for `restore`."""
        return self._env.snapshot()

    def restore(self, snapshot: bytes) -> Step:
        """Restores a snapshot; steps count from there.

        Args:
            snapshot: from `snapshot`, or one row of the `pool.snapshot` of a pool with
                the same options.

        Raises:
            ValueError: the options, the ROM or the version differ.
        """
        # The pool prepends a header.
        size = len(self._env.snapshot())
        return self._opening(self._env.restore(snapshot[-size:]))

    def _opening(self, fields: Mapping[str, Any]) -> Step:
        self._elapsed = 0
        info = _info(fields)
        self.level = f"{info['world']}-{info['stage']}"
        self.played.clear()
        frames = self._env.render()[None]
        return Step(frames, _seen(fields), 0.0, False, False, info, True)

    def step(self, action: int) -> Step:
        """Plays one action."""
        frames, reward, terminated, truncated, fields = self._env.film(action)
        self._elapsed += 1
        self.played += bytes([self.buttons[action]]) * len(frames)
        truncated |= not terminated and self._elapsed >= self._limit
        return Step(frames, _seen(fields), reward, terminated, truncated, _info(fields))

    def aftermath(self, frames: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Yields pictures after a death or the flag: the fall, the slide down the pole.

        Args:
            frames: the most pictures; each is (240, 256, 3) uint8.
        """
        for _ in range(frames):
            # While the end lasts, every step is one frame and ends the episode again.
            pictures, _, terminated, *_ = self._env.film(0)
            if not terminated:
                return
            yield pictures[-1]


def _seen(fields: Mapping[str, Any]) -> npt.NDArray[np.uint8]:
    """The observation in the network's format."""
    if "obs" in fields:
        obs: npt.NDArray[np.uint8] = fields["obs"]
        return obs
    return packed(fields["obs:tiles"], fields["obs:motion"])


def _info(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.removeprefix("info:"): value.item()
        for name, value in fields.items()
        if name.startswith("info:")
    }
