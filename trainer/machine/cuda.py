"""CUDA: copies to the GPU, the order of work on its streams, and recorded graphs.

With a CPU as the device, the functions here call what they wrap, or do nothing. So
other modules need no separate code for CPUs and GPUs.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.machine.process import first_line

_logger = logging.getLogger(__name__)

#: Held while a graph is recorded: PyTorch records one at a time in a process, and a
#: wait for all streams in another thread would break the recording.
recording_lock = threading.Lock()

# torch.cuda is not fully typed; Any disables type checks for it.
_cuda: Any = torch.cuda

#: Priority of acting, for which all environments wait; the learner's is 0, after it.
ACTING = -1

# Free streams, by device and priority. PyTorch has 32 of each priority and then hands
# out the same ones again: work on one of them would end up in the recording of another
# user of that stream.
_free_streams: defaultdict[tuple[torch.device, int], list[Any]] = defaultdict(list)


def _take_stream(device: torch.device, priority: int = 0) -> Any:
    """A stream for exclusive use, until `_return_stream`."""
    try:
        return _free_streams[device, priority].pop()
    except IndexError:
        return _cuda.Stream(device, priority=priority)


def _return_stream(stream: Any, device: torch.device, priority: int = 0) -> None:
    """Frees a stream. The next user's work is queued behind the work on it."""
    _free_streams[device, priority].append(stream)


def wait_for_device(device: torch.device) -> None:
    """Waits for all streams, and for a recording in another thread."""
    if device.type == "cuda":
        with recording_lock:
            _cuda.synchronize(device)


@contextmanager
def own_stream(device: torch.device, priority: int = 0) -> Iterator[None]:
    """Runs the `with` block on another stream, after the work queued so far; GPU only.

    The device becomes the current one of the thread.
    """
    if device.type != "cuda":
        yield
        return
    if device.index is not None:
        _cuda.set_device(device)  # a new thread begins with GPU 0
    stream = _take_stream(device, priority)
    try:
        stream.wait_stream(_cuda.current_stream(device))
        with _cuda.stream(stream):
            yield
    finally:
        _return_stream(stream, device, priority)


def use_here(device: torch.device, *tensors: Any) -> None:
    """Announces that the current stream uses tensors of another stream; GPU only.

    PyTorch's allocator knows only the stream in which a tensor was made, and gives the
    memory of a dropped tensor to the next tensor of that stream, even while this stream
    still reads it. After the announcement it first waits for this stream.
    """
    if device.type == "cuda":
        stream = _cuda.current_stream(device)
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                tensor.record_stream(stream)


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copies tensors into others of their shapes: one launch for each data type.

    PyTorch would copy a list of several data types one by one.
    """
    pairs = defaultdict(list)
    for target, source in zip(targets, sources, strict=True):
        if source.numel():
            pairs[source.dtype].append((target, source))
    for same in pairs.values():
        if len(same) == 1:
            same[0][0].copy_(same[0][1])  # faster for a single large tensor
        else:
            into, given = zip(*same, strict=True)
            torch._foreach_copy_(list(into), list(given))


class Fence:
    """Makes one stream wait for the work of another, without blocking the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: deque[Any] | None = deque() if device.type == "cuda" else None

    def signal(self) -> None:
        """Marks all work queued on the current stream so far."""
        if self._events is not None:
            event = _cuda.Event()
            event.record(_cuda.current_stream(self._device))
            self._events.append(event)

    def wait(self) -> None:
        """Makes the current stream wait until all marks are reached."""
        while self._events:
            _cuda.current_stream(self._device).wait_event(self._events.popleft())


@dataclass
class _Recording:
    """The graph for tensors of certain shapes; `graph` is None before recording."""

    calls: int = 0
    graph: Any = None
    inputs: tuple[Tensor, ...] = ()
    output: Any = None


