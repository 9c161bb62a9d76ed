"""Observations are lent: never copied, never altered while somebody holds them."""

from __future__ import annotations

import gc
import mmap
from typing import Any

import numpy as np
import pytest


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("batch_size", [4, 2])
def test_a_held_array_is_never_altered(make_pool: Any, batch_size: int) -> None:
    pool = make_pool(
        num_envs=4, batch_size=batch_size, num_threads=2, obs_shape=[2, 40, 41]
    )
    pool.reset()
    held = []
    for step in range(60):
        batch = pool.recv()
        held.append((batch, {key: value.copy() for key, value in batch.items()}))
        pool.send(step % 4, batch["info:env_id"])
        if step % 7 == 6:
            del held[::2]  # some go back, in no order
    for batch, copies in held:
        for key, value in batch.items():
            np.testing.assert_array_equal(value, copies[key], err_msg=key)
    addresses = [address(batch["obs"]) for batch, _ in held]
    assert len(set(addresses)) == len(addresses)


@pytest.mark.parametrize("batch_size", [4, 2, 3])
def test_slabs_are_recycled(make_pool: Any, batch_size: int) -> None:
    pool = make_pool(num_envs=4, batch_size=batch_size)
    pool.reset()
    addresses = set()
    last = None
    for _ in range(100):
        batch = pool.recv()
        addresses.add(address(batch["obs"]))
        pool.send(0, batch["info:env_id"])
        last = batch  # two batches in the reader's hands at a time
    assert last is not None
    assert pool.native.slab_growth == 0
    assert len(addresses) <= len(pool.native._buffers)


def test_growth_is_counted_and_ends(make_pool: Any) -> None:
    pool = make_pool(num_envs=2)
    before = len(pool.native._buffers)
    held = [pool.restart()["obs"] for _ in range(before + 5)]
    assert pool.native.slab_growth == 5
    assert pool.native.status()["slab_growth"] == 5
    assert len(pool.native._buffers) == before + 5
    del held
    for _ in range(3):
        held = [pool.restart()["obs"] for _ in range(before + 5)]
        del held
    assert pool.native.slab_growth == 5


def test_small_requests_get_small_slabs(make_pool: Any) -> None:
    pool = make_pool(num_envs=64, obs_shape=[4096])
    pool.restart()
    before = len(pool.native._buffers)
    held = [pool.restart([i])["obs"] for i in range(before + 2)]
    sizes = sorted(size for _, size in pool.native._buffers)
    assert pool.native.slab_growth == 2
    assert sizes[:2] == [4096, 4096]
    assert all(len(obs) == 1 for obs in held)


def test_observations_lie_in_whole_pages(make_pool: Any) -> None:
    pool = make_pool(num_envs=3, obs_shape=[4, 84, 84])
    obs = pool.restart()["obs"]
    buffers = pool.native._buffers
    assert any(start <= address(obs) < start + size for start, size in buffers)
    for start, size in buffers:
        assert start % mmap.PAGESIZE == size % mmap.PAGESIZE == 0
        assert size >= 3 * 4 * 84 * 84
    assert obs.flags.c_contiguous
    assert obs.flags.writeable
    assert not obs.flags.owndata


def test_small_fields_do_not_keep_the_pixels(make_pool: Any) -> None:
    pool = make_pool(num_envs=2)
    kept = []
    for _ in range(50):
        batch = pool.restart()
        del batch["obs"]
        assert all(array.flags.owndata for array in batch.values())
        kept.append(batch)
    assert pool.native.slab_growth == 0


def test_a_view_of_a_view_keeps_its_slab(make_pool: Any) -> None:
    pool = make_pool(num_envs=2, obs_shape=[64])
    row = pool.restart()["obs"][1, 40:]
    copy = row.copy()
    for _ in range(20):
        pool.step(2)
    np.testing.assert_array_equal(row, copy)


def test_arrays_outlive_the_pool(make_pool: Any) -> None:
    pool = make_pool(num_envs=2, obs_shape=[4, 84, 84])
    batch = pool.restart()
    copies = {key: value.copy() for key, value in batch.items()}
    del pool
    gc.collect()
    for key, value in batch.items():
        np.testing.assert_array_equal(value, copies[key], err_msg=key)
        value[...] = 1  # still writable memory
