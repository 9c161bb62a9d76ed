"""The 6502: single-step vectors, nestest's log, and cycle counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rom_builder import build
from vectors import missing_read, read_vectors

from mario_envpool import _core, _testing


@pytest.mark.verification
def test_single_step_vectors(verification: Path) -> None:
    cpu = _testing.FlatCpu()
    memory = cpu.memory
    total = corrected = 0
    wrong: dict[str, int] = {}
    for opcode, before, after, bus in read_vectors(
        verification / "cpu" / "6502-sample.bin.gz"
    ):
        for address, value in before.memory.items():
            memory[address] = value
        got = cpu.step(before.pc, before.a, before.x, before.y, before.sp, before.p)
        extra = missing_read(opcode, before, bus)
        want = (after.pc, after.a, after.x, after.y, after.sp, after.p)
        same = got == (*want, len(bus) + extra) and all(
            memory[address] == value for address, value in after.memory.items()
        )
        total += 1
        corrected += extra
        if not same:
            wrong[f"{opcode:02X}"] = wrong.get(f"{opcode:02X}", 0) + 1
        for address in (*before.memory, *after.memory):
            memory[address] = 0
    assert wrong == {}
    assert total == 25_960
    assert corrected == 458


@pytest.mark.verification
def test_nestest_log(verification: Path) -> None:
    folder = verification / "roms" / "other"
    console = _core.Console((folder / "nestest.nes").read_bytes())
    console.set_registers(pc=0xC000, p=0x24)
    pattern = re.compile(
        r"(\w{4}) .*A:(\w\w) X:(\w\w) Y:(\w\w) P:(\w\w) SP:(\w\w) "
        r"PPU: *(\d+), *(\d+) CYC:(\d+)"
    )
    lines = (folder / "nestest.log").read_text().splitlines()
    for number, line in enumerate(lines, 1):
        match = pattern.match(line)
        assert match is not None, line
        registers = console.registers
        hexadecimal = [registers[name] for name in ("pc", "a", "x", "y", "p", "sp")]
        got = [*hexadecimal, *console.beam, registers["cycle"]]
        want = [int(text, 16) for text in match.groups()[:6]]
        want += [int(text) for text in match.groups()[6:]]
        assert got == want, f"line {number}: {line}"
        console.step_instruction()
    assert len(lines) == 8_991
    assert console.ram[2] == 0
    assert console.ram[3] == 0


def test_opcode_table_is_complete() -> None:
    table = _testing.opcode_table()
    assert len(table) == 256
    assert table[0xA9] == ("Lda", "imm", 2, 2, 0)
    assert table[0x9D] == ("Sta", "absx", 3, 5, 0)
    assert table[0xBD] == ("Lda", "absx", 3, 4, 1)
    assert sum(row[0] == "Jam" for row in table) == 12


def test_cycles_agree_with_the_table() -> None:
    """Every opcode in flat memory, without page crossing or branching."""
    cpu = _testing.FlatCpu()
    for opcode, (operation, mode, size, cycles, _) in enumerate(
        _testing.opcode_table()
    ):
        if operation == "Jam":
            continue
        cpu.memory[:] = 0
        cpu.memory[0x8000] = opcode
        # Flags that let no branch be taken: each opcode tests one of N V C Z.
        taken_if_set = bool(opcode & 0x20)
        p = 0x00 if taken_if_set else 0xC3
        result = cpu.step(0x8000, 0, 0, 0, 0xFD, p)
        assert result[6] == cycles, f"{opcode:02X} {operation} {mode}"
        if mode in ("imm", "zp", "rel") and operation != "Brk":
            assert result[0] == 0x8000 + size


def test_branch_cycles() -> None:
    cpu = _testing.FlatCpu()
    for start, offset, cycles in ((0x8000, 4, 3), (0x80F0, 0x7F, 4), (0x8000, 0x80, 4)):
        cpu.memory[start] = 0x90  # BCC
        cpu.memory[start + 1] = offset
        target = start + 2 + (offset ^ 0x80) - 0x80
        assert cpu.step(start, 0, 0, 0, 0xFD, 0)[0] == target
        assert cpu.step(start, 0, 0, 0, 0xFD, 0)[6] == cycles


def test_jam_stops_the_cpu_but_not_the_console() -> None:
    console = _core.Console(build("reset:\n .byte 2"))
    for _ in range(3):
        console.step(0)
    first = console.registers
    console.step(0)
    assert console.registers["pc"] == first["pc"] == 0x8000
    assert console.registers["cycle"] > first["cycle"]
