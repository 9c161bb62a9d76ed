"""Blocks of the device's memory: who touched which rows, and who may still use them.

PyTorch's allocator gives a freed block to the next allocation of the stream in which it
was made. That is safe for the other streams that used the block only if the allocator
knows of them (`record_stream`), or if the block's stream or the host has waited.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .order import Order, merge, stack

_MOST_ROWS = 4096

Rows = slice | np.ndarray[Any, Any]
Times = dict[int, np.ndarray[Any, Any]]


class Block:
    """The memory of one allocation, in rows: the pieces of its first dimension."""

    def __init__(self, number: int, stream: int, tensor: Tensor, graph: Any) -> None:
        self.number, self.stream, self.graph = number, stream, graph
        self.dead = False
        self.users: set[int] = set()  # of record_stream
        self.nbytes = tensor.untyped_storage().nbytes()
        rows = tensor.shape[0] if tensor.ndim and tensor.is_contiguous() else 1
        self.row_bytes = max(1, self.nbytes // max(1, rows))
        self.row_bytes *= -(-rows // _MOST_ROWS) or 1
        self.rows = -(-self.nbytes // self.row_bytes)
        # The last launch of each stream that touched each row.
        self.reads: Times = {}
        self.writes: Times = {}
        self.where = stack()

    def __str__(self) -> str:
        made = self.where[-1] if self.where else "?"
        return f"{self.nbytes} bytes of stream {self.stream}, made at {made}"


class Touch(NamedTuple):
    """Memory that an operator reads or writes: a view, or rows of it."""

    block: Block
    view: Tensor  # on the CPU
    # Of the first dimensions of the view, None for all of one; () for all elements.
    index: tuple[Tensor | None, ...]
    writes: bool

    def rows(self) -> Rows:
        """The rows of the block; of a view with gaps, those of the gaps, too."""
        view, block = self.view, self.block
        size = view.element_size()
        strides = [size * stride for stride in view.stride()]
        extents = [
            (n - 1) * stride for n, stride in zip(view.shape, strides, strict=True)
        ]
        begin = size * view.storage_offset()
        if not self.index:
            end = begin + sum(extents) + size
            return slice(begin // block.row_bytes, -(-end // block.row_bytes))
        grid, indexed = torch.tensor(begin), len(self.index)
        for n, stride in zip(view.shape[:indexed], strides, strict=False):
            grid = grid[..., None] + torch.arange(n) * stride
        picked = tuple(slice(None) if part is None else part for part in self.index)
        starts = grid[picked].reshape(-1).numpy()
        first = starts // block.row_bytes
        last = (starts + sum(extents[indexed:]) + size - 1) // block.row_bytes
        count = int((last - first).max(initial=0)) + 1
        spread = first[:, None] + np.arange(count)
        return np.minimum(spread, last[:, None]).reshape(-1)


class Memory:
    """All blocks that are alive."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._blocks: dict[int, Block] = {}
        self._numbers = itertools.count(1)

    def label(self, tensor: Tensor, stream: int, graph: Any) -> Tensor:
        """A tensor of the device in new memory: that of a CPU tensor."""
        number = next(self._numbers)
        with self._order.lock:
            block = self._blocks[number] = Block(number, stream, tensor, graph)
            if graph is not None:
                graph.blocks.append(block)
        return torch.ops.label_gpu.label(tensor, number)

    def block(self, label: Tensor) -> Block:
        """The block of a tensor of the device."""
        return self._blocks[torch.ops.label_gpu.block(label)]

    def launch(self, name: str, stream: int, touches: list[Touch]) -> None:
        """One kernel or copy of a stream."""
        with self._order.lock:
            number = self._order.launch(stream, name)
            for touch in touches:
                self.use(name, stream, number, touch)

    def use(self, name: str, stream: int, number: int, touch: Touch) -> None:
        """A part of a launch; reports a race with an earlier one."""
        if not touch.view.numel():
            return
        block, rows = touch.block, touch.rows()
        clock = self._order.streams[stream]
        earlier = [block.writes, block.reads] if touch.writes else [block.writes]
        for times in earlier:
            for other, seen in times.items():
                last = int(seen[rows].max(initial=0))
                if other == stream or last <= clock.get(other, 0):
                    continue
                before = self._order.launches[last].name
                self._order.report(
                    "race",
                    f"{name} in stream {stream} does not wait for {before} in stream "
                    f"{other}; {block}",
                    last,
                )
        times = block.writes if touch.writes else block.reads
        if stream not in times:
            times[stream] = np.zeros(block.rows, np.int64)
        times[stream][rows] = number

    def died(self, number: int) -> None:
        """Nothing holds a block any more."""
        with self._order.lock:
            block = self._blocks.pop(number)
            block.dead = True
            if block.graph is None:  # otherwise it lasts as long as the graph
                self._free(block)

    def end_graph(self, blocks: list[Block]) -> None:
        """A graph is gone: its memory returns to the allocator."""
        with self._order.lock:
            for block in blocks:
                block.graph = None
                if block.dead:
                    self._free(block)

    def _free(self, block: Block) -> None:
        """Reports streams that may still use a block whose memory is used again.

        This thread has dropped the last reference. If another one has used the block,
        it has dropped its own reference before, after some of its waits: all of them
        count.
        """
        known = dict(self._order.streams[block.stream])
        merge(known, self._order.host.clock)
        for times in (block.writes, block.reads):
            for other, seen in times.items():
                last = int(seen.max(initial=0))
                if other in (block.stream, *block.users) or last <= known.get(other, 0):
                    continue
                launch = self._order.launches[last]
                if last <= launch.host.get(other, 0):
                    continue
                self._order.report(
                    "use after free",
                    f"memory is free while {launch.name} in stream {other} may still "
                    f"use it, without record_stream; {block}",
                    last,
                )
