"""The acting loop keeps actions, rows and environments together."""

import numpy as np
import pytest
import torch

from trainer.collector import Collector, make_pool
from trainer.config import EnvConfig, ModelConfig
from trainer.metrics import EpisodeTracker, Timings
from trainer.model import build_model
from trainer.rollouts import Rollouts

CPU = torch.device("cpu")
T = 5


def make(pool, seed=0):
    shape = pool.observation_space.shape
    rollouts = Rollouts(
        num_envs=pool.num_envs,
        num_slots=pool.num_envs + 60,
        unroll=T,
        obs_shape=shape,
        num_actions=3,
        device=CPU,
    )
    torch.manual_seed(0)
    collector = Collector(
        pool,
        build_model(ModelConfig(), shape, 3),
        rollouts,
        device=CPU,
        dtype=None,
        generator=torch.Generator().manual_seed(seed),
        episodes=EpisodeTracker(pool.num_envs),
        timings=Timings(),
    )
    collector.start()
    return collector, rollouts


def test_stored_actions_are_the_ones_sent(fake_pool):
    pool = fake_pool()
    collector, rollouts = make(pool)
    collector.collect(40, version=3)
    sent = {tuple(key): action for *key, action in pool.sent}
    batch = rollouts.batch(rollouts.take(40))
    checked = 0
    for b in range(40):
        for t in range(T):
            pixels = batch.obs[batch.rows[t, b]]
            key = tuple(pixels[0, 0, :3].tolist())
            if not batch.done[t, b]:
                assert batch.actions[t, b] == sent[key]
                # The reward of that action is on the next row.
                right = pixels[0, 1, 12 * sent[key]] == 250
                assert batch.rewards[t + 1, b] == float(right)
                checked += 1
    assert checked > 100
    assert batch.versions.eq(3).all()
    assert collector.steps >= 40 * T


def test_stored_logits_and_values_are_the_models(fake_pool):
    pool = fake_pool()
    collector, rollouts = make(pool)
    collector.collect(20, version=0)
    batch = rollouts.batch(rollouts.take(20))
    with torch.no_grad():
        output = collector._model(batch.obs[batch.rows.flatten()])
    torch.testing.assert_close(
        batch.logits.flatten(0, 1), output.logits, atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(
        batch.values.flatten(), output.values, atol=1e-5, rtol=1e-4
    )


def test_actions_follow_the_policy_and_the_seed(fake_pool):
    def actions(seed):
        pool = fake_pool()
        collector, _ = make(pool, seed)
        collector.collect(60, version=0)
        return np.array([action for *_, action in pool.sent])

    first = actions(1)
    assert np.array_equal(first, actions(1))
    assert not np.array_equal(first, actions(2))
    shares = np.bincount(first, minlength=3) / len(first)
    assert np.abs(shares - 1 / 3).max() < 0.15


def test_make_pool_on_envpool_atari():
    """EnvPool's own pool has the API that the collector uses."""
    config = EnvConfig(
        task="Pong-v5", num_envs=3, batch_size=2, num_threads=1, noop_max=4, stack_num=2
    )
    pool = make_pool(config, seed=11)
    try:
        assert pool.config["seed"] == 11
        assert pool.config["noop_max"] == 4
        pool.async_reset()
        obs, *_, info = pool.recv()
        assert obs.shape == (2, 2, 84, 84)
        pool.send(np.zeros(2, np.int32), info["env_id"])
    finally:
        pool.close()


def test_every_option_reaches_the_game(monkeypatch):
    import mario_envpool
    from mario_envpool import _core

    given = {}
    monkeypatch.setattr(
        mario_envpool, "make", lambda task, **options: given.update(options, task=task)
    )
    config = EnvConfig(num_threads=3)
    make_pool(config, seed=5)
    assert given.pop("env_type") == "gymnasium"
    assert given.pop("seed") == 5
    assert given == vars(config)
    assert set(given) - {"task"} <= set(_core._MarioEnvSpec._config_keys)


def test_unknown_task_is_an_error():
    with pytest.raises(ValueError, match="there is no task 'NoSuchGame-v5'"):
        make_pool(EnvConfig(task="NoSuchGame-v5"), seed=1)
    with pytest.raises(ValueError, match=r"near ids: SuperMarioBros-\d-\d-v0"):
        make_pool(EnvConfig(task="SuperMarioBros-1-9-v0"), seed=1)
