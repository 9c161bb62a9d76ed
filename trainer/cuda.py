"""What only a GPU needs: transfers, order between streams, recorded graphs.

On a CPU everything here is a plain call or nothing at all, so the rest of the
trainer is written once.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_logger = logging.getLogger(__name__)

# PyTorch records one graph at a time in a process.
_recording = threading.Lock()

# torch.cuda is not fully typed; Any keeps the checker out of it.
_cuda: Any = torch.cuda


def wait_for_device(device: torch.device) -> None:
    """Waits for all streams, and for a recording that another thread makes."""
    if device.type == "cuda":
        with _recording:
            _cuda.synchronize(device)


def own_stream(device: torch.device) -> AbstractContextManager[Any]:
    """Work inside the `with` block is ordered by a new stream; GPU only.

    It begins after all that the current stream has been given, such as weights.
    """
    if device.type != "cuda":
        return nullcontext()
    stream = _cuda.Stream(device)
    stream.wait_stream(_cuda.current_stream(device))
    context: AbstractContextManager[Any] = _cuda.stream(stream)
    return context


class Fence:
    """Makes the work of one stream wait for that of another, never the host."""

    def __init__(self, device: torch.device) -> None:
        """Is nothing at all unless the device is a GPU."""
        self._device = device
        self._events: deque[Any] | None = deque() if device.type == "cuda" else None

    def signal(self) -> None:
        """Marks what the current stream has been given so far."""
        if self._events is not None:
            event = _cuda.Event()
            event.record(_cuda.current_stream(self._device))
            self._events.append(event)

    def wait(self) -> None:
        """Lets the current stream go on only when all marks are reached."""
        while self._events:
            _cuda.current_stream(self._device).wait_event(self._events.popleft())


class Graphed:
    """A function of tensors that a GPU records once and then replays.

    Kernels of small networks are shorter than the time a host needs to launch
    them; a graph is one launch. The function must read and write the same memory
    at every call, and only tensors: shapes, dtypes and everything else that it
    looks at are those of the recording. Calls with other shapes, and all calls
    where graphs are off, run it directly.

    The first calls run directly too: they are real work, and let libraries and
    optimisers allocate what they keep. What a call returns is overwritten by the
    next one.
    """

    _WARM_UP = 3

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        enabled: bool,
        generator: torch.Generator | None = None,
    ) -> None:
        """Wraps `function(*tensors)`.

        Args:
            function: returns tensors, in any nesting of tuples, or None.
            name: for messages.
            enabled: whether to record; the device must be a GPU then.
            generator: of random numbers it draws, on that device.
        """
        self._function = function
        self._name = name
        self._enabled = enabled
        self._generator = generator
        self._calls = 0
        self._graph: Any = None
        self._inputs: tuple[Tensor, ...] = ()
        self._output: Any = None

    def __call__(self, *tensors: Tensor) -> Any:
        """Runs or replays."""
        if not self._enabled:
            return self._function(*tensors)
        if self._graph is None:
            self._calls += 1
            if self._calls <= self._WARM_UP:
                return self._function(*tensors)
            if not self._record(tensors):
                return self._function(*tensors)
        if [t.shape for t in tensors] != [t.shape for t in self._inputs]:
            return self._function(*tensors)
        for own, given in zip(self._inputs, tensors, strict=True):
            own.copy_(given)
        self._graph.replay()
        return self._output

    def reset(self) -> None:
        """Forgets the recording: memory that it uses has moved."""
        self._graph, self._output, self._calls = None, None, 0

    def _record(self, tensors: tuple[Tensor, ...]) -> bool:
        """Captures the function; where that fails, says so and never tries again."""
        try:
            self._inputs = tuple(tensor.clone() for tensor in tensors)
            graph = _cuda.CUDAGraph()
            if self._generator is not None:
                graph.register_generator_state(self._generator)
            # Another thread may be collecting: only this one's calls matter.
            with _recording, _cuda.graph(graph, capture_error_mode="thread_local"):
                self._output = self._function(*self._inputs)
            self._graph = graph
        except RuntimeError as error:
            self._enabled = False
            _logger.warning(
                "no CUDA graph of %s, it runs without (%s); --no-cuda-graphs hides "
                "this message",
                self._name,
                str(error).partition("\n")[0],
            )
        return self._enabled


def compiled(function: Callable[..., Any], *, name: str) -> Callable[..., Any]:
    """torch.compile, or the function itself where that fails; the log says so.

    Args:
        function: of tensors and numbers.
        name: for the message.
    """
    fast: Callable[..., Any] | None = None
    works = True

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal fast, works
        if works:
            try:
                # Not earlier: where compiling is not supported, this raises.
                fast = fast or torch.compile(function, dynamic=False)
                return fast(*args, **kwargs)
            except Exception as error:
                # Compilers fail in dozens of types; the call below tells whether
                # it was the function itself.
                works = False
                _logger.warning(
                    "torch.compile of %s failed, it runs without (%s)",
                    name,
                    str(error).partition("\n")[0],
                )
        return function(*args, **kwargs)

    return call


class Stage:
    """Brings the pool's arrays to the device.

    On a CPU a NumPy array becomes a tensor on the same memory. On CUDA it is
    copied on a stream of its own from page-locked memory, the compute stream
    waits for the copy's event, and the array is held until that event fires, so
    that the pool cannot recycle the slab under a running copy. Slabs the pool
    offers (`_buffers`) are page-locked in place, once, and again when it had to
    make more (`slab_growth`); other arrays go through page-locked copies.
    """

    def __init__(self, device: torch.device, pool: Any) -> None:
        """Prepares the stream; `pool` may offer `_buffers` and `slab_growth`."""
        self.device = device
        self._pool = pool
        self._locked: dict[int, int] = {}
        self._growth: int | None = None
        self._may_lock = hasattr(pool, "_buffers")
        self._held: deque[tuple[Any, object]] = deque()
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = _cuda.Stream(device)

    def __call__(self, array: npt.NDArray[Any]) -> Tensor:
        """The array on the device; valid for work on the current stream."""
        if self._stream is None:
            return torch.from_numpy(_writable(array))
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
        # Allocated on the copy stream, read on this one: tell the allocator.
        result.record_stream(current)
        return result

    def _page_locked(self, array: npt.NDArray[Any]) -> bool:
        """Whether the array lies in a slab that is page-locked by now."""
        self._lock_slabs()
        address = array.ctypes.data
        return any(
            start <= address and address + array.nbytes <= start + size
            for start, size in self._locked.items()
        )

    def _lock_slabs(self) -> None:
        """Page-locks the pool's slabs if there are new ones."""
        if not self._may_lock or self._growth == self._pool.slab_growth:
            return
        self._growth = self._pool.slab_growth
        for start, size in self._pool._buffers:
            if start in self._locked:
                continue
            error = int(_cuda.cudart().cudaHostRegister(start, size, 0))
            if error:
                _logger.warning(
                    "page-locking the observation slabs failed (cudaError %d): they "
                    "are copied through page-locked memory instead, which is slower; "
                    "a higher limit of locked memory (ulimit -l) may help",
                    error,
                )
                self._may_lock = False
                return
            self._locked[start] = size

    def close(self) -> None:
        """Waits for running copies and unlocks the slabs."""
        if self._stream is None:
            return
        self._stream.synchronize()
        self._held.clear()
        for start in self._locked:
            _cuda.cudart().cudaHostUnregister(start)
        self._locked.clear()


def _writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Copies read-only memory, which torch cannot express and warns of."""
    return array if array.flags.writeable else np.array(array)
