"""MarioEnv: one environment as a ``gymnasium.Env``.

It contains a native pool of one environment and copies all results, so every array
may be kept. Many environments are faster in one ``MarioVectorEnv`` or pool.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict

from . import make, text
from .pool import joined_types

# The NTSC console draws 60.0988 frames per second.
FRAMES_PER_SECOND = 60.0988
# The environment ids of a pool of one.
_ONLY = np.zeros(1, np.int32)


#: One array, a dictionary of arrays if ``obs_type`` names several kinds, or a str.
Observation = Any


class MarioEnv(gymnasium.Env[Observation, SupportsIndex]):
    """One Super Mario Bros. environment.

    Observations are uint8 of shape (4, 84, 84) by default, oldest frame first, and a
    dictionary of arrays if ``obs_type`` names several kinds. ``obs_type="text"`` makes
    them sentences, at most 120 tokens (docs/language-models.md). An info dictionary
    contains plain Python numbers (``x_pos``, ``flag_get``, ...).

    A pickle or copy is a new environment with the same arguments, which must be reset;
    ``snapshot`` and ``restore`` transfer the state.

    Args:
        task_id: an id of ``mario_envpool.list_all_envs()``.
        render_mode: "rgb_array" makes ``render`` return the screen, (240, 256, 3)
            uint8; "human" opens a window (pygame) and shows every step.
        channels_last: observations of three axes are (height, width, frames).
        float32: observations of uint8 become float32 between 0 and 1: they are divided
            by their largest possible value (255 for pictures).
        **config: the options of the game, as for ``mario_envpool.make``.
    """

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 15}  # noqa: RUF012

    def __init__(
        self,
        task_id: str = "SuperMarioBros-v0",
        render_mode: str | None = None,
        *,
        channels_last: bool = False,
        float32: bool = False,
        **config: Any,
    ) -> None:
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise ValueError(
                f"render_mode={render_mode!r} is not None or one of {modes}"
            )
        for key, allowed in (("num_envs", (1,)), ("batch_size", (0, 1))):
            given = config.pop(key, 1)
            if given not in allowed:
                raise ValueError(
                    f"MarioEnv is one environment, so {key}={given!r} cannot be set; "
                    "use gymnasium.make_vec or mario_envpool.make for several"
                )
        self._arguments = {
            "task_id": task_id,
            "render_mode": render_mode,
            "channels_last": channels_last,
            "float32": float32,
            **config,
        }
        config.setdefault("num_threads", 1)
        self._describes = joined_types(config.get("obs_type", "")) == "text"
        if self._describes:
            config["obs_type"] = "ram"
        self.render_mode = render_mode
        self._pool: Any = make(task_id, num_envs=1, **config)
        self._layout = Layout(self._pool.observation_space, channels_last, float32)
        self.observation_space = text.SPACE if self._describes else self._layout.space
        self.action_space = self._pool.action_space
        self._num_actions = int(self._pool.action_space.n)
        frame_skip = self._pool.config["frame_skip"]
        self.metadata = {
            **self.metadata,
            "render_fps": round(FRAMES_PER_SECOND / frame_skip),
        }
        self._window: Window | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts an episode; a seed makes this and all later episodes repeatable.

        Args:
            seed: seeds the environment. None: the first reset draws a seed from the
                system, unless ``seed=`` was given to the constructor.
            options: None or an empty dictionary; there are no options.
        """
        super().reset(seed=seed)
        if options:
            raise ValueError(
                f"reset has no options, got {sorted(options)}{hint(options)}"
            )
        pool = self._open_pool()
        seeds = None if seed is None else [native_seed(seed)]
        obs, _, _, _, info = pool._restart(_ONLY, seeds, self.np_random.integers)
        if self.render_mode == "human":
            self._show()
        return self._observation(obs), single_info(info)

    def step(
        self, action: SupportsIndex
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Plays one action for ``frame_skip`` frames.

        Raises:
            gymnasium.error.ResetNeeded: the episode is over or has not begun.
            TypeError: the action is not an integer.
            ValueError: the action does not exist.
        """
        pool = self._open_pool()
        if pool._ended[0]:
            raise gymnasium.error.ResetNeeded(
                "the episode is over or has not begun; call reset() first"
            )
        obs, reward, terminated, truncated, info = pool.step(
            [as_action(action, self._num_actions)]
        )
        if self.render_mode == "human":
            self._show()
        return (
            self._observation(obs),
            float(reward[0]),
            bool(terminated[0]),
            bool(truncated[0]),
            single_info(info),
        )

    def snapshot(self) -> bytes:
        """Returns the exact state: the game, the frame stack, the random generator.

        Environments with the same ROM and options can restore it, in any process.
        """
        blobs: npt.NDArray[np.uint8] = self._open_pool().snapshot(_ONLY)
        return blobs.tobytes()

    def restore(
        self, snapshot: bytes | npt.NDArray[np.uint8], rng: str = "saved"
    ) -> tuple[Observation, dict[str, Any]]:
        """Restores a snapshot; the game continues where the snapshot was taken.

        The counter of ``max_episode_steps`` is restored too, but the state of wrappers
        around this environment, such as the time limit of ``gymnasium.make``, is not.

        Args:
            snapshot: a result of ``snapshot``, or one row of a pool's snapshots.
            rng: "saved" repeats the random draws after the snapshot; "keep" continues
                with this environment's own generator.

        Returns:
            The observation and info at the snapshot.

        Raises:
            ValueError: the snapshot is damaged, or was taken with another ROM or other
                options.
        """
        pool = self._open_pool()
        blobs = np.frombuffer(snapshot, np.uint8)[None]
        obs, _, _, _, info = pool._resume(_ONLY, blobs, rng)
        if self.render_mode == "human":
            self._show()
        return self._observation(obs), single_info(info)

    @property
    def num_stages(self) -> int:
        """How many stages the options name: the first weights of ``set_starts``."""
        return int(self._open_pool().num_stages)

    def set_starts(
        self,
        weights: npt.ArrayLike | None,
        snapshots: Sequence[bytes | npt.NDArray[np.uint8]]
        | npt.NDArray[np.uint8]
        | None = None,
    ) -> None:
        """Sets where episodes begin, from the next ``reset`` on; see docs/starts.md.

        Args:
            weights: weights of the ``num_stages`` stages, then of the snapshots. Each
                reset draws a start with these weights. None: the options decide.
            snapshots: a list of results of ``snapshot``, or the snapshots of a pool,
                uint8 of shape (n, bytes).

        Raises:
            ValueError: a weight is negative, none is positive, there is not one for
                each start, or a snapshot cannot be restored or begin an episode here.
            TypeError: a weight is not a number, or a snapshot has the wrong type.
        """
        if snapshots is not None and not isinstance(snapshots, np.ndarray):
            snapshots = _stacked(snapshots)
        self._open_pool().set_starts(weights, snapshots)

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Returns the screen, (240, 256, 3) uint8, if the mode is "rgb_array"."""
        if self.render_mode is None:
            gymnasium.logger.warn(
                "render() does nothing without a render_mode; give "
                "render_mode='rgb_array' to gymnasium.make"
            )
            return None
        if self.render_mode == "human":
            self._show()
            return None
        return self._screen()

    def close(self) -> None:
        """Stops the native pool and closes the window; a second call does nothing."""
        if self._pool is not None:
            self._pool._close()
            self._pool = None
        if self._window is not None:
            self._window.close()
            self._window = None

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), self._arguments, self.spec)

    def _open_pool(self) -> Any:
        if self._pool is None:
            raise gymnasium.error.ClosedEnvironmentError("the environment is closed")
        return self._pool

    def _observation(self, obs: Observation) -> Observation:
        """Turns the pool's batch of one into an observation."""
        if self._describes:
            return text.describe(obs[0])
        return self._layout(each(first, obs))

    def _screen(self) -> npt.NDArray[np.uint8]:
        frame: npt.NDArray[np.uint8] = self._open_pool()._render(_ONLY, 0, 0, -1)[0]
        return frame

    def _show(self) -> None:
        if self._window is None:
            self._window = Window(self.metadata["render_fps"])
        self._window.show(self._screen())


