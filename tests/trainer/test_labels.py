"""The GPU of labels itself (tests/support/label_gpu): right and wrong uses of it.

Each wrong use is reported, and no right one is.
"""

import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from label_gpu.client import on_label_gpu

from trainer.machine.cuda import HostToDevice
from trainer.rollout import frames as store
from trainer.rollout.frames import FrameStore

GPU = torch.device("cuda")


def kept(values, _alive=[]):  # noqa: B006
    """A tensor of the device that lasts, and for which no stream has to wait."""
    _alive.append(torch.as_tensor(values).to(GPU))
    torch.cuda.synchronize()
    return _alive[-1]


def fill(stream, tensor):
    """Writes in a stream; returns the event of the end."""
    with torch.cuda.stream(stream):
        tensor.fill_(1.0)
        return stream.record_event()


def two():
    """Two streams."""
    return torch.cuda.Stream(), torch.cuda.Stream()


@on_label_gpu("race")
def test_a_race_without_a_wait():
    tensor = kept(torch.zeros(4))
    for stream in two():
        fill(stream, tensor)


@on_label_gpu()
def test_an_event_is_waited_for():
    (one, other), tensor = two(), kept(torch.zeros(4))
    other.wait_event(fill(one, tensor))
    fill(other, tensor)


@on_label_gpu("race")
def test_a_race_with_work_after_the_event():
    (one, other), tensor = two(), kept(torch.zeros(4))
    event = fill(one, tensor)
    fill(one, tensor)
    other.wait_event(event)
    fill(other, tensor)


@on_label_gpu()
def test_rows_are_separate():
    (one, other), tensor = two(), kept(torch.zeros(6, 3))
    first, last = kept([0, 2]), kept([1, 5])
    with torch.cuda.stream(one):
        tensor[first] = 1.0
    with torch.cuda.stream(other):
        tensor[last] = tensor[last] + 1.0
        tensor[3:5].fill_(2.0)


@on_label_gpu()
def test_columns_are_separate():
    (one, other), tensor = two(), kept(torch.zeros(12, 3)).view(3, 4, 3)
    first, last = kept([0, 2]), kept([1, 3])
    with torch.cuda.stream(one):
        tensor[:, first] = 1.0
    with torch.cuda.stream(other):
        tensor.index_select(1, last)
        tensor[0, last] = 2.0


@on_label_gpu("race")
def test_a_race_of_one_row():
    (one, other), tensor = two(), kept(torch.zeros(6, 3))
    first, last = kept([0, 2]), kept([2, 5])
    with torch.cuda.stream(one):
        tensor[first] = 1.0
    with torch.cuda.stream(other):
        tensor.index_select(0, last)


@on_label_gpu("use after free")
def test_a_use_after_free():
    other, tensor = torch.cuda.Stream(), torch.zeros(4, device=GPU)
    other.wait_stream(torch.cuda.current_stream())
    fill(other, tensor)
    del tensor


@on_label_gpu()
def test_memory_is_announced():
    other, tensor = torch.cuda.Stream(), torch.zeros(4, device=GPU)
    other.wait_stream(torch.cuda.current_stream())
    fill(other, tensor)
    tensor.record_stream(other)
    del tensor


def recorded():
    """A graph of 2 x + 1, and its x and result."""
    given, result = (torch.zeros(2, device=GPU) for _ in range(2))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        result.copy_(given * 2 + 1)
        graph.capture_end()
    return graph, given, result


@on_label_gpu("use after free")
def test_a_use_after_free_of_a_graph():
    graph, *_ = recorded()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.replay()
    graph.reset()


@on_label_gpu("use after free")
def test_a_graph_reads_memory_that_is_gone():
    graph, given, _ = recorded()
    del given
    graph.replay()


@on_label_gpu()
def test_a_graph_is_replayed():
    graph, given, result = recorded()
    assert result.tolist() == [0.0, 0.0]
    given.fill_(3.0)
    graph.replay()
    assert result.tolist() == [7.0, 7.0]


@on_label_gpu("capture")
def test_a_recording_of_a_mask():
    tensor, graph = torch.ones(4, device=GPU), torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="not permitted"):
            tensor[tensor > 0]


@on_label_gpu("device")
def test_an_index_of_the_host():
    torch.zeros(4, device=GPU)[torch.tensor([1])]


@on_label_gpu("host")
def test_the_host_changes_what_is_copied():
    source = torch.ones(4).pin_memory()
    source.to(GPU, non_blocking=True)
    source.zero_()
    torch.cuda.synchronize()


