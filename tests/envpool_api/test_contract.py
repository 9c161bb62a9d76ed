"""The native class contract, against EnvPool's own CartPole as the oracle.

The same calls (reset, partial send, forced reset, truncation, autoreset) go to
both, and everything that does not depend on the game must come out the same.
"""

from __future__ import annotations

import abc
import sys
from typing import Any

import numpy as np
import pytest

import mario_envpool
from mario_envpool import _core
from mario_envpool.envpool_layer import python_layer

with python_layer():  # CartPole alone: the other families need libEGL
    import envpool.classic_control.registration
    from envpool import registration as envpool
    from envpool.classic_control import _CartPoleEnvPool, _CartPoleEnvSpec

COMMON_STATE_KEYS = _CartPoleEnvSpec._state_keys[:8]
COMMON_CONFIG_KEYS = _CartPoleEnvSpec._config_keys[:10]
TASK = "SuperMarioBros-1-1-v0"
PUBLIC_NAMES = (
    "spec config send recv step reset async_reset render close seed xla num_envs "
    "metadata observation_space action_space all_env_ids is_async"
).split()


def public_and_private(cls: type) -> set[str]:
    """Attributes a class defines itself, without Python's own."""
    return {
        name
        for name in vars(cls)
        if not name.startswith("__") and "pybind11" not in name
    }


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (_core._MarioEnvSpec, _CartPoleEnvSpec),
        (_core._MarioEnvPool, _CartPoleEnvPool),
    ],
    ids=["spec", "pool"],
)
def test_native_classes_have_what_cartpole_has(ours: type, theirs: type) -> None:
    assert public_and_private(theirs) <= public_and_private(ours)
    assert type(ours) is type(theirs) is abc.ABCMeta
    assert ours.__name__.startswith("_Mario")
    # EnvPool's Python layer comes behind the native class in the MRO.
    assert not set(PUBLIC_NAMES) & public_and_private(ours)
    for name in ("_state_keys", "_action_keys"):
        assert type(getattr(ours, name)) is type(getattr(theirs, name)) is list


def test_keys_begin_as_envpools_do() -> None:
    spec = _core._MarioEnvSpec
    assert spec._state_keys[:8] == COMMON_STATE_KEYS
    assert spec._state_keys[8] == "obs"
    assert all(key.startswith("info:") for key in spec._state_keys[9:])
    assert len(set(spec._state_keys)) == len(spec._state_keys)
    assert spec._action_keys == _CartPoleEnvSpec._action_keys
    assert spec._config_keys[:10] == COMMON_CONFIG_KEYS
    assert len(spec._default_config_values) == len(spec._config_keys)
    for key, ours, theirs in zip(
        COMMON_CONFIG_KEYS,
        spec._default_config_values,
        _CartPoleEnvSpec._default_config_values,
        strict=False,
    ):
        assert type(ours) is type(theirs), key
        if key != "base_path":
            assert ours == theirs, key
    for key, value in zip(spec._config_keys, spec._default_config_values, strict=True):
        assert type(value) in (bool, int, float, str, list), key
        assert key.isidentifier()
        assert not key.startswith("_")


@pytest.mark.rom
def test_array_specs_are_made_like_cartpoles() -> None:
    ours = mario_envpool.make_spec(TASK, num_envs=3)
    theirs = envpool.make_spec("CartPole-v1", num_envs=3)
    assert ours.config.batch_size == 3
    for specs, reference in (
        (ours._state_spec, theirs._state_spec),
        (ours._action_spec, theirs._action_spec),
    ):
        assert type(specs) is type(reference) is tuple
        for spec in specs:
            assert [type(part) for part in spec[1:]] == [list, tuple, tuple, bool]
            assert isinstance(spec[0], np.dtype)
            assert len(spec) == len(reference[0])
        for spec, expected in zip(specs[:8], reference[:8], strict=False):
            assert spec[0] == expected[0]
            assert spec[1] == expected[1]
    obs = ours.state_array_spec["obs"]
    assert (obs.dtype, obs.shape) == (np.uint8, [4, 84, 84])
    assert (obs.minimum, obs.maximum) == (0, 255)
    action = ours.action_array_spec["action"]
    assert (action.dtype, action.shape) == (np.int32, [-1])
    assert (action.minimum, action.maximum) == (0, 6)