class Graphed:
    """A function of tensors that a GPU records once and then replays.

    Kernels of small networks are shorter than the time that a host needs to launch
    them; a graph is a single launch. The first calls run directly: they do real work,
    and let libraries and optimisers allocate their permanent memory. Each of the first
    few lists of shapes gets a graph; all other calls run directly, too.

    The function must read and write the same memory in every call, and must not draw
    random numbers: PyTorch up to 2.11 leaves a generator unusable if the recording of
    its draw fails. Each call overwrites the tensors that the previous call returned.

    Each function has its own stream: cuBLAS keeps one workspace per stream, whose
    address a graph contains, and graphs that share a workspace must not run at the same
    time (PyTorch issue 193402). The graphs of one function share their memory.

    Attributes:
        failure: why the last recording failed, in one line; "" if none failed.
    """

    _WARM_UP = 3
    _MOST_SHAPES = 4

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        device: torch.device,
        enabled: bool,
        priority: int = 0,
        quiet: bool = False,
    ) -> None:
        self.failure = ""
        self._quiet = quiet
        self._function = function
        self._name = name
        self._device = device
        self._enabled = enabled
        self._priority = priority
        self._stream: Any = None
        self._pool: Any = None
        self._recordings: dict[tuple[torch.Size, ...], _Recording] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        """Runs the function or replays its graph."""
        if not self._enabled:
            return self._function(*tensors)
        shapes = tuple(tensor.shape for tensor in tensors)
        recording = self._recordings.get(shapes)
        if recording is None:
            if len(self._recordings) == self._MOST_SHAPES:
                return self._function(*tensors)
            recording = self._recordings[shapes] = _Recording()
        recording.calls += 1
        if recording.calls <= self._WARM_UP:
            return self._function(*tensors)
        if recording.graph is None and not self._record(recording, tensors):
            return self._function(*tensors)
        copy_all(recording.inputs, tensors)
        recording.graph.replay()
        return recording.output

    @property
    def records(self) -> bool:
        """Whether calls are recorded; not after a failure or `close`."""
        return self._enabled

    @property
    def recorded(self) -> int:
        """Number of recorded graphs."""
        return sum(r.graph is not None for r in self._recordings.values())

    def reset(self) -> None:
        """Drops all recordings, after memory that the function uses has moved."""
        if self.recorded:
            # A graph must not run while it is freed, and no thread may record.
            wait_for_device(self._device)
        self._recordings.clear()
        self._pool = None  # PyTorch frees a pool together with its last graph

    def close(self) -> None:
        """Frees graphs and stream; later calls run directly."""
        self.reset()
        self._enabled = False
        if self._stream is not None:
            _return_stream(self._stream, self._device, self._priority)
            self._stream = None

    def _record(self, recording: _Recording, tensors: tuple[Tensor, ...]) -> bool:
        """Captures the function; a failure is logged, and later calls run directly."""
        try:
            recording.inputs = tuple(tensor.clone() for tensor in tensors)
            graph = _cuda.CUDAGraph()
            with recording_lock:
                if self._stream is None:
                    self._stream = _take_stream(self._device, self._priority)
                recording.output = self._capture(graph, recording.inputs)
            recording.graph = graph
        except Exception as error:
            # PyTorch, Triton and modules of users raise any type. If the function
            # fails without a graph also, the direct call raises its error.
            self.close()
            self.failure = first_line(error)
            if not self._quiet:
                _logger.warning(
                    "no CUDA graph of %s, so it runs without one (%s); "
                    "--no-cuda-graphs hides this message",
                    self._name,
                    self.failure,
                )
        return self._enabled

    def _capture(self, graph: Any, inputs: tuple[Tensor, ...]) -> Any:
        """Runs the function into a graph, as `torch.cuda.graph` does.

        Unlike this method, `torch.cuda.graph` leaves its stream current after a failed
        capture, and its memory pool open for all later allocations of the process.
        """
        _cuda.synchronize(self._device)
        _cuda.empty_cache()
        if self._pool is None:
            self._pool = _cuda.graph_pool_handle()
        with _cuda.stream(self._stream):
            # Another thread may be collecting, so check only calls of this thread.
            try:
                graph.capture_begin(self._pool, capture_error_mode="thread_local")
                output = self._function(*inputs)
            except BaseException:
                with suppress(Exception):  # the first error is the reason
                    self._end_capture(graph)
                raise
            self._end_capture(graph)
        return output

    def _end_capture(self, graph: Any) -> None:
        """Raises what PyTorch raises if the capture has failed."""
        try:
            graph.capture_end()
        except Exception:
            _close_pool(self._device, self._pool)
            raise


def _forget_error(device: torch.device) -> None:
    """Clears the last CUDA error, which the next kernel would raise again."""
    with suppress(RuntimeError):
        torch.zeros(1, device=device).add_(1)


def _close_pool(device: torch.device, pool: Any) -> None:
    """Ends the use of a memory pool whose capture has failed, if it was in use."""
    index = device.index if device.index is not None else _cuda.current_device()
    allocator: Any = torch._C
    # These functions are not documented; torch.cuda.use_mem_pool calls them. The first
    # raises if no capture uses the pool; it must then not be released once more.
    with suppress(AttributeError, RuntimeError):
        allocator._cuda_endAllocateToPool(index, pool)
        allocator._cuda_releasePool(index, pool)