def as_action(
    action: SupportsIndex, count: int, error: type[Exception] = ValueError
) -> int:
    """Returns an action as an int.

    Raises:
        TypeError: it is not an integer; a bool and a whole float are not either.
        error: it is not one of 0 to ``count - 1``.
    """
    try:
        is_bool = isinstance(action, bool | np.bool_)
        number = None if is_bool else operator.index(action)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(
            f"action={action!r} is {type(action).__name__}; give an int from 0 to "
            f"{count - 1}"
        )
    if not 0 <= number < count:
        raise error(f"action {number} does not exist; actions are 0 to {count - 1}")
    return number


class Layout:
    """The order of axes and the type of observations, as a training library wants them.

    Args:
        space: the space of the pool, a Box or a Dict of them.
        channels_last: as for ``MarioEnv``.
        float32: as for ``MarioEnv``.

    Attributes:
        space: the space of the converted observations.
    """

    def __init__(self, space: Any, channels_last: bool, float32: bool) -> None:
        for name, value in (("channels_last", channels_last), ("float32", float32)):
            if not isinstance(value, bool):
                raise TypeError(f"{name}={value!r} is not a bool")
        self._channels_last, self._float32 = channels_last, float32
        self._parts = space.spaces if isinstance(space, Dict) else {"": space}
        spaces: Any = {key: self._space(part) for key, part in self._parts.items()}
        self.space = Dict(spaces) if isinstance(space, Dict) else spaces[""]

    def __call__(self, obs: Observation) -> Observation:
        """Converts one observation, or a batch of them along the first axis."""
        if not (self._channels_last or self._float32):
            return obs
        if isinstance(obs, dict):
            return {key: self._convert(obs[key], self._parts[key]) for key in obs}
        return self._convert(obs, self._parts[""])

    def _space(self, part: Any) -> Box:
        low, high = (self._convert(bound, part) for bound in (part.low, part.high))
        return Box(low, high, low.shape, low.dtype.type)

    def _convert(self, rows: npt.NDArray[Any], part: Any) -> npt.NDArray[Any]:
        if self._channels_last and len(part.shape) == 3:
            rows = np.ascontiguousarray(np.moveaxis(rows, -3, -1))
        if self._float32 and part.dtype == np.uint8:
            rows = rows / np.float32(part.high.max())
        return rows


