"""The native contract of EnvPool 1.2: our classes beside the installed CartPole.

CartPole is the reference for what envpool's Python reads from a native class and for
the course of a pool; the counting env stands for any environment of ours.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mario_envpool._testing import _CountingEnvPool, _CountingEnvSpec
from mario_envpool.envpool_layer import python_layer

with python_layer():  # CartPole alone: the other families need libEGL
    from envpool.classic_control import _CartPoleEnvPool, _CartPoleEnvSpec
    from envpool.python.api import py_env
    from envpool.registration import registry

# Names that envpool's Python defines behind the native class, which comes first.
RESERVED = """
    spec config send recv step reset async_reset render close seed xla num_envs
    metadata observation_space action_space all_env_ids is_async
""".split()

POOLS = {
    "cartpole": (_CartPoleEnvSpec, _CartPoleEnvPool),
    "counting": (_CountingEnvSpec, _CountingEnvPool),
}
STREAM_KEYS = """
    info:env_id info:players.env_id elapsed_step done discount step_type trunc
""".split()


def make_native(name: str, **options: Any) -> Any:
    spec, pool = POOLS[name]
    values = dict(zip(spec._config_keys, spec._default_config_values, strict=True))
    if name == "counting":
        values["episode_steps"] = 2**31 - 1  # only the limit ends an episode
    return pool(spec(tuple((values | options).values())))


def int32(*values: int) -> Any:
    return np.array(values, np.int32)


def public(cls: type) -> set[str]:
    return {
        name
        for name in dir(cls)
        if not name.startswith("__") and not name.startswith("_pybind11")
    }


def test_classes_have_what_cartpoles_have() -> None:
    assert public(_CartPoleEnvSpec) <= public(_CountingEnvSpec)
    assert public(_CartPoleEnvPool) <= public(_CountingEnvPool)
    for ours, theirs in zip(POOLS["counting"], POOLS["cartpole"], strict=True):
        assert type(ours) is type(theirs)
        for name in public(theirs):
            assert type(getattr(ours, name)) is type(getattr(theirs, name)), name


def test_no_reserved_name_is_defined() -> None:
    for cls in (_CountingEnvSpec, _CountingEnvPool):
        assert not set(RESERVED) & public(cls)


def test_keys_begin_as_cartpoles_do() -> None:
    theirs, ours = _CartPoleEnvSpec, _CountingEnvSpec
    assert ours._config_keys[:10] == theirs._config_keys[:10]
    assert ours._config_keys[-1] == theirs._config_keys[-1] == "reward_threshold"
    assert ours._state_keys[:9] == theirs._state_keys[:9]
    assert ours._action_keys == theirs._action_keys
    assert ours._state_keys == _CountingEnvPool._state_keys
    assert ours._action_keys == _CountingEnvPool._action_keys
    for key, ours_value, theirs_value in zip(
        ours._config_keys[:10],
        ours._default_config_values,
        theirs._default_config_values,
        strict=False,
    ):
        assert type(ours_value) is type(theirs_value), key
        if key != "base_path":
            assert ours_value == theirs_value, key
    assert len(ours._default_config_values) == len(ours._config_keys)
    assert all(
        type(value) in (int, float, bool, str, list)
        for value in ours._default_config_values
    )


def shape_of(value: Any) -> Any:
    """The nesting and types of a value, without what it says."""
    if isinstance(value, tuple):
        return tuple(shape_of(item) for item in value)
    return type(value)


def test_specs_have_the_form_of_cartpoles() -> None:
    theirs = _CartPoleEnvSpec(_CartPoleEnvSpec._default_config_values)
    ours = _CountingEnvSpec(_CountingEnvSpec._default_config_values)
    for our_spec, their_spec in zip(
        ours._state_spec[:8], theirs._state_spec, strict=False
    ):
        assert shape_of(our_spec) == shape_of(their_spec)
        assert our_spec[0] == their_spec[0]
        assert our_spec[1] == their_spec[1]
    for our_spec, their_spec in zip(
        ours._action_spec, theirs._action_spec, strict=True
    ):
        assert shape_of(our_spec) == shape_of(their_spec)
        assert our_spec[:2] == their_spec[:2]
    assert ours._action_spec[2][2] == (0, 3)
    obs = ours._state_spec[8]
    assert obs == (np.dtype(np.uint8), [4, 84, 84], (0, 255), ([], []), False)
    assert type(ours._config_values) is type(theirs._config_values) is tuple


def test_batch_size_0_becomes_num_envs() -> None:
    for spec_class, _ in POOLS.values():
        values = dict(
            zip(spec_class._config_keys, spec_class._default_config_values, strict=True)
        )
        spec = spec_class(tuple((values | {"num_envs": 3}).values()))
        config = dict(zip(spec._config_keys, spec._config_values, strict=True))
        assert config == values | {"num_envs": 3, "batch_size": 3}


def course(name: str) -> list[dict[str, Any]]:
    """Partial sends, forced resets, truncation and autoreset on three envs."""
    pool = make_native(name, num_envs=3, max_episode_steps=4)
    rows = []

    def receive() -> None:
        arrays = dict(zip(pool._state_keys, pool._recv(), strict=True))
        rows.append(
            {key: (arrays[key].dtype, arrays[key].tolist()) for key in STREAM_KEYS}
        )
        rows[-1]["reward"] = arrays["reward"].dtype, arrays["reward"].shape
        rows[-1]["zero reward"] = (arrays["reward"] == 0).tolist()
        rows[-1]["obs rows"] = len(arrays["obs"])

    def step(*ids: int) -> None:
        env_ids = int32(*ids)
        pool._send([env_ids, env_ids, np.ones(len(ids), np.int32)])
        receive()

    step(1)  # never reset: the action is
    pool._reset(int32(0, 1, 2))
    receive()
    step(2, 0, 1)
    step(1, 2)
    step(0)
    pool._reset(int32(2, 0))  # in the middle of their episodes
    receive()
    for _ in range(7):  # over the limit and the reset that follows
        step(0, 1, 2)
    step(2)
    return rows


def test_the_same_calls_take_the_same_course() -> None:
    assert course("counting") == course("cartpole")


def test_async_batches_have_the_same_shape() -> None:
    shapes = {}
    for name in POOLS:
        pool = make_native(name, num_envs=5, batch_size=2, max_episode_steps=3)
        pool._reset(np.arange(5, dtype=np.int32))
        seen = []
        for _ in range(30):
            arrays = dict(zip(pool._state_keys, pool._recv(), strict=True))
            assert len(set(arrays["info:env_id"].tolist())) == 2
            seen.append([arrays[key].shape for key in STREAM_KEYS])
            ids = arrays["info:env_id"]
            pool._send([ids, ids, np.zeros(2, np.int32)])
        shapes[name] = seen
    assert shapes["counting"] == shapes["cartpole"]


def test_arrays_are_alike() -> None:
    for name in POOLS:
        pool = make_native(name, num_envs=2)
        pool._reset(int32(0, 1))
        arrays = pool._recv()
        assert type(arrays) is list
        for array in arrays:
            assert type(array) is np.ndarray
            assert array.flags.writeable
            assert array.flags.c_contiguous


def test_xla_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/envpool_api/test_xla.py has what it does where it is there."""
    monkeypatch.setitem(sys.modules, "mario_envpool._xla", None)
    with pytest.raises(RuntimeError, match="pip install --no-deps -e"):
        make_native("counting")._xla()


