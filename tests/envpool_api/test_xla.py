"""``env.xla()``: what jax compiles plays as ``step``, ``send`` and ``recv`` do.

Skipped where jax is not installed, or was not when the package was built.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mario_envpool
from mario_envpool.envpool_layer import python_layer

with python_layer():
    from envpool.python.api import py_env

jax = pytest.importorskip("jax", reason="jax is not installed (pip install jax)")
_xla: Any = pytest.importorskip(
    "mario_envpool._xla",
    reason="mario_envpool was built without jax (pip install --no-deps -e .)",
)
lax = jax.lax
XlaError = jax.errors.JaxRuntimeError

TASK = "SuperMarioBros-1-1-v0"
KINDS = ["gray", "rgb", "ram", "tiles", ["tiles", "motion"], ["gray", "ram"]]
testing: Any = pytest.importorskip(
    "mario_envpool._testing", reason="only an editable install builds _testing"
)
CountingSpec, _, CountingPool = py_env(
    testing._CountingEnvSpec, testing._CountingEnvPool
)


def make_mario(**config: Any) -> Any:
    return mario_envpool.make(TASK, **{"num_envs": 3, "seed": 5, **config})


def make_counting(**config: Any) -> Any:
    """Has fields of 64 bits: to be used within `jax.enable_x64(True)`."""
    config = {"obs_shape": [64], "num_envs": 2, **config}
    return CountingPool(CountingSpec(CountingSpec.gen_config(**config)))


def some_actions(steps: int, pool: Any) -> Any:
    rng = np.random.default_rng(steps)
    shape = (steps, pool.config["num_envs"])
    return rng.integers(pool.action_space.n, size=shape).astype(np.int32)


def rollout(step: Any) -> Any:
    """A compiled function from a handle and actions to a handle and all states."""
    return jax.jit(lambda handle, actions: lax.scan(step, handle, actions))


def by_steps(pool: Any, actions: Any) -> Any:
    """What a `rollout` returns, made by `step`."""
    states = [pool.step(each) for each in actions]
    return jax.tree.map(lambda *arrays: np.stack(arrays), *states)


def assert_same(ours: Any, expected: Any) -> None:
    """Same nesting, and arrays of same dtype and values."""
    assert jax.tree.structure(ours) == jax.tree.structure(expected)
    for path, array in jax.tree_util.tree_leaves_with_path(expected):
        twin = path_of(ours, path)
        assert twin.dtype == array.dtype, path
        np.testing.assert_array_equal(twin, array, err_msg=str(path))


def path_of(tree: Any, path: Any) -> Any:
    return dict(jax.tree_util.tree_leaves_with_path(tree))[path]


def message_of(states: Any) -> str:
    """The text of the error that a call ends with."""
    with pytest.raises(XlaError) as caught:
        jax.block_until_ready(states())
    return str(caught.value)


@pytest.mark.rom
def test_a_rollout_of_10000_steps_equals_step() -> None:
    ours, twin = make_mario(obs_type="ram"), make_mario(obs_type="ram")
    actions = some_actions(10_000, ours)
    for pool in (ours, twin):
        pool.reset()
    handle, _, _, step = ours.xla()
    _, states = rollout(step)(handle, actions)
    expected = by_steps(twin, actions)
    assert_same(states, expected)
    assert (expected[4]["elapsed_step"] == 0).sum() > 10  # episodes began


@pytest.mark.rom
@pytest.mark.parametrize("obs_type", KINDS, ids=str)
def test_every_kind_of_observation(obs_type: Any) -> None:
    ours, twin = make_mario(obs_type=obs_type), make_mario(obs_type=obs_type)
    actions = some_actions(100, ours)
    for pool in (ours, twin):
        pool.reset()
    handle, _, _, step = ours.xla()
    handle, states = rollout(step)(handle, actions)
    assert_same(states, by_steps(twin, actions))
    # A compiled function and the pool's own may take turns.
    assert_same(ours.step(actions[0]), twin.step(actions[0]))
    _, states = rollout(step)(handle, actions)
    assert_same(states, by_steps(twin, actions))


@pytest.mark.rom
@pytest.mark.parametrize("obs_type", ["tiles", ["tiles", "ram"]], ids=str)
def test_dm_env_has_time_steps(obs_type: Any) -> None:
    config = {"obs_type": obs_type, "num_envs": 2, "seed": 1}
    ours, twin = (mario_envpool.make_dm(TASK, **config) for _ in range(2))
    actions = np.full((50, 2), 1, np.int32)
    for pool in (ours, twin):
        pool.reset()
    handle, _, _, step = ours.xla()
    _, states = rollout(step)(handle, actions)
    assert type(states) is type(twin.step(actions[0]))
    twin.reset()
    ours.reset()
    _, states = rollout(step)(handle, actions)
    assert_same(states, by_steps(twin, actions))


@pytest.mark.rom
@pytest.mark.families
def test_envpools_own_make_and_loop_of_carried_states() -> None:
    import envpool

    config = {"num_envs": 2, "seed": 7, "obs_type": "tiles"}
    ours = envpool.make(TASK, env_type="gymnasium", **config)
    twin = mario_envpool.make(TASK, **config)
    ours.async_reset()
    handle, recv, send, _ = ours.xla()
    handle, first = recv(handle)

    def body(_: Any, carry: Any) -> Any:
        handle, state = carry
        action = (state[4]["x_pos"] % 3 + 1).astype(np.int32)
        return recv(send(handle, action))

    _, last = jax.jit(lambda *carry: lax.fori_loop(0, 200, body, carry))(handle, first)
    twin.async_reset()
    expected = twin.recv()
    assert_same(first, expected)
    for _ in range(200):
        expected = twin.step(expected[4]["x_pos"] % 3 + 1)
    assert_same(last, expected)
    assert expected[4]["x_pos"].max() > 100


@pytest.mark.rom
def test_async_rows_by_env_id() -> None:
    """Who is ready first is a matter of time; what each env plays is not."""
    n = 6
    ours = make_mario(num_envs=n, batch_size=2, num_threads=2, obs_type="ram")
    twin = make_mario(num_envs=n, obs_type="ram")

    def choose(info: Any) -> Any:
        return ((info["elapsed_step"] * 5 + info["env_id"]) % 7).astype(np.int32)

    def body(handle: Any, _: Any) -> Any:
        handle, state = recv(handle)
        info = state[4]
        return send(handle, choose(info), info["env_id"]), state

    ours.async_reset()
    handle, recv, send, _ = ours.xla()
    handle, states = jax.jit(lambda h: lax.scan(body, h, length=900))(handle)
    assert states[1].shape == (900, 2)
    rows = jax.tree.map(lambda a: np.asarray(a).reshape(1800, *a.shape[2:]), states)
    ids = rows[4]["env_id"]
    most = int(np.bincount(ids, minlength=n).max())
    twin.async_reset()
    expected = [twin.recv()]
    while len(expected) < most:
        expected.append(twin.step(choose(expected[-1][4])))
    table = jax.tree.map(lambda *arrays: np.stack(arrays), *expected)
    assert set(ids.tolist()) == set(range(n))
    for env in range(n):
        own = jax.tree.map(lambda a, env=env: a[ids == env], rows)
        length = len(own[1])
        assert_same(own, jax.tree.map(lambda a, e=env, m=length: a[:m, e], table))


@pytest.mark.rom
def test_two_pools_in_one_function() -> None:
    pools = [make_mario(seed=seed, obs_type="tiles") for seed in (1, 2)]
    twins = [make_mario(seed=seed, obs_type="tiles") for seed in (1, 2)]
    actions = some_actions(300, pools[0])
    for pool in pools + twins:
        pool.reset()
    (first, _, _, step), (second, _, _, other_step) = (p.xla() for p in pools)

    def both(handles: Any, action: Any) -> Any:
        one, mine = step(handles[0], action)
        two, yours = other_step(handles[1], (action + 1) % 7)
        return (one, two), (mine, yours)

    _, states = rollout(both)((first, second), actions)
    assert_same(states[0], by_steps(twins[0], actions))
    assert_same(states[1], by_steps(twins[1], (actions + 1) % 7))
    assert "belongs to another pool" in message_of(lambda: step(second, actions[0]))


@pytest.mark.rom
def test_threads_with_a_pool_each() -> None:
    pools = [make_mario(seed=seed, obs_type="ram") for seed in range(4)]
    actions = some_actions(400, pools[0])
    results: list[Any] = [None] * len(pools)

    def play(i: int) -> None:
        pools[i].reset()
        if i == 0:  # one of them without jax
            results[i] = by_steps(pools[i], actions)
            return
        handle, _, _, step = pools[i].xla()
        results[i] = jax.block_until_ready(rollout(step)(handle, actions)[1])

    threads = [threading.Thread(target=play, args=(i,)) for i in range(len(pools))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, states in enumerate(results):
        twin = make_mario(seed=seed, obs_type="ram")
        twin.reset()
        assert_same(states, by_steps(twin, actions))


@pytest.mark.rom
def test_threads_with_one_pool() -> None:
    """Two threads may share a pool, each with environments of its own."""
    pool = make_mario(num_envs=4, batch_size=2, num_threads=2, obs_type="ram")
    pool.async_reset()
    handle, recv, send, _ = pool.xla()

    def body(handle: Any, _: Any) -> Any:
        handle, state = recv(handle)
        info = state[4]
        return send(handle, info["env_id"] % 7, info["env_id"]), info["elapsed_step"]

    play = jax.jit(lambda handle: lax.scan(body, handle, length=300))
    rows: list[Any] = []
    threads = [
        threading.Thread(target=lambda: rows.append(np.asarray(play(handle)[1])))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.shape for each in rows] == [(300, 2)] * 2
    assert sum(env["steps"] for env in pool.status()["envs"]) > 1100


@pytest.mark.rom
def test_wrong_calls_say_what_is_wrong_and_change_nothing() -> None:
    ours, twin = make_mario(obs_type="ram"), make_mario(obs_type="ram")
    for pool in (ours, twin):
        pool.reset()
    handle, recv, send, step = ours.xla()
    good = np.array([1, 2, 3], np.int32)
    assert "nothing is outstanding" in message_of(lambda: recv(handle))
    bad = np.array([1, 7, 1], np.int32)
    assert "action 7 for env 1" in message_of(lambda: step(handle, bad))
    ids = np.array([0, 1, 3], np.int32)
    assert "env id 3 (position 2)" in message_of(lambda: step(handle, good, ids))
    assert "named twice" in message_of(lambda: step(handle, good, ids * 0))
    assert "got 3 env ids and 2 actions" in message_of(lambda: send(handle, good[:2]))
    floats = jax.numpy.ones(3)
    assert "expected S32 but got F32" in message_of(lambda: send(handle, floats))
    wide = np.array([0, 2**32 + 1, 0])
    for actions, text in (
        (np.full(3, 0.5), r"integers of shape \(3,\)"),
        (wide, "action 4294967297"),
    ):
        with pytest.raises(ValueError, match=text):
            send(handle, actions)
    with pytest.raises(IndexError, match="env id 4294967297"):
        send(handle, good, wide)
    wrong = np.zeros(8, np.uint8)
    assert "belongs to another pool" in message_of(lambda: send(wrong, good))
    players = {"action": good, "players.env_id": np.array([2, 1, 0], np.int32)}
    assert "players.env_id must equal" in message_of(lambda: send(handle, players))
    assert_same(step(handle, good)[1], twin.step(good))


@pytest.mark.rom
def test_an_error_ends_a_rollout_at_its_step() -> None:
    pool = make_mario(obs_type="ram")
    pool.reset()
    handle, _, _, step = pool.xla()
    actions = some_actions(50, pool)
    actions[30, 0] = 99
    text = message_of(lambda: rollout(step)(handle, actions))
    assert "send: action 99 for env 0" in text
    assert [env["steps"] for env in pool.status()["envs"]] == [30, 30, 30]


@pytest.mark.rom
def test_a_batch_of_fewer_rows_is_refused() -> None:
    pool = make_mario(obs_type="ram")
    pool.reset()
    handle, _, _, step = pool.xla()
    one = np.zeros(1, np.int32)
    text = message_of(lambda: step(handle, one, one))
    assert "the next batch has 1 rows, and a compiled function takes 3" in text
    assert pool.recv()[4]["elapsed_step"].tolist() == [1]  # it is not lost
    pool.send(one, one)
    assert pool.recv()[1].shape == (1,)


@pytest.mark.rom
def test_a_closed_pool_and_one_that_is_gone() -> None:
    pool = make_mario(obs_type="ram")
    pool.reset()
    handle, _, _, step = pool.xla()
    actions = some_actions(5, pool)
    compiled = rollout(step).lower(handle, actions).compile()
    jax.block_until_ready(compiled(handle, actions))
    pool.close()
    pool._close()
    assert "pool closed by close()" in message_of(lambda: compiled(handle, actions))
    gone = weakref.ref(pool)
    del pool, step, _
    jax.clear_caches()
    gc.collect()
    assert gone() is None
    assert "pool of this function is gone" in message_of(
        lambda: compiled(handle, actions)
    )
    fresh = make_mario(obs_type="ram")  # perhaps at the same address
    fresh.reset()
    handle, _, _, step = fresh.xla()
    assert rollout(step)(handle, actions)[1][1].shape == (5, 3)


@pytest.mark.rom
def test_functions_keep_their_pool() -> None:
    handle, recv, _, _ = make_started().xla()
    gc.collect()
    assert recv(handle)[1][1].shape == (3,)


def make_started() -> Any:
    pool = make_mario(obs_type="ram")
    pool.async_reset()
    return pool


@pytest.mark.rom
def test_one_pool_has_one_handle() -> None:
    pool = make_mario(obs_type="ram")
    pool.async_reset()
    first, second = pool.xla(), pool.xla()
    np.testing.assert_array_equal(first[0], second[0])
    assert second[1](first[0])[1][1].shape == (3,)


@pytest.mark.rom
def test_reward_fn_is_refused() -> None:
    pool = make_mario(reward_fn=lambda batch: batch["x_pos"])
    with pytest.raises(RuntimeError, match="cannot call reward_fn"):
        pool.xla()
    pool.reward_fn = None
    pool.xla()
    with pytest.raises(RuntimeError, match="cannot call reward_fn"):
        pool.reward_fn = lambda batch: batch["x_pos"]
    assert pool.reward_fn is None


def test_an_env_that_fails() -> None:
    with jax.enable_x64(True):
        pool = make_counting(throw_env=1, throw_step=3)
        pool.reset()
        handle, _, _, step = pool.xla()
        actions = np.zeros((10, 2), np.int32)
        text = message_of(lambda: rollout(step)(handle, actions))
        assert "env 1 failed in step" in text
        assert "pool closed after env 1" in message_of(lambda: step(handle, actions[0]))


def test_64_bits_need_x64() -> None:
    pool = make_counting()
    pool.reset()
    handle, _, _, step = pool.xla()
    assert "jax_enable_x64" in message_of(lambda: step(handle, np.zeros(2, np.int32)))


def test_recv_waits_for_slow_envs() -> None:
    with jax.enable_x64(True):
        pool, twin = (make_counting(max_sleep_us=300_000) for _ in range(2))
        for each in (pool, twin):
            each.reset()
        handle, _, _, step = pool.xla()
        actions = np.ones((3, 2), np.int32)
        assert_same(rollout(step)(handle, actions)[1], by_steps(twin, actions))


def test_closing_ends_a_recv_that_waits() -> None:
    with jax.enable_x64(True):
        pool = make_counting(max_sleep_us=1000)
        pool.reset()
        handle, _, _, step = pool.xla()
        states = endless(step)(handle)
        pool._close()
        assert "pool closed by close()" in message_of(lambda: states)


def endless(step: Any) -> Any:
    """A compiled function that plays for ever.

    It has some arithmetic, as XLA runs what is cheap in the thread that calls it.
    """

    def body(carry: Any) -> Any:
        handle, matrix = carry
        handle, _ = step(handle, np.zeros(2, np.int32))
        return handle, matrix @ matrix

    def play(handle: Any) -> Any:
        start = handle, jax.numpy.eye(64)
        return lax.while_loop(lambda _: True, body, start)

    return jax.jit(play)


def test_a_module_of_another_build_is_refused() -> None:
    with pytest.raises(RuntimeError, match="compiled for another mario_envpool"):
        _xla.add(_xla.send)


ENDLESS = """
import os, signal, sys, threading, jax, numpy as np
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_cpu_enable_async_dispatch", {asynchronous})
sys.path.insert(0, sys.argv[1])
from test_xla import endless, make_counting
pool = make_counting(max_sleep_us=1000)
pool.reset()
handle, _, _, step = pool.xla()
play = endless(step).lower(handle).compile()
# What a shell starts in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
{play}
"""


def run_endless(asynchronous: bool, play: str) -> subprocess.CompletedProcess[str]:
    code = ENDLESS.format(asynchronous=asynchronous, play=play)
    return subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("asynchronous", [True, False])
def test_ctrl_c_ends_a_rollout(asynchronous: bool) -> None:
    done = run_endless(asynchronous, "jax.block_until_ready(play(handle))")
    assert done.returncode in (1, 130, -2), done.stderr
    assert "KeyboardInterrupt" in done.stderr
    if not asynchronous:
        assert "interrupted by KeyboardInterrupt" in done.stderr


def test_the_interpreter_ends_under_a_rollout() -> None:
    ignoring = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    done = run_endless(True, f"{ignoring}; play(handle)")
    assert done.returncode == 0, done.stderr
