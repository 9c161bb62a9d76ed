"""Stable-Baselines3: ``MarioVecEnv``, a ``VecEnv`` over the native pool.

::

    from mario_envpool.compat.sb3 import MarioVecEnv
    from stable_baselines3 import PPO

    venv = MarioVecEnv("SuperMarioBros-1-1-v0", num_envs=8)
    PPO("CnnPolicy", venv).learn(20_000)

This module needs Stable-Baselines3 (``pip install 'mario-envpool[sb3]'``); no other
module of this package does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from mario_envpool import make
from mario_envpool.env import FRAMES_PER_SECOND, each, hint, native_seed
from mario_envpool.vector import Observations, set_rows

StepResult = tuple[
    Observations, npt.NDArray[np.float32], npt.NDArray[np.bool_], list[dict[str, Any]]
]


class MarioVecEnv(VecEnv):
    """Environments of one native pool, with the interface of Stable-Baselines3.

    An environment whose episode ends is reset in the same step, as Stable-Baselines3
    expects. A native reset of only these environments does this, so no step is lost.
    The row has the first observation of the next episode, and its info has

    - ``terminal_observation``: the last observation of the old episode,
    - ``TimeLimit.truncated``: whether the old episode was truncated,
    - ``episode``: return ``r``, length ``l`` and seconds ``t`` since the start, as
      ``Monitor`` writes them; neither ``Monitor`` nor ``VecMonitor`` is needed.

    Args:
        task_id: an id of ``mario_envpool.list_all_envs()``.
        num_envs: how many environments.
        render_mode: "rgb_array" for ``render``, ``get_images`` and
            ``VecVideoRecorder``.
        info_keys: the fields of the game that infos contain, None for all. With many
            environments, fewer fields are faster; ``()`` is fastest.
        **config: the options of the game and of the pool, as for
            ``mario_envpool.make``, ``reward_fn`` included.
    """

    def __init__(
        self,
        task_id: str,
        num_envs: int = 1,
        *,
        render_mode: str | None = None,
        info_keys: Sequence[str] | None = None,
        **config: Any,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode={render_mode!r} is not None or 'rgb_array'")
        if "env_type" in config:
            raise TypeError("env_type cannot be chosen here; leave it out")
        if config.get("batch_size", 0) not in (0, num_envs):
            raise ValueError(
                f"batch_size={config['batch_size']!r} is not possible; all num_envs="
                f"{num_envs} environments step at once: leave batch_size out"
            )
        self._pool: Any = make(task_id, num_envs=num_envs, **config)
        self._info_keys = self._checked_info_keys(info_keys)
        self._ids: npt.NDArray[np.int32] = np.arange(num_envs, dtype=np.int32)
        self._returns = np.zeros(num_envs)
        self._begin = time.perf_counter()
        self._waiting = False  # whether a call that returns the step has begun
        self._result: StepResult | None = None  # of a step, before its resets
        self.render_mode = render_mode
        super().__init__(
            num_envs, self._pool.observation_space, self._pool.action_space
        )
        fps = round(FRAMES_PER_SECOND / self._pool.config["frame_skip"])
        self.metadata = {**self.metadata, "render_fps": fps}

    @property
    def pool(self) -> Any:
        """The native ``MarioGymnasiumEnvPool`` inside, for its other methods."""
        if self._pool is None:
            raise RuntimeError("the environments are closed")
        return self._pool

    def reset(self) -> Observations:
        """Starts an episode in every environment; returns the first observations.

        The results of a running step are dropped. Seeds are those of ``seed``; without
        ``seed``, the first reset draws seeds from NumPy's global generator, unless
        ``seed=`` was given to the constructor.
        """
        options = {key: None for given in self._options for key in given}
        if options:
            raise ValueError(
                f"reset has no options, got {sorted(options)}{hint(options)}"
            )
        self._drop_step()
        seeds = [native_seed(seed) for seed in self._seeds if seed is not None]
        obs, _, _, _, info = self.pool._restart(
            self._ids, seeds or None, np.random.randint
        )
        self.reset_infos = self._rows(info)
        self._reset_seeds()
        self._reset_options()
        return obs

    def step(self, actions: npt.NDArray[Any]) -> StepResult:
        """Plays one action in every environment: ``step_async`` and ``step_wait``.

        An exception such as that of Ctrl-C leaves no step under way.
        """
        self._require_no_step()
        self._waiting = True
        return self._finish(self.pool.step(actions))

    def step_async(self, actions: npt.NDArray[Any]) -> None:
        """Sends an action to every environment, and does not wait."""
        self._require_no_step()
        self.pool.send(actions)

    def step_wait(self) -> StepResult:
        """Waits for the step; returns observations, rewards, dones and infos."""
        if not self._under_way():
            raise RuntimeError("no step is under way; call step_async(actions) first")
        self._waiting = True
        if self._result is None:
            return self._finish(self.pool.recv())
        return self._reset_ended(self._result)

    def close(self) -> None:
        """Stops the native threads; a second call does nothing."""
        if self._pool is not None:
            self._pool._close()
            self._pool = None

    def get_images(self) -> list[npt.NDArray[np.uint8] | None]:
        """Returns the screen of every environment, (240, 256, 3) uint8 each."""
        if self.render_mode is None:
            raise RuntimeError("give render_mode='rgb_array' to MarioVecEnv")
        return list(self.pool._render(self._ids, 0, 0, -1))

    def get_attr(
        self, attr_name: str, indices: int | Iterable[int] | None = None
    ) -> list[Any]:
        """Returns an attribute of the pool, once per environment of ``indices``."""
        owner = self if attr_name in ("render_mode", "metadata") else self.pool
        return [getattr(owner, attr_name) for _ in self._indices(indices)]

    def set_attr(
        self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None
    ) -> None:
        """Raises AttributeError: the environments of a pool share one configuration."""
        raise AttributeError(
            f"{attr_name!r} cannot be set: the environments of a pool share one "
            "configuration, which is given to MarioVecEnv"
        )

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: int | Iterable[int] | None = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """Calls "render" or "snapshot" (without arguments) on some environments."""
        if method_args or method_kwargs:
            raise TypeError(
                f"{method_name} takes no arguments here, got {method_args} "
                f"{method_kwargs}"
            )
        ids = np.array(list(self._indices(indices)), np.int32)
        if method_name == "render":
            return list(self.pool._render(ids, 0, 0, -1))
        if method_name == "snapshot":
            return [blob.tobytes() for blob in self.pool.snapshot(ids)]
        raise AttributeError(
            f"there is no method {method_name!r} of a single environment, only render "
            "and snapshot; .pool has the methods of all environments"
        )

    def env_is_wrapped(
        self, wrapper_class: type[Any], indices: int | Iterable[int] | None = None
    ) -> list[bool]:
        """Returns True for ``Monitor``, as ``info["episode"]`` exists; else False."""
        return [wrapper_class is Monitor for _ in self._indices(indices)]

    def _indices(self, indices: int | Iterable[int] | None) -> Iterable[int]:
        return self._get_indices(indices)

    def _checked_info_keys(self, info_keys: Sequence[str] | None) -> list[str]:
        known = [
            key.removeprefix("info:")
            for key in self._pool._state_keys
            if key.startswith("info:") and key[5:] not in ("env_id", "players.env_id")
        ]
        known.append("elapsed_step")
        for key in info_keys or ():
            if key not in known:
                raise ValueError(
                    f"info_keys has {key!r}, which no info has; the keys are "
                    f"{', '.join(known)}"
                )
        return known if info_keys is None else list(info_keys)

    def _rows(self, info: dict[str, Any]) -> list[dict[str, Any]]:
        """Turns columns into a dictionary of Python numbers for each row.

        Columns are converted as a whole, because this runs in every step: an item()
        for each number takes seven times as long.
        """
        if not self._info_keys:
            return [{} for _ in range(len(info["elapsed_step"]))]
        columns = [info[key].tolist() for key in self._info_keys]
        return [
            dict(zip(self._info_keys, row, strict=True))
            for row in zip(*columns, strict=True)
        ]

    def _under_way(self) -> bool:
        pool = self.pool
        held = pool._held is not None or self._result is not None
        return held or pool._outstanding > 0

    def _require_no_step(self) -> None:
        """Refuses a second step, but drops a step that an exception ended."""
        failed = self.pool._held is not None  # in reward_fn, which is called again
        if self._under_way() and (failed or not self._waiting):
            raise RuntimeError("a step is under way; call step_wait() first")
        self._drop_step()

    def _drop_step(self) -> None:
        self._waiting = True  # so that the next call goes on here after an exception
        self.pool._drop_outstanding()
        self._result, self._waiting = None, False

    def _finish(self, rows: Any) -> StepResult:
        """Makes the result of a step, and resets the environments that ended."""
        obs, rewards, terminated, truncated, info = rows
        dones = terminated | truncated
        # A first row has reward 0, also after an end whose row nobody received.
        begun = info["elapsed_step"] <= 1
        self._returns = np.where(begun, 0, self._returns) + rewards
        infos = self._rows(info)
        seconds = round(time.perf_counter() - self._begin, 6)
        for i in self._ids[dones]:
            infos[i]["terminal_observation"] = each(partial(_copied_row, i), obs)
            infos[i]["TimeLimit.truncated"] = bool(truncated[i])
            infos[i]["episode"] = {
                "r": round(float(self._returns[i]), 6),
                "l": int(info["elapsed_step"][i]),
                "t": seconds,
            }
        self._result = obs, rewards, dones, infos
        return self._reset_ended(self._result)

    def _reset_ended(self, result: StepResult) -> StepResult:
        obs, _, dones, _ = result
        if dones.any():
            ended = self._ids[dones]
            # A reward_fn that failed is called again for the same rows.
            held = self.pool._held is not None
            rows = self.pool.recv() if held else self.pool._restart(ended)
            each(partial(set_rows, ended), obs, rows[0])
            for i, row in zip(ended, self._rows(rows[4]), strict=True):
                self.reset_infos[i] = row
        self._result, self._waiting = None, False
        return result


def _copied_row(i: int, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    row: npt.NDArray[Any] = rows[i].copy()
    return row
