"""Errors of environments, ends in every state, and recv without work."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# 64 environments on one thread take about 0.6 s for a step.
SLOW = {"num_envs": 64, "num_threads": 1, "max_sleep_us": 20_000}


@pytest.mark.parametrize("batch_size", [6, 2])
@pytest.mark.parametrize("throw_step", [0, 1, 5])
def test_an_exception_reaches_the_caller_with_the_env_id(
    make_pool: Any, batch_size: int, throw_step: int
) -> None:
    pool = make_pool(
        num_envs=6,
        batch_size=batch_size,
        num_threads=2,
        throw_env=4,
        throw_step=throw_step,
    )
    doing = "step" if throw_step else "reset"
    text = f"env 4 failed in {doing}: told to fail at step {throw_step}"

    def play() -> None:
        pool.reset()
        for _ in range(100):
            batch = pool.recv()
            pool.send(0, batch["info:env_id"])

    with pytest.raises(RuntimeError, match=f"^{text}$"):
        play()
    for call in (pool.recv, pool.reset, lambda: pool.send(0)):
        with pytest.raises(RuntimeError, match=f"^pool closed after {text}$"):
            call()
    status = pool.native.status()
    assert status["closed"] == f"pool closed after {text}"
    assert status["envs"][4] == {
        "state": "failed",
        "steps": max(throw_step - 1, 0),
        "error": text,
    }
    assert status["envs"][0]["error"] == ""


def test_an_env_that_cannot_be_made_is_named(make_pool: Any) -> None:
    with pytest.raises(RuntimeError, match="env 3 failed in construction: told to"):
        make_pool(num_envs=5, num_threads=2, throw_construct_env=3)


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS as Linux has it")
def test_a_thread_that_cannot_start_names_the_option() -> None:
    script = """
import resource
from mario_envpool._testing import _CountingEnvPool as Pool, _CountingEnvSpec as Spec
values = dict(zip(Spec._config_keys, Spec._default_config_values))
values |= {"num_envs": 1000, "num_threads": 1000, "obs_shape": [64]}
spec = Spec(tuple(values.values()))
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 200 * 2**20  # stacks take 8 MiB each
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    Pool(spec)
except RuntimeError as error:
    assert "needs 1000 threads" in str(error), error
    assert "num_threads (now 1000)" in str(error), error
else:
    raise AssertionError("1000 stacks in 200 MiB")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_recv_without_work_raises(make_pool: Any) -> None:
    pool = make_pool(num_envs=2)
    with pytest.raises(RuntimeError, match="nothing is outstanding"):
        pool.recv()
    pool.restart()
    with pytest.raises(RuntimeError, match="nothing is outstanding"):
        pool.recv()
    assert pool.step(0)["done"].shape == (2,)


def test_async_recv_of_a_batch_that_cannot_fill_raises(make_pool: Any) -> None:
    pool = make_pool(num_envs=5, batch_size=3)
    pool.reset([0, 1])
    with pytest.raises(
        RuntimeError, match=r"3 rows and only 2 are outstanding.*at least 1 more"
    ):
        pool.recv()
    pool.reset([4])
    assert sorted(pool.recv()["info:env_id"].tolist()) == [0, 1, 4]


STATES: dict[str, Callable[[Any], object]] = {
    "new": lambda pool: None,
    "idle": lambda pool: pool.restart(),
    "outstanding": lambda pool: (pool.restart(), pool.send(0)),
    "ready": lambda pool: (pool.reset(), time.sleep(0.05)),
    "several outstanding": lambda pool: [pool.reset([i]) for i in pool.ids],
    "failed": lambda pool: (pool.restart(), pool.send(0), time.sleep(0.05)),
}