def describe(batch: list[np.ndarray[Any, Any]], keys: list[str]) -> dict[str, Any]:
    """What must be equal for every game: shapes, dtypes, flags, and the counters."""
    result: dict[str, Any] = {}
    for key, value in zip(keys, batch, strict=True):
        if key not in COMMON_STATE_KEYS:
            assert value.shape[0] == batch[0].shape[0]
            continue
        result[key] = (value.dtype, value.shape, value.flags.c_contiguous)
        if key != "reward":
            result[f"{key} values"] = value.tolist()
    result["first rewards"] = batch[4][batch[2] == 0].tolist()
    return result


def play(pool: Any, keys: list[str]) -> list[dict[str, Any]]:
    """One call sequence through every state of an environment; 4 steps truncate."""
    log = []

    def answer() -> None:
        log.append(describe(pool._recv(), keys))

    def send(*ids: int) -> None:
        env_ids = np.array(ids, np.int32)
        pool.send(np.zeros(len(ids), np.int32), env_ids)
        answer()

    send(1)  # never reset: the action is
    pool._reset(np.arange(3, dtype=np.int32))
    answer()
    send(0, 1, 2)
    send(2, 0)  # partial, in an order of its own
    send(1)
    pool._reset(np.array([1], np.int32))  # forced, within an episode
    answer()
    for _ in range(4):  # envs 0 and 2 are truncated first, env 1 later
        send(2, 1, 0)
    send(0, 1, 2)  # resets what was done; these actions are ignored
    send(0, 1, 2)
    return log


@pytest.mark.rom
@pytest.mark.parametrize("env_type", ["gymnasium", "dm"])
def test_the_same_calls_give_the_same_shapes_and_flags(env_type: str) -> None:
    config = {"num_envs": 3, "max_episode_steps": 4}
    ours = envpool.make(TASK, env_type=env_type, **config)
    theirs = envpool.make("CartPole-v1", env_type=env_type, **config)
    logs = play(ours, ours._state_keys), play(theirs, theirs._state_keys)
    for index, (mine, reference) in enumerate(zip(*logs, strict=True)):
        assert mine == reference, f"answer {index}"
    truncations = [answer["trunc values"] for answer in logs[0]]
    assert any(any(row) for row in truncations)


@pytest.mark.rom
@pytest.mark.filterwarnings("ignore:.*precision lowered")  # CartPole's own spaces
def test_async_batches_have_cartpoles_shapes() -> None:
    shapes = []
    for task in (TASK, "CartPole-v1"):
        pool = envpool.make(task, env_type="gymnasium", num_envs=4, batch_size=2)
        assert pool.is_async
        pool.async_reset()
        seen: list[int] = []
        rows = []
        for _ in range(6):
            obs, reward, terminated, truncated, info = pool.recv()
            rows.append([len(obs), reward.shape, terminated.dtype, truncated.dtype])
            seen.extend(info["env_id"].tolist())
            pool.send(np.zeros(2, np.int32), info["env_id"])
        assert set(seen) <= set(range(4))
        assert {"elapsed_step", "env_id", "players"} <= set(info)
        shapes.append(rows)
    assert shapes[0] == shapes[1]


@pytest.mark.rom
def test_dm_env_timesteps() -> None:
    pool = envpool.make_dm(TASK, num_envs=2)
    first = pool.reset()
    assert first.step_type.tolist() == [0, 0]
    assert first.observation.obs.shape == (2, 4, 84, 84)
    assert first.observation.x_pos.shape == (2,)
    step = pool.step(np.array([1, 1], np.int32))
    assert step.step_type.tolist() == [1, 1]
    assert step.discount.tolist() == [1.0, 1.0]
    assert pool.action_spec().num_values == 7
    assert pool.observation_spec().obs.shape == (4, 84, 84)


@pytest.mark.rom
def test_gymnasium_spaces_and_info() -> None:
    pool = envpool.make_gymnasium(TASK, num_envs=2)
    assert pool.observation_space.shape == (4, 84, 84)
    assert pool.observation_space.dtype == np.uint8
    assert pool.action_space.n == 7
    assert pool.num_envs == len(pool) == 2
    obs, info = pool.reset()
    assert obs.shape == (2, 4, 84, 84)
    upstream = "coins flag_get life score stage status time world x_pos y_pos".split()
    assert set(upstream) <= set(info)
    assert info["status"].dtype == np.int8
    assert info["world"].tolist() == info["stage"].tolist() == [1, 1]
    _, reward, terminated, truncated, info = pool.step(np.array([1, 3]))
    assert reward.dtype == np.float32
    assert terminated.tolist() == truncated.tolist() == [False, False]
    assert info["elapsed_step"].tolist() == [1, 1]


