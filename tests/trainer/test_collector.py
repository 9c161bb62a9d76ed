"""The acting loop keeps actions, rows and environments together."""

import itertools
import math
import os
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from trainer.config import network
from trainer.config.schema import EnvConfig, ModelConfig
from trainer.envs.pool import make_pool
from trainer.machine.cpu import thread_ids
from trainer.machine.timings import Timings
from trainer.models import build_model
from trainer.rollout import arrays, episodes, frames, store
from trainer.rollout.collector import Actor, Collector
from trainer.rollout.episodes import OpenEpisodes
from trainer.rollout.finished import FinishedEpisodes
from trainer.rollout.frames import observations
from trainer.rollout.store import Rollouts

CPU = torch.device("cpu")
T = 5
GRU = ModelConfig(memory=network.GRU(8))


def always():
    return True


class System:
    """A collector with all it needs."""

    def __init__(self, pool, model=None, *, seed=0, groups=2, burn_in=0, slots=60):
        shape = pool.observation_space.shape
        num_envs, num_actions = len(pool.all_env_ids), int(pool.action_space.n)
        torch.manual_seed(0)
        model = build_model(model or ModelConfig(), shape, num_actions)
        self.pool = pool
        self.actor = Actor(
            model,
            num_actions=num_actions,
            dtype=None,
            generator=torch.Generator().manual_seed(seed),
        )
        self.rollouts = Rollouts(
            num_envs=num_envs,
            num_slots=num_envs + slots,
            unroll=T,
            obs_shape=shape,
            num_actions=num_actions,
            device=CPU,
            stack_num=shape[0],
            state_size=model.state_size,
            burn_in=burn_in,
        )
        self.collector = Collector(
            pool,
            self.rollouts,
            groups=groups,
            asynchronous=num_envs != getattr(pool, "batch_size", num_envs),
            episodes=OpenEpisodes(num_envs),
            finished=FinishedEpisodes(),
            timings=Timings(),
        )
        self.collector.start()

    def collect(self, count, more=always):
        self.collector.collect(count, lambda: self.actor, more)

    def batch(self, count):
        """Collects and takes unrolls; they are not given back."""
        self.collect(count)
        return self.rollouts.batch(self.rollouts.take(count))

    def pixels(self, batch):
        return observations(batch.frames, batch.stacks, self.rollouts.obs_shape)


@pytest.mark.parametrize("batch_size", [4, 6])
def test_stored_actions_are_the_ones_sent(fake_pool, batch_size):
    """In async mode, and in sync mode (batch_size 6)."""
    pool = fake_pool(6, batch_size)
    system = System(pool)
    system.actor.version = 3
    batch = system.batch(36)
    pixels = system.pixels(batch)
    sent = {tuple(key): action for *key, action in pool.sent}
    checked = 0
    for b in range(36):
        for t in range(T):
            newest = pixels[t, b, -1]
            key = tuple(newest[0, :3].tolist())
            assert batch.is_first[t, b] == (key[2] == 0)
            if not batch.done[t, b]:
                assert batch.actions[t, b] == sent[key]
                # The reward of that action is on the next row.
                right = newest[1, 12 * sent[key]] == 250
                assert batch.rewards[t + 1, b] == float(right)
                checked += 1
    assert checked > 100
    assert batch.versions.eq(3).all()
    assert system.collector.steps == len(pool.sent)  # the rest are resets


@pytest.mark.parametrize("batch_size", [4, 6])
def test_no_row_is_lost(fake_pool, batch_size):
    """The unrolls of an environment join: each begins with the last one's end."""
    pool = fake_pool(6, batch_size)
    system = System(pool)
    batch = system.batch(48)
    newest = system.pixels(batch)[:, :, -1, 0, :3].long()
    for env in range(6):
        unrolls = [b for b in range(48) if newest[0, b, 0] == env]
        assert len(unrolls) >= 4
        clock = torch.cat([newest[:-1, b, 1:] for b in unrolls]).tolist()
        assert clock[0] == [0, 0]
        for before, row in itertools.pairwise(clock):
            last = before[1] == 5 + env
            assert row == ([before[0] + 1, 0] if last else [before[0], before[1] + 1])


@pytest.mark.parametrize("batch_size", [4, 6])
def test_stored_logits_and_values_are_the_models(fake_pool, batch_size):
    system = System(fake_pool(6, batch_size))
    batch = system.batch(24)
    with torch.no_grad():
        output, _ = system.actor.model(
            system.pixels(batch), torch.zeros(24, 0), batch.is_first
        )
    near = {"atol": 1e-5, "rtol": 1e-4}
    torch.testing.assert_close(batch.logits[:-1], output.logits[:-1], **near)
    torch.testing.assert_close(batch.values, output.values, **near)