def count_threads() -> int:
    """Threads of this process; 0 where the system does not list them."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else 0


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_a_pool_ends_cleanly_in_every_state(
    make_pool: Any, state: str, close: bool
) -> None:
    options = {"throw_env": 1, "throw_step": 1} if state == "failed" else {}
    threads_before = count_threads()
    pool = make_pool(num_envs=8, num_threads=2, max_sleep_us=2000, **options)
    STATES[state](pool)
    if close:
        pool.native._close()
        pool.native._close()
        with pytest.raises(RuntimeError, match=r"closed|failed"):
            pool.reset()
        with pytest.raises(RuntimeError, match="closed"):
            pool.recv()
    del pool
    gc.collect()
    # Joined, not left behind; the kernel drops their entries a little later.
    deadline = time.monotonic() + 10
    while count_threads() > threads_before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_close_ends_a_recv_of_another_thread(make_pool: Any) -> None:
    pool = make_pool(**SLOW)
    pool.restart()
    pool.send(0)
    raised: list[str] = []

    def read() -> None:
        try:
            pool.recv()
        except RuntimeError as error:
            raised.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.05)
    pool.native._close()
    reader.join()
    assert raised == ["pool closed by close()"]


def test_the_interpreter_runs_while_recv_waits(make_pool: Any) -> None:
    pool = make_pool(**SLOW)
    pool.restart()
    ticks = 0
    done = threading.Event()

    def count() -> None:
        nonlocal ticks
        while not done.wait(0.002):
            ticks += 1

    counter = threading.Thread(target=count)
    counter.start()
    pool.step(0)
    done.set()
    counter.join()
    assert ticks > 5


@contextmanager
def interrupted_by_a_signal() -> Iterator[None]:
    """A signal handler raises 20 ms on; the body must end with its exception."""

    class AlarmError(Exception):
        pass

    def ring(*_: Any) -> None:
        raise AlarmError

    previous = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(AlarmError):
            yield
    finally:
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX timers")
def test_a_signal_ends_a_recv_and_loses_nothing(make_pool: Any) -> None:
    pool = make_pool(**SLOW)
    pool.restart()
    pool.send(1)
    with interrupted_by_a_signal():
        pool.recv()
    assert pool.recv()["info:total"].tolist() == [1] * 64


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX timers")
def test_a_signal_ends_a_synchronous_step_once_its_rows_are_here(
    make_pool: Any,
) -> None:
    pool = make_pool(**SLOW)
    pool.restart()
    with interrupted_by_a_signal():
        pool.native._send_and_recv([pool.ids, pool.ids, pool.ids * 0 + 1])
    assert pool.native._outstanding == 0
    assert {env["steps"] for env in pool.native.status()["envs"]} == {1}
    assert pool.step(1)["info:total"].tolist() == [2] * 64


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX timers")
def test_a_signal_ends_a_step_of_an_async_pool_and_loses_nothing(
    make_pool: Any,
) -> None:
    pool = make_pool(**SLOW, batch_size=32)
    pool.reset()
    ids = pool.recv()["info:env_id"]
    pool.recv()
    with interrupted_by_a_signal():
        pool.native._send_and_recv([ids, ids, ids * 0])
    assert pool.native._outstanding == 32
    assert sorted(pool.recv()["info:env_id"]) == sorted(ids)


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX timers")
def test_a_signal_ends_a_render_that_waits(make_pool: Any) -> None:
    pool = make_pool(**SLOW)
    pool.restart()
    pool.send(1)
    with interrupted_by_a_signal():
        pool.native._render(pool.ids[63:], 0, 0, -1)
    # Not after the step: the call ended while its env was queued.
    assert pool.native.status()["envs"][63]["state"] == "queued"
    assert pool.recv()["info:total"].tolist() == [1] * 64


def test_other_calls_go_on_while_a_render_waits(make_pool: Any) -> None:
    pool = make_pool(**SLOW)
    pool.restart()
    pool.send(0)
    reader = threading.Thread(
        target=lambda: pool.native._render(pool.ids[63:], 0, 0, -1)
    )
    reader.start()
    time.sleep(0.05)  # it waits for env 63, the last in the queue
    assert pool.native.status()["envs"][63]["state"] == "queued"
    reader.join()
    pool.recv()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused_and_exits() -> None:
    script = """
import os, sys, warnings
import numpy as np
from mario_envpool._testing import _CountingEnvPool as Pool, _CountingEnvSpec as Spec
warnings.simplefilter("ignore")
pool = Pool(Spec(Spec._default_config_values))
ids = np.zeros(1, np.int32)
pool._reset(ids)
child = os.fork()
if child == 0:
    try:
        pool._recv()
    except RuntimeError as error:
        sys.exit(0 if "forked child" in str(error) else 1)
    sys.exit(2)
status = os.waitpid(child, 0)[1]
assert status == 0, status
assert len(pool._recv()[0]) == 1
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_may_drop_observations() -> None:
    """At any moment, as when another thread of the parent takes memory."""
    script = """
import os, signal, threading, warnings
import numpy as np
from mario_envpool._testing import _CountingEnvPool as Pool, _CountingEnvSpec as Spec
warnings.simplefilter("ignore")
pool = Pool(Spec(Spec._default_config_values))
ids = np.zeros(1, np.int32)
pool._reset(ids)
kept = pool._recv()
ended = threading.Event()
def play():
    while not ended.is_set():
        pool._send([ids, ids, ids])
        pool._recv()
player = threading.Thread(target=play)
player.start()
for _ in range(50):
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that waits for ever
        kept.clear()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
ended.set()
player.join()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_pool_left_at_exit_does_not_hang() -> None:
    script = """
import numpy as np
from mario_envpool._testing import _CountingEnvPool as Pool, _CountingEnvSpec as Spec
values = list(Spec._default_config_values)
values[Spec._config_keys.index("max_sleep_us")] = 1000
pool = Pool(Spec(tuple(values)))
ids = np.zeros(1, np.int32)
pool._reset(ids)
obs = pool._recv()[8]
pool._send([ids, ids, ids])
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_threads_may_share_a_pool(make_pool: Any) -> None:
    pool = make_pool(num_envs=8, batch_size=2, num_threads=2)
    pool.reset()
    rows = []

    def work() -> None:
        for _ in range(200):
            ids = pool.recv()["info:env_id"]
            rows.append(len(ids))
            pool.send(0, ids)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert np.sum(rows) == 3 * 200 * 2
