"""Short uses of the device, right ones and wrong ones, that test the labels.

tests/trainer/test_label_gpu.py has what must be reported of each.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from trainer.machine.cuda import HostToDevice
from trainer.rollout.frames import FrameStore

_cuda: Any = torch.cuda


_alive: list[torch.Tensor] = []


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the device that lasts, and for which no stream has to wait."""
    _alive.append(tensor.to("cuda"))
    _cuda.synchronize()
    return _alive[-1]


def _fill(stream: Any, tensor: torch.Tensor, value: float = 1.0) -> Any:
    """Writes in a stream; returns the event of the end."""
    with _cuda.stream(stream):
        tensor.fill_(value)
        event = _cuda.Event()
        event.record()
    return event


def race_without_a_wait() -> None:
    one, two = _cuda.Stream(), _cuda.Stream()
    tensor = _kept(torch.zeros(4))
    _fill(one, tensor)
    _fill(two, tensor)


def event_is_waited_for() -> None:
    one, two = _cuda.Stream(), _cuda.Stream()
    tensor = _kept(torch.zeros(4))
    two.wait_event(_fill(one, tensor))
    _fill(two, tensor)


def race_with_work_after_the_event() -> None:
    one, two = _cuda.Stream(), _cuda.Stream()
    tensor = _kept(torch.zeros(4))
    event = _fill(one, tensor)
    _fill(one, tensor)
    two.wait_event(event)
    _fill(two, tensor)


def rows_are_separate() -> None:
    one, two = _cuda.Stream(), _cuda.Stream()
    tensor = _kept(torch.zeros(6, 3))
    first, last = (_kept(torch.tensor(rows)) for rows in ([0, 2], [1, 5]))
    with _cuda.stream(one):
        tensor[first] = 1.0
    with _cuda.stream(two):
        tensor[last] = tensor[last] + 1.0
        tensor[3:5].fill_(2.0)


def columns_are_separate() -> None:
    one, two = _cuda.Stream(), _cuda.Stream()
    tensor = _kept(torch.zeros(12, 3)).view(3, 4, 3)
    first, last = (_kept(torch.tensor(columns)) for columns in ([0, 2], [1, 3]))
    with _cuda.stream(one):
        tensor[:, first] = 1.0
    with _cuda.stream(two):
        tensor.index_select(1, last)
        tensor[0, last] = 2.0


def host_changes_a_part_of_a_buffer() -> None:
    buffer = torch.zeros(16, dtype=torch.uint8, pin_memory=True).numpy()
    target = _kept(torch.zeros(4, dtype=torch.uint8))
    target.copy_(torch.from_numpy(buffer[4:8]), non_blocking=True)
    buffer[:4] = 1
    buffer[7] = 1
    _cuda.synchronize()


def race_of_one_row() -> None:
    one, two = _cuda.Stream(), _cuda.Stream()
    tensor = _kept(torch.zeros(6, 3))
    first, last = (_kept(torch.tensor(rows)) for rows in ([0, 2], [2, 5]))
    with _cuda.stream(one):
        tensor[first] = 1.0
    with _cuda.stream(two):
        tensor.index_select(0, last)


def use_after_free() -> None:
    other = _cuda.Stream()
    tensor = torch.zeros(4, device="cuda")
    other.wait_stream(_cuda.current_stream())
    _fill(other, tensor)
    del tensor


def memory_is_announced() -> None:
    other = _cuda.Stream()
    tensor = torch.zeros(4, device="cuda")
    other.wait_stream(_cuda.current_stream())
    _fill(other, tensor)
    tensor.record_stream(other)
    del tensor


def use_after_free_of_a_graph() -> None:
    graph, _ = _recorded()
    other = _cuda.Stream()
    with _cuda.stream(other):
        graph.replay()
    graph.reset()


def graph_is_replayed() -> None:
    graph, (given, result) = _recorded()
    assert result.tolist() == [0.0, 0.0]
    given.fill_(3.0)
    graph.replay()
    assert result.tolist() == [7.0, 7.0]


def _recorded() -> tuple[Any, tuple[torch.Tensor, torch.Tensor]]:
    """A graph of 2 x + 1, and its x and result."""
    given, result = (torch.zeros(2, device="cuda") for _ in range(2))
    graph, stream = _cuda.CUDAGraph(), _cuda.Stream()
    _cuda.synchronize()
    with _cuda.stream(stream):
        graph.capture_begin()
        result.copy_(given * 2 + 1)
        graph.capture_end()
    return graph, (given, result)


