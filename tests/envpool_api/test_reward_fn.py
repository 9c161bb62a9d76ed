"""reward_fn and custom_actions: a custom task, through every interface."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest

import mario_envpool
from mario_envpool.env import MarioEnv
from mario_envpool.envpool_layer import python_layer
from mario_envpool.vector import MarioVectorEnv

with python_layer():
    from envpool import registration as envpool

pytestmark = pytest.mark.rom
TASK = "SuperMarioBros-1-1-v0"
RIGHT = 1


def by_position(batch: dict[str, Any]) -> Any:
    """Tells environments and steps apart."""
    return batch["x_pos"] + 1000.0 * batch["env_id"] + 0.5


class Recorder:
    """A reward_fn that keeps what it was given, and fails on demand."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.fails = False

    def __call__(self, batch: dict[str, Any]) -> Any:
        if self.fails:
            raise KeyError("x_position")
        self.batches.append(batch)
        return by_position(batch)


def test_a_batch_has_all_that_step_returns() -> None:
    seen = Recorder()
    pool = mario_envpool.make(TASK, num_envs=3, reward_fn=seen)
    plain = mario_envpool.make(TASK, num_envs=3)
    for each in (pool, plain):
        each.reset()
    for _ in range(5):
        obs, reward, terminated, truncated, info = pool.step(np.full(3, RIGHT))
        _, native, *_ = plain.step(np.full(3, RIGHT))
        batch = seen.batches[-1]
        assert batch["obs"] is obs
        np.testing.assert_array_equal(batch["reward"], native)
        np.testing.assert_array_equal(batch["terminated"], terminated)
        np.testing.assert_array_equal(batch["truncated"], truncated)
        assert set(info) - {"players"} <= set(batch)
        for key in set(info) - {"players"}:
            np.testing.assert_array_equal(batch[key], info[key], err_msg=key)
        np.testing.assert_array_equal(reward, by_position(batch).astype(np.float32))
        assert reward.dtype == np.float32
    assert len(seen.batches) == 6


def test_a_row_that_begins_an_episode_has_no_reward() -> None:
    pool = mario_envpool.make(
        TASK, num_envs=2, max_episode_steps=3, reward_fn=by_position
    )
    pool.reset()
    rewards, steps = [], []
    for _ in range(8):
        _, reward, _, _, info = pool.step(np.full(2, RIGHT))
        rewards.append(reward[1])
        steps.append(info["elapsed_step"][1])
    assert steps == [1, 2, 3, 0, 1, 2, 3, 0]
    assert [reward == 0 for reward in rewards] == [step == 0 for step in steps]


def test_asynchronous_pools() -> None:
    pool = mario_envpool.make(TASK, num_envs=6, batch_size=2, reward_fn=by_position)
    pool.async_reset()
    for _ in range(30):
        _, reward, _, _, info = pool.recv()
        first = info["elapsed_step"] == 0
        expected = np.where(first, 0, by_position(info)).astype(np.float32)
        np.testing.assert_array_equal(reward, expected)
        pool.send(np.full(2, RIGHT), info["env_id"])


def test_dm_env() -> None:
    pool = mario_envpool.make(TASK, env_type="dm", num_envs=2, reward_fn=by_position)
    pool.reset()
    step = pool.step(np.full(2, RIGHT))
    np.testing.assert_array_equal(
        step.reward, step.observation.x_pos + np.array([0.5, 1000.5], np.float32)
    )


def test_gymnasium() -> None:
    env = gymnasium.make(f"mario_envpool:{TASK}", reward_fn=by_position)
    env.reset(seed=1)
    _, reward, _, _, info = env.step(RIGHT)
    assert reward == info["x_pos"] + 0.5
    envs = gymnasium.make_vec(
        f"mario_envpool:{TASK}", num_envs=2, reward_fn=by_position
    )
    envs.reset(seed=1)
    _, rewards, _, _, infos = envs.step(np.full(2, RIGHT))
    np.testing.assert_array_equal(rewards, infos["x_pos"] + [0.5, 1000.5])


@pytest.mark.parametrize("kind", [MarioEnv, MarioVectorEnv])
def test_a_copy_has_the_reward_too(kind: type[Any]) -> None:
    env = kind(task_id=TASK, reward_fn=by_position)
    copy = pickle.loads(pickle.dumps(env))
    assert copy._pool.reward_fn is by_position


def test_pools_of_envpool_make_take_it_as_an_attribute() -> None:
    pool = envpool.make(TASK, env_type="gymnasium", num_envs=2)
    assert pool.reward_fn is None
    pool.reward_fn = by_position
    pool.reset()
    np.testing.assert_array_equal(pool.step(np.zeros(2, int))[1], [40.5, 1040.5])
    pool.reward_fn = None
    assert pool.step(np.zeros(2, int))[1].max() < 40


