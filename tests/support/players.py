"""A pool without a game whose right actions can be known, and policies for it."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

SHAPE = (1, 2, 2)


class SyncPool:
    """EnvPool's API in sync mode: requests are answered in their order.

    The right action is (env + step) % 3, and the picture shows env % 3 only.
    Episodes of env i have 5 + i steps.
    """

    observation_space = SimpleNamespace(shape=SHAPE)
    action_space = SimpleNamespace(n=3)

    def __init__(self, num_envs):
        self.all_env_ids = np.arange(num_envs, dtype=np.int32)
        self.step_of = np.full(num_envs, -1)
        self.right = np.zeros(num_envs, int)
        self.sent = np.zeros(num_envs, int)
        self.requests = deque()
        self.most_requests = 0
        self.closed = False

    def async_reset(self):
        self.requests.append((self.all_env_ids, np.zeros(len(self.all_env_ids))))

    def send(self, action, env_id):
        assert action.dtype == np.int32
        assert action.shape == env_id.shape
        self.sent[env_id] += 1
        self.requests.append((env_id, action))
        self.most_requests = max(self.most_requests, len(self.requests))

    def recv(self):
        env_id, action = self.requests.popleft()
        over = self.step_of[env_id] == 4 + env_id + 1
        opening = over | (self.step_of[env_id] < 0)
        good = ~opening & (action == (env_id + self.step_of[env_id]) % 3)
        self.step_of[env_id] = np.where(opening, 0, self.step_of[env_id] + 1)
        self.right[env_id] = np.where(opening, 0, self.right[env_id] + good)
        step, right = self.step_of[env_id], self.right[env_id]
        done = step == 5 + env_id
        info = {
            "env_id": env_id,
            "x_pos": 10 * right,
            "y_pos": 100 + env_id,
            "area_pointer": np.full(len(env_id), 37),
            "time": np.full(len(env_id), 300),
            "end_reason": np.where(done, 1, 0),
            "flag_get": done & (right == step),
            "elapsed_step": step.astype(np.int32),
        }
        obs = np.broadcast_to(env_id[:, None, None, None] % 3, (len(env_id), *SHAPE))
        reward = good.astype(np.float32)
        return obs.astype(np.uint8), reward, done, np.zeros_like(done), info

    def close(self):
        self.closed = True


class Counter(nn.Module):
    """Counts the steps of an episode in its memory, and so knows the right action.

    `sharpness` 0 makes all actions alike.
    """

    state_size = 1

    def __init__(self, sharpness=30.0):
        super().__init__()
        self.sharpness = nn.Parameter(torch.tensor(sharpness))

    def forward(self, obs, state, first):
        assert not self.training
        assert not torch.is_grad_enabled()
        step = torch.where(first[0, :, None], 0.0, state)
        right = (obs[0, :, 0, 0, 0] + step[:, 0]).long() % 3
        logits = nn.functional.one_hot(right, 3) * self.sharpness
        output = SimpleNamespace(logits=logits[None], values=None)
        return output, step + 1


class Pixels(nn.Module):
    """A policy without memory that looks at the mean of the newest frame."""

    state_size = 0

    def __init__(self, num_actions):
        super().__init__()
        self.heads = nn.Linear(1, num_actions)

    def forward(self, obs, state, first):
        bright = obs[0, :, -1].float().mean((-1, -2))[:, None] / 255
        return SimpleNamespace(logits=self.heads(bright)[None]), state


def random_movie(frames: int, seed: int) -> bytes:
    """Start at the title, then mostly right, in pieces of 4 to 24 frames."""
    random = np.random.default_rng(seed)
    movie = [0] * 40 + ([8] * 4 + [0] * 4) * 5
    while len(movie) < frames:
        button = random.choice([128, 129, 130, 131, 131, 64, 0, 1, 32])
        movie += [int(button)] * int(random.integers(4, 25))
    return bytes(movie[:frames])
