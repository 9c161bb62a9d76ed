"""The native pool with the return values of EnvPool before 1.0, for older scripts.

Replace ``import envpool`` by ``from mario_envpool.compat import envpool``, and
CleanRL's ``ppo_atari_envpool.py`` plays Mario::

    envs = envpool.make("SuperMarioBros-1-1-v0", env_type="gym", num_envs=8)
    obs = envs.reset()
    obs, reward, done, info = envs.step(actions)

The installed EnvPool 1.2 has only the return values of Gymnasium.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

import mario_envpool
from mario_envpool import END_REASONS, list_all_envs, make_dm, make_spec
from mario_envpool.env import hint, native_seed

from .libraries import Joining, join, old_gym, old_space

__all__ = [
    "EnvPool",
    "list_all_envs",
    "make",
    "make_dm",
    "make_gym",
    "make_gymnasium",
    "make_spec",
]

_LIFE = END_REASONS.index("life")
_SHAPES = ("gym", "gymnasium")


def make(task_id: str, env_type: str, **config: Any) -> Any:
    """Makes a pool with the return values of old EnvPool.

    Args:
        task_id: an id of ``list_all_envs()``.
        env_type: "gym": ``step`` returns (obs, reward, done, info) and ``reset`` obs;
            "gymnasium": ``step`` returns five values and ``reset`` obs and info; "dm":
            the dm_env pool of ``mario_envpool.make_dm``.
        **config: the options of ``mario_envpool.make``, and ``gym_reset_return_info``:
            whether a "gym" ``reset`` also returns the info.

    Raises:
        RomError: the ROM of this id is not installed.
        ValueError: the id, or the value of an option, is not allowed.
        TypeError: an option does not exist, or its value has the wrong type.
    """
    if env_type == "dm":
        return make_dm(task_id, **config)
    if env_type not in _SHAPES:
        raise ValueError(f"env_type={env_type!r} is not 'gym', 'gymnasium' or 'dm'")
    return EnvPool(task_id, env_type, **config)


def make_gym(task_id: str, **config: Any) -> EnvPool:
    """Makes a pool whose ``step`` returns four values; see ``make``."""
    return EnvPool(task_id, "gym", **config)


def make_gymnasium(task_id: str, **config: Any) -> EnvPool:
    """Makes a pool whose ``step`` returns five values; see ``make``."""
    return EnvPool(task_id, "gymnasium", **config)


if TYPE_CHECKING:
    _Env = gymnasium.Env[Any, Any]
else:
    _Env = Joining


class EnvPool(_Env):
    """A pool with the return values of old EnvPool.

    With "gym" it is a ``gym.Env`` with the spaces of old Gym where that is installed,
    else a ``gymnasium.Env``.

    In addition to the fields of the game, ``info`` has

    - ``lives``: lives left, the current one included; 0 on a row after which a new game
      begins. An episode of one level has one life.
    - ``reward``: the reward before ``reward_clip``.
    - ``terminated``: 1 if the game is over; 0 if only a life is lost with
      ``episodic_life``, or if ``max_episode_steps`` truncated the episode.
    - ``TimeLimit.truncated``: whether the episode was truncated.
    - ``elapsed_step``, ``env_id``: as in the native pool.

    Attributes can be set (``envs.num_envs = 8``). Other attributes (``all_env_ids``,
    ``config``, ``snapshot``, ...) are those of the native pool. The step after a
    ``done`` row returns the first row of the next episode.

    Args:
        task_id: an id of ``mario_envpool.list_all_envs()``.
        env_type: "gym" or "gymnasium", as for ``make``.
        **config: as for ``make``.
    """

    def __init__(self, task_id: str, env_type: str, **config: Any) -> None:
        self._five = env_type == "gymnasium"
        self._reset_info = config.pop("gym_reset_return_info", False) or self._five
        # Clipped here, because info has the unclipped reward.
        self._clip = config.pop("reward_clip", False)
        if not isinstance(self._clip, bool):
            raise TypeError(f"reward_clip={self._clip!r} is not a bool")
        self._pool: Any = mario_envpool.make(task_id, **config)
        self._one_life = bool(self._pool.config["stages"])
        self._one_life |= self._pool.config["random_stages"]
        self.num_envs: int = self._pool.config["num_envs"]
        gym: Any = None if self._five else old_gym()
        join(self, (gym or gymnasium).Env)
        spaces = [self._pool.observation_space, self._pool.action_space]
        if gym is not None:
            spaces = [old_space(space, gym) for space in spaces]
        self.observation_space, self.action_space = spaces

    def step(self, action: Any, env_id: npt.NDArray[np.int32] | None = None) -> Any:
        """Plays one action in every environment, or in those of ``env_id``."""
        return self._result(self._pool.step(action, env_id))

    def reset(
        self,
        env_id: npt.NDArray[np.int32] | None = None,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> Any:
        """Starts an episode in every environment, or in those of ``env_id``.

        Args:
            env_id: environments; None: all of them.
            seed: seeds the environments with ``seed``, ``seed + 1``, and so on.
            options: None or an empty dictionary; there are no options.
        """
        if options:
            raise ValueError(
                f"reset has no options, got {sorted(options)}{hint(options)}"
            )
        ids = self._pool.all_env_ids if env_id is None else env_id
        seeds = None
        if seed is not None:
            seeds = [native_seed(seed + i) for i in range(np.size(ids))]
        return self._result(self._pool._restart(ids, seeds), True, self._reset_info)

    def async_reset(self) -> None:
        """Resets every environment; ``recv`` returns the results."""
        self._pool.async_reset()

    def send(self, action: Any, env_id: npt.NDArray[np.int32] | None = None) -> None:
        """Sends actions to environments, and does not wait for the results."""
        self._pool.send(action, env_id)

    def recv(self, reset: bool = False, return_info: bool = True) -> Any:
        """Waits for the next batch.

        Args:
            reset: return only the observations and, with ``return_info``, the info.
            return_info: with ``reset``, whether to return the info too.
        """
        return self._result(self._pool.recv(), reset, return_info)

    def render(self, *arguments: Any, **keywords: Any) -> Any:
        """Returns the screens, as the native pool's ``render``."""
        return self._pool.render(*arguments, **keywords)

    def close(self) -> None:
        """Stops the native threads; a second call does nothing."""
        self._pool.close()

    def __len__(self) -> int:
        return len(self._pool)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"EnvPool has no attribute {name!r}")
        return getattr(self._pool, name)

    def _result(self, rows: Any, reset: bool = False, return_info: bool = True) -> Any:
        obs, reward, terminated, truncated, info = rows
        self._add_to(info, reward, terminated, truncated)
        if reset:
            return (obs, info) if return_info else obs
        if self._clip:
            reward = np.sign(reward)
        if self._five:
            return obs, reward, terminated, truncated, info
        return obs, reward, terminated | truncated, info

    def _add_to(
        self,
        info: dict[str, Any],
        reward: npt.NDArray[np.float32],
        terminated: npt.NDArray[np.bool_],
        truncated: npt.NDArray[np.bool_],
    ) -> None:
        life, lost = info["life"], info["end_reason"] == _LIFE
        over = terminated & (~lost | (life == 0))
        # A lost life is still counted on the row that reports it.
        lives = np.ones_like(life) if self._one_life else life + 1 - lost
        info["lives"] = np.where(over | truncated, 0, lives).astype(np.int32)
        info["reward"] = reward
        info["terminated"] = over.astype(np.int32)
        info["TimeLimit.truncated"] = truncated
