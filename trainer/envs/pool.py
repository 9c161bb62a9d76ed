"""Makes the environments of a run: a mario_envpool pool or an image task of EnvPool."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

import mario_envpool
from mario_envpool import tiles as game_tiles
from trainer.config.schema import IMAGE_SIZE, TILES_ROWS, TILES_SHAPE, EnvConfig
from trainer.config.tasks import is_native
from trainer.machine.cpu import available_cores, step_aside, thread_ids
from trainer.machine.imports import load

# Fields of EnvConfig that every image task of EnvPool takes.
_COMMON = ("frame_skip", "stack_num", "img_height", "img_width", "noop_max")
_COUNTS = ("num_envs", "max_episode_steps")
# Fields of EnvConfig that no pool takes under these names.
_OURS = (
    "task", "groups", "obs", "levels", "test_levels", "reward_fn",
    "max_replacements", "replacement_episodes",
)  # fmt: skip

#: The option obs_type of pools with tiles, by `EnvConfig.obs`; `packed` joins them.
OBS_TYPES = {"tiles": ["tiles", "motion"], "tiles+world": ["tiles", "motion_world"]}
# Runs seed their pools with multiples of this; environment i adds i to the seed.
SEED_STRIDE = 100_003


def make_pool(
    config: EnvConfig, seed: int, *, asynchronous: bool = False, **more: Any
) -> Any:
    """Builds environments: a pool with EnvPool's API (env_type="gymnasium").

    Environment i gets the seed seed + i. With `asynchronous`, recv returns the num_envs
    / groups environments that are ready first, otherwise those of the send, in its
    order. `more` are other options of the mario_envpool tasks, such as stages.
    """
    others = thread_ids()
    native, tiles = is_native(config.task), config.sees_tiles
    if not native:
        _check_task(config.task)
    group = config.num_envs // config.groups
    options = {name: getattr(config, name) for name in (*_COUNTS, *_COMMON)}
    options |= {
        "img_height": config.img_height or IMAGE_SIZE,
        "img_width": config.img_width or IMAGE_SIZE,
        "batch_size": group if asynchronous else config.num_envs,
        "num_threads": config.num_threads or min(available_cores(), group),
        "seed": seed,
    }
    if native:
        fields = vars(config).items()
        options = {n: v for n, v in fields if n not in _OURS} | options
        if config.reward_fn:
            options["reward_fn"] = load_reward_fn(config.reward_fn)
        if config.levels:
            options |= {"stages": list(config.levels), "random_stages": True}
        options |= more
        if tiles:
            options["obs_type"] = OBS_TYPES[config.obs]
        pool = mario_envpool.make(config.task, env_type="gymnasium", **options)
        pool = TilesPool(pool) if tiles else pool
    elif tiles:
        raise ValueError(
            f"task {config.task} has no tiles: leave out --obs, or use a Super Mario "
            "Bros. task"
        )
    else:
        import envpool

        _check_image_task(config.task)
        pool = envpool.make(config.task, env_type="gymnasium", **options)
    step_aside(thread_ids() - others)
    return pool


def load_reward_fn(name: str) -> Callable[..., Any]:
    """Imports the function that `module:function` names."""
    function: Callable[..., Any] = load(name, "reward_fn", "module:function")
    if not callable(function):
        raise ValueError(
            f"reward_fn={name!r} is a {type(function).__name__}; it must be a function "
            "that takes the arrays of a batch and returns its rewards"
        )
    return function


def groups_of(config: EnvConfig, *, asynchronous: bool) -> int:
    """Number of groups to serve in turn; 1 for EnvPool's own pools in sync mode.

    With two open requests, their sync-mode recv mixes rows of both and repeats rows.
    """
    return config.groups if asynchronous or is_native(config.task) else 1


def busy_envs(pool: Any) -> list[int]:
    """Environments in the middle of a step; [] if the pool does not report them."""
    if not hasattr(pool, "status"):
        return []
    workers = pool.status()["workers"]
    return sorted(worker["env_id"] for worker in workers if worker["env_id"] >= 0)


def replacements(pool: Any) -> list[str]:
    """Errors of the environments that a pool has replaced, the oldest first.

    [] for a pool that replaces no environments.
    """
    if not hasattr(pool, "set_replacement"):
        return []
    return [entry["error"] for entry in pool.status()["replaced"]]


def _check_task(task: str) -> None:
    """Raises ValueError unless a task outside mario_envpool is one of EnvPool's."""
    try:
        import envpool
    except ImportError as error:
        near = _near(task, mario_envpool.list_all_envs())
        raise ValueError(
            f"{task!r} is not a task of mario_envpool{near}. {error}"
        ) from None
    tasks = envpool.list_all_envs()
    if task not in tasks:
        raise ValueError(
            f"unknown task {task!r}{_near(task, tasks)} (for all tasks, call "
            "envpool.list_all_envs() after import mario_envpool)"
        )


