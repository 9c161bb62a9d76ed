"""Streams, graphs and copies: on a GPU of labels, and what a CPU has instead."""

import logging
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from label_gpu.client import on_label_gpu, warnings

from trainer.learn.losses import Targets, ppo_loss
from trainer.machine import cuda
from trainer.machine.cuda import (
    ACTING,
    Fence,
    Graphed,
    HostToDevice,
    compiled,
    copy_all,
    own_stream,
    use_here,
)

CPU = torch.device("cpu")
GPU = torch.device("cuda")


def test_on_a_cpu_there_are_no_streams(monkeypatch):
    monkeypatch.setattr(cuda, "_cuda", None)  # any use of it would raise
    fence = Fence(CPU)
    fence.signal()
    fence.wait()
    with own_stream(CPU):
        pass


@on_label_gpu()
def test_a_stream_of_its_own():
    default, seen = torch.cuda.current_stream(), set()
    weights = torch.zeros(4, device=GPU)  # which may still be on their way
    with own_stream(GPU):
        assert torch.cuda.current_stream() is not default
        weights.add_(1)
    assert torch.cuda.current_stream() is default
    # PyTorch has 32, then two parts would have the same one.
    for _ in range(40):
        with own_stream(GPU):
            seen.add(torch.cuda.current_stream().number)
            with own_stream(GPU):
                seen.add(torch.cuda.current_stream().number)
    assert len(seen) == 2
    torch.cuda.synchronize()


@on_label_gpu()
def test_a_thread_of_a_numbered_gpu_works_on_that_gpu():
    """The current GPU of a new thread is number 0."""
    second, given = torch.device("cuda:1"), []
    torch.cuda.set_device = given.append
    with own_stream(second), own_stream(GPU):
        assert given == [second]


def test_on_a_cpu_nothing_is_announced(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *of: pytest.fail("said"))
    use_here(CPU, torch.zeros(1), slice(0, 3), np.zeros(3))


@on_label_gpu()
def test_tensors_are_copied_with_a_launch_for_each_data_type():
    from label_gpu import order

    kinds = torch.float32, torch.int64, torch.float32, torch.bool, torch.float32
    sources = [torch.ones(3, n, dtype=kind, device=GPU) for n, kind in enumerate(kinds)]
    targets = [torch.zeros_like(source) for source in sources]
    before = order.counts["MainThread"]["launches"]
    copy_all(targets, sources)
    assert order.counts["MainThread"]["launches"] - before == 3
    assert all(map(torch.equal, targets, sources))


class Adder:
    """Adds two to a tensor, and counts how often Python did."""

    def __init__(self, **options):
        self.count = 0
        options = {"name": "adding", "device": GPU, "enabled": True} | options
        self.graphed = Graphed(self.run, **options)

    def run(self, x):
        self.count += 1
        return x + 2

    def check(self, calls, size=2):
        """Calls it so often, and checks the results, which it returns."""
        results = []
        for value in range(calls):
            given = torch.full((size,), value, device=GPU)
            results.append(self.graphed(given))
            assert results[-1].tolist() == [value + 2] * size
            assert given.tolist() == [value] * size
        return results


def captures():
    """Pool and stream of each recording from now on."""
    found, begin = [], torch.cuda.CUDAGraph.capture_begin

    def noted(graph, pool, capture_error_mode):
        assert capture_error_mode == "thread_local"
        found.append((pool, torch.cuda.current_stream()))
        begin(graph, pool)

    torch.cuda.CUDAGraph.capture_begin = noted
    return found


def closed_pools():
    """What is closed from now on, after failures."""
    closed = []
    cuda._close_pool = lambda *of: closed.append(of)
    return closed


def failing(method):
    """Makes a method of all graphs fail."""
    end = torch.cuda.CUDAGraph.capture_end

    def fails(graph, *args, **options):
        if method == "capture_end":
            end(graph)
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    setattr(torch.cuda.CUDAGraph, method, fails)


@on_label_gpu()
def test_calls_are_recorded_and_replayed():
    add, found = Adder(), captures()
    add.check(3)
    assert (add.count, found) == (3, [])
    result, *later = add.check(6)
    assert all(each is result for each in later)
    assert (add.count, len(found)) == (4, 1)
    assert torch.cuda.current_stream() is torch.cuda.default_stream()


@on_label_gpu()
def test_each_shape_has_a_recording_of_its_own():
    add = Adder()
    for size in (2, 3):
        _, _, _, *later = add.check(6, size)
        assert later[0] is later[1] is later[2]
    assert add.count == 8
    # Only a few: each one has memory of its own.
    for size in (4, 5, 6, 7):
        add.check(6, size)
    assert add.graphed.recorded == 4


