"""Python's memory runs out at any allocation of a call: nothing is lost or sent twice.

`_testcapi.set_nomemory` lets single allocations of Python fail, or all from one on.
tests/cpp/allocation_test.cc does the same to the allocations of C++.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("_testcapi") is None,
    reason="this Python has no _testcapi, which lets allocations fail",
)

HEADER = """
import itertools, os
import _testcapi
import numpy as np
from mario_envpool._testing import _CountingEnvPool as Pool, _CountingEnvSpec as Spec

ids = np.arange(4, dtype=np.int32)
zeros = np.zeros(4, np.int32)

def make(**options):
    values = dict(zip(Spec._config_keys, Spec._default_config_values))
    values |= {"num_envs": 4, "obs_shape": [64], "episode_steps": 10**6} | options
    return Pool(Spec(tuple(values.values())))

def places(count=150):
    '''The n-th allocation alone, and the n-th with all later ones, for n = 1, 2 ...'''
    return itertools.chain(*(((n, n + 1), (n, 0)) for n in range(1, count)))

def attempt(place, call, *arguments):
    '''Calls with failing allocations: [result], or [] if the call failed.'''
    result = done = None
    try:
        _testcapi.set_nomemory(*place)
        try:
            result = call(*arguments)
            done = True
        finally:
            _testcapi.remove_mem_hooks()
    except (MemoryError, RuntimeError, SystemError):
        pass  # pybind11 reports some failures as the other two
    return [result] if done else []

def refused(call, *arguments):
    try:
        call(*arguments)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it was not refused")
"""


def run(script: str) -> None:
    """Runs a script in an interpreter of its own, where nothing else may fail."""
    subprocess.run([sys.executable, "-c", HEADER + script], check=True, timeout=60)


@pytest.mark.parametrize("batch_size", [4, 2])
def test_a_recv_that_runs_out_of_memory_loses_no_batch(batch_size: int) -> None:
    run(f"""
pool = make(batch_size={batch_size})
ID, TOTAL, OBS = map(pool._state_keys.index, ("info:env_id", "info:total", "obs"))
pool._reset(ids)
for _ in range(4 // {batch_size}):
    pool._recv()
failures = 0
for step, place in enumerate(places(), start=1):
    pool._send([ids, ids, zeros])
    seen = []
    for left in range(4, 0, -{batch_size}):
        got = attempt(place, pool._recv)
        if not got:
            failures += 1
            assert pool.status()["outstanding"] == left
            assert "earlier request outstanding" in refused(
                pool._send, [ids, ids, zeros])
            got = [pool._recv()]
        [rows] = got
        assert rows[OBS].shape == ({batch_size}, 64)
        seen += zip(rows[ID].tolist(), rows[TOTAL].tolist())
    assert sorted(seen) == [(env, step) for env in range(4)], (place, seen)
assert failures > 40, failures
assert "nothing is outstanding" in refused(pool._recv)
assert pool.slab_growth == 0
""")


def test_a_kept_batch_is_dropped_by_close_and_not_taken_by_a_child() -> None:
    run("""
pool = make()
pool._reset(ids)
assert not attempt((20, 0), pool._recv)
if hasattr(os, "fork"):
    child = os.fork()
    if child == 0:
        os._exit("forked child" not in refused(pool._recv))
    assert os.waitpid(child, 0)[1] == 0
pool._close()
assert "pool closed by close()" in refused(pool._recv)
del pool
""")


def test_other_calls_that_run_out_of_memory_change_nothing() -> None:
    run("""
pool = make()
pool._reset(ids)
pool._recv()
blobs = pool.snapshot(ids)
weights = np.ones(pool.num_stages + 4)
seeds = [2**40 + env for env in range(4)]
requests = [
    (pool._send, [ids, ids, zeros]),
    (pool._reset, ids, seeds), (pool._reset, [0, 1, 2, 3]),
    (pool.restore, ids, blobs),
]
others = [
    (pool.snapshot, ids), (pool._render, ids, 0, 0, -1), (pool.status,),
    (pool.set_starts, weights, blobs), (pool.set_starts, None), (pool._xla,),
]
failures = 0
for number, call in enumerate(requests + others):
    for place in places():
        if place[1] == 0 and call[0] == pool._xla:
            continue  # it imports: Python itself may loop for ever then
        before = pool.snapshot(ids)
        if attempt(place, *call):
            if number < len(requests):
                assert pool.status()["outstanding"] == 4
                pool._recv()
        else:
            failures += 1
            assert pool.status()["outstanding"] == 0
            assert (pool.snapshot(ids) == before).all()
assert failures > 40, failures
pool.set_starts(None)
pool.restore(ids, blobs)
pool._recv()
assert (pool.snapshot(ids) == blobs).all()
""")


@pytest.mark.rom
@pytest.mark.parametrize("reward_fn", [False, True])
def test_the_layer_above_keeps_a_batch_too(reward_fn: bool) -> None:
    """EnvPool's Python layer makes dictionaries of a batch, out of Python's memory."""
    run(f"""
import mario_envpool
def reward(batch):
    return batch["reward"] + 1
pool = mario_envpool.make(
    "SuperMarioBros-1-1-v0", num_envs=4, obs_type="ram", seed=1,
    reward_fn=reward if {reward_fn} else None)
twin = mario_envpool.make("SuperMarioBros-1-1-v0", num_envs=4, obs_type="ram", seed=1)
pool.reset(), twin.reset()
failures = 0
for place in places(180):
    if place[1] == 0:
        continue  # Python itself may loop for ever then
    twin.send(zeros + 4)
    expected = twin.recv()
    pool.send(zeros + 4)
    got = attempt(place, pool.recv)
    if not got:
        failures += 1
        assert refused(pool.send, zeros)
        got = [pool.recv()]
    obs, rewards, *_, info = got[0]
    assert (obs == expected[0]).all(), place
    if {reward_fn}:
        begins = info["elapsed_step"] == 0
        assert (rewards == np.where(begins, 0, expected[1] + 1)).all(), place
    else:
        assert (rewards == expected[1]).all(), place
    assert (info["elapsed_step"] == expected[4]["elapsed_step"]).all(), place
assert failures > 50, failures
""")