@pytest.mark.rom
def test_rendering_through_envpool() -> None:
    pool = envpool.make_gymnasium(
        TASK, num_envs=2, render_mode="rgb_array", render_env_id=1
    )
    pool.reset()
    frames = pool.render()
    assert frames.shape == (1, 240, 256, 3)
    assert frames.dtype == np.uint8
    assert len(np.unique(frames.reshape(-1, 3), axis=0)) > 3
    both = pool.render(env_ids=[0, 1])
    np.testing.assert_array_equal(both[0], both[1])
    silent = envpool.make_gymnasium(TASK, num_envs=1)
    silent.reset()
    with pytest.raises(RuntimeError, match="render_mode"):
        silent.render()


@pytest.mark.rom
def test_seeds_reach_the_environments() -> None:
    def first_frames(**config: Any) -> np.ndarray[Any, Any]:
        pool = envpool.make_gymnasium(TASK, num_envs=4, noop_max=100, **config)
        pool.reset()
        return np.stack([pool.step(np.ones(4, np.int32))[0] for _ in range(5)])

    again, other = first_frames(seed=7), first_frames(seed=8)
    np.testing.assert_array_equal(first_frames(seed=7), again)
    # Env i has seed + i.
    np.testing.assert_array_equal(again[:, 1:], other[:, :-1])
    listed = first_frames(seed=[7, 8, 9, 10])
    np.testing.assert_array_equal(listed, again)
    assert not np.array_equal(again, other)


@pytest.mark.rom
def test_wrong_options_are_refused() -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        mario_envpool.make(TASK, no_such_option=1)
    with pytest.raises(ValueError, match=r"1-1-v9.*SuperMarioBros-v0"):
        mario_envpool.make("SuperMarioBros-1-1-v9")
    with pytest.raises(ValueError, match="env_type='tf'"):
        mario_envpool.make(TASK, env_type="tf")
    with pytest.raises(ValueError, match="frame_skip"):
        mario_envpool.make(TASK, frame_skip=0)
    with pytest.raises(ValueError, match="rom='europe'"):
        mario_envpool.make(TASK, rom="europe")
    with pytest.raises(ValueError, match="'lost-levels' does not go with lost_levels"):
        envpool.make_gymnasium(TASK, rom="lost-levels")
    with pytest.raises(ValueError, match="num_threads"):
        mario_envpool.make(TASK, num_threads=-2)


@pytest.mark.rom
@pytest.mark.parametrize("make", [mario_envpool.make, mario_envpool.make_gymnasium])
def test_short_form_takes_either_name(make: Any) -> None:
    for task in (TASK, f"mario_envpool/{TASK}"):
        assert type(make(task)).__name__ == "MarioGymnasiumEnvPool"
    assert type(mario_envpool.make_dm(TASK)).__name__ == "MarioDMEnvPool"


@pytest.mark.rom
def test_named_action_sets_are_the_native_ones() -> None:
    rng = np.random.default_rng(3)
    for name, actions in mario_envpool.ACTION_SETS.items():
        by_name = mario_envpool.make(TASK, action_set=name)
        by_list = mario_envpool.make(TASK, custom_actions=list(actions))
        assert by_name.action_space.n == by_list.action_space.n == len(actions)
        by_name.reset(), by_list.reset()
        for action in rng.integers(len(actions), size=60):
            pair = [pool.step(np.array([action])) for pool in (by_name, by_list)]
            np.testing.assert_array_equal(pair[0][0], pair[1][0])
            assert pair[0][1] == pair[1][1]


@pytest.mark.rom
@pytest.mark.parametrize("kind", ["gymnasium", "dm"])
@pytest.mark.parametrize("obs_type", ["ram", ["ram", "tiles"]], ids=str)
def test_without_jax_xla_says_how_to_get_it(
    kind: str, obs_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = mario_envpool.make(TASK, kind, num_envs=1, obs_type=obs_type)
    monkeypatch.setitem(sys.modules, "envpool.python.lax", None)
    with pytest.raises(RuntimeError, match=r"jax cannot be imported .*pip install jax"):
        pool.xla()