@on_label_gpu()
def test_each_function_is_recorded_on_a_stream_of_its_own():
    """Graphs of one stream share the workspace of cuBLAS."""
    adders, found = [Adder(), Adder()], captures()
    for add in adders:
        add.check(5)
    first, second = (stream for _, stream in found)
    assert first is not second
    for add in adders:
        add.graphed.close()
        add.check(5)
        assert not add.graphed.recorded
    for _ in range(40):
        add = Adder()
        add.check(5)
        assert add.graphed.recorded
        add.graphed.close()
    assert {stream for _, stream in found} == {first, second}


@on_label_gpu()
def test_a_recording_is_made_again_after_a_reset():
    add, found = Adder(), captures()
    *_, old = add.check(4)
    add.graphed.reset()
    assert not add.graphed.recorded
    assert all(each is not old for each in add.check(3))
    assert (add.count, len(found)) == (7, 1)
    assert add.check(1)[0] is not old
    assert (add.graphed.recorded, len(found)) == (1, 2)


@on_label_gpu()
def test_graphs_of_a_function_share_their_memory():
    """Each shape would keep a pool of its own; the next function does keep one."""
    adders, found = [Adder(), Adder()], captures()
    for add in adders:
        for size in (2, 3, 4):
            add.check(4, size)
    first, second = found[0][0], found[3][0]
    assert [pool for pool, _ in found] == [first] * 3 + [second] * 3
    assert first is not second
    # PyTorch has freed a pool whose graphs are gone, and refuses it.
    adders[0].graphed.reset()
    adders[0].check(4)
    assert found[-1][0] not in (first, second)


@pytest.mark.parametrize("priority", [0, ACTING])
@on_label_gpu()
def test_graphs_have_the_priority_of_their_function(priority):
    """PyTorch honours the priority of the stream that records, from 2.10 on."""
    add, found = Adder(priority=priority), captures()
    add.check(4)
    ((_, stream),) = found
    assert stream.priority == priority
    add.graphed.close()
    with own_stream(GPU, priority):
        assert torch.cuda.current_stream() is stream  # it went back to its own list
    with own_stream(GPU, ACTING - priority):
        assert torch.cuda.current_stream() is not stream


@pytest.mark.parametrize("method", ["capture_begin", "capture_end"])
@on_label_gpu()
def test_what_cannot_be_recorded_runs_without(method):
    failing(method)
    closed, said, add = closed_pools(), warnings(), Adder()
    add.check(8)
    assert not add.graphed.recorded
    assert (add.count, len(closed)) == (8 + (method == "capture_end"), 1)
    (message,) = said
    assert "no CUDA graph of adding" in message
    assert "(operation not permitted)" in message


@on_label_gpu()
def test_a_quiet_failure_is_kept():
    failing("capture_begin")
    said, add = warnings(), Adder(quiet=True)
    add.check(6)
    assert said == []
    assert add.graphed.failure == "operation not permitted"


@on_label_gpu("capture")
def test_a_recording_that_waits_leaves_nothing_behind():
    """A call that a graph cannot have, such as .item(), also spoils the capture."""
    closed, said = closed_pools(), warnings()
    waits = Graphed(
        lambda x: x + 2 * (x.sum().item() == 0), name="it", device=GPU, enabled=True
    )
    for _ in range(6):
        assert waits(torch.zeros(2, device=GPU)).tolist() == [2, 2]
    assert [message.partition("; ")[0] for message in said] == [
        "no CUDA graph of it, so it runs without one (operation not permitted when "
        "stream is capturing)"
    ]
    assert len(closed) == 1
    check_nothing_is_left()


@pytest.mark.parametrize("error", [TypeError, KeyError, UserWarning, OSError])
@on_label_gpu()
def test_any_exception_of_a_recording_is_survived(error):
    """PyTorch, Triton and modules of users raise more than RuntimeError."""
    found, closed, said, calls = captures(), closed_pools(), warnings(), []

    def fails(x):
        calls.append(x)
        if len(calls) == 4:
            raise error
        return x + 2

    graphed = Graphed(fails, name="adding", device=GPU, enabled=True)
    for _ in range(8):
        assert graphed(torch.zeros(2, device=GPU)).tolist() == [2, 2]
    (message,) = said
    assert f"runs without one ({error.__name__})" in message
    assert (len(found), closed) == (1, [])
    check_nothing_is_left()
    with own_stream(GPU):  # the stream is free for others
        assert torch.cuda.current_stream() is found[0][1]


def check_nothing_is_left():
    """After a failed recording others are made, on the stream that was current."""
    assert torch.cuda.current_stream() is torch.cuda.default_stream()
    assert not cuda.recording_lock.locked()
    add = Adder()
    add.check(6)
    assert add.graphed.recorded
    add.graphed.close()


@on_label_gpu()
def test_without_graphs_nothing_is_recorded():
    add, found = Adder(enabled=False), captures()
    add.check(8)
    assert (add.count, found) == (8, [])


