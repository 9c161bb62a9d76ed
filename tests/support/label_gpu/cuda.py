"""What the trainer uses of torch.cuda, for tensors that have only the label cuda:0."""

import contextlib
import copy
import ctypes
from types import SimpleNamespace

import torch

from . import memory, operators, order, threads, transfers
from .operators import GPU


class Graph:
    """Operators that are recorded instead of run."""

    def __init__(self):
        self.blocks, self.operations = [], []
        self.broken, self._before = False, {}

    def capture_begin(self, pool=None, capture_error_mode=""):
        if order.host.stream is order.default:
            raise RuntimeError("a recording needs another stream than the default one")
        order.host.graph = self

    def keep(self, written):
        """Keeps what a recorded operator would write: it must not run yet."""
        for tensor in written:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._before:
                self._before[storage._cdata] = storage, storage.clone()

    def capture_end(self):
        recording, order.host.graph = order.host.graph is self, None
        for storage, before in self._before.values():
            storage.copy_(before, False)
        self._before.clear()
        if self.broken or not recording:
            raise RuntimeError("operation failed due to a previous error in capture")

    def replay(self):
        operators.replay(self.operations)

    def reset(self):
        self.operations.clear()
        blocks, self.blocks = self.blocks, []
        memory.end_graph(blocks)

    __del__ = reset


class Generator(torch.Generator):
    """A generator of the CPU that says where it was asked for."""

    def __new__(cls, device="cpu"):
        self = super().__new__(cls)
        self._device = torch.device(device)
        return self

    @property
    def device(self):
        return GPU if self._device.type == "cuda" else self._device


@contextlib.contextmanager
def _stream(stream):
    before, order.host.stream = order.host.stream, stream
    try:
        yield
    finally:
        order.host.stream = before


def _synchronize(device=None):
    if order.host.graph is not None:
        order.report("capture", "waits for the device in a recording")
    order.count("waits", "synchronize")
    order.wait(*[stream.clock for stream in order.streams])


def _sleep(cycles):
    order.host.stream.ms += 3.0


_FUNCTIONS = {
    "_sleep": _sleep,
    "synchronize": _synchronize,
    "Stream": order.Stream,
    "Event": order.Event,
    "stream": _stream,
    "current_stream": lambda device=None: order.host.stream,
    "default_stream": lambda device=None: order.default,
    "CUDAGraph": Graph,
    "graph_pool_handle": object,
    "get_rng_state": lambda device=None: torch.get_rng_state(),
    "cudart": lambda: SimpleNamespace(
        cudaHostRegister=transfers.lock, cudaHostUnregister=transfers.unlock
    ),
}
_CONSTANT = {
    "is_available": True, "is_initialized": True, "is_bf16_supported": True,
    "get_device_name": "a GPU of labels", "get_device_capability": (9, 0),
    "mem_get_info": (2**36, 2**36), "_lazy_init": None, "set_device": None,
    "set_rng_state": None, "empty_cache": None,
}  # fmt: skip


@contextlib.contextmanager
def thread_mode():
    """A thread whose operators are recorded; backward passes stay in it."""
    torch.autograd.set_multithreading_enabled(False)
    with operators.Labels():
        yield


def install(library):
    """Gives this process the device of `build.load`, for code in `thread_mode`."""
    global _died
    _died = ctypes.CFUNCTYPE(None, ctypes.c_int64)(memory.died)  # C++ does not keep it
    library.set_on_death(_died)
    vars(torch.cuda).update(_FUNCTIONS)
    for name, value in _CONSTANT.items():
        setattr(torch.cuda, name, lambda *of, _value=value, **options: _value)
    _replace_what_has_no_operator()
    threads.follow(thread_mode)


def _replace_what_has_no_operator():
    """Replaces what PyTorch does in C++, unseen by the mode."""
    of, tensor = torch.Tensor, torch.tensor
    deepcopy, storage_cpu = of.__deepcopy__, torch.UntypedStorage.cpu

    def make(data, *, device=None, **options):
        made = tensor(data, **options)
        return made if device is None else made.to(device)

    def copied(self, memo):
        if not self.is_cuda:
            return deepcopy(self, memo)
        new = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            new = torch.nn.Parameter(new, self.requires_grad)
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        memo[id(self)] = new
        return new

    def indexed(function):
        """Lists in an index become tensors of the device, which copies them there."""

        def listed(key, device):
            if isinstance(key, tuple):
                return tuple(listed(part, device) for part in key)
            return make(key, device=device) if isinstance(key, list) else key

        return lambda self, key, *of: function(self, listed(key, self.device), *of)

    def saved(self):
        if self.device.type != "cuda":
            return storage_cpu(self)
        order.host.stream.synchronize()
        new = torch.UntypedStorage(self.nbytes())
        ctypes.memmove(new.data_ptr(), self.data_ptr(), self.nbytes())
        return new

    of.__deepcopy__ = copied
    of.__getitem__, of.__setitem__ = map(indexed, (of.__getitem__, of.__setitem__))
    of.record_stream = lambda self, on: memory.block_of(self).users.add(on.number)
    of.pin_memory = lambda self, *device: transfers.page_locked(self.clone())
    torch.UntypedStorage.cpu = saved
    vars(torch).update(tensor=make, Generator=Generator)
