"""A pool without a game: EnvPool's API in NumPy, for tests of the trainer."""

from __future__ import annotations

import pickle
import subprocess
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trainer import evaluate, run

NUM_ACTIONS = 3
SIZE = 36
RESTORED = -1  # in the place of an action


def pickle_row(values):
    """Some arrays and numbers as (1024 n,) uint8, of equal length for equal ones."""
    data = pickle.dumps([np.asarray(value) for value in values])
    data += bytes(-len(data) % 1024)
    return np.frombuffer(data, np.uint8)


def unpickle_row(row):
    return pickle.loads(row.tobytes())


class FakePool:
    """Rewards the action whose column of the newest picture is bright.

    In async mode the order of completion is shuffled; in sync mode (batch_size ==
    num_envs) recv answers the oldest request, in its order. Autoreset is next-step,
    every env has its own episode length, every third episode is truncated, and an
    env that was never reset takes any action for a reset.

    Observations are stacks of pictures: a step shifts them by one, and those of an
    episode's first row are four new ones that all differ, as after a restored
    state. The first pixels of a picture say who and when: env, episode, step.
    """

    _STATE = ("step_of", "episode", "over", "good", "stacks")
    STEPS = (5, 1)  # of an episode: of env 0, and how many more of the next
    refuses = False  # snapshots

    def __init__(self, num_envs=6, batch_size=4, seed=0, *, stack=4, steps=None):
        self.num_envs, self.batch_size = num_envs, batch_size
        self.sync = batch_size == num_envs
        self.steps = steps or self.STEPS
        shape = (stack, SIZE, SIZE)
        self.observation_space = SimpleNamespace(shape=shape)
        self.action_space = SimpleNamespace(n=NUM_ACTIONS)
        self.all_env_ids = np.arange(num_envs, dtype=np.int32)
        self.rng = np.random.default_rng(seed)
        self.step_of = np.zeros(num_envs, int)
        self.episode = np.full(num_envs, -1)
        self.over = np.ones(num_envs, bool)
        self.good = np.zeros(num_envs, int)
        self.stacks = np.zeros((num_envs, *shape), np.uint8)
        self.requests = deque()
        self.closed = False
        self.sent = []  # (env, episode, step, action) of actions that counted

    def async_reset(self):
        self.over[:] = True
        self.requests.append([(env, 0) for env in range(self.num_envs)])

    def send(self, action, env_id):
        assert action.dtype == env_id.dtype == np.int32
        assert action.shape == env_id.shape
        waiting = {env for request in self.requests for env, _ in request}
        assert not waiting & set(env_id.tolist()), "an env was sent twice"
        assert ((action >= 0) & (action < NUM_ACTIONS)).all()
        self.requests.append(list(zip(env_id.tolist(), action.tolist(), strict=True)))

    def recv(self):
        rows = self._next_request() if self.sync else self._some_requests()
        results = [self._result(env, action) for env, action in rows]
        reward, terminated, truncated, x_pos, flag = map(
            np.array, zip(*results, strict=True)
        )
        env_id = np.array([env for env, _ in rows], np.int32)
        info = {
            "env_id": env_id,
            "elapsed_step": self.step_of[env_id].astype(np.int32),
            "x_pos": x_pos.astype(np.int32),
            "flag_get": flag.astype(bool),
        }
        return (
            self.stacks[env_id],
            reward.astype(np.float32),
            terminated.astype(bool),
            truncated.astype(bool),
            info,
        )

    def _next_request(self):
        assert self.requests, "recv would block for ever"
        return self.requests.popleft()

    def _some_requests(self):
        waiting = [row for request in self.requests for row in request]
        assert len(waiting) >= self.batch_size, "recv would block for ever"
        self.rng.shuffle(waiting)
        self.requests = deque([waiting[self.batch_size :]])
        return waiting[: self.batch_size]

    def snapshot(self, env_id):
        """What `restore` takes: a row of bytes for each env."""
        parts = [getattr(self, name)[env_id] for name in self._STATE]
        return np.stack([pickle_row(row) for row in zip(*parts, strict=True)])

    def restore(self, env_id, blobs, rng="saved"):
        assert rng == "saved"
        if self.refuses:
            raise ValueError("blob 0 is refused: saved by another version")
        for env, blob in zip(env_id.tolist(), blobs, strict=True):
            for name, value in zip(self._STATE, unpickle_row(blob), strict=True):
                getattr(self, name)[env] = value
        self.requests.append([(env, RESTORED) for env in env_id.tolist()])

    def _result(self, env, action):
        if action == RESTORED:  # the row before the snapshot, without its reward
            done = bool(self.over[env])
            return 0.0, done, False, 10 * self.good[env], False
        return self._step(env, action)

    def _step(self, env, action):
        if self.over[env]:
            self.over[env], self.step_of[env], self.good[env] = False, 0, 0
            self.episode[env] += 1
            noise = np.random.default_rng((env, self.episode[env]))
            self.stacks[env] = noise.integers(0, 100, self.stacks[env].shape)
            self.stacks[env, -1] = self._picture(env)
            return 0.0, False, False, 0, False
        where = (env, int(self.episode[env]), int(self.step_of[env]))
        self.sent.append((*where, action))
        right = action == self._answer(env)
        self.good[env] += right
        self.step_of[env] += 1
        self.stacks[env, :-1] = self.stacks[env, 1:]
        self.stacks[env, -1] = self._picture(env)
        over = self.step_of[env] >= self.steps[0] + self.steps[1] * env
        self.over[env] = over
        truncated = over and self.episode[env] % 3 == 2
        cleared = over and self.good[env] == self.step_of[env]
        return (
            float(right),
            over and not truncated,
            truncated,
            10 * self.good[env],
            cleared,
        )

    def _answer(self, env):
        return (7 * env + 3 * self.episode[env] + self.step_of[env]) % NUM_ACTIONS

    def _picture(self, env):
        picture = np.full((SIZE, SIZE), 144, np.uint8)
        column = 12 * self._answer(env)
        picture[:, column : column + 12] = 250
        picture[0, :3] = env, self.episode[env] % 256, self.step_of[env]
        return picture

    def close(self):
        self.closed = True


@pytest.fixture
def fake_pool():
    return FakePool


@pytest.fixture
def pools(monkeypatch):
    """Makes runs use fake pools; gives the list of them."""
    made = []

    def make(config, seed, *, asynchronous=False, **options):
        group = config.num_envs // config.groups
        batch_size = group if asynchronous else config.num_envs
        made.append(FakePool(config.num_envs, batch_size, seed))
        return made[-1]

    monkeypatch.setattr(run, "make_pool", make)
    monkeypatch.setattr(evaluate, "make_pool", make)
    return made


@pytest.fixture
def small_disk(tmp_path, request):
    """A real file system of as much memory as the test's parameter says."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "none", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no mount command: {error}")
    if mounted.returncode:
        pytest.skip(f"may not mount a small disk: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture(autouse=True)
def one_thread_and_seed():
    torch.manual_seed(0)
    torch.set_num_threads(1)