def test_a_failed_capture_gives_its_pool_back_once(monkeypatch):
    """PyTorch counts the graphs of a pool; one release too many ends the process."""
    calls = []
    working = SimpleNamespace(
        _cuda_endAllocateToPool=lambda *of: calls.append(("end", *of)),
        _cuda_releasePool=lambda *of: calls.append(("release", *of)),
    )
    monkeypatch.setattr(torch, "_C", working)
    cuda._close_pool(torch.device("cuda:1"), "pool")
    assert calls == [("end", 1, "pool"), ("release", 1, "pool")]

    def not_in_use(*of):
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    working._cuda_endAllocateToPool = not_in_use
    cuda._close_pool(torch.device("cuda:1"), "pool")
    assert len(calls) == 2
    monkeypatch.setattr(torch, "_C", SimpleNamespace())  # the functions are private
    cuda._close_pool(torch.device("cuda:1"), "pool")


@pytest.mark.parametrize("when", ["wrapping", "running"])
def test_what_cannot_be_compiled_runs_without(monkeypatch, caplog, when):
    calls = []

    def broken(*arguments, **options):
        calls.append(arguments)
        raise OSError("no compiler\nmany more lines")

    wrap = broken if when == "wrapping" else lambda function, dynamic: broken
    monkeypatch.setattr(torch, "compile", wrap)
    add = compiled(torch.add, name="adding")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert add(torch.ones(2), 2).tolist() == [3, 3]
    assert len(calls) == len(caplog.records) == 1
    assert "torch.compile of adding failed, so it runs without (no comp" in caplog.text


def test_what_compiles_is_used(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: torch.sub)
    assert compiled(torch.add, name="adding")(3, 1) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on import
@pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"
)
def test_a_compiled_loss_is_the_loss(caplog):
    n = 32
    targets = Targets(
        actions=torch.randint(3, (n,)),
        log_mu=-torch.rand(n),
        advantages=torch.randn(n),
        values=torch.randn(n),
        weights=torch.full((n,), 1 / n),
        scales=torch.ones(n),
    )
    options = {
        "clip_range": 0.2,
        "value_coef": 0.5,
        "value_kind": "huber",
        "entropy_coef": torch.tensor(0.01),
    }
    results = []
    for function in (ppo_loss, compiled(ppo_loss, name="the loss")):
        logits = torch.arange(3.0 * n).view(n, 3).cos().requires_grad_()
        values = torch.arange(float(n)).sin().requires_grad_()
        loss = function(logits, values, targets, **options)
        gradients = torch.autograd.grad(loss.total, (logits, values))
        results.append([*(field.detach() for field in loss[:-1]), *gradients])
    assert "runs without" not in caplog.text
    torch.testing.assert_close(*results)


def test_on_a_cpu_nothing_is_copied():
    to_device = HostToDevice(CPU, pool=None)
    array = np.arange(6, dtype=np.uint8)
    assert to_device(array).data_ptr() == array.ctypes.data
    array.flags.writeable = False
    tensor = to_device(array)  # torch has no read-only tensors
    assert tensor.data_ptr() != array.ctypes.data
    assert tensor.tolist() == array.tolist()
    to_device.close()


def locks(error=0):
    """What is page-locked from now on: address and size; or fails."""
    locked, cudart = [], torch.cuda.cudart()

    def register(start, size, flags):
        locked.append((start, size))
        return error or cudart.cudaHostRegister(start, size, flags)

    ending = cudart.cudaHostUnregister
    torch.cuda.cudart = lambda: SimpleNamespace(
        cudaHostRegister=register, cudaHostUnregister=ending
    )
    return locked


@on_label_gpu()
def test_slabs_are_page_locked_once_and_when_there_are_more():
    locked, memory = locks(), np.arange(96, dtype=np.uint8)
    slabs = [(memory.ctypes.data + at, 32) for at in (0, 64)]
    pool = SimpleNamespace(_buffers=slabs[:1], slab_growth=0)
    to_device = HostToDevice(GPU, pool)
    parts = slice(0, 8), slice(0, 40), slice(64, 72)  # in it, too long, elsewhere
    for part in parts:
        assert to_device(memory[part]).tolist() == memory[part].tolist()
    assert locked == slabs[:1]
    pool._buffers, pool.slab_growth = slabs, 1
    assert to_device(memory[parts[2]]).tolist() == memory[parts[2]].tolist()
    assert locked == slabs
    to_device.close()


@on_label_gpu()
def test_failing_to_page_lock_is_said_once():
    locked, said = locks(error=2), warnings()
    memory, forgotten = np.arange(32, dtype=np.uint8), []
    cuda._forget_error = forgotten.append  # or the next kernel would raise it
    slabs = [(memory.ctypes.data, 32)]
    pool = SimpleNamespace(_buffers=slabs, slab_growth=0)
    to_device = HostToDevice(GPU, pool)
    for _ in range(3):
        pool.slab_growth += 1  # there are more slabs, which are not tried
        assert to_device(memory[:8]).tolist() == memory[:8].tolist()
    (message,) = said
    assert "page-locking" in message
    assert (locked, forgotten) == (slabs, [GPU])
