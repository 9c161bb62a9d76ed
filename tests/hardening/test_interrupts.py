"""Ctrl-C at any moment of a synchronous call leaves every class usable.

Two ways to interrupt: a real SIGINT after a random time, and KeyboardInterrupt at each
bytecode of this package in turn, which also finds moments that last nanoseconds.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
import pytest

import mario_envpool
from mario_envpool import compat
from mario_envpool.compat import envpool as old_envpool
from mario_envpool.env import MarioEnv
from mario_envpool.vector import MarioVectorEnv

pytestmark = [
    pytest.mark.rom,
    pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX timers"),
]
TASK = "SuperMarioBros-1-1-v0"
RIGHT = 1
MOMENTS = 50
PACKAGE = str(Path(mario_envpool.__file__).parent)
# What a step may answer after the end of an episode whose row nobody received.
ASKS_FOR_RESET = (gymnasium.error.ResetNeeded, ValueError)
Call = Callable[[], Any]


class Player:
    """The synchronous calls of one object; `observe` takes what a call observed."""

    def __init__(
        self, step: Call, reset: Call, restore: Call | None, observe: Any
    ) -> None:
        self.calls = {"step": step, "reset": reset, "restore": restore or reset}
        self.observe = observe

    def trace(self, begin: str) -> list[Any]:
        """The observations of a reset or a restore, and of steps after it."""
        calls = [self.calls[begin], *[self.calls["step"]] * 3]
        return [np.array(self.observe(call())) for call in calls]


def own_reward(batch: dict[str, Any]) -> Any:
    total = sum(range(300))  # time for a signal
    return batch["reward"] + 0 * total


def of_tuple(result: Any) -> Any:
    return result[0]


def single(env: Any) -> Player:
    env.reset(seed=1)
    saved = env.unwrapped.snapshot()
    return Player(
        partial(env.step, RIGHT),
        env.reset,
        lambda: (env.reset(), env.unwrapped.restore(saved))[1],
        of_tuple,
    )


def vector(envs: Any) -> Player:
    envs.reset(seed=1)
    ids, saved = [2, 0, 1], envs.snapshot([2, 0, 1])
    return Player(
        partial(envs.step, np.full(3, RIGHT)),
        envs.reset,
        partial(envs.restore, ids, saved),
        of_tuple,
    )


def plain(pool: Any, observe: Any = of_tuple) -> Player:
    """Pools have no synchronous `restore`: the caller receives the rows."""
    pool.reset()
    return Player(partial(pool.step, np.full(3, RIGHT)), pool.reset, None, observe)


def obs_of(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def sb3(kind: str) -> Player:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack

    from mario_envpool.compat.sb3 import MarioVecEnv

    actions = np.full(3, RIGHT)
    venv: Any
    if kind == "make_vec_env":
        venv = make_vec_env(f"mario_envpool:{TASK}", 3)
    else:
        venv = MarioVecEnv(TASK, 3, info_keys=("x_pos",), max_episode_steps=7)
    if kind == "VecFrameStack":
        venv = VecFrameStack(venv, 2)

    def step() -> Any:
        try:
            return venv.step(actions)
        except RuntimeError as error:
            if kind != "VecFrameStack" or "call step_wait() first" not in str(error):
                raise
            return venv.step_wait()  # the interrupt came before the wrapper's call

    venv.reset()
    return Player(step, venv.reset, None, obs_of)


def drop_in(env: Any) -> Player:
    env.reset()
    inner = env.unwrapped
    saved = inner.dump_state()

    def restore() -> Any:
        env.reset()
        inner.load_state(saved)
        return (inner.screen,)

    return Player(partial(env.step, 1 << 7), env.reset, restore, obs_of)


MAKERS: dict[str, Callable[[], Player]] = {
    "MarioEnv": lambda: single(MarioEnv(TASK)),
    "gymnasium.make": lambda: single(gymnasium.make(TASK, max_episode_steps=9)),
    "MarioEnv with reward_fn": lambda: single(MarioEnv(TASK, reward_fn=own_reward)),
    "MarioVectorEnv": lambda: vector(MarioVectorEnv(3, TASK)),
    "MarioVectorEnv that the caller resets": lambda: vector(
        MarioVectorEnv(3, TASK, autoreset_mode="Disabled")
    ),
    "gymnasium.make_vec": lambda: vector(
        gymnasium.make_vec(TASK, 3, max_episode_steps=4)
    ),
    "pool": lambda: plain(mario_envpool.make(TASK, num_envs=3)),
    "pool with reward_fn": lambda: plain(
        mario_envpool.make(TASK, num_envs=3, reward_fn=own_reward)
    ),
    "dm pool": lambda: plain(
        mario_envpool.make_dm(TASK, num_envs=3), lambda step: step.observation.obs
    ),
    "EnvPool, gym": lambda: plain(
        old_envpool.make(TASK, "gym", num_envs=3),
        obs_of,
    ),
    "EnvPool, gymnasium": lambda: plain(
        old_envpool.make(TASK, "gymnasium", num_envs=3)
    ),
    "MarioVecEnv": lambda: sb3("MarioVecEnv"),
    "MarioVecEnv in VecFrameStack": lambda: sb3("VecFrameStack"),
    "make_vec_env of Stable-Baselines3": lambda: sb3("make_vec_env"),
    "compat.make, gym": lambda: drop_in(compat.make(TASK)),
    "compat.make, gymnasium": lambda: drop_in(compat.make(TASK, api="gymnasium")),
    "compat.make, random stages": lambda: drop_in(
        compat.make("SuperMarioBrosRandomStages-v0", stages=["1-1"])
    ),
}


def interrupted_after(seconds: float, call: Call) -> bool:
    """Repeats a call until SIGINT, which this process gets after some seconds.

    And once more each ten seconds: Python's own copyreg catches every exception, an
    interrupt among them, and `copy.deepcopy` (Stable-Baselines3) calls it.
    """

    def send(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    alarm = signal.signal(signal.SIGALRM, send)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    limit = signal.getitimer(signal.ITIMER_REAL)  # pytest-timeout's
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, 10)
        while True:
            call()
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        signal.setitimer(signal.ITIMER_REAL, *limit)
        signal.signal(signal.SIGINT, interrupt)


class Interrupter:
    """Raises KeyboardInterrupt before the n-th bytecode of this package."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self

    def interrupts(self, call: Call) -> bool:
        """Makes the call; False if it was over before the n-th bytecode."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def step_again(player: Player) -> None:
    """A step is valid, or asks for a reset."""
    with contextlib.suppress(*ASKS_FOR_RESET):
        player.calls["step"]()


def cases(names: Iterable[str], *fast: str) -> list[Any]:
    """Makers and their calls; all but some are marked slow."""
    return [
        pytest.param(name, call, marks=[] if name in fast else pytest.mark.slow)
        for name in names
        for call in ("step", "reset", "restore")
        if call != "restore" or name not in WITHOUT_RESTORE
    ]


# One of each class; the others differ in code outside of this package.
ALONE = (
    *("MarioEnv with reward_fn", "MarioVectorEnv that the caller resets"),
    *("pool with reward_fn", "dm pool", "EnvPool, gym", "MarioVecEnv"),
    *("MarioVecEnv in VecFrameStack", "compat.make, gym"),
)
WITHOUT_RESTORE = (
    *("pool", "pool with reward_fn", "dm pool", "EnvPool, gym", "EnvPool, gymnasium"),
    *("MarioVecEnv", "MarioVecEnv in VecFrameStack"),
    "make_vec_env of Stable-Baselines3",
)


@pytest.mark.parametrize(
    ("name", "call"), cases(MAKERS, "MarioEnv", "MarioVectorEnv", "pool")
)
def test_sigint_at_50_random_moments_leaves_it_usable(name: str, call: str) -> None:
    player = MAKERS[name]()
    randomness = random.Random(f"{name} {call}")
    expected = player.trace("restore")

    def call_or_reset() -> None:
        try:
            player.calls[call]()
        except ASKS_FOR_RESET:
            player.calls["reset"]()

    for _ in range(MOMENTS):
        player.calls["reset"]()
        assert interrupted_after(randomness.uniform(0.0001, 0.004), call_or_reset)
        step_again(player)
        np.testing.assert_array_equal(player.trace("restore"), expected)


@pytest.mark.parametrize(("name", "call"), cases(ALONE))
def test_an_interrupt_at_every_bytecode_leaves_it_usable(name: str, call: str) -> None:
    player = MAKERS[name]()
    expected = player.trace("restore")
    moments = 0
    player.calls["reset"]()
    while Interrupter(moments + 1).interrupts(player.calls[call]):
        moments += 1
        if moments % 2:  # else the next call is a reset or a restore
            step_again(player)
        if moments % 3:
            player.trace("reset")
        else:
            np.testing.assert_array_equal(player.trace("restore"), expected)
    assert moments > 20


def test_what_an_interrupted_step_played_is_seen_after_a_reset_of_others() -> None:
    """The rows of environments outside the mask are those of now."""
    envs, twin = (MarioVectorEnv(2, TASK, stack_num=1) for _ in range(2))
    envs.reset(seed=0)
    twin.reset(seed=0)
    seen = set()
    n = 1
    while Interrupter(n).interrupts(partial(envs.step, np.full(2, RIGHT))):
        n += 5
        mask = np.array([True, False])
        obs, _ = envs.reset(options={"reset_mask": mask})
        truth, infos = twin.restore(None, envs.snapshot())
        np.testing.assert_array_equal(obs, truth)
        seen.add(int(infos["elapsed_step"][1]))
    assert len(seen) > 3


@pytest.mark.slow
def test_an_end_that_nobody_received_asks_for_a_reset() -> None:
    for env in (
        MarioEnv(TASK, max_episode_steps=1),
        MarioVectorEnv(1, TASK, max_episode_steps=1, autoreset_mode="Disabled"),
    ):
        action: Any = RIGHT if isinstance(env, MarioEnv) else [RIGHT]
        n, asked = 1, 0
        env.reset()
        while Interrupter(n).interrupts(partial(env.step, action)):
            n += 1
            try:
                assert env.step(action)[3]
            except gymnasium.error.ResetNeeded:
                asked += 1
            env.reset()
        assert 0 < asked < n


@pytest.mark.slow
def test_an_interrupted_first_reset_is_valid_or_asks_for_a_reset() -> None:
    n, asked = 1, 0
    envs = MarioVectorEnv(2, TASK)
    while Interrupter(n).interrupts(envs.reset):
        n += 9
        try:
            *_, infos = envs.step(np.full(2, RIGHT))
            assert infos["elapsed_step"].tolist() == [1, 1]
        except gymnasium.error.ResetNeeded:
            asked += 1
        envs = MarioVectorEnv(2, TASK)
    assert 5 < asked < n


@pytest.mark.slow
def test_an_interrupted_first_reset_seeds_the_next() -> None:
    """Without a seed, episodes differ; the pool's own seed would make them equal."""
    n = 1
    while True:
        envs = [MarioEnv(TASK, noop_max=30, obs_type="ram") for _ in range(6)]
        if not all(Interrupter(n).interrupts(env.reset) for env in envs):
            break
        n += 25
        assert len({env.reset()[0].tobytes() for env in envs}) > 1
    assert n > 100


