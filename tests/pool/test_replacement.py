"""An environment that throws is replaced, where and as often as the caller allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

THROWS = {"throw_env": 2, "throw_step": 13, "episode_steps": 5}


def play(pool: Any, steps: int) -> list[dict[str, Any]]:
    """The rows of env 2 of a sync pool, from its first reset on."""
    rows = [pool.restart()]
    rows += [pool.step(1) for _ in range(steps)]
    return [{name: array[2] for name, array in row.items()} for row in rows]


def test_a_step_that_throws_ends_its_episode_and_the_next_one_begins(
    make_pool: Any,
) -> None:
    others = make_pool(num_envs=4, num_threads=2, episode_steps=5)
    pool = make_pool(num_envs=4, num_threads=2, **THROWS)
    pool.native.set_replacement(3)
    untouched = others.restart()
    rows = pool.restart()
    ends = []
    for step in range(1, 24):
        # Five steps and a reset are an episode: step 13 of its life is the third of
        # the third one.
        untouched, rows = others.step(1), pool.step(1)
        mask = np.arange(4) != 2
        for name in ("info:hash", "reward", "done"):
            np.testing.assert_array_equal(untouched[name][mask], rows[name][mask])
        if rows["trunc"][2]:
            ends.append(step)
            assert rows["done"][2]
            assert rows["reward"][2] == 0
            assert rows["elapsed_step"][2] == 3
            assert rows["step_type"][2] == 2
            first = rows
        if ends and step == ends[0] + 1:
            # Its next episode has begun: the same observation, as of a reset.
            assert rows["elapsed_step"][2] == 0
            assert not rows["done"][2]
            assert rows["reward"][2] == 0
            assert rows["step_type"][2] == 0
            np.testing.assert_array_equal(rows["obs"][2], first["obs"][2])
    assert ends == [15]
    (replaced,) = pool.native.status()["replaced"]
    text = "env 2 failed in step: told to fail at step 13"
    assert replaced == {"env_id": 2, "error": text}
    assert pool.native.status()["closed"] == ""


@pytest.mark.parametrize(("every", "episode"), [(0, 1), (1, 3), (2, 3), (3, 1)])
def test_a_replacement_begins_in_the_last_episode_that_was_kept(
    make_pool: Any, every: int, episode: int
) -> None:
    """The third episode throws; of each `every`-th the start is kept, from the first.

    A new environment without a snapshot counts its episodes from 1.
    """
    pool = make_pool(num_envs=4, num_threads=2, **THROWS)
    pool.native.set_replacement(1, every)
    rows = play(pool, 17)
    assert [row["info:episode"] for row in rows[12:15]] == [3, 3, 3]
    assert rows[15]["trunc"]
    assert rows[15]["info:episode"] == rows[16]["info:episode"] == episode
    if every:
        begins = rows[6 * (episode - 1)]
        assert rows[16]["info:hash"] == begins["info:hash"]
    assert rows[17]["info:episode"] == episode
    assert rows[17]["elapsed_step"] == 1


def test_a_reset_that_throws_is_answered_by_the_replacement(make_pool: Any) -> None:
    """Env 1 cannot begin any episode: each replacement throws as well."""
    pool = make_pool(num_envs=3, num_threads=1, throw_env=1, throw_step=0)
    pool.native.set_replacement(2)
    text = (
        r"^env 1 failed in reset: told to fail at step 0; 2 environments were replaced "
        "before, as many as set_replacement allows$"
    )
    with pytest.raises(RuntimeError, match=text):
        pool.restart()
    assert len(pool.native.status()["replaced"]) == 2


@pytest.mark.parametrize("batch_size", [4, 2])
def test_the_budget_is_that_of_the_pool(make_pool: Any, batch_size: int) -> None:
    pool = make_pool(num_envs=4, batch_size=batch_size, num_threads=2, **THROWS)
    pool.native.set_replacement(3)
    pool.reset()
    ends = []

    def play() -> None:
        for _ in range(400):
            batch = pool.recv()
            ends.extend(batch["info:env_id"][batch["trunc"]])
            pool.send(1, batch["info:env_id"])

    with pytest.raises(RuntimeError, match="step 13; 3 environments were replaced"):
        play()
    assert ends == [2] * 3
    assert [entry["env_id"] for entry in pool.native.status()["replaced"]] == [2] * 3


def test_the_same_seed_gives_the_same_replacements(make_pool: Any) -> None:
    def course() -> list[Any]:
        pool = make_pool(num_envs=4, num_threads=2, seed=7, **THROWS)
        pool.native.set_replacement(20, 2)
        return [(row["info:hash"], row["trunc"]) for row in play(pool, 50)]

    assert course() == course()


def test_with_starts_a_replacement_begins_as_any_episode(make_pool: Any) -> None:
    pool = make_pool(num_envs=4, num_threads=1, num_stages=2, **THROWS)
    pool.native.set_replacement(1, 1)
    pool.restart()
    pool.native.set_starts([0.0, 1.0])
    rows = play(pool, 17)
    assert rows[15]["trunc"]
    assert rows[16]["info:start"] == 1
    assert rows[16]["info:episode"] == 1


def test_a_snapshot_of_a_replaced_env_can_be_restored(make_pool: Any) -> None:
    pool = make_pool(num_envs=4, num_threads=1, **THROWS)
    pool.native.set_replacement(1, 1)
    assert play(pool, 15)[-1]["trunc"]
    blobs = pool.native.snapshot(pool.ids)
    pool.native.restore(pool.ids, blobs)
    again = pool.recv()
    assert again["done"][2]
    assert again["trunc"][2]
    assert pool.step(0)["elapsed_step"][2] == 0


@pytest.mark.parametrize("numbers", [(-1, 0), (1, -1)])
def test_numbers_below_0_are_refused(make_pool: Any, numbers: tuple[int, int]) -> None:
    pool = make_pool(num_envs=2)
    text = f"must be 0 or more, got {numbers[0]} and {numbers[1]}"
    with pytest.raises(ValueError, match=text):
        pool.native.set_replacement(*numbers)
    pool.native._close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.native.set_replacement(1)