def test_actions_follow_the_policy_and_the_seed(fake_pool):
    def actions(seed):
        pool = fake_pool()
        System(pool, seed=seed).collect(60)
        return np.array([action for *_, action in pool.sent])

    first = actions(1)
    assert np.array_equal(first, actions(1))
    assert not np.array_equal(first, actions(2))
    shares = np.bincount(first, minlength=3) / len(first)
    assert np.abs(shares - 1 / 3).max() < 0.15


def test_in_sync_mode_weights_change_between_unrolls_only(fake_pool):
    """Rows that are trained on are of one version, the last one's value as well."""
    system = System(fake_pool(6, 6))
    for version in range(1, 6):
        system.actor.version = version
        # Two rounds of unrolls in one batch at the end.
        count = 12 if version == 5 else 6
        batch = system.batch(count)
        assert batch.versions.eq(version).all()
        assert system.rollouts.num_full == 0


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_sync_groups_wait_in_turn(fake_pool, groups):
    """While one group is acted for, the requests of the others are outstanding."""
    pool = fake_pool(6, 6)
    outstanding = []
    original = pool.recv

    def recv():
        outstanding.append(len(pool.requests))
        return original()

    pool.recv = recv
    system = System(pool, groups=groups)
    system.collect(12)
    assert max(outstanding) == groups
    assert sorted(outstanding)[len(outstanding) // 2] == groups


@pytest.mark.parametrize("written_by", ["numpy", "kernels"])
@pytest.mark.parametrize("batch_size", [4, 6])
def test_memory_is_carried_from_row_to_row(
    fake_pool, monkeypatch, batch_size, written_by
):
    """A rerun over each environment's rows from its first one gives the same."""
    if written_by == "kernels":  # as on a GPU
        monkeypatch.setattr(arrays, "on_host", lambda device: False)
    system = System(fake_pool(6, batch_size), GRU)
    batch = system.batch(48)
    pixels = system.pixels(batch)
    near = {"atol": 1e-4, "rtol": 1e-3}
    for env in range(6):
        unrolls = [b for b in range(48) if pixels[0, b, -1, 0, 0] == env]
        obs = torch.cat([pixels[:-1, b] for b in unrolls])[:, None]
        first = torch.cat([batch.is_first[:-1, b] for b in unrolls])[:, None]
        assert first[0]
        assert first.sum() >= 2
        state = torch.zeros(1, 8)
        for number, b in enumerate(unrolls):
            torch.testing.assert_close(batch.state[b : b + 1], state, **near)
            rows = slice(number * T, number * T + T)
            with torch.no_grad():
                output, state = system.actor.model(obs[rows], state, first[rows])
            torch.testing.assert_close(
                batch.logits[:-1, b], output.logits[:, 0], **near
            )
            torch.testing.assert_close(
                batch.values[:-1, b], output.values[:, 0], **near
            )
    assert batch.state.abs().max() > 0.1


def test_groups_of_neighbours_give_what_others_give(fake_pool, monkeypatch):
    """Slices of states and records are views; nothing is written that is still read."""
    batches = []
    for span in (arrays.span, lambda positions: positions.astype(np.int64)):
        for module in (arrays, episodes, frames, store):
            monkeypatch.setattr(module, "span", span)
        batches.append(System(fake_pool(6, 6), GRU, burn_in=2).batch(36))
    for one, two in zip(*batches, strict=True):
        assert torch.equal(one, two)


def test_a_burn_in_begins_with_its_own_state(fake_pool):
    """State and rows of a slot fit together also where slots overlap."""
    system = System(fake_pool(6, 4), GRU, burn_in=3)
    batch = system.batch(40)
    with torch.no_grad():
        output, _ = system.actor.model(
            system.pixels(batch), batch.state, batch.is_first
        )
    near = {"atol": 1e-4, "rtol": 1e-3}
    torch.testing.assert_close(batch.logits, output.logits, **near)
    torch.testing.assert_close(batch.values, output.values, **near)


def test_collecting_ends_when_it_is_told_to(fake_pool):
    system = System(fake_pool(6, 6))
    left = iter([True, True, False])
    system.collect(6, more=lambda: next(left))
    assert (system.pool.episode == 0).all()  # two groups of three were reset
    assert system.collector.steps == 0
    assert system.rollouts.num_full == 0


def test_noise_is_drawn_before_each_group(fake_pool, monkeypatch):
    system = System(fake_pool(6, 6), ModelConfig(noisy=True))
    batch = system.batch(6)
    with torch.no_grad():
        output, _ = system.actor.model(
            system.pixels(batch), torch.zeros(6, 0), batch.is_first
        )
    assert (output.logits - batch.logits)[:-1].abs().max() > 1e-4
    # The same seed draws the same noise.
    again = System(fake_pool(6, 6), ModelConfig(noisy=True)).batch(6)
    assert torch.equal(batch.logits[:-1], again.logits[:-1])


SMALL_GAME = EnvConfig(num_envs=4, num_threads=1, img_height=36, img_width=36)


@pytest.mark.rom
def test_async_mode_takes_the_environments_that_are_ready():
    pool = make_pool(SMALL_GAME, seed=7, asynchronous=True)
    try:
        assert pool.config["batch_size"] == 2
        pool.batch_size = 2
        batch = System(pool).batch(12)
        assert batch.rewards.isfinite().all()
    finally:
        pool.close()


@pytest.mark.rom
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone has it")
def test_a_pools_threads_leave_the_cores_to_who_acts():
    def priorities():
        ids = thread_ids()
        return {i: os.getpriority(os.PRIO_PROCESS, i) for i in ids}

    before = priorities()
    pool = make_pool(replace(SMALL_GAME, num_threads=2), seed=7)
    new = [nice for i, nice in priorities().items() if i not in before]
    assert new == [min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19)] * 2
    assert {i: n for i, n in priorities().items() if i in before} == before
    pool.close()


