"""Actions and ids: any integer is taken as it is, and nothing else is.

One conversion checks them for every class; ``as_action`` checks a single action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mario_envpool
from mario_envpool import compat
from mario_envpool.compat import envpool as old_envpool
from mario_envpool.compat.actions import SIMPLE_MOVEMENT
from mario_envpool.compat.wrappers import JoypadSpace
from mario_envpool.env import MarioEnv
from mario_envpool.vector import MarioVectorEnv

TASK = "SuperMarioBros-1-1-v0"
N = 3
WRAPPING = [2**32 + 1, -(2**32), 2**31, -1, 2**63, 2**64 - 1, 2**64, -(2**70)]
NOT_INTEGERS = [0.9, 1.0, True, np.True_, "1", b"1", None, 1j, float("nan"), [1]]


def unaligned(values: Any, dtype: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(values, dtype)
    memory = bytearray(b"\0" + array.tobytes())
    result = np.frombuffer(memory, dtype, len(array), offset=1)
    assert not result.flags.aligned
    return result


def read_only(values: Any) -> np.ndarray[Any, Any]:
    array = np.array(values)
    array.flags.writeable = False
    return array


#: Forms of the same integers.
FORMS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "list of NumPy integers": lambda values: [np.int16(value) for value in values],
    "list of arrays": lambda values: [np.array(value) for value in values],
    "array of objects": lambda values: np.array(values, object).astype(np.int64),
    "big-endian": lambda values: np.array(values, ">i4"),
    "big-endian, 64 bits": lambda values: np.array(values, ">u8"),
    "every second one": lambda values: np.repeat(values, 2)[::2],
    "backwards": lambda values: np.array(values[::-1], np.int32)[::-1],
    "read-only": read_only,
    "unaligned": lambda values: unaligned(values, np.int32),
    "unaligned, 64 bits": lambda values: unaligned(values, np.uint64),
    **{
        dtype: lambda values, dtype=dtype: np.array(values, dtype)  # type: ignore[misc]
        for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32")
    },
    "int64": lambda values: np.array(values, np.int64),
    "uint64": lambda values: np.array(values, np.uint64),
}


def sb3() -> Any:
    pytest.importorskip("stable_baselines3")
    from mario_envpool.compat.sb3 import MarioVecEnv

    return MarioVecEnv(TASK, N, seed=1)


def plain_send(pool: Any, actions: Any) -> Any:
    pool.send(actions, np.arange(N))
    return pool.recv()


#: For each class with actions of N environments: how to make it, and to step it.
MANY: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "pool": (
        lambda: mario_envpool.make(TASK, num_envs=N, seed=1),
        lambda pool, actions: pool.step(actions),
    ),
    "pool, send": (lambda: mario_envpool.make(TASK, num_envs=N, seed=1), plain_send),
    "pool, a dictionary": (
        lambda: mario_envpool.make(TASK, num_envs=N, seed=1),
        lambda pool, actions: pool.step({"action": actions}),
    ),
    "dm pool": (
        lambda: mario_envpool.make_dm(TASK, num_envs=N, seed=1),
        lambda pool, actions: pool.step(actions),
    ),
    "EnvPool": (
        lambda: old_envpool.make(TASK, "gym", num_envs=N, seed=1),
        lambda pool, actions: pool.step(actions),
    ),
    "MarioVectorEnv": (
        lambda: MarioVectorEnv(N, TASK, seed=1),
        lambda envs, actions: envs.step(actions),
    ),
    "MarioVectorEnv, send": (lambda: MarioVectorEnv(N, TASK, seed=1), plain_send),
    "MarioVecEnv": (sb3, lambda venv, actions: venv.step(actions)),
}

#: Classes of one environment, and the error of an action out of range.
SINGLE: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "MarioEnv": (lambda: MarioEnv(TASK), ValueError),
    "gymnasium.make": (
        lambda: gymnasium.make(TASK, disable_env_checker=True),
        ValueError,
    ),
    "compat.make": (lambda: compat.make(TASK), IndexError),
    "JoypadSpace": (
        lambda: JoypadSpace(compat.make(TASK), SIMPLE_MOVEMENT),
        ValueError,
    ),
}

#: Calls that take ids of environments, of a pool of N that has been reset.
WITH_IDS: dict[str, Callable[[Any], Any]] = {
    "pool.step": lambda ids: made().step(np.zeros(len(ids), int), ids),
    "pool.send": lambda ids: made().send(np.zeros(len(ids), int), ids),
    "pool.step of a dictionary": lambda ids: made().step(
        {"action": np.zeros(len(ids), int), "env_id": ids}
    ),
    "players": lambda ids: made().step(
        {
            "action": np.zeros(len(ids), int),
            "env_id": ids,
            "players": {"env_id": ids},
        }
    ),
    "pool.reset": lambda ids: made().reset(ids),
    "pool.snapshot": lambda ids: made().snapshot(ids),
    "pool.restore": lambda ids: restored(made(), made().restore, ids),
    "pool.render": lambda ids: made(render_mode="rgb_array").render(ids),
    "dm pool.step": lambda ids: made(env_type="dm").step(np.zeros(len(ids), int), ids),
    "dm pool.reset": lambda ids: made(env_type="dm").reset(ids),
    "EnvPool.step": lambda ids: old().step(np.zeros(len(ids), int), ids),
    "EnvPool.reset": lambda ids: old().reset(ids),
    "MarioVectorEnv.send": lambda ids: vector().send(np.zeros(len(ids), int), ids),
    "MarioVectorEnv.snapshot": lambda ids: vector().snapshot(ids),
    "MarioVectorEnv.restore": lambda ids: restored(vector(), vector().restore, ids),
}


def made(**config: Any) -> Any:
    pool = mario_envpool.make(TASK, num_envs=N, obs_type="ram", **config)
    pool.reset()
    return pool


def old() -> Any:
    pool = old_envpool.make(TASK, "gymnasium", num_envs=N, obs_type="ram")
    pool.reset()
    return pool


def vector() -> Any:
    envs = MarioVectorEnv(N, TASK, obs_type="ram")
    envs.reset()
    return envs


def restored(source: Any, restore: Callable[..., Any], ids: Any) -> Any:
    return restore(ids, source.snapshot(np.zeros(len(ids), int) + np.arange(len(ids))))


@pytest.mark.rom
@pytest.mark.parametrize("name", MANY)
def test_actions_of_every_form(name: str) -> None:
    make, step = MANY[name]
    ours, twin = make(), mario_envpool.make(TASK, num_envs=N, seed=1)
    ours.reset()
    twin.reset()
    for form in FORMS.values():
        step(ours, form([0, 1, 3]))
        twin.step(np.array([0, 1, 3], np.int32))
    np.testing.assert_array_equal(
        (ours if hasattr(ours, "snapshot") else ours.pool).snapshot([0, 1, 2]),
        twin.snapshot([0, 1, 2]),
    )


@pytest.mark.rom
@pytest.mark.parametrize("name", MANY)
def test_actions_that_int32_would_cut_are_refused(name: str) -> None:
    make, step = MANY[name]
    env = make()
    env.reset()
    for number in WRAPPING:
        # The smallest of the types that can hold the number.
        for actions in ([0, number, 0], np.array([0, number, 0])):
            with pytest.raises(ValueError, match="action") as caught:
                step(env, actions)
            text = str(caught.value)
            assert "\n" not in text
            assert str(number) in text or "dtype" in text
            assert "0 to 6" in text
    step(env, [0, 1, 2])


@pytest.mark.rom
@pytest.mark.parametrize("name", MANY)
def test_actions_that_are_no_integers_are_refused(name: str) -> None:
    make, step = MANY[name]
    env = make()
    env.reset()
    wrong: list[Any] = [[0, value, 0] for value in NOT_INTEGERS]
    for dtype in (float, bool, "U1", "S1", complex, np.float16):
        wrong.append(np.zeros(N, dtype))
    wrong += [np.zeros((N, 1), int), np.zeros(N + 1, int), [0] * (N - 1), 0, "000"]
    wrong += [np.array(0), np.zeros((1, N), int), None, {0, 1, 2}]
    for actions in wrong:
        with pytest.raises(ValueError, match=rf"integers .*shape \({N},\)") as caught:
            step(env, actions)
        assert "\n" not in str(caught.value)
    step(env, [0, 1, 2])


@pytest.mark.rom
@pytest.mark.parametrize("name", SINGLE)
def test_one_action(name: str) -> None:
    make, error = SINGLE[name]
    env = make()
    env.reset()
    for action in (1, np.uint64(1), np.array(1, ">i2"), np.int8(1)):
        env.step(action)
    for action in WRAPPING:
        with pytest.raises(error, match=rf"action {action} does not exist.* 0 to "):
            env.step(action)
    for wrong in (*NOT_INTEGERS, np.array([1]), np.array(1.0), np.array(True)):
        with pytest.raises(TypeError, match=r"action=.* give an int from 0 to "):
            env.step(wrong)
    env.step(1)


@pytest.mark.rom
@pytest.mark.parametrize("name", WITH_IDS)
def test_ids_of_environments(name: str) -> None:
    call = WITH_IDS[name]
    for form in FORMS.values():
        call(form([0, 2]))
    for number in WRAPPING:
        for ids in ([number], np.array([number])):
            with pytest.raises((IndexError, TypeError)) as caught:
                call(ids)
            text = str(caught.value)
            assert "\n" not in text
            assert "envs 0 to 2" in text or "from 0 to 2" in text
    for value in NOT_INTEGERS:
        with pytest.raises(TypeError, match="integers of shape"):
            call([value])
    for dtype in (float, bool, "U1", "S1"):
        with pytest.raises(TypeError, match=r"integers of shape.* dtype"):
            call(np.zeros(1, dtype))


@given(
    values=st.lists(st.integers(-(2**65), 2**65) | st.integers(0, 4), max_size=5),
    dtype=st.sampled_from(["list", "object", *"bBhHiIlLqQ", ">i4", ">u8", "<i2"]),
)
@settings(max_examples=300, deadline=None)
def test_the_conversion_changes_no_integer(values: list[int], dtype: str) -> None:
    array: Any = values
    if dtype not in ("list", "object"):
        info = np.iinfo(dtype)
        values = [value for value in values if info.min <= value <= info.max]
        array = np.array(values, dtype)
    elif dtype == "object":
        array = np.array(values, object)
    testing: Any = pytest.importorskip(
        "mario_envpool._testing", reason="only an editable install builds _testing"
    )
    spec = testing._CountingEnvSpec
    pool = testing._CountingEnvPool(spec(spec._default_config_values))
    fits = all(-(2**31) <= value < 2**31 for value in values)
    if fits and dtype != "object":
        for result in (
            pool._checked_ids(array),
            pool._checked_actions(array, len(values)),
        ):
            assert result.dtype == np.int32
            assert result.tolist() == values
        return
    with pytest.raises((IndexError, TypeError), match=r"out of range|integers"):
        pool._checked_ids(array)
    with pytest.raises(ValueError, match=r"out of range|integers"):
        pool._checked_actions(array, len(values))
