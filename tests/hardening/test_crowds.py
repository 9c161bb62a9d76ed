"""Many threads, many pools, many processes, and ends at any moment: never a hang.

Threads that share one object take turns: the object never sees two calls at once.

What one pool does when it is closed is in tests/pool/test_closing.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from material import ROOT

from mario_envpool._testing import _CountingEnvPool, _CountingEnvSpec

HEADER = """
import os, sys, threading, time, warnings
import numpy as np
from mario_envpool._testing import _CountingEnvPool as Pool, _CountingEnvSpec as Spec
warnings.simplefilter("ignore")
def make(**options):
    values = dict(zip(Spec._config_keys, Spec._default_config_values))
    values |= {"obs_shape": [64]} | options
    return Pool(Spec(tuple(values.values())))
def play(pool, count, steps):
    ids = np.arange(count, dtype=np.int32)
    pool._reset(ids)
    pool._recv()
    for step in range(steps):
        pool._send([ids, ids, np.zeros(count, np.int32)])
        total = pool._recv()[10]
    return total.tolist()
"""


def run(script: str, timeout: float = 120) -> None:
    """Runs a script in an interpreter of its own; it must end well, and in time."""
    folders = [str(Path(__file__).resolve().parent), str(ROOT / "tests/support")]
    command = [sys.executable, "-c", HEADER + script, *folders]
    subprocess.run(command, check=True, timeout=timeout)


def make(**options: Any) -> Any:
    """A counting pool from keyword options."""
    values = dict(
        zip(
            _CountingEnvSpec._config_keys,
            _CountingEnvSpec._default_config_values,
            strict=True,
        )
    )
    values |= {"obs_shape": [64]} | options
    return _CountingEnvPool(_CountingEnvSpec(tuple(values.values())))


def step(pool: Any, count: int) -> Any:
    """Sends action 0 to everyone and receives: how many steps each env has made."""
    ids = np.arange(count, dtype=np.int32)
    pool._send([ids, ids, np.zeros(count, np.int32)])
    return pool._recv()[pool._state_keys.index("info:total")]


@pytest.mark.parametrize("batch_size", [0, 64])
def test_256_workers_lose_nothing(batch_size: int) -> None:
    pool = make(num_envs=256, num_threads=256, batch_size=batch_size)
    assert len(pool.status()["workers"]) == 256
    rows = np.zeros(256, int)
    pool._reset(np.arange(256, dtype=np.int32))
    for _ in range(40 if batch_size else 10):
        ids = pool._recv()[0]
        rows[ids] += 1
        pool._send([ids, ids, np.zeros(len(ids), np.int32)])
    assert rows.sum() == 40 * 64 if batch_size else (rows == 10).all()
    pool._close()
    assert {worker["state"] for worker in pool.status()["workers"]} == {"stopped"}


def test_256_callers_share_a_pool() -> None:
    """Each names its own environment again as soon as its row has been read."""
    pool = make(num_envs=256, num_threads=2, batch_size=1)
    read = [threading.Semaphore(0) for _ in range(256)]
    asked = threading.Semaphore(0)

    def call(env: int) -> None:
        ids = np.array([env], np.int32)
        for _ in range(4):
            pool._reset(ids)
            asked.release()
            read[env].acquire()

    threads = [threading.Thread(target=call, args=(env,)) for env in range(256)]
    for thread in threads:
        thread.start()
    rows = np.zeros(256, int)
    for _ in range(4 * 256):
        asked.acquire()
        (env,) = pool._recv()[0]
        rows[env] += 1
        read[env].release()
    for thread in threads:
        thread.join()
    assert (rows == 4).all()


def test_24_pools_at_once() -> None:
    pools = [make(num_envs=8, num_threads=2, seed=seed) for seed in range(24)]
    for pool in pools:
        pool._reset(np.arange(8, dtype=np.int32))
    for pool in pools:
        pool._recv()
    for number in range(1, 11):
        for pool in pools:
            # Ten steps end an episode, so none is lost to a reset before that.
            assert step(pool, 8).tolist() == [number] * 8
    for pool in pools[::2]:
        pool._close()
    assert all(step(pool, 8).shape == (8,) for pool in pools[1::2])


@pytest.mark.parametrize("closers", [1, 8])
def test_close_by_threads_while_others_call(closers: int) -> None:
    """Every blocked or later call ends, with the pool's own exception."""
    pool = make(num_envs=64, num_threads=1, max_sleep_us=5000)
    ids = np.arange(64, dtype=np.int32)
    pool._reset(ids)
    pool._recv()
    pool._send([ids, ids, np.zeros(64, np.int32)])
    errors: list[str] = []

    def until_closed(call: Any) -> None:
        try:
            while True:
                call()
        except (RuntimeError, ValueError) as error:
            errors.append(str(error))

    calls = [
        pool._recv,
        pool._recv,
        lambda: pool._render(ids[63:], 0, 0, -1),
        lambda: pool._send([ids[:0], ids[:0], ids[:0]]),
    ]
    threads = [threading.Thread(target=until_closed, args=(call,)) for call in calls]
    threads += [threading.Thread(target=pool._close) for _ in range(closers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(errors) == len(calls)
    assert pool.status()["closed"] == "pool closed by close()"


SHARED = """
sys.path[:0] = sys.argv[1:]
import native_calls, rom_builder
from mario_envpool import _core
sys.setswitchinterval(1e-6)
def in_threads(count, call):
    errors = []
    def work(number):
        try:
            call(number)
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
"""


@pytest.mark.parametrize("other", ["film", "step"])
def test_threads_that_film_one_environment_take_turns(other: str) -> None:
    """The steps of all threads add up to those of one thread; work RAM is whole."""
    run(
        SHARED
        + f"""
options = {{"img_height": 8, "img_width": 8, "frame_skip": 4, "stages": ["1-1"]}}
env, twin = (_core._MarioEnv(rom_builder.stand_in(), options, 0, 1) for _ in "ab")
env.reset(), twin.reset()
ram = env.ram
calls = [env.film, env.{other}, env.film, env.{other}]
def play(number):
    for _ in range(100):
        calls[number](1)
        assert ram.shape == (2048,)
in_threads(4, play)
for _ in range(400):
    twin.step(1)
assert env.save_console() == twin.save_console()
assert env.snapshot() == twin.snapshot()
assert (env.render() == twin.render()).all()
"""
    )


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_threads_make_any_calls_to_the_same_objects(seed: int) -> None:
    """Console, CPU, environment and pool, each with calls of all kinds at once."""
    run(
        SHARED
        + f"""
machines = [native_calls.Calls(native_calls.Maker({seed} + n)) for n in range(4)]
for machine in machines[1:]:
    for name in ("console", "flat", "env", "spec", "pool", "save"):
        setattr(machine, name, getattr(machines[0], name))
def play(number):
    for _ in range(400):
        try:
            machines[number].call()
        except native_calls.ALLOWED:
            pass
in_threads(4, play)
"""
    )


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@needs_fork
def test_a_forked_child_may_have_pools_of_its_own() -> None:
    run("""
pool = make(num_envs=4, num_threads=2)
before = play(pool, 4, 3)
child = os.fork()
if child == 0:
    own = make(num_envs=4, num_threads=2)
    good = play(own, 4, 3) == before
    os._exit(0 if good else 1)
assert os.waitpid(child, 0)[1] == 0
assert play(pool, 4, 3) == [6] * 4
""")


@needs_fork
def test_every_call_to_the_parents_pool_is_refused_in_a_child() -> None:
    """Also when a thread of the parent holds the pool at the moment of the fork."""
    run("""
ids = np.arange(4, dtype=np.int32)
pool = make(num_envs=4, num_threads=2, max_sleep_us=2000)
play(pool, 4, 1)
saved = pool.snapshot(ids)
ended = threading.Event()
def keep_busy():
    while not ended.is_set():
        play(pool, 4, 1)
player = threading.Thread(target=keep_busy)
player.start()
calls = [
    lambda: pool._send([ids, ids, ids]), lambda: pool._reset(ids), pool._recv,
    lambda: pool._render(ids, 0, 0, -1), lambda: pool.snapshot(ids),
    lambda: pool.restore(ids, saved), pool.status,
    lambda: pool._buffers, lambda: pool.slab_growth,
]
for _ in range(20):
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                refused += "forked child" in str(error)
        pool._close()
        del pool
        os._exit(0 if refused == len(calls) else 1)
    assert os.waitpid(child, 0)[1] == 0
ended.set()
player.join()
""")


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_multiprocessing_after_import(method: str, tmp_path: Any) -> None:
    """Children of every start method make pools; the parent's goes on."""
    if method != "spawn" and not hasattr(os, "fork"):
        pytest.skip(f"this system cannot {method}")
    script = (
        HEADER
        + f"""
import multiprocessing
def work(seed):
    return play(make(num_envs=3, num_threads=2, seed=seed), 3, 5)
if __name__ == "__main__":
    mine = make(num_envs=3, num_threads=2)
    play(mine, 3, 1)
    with multiprocessing.get_context({method!r}).Pool(2) as processes:
        assert processes.map(work, range(4)) == [[5] * 3] * 4
    assert play(mine, 3, 1) == [2] * 3
"""
    )
    path = tmp_path / "children.py"
    path.write_text(script)
    subprocess.run([sys.executable, str(path)], check=True, timeout=120)


AT_EXIT = {
    "a daemon thread films": """
sys.path[:0] = sys.argv[1:]
import rom_builder
from mario_envpool import _core
env = _core._MarioEnv(rom_builder.stand_in(), {})
env.reset()
def film():
    while True:
        env.film(0)
threading.Thread(target=film, daemon=True).start()
time.sleep(0.02)
""",
    "a daemon thread learns": """
from trainer import _native
side = 512
arrays = np.zeros((3, side, side), np.float32)
scratch = np.zeros(_native.muon_scratch(side, side), np.float32)
row = [side, side, *(each.ctypes.data for each in arrays)]
options = [1e-3, 0.95, 0.0]
def learn():
    while True:
        _native.muon_step(_native.paths()[-1], [row], options, scratch.ctypes.data)
threading.Thread(target=learn, daemon=True).start()
time.sleep(0.1)
""",
    "a daemon thread waits in recv": """
threading.Thread(target=pool._recv, daemon=True).start()
time.sleep(0.02)
""",
    "a daemon thread renders": """
threading.Thread(
    target=lambda: pool._render(ids[3:], 0, 0, -1), daemon=True).start()
time.sleep(0.02)
""",
    "in a cycle of garbage": """
class Holder: pass
holder = Holder()
holder.pool, holder.self = pool, holder
del pool, holder
""",
    "closed by atexit": """
import atexit
atexit.register(pool._close)
""",
    "with an exception": """
import builtins
sys.excepthook = lambda *_: None
builtins.kept = pool
""",
}


@pytest.mark.parametrize("how", AT_EXIT)
def test_the_interpreter_ends_with_work_under_way(how: str) -> None:
    run(
        """
pool = make(num_envs=4, num_threads=2, max_sleep_us=20_000)
play(pool, 4, 1)
ids = np.arange(4, dtype=np.int32)
pool._send([ids, ids, np.zeros(4, np.int32)])
"""
        + AT_EXIT[how]
    )


@pytest.mark.rom
def test_16_pools_of_the_game_in_threads() -> None:
    """Pools of one process share nothing: all play the same game alike."""
    import mario_envpool

    results: list[Any] = []

    def play() -> None:
        pool = mario_envpool.make("SuperMarioBros-1-1-v0", num_envs=2, num_threads=2)
        pool.reset()
        for _ in range(20):
            obs, _, _, _, info = pool.step(np.array([3, 4]))
        results.append((obs.tobytes(), info["x_pos"].tolist()))
        pool.close()

    threads = [threading.Thread(target=play) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 16
    assert all(result == results[0] for result in results)
