"""Runs with the default loss that learn what a wrong algorithm does not."""

import numpy as np
import pytest
from fake_pools import NUM_ACTIONS, SIZE, FakePool
from small_runs import make_config, read_points, use_pools

from trainer.session.training import run_training

ROOMS = 3


class Rooms(FakePool):
    """One door is right in each room, and behind the last one is a reward of 1.

    The rooms show their right door. Every second episode begins in a hall, from which
    action 1 goes to the rooms. Any other action ends the episode without a reward. So
    the best return is 1 and a random policy has .025. The hall pays nothing itself: who
    learns from the next reward only has at most .67.
    """

    _STATE = (*FakePool._STATE, "room")

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.room = np.zeros(self.num_envs, int)  # 0: the hall

    def _step(self, env, action):
        if self.over[env]:
            begins = super()._step(env, 0)
            self.room[env] = self.episode[env] % 2
            self.stacks[env] = self._picture(env)
            return begins
        goes_on = action == (self._answer(env) if self.room[env] else 1)
        self.step_of[env] += 1
        self.room[env] += goes_on
        won = self.room[env] > ROOMS
        self.over[env] = won or not goes_on
        self.stacks[env, :-1] = self.stacks[env, 1:]
        self.stacks[env, -1] = self._picture(env)
        return float(won), bool(self.over[env]), False, 0, False

    def _picture(self, env):
        if self.room[env] == 0:
            return np.full((SIZE, SIZE), 20, np.uint8)
        picture = np.full((SIZE, SIZE), 144, np.uint8)
        width = SIZE // NUM_ACTIONS
        left = width * self._answer(env)
        picture[:, left : left + width] = 250
        return picture


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"lag": 1},
        {"mode": "async", "lag": 1},
        {"replay_share": 0.5, "unrolls_per_batch": 24, "replay_capacity": 128},
    ],
    ids=["at lag 1", "async", "with replay"],
)
def test_a_run_learns(options, tmp_path, monkeypatch):
    use_pools(monkeypatch, Rooms)
    config = make_config(
        tmp_path, max_steps=4_000, lr=3e-3, lr_steps=40_000, epochs=3,
        **{"unrolls_per_batch": 12, "minibatch_size": 48, "learner_threads": 1}
        | options,
    )  # fmt: skip
    run_training(config)
    returns = [
        point["rollout/return"]  # of the last 100 episodes
        for point in read_points(config.run_dir)
        if point.get("rollout/episodes", 0) >= 100
    ]
    assert returns[0] < 0.5
    assert max(returns) >= 0.9