def each(function: Callable[..., Any], *observations: Observation) -> Observation:
    """Applies a function to observations of one layout, part by part."""
    if isinstance(observations[0], dict):
        return {
            key: function(*(o[key] for o in observations)) for key in observations[0]
        }
    return function(*observations)


def first(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Takes the only row of a batch of one."""
    only: npt.NDArray[Any] = rows[0].copy()
    return only


def hint(options: dict[str, Any]) -> str:
    """Returns advice on the reset option of gym-super-mario-bros, ``stages``."""
    if "stages" not in options:
        return ""
    return (
        "; the stages to draw from are an option of make: "
        f"stages={options['stages']!r}, random_stages=True"
    )


def rebuild(kind: type[Any], arguments: dict[str, Any], spec: Any) -> Any:
    """Makes an environment again, for pickle and copy.

    Gymnasium's ``EzPickle`` does not work: it makes a second object and drops it, and a
    ``VectorEnv`` that is dropped closes its pool.
    """
    env = kind(**arguments)
    env.spec = spec
    return env


def native_seed(seed: int) -> int:
    """Converts a Gymnasium seed, which has no bound, to a seed that every pool takes.

    A seed of more than 32 bits is hashed to 32 bits, so that all of its bits count.

    Raises:
        TypeError: the seed is not an integer.
        ValueError: the seed is negative.
    """
    try:
        value = operator.index(seed)
    except TypeError:
        raise TypeError(
            f"seed={seed!r} is {type(seed).__name__}; give an int of 0 or more"
        ) from None
    if value < 0:
        raise ValueError(f"seed={value} is not possible; give an int of 0 or more")
    if value < 2**32:
        return value
    return int(np.random.SeedSequence(value).generate_state(1)[0])


def _stacked(snapshots: Sequence[Any]) -> npt.NDArray[np.uint8] | None:
    """Returns snapshots as the rows of one array; None if there are none."""
    if isinstance(snapshots, bytes):
        raise TypeError(
            "set_starts: give a list of snapshots, also for a single snapshot"
        )
    rows = [
        each if isinstance(each, np.ndarray) else np.frombuffer(each, np.uint8)
        for each in snapshots
    ]
    sizes = sorted({row.size for row in rows})
    if len(sizes) > 1:
        raise ValueError(
            f"set_starts: got snapshots of {sizes[0]} bytes and of {sizes[-1]}; all "
            "snapshots of one environment have the same size"
        )
    return np.stack(rows) if rows else None


def single_info(info: dict[str, Any]) -> dict[str, Any]:
    """Takes the only row of a batch of one and converts its numbers to Python numbers.

    Users subtract these numbers, and a narrow NumPy integer would overflow.
    """
    return {
        key: value.item() if value.ndim == 1 else value[0].copy()
        for key, value in info.items()
        if key not in ("env_id", "players")
    }


class Window:
    """A window that shows frames at the speed of the game, at double size."""

    SCALE = 2

    def __init__(self, frames_per_second: int) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ImportError:
            raise gymnasium.error.DependencyNotInstalled(
                "render_mode='human' needs pygame; run: pip install pygame"
            ) from None
        self._pygame = pygame
        self._frames_per_second = frames_per_second
        self._surface: Any = None
        self._clock = pygame.time.Clock()

    def show(self, frame: npt.NDArray[np.uint8]) -> None:
        """Draws a frame, (height, width, 3) uint8, and waits until its time is over."""
        pygame = self._pygame
        size = (frame.shape[1] * self.SCALE, frame.shape[0] * self.SCALE)
        if self._surface is None:
            pygame.display.init()
            pygame.display.set_caption("mario-envpool")
            self._surface = pygame.display.set_mode(size)
        picture = pygame.surfarray.make_surface(frame.swapaxes(0, 1))
        pygame.transform.scale(picture, size, self._surface)
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(self._frames_per_second)

    def close(self) -> None:
        """Closes the window."""
        self._pygame.display.quit()
