"""What the trainer uses of torch.cuda, for tensors that have only the label cuda:0."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from . import build, threads
from .memory import Block, Memory
from .operators import Labels, Operation, is_label
from .order import Clock, Order, merge
from .transfers import Transfers

GPU = torch.device("cuda:0")


class _Current(threading.local):
    """The stream and the recording of a host thread."""

    stream: Stream | None = None
    graph: Graph | None = None


class Stream:
    """A stream of the device."""

    def __init__(self, cuda: Cuda, priority: int) -> None:
        self.number, self.priority, self.device = next(cuda.numbers), priority, GPU
        self._order = cuda.order
        self._order.streams[self.number] = {}

    def wait_event(self, event: Event) -> None:
        with self._order.lock:
            merge(self._order.streams[self.number], event.clock)

    def wait_stream(self, other: Stream) -> None:
        with self._order.lock:
            own = self._order.streams[self.number]
            merge(own, self._order.streams[other.number])
            merge(own, self._order.host.clock)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event(self._order)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self._order.count("waits", "synchronize")
        with self._order.lock:
            self._order.wait(self._order.streams[self.number])

    def query(self) -> bool:
        return self._order.knows(self._order.streams[self.number])


class _Streams:
    """torch.cuda.Stream of a device."""

    kind = Stream

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda

    def __call__(self, device: Any = None, priority: int = 0) -> Stream:
        return Stream(self._cuda, priority)


class Event:
    """A mark in a stream, reached as late as what the host knows allows."""

    current: Callable[[], Stream]

    def __init__(self, order: Order) -> None:
        self.clock: Clock = {}
        self._order = order

    def record(self, stream: Stream | None = None) -> None:
        with self._order.lock:
            stream = stream or Event.current()
            self.clock = dict(self._order.streams[stream.number])
            merge(self.clock, self._order.host.clock)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or Event.current()).wait_event(self)

    def query(self) -> bool:
        return self._order.knows(self.clock)

    def synchronize(self) -> None:
        self._order.count("waits", "synchronize")
        with self._order.lock:
            self._order.wait(self.clock)

    def elapsed_time(self, other: Event) -> float:
        return 1.0


class Graph:
    """Operators that are recorded instead of run."""

    def __init__(self, cuda: Cuda) -> None:
        self.blocks: list[Block] = []
        self.broken = False
        self._cuda = cuda
        self._operations: list[Operation] = []
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "") -> None:
        if self._cuda.current is self._cuda.default:
            raise RuntimeError("a recording needs another stream than the default one")
        self._cuda.thread.graph = self

    def keep(self, written: list[Tensor]) -> None:
        """Keeps what a recorded operator would write: it must not run yet."""
        for tensor in written:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._before:
                self._before[storage._cdata] = (storage, storage.clone())

    def add(self, operation: Operation) -> None:
        self._operations.append(operation)

    def capture_end(self) -> None:
        self._cuda.thread.graph = None
        for storage, before in self._before.values():
            storage.copy_(before, False)
        self._before.clear()
        if self.broken:
            raise RuntimeError("operation failed due to a previous error in capture")

    def replay(self) -> None:
        self._cuda.labels.replay(self._operations)

    def reset(self) -> None:
        self._operations.clear()
        blocks, self.blocks = self.blocks, []
        self._cuda.memory.end_graph(blocks)

    def __del__(self) -> None:
        self.reset()


class Generator(torch.Generator):
    """A generator of the CPU that says where it was asked for."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        self = super().__new__(cls)
        self._device = torch.device(device)
        return self

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:
        return GPU if self._device.type == "cuda" else self._device


