"""Every argument is checked on every call, and a refused call changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import rom_builder

import mario_envpool
from mario_envpool import _core
from mario_envpool._testing import _CountingEnvPool, _CountingEnvSpec
from mario_envpool.env import MarioEnv, native_seed
from mario_envpool.vector import MarioVectorEnv

NUM_ENVS = 4


def int32(*values: int) -> Any:
    return np.array(values, np.int32)


GOOD = int32(0, 1, 2, 3)


def send(ids: Any, actions: Any, players: Any = None) -> Callable[[Any], object]:
    return lambda native: native._send(
        [ids, ids if players is None else players, actions]
    )


BAD_CALLS: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "id too large": (
        send(int32(0, 1, 2, 4), GOOD),
        IndexError,
        r"send: env id 4 \(position 3\) is out of range.*0 to 3",
    ),
    "id negative": (send(int32(-1), int32(0)), IndexError, "env id -1"),
    "id twice": (
        send(int32(0, 2, 2), int32(0, 0, 0)),
        ValueError,
        "env id 2 is named twice, the second time at position 2",
    ),
    "no ids": (send(int32(), int32()), ValueError, "no env ids"),
    "ids of another dtype": (
        send(np.arange(4, dtype=np.int64), GOOD),
        TypeError,
        r"env_id must be .*int32.* got an array of dtype int64 and shape \(4,\)",
    ),
    "ids in a list": (send([0, 1], int32(0, 0)), TypeError, "env_id .* got list"),
    "ids of two dimensions": (
        send(GOOD.reshape(2, 2), GOOD),
        TypeError,
        r"shape \(2, 2\)",
    ),
    "an id alone": (
        lambda native: native._reset(np.array(1, np.int32)),
        TypeError,
        r"shape \(\)",
    ),
    "fewer actions": (
        send(GOOD, int32(0, 1, 2)),
        ValueError,
        "4 env ids and 3 actions",
    ),
    "actions of another dtype": (
        send(GOOD, GOOD.astype(np.float32)),
        TypeError,
        "action must be .* got an array of dtype float32",
    ),
    "actions of two dimensions": (
        send(GOOD, GOOD[:, None]),
        TypeError,
        r"shape \(4, 1\)",
    ),
    "action too large": (
        send(GOOD, int32(0, 1, 2, 9)),
        ValueError,
        r"action 9 for env 3 \(position 3\) is out of range; actions are 0 to 3",
    ),
    "action negative": (send(GOOD, int32(-1, 0, 0, 0)), ValueError, "action -1"),
    "players that differ": (
        send(int32(0, 1), int32(0, 0), players=int32(1, 0)),
        ValueError,
        "players.env_id must equal env_id",
    ),
    "fewer players": (
        send(int32(0, 1), int32(0, 0), players=int32(0)),
        ValueError,
        "players.env_id must equal env_id",
    ),
    "two arrays": (
        lambda native: native._send([GOOD, GOOD]),
        ValueError,
        "3 arrays .* got 2",
    ),
    "no list": (lambda native: native._send(7), TypeError, "_send"),
    "reset of a wrong id": (
        lambda native: native._reset(int32(0, 7)),
        IndexError,
        r"reset: env id 7 \(position 1\)",
    ),
    "reset of another dtype": (
        lambda native: native._reset(np.zeros(1, np.float32)),
        TypeError,
        "must be integers.*float32",
    ),
    "reset by a mask": (
        lambda native: native._reset(np.ones(4, bool)),
        TypeError,
        "must be integers.*bool",
    ),
    "reset of an id beyond int32": (
        lambda native: native._reset(np.array([2**40])),
        IndexError,
        r"env id 1099511627776 \(position 0\) is out of range; this pool has envs 0",
    ),
    "fewer seeds": (
        lambda native: native._reset(int32(0, 1), [3]),
        ValueError,
        "2 env ids and 1 seeds",
    ),
    "seed of a float": (
        lambda native: native._reset(int32(0), [1.5]),
        TypeError,
        "a seed must be an integer, got float",
    ),
    "seed of a NumPy float": (
        lambda native: native._reset(int32(0), np.array([1.5])),
        TypeError,
        r"a seed must be an integer, got float64 .*1\.5",
    ),
    "seed too large": (
        lambda native: native._reset(int32(0), [2**64]),
        ValueError,
        r"seeds are 0 to 2\^64 - 1, got 18446744073709551616",
    ),
    "seed negative": (
        lambda native: native._reset(int32(0), [-1]),
        ValueError,
        "0 to 2\\^64 - 1, got -1",
    ),
    "render of a wrong id": (
        lambda native: native._render(int32(4), 0, 0, -1),
        IndexError,
        "render: env id 4",
    ),
    "render of a wrong size": (
        lambda native: native._render(int32(0), -1, 0, -1),
        ValueError,
        "got -1 and 0",
    ),
    "render by a wrong camera": (
        lambda native: native._render(int32(0), 0, 0, 3),
        ValueError,
        "camera_id .* got 3",
    ),
    "snapshot of a wrong id": (
        lambda native: native.snapshot(int32(9)),
        IndexError,
        "snapshot: env id 9",
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_call_is_refused_on_the_hundredth_time(make_pool: Any, case: str) -> None:
    call, error, message = BAD_CALLS[case]
    pool = make_pool(num_envs=NUM_ENVS, episode_steps=1000)
    pool.restart()
    for _ in range(99):
        pool.step(1)
    with pytest.raises(error, match=message):
        call(pool.native)
    assert pool.native.status()["outstanding"] == 0
    assert pool.step(1)["info:total"].tolist() == [100] * NUM_ENVS


@pytest.mark.parametrize("batch_size", [NUM_ENVS, 2])
def test_a_double_send_is_refused(make_pool: Any, batch_size: int) -> None:
    pool = make_pool(num_envs=NUM_ENVS, batch_size=batch_size)
    pool.reset()
    for call in (
        lambda: pool.send(0, [2]),
        lambda: pool.reset([2]),
        lambda: pool.native.snapshot(int32(2)),
        lambda: pool.native.restore(int32(2), np.zeros((1, 10), np.uint8)),
    ):
        with pytest.raises(RuntimeError, match="env 2 has an earlier request outst"):
            call()
    ids = pool.recv()["info:env_id"]
    pool.send(0, ids)  # theirs again, though others may be outstanding
    pool.recv()


def test_ids_are_those_of_the_call(make_pool: Any) -> None:
    """Whatever another thread writes into the array while the call waits."""
    pool = make_pool(num_envs=64, num_threads=1, max_sleep_us=20_000)
    pool.restart()
    pool.send(0)
    ids = int32(63, 7)
    pictures: list[Any] = []
    reader = threading.Thread(
        target=lambda: pictures.append(pool.native._render(ids, 0, 0, -1))
    )
    reader.start()
    time.sleep(0.05)  # it waits for the step of env 63
    ids[:] = 5
    reader.join()
    assert pictures[0][:, 0, 0, 0].tolist() == [63, 7]
    pool.recv()


def spec_values(**options: Any) -> tuple[Any, ...]:
    values = dict(
        zip(
            _CountingEnvSpec._config_keys,
            _CountingEnvSpec._default_config_values,
            strict=True,
        )
    )
    return tuple((values | options).values())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_envs": 0}, ValueError, "num_envs must be 1 to 1048576, got 0"),
        ({"num_envs": 2**31 - 1}, ValueError, "num_envs must be 1 to 1048576"),
        ({"num_envs": 2, "batch_size": 3}, ValueError, "num_envs = 2, got 3"),
        ({"batch_size": -1}, ValueError, "batch_size"),
        ({"num_threads": -1}, ValueError, "num_threads must be .* got -1"),
        (
            {"num_envs": 9999, "num_threads": 4097},
            ValueError,
            r"num_threads must be 0 \(choose\) to 4096, got 4097",
        ),
        ({"max_num_players": 2}, ValueError, "one player; got 2"),
        ({"thread_affinity_offset": -2}, ValueError, "thread_affinity_offset"),
        ({"num_envs": 3, "env_seed": [1]}, ValueError, "3 envs, got 1"),
        ({"max_episode_steps": 0}, ValueError, "max_episode_steps"),
        ({"num_envs": 1.5}, TypeError, r"num_envs must be an int of 32 bits, got 1\.5"),
        ({"seed": 2**31}, TypeError, "seed must be an int of 32 bits, got 2147483648"),
        (
            {"seed": 2**40},
            TypeError,
            "got 1099511627776; ints here are -2147483648 to 2147483647",
        ),
        (
            {"seed": np.int64(-(2**31) - 1)},
            TypeError,
            r"got .*-2147483649.*; ints here are -2147483648 to 2147483647",
        ),
        ({"seed": 1.5}, TypeError, r"seed must be an int of 32 bits, got 1\.5"),
        (
            {"num_envs": 2, "env_seed": [1, 2**40]},
            TypeError,
            r"got \[1, 1099511627776\]; ints here are -2147483648 to 2147483647",
        ),
        ({"num_envs": "two"}, TypeError, "num_envs must be .* got 'two'"),
        ({"label": 7}, TypeError, "label must be a str, got 7"),
        ({"obs_shape": "ab"}, TypeError, "obs_shape must be a list of ints"),
        ({"num_actions": 0}, ValueError, "num_actions, num_stages and"),
    ],
)
def test_a_bad_config_is_refused_by_name(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _CountingEnvSpec(spec_values(**options))


def test_a_spec_takes_all_values() -> None:
    with pytest.raises(ValueError, match="config values, got 2"):
        _CountingEnvSpec((1, 2))


def test_a_pool_takes_the_spec_of_its_task() -> None:
    with pytest.raises(TypeError, match="spec class of its own task, got int"):
        _CountingEnvPool(7)


# Seeds of NumPy's RandomState, which draws the stages, have 32 bits.
STAGES = {"random_stages": True, "obs_type": "ram"}


def test_a_seed_that_the_task_would_cut_is_refused() -> None:
    image = rom_builder.stand_in()
    for seed in (2**32, 2**40 + 5, np.uint64(2**63)):
        with pytest.raises(ValueError, match=f"seed={seed} is outside 0 to 4294967295"):
            _core._MarioEnv(image, STAGES, 0, seed)
    env = _core._MarioEnv(image, STAGES, 0, 2**32 - 1)
    with pytest.raises(ValueError, match="seed=4294967296 is outside 0 to 4294967295"):
        env.reset(seed=2**32)
    with pytest.raises(TypeError, match=r"a seed must be an integer, got float 1\.5"):
        env.reset(seed=1.5)
    with pytest.raises(ValueError, match=r"seeds are 0 to 2\^64 - 1, got -1"):
        env.reset(seed=-1)
    env.reset(seed=np.int32(7))
    # Where nothing is cut, all 64 bits count.
    whole = [
        _core._MarioEnv(image, {"noop_max": 1000}, 0, seed) for seed in (5, 2**40 + 5)
    ]
    first, second = (env.reset()["obs"].tobytes() + env.snapshot() for env in whole)
    assert first != second


@pytest.mark.rom
def test_a_pool_refuses_a_seed_that_its_task_would_cut() -> None:
    pool = mario_envpool.make(
        "SuperMarioBrosRandomStages-v0", num_envs=2, obs_type="ram"
    )
    for seed in (2**32, 2**64 - 1, np.uint64(2**40)):
        with pytest.raises(
            ValueError,
            match=rf"reset: seed {seed} for env 1 \(position 1\) is out of range; "
            "this pool's seeds are 0 to 4294967295",
        ):
            pool._reset(int32(0, 1), [1, seed])
    pool._reset(int32(0, 1), [2**32 - 1, np.int64(3)])
    pool._recv()
    # Gymnasium's seeds have no bound: larger ones are hashed, and no bit is lost.
    assert native_seed(2**32 - 1) == 2**32 - 1
    hashed = {native_seed(seed) for seed in (2**40, 2**41, 2**40 + 1, 2**70)}
    assert len(hashed) == 4
    assert 0 not in hashed
    env = MarioEnv("SuperMarioBrosRandomStages-v0", obs_type="ram")
    env.reset(seed=2**40)
    env.close()


@pytest.mark.rom
@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [
        (2**40, ValueError, "seed=1099511627776 .* -2147483648 to 2147483647"),
        (-(2**31) - 1, ValueError, "seed=-2147483649 .* -2147483648 to 2147483647"),
        (np.int64(2**31), ValueError, "seed=2147483648 .* -2147483648 to 2147483647"),
        (1.5, TypeError, r"seed=1\.5 is float; give an int"),
        (np.float64(2), TypeError, "seed=.*2.0.* is float64; give an int"),
    ],
)
def test_make_refuses_a_seed_beyond_32_bits(
    seed: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        mario_envpool.make("SuperMarioBros-v0", seed=seed)


@pytest.mark.rom
def test_no_bit_of_a_gymnasium_seed_is_lost() -> None:
    """Gymnasium's seeds have no bound: those beyond a pool's are hashed, not cut."""
    env = MarioEnv("SuperMarioBros-1-1-v0", noop_max=1000, obs_type="ram")

    def start(seed: int) -> tuple[bytes, ...]:
        return tuple(
            env.reset(seed=seed if i == 0 else None)[0].tobytes() for i in range(4)
        )

    assert start(2**70 + 5) != start(5)
    assert start(2**70 + 5) == start(2**70 + 5)
    env.close()
    envs = MarioVectorEnv(2, "SuperMarioBros-1-1-v0", obs_type="ram")
    with pytest.raises(
        ValueError, match="seed=-1 is not possible; give an int of 0 or"
    ):
        envs.reset(seed=[1, -1])
    with pytest.raises(
        TypeError, match=r"seed=1\.5 is float; give an int of 0 or more"
    ):
        envs.reset(seed=[1, 1.5])
    envs.close()
