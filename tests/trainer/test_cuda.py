"""What is for a GPU, on a fake one."""

import logging
import shutil
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda

from trainer.learn.losses import Targets, ppo_loss
from trainer.machine import cuda
from trainer.machine.cuda import (
    ACTING,
    Fence,
    Graphed,
    HostToDevice,
    compiled,
    own_stream,
    use_here,
)

CPU = torch.device("cpu")
GPU = torch.device("cuda")


@pytest.fixture
def fake(monkeypatch):
    result = FakeCuda()
    monkeypatch.setattr(cuda, "_cuda", result)
    monkeypatch.setattr(cuda, "_free_streams", defaultdict(list))
    monkeypatch.setattr(
        cuda, "_close_pool", lambda *of: result.calls.append(("close pool", *of))
    )
    monkeypatch.setattr(
        cuda, "_forget_error", lambda device: result.calls.append("forget the error")
    )
    return result


def test_on_a_cpu_there_are_no_streams(fake):
    fence = Fence(CPU)
    fence.signal()
    fence.wait()
    with own_stream(CPU):
        assert fake.current == "main"
    assert fake.calls == []


def test_a_stream_of_its_own(fake):
    with own_stream(GPU):
        assert fake.current == "stream 1"
    assert fake.current == "main"
    # Weights may still be on their way.
    assert fake.calls == [("stream 1", "waits for", "main")]
    # PyTorch has 32, then two parts would have the same one.
    for _ in range(40):
        with own_stream(GPU), own_stream(GPU):
            assert fake.current in ("stream 1", "stream 2")
    assert fake.streams == 2


def test_a_thread_of_a_numbered_gpu_works_on_that_gpu(fake):
    """The current GPU of a new thread is number 0."""
    second = torch.device("cuda:1")
    with own_stream(second):
        assert fake.calls[0] == ("current device", second)
    count = len(fake.calls)
    with own_stream(GPU):
        assert ("current device", GPU) not in fake.calls[count:]


def test_on_a_cpu_nothing_is_announced(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *of: pytest.fail("said"))
    use_here(CPU, torch.zeros(1), slice(0, 3), np.zeros(3))


class Adder:
    """Adds two to a tensor, and counts how often Python did."""

    def __init__(self, fake, **options):
        self.count = 0
        options = {"name": "adding", "device": GPU, "enabled": True} | options
        self.graphed = Graphed(self.run, **options)
        self.fake = fake

    def run(self, x):
        self.count += 1
        graph = self.fake.recording
        if graph is not None:
            # It keeps the memory of this call and does the same again.
            result = torch.empty_like(x)
            graph.run = lambda: torch.add(x, 2, out=result)
            return result
        return x + 2


def test_calls_are_recorded_and_replayed(fake):
    add = Adder(fake)
    for value in range(3):
        assert add.graphed(torch.full((2,), value)).tolist() == [value + 2] * 2
    assert (add.count, fake.calls) == (3, [])
    given = torch.full((2,), 7)
    result = add.graphed(given)
    assert result.tolist() == [9, 9]
    assert add.count == 4
    for value in range(5):
        assert add.graphed(torch.full((2,), value)) is result
        assert result.tolist() == [value + 2] * 2
    assert add.count == 4
    assert given.tolist() == [7, 7]
    assert fake.calls[0][2] == "stream 1"
    assert fake.current == "main"


def test_each_shape_has_a_recording_of_its_own(fake):
    add = Adder(fake)
    results = {}
    for call in range(6):
        for size in (2, 3):
            x = torch.full((size,), call)
            results.setdefault(size, []).append(add.graphed(x))
            assert results[size][-1].tolist() == [call + 2] * size
    assert add.count == 8
    assert add.graphed.recorded == 2
    for found in results.values():
        assert found[3] is found[4] is found[5]
    # Only a few: each one has memory of its own.
    for size in (4, 5, 6, 7):
        for call in range(6):
            assert add.graphed(torch.full((size,), call)).tolist() == [call + 2] * size
    assert add.graphed.recorded == 4


def test_each_function_is_recorded_on_a_stream_of_its_own(fake):
    """Graphs of one stream share the workspace of cuBLAS."""
    adders = [Adder(fake), Adder(fake)]
    for _ in range(5):
        for add in adders:
            add.graphed(torch.zeros(2))
    assert captures(fake, 2) == ["stream 1", "stream 2"]
    for add in adders:
        add.graphed.close()
        assert add.graphed(torch.zeros(2)).tolist() == [2, 2]
        assert not add.graphed.recorded
    for _ in range(40):
        add = Adder(fake)
        for _ in range(5):
            add.graphed(torch.zeros(2))
        assert add.graphed.recorded
        add.graphed.close()
    assert fake.streams == 2


def test_a_recording_is_made_again_after_a_reset(fake):
    add = Adder(fake)
    for _ in range(4):
        old = add.graphed(torch.zeros(2))
    add.graphed.reset()
    for _ in range(3):
        assert add.graphed(torch.zeros(2)) is not old
    assert add.count == 7
    assert sum(call[0] == "capture" for call in fake.calls) == 1
    assert not add.graphed.recorded
    new = add.graphed(torch.ones(2))
    assert new.tolist() == [3, 3]
    assert new is not old
    assert sum(call[0] == "capture" for call in fake.calls) == 2


def captures(fake, what):
    """Pools (1) or streams (2) of the recordings so far."""
    return [call[what] for call in fake.calls if call[0] == "capture"]


