"""A set of starts: drawn by weight, with each environment's own generator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

OPTIONS = {"num_envs": 3, "episode_steps": 9, "num_stages": 2, "seed": 3}


def saved(make_pool: Any, steps: int = 4) -> Any:
    """Snapshots, (3, bytes), of environments that have played."""
    pool = make_pool(**OPTIONS)
    pool.restart()
    for _ in range(steps):
        pool.step(1)
    return pool.native.snapshot(pool.ids)


def drawn(pool: Any, resets: int) -> list[list[int]]:
    """Which starts some resets drew."""
    return [pool.restart()["info:start"].tolist() for _ in range(resets)]


def test_stages_are_counted(make_pool: Any) -> None:
    assert make_pool(num_stages=5).native.num_stages == 5


def test_without_a_set_there_is_no_start(make_pool: Any) -> None:
    pool, other = make_pool(**OPTIONS), make_pool(**OPTIONS)
    assert drawn(pool, 3) == [[-1] * 3] * 3
    pool.native.set_starts([0, 1])
    assert drawn(pool, 1) == [[1] * 3]
    pool.native.set_starts(None)
    drawn(other, 4)
    pool.reset(seeds=[1, 2, 3])
    other.reset(seeds=[1, 2, 3])
    rows, others = pool.recv(), other.recv()
    for key in rows:
        np.testing.assert_array_equal(rows[key], others[key], err_msg=key)


def test_starts_come_as_often_as_their_weights_say(make_pool: Any) -> None:
    blobs = saved(make_pool)[:2]
    pool = make_pool(**{**OPTIONS, "num_envs": 64})
    weights = np.array([1.0, 0.0, 3.0, 4.0])
    pool.native.set_starts(weights, blobs)
    counts = np.bincount(np.ravel(drawn(pool, 100)), minlength=4)
    expected = weights / weights.sum() * counts.sum()
    assert counts[1] == 0
    chi_square = ((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()
    assert chi_square < 13.8  # 2 degrees of freedom: one seed in a thousand


def test_scale_of_weights_does_not_matter(make_pool: Any) -> None:
    blobs = saved(make_pool)
    draws = []
    for scale in (1, 2.0**40, 2.0**-1060):
        pool = make_pool(**OPTIONS)
        pool.native.set_starts(np.array([1, 0, 2, 0, 1]) * scale, blobs)
        draws.append(drawn(pool, 30))
    assert draws[0] == draws[1]
    assert {start for row in draws[2] for start in row} == {0, 2, 4}


def test_same_seeds_same_draws_on_any_number_of_threads(make_pool: Any) -> None:
    blobs = saved(make_pool)
    rows = []
    for threads in (1, 2, 3):
        pool = make_pool(**OPTIONS, num_threads=threads)
        pool.native.set_starts([1, 1, 1, 1, 1], blobs)
        pool.reset()
        rows.append([pool.recv()["info:start"].tobytes()])
        for _ in range(40):
            batch = pool.step(1)
            rows[-1] += [batch[key].tobytes() for key in batch]
    assert rows[0] == rows[1] == rows[2]


def test_autoreset_draws_too_and_a_start_lasts_for_an_episode(make_pool: Any) -> None:
    pool = make_pool(**{**OPTIONS, "num_envs": 1})
    pool.native.set_starts([1, 1, 1], saved(make_pool)[:1])
    batch = pool.restart()
    starts = set()
    for _ in range(60):
        before, batch = batch, pool.step(0)
        starts.add(int(batch["info:start"][0]))
        if not before["done"][0]:
            assert batch["info:start"] == before["info:start"]
    assert starts == {0, 1, 2}


def test_a_start_is_the_state_as_a_new_episode(make_pool: Any) -> None:
    blobs = saved(make_pool, steps=4)
    origin = make_pool(**OPTIONS)
    origin.native.restore(origin.ids, blobs)
    hashes = origin.recv()["info:hash"]
    pool = make_pool(**{**OPTIONS, "max_episode_steps": 2**31 - 1})
    pool.native.set_starts([0, 0, 0, 1, 0], blobs)
    batch = pool.restart()
    assert batch["info:hash"].tolist() == [hashes[1]] * 3
    assert batch["elapsed_step"].tolist() == [0] * 3
    assert batch["step_type"].tolist() == [0] * 3
    for _ in range(9):
        batch = pool.step(1)
    assert batch["done"].all()
    assert batch["elapsed_step"].tolist() == [9] * 3


def test_an_episode_under_way_goes_on(make_pool: Any) -> None:
    pool, other = make_pool(**OPTIONS), make_pool(**OPTIONS)
    for each in (pool, other):
        each.restart()
        each.step(1)
    pool.native.set_starts([1, 0])
    np.testing.assert_array_equal(pool.step(2)["obs"], other.step(2)["obs"])


def test_a_restored_episode_keeps_its_start(make_pool: Any) -> None:
    pool = make_pool(**OPTIONS)
    pool.native.set_starts([0, 1])
    pool.restart()
    blobs = pool.native.snapshot(pool.ids)
    other = make_pool(**OPTIONS)
    other.native.restore(other.ids, blobs)
    assert other.recv()["info:start"].tolist() == [1] * 3
    # The set itself is no part of a snapshot.
    assert other.restart()["info:start"].tolist() == [-1] * 3


@pytest.mark.parametrize(
    ("weights", "rows", "error", "message"),
    [
        ([1], 0, ValueError, r"got 1 weights.*here 2 \+ 0"),
        ([1, 1, 1], 2, ValueError, r"got 3 weights.*here 2 \+ 2"),
        ([1, -0.5], 0, ValueError, "weight 1 is -0.5"),
        ([1, np.nan], 0, ValueError, "weight 1 is nan"),
        ([np.inf, 1], 0, ValueError, "weight 0 is inf"),
        ([0, 0], 0, ValueError, "add up to 0"),
        ([1e308, 1e308], 0, ValueError, "add up to inf"),
        ("ab", 0, TypeError, "weights must be numbers"),
        ([[1, 1]], 0, TypeError, "weights must be numbers"),
        ([True, False], 0, TypeError, "weights must be numbers"),
        (None, 1, TypeError, "weights must be numbers, .* got NoneType"),
    ],
)
def test_bad_weights_change_nothing(
    make_pool: Any, weights: Any, rows: int, error: type[Exception], message: str
) -> None:
    pool = make_pool(**OPTIONS)
    pool.native.set_starts([0, 1])
    with pytest.raises(error, match=message):
        pool.native.set_starts(weights, saved(make_pool)[:rows] if rows else None)
    assert drawn(pool, 5) == [[1] * 3] * 5


def damaged(blobs: Any) -> Any:
    blobs[1, -1] ^= 1
    return blobs


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (damaged, ValueError, "snapshot 1 is refused.*checksum"),
        (lambda b: b[:, :-1], ValueError, "bytes in all; this pool's have"),
        (lambda b: b.reshape(1, -1), ValueError, "got 1 snapshots of"),
        (lambda b: b.reshape(b.shape[1], 3), ValueError, "bytes in all"),
        (lambda b: b.tolist(), TypeError, "snapshots must be a NumPy array"),
        (lambda b: b.astype(np.int32), TypeError, "dtype uint8"),
        (lambda b: b[0], TypeError, r"shape \(n, bytes\)"),
    ],
)
def test_bad_snapshots_change_nothing(
    make_pool: Any, change: Any, error: type[Exception], message: str
) -> None:
    pool = make_pool(**OPTIONS)
    pool.native.set_starts([0, 1])
    with pytest.raises(error, match=message):
        pool.native.set_starts(np.ones(5), change(saved(make_pool)))
    assert drawn(pool, 5) == [[1] * 3] * 5


def test_other_pools_and_ended_episodes_are_refused(make_pool: Any) -> None:
    pool = make_pool(**OPTIONS)
    with pytest.raises(ValueError, match="snapshot 0 is refused: its episode is over"):
        pool.native.set_starts(np.ones(5), saved(make_pool, steps=9))
    other = make_pool(**OPTIONS, label="other")
    other.restart()
    blobs = other.native.snapshot(other.ids)
    with pytest.raises(ValueError, match="snapshot 0 is refused: saved under another"):
        pool.native.set_starts(np.ones(5), blobs)
    pool.native._close()
    with pytest.raises(RuntimeError, match="pool closed"):
        pool.native.set_starts([1, 1])
    with pytest.raises(RuntimeError, match="pool closed"):
        pool.native.set_starts(None)


def test_a_set_may_come_while_environments_are_under_way(make_pool: Any) -> None:
    pool = make_pool(num_envs=4, batch_size=1, num_stages=2, episode_steps=1)
    pool.native.set_starts([1, 0])
    pool.reset()
    for step in range(400):
        batch = pool.recv()
        assert batch["info:start"][0] in (0, 1)
        pool.native.set_starts([step % 2, 1 - step % 2])
        pool.send(0, batch["info:env_id"])