class Cuda:
    """The device, its current streams, and all that is recorded of it."""

    def __init__(self) -> None:
        self.order = Order()
        self.memory = Memory(self.order)
        self.transfers = Transfers(self.order)
        self.died: Any = None  # what C++ calls when a block is free
        self.thread = _Current()
        self.numbers = itertools.count()
        self.default = Stream(self, 0)
        self.labels = Labels(self.order, self.memory, self.transfers, self)
        Event.current = lambda: self.current

    @property
    def current(self) -> Stream:
        """The current stream of this thread."""
        return self.thread.stream or self.default

    @property
    def graph(self) -> Graph | None:
        """What this thread records."""
        return self.thread.graph

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.thread.stream
        self.thread.stream = stream
        try:
            yield
        finally:
            self.thread.stream = before

    def synchronize(self, device: Any = None) -> None:
        if self.graph is not None:
            self.order.report("capture", "waits for the device in a recording")
        self.order.count("waits", "synchronize")
        with self.order.lock:
            for clock in list(self.order.streams.values()):
                self.order.wait(clock)

    def functions(self) -> dict[str, Any]:
        """The attributes of torch.cuda."""
        properties = SimpleNamespace(
            name="a GPU of labels", total_memory=2**36, multi_processor_count=1,
            major=9, minor=0, uuid="0", pci_domain_id=0, pci_bus_id=0, pci_device_id=0,
        )  # fmt: skip
        return {
            "_lazy_init": lambda: None,
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": lambda device: None,
            "device": lambda device: contextlib.nullcontext(),
            "get_device_capability": lambda device=None: (9, 0),
            "get_device_name": lambda device=None: properties.name,
            "get_device_properties": lambda device=None: properties,
            "mem_get_info": lambda device=None: (2**36, 2**36),
            "is_bf16_supported": lambda *args, **options: True,
            "get_rng_state": lambda device=None: torch.get_rng_state(),
            "set_rng_state": lambda state, device=None: None,
            "empty_cache": lambda: None,
            "_sleep": lambda cycles: None,
            "synchronize": self.synchronize,
            "Stream": _Streams(self),
            "Event": lambda **options: Event(self.order),
            "stream": self.stream,
            "current_stream": lambda device=None: self.current,
            "default_stream": lambda device=None: self.default,
            "graph_pool_handle": object,
            "CUDAGraph": lambda: Graph(self),
            "is_current_stream_capturing": lambda: self.graph is not None,
            "cudart": lambda: SimpleNamespace(
                cudaHostRegister=self.transfers.lock,
                cudaHostUnregister=self.transfers.unlock,
            ),
        }

    @contextlib.contextmanager
    def thread_mode(self) -> Iterator[None]:
        """A thread whose operators are recorded; backward passes stay in it."""
        torch.autograd.set_multithreading_enabled(False)
        with self.labels:
            yield


def install(library: Any) -> Cuda:
    """Gives this process the device of `build.load`, until it ends.

    Call this before the trainer is imported, and run it inside `thread_mode`.
    """
    cuda = Cuda()
    # C++ does not keep the function alive.
    cuda.died = build.Died(cuda.memory.died)
    library.set_on_death(cuda.died)
    for name, function in cuda.functions().items():
        setattr(torch.cuda, name, function)
    _patch_tensors(cuda)
    threads.follow(cuda.order, cuda.thread_mode)
    return cuda


def _patch_tensors(cuda: Cuda) -> None:
    """Replaces what PyTorch does in C++ without an operator."""
    of: Any = torch.Tensor
    tensor, deepcopy = torch.tensor, of.__deepcopy__

    def make(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        made = tensor(data, **options)
        return made if device is None else made.to(device)

    def copied(self: Tensor, memo: Any) -> Tensor:
        if not is_label(self):
            return deepcopy(self, memo)  # type: ignore[no-any-return]
        new = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            new = torch.nn.Parameter(new, self.requires_grad)
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        memo[id(self)] = new
        return new

    def record_stream(self: Tensor, stream: Stream) -> None:
        cuda.memory.block(self).users.add(stream.number)

    def pinned(self: Tensor, *device: Any) -> Tensor:
        return cuda.transfers.own(self.clone())

    getitem, setitem = of.__getitem__, of.__setitem__

    def listed(key: Any, device: torch.device) -> Any:
        """Lists in an index become tensors of the device, which copies them there."""
        if isinstance(key, tuple):
            return tuple(listed(part, device) for part in key)
        return make(key, device=device) if isinstance(key, list) else key

    def get(self: Tensor, key: Any) -> Tensor:
        return getitem(self, listed(key, self.device))  # type: ignore[no-any-return]

    def put(self: Tensor, key: Any, value: Any) -> None:
        setitem(self, listed(key, self.device), value)

    storage_cpu = torch.UntypedStorage.cpu

    def saved(self: torch.UntypedStorage) -> torch.UntypedStorage:
        if self.device.type != "cuda":
            return storage_cpu(self)
        cuda.current.synchronize()
        new = torch.UntypedStorage(self.nbytes())
        ctypes.memmove(new.data_ptr(), self.data_ptr(), self.nbytes())
        return new

    of.__deepcopy__, of.record_stream = copied, record_stream
    torch.UntypedStorage.cpu = saved  # type: ignore[method-assign]
    of.__getitem__, of.__setitem__ = get, put
    of.pin_memory = pinned
    of.is_pinned = lambda self, *device: cuda.transfers.is_locked(self)
    vars(torch).update(tensor=make, Generator=Generator)
