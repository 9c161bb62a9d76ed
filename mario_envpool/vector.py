"""MarioVectorEnv: many environments as a ``gymnasium.vector.VectorEnv``.

It contains a native pool and is not one itself: ``gymnasium.make_vec`` overwrites the
``spec`` of the object it makes, and EnvPool's class needs its own ``spec``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from . import make
from .env import FRAMES_PER_SECOND, SEED_LIMIT, each, hint, native_seed, rebuild

#: One array, or a dictionary of arrays if ``obs_type`` names several kinds.
Observations = Any
Actions = npt.NDArray[np.integer[Any]]
Flags = npt.NDArray[np.bool_]
Infos = dict[str, Any]
StepResult = tuple[Observations, npt.NDArray[np.float64], Flags, Flags, Infos]
_AUTORESET_MODES = (
    *(AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED),
    *(AutoresetMode.NEXT_STEP.value, AutoresetMode.DISABLED.value),
)


class MarioVectorEnv(VectorEnv[Observations, Actions, npt.NDArray[Any]]):
    """Many Super Mario Bros. environments, run by native threads.

    Behaves step by step like a ``SyncVectorEnv`` of ``MarioEnv``. The next ``step``
    resets an environment whose episode has ended, and ignores its action. Observations
    are views of memory that the pool recycles only after they are dropped; all other
    arrays are new.

    With ``batch_size`` below ``num_envs`` use ``async_reset``, ``recv`` and ``send``
    in place of ``reset`` and ``step``.

    A pickle or copy is a new object with the same arguments, which must be reset;
    ``snapshot`` and ``restore`` transfer the states.

    Args:
        num_envs: how many environments.
        task_id: an id of ``mario_envpool.list_all_envs()``.
        render_mode: "rgb_array" makes ``render`` return the screens.
        autoreset_mode: Gymnasium's "NextStep" (the step after the last step of an
            episode resets, and ignores the action) or "Disabled" (the caller resets
            ended episodes, with ``reset_mask``), or the ``AutoresetMode``.
        **config: the options of the game and of the pool, as for
            ``mario_envpool.make``.
    """

    def __init__(
        self,
        num_envs: int = 1,
        task_id: str = "SuperMarioBros-v0",
        render_mode: str | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        **config: Any,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode={render_mode!r} is not None or 'rgb_array'")
        if autoreset_mode not in _AUTORESET_MODES:
            raise ValueError(
                f"autoreset_mode={autoreset_mode!r} is not 'NextStep' or 'Disabled'"
            )
        self._arguments = {
            "num_envs": num_envs,
            "task_id": task_id,
            "render_mode": render_mode,
            "autoreset_mode": autoreset_mode,
            **config,
        }
        self.render_mode = render_mode
        self._pool: Any = make(task_id, num_envs=num_envs, **config)
        self.num_envs = num_envs
        self.batch_size: int = self._pool.config["batch_size"]
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        if self.autoreset_mode is AutoresetMode.DISABLED and self.batch_size < num_envs:
            raise ValueError(
                f"autoreset_mode={autoreset_mode!r} needs batch_size == num_envs, here "
                f"it is {self.batch_size} of {num_envs}: leave out batch_size"
            )
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": round(FRAMES_PER_SECOND / self._pool.config["frame_skip"]),
            "autoreset_mode": self.autoreset_mode,
        }
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space
        self.observation_space = batch_space(
            self.single_observation_space, self.batch_size
        )
        self.action_space = batch_space(self.single_action_space, self.batch_size)
        self._seeded = "seed" in config or "env_seed" in config
        self._ids: npt.NDArray[np.int32] = np.arange(num_envs, dtype=np.int32)
        self._last_obs: Observations | None = None
        self._ended: Flags = np.zeros(num_envs, np.bool_)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observations, Infos]:
        """Starts new episodes, in all environments or in those of a mask.

        Args:
            seed: an int seeds environment i with ``seed + i``. A sequence has one seed
                for each environment; None leaves a generator unchanged.
            options: ``{"reset_mask": flags}``, a bool for each environment. The other
                environments are unchanged, and their last observation is returned.
        """
        self._require_sync("reset")
        mask = self._reset_mask(options)
        seeds = self._seeds(seed)
        requests = self._by_seeding(mask, seeds)
        for chosen, ids in requests:
            self._pool._reset(ids, chosen)
        parts = [(ids, *self._pool.recv(reset=True)) for _, ids in requests]
        self._ended &= ~mask
        self._last_obs, infos = self._merge(mask, parts)
        return self._last_obs, infos

    def step(self, actions: Actions) -> StepResult:
        """Plays one action in every environment.

        Args:
            actions: integers, shape (num_envs,).

        Returns:
            Observations, rewards (float64), terminations, truncations and infos; row
            i of each belongs to environment i.
        """
        self._require_sync("step")
        if self._last_obs is None:
            raise gymnasium.error.ResetNeeded("call reset() before the first step()")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            raise gymnasium.error.ResetNeeded(
                f"the episodes of {np.flatnonzero(self._ended)} are over, and "
                "autoreset is disabled; call reset(options={'reset_mask': ...}) first"
            )
        obs, rewards, terminated, truncated, infos = self._pool.step(
            as_actions(actions, self.num_envs)
        )
        self._last_obs = obs
        self._ended = terminated | truncated
        return (
            obs,
            rewards.astype(np.float64),
            terminated,
            truncated,
            vector_infos(infos),
        )

    def async_reset(self, *, seed: int | Sequence[int | None] | None = None) -> None:
        """Resets every environment; ``recv`` returns the results."""
        seeds = self._seeds(seed)
        everyone = np.ones(self.num_envs, np.bool_)
        for chosen, ids in self._by_seeding(everyone, seeds):
            self._open_pool()._reset(ids, chosen)

    def send(self, actions: Actions, env_ids: npt.NDArray[np.int32]) -> None:
        """Sends actions to some environments, and does not wait for the results."""
        env_ids = np.asarray(env_ids, np.int32)
        self._open_pool().send(as_actions(actions, len(env_ids)), env_ids)

    def recv(self) -> StepResult:
        """Waits for the next batch: ``batch_size`` rows, in order of completion.

        ``infos["env_id"]`` has the environment of each row.
        """
        obs, rewards, terminated, truncated, infos = self._open_pool().recv()
        env_ids = infos["env_id"]
        result = vector_infos(infos)
        result["env_id"] = env_ids
        return obs, rewards.astype(np.float64), terminated, truncated, result

    def snapshot(
        self, ids: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None
    ) -> npt.NDArray[np.uint8]:
        """Returns exact states, uint8 (n, bytes), of all environments or of ``ids``.

        With ``batch_size`` below ``num_envs``, the last result of these environments
        must have been received, and no action sent since.
        """
        chosen = self._ids if ids is None else as_ids(ids)
        blobs: npt.NDArray[np.uint8] = self._open_pool().snapshot(chosen)
        return blobs

    def restore(
        self,
        ids: Sequence[int] | npt.NDArray[np.integer[Any]] | None,
        blobs: npt.NDArray[np.uint8],
        rng: str = "saved",
    ) -> tuple[Observations, Infos]:
        """Restores snapshots; other environments are unchanged, as in a masked reset.

        The next ``step`` resets an environment whose saved episode had ended.

        Args:
            ids: environments, or None for all; they may differ from the environments
                of the snapshots.
            blobs: one row of ``snapshot`` for each environment, uint8 (n, bytes).
            rng: "saved" repeats the random draws after the snapshots; "keep" continues
                with the generators of the environments.
        """
        self._require_sync("restore", "pool.restore() and recv()")
        chosen = self._ids if ids is None else as_ids(ids)
        if self._last_obs is None and len(set(chosen.tolist())) < self.num_envs:
            raise gymnasium.error.ResetNeeded(
                "before the first reset() all environments must be restored at once"
            )
        if isinstance(blobs, np.ndarray) and blobs.shape[:1] == chosen.shape:
            order = np.argsort(chosen)  # rows come back as they are sent
            chosen, blobs = chosen[order], blobs[order]
        self._pool.restore(chosen, blobs, rng)
        obs, _, terminated, truncated, info = self._pool.recv()
        self._ended[chosen] = terminated | truncated
        if rng == "saved":
            self._seeded = True
        self._last_obs, infos = self._merge(
            np.isin(self._ids, chosen), [(chosen, obs, info)]
        )
        return self._last_obs, infos

    @property
    def num_stages(self) -> int:
        """How many stages the options name: the first weights of ``set_starts``."""
        return int(self._open_pool().num_stages)

    def set_starts(
        self,
        weights: npt.ArrayLike | None,
        snapshots: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        """Sets where episodes begin, from the next resets on; see docs/starts.md.

        Args:
            weights: weights of the ``num_stages`` stages, then of the rows of
                ``snapshots``. Each environment draws a start with these weights, with
                its own generator. None: the options decide.
            snapshots: rows of ``snapshot``, (n, bytes) uint8.

        Raises:
            ValueError: a weight is negative, none is positive, there is not one for
                each start, or a snapshot cannot be restored or begin an episode here.
        """
        self._open_pool().set_starts(weights, snapshots)

    def render(self) -> tuple[npt.NDArray[np.uint8], ...] | None:
        """Returns the screen of every environment, (240, 256, 3) uint8 each."""
        if self.render_mode is None:
            gymnasium.logger.warn(
                "render() does nothing without a render_mode; give "
                "render_mode='rgb_array' to gymnasium.make_vec"
            )
            return None
        return tuple(self._open_pool()._render(self._ids, 0, 0, -1))

    def close_extras(self, **kwargs: Any) -> None:
        """Stops the native threads; arrays that were handed out stay valid."""
        self._pool._close()
        self._pool = None

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), self._arguments, self.spec)

    @property
    def pool(self) -> Any:
        """The native ``MarioGymnasiumEnvPool`` inside, for its other methods."""
        return self._open_pool()

    def _open_pool(self) -> Any:
        if self._pool is None:
            raise gymnasium.error.ClosedEnvironmentError("the environments are closed")
        return self._pool

    def _require_sync(
        self, call: str, instead: str = "async_reset(), recv() and send()"
    ) -> None:
        self._open_pool()
        if self.batch_size != self.num_envs:
            raise RuntimeError(
                f"{call}() needs batch_size == num_envs, here it is {self.batch_size} "
                f"of {self.num_envs}: use {instead}"
            )

    def _reset_mask(self, options: dict[str, Any] | None) -> Flags:
        """Checks the options of ``reset`` and returns which environments to reset."""
        unknown = set(options or {}) - {"reset_mask"}
        if unknown:
            raise ValueError(
                f"reset has the option 'reset_mask' only, got {sorted(unknown)}"
                f"{hint(options or {})}"
            )
        if not options:
            return np.ones(self.num_envs, np.bool_)
        mask: Flags = np.asarray(options["reset_mask"])
        if mask.dtype != np.bool_:
            raise TypeError(
                "options['reset_mask'] must be an array or list of bool, got "
                f"{options['reset_mask']!r}"
            )
        if mask.shape != (self.num_envs,):
            raise ValueError(
                f"options['reset_mask'] must have shape ({self.num_envs},), got "
                f"{mask.shape}"
            )
        if not mask.any():
            raise ValueError("options['reset_mask'] selects no environment")
        if self._last_obs is None and not mask.all():
            raise gymnasium.error.ResetNeeded(
                "the first reset() must include all environments"
            )
        return mask

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        """Returns a native seed for each environment, None for no change."""
        if isinstance(seed, Sequence | np.ndarray):
            if len(seed) != self.num_envs:
                raise ValueError(
                    f"a list of seeds needs one for each of the {self.num_envs} "
                    f"environments, got {len(seed)}"
                )
            self._seeded = True
            return [None if item is None else native_seed(item) for item in seed]
        super().reset(seed=seed)  # np_random
        if seed is not None:
            self._seeded = True
            return [native_seed(seed + i) for i in range(self.num_envs)]
        if self._seeded:
            return [None] * self.num_envs
        self._seeded = True
        drawn = self.np_random.integers(SEED_LIMIT, size=self.num_envs)
        return [int(item) for item in drawn]

    def _by_seeding(
        self, mask: Flags, seeds: list[int | None]
    ) -> list[tuple[list[int] | None, npt.NDArray[np.int32]]]:
        """Splits the environments of a mask into seeded and unseeded ones.

        One native reset takes seeds for all of its environments or for none.
        """
        seeded = np.array([seed is not None for seed in seeds], np.bool_)
        parts: list[tuple[list[int] | None, npt.NDArray[np.int32]]] = []
        if (mask & seeded).any():
            ids = self._ids[mask & seeded]
            parts.append(([seed for i in ids if (seed := seeds[i]) is not None], ids))
        if (mask & ~seeded).any():
            parts.append((None, self._ids[mask & ~seeded]))
        return parts

    def _merge(
        self,
        mask: Flags,
        parts: list[tuple[npt.NDArray[np.int32], Observations, Infos]],
    ) -> tuple[Observations, Infos]:
        """Merges the rows of partial resets into arrays of all environments."""
        ids, obs, infos = parts[0]
        if len(ids) == self.num_envs:
            return obs, vector_infos(infos)
        if self._last_obs is None:
            merged = each(
                lambda rows: np.zeros_like(rows, shape=self._shape(rows)), obs
            )
        else:
            merged = each(np.copy, self._last_obs)
        merged_infos: Infos = {}
        for ids, obs, infos in parts:
            each(partial(set_rows, ids), merged, obs)
            for key, value in infos.items():
                if key in ("env_id", "players"):
                    continue
                whole = np.zeros_like(value, shape=self._shape(value))
                merged_infos.setdefault(key, whole)[ids] = value
                merged_infos[f"_{key}"] = mask.copy()
        return merged, merged_infos

    def _shape(self, rows: npt.NDArray[Any]) -> tuple[int, ...]:
        """Returns the shape of ``rows`` with one row per environment."""
        return (self.num_envs, *rows.shape[1:])


def set_rows(
    ids: npt.NDArray[np.int32], to: npt.NDArray[Any], rows: npt.NDArray[Any]
) -> None:
    """Writes the rows of some environments into an array of all."""
    to[ids] = rows


def as_actions(actions: Actions, count: int) -> npt.NDArray[np.int32]:
    """Converts actions to int32 (count,); refuses other lengths and floats."""
    array = np.asarray(actions)
    if array.shape != (count,) or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"actions must be integers of shape ({count},), got {array.dtype} of shape "
            f"{array.shape}"
        )
    return array.astype(np.int32)


def as_ids(
    ids: Sequence[int] | npt.NDArray[np.integer[Any]],
) -> npt.NDArray[np.int32]:
    """Converts environment ids to int32 (n,)."""
    array = np.asarray(ids)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"ids must be a list of environments such as [0, 2], got {ids!r}"
        )
    return array.astype(np.int32)


def vector_infos(infos: Infos) -> Infos:
    """Adds Gymnasium's masks: ``_key`` marks the rows of ``key`` that are filled."""
    result: Infos = {}
    for key, value in infos.items():
        if key not in ("env_id", "players"):
            result[key] = value
            result[f"_{key}"] = np.ones(len(value), np.bool_)
    return result
