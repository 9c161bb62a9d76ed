"""Order, completeness and the course of episodes in the pool."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Words = npt.NDArray[np.uint64]


def mix(value: Words) -> Words:
    """Splitmix64, by which the counting env chains its actions."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def test_sync_rows_come_in_the_order_sent(make_pool: Any) -> None:
    pool = make_pool(num_envs=5, num_threads=3, max_sleep_us=300)
    assert pool.restart([3, 0, 4, 1, 2])["info:env_id"].tolist() == [3, 0, 4, 1, 2]
    for ids in ([2, 0], [4], [1, 3, 0], [0, 1, 2, 3, 4]):
        batch = pool.step([i % 4 for i in ids], ids)
        assert batch["info:env_id"].tolist() == ids
        assert batch["info:players.env_id"].tolist() == ids
        assert batch["reward"].tolist() == [i % 4 + 0.5 for i in ids]


def test_sync_requests_for_disjoint_envs_overlap(make_pool: Any) -> None:
    pool = make_pool(num_envs=6, num_threads=2, max_sleep_us=200)
    pool.restart()
    groups = ([0, 3], [5, 1, 2], [4])
    for group in groups:
        pool.send(0, group)
    for step in range(2, 40):
        for group in groups:
            batch = pool.recv()
            assert batch["info:env_id"].tolist() == group
            assert len(batch["obs"]) == len(group)
            pool.send(step % 4, group)