@pytest.mark.slow
@pytest.mark.families
def test_make_pool_on_envpool_atari():
    """EnvPool's own pool has the API that the collector uses."""
    config = EnvConfig(
        task="Pong-v5", num_envs=3, groups=3, num_threads=1, noop_max=4, stack_num=2
    )
    for asynchronous, count in ((True, 1), (False, 3)):
        pool = make_pool(config, seed=11, asynchronous=asynchronous)
        try:
            assert pool.config["seed"] == 11
            assert pool.config["noop_max"] == 4
            pool.async_reset()
            obs, *_, info = pool.recv()
            assert obs.shape == (count, 2, 84, 84)
            assert (info["elapsed_step"] == 0).all()
            pool.send(np.zeros(count, np.int32), info["env_id"])
        finally:
            pool.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_option_reaches_the_game(monkeypatch, asynchronous):
    import mario_envpool
    from mario_envpool import _core

    given = {}
    monkeypatch.setattr(
        mario_envpool, "make", lambda task, **options: given.update(options, task=task)
    )
    config = EnvConfig(num_threads=3, img_height=60, img_width=72)
    make_pool(config, seed=5, asynchronous=asynchronous)
    assert given.pop("env_type") == "gymnasium"
    assert given.pop("seed") == 5
    assert given.pop("batch_size") == (32 if asynchronous else 64)
    ours = ("groups", "obs", "levels", "test_levels", "reward_fn")
    ours += ("max_replacements", "replacement_episodes")
    assert given == {k: v for k, v in vars(config).items() if k not in ours}
    assert set(given) - {"task"} <= set(_core._MarioEnvSpec._config_keys)
    make_pool(replace(config, obs="tiles"), seed=5, asynchronous=asynchronous)
    assert given["obs_type"] == ["tiles", "motion"]
    assert "reward_fn" not in given
    make_pool(replace(config, reward_fn="math:sqrt"), seed=5)
    assert given["reward_fn"] is math.sqrt


def test_threads_are_at_most_those_of_a_group(monkeypatch):
    import mario_envpool

    given = {}
    monkeypatch.setattr(
        mario_envpool, "make", lambda task, **options: given.update(options)
    )
    monkeypatch.setattr("trainer.envs.pool.available_cores", lambda: 64)
    make_pool(EnvConfig(num_envs=12, groups=3), seed=5)
    assert given["num_threads"] == 4


def test_unknown_task_is_an_error():
    # The first where EnvPool's own environments can be loaded, the second elsewhere.
    says = "unknown task 'NoSuchGame-v5'|'NoSuchGame-v5' is not a task of"
    with pytest.raises(ValueError, match=says):
        make_pool(EnvConfig(task="NoSuchGame-v5"), seed=1)
    with pytest.raises(ValueError, match=r"similar ids: SuperMarioBros-\d-\d-v0"):
        make_pool(EnvConfig(task="SuperMarioBros-1-9-v0"), seed=1)
    with pytest.raises(ValueError, match=r"similar ids: SuperMarioBros-1-1-v0, "):
        make_pool(EnvConfig(task="SuperMarioBros-1-1"), seed=1)
