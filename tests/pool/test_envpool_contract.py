"""What EnvPool's Python makes of native classes: the counting env beside CartPole.

tests/envpool_api/test_contract.py compares the rest with CartPole, by the game.
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

POOLS = {
    "cartpole": (_CartPoleEnvSpec, _CartPoleEnvPool),
    "counting": (_CountingEnvSpec, _CountingEnvPool),
}


def make_native(name: str, **options: Any) -> Any:
    spec, pool = POOLS[name]
    values = dict(zip(spec._config_keys, spec._default_config_values, strict=True))
    return pool(spec(tuple((values | options).values())))


def int32(*values: int) -> Any:
    return np.array(values, np.int32)


def test_batch_size_0_becomes_num_envs() -> None:
    for spec_class, _ in POOLS.values():
        values = dict(
            zip(spec_class._config_keys, spec_class._default_config_values, strict=True)
        )
        spec = spec_class(tuple((values | {"num_envs": 3}).values()))
        config = dict(zip(spec._config_keys, spec._config_values, strict=True))
        assert config == values | {"num_envs": 3, "batch_size": 3}


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