def test_a_users_own_send_before_a_step_is_an_error() -> None:
    actions, ids = np.full(3, RIGHT), np.arange(3)
    pools: list[Any] = [
        mario_envpool.make(TASK, num_envs=3),
        mario_envpool.make_dm(TASK, num_envs=3),
        old_envpool.make(TASK, "gym", num_envs=3),
        MarioVectorEnv(3, TASK),
    ]
    for pool in pools:
        pool.reset()
        Interrupter(30).interrupts(partial(pool.step, actions))
        pool.send(actions, ids)
        for call in (partial(pool.step, actions), pool.reset):
            with pytest.raises(RuntimeError, match="env 0 has an earlier request"):
                call()
        pool.recv()
        pool.step(actions)


def test_interrupted_calls_of_an_async_pool_leave_rows_to_recv() -> None:
    pool = mario_envpool.make(TASK, num_envs=4, batch_size=2)
    pool.async_reset()
    randomness = random.Random(0)
    ids = pool.recv()[4]["env_id"]

    def step() -> None:
        nonlocal ids
        ids = pool.step(np.full(2, RIGHT), ids)[4]["env_id"]

    for _ in range(MOMENTS):
        assert interrupted_after(randomness.uniform(0.0001, 0.004), step)
        states = [env["state"] for env in pool.status()["envs"]]
        idle = np.flatnonzero(np.array(states) == "idle")
        # The last batch was lost, or its rows can be received.
        assert len(idle) == 4 - pool.status()["outstanding"]
        ids = idle[:2] if len(idle) else pool.recv()[4]["env_id"]


@pytest.mark.slow
def test_returns_of_mario_vec_env_begin_anew_after_an_interrupt() -> None:
    pytest.importorskip("stable_baselines3")
    from mario_envpool.compat.sb3 import MarioVecEnv

    venv = MarioVecEnv(
        *(TASK, 2),
        max_episode_steps=4,
        reward_fn=lambda batch: np.ones(2)[: len(batch["reward"])],
    )
    actions = np.full(2, RIGHT)
    venv.reset()
    n = 1
    while Interrupter(n).interrupts(partial(venv.step, actions)):
        n += 7
        received = np.zeros(2)
        for _ in range(3):  # to the end of the episode at hand, and of the next
            _, rewards, dones, infos = venv.step(actions)
        while not dones.all():
            _, rewards, dones, infos = venv.step(actions)
        for _ in range(4):
            _, rewards, dones, infos = venv.step(actions)
            received += rewards
        assert dones.all()
        assert [info["episode"]["r"] for info in infos] == received.tolist() == [4, 4]
    assert n > 100
