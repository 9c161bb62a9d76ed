"""Unrolls hold what the pool said, in order, for every environment."""

import numpy as np
import pytest
import torch

from trainer.rollouts import Rollouts

T = 4


def make(num_envs=6, extra=8, shape=(4, 36, 36)):
    return Rollouts(
        num_envs=num_envs,
        num_slots=num_envs + extra,
        unroll=T,
        obs_shape=shape,
        num_actions=3,
        device=torch.device("cpu"),
    )


def act(pool, rollouts, rng, version=0):
    """One recv with random actions; returns what was decided."""
    obs, reward, terminated, truncated, info = pool.recv()
    n = len(reward)
    actions = torch.from_numpy(rng.integers(0, 3, n))
    logits = torch.from_numpy(rng.normal(size=(n, 3))).float()
    values = torch.from_numpy(rng.normal(size=n)).float()
    rows = rollouts.write_env(
        info["env_id"],
        torch.from_numpy(obs),
        torch.from_numpy(reward),
        torch.from_numpy(terminated | truncated),
        torch.from_numpy(truncated),
    )
    rollouts.write_policy(rows, actions, logits, values, version)
    pool.send(actions.numpy().astype(np.int32), info["env_id"])
    return info["env_id"], obs, reward, terminated | truncated, actions, values


def test_unrolls_are_continuous_and_complete(fake_pool):
    pool, rollouts, rng = fake_pool(), make(), np.random.default_rng(1)
    pool.async_reset()
    told = {env: [] for env in range(6)}
    taken = {env: [] for env in range(6)}
    for i in range(200):
        for row in zip(*act(pool, rollouts, rng, version=i), strict=True):
            told[int(row[0])].append(row[1:])
        rollouts.check_valid()
        while rollouts.num_full:
            slots = rollouts.take(1)
            batch = rollouts.batch(slots)
            pixels = batch.obs[batch.rows[:, 0]].clone()
            env = int(pixels[0, 0, 0, 0])
            taken[env].append((pixels, batch))
            rollouts.release(slots)
    for env, unrolls in taken.items():
        assert len(unrolls) >= 20
        for number, (pixels, batch) in enumerate(unrolls):
            rows = told[env][number * T : number * T + T + 1]
            for t, (obs, reward, done, action, value) in enumerate(rows):
                assert np.array_equal(pixels[t].numpy(), obs)
                assert batch.rewards[t, 0] == reward
                assert batch.done[t, 0] == done
                assert batch.actions[t, 0] == action
                assert batch.values[t, 0] == value


def test_truncation_is_kept_apart_from_done(fake_pool):
    pool, rollouts, rng = fake_pool(), make(extra=120), np.random.default_rng(1)
    pool.async_reset()
    for _ in range(100):
        act(pool, rollouts, rng)
    batch = rollouts.batch(rollouts.take(60))
    assert batch.truncated.any()
    assert (batch.done & ~batch.truncated).any()
    assert not (batch.truncated & ~batch.done).any()


def test_every_row_knows_its_policy(fake_pool):
    pool, rollouts, rng = fake_pool(6, 6), make(), np.random.default_rng(1)
    pool.async_reset()
    for version in range(2 * T + 1):
        act(pool, rollouts, rng, version)
        if rollouts.num_full:
            slots = rollouts.take(6)
            versions = rollouts.batch(slots).versions
            # The last row is the next unroll's first: one policy acted on both.
            expected = torch.arange(version - T, version + 1)
            assert torch.equal(versions, expected[:, None].expand(T + 1, 6))
            rollouts.release(slots)
    assert version == 2 * T


def test_odd_observations_are_stored_too():
    rollouts = make(num_envs=1, shape=(1, 3, 5))
    obs = torch.randint(0, 255, (1, 1, 3, 5), dtype=torch.uint8)
    one = torch.zeros(1)
    rows = rollouts.write_env(np.array([0], np.int32), obs, one, one.bool(), one.bool())
    assert torch.equal(rollouts.obs[rows.acting], obs)


def test_running_out_of_slots_is_an_error(fake_pool):
    pool, rollouts, rng = fake_pool(), make(extra=2), np.random.default_rng(1)
    pool.async_reset()

    def act_without_learning():
        for _ in range(50):
            act(pool, rollouts, rng)

    with pytest.raises(RuntimeError, match="slots are free"):
        act_without_learning()
    with pytest.raises(ValueError, match="must exceed"):
        make(extra=0)
    with pytest.raises(ValueError, match="99 unrolls wanted"):
        rollouts.take(99)
