"""Reads the single-step vectors of the 6502, part of the verification material."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The vectors list one bus access too few for these undocumented NOPs: the read
# of the effective address is missing, always for $0C and after a page crossing
# for the indexed ones. nestest's log counts it (4 and 5 cycles), and so do we.
NOPS_WITH_A_READ_TOO_FEW = {0x0C, 0x1C, 0x3C, 0x5C, 0x7C, 0xDC, 0xFC}


class State(NamedTuple):
    pc: int
    sp: int
    a: int
    x: int
    y: int
    p: int
    memory: dict[int, int]


def read_vectors(path: Path) -> Iterator[tuple[int, State, State, list[int]]]:
    """(opcode, before, after, addresses on the bus); the format is described
    with the verification material.
    """
    data = gzip.decompress(path.read_bytes())
    at = 0

    def state() -> State:
        nonlocal at
        pc = data[at] << 8 | data[at + 1]
        sp, a, x, y, p, count = data[at + 2 : at + 8]
        at += 8
        memory = {}
        for _ in range(count):
            memory[data[at] << 8 | data[at + 1]] = data[at + 2]
            at += 3
        return State(pc, sp, a, x, y, p, memory)

    while at < len(data):
        opcode = data[at]
        at += 11
        before, after = state(), state()
        count = data[at]
        at += 1
        bus = [data[at + 4 * i] << 8 | data[at + 4 * i + 1] for i in range(count)]
        at += 4 * count
        yield opcode, before, after, bus


def missing_read(opcode: int, before: State, bus: list[int]) -> int:
    """1 where the vector lacks the NOP's last read, see above."""
    if opcode not in NOPS_WITH_A_READ_TOO_FEW:
        return 0
    low, high = (before.memory[(before.pc + i) & 0xFFFF] for i in (1, 2))
    index = 0 if opcode == 0x0C else before.x
    crossed = low + index > 0xFF
    effective = ((high << 8 | low) + index) & 0xFFFF
    if opcode != 0x0C and not crossed:
        return 0
    assert effective not in bus[3:], "the vectors were corrected: drop this rule"
    return 1
