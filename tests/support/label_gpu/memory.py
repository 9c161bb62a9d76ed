"""Blocks of the device's memory: who touched which rows, and who may still use them.

PyTorch's allocator gives a freed block to the next allocation of the stream in which it
was made. That is safe for the other streams that used the block only if the allocator
knows of them (`record_stream`), or if the block's stream or the host has waited.
"""

import itertools
from functools import reduce

import numpy as np
import torch

from . import order

_MOST_ROWS = 4096
_label, view_of, behind, _number = (
    getattr(torch.ops.label_gpu, name).default
    for name in ("label", "view_of", "memory", "block")
)
_numbers = itertools.count(1)
_blocks = {}


class Block:
    """The memory of one allocation, in rows: the pieces of its first dimension."""

    def __init__(self, tensor):
        self.stream, self.graph = order.host.stream.number, order.host.graph
        self.dead = False
        self.users = set()  # of record_stream
        self.nbytes = tensor.untyped_storage().nbytes()
        rows = tensor.shape[0] if tensor.ndim and tensor.is_contiguous() else 1
        self.row_bytes = max(1, self.nbytes // max(1, rows))
        self.row_bytes *= -(-rows // _MOST_ROWS) or 1
        self.rows = -(-self.nbytes // self.row_bytes)
        # By stream, and whether it wrote: the last launch that touched each row.
        self.times = {}
        self.frames = order.frames(1)

    def __str__(self):
        made = order.lines(self.frames) or ["?"]
        return f"{self.nbytes} bytes of stream {self.stream}, made at {made[0]}"


class Touch:
    """Memory that an operator reads or writes: a view on the CPU, or rows of it.

    The index is of the first dimensions, None for all of one; () for all elements.
    """

    def __init__(self, block, view, writes, index=()):
        self.block, self.view, self.writes, self.index = block, view, writes, index
        size = view.element_size()
        strides = [size * stride for stride in view.stride()]
        dims = list(zip(view.shape, strides, strict=True))
        self._indexed, rest = dims[: len(index)], dims[len(index) :]
        self._begin = size * view.storage_offset()
        self._last = sum((n - 1) * stride for n, stride in rest) + size - 1

    def rows(self):
        """The rows of the block; of a view with gaps, those of the gaps, too."""
        row_bytes, begin = self.block.row_bytes, self._begin
        if not self.index:
            return slice(begin // row_bytes, (begin + self._last) // row_bytes + 1)
        offsets = (np.arange(n) * stride for n, stride in self._indexed)
        grid = reduce(np.add.outer, offsets, begin)
        picked = (slice(None) if part is None else part.numpy() for part in self.index)
        starts = grid[tuple(picked)].reshape(-1, 1)
        first, last = starts // row_bytes, (starts + self._last) // row_bytes
        spread = first + np.arange(int((last - first).max(initial=0)) + 1)
        return np.minimum(spread, last).reshape(-1)


def label(tensor):
    """A tensor of the device in new memory: that of a CPU tensor."""
    number = next(_numbers)
    with order.lock:
        block = _blocks[number] = Block(tensor)
        if block.graph is not None:
            block.graph.blocks.append(block)
    return _label(tensor, number)


def block_of(tensor):
    """The block of a tensor of the device."""
    return _blocks[_number(tensor)]


def launch(name, touches):
    """One kernel, copy or graph; gives its number."""
    with order.lock:
        number = order.launch(name)
        use(name, number, touches)
    return number


def use(name, number, touches):
    """A part of the last launch of the current stream; reports races with others."""
    stream = order.host.stream
    for touch in touches:
        if not touch.view.numel():
            continue
        block, rows = touch.block, touch.rows()
        if block.dead and block.graph is None:
            order.report("use after free", f"{name} uses memory that is gone; {block}")
        for (other, wrote), seen in block.times.items():
            if other == stream.number or not (wrote or touch.writes):
                continue
            last = int(seen[rows].max(initial=0))
            if last > stream.clock.get(other, 0):
                text = (
                    f"{name} in stream {stream.number} does not wait for "
                    f"{order.launches[last].name} in stream {other}; {block}"
                )
                order.report("race", text, last)
        key = stream.number, touch.writes
        if key not in block.times:
            block.times[key] = np.zeros(block.rows, np.int64)
        block.times[key][rows] = number


def died(number):
    """Nothing holds a block any more."""
    with order.lock:
        block = _blocks.pop(number)
        block.dead = True
        if block.graph is None:  # otherwise it lasts as long as the graph
            _free(block)


def end_graph(blocks):
    """A graph is gone: its memory returns to the allocator."""
    with order.lock:
        for block in blocks:
            block.graph = None
            if block.dead:
                _free(block)


def _free(block):
    """Reports streams that may still use a block whose memory is used again.

    This thread has dropped the last reference. If another one has used the block, it
    has dropped its own reference before, after some of its waits: all of them count.
    """
    known = dict(order.streams[block.stream].clock)
    order.merge(known, order.host.clock)
    for (other, _), seen in block.times.items():
        last = int(seen.max(initial=0))
        if other in (block.stream, *block.users) or last <= known.get(other, 0):
            continue
        launch = order.launches[last]
        if last > launch.host.get(other, 0):
            text = (
                f"memory is free while {launch.name} in stream {other} may still use "
                f"it, without record_stream; {block}"
            )
            order.report("use after free", text, last)
