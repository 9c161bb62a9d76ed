"""Shards and the way of an array to the device."""

import logging
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trainer.device import Shards, Stage


def test_shards_keep_order_and_use_threads():
    shards = Shards(3)
    meet = threading.Barrier(3, timeout=10)

    def work(part):
        meet.wait()  # would never pass if they ran one after another
        return part, threading.get_ident(), torch.get_num_threads()

    results = shards.map(work, [10, 20, 30])
    assert [part for part, _, _ in results] == [10, 20, 30]
    assert len({thread for _, thread, _ in results}) == 3
    assert results[0][1] == threading.get_ident()
    assert {threads for _, _, threads in results} == {1}
    shards.close()


def test_shards_wait_for_all_before_an_error_leaves():
    shards = Shards(2)
    done = threading.Event()

    def work(part):
        if part == 0:
            raise ValueError("first part")
        done.wait(0.2)
        done.set()

    with pytest.raises(ValueError, match="first part"):
        shards.map(work, [0, 1])
    assert done.is_set()
    with pytest.raises(ValueError, match="3 parts for 2"):
        shards.map(work, [1, 2, 3])
    shards.close()


def test_on_a_cpu_nothing_is_copied():
    stage = Stage(torch.device("cpu"), pool=None)
    array = np.arange(6, dtype=np.uint8)
    assert stage(array).data_ptr() == array.ctypes.data
    array.flags.writeable = False
    tensor = stage(array)  # torch has no read-only tensors
    assert tensor.data_ptr() != array.ctypes.data
    assert tensor.tolist() == array.tolist()
    stage.close()


def make_stage_with_slabs(error=0):
    """A stage whose CUDA runtime is a list of calls; slabs of a fake pool."""
    pool = SimpleNamespace(_buffers=[(4096, 8192)], slab_growth=0)
    stage, calls = Stage(torch.device("cpu"), pool), []

    def register(start, size, flags):
        calls.append((start, size))
        return error

    runtime = SimpleNamespace(cudaHostRegister=register)
    stage._cuda = SimpleNamespace(cudart=lambda: runtime)
    return stage, pool, calls


def at(address, nbytes):
    return SimpleNamespace(ctypes=SimpleNamespace(data=address), nbytes=nbytes)


def test_slabs_are_page_locked_once_and_when_there_are_more():
    stage, pool, calls = make_stage_with_slabs()
    assert stage._page_locked(at(4096, 100))
    assert not stage._page_locked(at(4096, 9000))
    assert not stage._page_locked(at(20000, 100))
    assert calls == [(4096, 8192)]
    pool._buffers.append((16384, 8192))
    pool.slab_growth = 1
    assert stage._page_locked(at(20000, 100))
    assert calls == [(4096, 8192), (16384, 8192)]


def test_failing_to_page_lock_is_said_once(caplog):
    stage, _, calls = make_stage_with_slabs(error=2)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not stage._page_locked(at(4096, 100))
    assert len(calls) == len(caplog.records) == 1
    assert "page-locking" in caplog.text
