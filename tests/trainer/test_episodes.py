"""Playing: exactly N episodes, no favour to short ones, unseen seeds."""

import numpy as np
import pytest
import torch
from players import Counter, SyncPool

from trainer.config.options import MAX_SEED
from trainer.envs.pool import SEED_STRIDE
from trainer.evaluation import play as episodes
from trainer.evaluation.play import MAX_SEEDS, first_seed, play, wilson

CPU = torch.device("cpu")


def play_fake(num_episodes, *, sharpness=30.0, seed=0, groups=2, argmax=False):
    pool = SyncPool(6)
    model = Counter(sharpness).eval()
    generator = None if argmax else torch.Generator().manual_seed(seed)
    played = play(
        pool,
        model,
        num_episodes,
        device=CPU,
        dtype=None,
        generator=generator,
        groups=groups,
    )
    return played, pool


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("num_episodes", [6, 20, 25])
def test_every_environment_plays_its_share(num_episodes, groups):
    """Each length comes as often as can be, and nobody plays for nothing."""
    played, pool = play_fake(num_episodes, groups=groups, sharpness=0.0)
    share, more = divmod(num_episodes, 6)
    shares = np.array([share + (env < more) for env in range(6)])
    counts = np.bincount([p.env for p in played], minlength=6)
    assert counts.tolist() == shares.tolist()
    assert all(p.episode.steps == 5 + p.env for p in played)
    steps_and_resets = shares * (np.arange(6) + 6) - 1
    assert pool.sent.tolist() == steps_and_resets.tolist()
    for _, episode, last in played:
        assert episode.best_x == 10 * episode.total_reward == last["x_pos"]
        assert episode.cleared == last["flag_get"]


@pytest.mark.parametrize("groups", [1, 2])
def test_one_group_emulates_while_another_is_acted_for(groups):
    _, pool = play_fake(12, groups=groups)
    assert pool.most_requests == groups


@pytest.mark.parametrize("argmax", [True, False])
def test_memory_belongs_to_its_environment_and_episode(argmax):
    """Only a policy that counts the steps of each episode clears all."""
    played, _ = play_fake(20, argmax=argmax)
    assert all(p.episode.cleared for p in played)


def test_large_batches_are_acted_for_in_parts(monkeypatch):
    """Nobody gets another one's memory."""
    monkeypatch.setattr(episodes, "_CPU_ROWS", 2)
    played, pool = play_fake(20, groups=1)
    assert all(p.episode.cleared for p in played)
    assert pool.most_requests == 1
    assert played == play_fake(20, groups=1)[0]


def test_the_end_of_every_episode_is_told():
    told = []
    played = play(
        SyncPool(6),
        Counter(),
        20,
        device=CPU,
        dtype=None,
        generator=None,
        tell=told.append,
    )
    lines = [line for lines in told for line in lines]
    assert [line["steps"] for line in lines] == [p.episode.steps for p in played]
    assert len(lines) == 20


def test_transfers_end_whatever_happens(monkeypatch):
    """They read the pool's memory, which its owner frees next."""
    closed = []
    monkeypatch.setattr(
        episodes.HostToDevice, "close", lambda stage: closed.append(stage)
    )
    play_fake(6)
    assert len(closed) == 1
    monkeypatch.setattr(episodes, "sample", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        play_fake(6)
    assert len(closed) == 2


def test_the_seed_decides():
    first, _ = play_fake(12, seed=1, sharpness=0.0)
    assert play_fake(12, seed=1, sharpness=0.0)[0] == first
    assert play_fake(12, seed=2, sharpness=0.0)[0] != first
    assert not all(p.episode.cleared for p in first)
    # The most probable action needs no luck, however little it is ahead.
    assert all(p.episode.cleared for p in play_fake(12, sharpness=0.01, argmax=True)[0])


def test_no_evaluation_has_a_seed_of_training():
    last_of_training = MAX_SEED * SEED_STRIDE + SEED_STRIDE - 1
    seeds = [first_seed(seed, k) for seed in (0, 1, MAX_SEED) for k in range(57)]
    assert min(seeds) > last_of_training
    assert max(seeds) + MAX_SEEDS <= 2**31
    ordered = np.sort(seeds)
    assert np.diff(ordered).min() >= MAX_SEEDS
    long_run = {first_seed(7, k) for k in range(100_000)}
    assert len(long_run) == 100_000
    with pytest.raises(ValueError, match="seed must be 0 to 20000, got 20001"):
        first_seed(20_001)
    with pytest.raises(ValueError, match="stream must be 0 to 1149999, got -1"):
        first_seed(0, -1)


def test_wilson():
    low, high = wilson(90, 100)
    assert (round(low, 4), round(high, 4)) == (0.8256, 0.9448)
    assert wilson(0, 10)[0] == 0
    assert round(wilson(0, 10)[1], 4) == 0.2775
    assert wilson(10, 10)[1] == pytest.approx(1)