def test_graphs_of_a_function_share_their_memory(fake):
    """Each shape would keep a pool of its own; the next function does keep one."""
    adders = [Adder(fake), Adder(fake)]
    for _ in range(4):
        for add in adders:
            for size in (2, 3, 4):
                add.graphed(torch.zeros(size))
    assert captures(fake, 1) == ["pool 1"] * 3 + ["pool 2"] * 3
    # PyTorch has freed a pool whose graphs are gone, and refuses it.
    adders[0].graphed.reset()
    for _ in range(4):
        adders[0].graphed(torch.zeros(2))
    assert captures(fake, 1)[6:] == ["pool 3"]


@pytest.mark.parametrize("priority", [0, ACTING])
def test_graphs_have_the_priority_of_their_function(fake, priority):
    """PyTorch honours the priority of the stream that records, from 2.10 on."""
    add = Adder(fake, priority=priority)
    for _ in range(4):
        add.graphed(torch.zeros(2))
    assert captures(fake, 2) == ["stream 1" + " of high priority" * (priority < 0)]
    add.graphed.close()
    with own_stream(GPU, priority):
        assert fake.streams == 1  # it went back to its own list
    with own_stream(GPU, ACTING - priority):
        assert fake.streams == 2


def test_what_cannot_be_recorded_runs_without(fake, caplog):
    fake.capture_fails = True
    add = Adder(fake)
    with caplog.at_level(logging.WARNING):
        for value in range(8):
            assert add.graphed(torch.full((2,), value)).tolist() == [value + 2] * 2
    assert add.count == 8
    assert [call[0] for call in fake.calls] == ["capture", "close pool"]
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    assert "no CUDA graph of adding" in message
    assert "(operation not permitted)" in message


def test_a_quiet_failure_is_kept(fake, caplog):
    fake.capture_fails = True
    add = Adder(fake, quiet=True)
    for _ in range(6):
        assert add.graphed(torch.zeros(2)).tolist() == [2, 2]
    assert not caplog.records
    assert add.graphed.failure == "operation not permitted"


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_broken_recording_leaves_nothing_behind(fake, caplog, spoilt):
    """A call that a graph cannot have, such as .item(), may spoil the capture too."""
    fake.end_fails = spoilt

    def waits(x):
        if fake.recording is not None:
            raise RuntimeError("it waits for the device")
        return x + 2

    graphed = Graphed(waits, name="adding", device=GPU, enabled=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            assert graphed(torch.zeros(2)).tolist() == [2, 2]
    assert [r.getMessage().partition("; ")[0] for r in caplog.records] == [
        "no CUDA graph of adding, so it runs without one (it waits for the device)"
    ]
    assert fake.current == "main"
    assert (("close pool", GPU, "pool 1") in fake.calls) == spoilt
    assert not cuda.recording_lock.locked()
    # Nor where only the end of the capture fails.
    fake.end_fails = True
    add = Adder(fake)
    for value in range(6):
        assert add.graphed(torch.full((2,), value)).tolist() == [value + 2] * 2
    assert not add.graphed.recorded
    assert fake.calls[-1][0] == "close pool"


@pytest.mark.parametrize("error", [TypeError, KeyError, UserWarning, OSError])
def test_any_exception_of_a_recording_is_survived(fake, caplog, error):
    """PyTorch, Triton and modules of users raise more than RuntimeError."""

    def fails(x):
        if fake.recording is not None:
            raise error
        return x + 2

    graphed = Graphed(fails, name="adding", device=GPU, enabled=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(8):
            assert graphed(torch.zeros(2)).tolist() == [2, 2]
    (record,) = caplog.records
    assert f"runs without one ({error.__name__})" in record.getMessage()
    assert fake.recording is None
    assert fake.current == "main"
    assert not cuda.recording_lock.locked()
    assert len(captures(fake, 2)) == 1
    # The stream is free for others.
    with own_stream(GPU):
        assert fake.streams == 1


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


def test_without_graphs_nothing_is_recorded(fake):
    add = Adder(fake, enabled=False)
    for _ in range(8):
        add.graphed(torch.zeros(2))
    assert (add.count, fake.calls) == (8, [])


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


def at(address, nbytes):
    return SimpleNamespace(ctypes=SimpleNamespace(data=address), nbytes=nbytes)


def test_slabs_are_page_locked_once_and_when_there_are_more(fake):
    pool = SimpleNamespace(_buffers=[(4096, 8192)], slab_growth=0)
    to_device = HostToDevice(GPU, pool)
    assert to_device._page_locked(at(4096, 100))
    assert not to_device._page_locked(at(4096, 9000))
    assert not to_device._page_locked(at(20000, 100))
    assert fake.calls == [("lock", 4096, 8192)]
    pool._buffers.append((16384, 8192))
    pool.slab_growth = 1
    assert to_device._page_locked(at(20000, 100))
    assert fake.calls == [("lock", 4096, 8192), ("lock", 16384, 8192)]


def test_failing_to_page_lock_is_said_once(fake, caplog):
    fake.register_error = 2
    to_device = HostToDevice(
        GPU, SimpleNamespace(_buffers=[(4096, 8192)], slab_growth=0)
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not to_device._page_locked(at(4096, 100))
    assert len(caplog.records) == 1
    assert "page-locking" in caplog.text
    # Or the next kernel would raise it.
    assert fake.calls == [("lock", 4096, 8192), "forget the error"]
