"""Copies between page-locked memory and the device, which run while the host goes on.

Until the host has waited for a copy to the device, it must not change the source. Until
it has waited for a copy to the host, the result has not arrived: here the memory has
meaningless bytes until then.
"""

import ctypes
from collections import namedtuple

from . import order

_Copy = namedtuple("_Copy", "stream number address data to_host")
_locked = {}  # page-locked memory: begin and size
_kept = []  # tensors of page-locked memory, so that no address comes twice
_running = []  # copies that the host has not waited for


def lock(start, size, flags=0):
    """cudaHostRegister."""
    _locked[start] = size
    return 0


def unlock(start):
    """cudaHostUnregister."""
    _finish()
    size = _locked.pop(start)
    if any(start <= copy.address < start + size for copy in _running):
        order.report("host", "memory is unlocked that is still copied")
    return 0


def page_locked(tensor):
    """A CPU tensor of the allocator, whose memory counts as page-locked now."""
    storage = tensor.untyped_storage()
    lock(storage.data_ptr(), storage.nbytes())
    _kept.append(tensor)
    return tensor


def _extent(tensor):
    begin = tensor.data_ptr()
    return begin, begin + tensor.numel() * tensor.element_size()


def begin(memory, number, *, to_host):
    """A launch copies a CPU tensor, or copies to it; False: pageable memory."""
    address, end = _extent(memory)
    locked = any(at <= address and end <= at + n for at, n in list(_locked.items()))
    if not (locked and memory.is_contiguous()):
        return False
    data = ctypes.string_at(address, end - address)
    if to_host:
        ctypes.memset(address, 0xA5, len(data))
    _running.append(_Copy(order.host.stream.number, number, address, data, to_host))
    return True


def _finish():
    """Ends the copies that this host thread has waited for."""
    with order.lock:
        for copy in list(_running):
            if order.host.clock.get(copy.stream, 0) < copy.number:
                continue
            _running.remove(copy)
            if copy.to_host:
                ctypes.memmove(copy.address, copy.data, len(copy.data))
            elif ctypes.string_at(copy.address, len(copy.data)) != copy.data:
                name = order.launches[copy.number].name
                text = f"the host has changed memory before {name} had copied it"
                order.report("host", text, copy.number)


order.on_wait.append(_finish)


def check_read(name, tensors):
    """The host reads CPU tensors: what is copied there must have arrived."""
    arriving = [copy for copy in _running if copy.to_host]
    for tensor in tensors if arriving and name != "aten::detach" else ():
        start, end = _extent(tensor)
        for copy in arriving:
            if start < copy.address + len(copy.data) and copy.address < end:
                before = order.launches[copy.number].name
                text = f"{name} reads what {before} still copies to the host"
                order.report("host", text)
