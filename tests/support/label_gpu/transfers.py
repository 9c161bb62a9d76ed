"""Copies between page-locked memory and the device, which run while the host goes on.

Until the host has waited for a copy to the device, it must not change the source. Until
it has waited for a copy to the host, the result has not arrived: here the memory has
meaningless bytes until then.
"""

from __future__ import annotations

import bisect
import ctypes
from typing import NamedTuple

from torch import Tensor

from .order import Order

_MEANINGLESS = 0xA5


class _Copy(NamedTuple):
    """A copy that may still run."""

    stream: int
    number: int
    address: int
    data: bytes
    to_host: bool


class Transfers:
    """Page-locked memory, and the copies that the host has not waited for."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._locked: dict[int, int] = {}  # slabs: their begin and size
        # Of pin_memory, by address; kept, so no address comes twice.
        self._own: dict[int, Tensor] = {}
        self._addresses: list[int] = []  # in order
        self._running: list[_Copy] = []
        order.on_wait.append(self.finish)

    def lock(self, start: int, size: int, flags: int = 0) -> int:
        """cudaHostRegister."""
        self._locked[start] = size
        return 0

    def unlock(self, start: int) -> int:
        """cudaHostUnregister."""
        self.finish()
        size = self._locked.pop(start)
        if any(start <= copy.address < start + size for copy in self._running):
            self._order.report("host", "memory is unlocked that is still copied")
        return 0

    def own(self, tensor: Tensor) -> Tensor:
        """Page-locked memory: a CPU tensor, from the allocator."""
        address = tensor.untyped_storage().data_ptr()
        if address not in self._own:
            self._own[address] = tensor
            bisect.insort(self._addresses, address)
        return tensor

    def is_locked(self, tensor: Tensor) -> bool:
        """Whether a CPU tensor lies in page-locked memory."""
        begin = tensor.data_ptr()
        end = begin + tensor.numel() * tensor.element_size()
        slabs = any(at <= begin and end <= at + n for at, n in self._locked.items())
        return slabs or self._in_own(begin)

    def _in_own(self, address: int) -> bool:
        """Whether an address is in memory of `own`."""
        before = bisect.bisect_right(self._addresses, address)
        if not before:
            return False
        begin = self._addresses[before - 1]
        return address < begin + self._own[begin].untyped_storage().nbytes()

    def begin(self, stream: int, memory: Tensor, *, to_host: bool) -> None:
        """A copy begins of, or to, a contiguous CPU tensor; its launch is the last."""
        address, size = memory.data_ptr(), memory.numel() * memory.element_size()
        if not size:
            return
        data = ctypes.string_at(address, size)
        if to_host:
            ctypes.memset(address, _MEANINGLESS, size)
        number = self._order.streams[stream][stream]
        self._running.append(_Copy(stream, number, address, data, to_host))

    def finish(self) -> None:
        """Ends the copies that this host thread has waited for."""
        with self._order.lock:
            known, running = self._order.host.clock, self._running
            self._running = []
            for copy in running:
                if known.get(copy.stream, 0) < copy.number:
                    self._running.append(copy)
                elif copy.to_host:
                    ctypes.memmove(copy.address, copy.data, len(copy.data))
                elif ctypes.string_at(copy.address, len(copy.data)) != copy.data:
                    name = self._order.launches[copy.number].name
                    self._order.report(
                        "host",
                        f"the host has changed memory before {name} had copied it",
                        copy.number,
                    )

    def check_read(self, name: str, tensors: list[Tensor]) -> None:
        """The host reads CPU tensors: what is copied there must have arrived."""
        if not self._running or name == "aten::detach":
            return
        for tensor in tensors:
            begin = tensor.data_ptr()
            end = begin + tensor.numel() * tensor.element_size()
            for copy in self._running:
                overlap = begin < copy.address + len(copy.data) and copy.address < end
                if copy.to_host and overlap:
                    before = self._order.launches[copy.number].name
                    self._order.report(
                        "host", f"{name} reads what {before} still copies to the host"
                    )