def _near(task: str, tasks: Sequence[str]) -> str:
    """Names ids that resemble a task's id, for an error message."""
    near = [other for other in tasks if other.startswith(task)][:4]
    near = near or difflib.get_close_matches(task, tasks, n=4, cutoff=0.4)
    return f"; similar ids: {', '.join(near)}" if near else "; no id is similar"


def _check_image_task(task: str) -> None:
    """Raises ValueError unless a task of EnvPool has images and discrete actions."""
    import envpool

    with warnings.catch_warnings():
        # Gymnasium warns about the bounds of spaces that are not used.
        warnings.simplefilter("ignore")
        spec: Any = envpool.make_spec(task)
        shape, actions = spec.observation_space.shape, spec.action_space
    expected = "the trainer takes image tasks with discrete actions, such as Pong-v5"
    if shape is None or len(shape) != 3 or not hasattr(actions, "n"):
        raise ValueError(
            f"task {task} has observations {shape or 'of several parts'} and actions "
            f"{actions}, but {expected}"
        )
    missing = [name for name in _COMMON if name not in spec._config_keys]
    if missing:
        raise ValueError(
            f"task {task} has no option {', '.join(missing)}, which the trainer sets; "
            f"{expected}"
        )


def packed_obs(obs: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    """An observation of one of `OBS_TYPES` as frames."""
    (motion,) = (part for name, part in obs.items() if name != "tiles")
    return packed(obs["tiles"], motion)


def packed(
    grids: npt.NDArray[np.uint8], motion: npt.NDArray[np.int8]
) -> npt.NDArray[np.uint8]:
    """Joins tiles and motion to frames."""
    frames = np.empty((*grids.shape[:-3], *TILES_SHAPE), np.uint8)
    frames[..., :TILES_ROWS, :] = grids
    frames[..., TILES_ROWS:, :] = motion.view(np.uint8).reshape(
        *motion.shape[:-2], 1, -1, TILES_SHAPE[-1]
    )
    return frames


def tiles_picture(frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The tiles of a packed frame (1, 16, 16) in colours, (208, 256, 3) uint8."""
    return game_tiles.picture(frame[0, :TILES_ROWS])


class TilesPool:
    """A pool with packed observations; everything else is the wrapped pool's."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.observation_space = Box(0, 255, TILES_SHAPE, np.uint8)

    def recv(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The pool's `recv`, with observations (n, 1, 16, 16) uint8."""
        obs, *results = self._pool.recv(*args, **kwargs)
        return packed_obs(obs), *results

    def reset(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The pool's `reset`, with observations as from `recv`."""
        obs, info = self._pool.reset(*args, **kwargs)
        return packed_obs(obs), info

    def step(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The pool's `step`, with observations as from `recv`."""
        obs, *results = self._pool.step(*args, **kwargs)
        return packed_obs(obs), *results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)