@pytest.mark.parametrize(
    ("returned", "error", "words"),
    [
        (np.zeros((2, 1)), ValueError, r"shape \(2, 1\).*\(2,\)"),
        (0.0, ValueError, r"shape \(\).*\(2,\)"),
        (None, TypeError, "object"),
        (["a", "b"], TypeError, "<U1"),
        (np.zeros(2, complex), TypeError, "complex128"),
        ([0.0, np.nan], ValueError, "nan for environment 1"),
        ([np.inf, 0.0], ValueError, "inf for environment 0"),
        ([0.0, 1e300], ValueError, r"1e\+300 for environment 1"),
    ],
)
def test_wrong_rewards_are_named(
    returned: Any, error: type[Exception], words: str
) -> None:
    pool = mario_envpool.make(TASK, num_envs=2, reward_fn=lambda batch: returned)
    with pytest.raises(error, match=f"reward_fn.*{words}"):
        pool.reset()


@pytest.mark.parametrize("returned", [[1, 2], (True, False), np.ones(2, np.float16)])
def test_any_real_numbers_will_do(returned: Any) -> None:
    pool = mario_envpool.make(TASK, num_envs=2, reward_fn=lambda batch: returned)
    pool.reset()
    reward = pool.step(np.zeros(2, int))[1]
    np.testing.assert_array_equal(reward, np.asarray(returned, np.float32))
    assert reward.dtype == np.float32


@pytest.mark.parametrize("wrong", [5, "progress", []])
def test_what_is_no_function_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="reward_fn="):
        mario_envpool.make(TASK, reward_fn=wrong)


def test_a_failure_loses_no_step() -> None:
    seen = Recorder()
    pool = mario_envpool.make(TASK, num_envs=2, reward_fn=seen)
    plain = mario_envpool.make(TASK, num_envs=2)
    for each in (pool, plain):
        each.reset()
        each.step(np.full(2, RIGHT))
    seen.fails = True
    with pytest.raises(RuntimeError, match="reward_fn raised KeyError") as caught:
        pool.step(np.full(2, RIGHT))
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(RuntimeError, match="no rewards yet"):
        pool.step(np.full(2, RIGHT))
    with pytest.raises(RuntimeError, match="reward_fn raised"):
        pool.recv()
    seen.fails = False
    after = [pool.recv(), pool.step(np.full(2, RIGHT))]
    expected = [plain.step(np.full(2, RIGHT)) for _ in range(2)]
    for ours, theirs in zip(after, expected, strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_array_equal(ours[4]["x_pos"], theirs[4]["x_pos"])


def test_a_reset_of_all_gives_the_batch_up() -> None:
    seen = Recorder()
    pool = mario_envpool.make(TASK, num_envs=2, reward_fn=seen)
    pool.reset()
    saved = pool.snapshot(pool.all_env_ids)
    for start in (
        lambda: pool.reset(),
        lambda: (pool.restore(pool.all_env_ids, saved, "saved"), pool.recv()),
    ):
        pool.step(np.full(2, RIGHT))
        seen.fails = True
        with pytest.raises(RuntimeError, match="reward_fn raised"):
            pool.step(np.full(2, RIGHT))
        with pytest.raises(RuntimeError, match="no rewards yet"):
            pool.reset(np.array([0], np.int32))
        seen.fails = False
        start()
        assert seen.batches[-1]["elapsed_step"].tolist() == [0, 0]


LISTS = [["NOOP"], ["right"], ["right", "A"]]


@pytest.mark.parametrize(
    "actions",
    [LISTS, tuple(map(tuple, LISTS)), ["NOOP", ["right"], "right+A"]],
    ids=["lists", "tuples", "mixed"],
)
def test_actions_as_lists_of_buttons(actions: Any) -> None:
    for pool in (
        mario_envpool.make(TASK, custom_actions=actions),
        envpool.make(TASK, env_type="gymnasium", custom_actions=actions),
        MarioEnv(TASK, custom_actions=actions)._pool,
        MarioVectorEnv(1, TASK, custom_actions=actions).pool,
    ):
        assert pool.config["custom_actions"] == ["NOOP", "right", "right+A"]
        assert pool.action_space.n == 3
    spec = mario_envpool.make_spec(TASK, custom_actions=actions)
    assert spec.config.custom_actions == ["NOOP", "right", "right+A"]


@pytest.mark.parametrize(
    ("actions", "error", "words"),
    [
        ("right", TypeError, "custom_actions='right' is not a list"),
        (5, TypeError, "custom_actions=5 is not a list"),
        ([5], TypeError, "has the action 5"),
        ([["right", 3]], TypeError, r"has the action \['right', 3\]"),
        ([[]], ValueError, "is empty; write 'NOOP'"),
        ([["rigth", "A"]], ValueError, "unknown button 'rigth'"),
    ],
)
def test_wrong_actions_are_named(
    actions: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        mario_envpool.make(TASK, custom_actions=actions)