@on_label_gpu()
def test_the_host_changes_a_source_after_the_copy():
    source = torch.ones(4).pin_memory()
    source.to(GPU, non_blocking=True)
    torch.cuda.synchronize()
    source.zero_()
    torch.cuda.synchronize()


@on_label_gpu("host")
def test_the_host_changes_a_part_of_a_buffer():
    buffer = torch.zeros(16, dtype=torch.uint8, pin_memory=True).numpy()
    target = kept(torch.zeros(4, dtype=torch.uint8))
    target.copy_(torch.from_numpy(buffer[4:8]), non_blocking=True)
    buffer[:4] = 1
    buffer[7] = 1
    torch.cuda.synchronize()


@on_label_gpu("host")
def test_the_host_reads_too_early():
    result = torch.ones(4, device=GPU).to("cpu", non_blocking=True)
    assert result.sum().item() != 4.0
    torch.cuda.synchronize()


@on_label_gpu()
def test_the_host_reads_after_the_event():
    target = torch.empty(4, pin_memory=True)
    target.copy_(torch.ones(4, device=GPU), non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert target.tolist() == [1.0] * 4


def of_a_thread(wait):
    """Another thread writes, and this one writes when it is told, in its own stream."""
    tensor, changed, written = kept(torch.zeros(4)), threading.Condition(), []

    def work():
        stream = torch.cuda.Stream()
        fill(stream, tensor)
        wait(stream)
        with changed:
            written.append(1)
            changed.notify()

    thread = threading.Thread(target=work)
    thread.start()
    with changed:
        changed.wait_for(lambda: written)
    fill(torch.cuda.Stream(), tensor)
    thread.join()


@on_label_gpu()
def test_a_thread_hands_over():
    of_a_thread(lambda stream: stream.synchronize())


@on_label_gpu("race")
def test_a_race_with_a_thread():
    of_a_thread(lambda stream: None)


def grow_a_store():
    """One thread makes the store larger while the stream of another reads it."""
    frames_of = FrameStore(2, 4, 5, (4, 36, 36), 4, GPU)
    learner = torch.cuda.Stream()
    with torch.cuda.stream(learner):
        learner.wait_stream(torch.cuda.default_stream())
        frames, _ = frames_of.both()
        frames.sum()
    place = np.arange(2), np.arange(2), np.ones(2, bool)

    def grow():
        old = id(frames_of.frames)
        with torch.cuda.stream(torch.cuda.Stream()):
            while id(frames_of.frames) == old:
                frames_of.place(*place)

    thread = threading.Thread(target=grow)
    thread.start()
    while thread.is_alive():  # and learn nothing of the device, as join would
        time.sleep(0.01)
    del frames


@on_label_gpu()
def test_a_store_grows():
    grow_a_store()


@on_label_gpu("use after free")
def test_a_store_grows_and_who_reads_it_does_not_announce_it():
    store.use_here = lambda device, *tensors: None
    grow_a_store()


@on_label_gpu()
def test_an_array_is_held_until_it_is_copied():
    to_device = HostToDevice(GPU, None)
    array = np.arange(4, dtype=np.uint8)
    held, copy = weakref.ref(array), to_device(array)
    del array
    assert held() is not None
    assert copy.tolist() == [0, 1, 2, 3]  # which waits
    to_device(np.zeros(1, np.uint8))
    assert held() is None
    to_device.close()


def slab_and_copy(part):
    """A slab of a pool, what copies it, and the copy of a part."""
    slab = np.arange(16, dtype=np.uint8)
    pool = SimpleNamespace(_buffers=[(slab.ctypes.data, slab.nbytes)], slab_growth=0)
    to_device = HostToDevice(GPU, pool)
    return slab, to_device, to_device(slab[part])


@on_label_gpu()
def test_a_slab_is_copied_in_place():
    _, to_device, copy = slab_and_copy(slice(4, 8))
    to_device.close()  # waits before it unlocks
    assert copy.tolist() == [4, 5, 6, 7]


@on_label_gpu("host")
def test_the_host_reuses_a_slab_too_early():
    slab, to_device, copy = slab_and_copy(slice(0, 16))
    slab[:] = 0
    to_device.close()
    assert copy.tolist() == list(range(16))


@on_label_gpu()
def test_gradients_are_those_of_a_cpu():
    results = []
    for device in ("cpu", "cuda"):
        x = torch.arange(6.0).view(2, 3).to(device).requires_grad_()
        (x.softmax(-1)[:, 1] * x.sum(0)[:2]).sum().backward()
        results.append(x.grad.tolist())
    assert results[0] == results[1]