def capture_of_a_mask() -> None:
    tensor = torch.ones(4, device="cuda")
    graph = _cuda.CUDAGraph()
    with _cuda.stream(_cuda.Stream()):
        graph.capture_begin()
        try:
            tensor[tensor > 0]
        except RuntimeError:
            return
    raise AssertionError("a mask was recorded")


def device_of_an_index() -> None:
    torch.zeros(4, device="cuda")[torch.tensor([1])]


def host_changes_what_is_copied() -> None:
    source = torch.ones(4).pin_memory()
    source.to("cuda", non_blocking=True)
    source.zero_()
    _cuda.synchronize()


def source_is_changed_after_the_copy() -> None:
    source = torch.ones(4).pin_memory()
    source.to("cuda", non_blocking=True)
    _cuda.synchronize()
    source.zero_()
    _cuda.synchronize()


def host_reads_too_early() -> None:
    result = torch.ones(4, device="cuda").to("cpu", non_blocking=True)
    assert result.sum().item() != 4.0
    _cuda.synchronize()


def host_reads_after_the_event() -> None:
    target = torch.empty(4, pin_memory=True)
    target.copy_(torch.ones(4, device="cuda"), non_blocking=True)
    event = _cuda.Event()
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert target.tolist() == [1.0] * 4


def thread_hands_over() -> None:
    _of_a_thread(lambda stream: stream.synchronize())


def race_with_a_thread() -> None:
    _of_a_thread(lambda stream: None)


def _of_a_thread(wait: Callable[[Any], None]) -> None:
    """Another thread writes, and this one writes when it is told, in its own stream."""
    tensor = _kept(torch.zeros(4))
    changed, written = threading.Condition(), []

    def work() -> None:
        stream = _cuda.Stream()
        _fill(stream, tensor)
        wait(stream)
        with changed:
            written.append(1)
            changed.notify()

    thread = threading.Thread(target=work)
    thread.start()
    with changed:
        changed.wait_for(lambda: written)
    _fill(_cuda.Stream(), tensor)
    thread.join()


def frames_of_a_store_that_grows() -> None:
    """One thread makes the store larger while the stream of another reads it."""
    device, shape = torch.device("cuda"), (4, 36, 36)
    store = FrameStore(2, 4, 5, shape, 4, device)
    learner = _cuda.Stream()
    with _cuda.stream(learner):
        learner.wait_stream(_cuda.default_stream())
        frames, _ = store.both()
        frames.sum()
    place = np.arange(2), np.arange(2), np.ones(2, bool)

    def grow() -> None:
        old = id(store.frames)
        with _cuda.stream(_cuda.Stream()):
            while id(store.frames) == old:
                store.place(*place)

    thread = threading.Thread(target=grow)
    thread.start()
    while thread.is_alive():  # and learn nothing of the device, as join would
        time.sleep(0.01)
    del frames


def array_is_held_until_it_is_copied() -> None:
    to_device = HostToDevice(torch.device("cuda"), None)
    array = np.arange(4, dtype=np.uint8)
    held, copy = weakref.ref(array), to_device(array)
    del array
    assert held() is not None
    assert copy.tolist() == [0, 1, 2, 3]  # which waits
    to_device(np.zeros(1, np.uint8))
    assert held() is None
    to_device.close()


def slab_is_copied_in_place() -> None:
    slab = np.arange(16, dtype=np.uint8)
    pool = SimpleNamespace(_buffers=[(slab.ctypes.data, slab.nbytes)], slab_growth=0)
    to_device = HostToDevice(torch.device("cuda"), pool)
    copy = to_device(slab[4:8])
    to_device.close()  # waits before it unlocks
    assert copy.tolist() == [4, 5, 6, 7]


def host_reuses_a_slab_too_early() -> None:
    slab = np.arange(16, dtype=np.uint8)
    pool = SimpleNamespace(_buffers=[(slab.ctypes.data, slab.nbytes)], slab_growth=0)
    to_device = HostToDevice(torch.device("cuda"), pool)
    copy = to_device(slab)
    slab[:] = 0
    to_device.close()
    assert copy.tolist() == list(range(16))


def gradients_are_those_of_a_cpu() -> None:
    results = []
    for device in ("cpu", "cuda"):
        x = torch.arange(6.0).view(2, 3).to(device).requires_grad_()
        (x.softmax(-1)[:, 1] * x.sum(0)[:2]).sum().backward()
        assert x.grad is not None
        results.append(x.grad.tolist())
    assert results[0] == results[1]


SCENARIOS: dict[str, Callable[[], None]] = {
    name: each
    for name, each in list(globals().items())
    if callable(each) and getattr(each, "__module__", "") == __name__
    if not name.startswith("_")
}