def test_async_gives_whole_batches_and_starves_nobody(make_pool: Any) -> None:
    pool = make_pool(num_envs=9, batch_size=4, num_threads=2, max_sleep_us=100)
    pool.reset()
    seen = np.zeros(9, np.int64)
    for _ in range(200):
        batch = pool.recv()
        ids = batch["info:env_id"]
        assert len(ids) == len(set(ids.tolist())) == 4
        seen[ids] += 1
        pool.send(1, ids)
    assert seen.min() > 0


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [32, 64])
def test_a_million_steps_lose_and_double_none(make_pool: Any, batch_size: int) -> None:
    num_envs, steps = 64, 1_000_000
    pool = make_pool(
        num_envs=num_envs,
        batch_size=batch_size,
        num_threads=2,
        episode_steps=2**31 - 1,
        obs_shape=[64],
    )
    pool.reset()
    totals = np.zeros(num_envs, np.int64)
    hashes = np.zeros(num_envs, np.uint64)
    actions = np.random.default_rng(0).integers(0, 4, (97, batch_size), np.int32)
    fresh = np.ones(num_envs, np.bool_)  # the first row starts the chain
    for i in range((steps + num_envs) // batch_size):
        batch = pool.recv()
        ids = batch["info:env_id"]
        got = batch["info:hash"].view(np.uint64)
        hashes[ids[fresh[ids]]] = got[fresh[ids]]
        fresh[ids] = False
        np.testing.assert_array_equal(batch["info:total"], totals[ids])
        np.testing.assert_array_equal(got, hashes[ids])
        chosen = actions[i % len(actions)]
        pool.send(chosen, ids)
        totals[ids] += 1
        hashes[ids] = mix(hashes[ids] ^ chosen.astype(np.uint64))
    assert totals.sum() >= steps


def streams(pool: Any, batch_size: int, steps: int) -> list[list[tuple[Any, ...]]]:
    """What each env shows if its k-th action is a function of itself and k."""
    result: list[list[tuple[Any, ...]]] = [[] for _ in pool.ids]
    pool.reset()
    while min(map(len, result)) < steps:
        batch = pool.recv()
        ids = batch["info:env_id"]
        for row, env in enumerate(ids):
            result[env].append(
                tuple(batch[key][row].tobytes() for key in pool.native._state_keys)
            )
        pool.send([(7 * e + len(result[e]) ** 2) % 4 for e in ids], ids)
    return [stream[:steps] for stream in result]


@pytest.mark.parametrize("batch_size", [3, 8])
def test_streams_are_equal_for_1_2_and_8_threads(
    make_pool: Any, batch_size: int
) -> None:
    one, two, eight = (
        streams(
            make_pool(
                num_envs=8, batch_size=batch_size, num_threads=threads, episode_steps=7
            ),
            batch_size,
            steps=60,
        )
        for threads in (1, 2, 8)
    )
    assert one == two
    assert one == eight


def test_an_episode_ends_and_the_next_action_restarts_it(make_pool: Any) -> None:
    pool = make_pool(num_envs=1, episode_steps=3)
    pool.restart()
    rows = [pool.step(2) for _ in range(5)]
    column = {
        key: [row[key][0].item() for row in rows]
        for key in rows[0]
        if key != "obs" and key != "info:pair"
    }
    assert column["done"] == [False, False, True, False, False]
    assert column["trunc"] == [False] * 5
    assert column["reward"] == [2.5, 2.5, 2.5, 0.0, 2.5]
    assert column["discount"] == [1.0, 1.0, 0.0, 1.0, 1.0]
    assert column["step_type"] == [1, 1, 2, 0, 1]
    assert column["elapsed_step"] == [1, 2, 3, 0, 1]
    assert column["info:episode"] == [1, 1, 1, 2, 2]
    assert column["info:total"] == [1, 2, 3, 3, 4]  # the fourth action: ignored


@pytest.mark.parametrize(
    ("options", "trunc"),
    [
        ({"max_episode_steps": 4}, True),
        ({"truncate_steps": 4}, True),
        ({"episode_steps": 4}, False),
        # EnvPool calls an end at the limit a truncation, whatever its cause.
        ({"max_episode_steps": 4, "episode_steps": 4}, True),
        ({"truncate_steps": 4, "episode_steps": 4}, False),
    ],
)
def test_ends_are_told_apart(make_pool: Any, options: Any, trunc: bool) -> None:
    pool = make_pool(num_envs=2, **options)
    pool.restart()
    for _ in range(3):
        assert not pool.step(0)["done"].any()
    last = pool.step(0)
    assert last["done"].tolist() == [True, True]
    assert last["trunc"].tolist() == [trunc, trunc]
    assert last["discount"].tolist() == [0.0, 0.0]
    assert last["elapsed_step"].tolist() == [4, 4]
    after = pool.step(0)
    assert not after["trunc"].any()
    assert after["elapsed_step"].tolist() == [0, 0]


def test_a_forced_reset_ends_an_episode_early(make_pool: Any) -> None:
    pool = make_pool(num_envs=3, episode_steps=10)
    pool.restart()
    for _ in range(4):
        pool.step(0)
    row = pool.restart([1])
    assert row["elapsed_step"].tolist() == row["step_type"].tolist() == [0]
    assert row["info:episode"].tolist() == [2]
    assert pool.step(0)["elapsed_step"].tolist() == [5, 1, 5]


def test_the_first_action_is_a_reset(make_pool: Any) -> None:
    pool = make_pool(num_envs=2)
    batch = pool.step(3)
    assert batch["step_type"].tolist() == [0, 0]
    assert batch["reward"].tolist() == [0.0, 0.0]
    assert batch["info:total"].tolist() == [0, 0]


def test_seeds_are_seed_plus_env_id_or_listed(make_pool: Any) -> None:
    def first(**options: Any) -> list[int]:
        hashes: list[int] = (
            make_pool(num_envs=3, **options).restart()["info:hash"].tolist()
        )
        return hashes

    assert first(seed=5) == first(env_seed=[5, 6, 7])
    assert first(seed=5)[1:] == first(seed=6)[:2]
    assert first(env_seed=[9, 9, 1])[0] == first(env_seed=[9, 9, 1])[1]
    assert first() == first(seed=42)
    assert first(seed=-1)[1:] == first(seed=0)[:2]


def test_a_reset_with_seeds_really_reseeds(make_pool: Any) -> None:
    pool = make_pool(num_envs=3, seed=10)
    start = pool.restart()["info:hash"].tolist()
    second = pool.restart()["info:hash"].tolist()
    assert not set(start) & set(second)
    assert pool.restart(seeds=[10, 11, 12])["info:hash"].tolist() == start
    assert pool.restart()["info:hash"].tolist() == second
    mixed = pool.restart([2, 0], seeds=np.array([10, 11], np.uint64))
    assert mixed["info:hash"].tolist() == [start[0], start[1]]
    large = pool.restart([1], seeds=[2**64 - 1])["info:hash"].tolist()
    assert pool.restart([0], seeds=[2**64 - 1])["info:hash"].tolist() == large
    assert pool.restart([2], seeds=[])["info:hash"].tolist() == [second[0]]


ARRAY_OF_SEEDS = """
import numpy as np
from mario_envpool._testing import _CountingEnvPool as Pool, _CountingEnvSpec as Spec
values = dict(zip(Spec._config_keys, Spec._default_config_values)) | {"num_envs": 2}
pool = Pool(Spec(tuple(values.values())))
hashes = []
for seeds in ([2**63 + 1, 5], np.array([2**63 + 1, 5], np.uint64)):
    pool._reset(np.arange(2, dtype=np.int32), seeds)
    hashes.append(pool._recv()[Spec._state_keys.index("info:hash")].tolist())
assert hashes[0] == hashes[1], hashes
"""


def test_seeds_of_an_array_live_long_enough() -> None:
    """An array makes its items as they are read; freed memory is poisoned here."""
    subprocess.run(
        [sys.executable, "-c", ARRAY_OF_SEEDS],
        env={**os.environ, "PYTHONMALLOC": "debug"},
        check=True,
        timeout=60,
    )


def test_a_thousand_envs_start_and_step(make_pool: Any) -> None:
    pool = make_pool(num_envs=1024, obs_shape=[4, 84, 84])
    assert pool.restart()["obs"].shape == (1024, 4, 84, 84)
    assert pool.step(1)["info:total"].tolist() == [1] * 1024
    states = [env["state"] for env in pool.native.status()["envs"]]
    assert states == ["idle"] * 1024


def test_status_tells_what_each_env_and_worker_does(make_pool: Any) -> None:
    pool = make_pool(num_envs=3, num_threads=2)
    status = pool.native.status()
    assert [env["state"] for env in status["envs"]] == ["new"] * 3
    assert len(status["workers"]) == 2
    assert status["outstanding"] == 0
    assert status["closed"] == ""
    pool.restart()
    pool.step(1, [0, 1])
    pool.step(1, [0])
    pool.send(1, [2])
    status = pool.native.status()
    assert status["outstanding"] == 1
    assert status["envs"][2]["state"] in {"queued", "running", "ready"}
    pool.recv()
    status = pool.native.status()
    assert [env["steps"] for env in status["envs"]] == [2, 1, 1]
    assert [env["error"] for env in status["envs"]] == [""] * 3
    pool.native._close()
    status = pool.native.status()
    assert status["closed"] == "pool closed by close()"
    assert [worker["state"] for worker in status["workers"]] == ["stopped"] * 2
    assert sum(worker["tasks"] for worker in status["workers"]) == 7


def test_threads_are_chosen_by_batch_size_and_pinned_on_demand(
    make_pool: Any,
) -> None:
    def threads(**options: Any) -> int:
        return len(make_pool(**options).native.status()["workers"])

    assert threads(num_envs=4, batch_size=1) == 1
    assert threads(num_envs=4, num_threads=3) == 3
    assert threads(num_envs=2, num_threads=8) == 2  # more would never work
    pool = make_pool(num_envs=4, num_threads=4, thread_affinity_offset=1)
    assert pool.restart()["info:env_id"].tolist() == [0, 1, 2, 3]
    where = [worker["cpu"] for worker in pool.native.status()["workers"]]
    if sys.platform == "linux":
        cpus = sorted(os.sched_getaffinity(0))
        assert where == [cpus[(1 + i) % len(cpus)] for i in range(4)]
    floating = make_pool(num_envs=2).native.status()["workers"]
    assert {worker["cpu"] for worker in floating} == {-1}


def test_render_shows_native_or_scaled_pictures(make_pool: Any) -> None:
    pool = make_pool(num_envs=3)
    pool.restart()
    pool.step(0, [1])
    native = pool.native._render(np.array([2, 1], np.int32), 0, 0, -1)
    assert native.shape == (2, 6, 8, 3)
    assert native.dtype == np.uint8
    assert native[:, 0, 0, 0].tolist() == [2, 1]
    assert native[:, 0, 0, 1].tolist() == [0, 1]
    assert native[0, :, :, 2].ravel().tolist() == list(range(48))
    double = pool.native._render(np.array([2], np.int32), 16, 12, -1)[0]
    np.testing.assert_array_equal(double, native[0].repeat(2, 0).repeat(2, 1))
