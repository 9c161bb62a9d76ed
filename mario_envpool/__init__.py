"""Super Mario Bros. as a native vector environment with EnvPool's API.

Importing the package registers every task id with EnvPool and with Gymnasium::

    import mario_envpool  # before envpool.make or gymnasium.make

    pool = mario_envpool.make("SuperMarioBros-1-1-v0", num_envs=8)
    obs, info = pool.reset()  # obs: (8, 4, 84, 84) uint8

See README.md for the Gymnasium and dm_env interfaces and for all options
(``python -m mario_envpool --options`` prints them).
"""

from __future__ import annotations

from typing import Any, cast

from .envpool_layer import python_layer

with python_layer():
    from envpool.python.api import py_env
    from envpool.registration import registry as _registry

try:
    from .pool import RewardFn, _MarioEnvPool, _MarioEnvSpec
except ModuleNotFoundError as error:
    if error.name != "mario_envpool._core":
        raise
    raise ImportError(
        "mario_envpool._core is not built for this Python; run 'pip install -e .' in "
        "the repository (it needs a C++20 compiler)"
    ) from None
from . import _core, states
from .actions import ACTION_SETS, COMPLEX_MOVEMENT, RIGHT_ONLY, SIMPLE_MOVEMENT
from .codes import END_REASONS, STATUS
from .options import checked
from .registration import TASKS, plain_id, register_all
from .rom import RomError
from .starts import Starts
from .starts import apply as apply_starts

__version__: str = _core.version

# registration.py registers these names with EnvPool. The casts are needed because
# py_env annotates the classes that it returns, not those that it takes.
MarioEnvSpec, MarioDMEnvPool, MarioGymnasiumEnvPool = py_env(
    cast(Any, _MarioEnvSpec), cast(Any, _MarioEnvPool)
)

__all__ = [
    "ACTION_SETS",
    "COMPLEX_MOVEMENT",
    "END_REASONS",
    "RIGHT_ONLY",
    "SIMPLE_MOVEMENT",
    "STATUS",
    "MarioDMEnvPool",
    "MarioEnvSpec",
    "MarioGymnasiumEnvPool",
    "RomError",
    "__version__",
    "list_all_envs",
    "make",
    "make_dm",
    "make_gymnasium",
    "make_spec",
    "states",
]


def make(
    task_id: str,
    env_type: str = "gymnasium",
    *,
    reward_fn: RewardFn | None = None,
    starts: Starts | None = None,
    **config: Any,
) -> Any:
    """Makes a pool of environments: ``envpool.make`` for the ids of this package.

    Args:
        task_id: an id of ``list_all_envs()``, with or without ``mario_envpool/``.
        env_type: "gymnasium" or "dm".
        reward_fn: your own reward, a function from a batch to its rewards; see
            ``MarioGymnasiumEnvPool.reward_fn``.
        starts: where episodes begin: a name of the catalogue (``mario_envpool.starts``)
            such as "1-1/page-03", a pattern such as "1-1/*", a list of names and
            patterns, or a dictionary of their weights. None: the other options decide.
        **config: ``num_envs``, ``batch_size``, ``seed`` and the other keys of EnvPool,
            ``render_mode``, and the options of the game.

    Returns:
        A ``MarioGymnasiumEnvPool`` or ``MarioDMEnvPool``.

    Raises:
        RomError: the ROM of this id is not installed.
        ValueError: the id or the value of an option is not allowed, an option
            contradicts the id, or no start has that name.
        TypeError: an option does not exist, or its value has the wrong type.
    """
    if env_type not in ("gymnasium", "gym", "dm"):
        raise ValueError(f"env_type={env_type!r} is not 'gymnasium' or 'dm'")
    kind = "dm" if env_type == "dm" else "gymnasium"
    plain = _known(task_id)
    pool = cast(Any, _registry.make(plain, kind, **checked(plain, config)))
    pool.reward_fn = reward_fn
    pool._seeded = not {"seed", "env_seed"}.isdisjoint(config)
    if starts is not None:
        apply_starts(pool, starts)
    return pool


def make_gymnasium(task_id: str, **config: Any) -> Any:
    """Makes a ``MarioGymnasiumEnvPool``; see ``make``."""
    return make(task_id, "gymnasium", **config)


def make_dm(task_id: str, **config: Any) -> Any:
    """Makes a ``MarioDMEnvPool``; see ``make``."""
    return make(task_id, "dm", **config)


def make_spec(task_id: str, **config: Any) -> Any:
    """Returns the ``MarioEnvSpec`` (configuration and array specs) of a task."""
    plain = _known(task_id)
    return _registry.make_spec(plain, **checked(plain, config))


def list_all_envs() -> list[str]:
    """Returns every task id of this package."""
    return list(TASKS)


def __dir__() -> list[str]:
    """Lists the public names, without the imports above."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def _known(task_id: str) -> str:
    if not isinstance(task_id, str):
        raise TypeError(f"task_id={task_id!r} is not a str such as 'SuperMarioBros-v0'")
    plain = plain_id(task_id)
    if plain not in TASKS:
        raise ValueError(
            f"{task_id!r} is not a task id of this package; ids are SuperMarioBros-v0 "
            "to -v3, SuperMarioBros-<world>-<stage>-v0 to -v3 (1-1 to 8-4), "
            "SuperMarioBrosRandomStages-v0 to -v3, SuperMarioBros2-v0 and -v1 and "
            "SuperMarioBros2-<world>-<stage>-v0 (1-1 to 9-4, A-1 to D-4); "
            "mario_envpool.list_all_envs() returns all of them"
        )
    return plain


register_all()
