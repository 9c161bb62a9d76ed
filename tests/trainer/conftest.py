"""A pool without a game: EnvPool's API in NumPy, for tests of the trainer."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

SHAPE = (4, 36, 36)
NUM_ACTIONS = 3


class FakePool:
    """Rewards the action whose column of the picture is bright.

    Completion order is shuffled, autoreset is next-step, every env has its own
    episode length, and every third episode is truncated. The first pixels of a
    picture say who and when: env, episode, step.
    """

    observation_space = SimpleNamespace(shape=SHAPE)
    action_space = SimpleNamespace(n=NUM_ACTIONS)

    def __init__(self, num_envs=6, batch_size=4, seed=0):
        self.num_envs, self.batch_size = num_envs, batch_size
        self.rng = np.random.default_rng(seed)
        self.step_of = np.zeros(num_envs, int)
        self.episode = np.full(num_envs, -1)
        self.over = np.ones(num_envs, bool)
        self.good = np.zeros(num_envs, int)
        self.pending = []
        self.closed = False
        self.sent = []  # (env, episode, step, action) of actions that counted

    def async_reset(self):
        self.over[:] = True
        self.pending = [(env, 0) for env in range(self.num_envs)]

    def send(self, action, env_id):
        assert action.dtype == np.int32
        assert action.shape == env_id.shape
        waiting = {env for env, _ in self.pending}
        for env, a in zip(env_id.tolist(), action.tolist(), strict=True):
            assert env not in waiting, f"env {env} sent twice"
            assert 0 <= a < NUM_ACTIONS
            self.pending.append((env, a))

    def recv(self):
        assert len(self.pending) >= self.batch_size, "recv would block for ever"
        self.rng.shuffle(self.pending)
        rows = [self.pending.pop() for _ in range(self.batch_size)]
        results = [self._step(env, action) for env, action in rows]
        obs, reward, terminated, truncated, x_pos, flag = map(
            np.array, zip(*results, strict=True)
        )
        info = {
            "env_id": np.array([env for env, _ in rows], np.int32),
            "x_pos": x_pos.astype(np.int32),
            "flag_get": flag.astype(bool),
        }
        return (
            obs.astype(np.uint8),
            reward.astype(np.float32),
            terminated.astype(bool),
            truncated.astype(bool),
            info,
        )

    def _step(self, env, action):
        if self.over[env]:
            self.over[env], self.step_of[env], self.good[env] = False, 0, 0
            self.episode[env] += 1
            return self._picture(env), 0.0, False, False, 0, False
        where = (env, int(self.episode[env]), int(self.step_of[env]))
        self.sent.append((*where, action))
        right = action == self._answer(env)
        self.good[env] += right
        self.step_of[env] += 1
        over = self.step_of[env] >= 5 + env
        self.over[env] = over
        truncated = over and self.episode[env] % 3 == 2
        cleared = over and self.good[env] == self.step_of[env]
        return (
            self._picture(env),
            float(right),
            over and not truncated,
            truncated,
            10 * self.good[env],
            cleared,
        )

    def _answer(self, env):
        return (7 * env + 3 * self.episode[env] + self.step_of[env]) % NUM_ACTIONS

    def _picture(self, env):
        picture = np.full(SHAPE, 144, np.uint8)
        column = 12 * self._answer(env)
        picture[:, :, column : column + 12] = 250
        picture[0, 0, :3] = env, self.episode[env] % 256, self.step_of[env]
        return picture

    def close(self):
        self.closed = True


@pytest.fixture
def fake_pool():
    return FakePool


@pytest.fixture(autouse=True)
def one_thread_and_seed():
    torch.manual_seed(0)
    torch.set_num_threads(1)
