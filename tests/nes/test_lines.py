"""Registers that are written within a line change the picture from that pixel on."""

from __future__ import annotations

import random
import zlib

import pytest

from mario_envpool import nes

FRAMES = 12
PROGRAMS = 30
# CRC-32 of all pictures of the programs below, from code that drew the part of a line
# before every access to a register.
PICTURES = {"console": 0xE6B4444, "nes_py": 0x2B892122}


def _store(value: int, address: int) -> bytes:
    return bytes([0xA9, value, 0x8D, address & 0xFF, address >> 8])


def _program(seed: int) -> bytes:
    """A ROM that fills video RAM, and then writes random registers at random times."""
    draw = random.Random(seed)
    code = b"\x78\xd8\xa2\xff\x9a" + _store(0x20, 0x2006) + _store(0, 0x2006)
    # Eight times 256 bytes: TXA; EOR #; STA $2007; INX; BNE. DEY; BNE.
    code += bytes([0xA0, 8, 0xA2, 0, 0x8A, 0x49, draw.randrange(256)])
    code += b"\x8d\x07\x20\xe8\xd0\xf7\x88\xd0\xf4"
    code += _store(0x3F, 0x2006) + _store(0, 0x2006)
    code += b"".join(_store(draw.randrange(64), 0x2007) for _ in range(32))
    code += b"".join(_store(draw.randrange(256), 0x200 + i) for i in range(256))
    code += _store(0, 0x2003) + _store(2, 0x4014) + _store(0x1E, 0x2001)
    loop = 0x8000 + len(code)
    for _ in range(draw.choice([60, 200, 400])):
        kind = draw.random()
        if kind < 0.45:  # LDX #; DEX; BNE
            code += bytes([0xA2, draw.randrange(1, 60), 0xCA, 0xD0, 0xFD])
        elif kind < 0.55:  # a read, or a transfer of all sprites
            code += draw.choice([b"\xad\x02\x20", b"\xad\x07\x20", _store(2, 0x4014)])
        else:
            register = draw.choice([0, 0, 1, 3, 4, 5, 5, 5, 6, 6, 7])
            value = draw.randrange(128 if register == 0 else 256)
            if register == 1:
                value = draw.choice([0x1E, 0x1E, 0x0E, 0x16, 0x18, 0x1F])
            code += _store(value, 0x2000 + register)
    code += bytes([0x4C, loop & 0xFF, loop >> 8])
    vectors = bytes([0, 0x80] * 3)
    header = b"NES\x1a" + bytes([2, 1, draw.randrange(2)]) + bytes(9)
    return header + code.ljust(0x8000 - 6, b"\0") + vectors + draw.randbytes(8192)


@pytest.mark.parametrize("timing", PICTURES)
def test_lines_in_parts(timing: str) -> None:
    crc = 0
    for seed in range(PROGRAMS):
        console = nes.Console(_program(seed), timing=timing)
        for _ in range(FRAMES):
            console.step(0)
            crc = zlib.crc32(console.screen().tobytes(), crc)
    assert crc == PICTURES[timing]
