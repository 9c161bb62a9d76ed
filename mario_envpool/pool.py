"""Extends the native classes before EnvPool's Python layer wraps them.

Adds the user's own rewards (``reward_fn``), options that may be lists, and classes for
the keys of several kinds of observation.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from . import rom as roms
from ._core import _MarioEnvPool as _NativePool
from ._core import _MarioEnvSpec as _NativeSpec
from .envpool_layer import python_layer

#: ``reward_fn(batch)`` takes the arrays of a batch and returns rewards, shape (n,).
RewardFn = Callable[[dict[str, Any]], npt.ArrayLike]
#: ``handle, recv, send, step``
XlaFunctions = tuple[Any, Callable[..., Any], Callable[..., Any], Callable[..., Any]]

_KEYS = _NativePool._state_keys
# Keys of the native batch that have another name in ``reward_fn``, or that a reward
# does not need.
_UNUSED = ("done", "trunc", "reward", "discount", "step_type", "info:players.env_id")
_REWARD = _KEYS.index("reward")
_ENV_ID = _KEYS.index("info:env_id")

# How a save of a console begins.
_CONSOLE = b"MENS"

#: A seed that nobody gave is drawn below this limit.
SEED_LIMIT = 2**31

_HELD = (
    "the last batch has no rewards yet, because reward_fn failed: recv() calls "
    "reward_fn again; a reset of all environments in the batch drops it"
)
_KEPT = (
    "the last batch was not returned, because memory ran out: recv() returns it; a "
    "reset of all environments in the batch drops it"
)


class _MarioEnvSpec(_NativeSpec):
    """The native spec; ``custom_actions`` and ``obs_type`` may be lists.

    ``rom_path`` may be a Path; ``rom`` becomes the revision that it names.
    """

    def __init__(self, values: tuple[Any, ...]) -> None:
        given = list(values)
        for key, joined in (
            ("custom_actions", joined_buttons),
            ("obs_type", joined_types),
        ):
            at = self._config_keys.index(key)
            given[at : at + 1] = map(joined, given[at : at + 1])
        at = self._config_keys.index("rom")
        if all(isinstance(each, str | os.PathLike) for each in given[at : at + 2]):
            given[at : at + 2] = _named(*given[at : at + 2])
        super().__init__(tuple(given))
        self._state_keys = self._own_state_keys


class _MarioEnvPool(_NativePool):
    """The native pool, with the user's own rewards.

    ``step`` and ``reset``, and ``_restart`` and ``_resume`` of the adapters, make a
    request and receive its rows in one native call. No exception of a signal handler,
    such as that of Ctrl-C, comes between the two and leaves a request outstanding.

    If ``reward_fn`` raises, the batch is kept, and ``recv`` calls ``reward_fn`` again.
    A batch for which ``recv`` runs out of memory is kept, too.
    If the spec has other state keys than the class, as with several kinds of
    observation, the object is an instance of a subclass with these keys.
    """

    def __new__(cls, spec: Any) -> _MarioEnvPool:
        """Makes an object of this class or of its subclass for the spec's keys."""
        keys = getattr(spec, "_state_keys", cls._state_keys)
        made: _MarioEnvPool = super().__new__(with_keys(cls, tuple(keys)))
        return made

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keeps this class's ``xla``, which EnvPool's layer replaces without jax."""
        super().__init_subclass__(**kwargs)
        cls.xla = _MarioEnvPool.xla  # type: ignore[method-assign]

    _reward_fn: RewardFn | None = None
    _has_xla = False
    # A batch that was not returned, and whether it has its rewards.
    _held: tuple[list[npt.NDArray[Any]], bool] | None = None
    _request: tuple[Any, ...] | None = None  # during `reset`: what `recv` requests
    _seeded = False  # whether an option or an earlier call has seeded the environments

    @property
    def reward_fn(self) -> RewardFn | None:
        """The function that makes the rewards; None: the native rewards.

        It gets a dictionary of the arrays of a batch of n rows (``obs``, ``reward``,
        ``terminated``, ``truncated``, ``env_id``, ``elapsed_step`` and every field of
        ``info``) and returns n numbers. ``obs`` is a dictionary too if ``obs_type``
        names several kinds. ``recv`` calls the function once for each batch. The
        reward of a row that begins an episode stays 0.

        Raises:
            TypeError: the value set is not callable.
            RuntimeError: a function is set after ``xla`` was called.
        """
        return self._reward_fn

    @reward_fn.setter
    def reward_fn(self, reward_fn: RewardFn | None) -> None:
        if reward_fn is not None and not callable(reward_fn):
            raise TypeError(
                f"reward_fn={reward_fn!r} is not a function; give a function that "
                "takes the dictionary of a batch and returns its rewards, or None"
            )
        if reward_fn is not None and self._has_xla:
            raise RuntimeError(
                "the functions of xla() cannot call reward_fn: make another pool for it"
            )
        self._reward_fn = reward_fn

    def xla(self) -> XlaFunctions:
        """Returns functions for code that jax compiles; see docs/clients/jax.md.

        Returns:
            ``handle, recv, send, step``, for use inside and outside of ``jax.jit``.
            ``recv(handle)`` returns a handle and the values of the pool's own ``recv``.
            ``send(handle, action, env_id=None)`` returns a handle. ``step`` does both.
            Each call takes the handle that the previous call returned; this orders the
            calls. ``env_id`` and ``action`` are int32, both of shape (n,).

        Raises:
            RuntimeError: jax is not installed, or was not installed when this package
                was built (the message has the commands), or the pool has a
                ``reward_fn``, which compiled code cannot call.
        """
        if self._reward_fn is not None:
            raise RuntimeError(
                "compiled code cannot call reward_fn: make the pool without it, and "
                "compute the rewards from the values that recv returns"
            )
        try:
            with python_layer():
                from envpool.python.lax import XlaMixin
        except ImportError as error:
            raise RuntimeError(
                f"jax cannot be imported ({error}): run 'pip install jax' and then, in "
                "the repository, 'pip install --no-deps -e .', which compiles its XLA "
                "handlers (on Linux)"
            ) from None
        functions: XlaFunctions = XlaMixin.xla(self)
        self._has_xla = True
        return functions

    def recv(self, reset: bool = False, return_info: bool = True) -> Any:
        """Returns the next batch, in the form of this class.

        Args:
            reset: return only the observations and the info (Gymnasium).
            return_info: without effect, as in EnvPool.
        """
        arrays = self._recv()
        made: Any = self
        try:
            return made._to(arrays, reset, return_info)
        except MemoryError:
            self._held = arrays, True
            raise

    def step(self, action: Any, env_id: Any = None) -> Any:
        """Plays one action in every environment, or in those of ``env_id``.

        Args:
            action: integers, shape (n,), or a dictionary with the key "action".
            env_id: environments, integers of shape (n,); None: all of them.

        Returns:
            The values of ``recv``.
        """
        self._refuse_held()
        return self._answer(super()._send_and_recv(self._from(action, env_id)))

    def reset(self, *arguments: Any, **keywords: Any) -> Any:
        """Starts an episode in every environment, or in those of ``env_id``.

        EnvPool's own ``reset`` checks the arguments, and calls ``_reset`` and ``recv``.
        """
        self._request = ()
        try:
            made: Any = super()
            return made.reset(*arguments, **keywords)
        finally:
            self._request = None

    def render(self, env_ids: Any = None, camera_id: int | None = None) -> Any:
        """Returns the screens of some environments, or shows one of them."""
        if env_ids is not None:
            one = np.ndim(env_ids) == 0
            env_ids = self._checked_ids([env_ids] if one else env_ids, "render")
        made: Any = super()
        return made.render(
            env_ids, None if camera_id is None else operator.index(camera_id)
        )

    def _restart(
        self,
        env_ids: Any,
        seeds: Sequence[int | None] | None = None,
        draw: Callable[..., npt.NDArray[Any]] | None = None,
    ) -> Any:
        """Starts episodes, as ``_reset`` does, and returns their rows as ``recv`` does.

        Args:
            env_ids: environments.
            seeds: a seed for each of them, or None where its generator stays as it is.
            draw: ``draw(limit, size=n)`` makes seeds if ``seeds`` is None, and neither
                an option nor an earlier call has seeded the environments.
        """
        self._check_held(env_ids)
        seeds = self._seeds(np.size(env_ids), seeds, draw)
        rows = super()._reset_and_recv(env_ids, seeds)
        self._seeded |= seeds is not None
        return self._answer(rows)

    def _resume(self, env_ids: Any, blobs: npt.NDArray[np.uint8], rng: str) -> Any:
        """Restores snapshots, and returns their rows as ``recv`` does."""
        self._check_held(env_ids)
        blobs = self._snapshots(blobs, np.size(env_ids))
        rows = super()._restore_and_recv(env_ids, blobs, rng)
        self._seeded |= rng == "saved"
        return self._answer(rows)

    def _seeds(
        self,
        count: int,
        seeds: Sequence[int | None] | None,
        draw: Callable[..., npt.NDArray[Any]] | None,
    ) -> Sequence[int | None] | None:
        if seeds is not None or draw is None or self._seeded:
            return seeds
        drawn: list[int | None] = draw(SEED_LIMIT, size=count).tolist()
        return drawn

    def _drop_outstanding(self) -> None:
        """Receives all rows, and drops them."""
        self._held = None
        while self._outstanding:
            super()._recv()

    def _answer(self, arrays: list[npt.NDArray[Any]]) -> Any:
        """Turns the rows of a native call into the values of ``recv``."""
        made: Any = self
        return made._to(self._rewarded(arrays, Exception), False, True)

    def _recv(self) -> list[npt.NDArray[Any]]:
        if self._request:
            return self._rewarded(super()._reset_and_recv(*self._request), Exception)
        arrays, rewarded = self._held or (super()._recv(), False)
        if rewarded:
            self._held = None
            return arrays
        return self._rewarded(arrays, BaseException)

    def _rewarded(
        self, arrays: list[npt.NDArray[Any]], kept_after: type[BaseException]
    ) -> list[npt.NDArray[Any]]:
        """Adds the rewards of ``reward_fn`` to a batch.

        Args:
            arrays: the batch.
            kept_after: an exception after which ``recv`` returns the batch. ``step``
                and ``reset`` do not keep a batch that Ctrl-C interrupts: most who
                call them never call ``recv``.
        """
        if self._reward_fn is not None:
            try:
                arrays[_REWARD] = own_rewards(self._reward_fn, self._state_keys, arrays)
            except kept_after:
                self._held = arrays, False
                raise
        self._held = None
        return arrays

    def _from(self, action: Any, env_id: Any = None) -> list[Any]:
        """Returns environments, players and actions as int32, of shape (n,) each.

        EnvPool's own method cuts what int32 cannot hold. Arrays of jax are returned
        unchanged, as code that jax compiles has no numbers yet.
        """
        players = None
        if isinstance(action, dict):
            env_id = action.get("env_id") if env_id is None else env_id
            players = action.get("players", {}).get("env_id")
            players = action.get("players.env_id", players)
            action = action["action"]
        made: Any = self
        env_id = made.all_env_ids if env_id is None else env_id
        env_id = env_id if hasattr(env_id, "aval") else self._checked_ids(env_id)
        if players is None:
            players = env_id
        elif not hasattr(players, "aval"):
            players = self._checked_ids(players)
        if not hasattr(action, "aval"):
            action = self._checked_actions(action, len(env_id))
        return [env_id, players, action]

    def _send(self, arrays: Sequence[npt.NDArray[np.int32]]) -> None:
        self._refuse_held()
        super()._send(arrays)

    def _reset(self, env_ids: Any, seeds: Sequence[int | None] | None = None) -> None:
        self._check_held(env_ids)
        if self._request is not None:
            self._request = env_ids, seeds
            return
        super()._reset(env_ids, seeds)
        self._held = None

    def restore(self, env_ids: Any, blobs: Any, rng: str = "saved") -> None:
        """Restores snapshots; ``recv`` returns the rows, as after a reset.

        Args:
            env_ids: environments.
            blobs: a snapshot for each of them, uint8 (n, bytes), or a save of a console
                (``nes.Console.save``, ``states.load``), or a list of n such saves, in
                which new episodes begin.
            rng: "saved" or "keep", as for ``MarioEnv.restore``.
        """
        self._check_held(env_ids)
        super().restore(env_ids, self._snapshots(blobs, np.size(env_ids)), rng)
        self._held = None

    def set_starts(
        self, weights: npt.ArrayLike | None, snapshots: Any | None = None
    ) -> None:
        """Sets where episodes begin; takes saves of a console as ``restore`` does."""
        super().set_starts(weights, self._snapshots(snapshots))

    def _snapshots(self, blobs: Any, rows: int = 1) -> Any:
        """Turns saves of a console into snapshots of this pool; others come back."""
        saves = [blobs] * rows if isinstance(blobs, bytes) else blobs
        if isinstance(saves, np.ndarray) and saves.dtype == np.uint8:
            if saves.ndim != 2 or saves[:1, :4].tobytes() != _CONSOLE:
                return blobs
            saves = [row.tobytes() for row in saves]
        if not isinstance(saves, list | tuple) or not saves:
            return blobs
        if not all(isinstance(s, bytes) and s.startswith(_CONSOLE) for s in saves):
            return blobs
        made: Any = self
        return _core.start_snapshots(made.spec, saves, [b""] * len(saves))

    def _check_held(self, env_ids: npt.NDArray[np.int32]) -> None:
        """Refuses to drop a held batch unless all its environments reset."""
        if self._held is None or np.isin(self._held[0][_ENV_ID], env_ids).all():
            return
        self._refuse_held()

    def _refuse_held(self) -> None:
        """Raises RuntimeError if a batch is held."""
        if self._held is not None:
            raise RuntimeError(_KEPT if self._held[1] else _HELD)


@cache
def with_keys(kind: type[Any], keys: tuple[str, ...]) -> type[Any]:
    """Returns the subclass of a pool class whose batches have these keys.

    When EnvPool makes a class, it derives the nesting of batches from the keys of the
    base class. So one class has the keys, and the returned class is derived from it.
    """
    if keys == tuple(kind._state_keys):
        return kind
    make: Any = type(kind)
    keyed = make(kind.__name__, (kind,), {"_state_keys": list(keys)})
    subclass: type[Any] = make(kind.__name__, (keyed,), {})
    return subclass


def own_rewards(
    reward_fn: RewardFn, keys: list[str], arrays: list[npt.NDArray[Any]]
) -> npt.NDArray[np.float32]:
    """Returns the rewards that ``reward_fn`` makes of a native batch, float32 (n,).

    Raises:
        RuntimeError: ``reward_fn`` raised an exception, which is the cause.
        TypeError: ``reward_fn`` did not return real numbers.
        ValueError: the rewards have another shape, or are not all finite.
    """
    native = dict(zip(keys, arrays, strict=True))
    batch: dict[str, Any] = {}
    for key, array in native.items():
        if key.startswith("obs:"):
            batch.setdefault("obs", {})[key.removeprefix("obs:")] = array
        elif key not in _UNUSED:
            batch[key.removeprefix("info:")] = array
    batch["reward"] = native["reward"]
    batch["terminated"] = native["done"] & ~native["trunc"]
    batch["truncated"] = native["trunc"]
    try:
        result = np.asarray(reward_fn(batch))
    except Exception as error:
        raise RuntimeError(
            f"reward_fn raised {type(error).__name__}: {error}"
        ) from error
    n = len(native["reward"])
    if result.dtype.kind not in "fiub":
        raise TypeError(
            f"reward_fn returned an array of {result.dtype}; return float32 of shape "
            f"({n},)"
        )
    if result.shape != (n,):
        raise ValueError(
            f"reward_fn returned the shape {result.shape}; return one reward for each "
            f"row of the batch, shape ({n},)"
        )
    with np.errstate(over="ignore"):
        rewards = result.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(rewards))
    if wrong.size:
        row = wrong[0]
        raise ValueError(
            f"reward_fn returned {result[row]} for environment {batch['env_id'][row]}; "
            "rewards must be finite"
        )
    rewards[native["elapsed_step"] == 0] = 0
    return rewards


def _named(rom: str = "", rom_path: str | os.PathLike[str] = "") -> list[str]:
    """Returns ``rom`` and ``rom_path`` as the native spec takes them."""
    path = os.path.expanduser(os.fsdecode(rom_path))
    return [roms.revision(rom, path), path]


def joined_types(types: Any) -> Any:
    """Returns ``obs_type`` as the native spec takes it: ``"tiles+ram"``.

    Args:
        types: one name, or a list of names.

    Raises:
        TypeError: ``types`` is neither.
    """
    joined = _plus(types)
    if joined is not None:
        return joined
    raise TypeError(
        f"obs_type={types!r} is not a kind of observation; give a name such as "
        "'tiles', or a list such as ['tiles', 'motion']"
    )


def joined_buttons(actions: Any) -> Any:
    """Returns ``custom_actions`` as the native spec takes them: ``"right+A"``.

    Args:
        actions: button lists as text, or as lists such as ``["right", "A"]``, the
            form of gym-super-mario-bros.

    Raises:
        TypeError: an action is neither.
    """
    if isinstance(actions, str) or not isinstance(actions, Iterable):
        raise TypeError(
            f"custom_actions={actions!r} is not a list of actions; give one such as "
            "[['NOOP'], ['right'], ['right', 'A']] or ['NOOP', 'right', 'right+A']"
        )
    return [_joined(action) for action in actions]


def _joined(action: Any) -> str:
    joined = _plus(action)
    if joined is not None:
        return joined
    raise TypeError(
        f"custom_actions has the action {action!r}; give a list of button names such "
        "as ['right', 'A'], or text such as 'right+A'"
    )


def _plus(names: Any) -> str | None:
    """Returns a name unchanged, a list of names joined by +, None for other values."""
    if isinstance(names, str):
        return names
    if isinstance(names, list | tuple) and all(isinstance(n, str) for n in names):
        return "+".join(names)
    return None
