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
from .env import FRAMES_PER_SECOND, Layout, each, hint, native_seed, rebuild

#: One array, or a dictionary of arrays if ``obs_type`` names several kinds.
Observations = Any
Actions = npt.NDArray[np.integer[Any]]
Flags = npt.NDArray[np.bool_]
Infos = dict[str, Any]
StepResult = tuple[Observations, npt.NDArray[np.float64], Flags, Flags, Infos]
_RENDER_MODES = ("rgb_array", "rgb_array_list")
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
        render_mode: "rgb_array" makes ``render`` return the screens; "rgb_array_list"
            all screens since the last ``render``, or since the reset of the
            environment.
        autoreset_mode: Gymnasium's "NextStep" (the step after the last step of an
            episode resets, and ignores the action) or "Disabled" (the caller resets
            ended episodes, with ``reset_mask``), or the ``AutoresetMode``.
        channels_last: as for ``MarioEnv``.
        float32: as for ``MarioEnv``.
        **config: the options of the game and of the pool, as for
            ``mario_envpool.make``.
    """

    def __init__(
        self,
        num_envs: int = 1,
        task_id: str = "SuperMarioBros-v0",
        render_mode: str | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        *,
        channels_last: bool = False,
        float32: bool = False,
        **config: Any,
    ) -> None:
        if render_mode not in (None, *_RENDER_MODES):
            raise ValueError(
                f"render_mode={render_mode!r} is not None or one of {_RENDER_MODES}"
            )
        if autoreset_mode not in _AUTORESET_MODES:
            raise ValueError(
                f"autoreset_mode={autoreset_mode!r} is not 'NextStep' or 'Disabled'"
            )
        self._arguments = {
            "num_envs": num_envs,
            "task_id": task_id,
            "render_mode": render_mode,
            "autoreset_mode": autoreset_mode,
            "channels_last": channels_last,
            "float32": float32,
            **config,
        }
        self.render_mode = render_mode
        self._pool: Any = make(task_id, num_envs=num_envs, **config)
        self.num_envs = num_envs
        self.batch_size: int = self._pool.config["batch_size"]
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        whole = {
            "autoreset_mode": self.autoreset_mode is AutoresetMode.DISABLED,
            "render_mode": render_mode == "rgb_array_list",
        }
        for name, is_needed in whole.items():
            if is_needed and self.batch_size < num_envs:
                raise ValueError(
                    f"{name}={self._arguments[name]!r} needs batch_size == num_envs, "
                    f"here it is {self.batch_size} of {num_envs}: leave out batch_size"
                )
        self._screens: list[list[npt.NDArray[np.uint8]]] = [[] for _ in range(num_envs)]
        self.metadata = {
            "render_modes": list(_RENDER_MODES),
            "render_fps": round(FRAMES_PER_SECOND / self._pool.config["frame_skip"]),
            "autoreset_mode": self.autoreset_mode,
        }
        self._layout = Layout(self._pool.observation_space, channels_last, float32)
        self.single_observation_space = self._layout.space
        self.single_action_space = self._pool.action_space
        self.observation_space = batch_space(
            self.single_observation_space, self.batch_size
        )
        self.action_space = batch_space(self.single_action_space, self.batch_size)
        self._ids: npt.NDArray[np.int32] = np.arange(num_envs, dtype=np.int32)
        self._begun = False  # whether all environments have an episode
        self._last_obs: Observations | None = None  # None: an exception ended a call

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
        if seeds is not None:
            seeds = [seeds[i] for i in np.flatnonzero(mask)]
        before = None if mask.all() else self._observed()
        self._last_obs = None
        obs, _, _, _, infos = self._pool._restart(
            self._ids[mask], seeds, self.np_random.integers
        )
        obs = self._layout(obs)
        if self.render_mode == "rgb_array_list":
            self._collect_screens(mask, self._ids[mask])
        return self._of_all(before, obs, infos)

    def step(self, actions: Actions) -> StepResult:
        """Plays one action in every environment.

        Args:
            actions: integers, shape (num_envs,).

        Returns:
            Observations, rewards (float64), terminations, truncations and infos; row
            i of each belongs to environment i.
        """
        self._require_sync("step")
        if not self._begun:
            raise gymnasium.error.ResetNeeded("call reset() before the first step()")
        if self.autoreset_mode is AutoresetMode.DISABLED:
            ended = np.flatnonzero(self._pool._ended)
            if ended.size:
                raise gymnasium.error.ResetNeeded(
                    f"the episodes of {ended} are over, and autoreset is disabled; "
                    "call reset(options={'reset_mask': ...}) first"
                )
        self._last_obs = None
        collects = self.render_mode == "rgb_array_list"
        begun = self._pool._ended if collects else None
        obs, rewards, terminated, truncated, infos = self._pool.step(actions)
        self._last_obs = obs = self._layout(obs)
        if begun is not None:
            self._collect_screens(begun, self._ids)
        return (
            obs,
            rewards.astype(np.float64),
            terminated,
            truncated,
            vector_infos(infos),
        )

    def async_reset(self, *, seed: int | Sequence[int | None] | None = None) -> None:
        """Resets every environment; ``recv`` returns the results."""
        pool, seeds = self._open_pool(), self._seeds(seed)
        seeds = pool._seeds(self.num_envs, seeds, self.np_random.integers)
        pool._reset(self._ids, seeds)
        pool._seeded |= seeds is not None

    def send(self, actions: Actions, env_ids: npt.NDArray[np.int32]) -> None:
        """Sends actions to some environments, and does not wait for the results."""
        self._open_pool().send(actions, env_ids)

    def recv(self) -> StepResult:
        """Waits for the next batch: ``batch_size`` rows, in order of completion.

        ``infos["env_id"]`` has the environment of each row.
        """
        obs, rewards, terminated, truncated, infos = self._open_pool().recv()
        env_ids = infos["env_id"]
        result = vector_infos(infos)
        result["env_id"] = env_ids
        rewards = rewards.astype(np.float64)
        return self._layout(obs), rewards, terminated, truncated, result

    def snapshot(
        self, ids: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None
    ) -> npt.NDArray[np.uint8]:
        """Returns exact states, uint8 (n, bytes), of all environments or of ``ids``.

        With ``batch_size`` below ``num_envs``, the last result of these environments
        must have been received, and no action sent since.
        """
        blobs: npt.NDArray[np.uint8] = self._open_pool().snapshot(
            self._ids if ids is None else ids
        )
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
        ids = self._ids if ids is None else ids
        if np.size(ids) == self.num_envs:
            before = None
        elif self._begun:
            before = self._observed()
        else:
            raise gymnasium.error.ResetNeeded(
                "before the first reset() all environments must be restored at once"
            )
        self._last_obs = None
        obs, _, _, _, infos = self._pool._resume(ids, blobs, rng)
        return self._of_all(before, self._layout(obs), infos)

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

    def render(self) -> tuple[Any, ...] | None:
        """Returns the screen of every environment, (240, 256, 3) uint8 each.

        With "rgb_array_list" it returns a list of screens for each environment.
        """
        if self.render_mode == "rgb_array_list":
            screens, self._screens = self._screens, [[] for _ in self._screens]
            return tuple(screens)
        if self.render_mode is None:
            gymnasium.logger.warn(
                "render() does nothing without a render_mode; give "
                "render_mode='rgb_array' to gymnasium.make_vec"
            )
            return None
        return tuple(self._open_pool()._render(self._ids, 0, 0, -1))

    def _collect_screens(self, begun: Flags, ids: npt.NDArray[np.int32]) -> None:
        """Keeps the screens of a call; a new episode drops the earlier ones."""
        for i, screen in zip(ids, self._pool._render(ids, 0, 0, -1), strict=True):
            if begun[i]:
                self._screens[i] = []
            self._screens[i].append(screen)

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
        if not (self._begun or mask.all()):
            raise gymnasium.error.ResetNeeded(
                "the first reset() must include all environments"
            )
        return mask

    def _seeds(
        self, seed: int | Sequence[int | None] | None
    ) -> list[int | None] | None:
        """Returns a native seed for each environment, None for no change."""
        if isinstance(seed, Sequence | np.ndarray):
            if len(seed) != self.num_envs:
                raise ValueError(
                    f"a list of seeds needs one for each of the {self.num_envs} "
                    f"environments, got {len(seed)}"
                )
            return [None if item is None else native_seed(item) for item in seed]
        super().reset(seed=seed)  # np_random
        if seed is None:
            return None
        return [native_seed(seed + i) for i in range(self.num_envs)]

    def _observed(self) -> Observations:
        """Returns the present observations of all environments.

        A step that an exception ended may have been played. Then the observations are
        those of restored snapshots, which change nothing else.
        """
        if self._last_obs is None:
            states = self._pool.snapshot(self._ids)
            obs, *_ = self._pool._resume(self._ids, states, "saved")
            self._last_obs = self._layout(obs)
        return self._last_obs

    def _of_all(
        self, before: Observations, obs: Observations, infos: Infos
    ) -> tuple[Observations, Infos]:
        """Merges rows of some environments with the observations of the others."""
        ids = infos["env_id"]
        everyone = len(ids) == self.num_envs
        if everyone and (ids == self._ids).all():
            merged, merged_infos = obs, vector_infos(infos)
        else:
            merged, merged_infos = each(np.copy, obs if everyone else before), {}
            mask = np.isin(self._ids, ids)
            each(partial(set_rows, ids), merged, obs)
            for key, value in infos.items():
                if key in ("env_id", "players"):
                    continue
                whole = np.zeros_like(value, shape=self._shape(value))
                merged_infos.setdefault(key, whole)[ids] = value
                merged_infos[f"_{key}"] = mask.copy()
        self._last_obs, self._begun = merged, True
        return merged, merged_infos

    def _shape(self, rows: npt.NDArray[Any]) -> tuple[int, ...]:
        """Returns the shape of ``rows`` with one row per environment."""
        return (self.num_envs, *rows.shape[1:])


def set_rows(
    ids: npt.NDArray[np.int32], to: npt.NDArray[Any], rows: npt.NDArray[Any]
) -> None:
    """Writes the rows of some environments into an array of all."""
    to[ids] = rows


def vector_infos(infos: Infos) -> Infos:
    """Adds Gymnasium's masks: ``_key`` marks the rows of ``key`` that are filled."""
    result: Infos = {}
    masks = np.ones((len(infos), len(infos["env_id"])), np.bool_)
    for (key, value), mask in zip(infos.items(), masks, strict=True):
        if key not in ("env_id", "players"):
            result[key] = value
            result[f"_{key}"] = mask
    return result