def compiled(function: Callable[..., Any], *, name: str) -> Callable[..., Any]:
    """torch.compile of a function, or the function if that fails, with a warning."""
    fast: Callable[..., Any] | None = None
    works = True

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal fast, works
        if works:
            try:
                # Not earlier, because this raises if compilation is not supported.
                fast = fast or torch.compile(function, dynamic=False)
                return fast(*args, **kwargs)
            except Exception as error:
                # Compilers raise dozens of types. If the function failed, the call
                # below raises its error.
                works = False
                _logger.warning(
                    "torch.compile of %s failed, so it runs without (%s)",
                    name,
                    first_line(error),
                )
        return function(*args, **kwargs)

    return call


class Copies(Enum):
    """How `HostToDevice` copies to a GPU, the fastest way first."""

    IN_PLACE = "from page-locked slabs"
    PAGE_LOCKED = "through page-locked memory"
    PAGEABLE = "through pageable memory"


# How all transfers of this process copy to a device.
_copies: dict[torch.device, Copies] = {}


def set_copies(device: torch.device, copies: Copies) -> None:
    """Sets how every later `HostToDevice` of this device copies."""
    _copies[device] = copies


def copied_to(device: torch.device, tensor: Tensor) -> Tensor:
    """A copy of a small tensor of the host, on the current stream of the device.

    The host does not wait. PyTorch keeps the page-locked memory until it was read.
    """
    if device.type == "cuda" and _copies.get(device) is not Copies.PAGEABLE:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class HostToDevice:
    """Copies the pool's arrays to the device; on a CPU a tensor shares their memory.

    A separate stream copies from page-locked memory, and the compute stream waits for
    the copy. The array is held until then, so that the pool cannot reuse the slab. The
    slabs of the pool (`_buffers`) are page-locked in place, again after the pool has
    allocated more (`slab_growth`); other arrays go through page-locked copies. Copies
    through pageable memory are on the current stream, and the host waits for them.
    """

    def __init__(self, device: torch.device, pool: Any) -> None:
        """Prepares the stream; `pool` may have `_buffers` and `slab_growth`."""
        self.device = device
        self._pool = pool
        self._locked: dict[int, int] = {}
        self._growth: int | None = None
        copies = _copies.get(device, Copies.IN_PLACE)
        self._may_lock = copies is Copies.IN_PLACE and hasattr(pool, "_buffers")
        self._held: deque[tuple[Any, object]] = deque()
        self._stream: Any = None
        if device.type == "cuda" and copies is not Copies.PAGEABLE:
            self._stream = _take_stream(device)

    @property
    def locks_slabs(self) -> bool:
        """Whether the pool has slabs, and page-locking them has not failed so far."""
        return self._may_lock

    def __call__(self, array: npt.NDArray[Any]) -> Tensor:
        """The array on the device; valid for work on the current stream."""
        if self._stream is None:
            return torch.from_numpy(_writable(array)).to(self.device)
        while self._held and self._held[0][0].query():
            self._held.popleft()
        source: Tensor = torch.from_numpy(_writable(array))
        if not self._page_locked(array):
            source = source.pin_memory()
        with _cuda.stream(self._stream):
            result = source.to(self.device, non_blocking=True)
            copied = _cuda.Event()
            copied.record(self._stream)
        self._held.append((copied, (array, source)))
        current = _cuda.current_stream(self.device)
        current.wait_event(copied)
        # Allocated on the copy stream but used on this one: tell the allocator.
        result.record_stream(current)
        return result

    def _page_locked(self, array: npt.NDArray[Any]) -> bool:
        """Whether the array lies in a page-locked slab; locks the pool's new slabs."""
        if self._may_lock and self._growth != self._pool.slab_growth:
            self._growth = self._pool.slab_growth
            for start, size in self._pool._buffers:
                if start not in self._locked and not self._lock(start, size):
                    break
        address = array.ctypes.data
        return any(
            start <= address and address + array.nbytes <= start + size
            for start, size in self._locked.items()
        )

    def _lock(self, start: int, size: int) -> bool:
        """Page-locks a slab; a failure is logged, and later slabs are not tried."""
        if error := int(_cuda.cudart().cudaHostRegister(start, size, 0)):
            _logger.warning(
                "page-locking the observation slabs failed (cudaError %d): they "
                "are copied through page-locked memory instead, which is slower; "
                "a higher limit of locked memory (ulimit -l) may help",
                error,
            )
            self._may_lock = False
            _forget_error(self.device)
            return False
        self._locked[start] = size
        return True

    def close(self) -> None:
        """Waits for running copies and unlocks the slabs."""
        if self._stream is None:
            return
        self._stream.synchronize()
        self._held.clear()
        for start in self._locked:
            _cuda.cudart().cudaHostUnregister(start)
        self._locked.clear()
        _return_stream(self._stream, self.device)
        self._stream = None


def _writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A writable copy of read-only memory, which torch does not support."""
    return array if array.flags.writeable else np.array(array)