@pytest.fixture
def task() -> Iterator[str]:
    """The counting env, registered with EnvPool's own registry."""
    module: Any = types.ModuleType("counting_task")
    (
        module.CountingEnvSpec,
        module.CountingDMEnvPool,
        module.CountingGymnasiumEnvPool,
    ) = py_env(_CountingEnvSpec, _CountingEnvPool)
    sys.modules["counting_task"] = module
    registry.register(
        task_id="Counting-v0",
        import_path="counting_task",
        spec_cls="CountingEnvSpec",
        dm_cls="CountingDMEnvPool",
        gymnasium_cls="CountingGymnasiumEnvPool",
        max_episode_steps=6,
        episode_steps=4,
    )
    yield "Counting-v0"
    del registry.specs["Counting-v0"], registry.envpools["Counting-v0"]
    del sys.modules["counting_task"]


def test_gymnasium_through_envpool(task: str) -> None:
    env = registry.make(task, "gymnasium", num_envs=3, seed=[5, 6, 7])
    assert env.config["env_seed"] == [5, 6, 7]
    assert env.config["max_episode_steps"] == 6
    assert env.observation_space.shape == (4, 84, 84)
    assert env.action_space.n == 4
    assert not env.is_async
    obs, info = env.reset()
    assert obs.shape == (3, 4, 84, 84)
    assert info["elapsed_step"].tolist() == [0, 0, 0]
    for step in range(1, 5):
        obs, reward, terminated, truncated, info = env.step(int32(0, 1, 2))
        assert reward.tolist() == [0.5, 1.5, 2.5]
        assert info["total"].tolist() == [step] * 3
        assert info["players"]["env_id"].tolist() == [0, 1, 2]
    assert terminated.tolist() == [True] * 3
    assert truncated.tolist() == [False] * 3
    assert env.step(int32(0, 1, 2))[4]["elapsed_step"].tolist() == [0, 0, 0]
    env.close()


def test_gymnasium_async_and_render_through_envpool(task: str) -> None:
    env = registry.make(
        task, "gymnasium", num_envs=4, batch_size=2, render_mode="rgb_array"
    )
    assert env.is_async
    env.async_reset()
    for _ in range(10):
        _, _, _, _, info = env.recv()
        env.send(np.zeros(2, np.int32), info["env_id"])
    env.recv()
    env.recv()
    assert env.render([0, 3]).shape == (2, 6, 8, 3)


def test_dm_through_envpool(task: str) -> None:
    env = registry.make(task, "dm", num_envs=2)
    assert env.action_spec().num_values == 4
    first = env.reset()
    assert first.first().all()
    for _ in range(4):
        last = env.step(int32(1, 2))
    assert last.last().all()
    assert last.reward.tolist() == [1.5, 2.5]
    assert last.discount.tolist() == [0.0, 0.0]
    assert last.observation.obs.shape == (2, 4, 84, 84)


def test_unknown_and_wrong_options_are_refused(task: str) -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        registry.make(task, "gymnasium", no_such_option=1)
    with pytest.raises(ValueError, match="num_actions"):
        registry.make(task, "gymnasium", num_actions=0)
