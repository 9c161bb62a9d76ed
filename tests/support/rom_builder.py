"""A tiny 6502 assembler that makes NROM images for tests, no game needed.

>>> image = build('''
... reset:
...     ldx #$05
... loop:
...     dex
...     bne loop
... done:
...     jmp done
... ''')
"""

from __future__ import annotations

import re
from pathlib import Path

from mario_envpool import _testing

# (mnemonic, mode) -> opcode, official or first of several.
_OPCODES: dict[tuple[str, str], int] = {}
_BYTES: dict[str, int] = {}
for _code, (_operation, _mode, _size, _, _) in enumerate(_testing.opcode_table()):
    _OPCODES.setdefault((_operation.lower(), _mode), _code)
    _BYTES[_mode] = _size
_OPCODES["nop", "imp"] = 0xEA
_OPCODES["sbc", "imm"] = 0xE9

_OPERANDS = (
    (r"#(.+)", "imm"),
    (r"\((.+),x\)", "indx"),
    (r"\((.+)\),y", "indy"),
    (r"\((.+)\)", "ind"),
    (r"(.+),x", "x"),
    (r"(.+),y", "y"),
    (r"(.+)", ""),
)


def _mode_of(mnemonic: str, operand: str) -> tuple[str, str]:
    """(mode, expression) of an operand as written."""
    if not operand:
        mode = "acc" if (mnemonic, "acc") in _OPCODES else "imp"
        return mode, ""
    for pattern, kind in _OPERANDS:
        match = re.fullmatch(pattern, operand)
        if match is None:
            continue
        expression = match.group(1)
        if kind in ("", "x", "y"):
            if (mnemonic, "rel") in _OPCODES:
                return "rel", expression
            zero_page = re.fullmatch(r"\$[0-9a-f]{2}", expression) is not None
            mode = ("zp" if zero_page else "abs") + kind
            if (mnemonic, mode) not in _OPCODES:
                mode = "abs" + kind
            return mode, expression
        return kind, expression
    raise ValueError(f"cannot read operand {operand!r}")


def _value(expression: str, labels: dict[str, int]) -> int:
    if expression[0] in "<>":
        value = _value(expression[1:], labels)
        return value & 0xFF if expression[0] == "<" else value >> 8
    if expression.startswith("$"):
        return int(expression[1:], 16)
    if expression.isdigit():
        return int(expression)
    return labels[expression]


def _lines(source: str) -> list[tuple[str, str]]:
    """(word, operand) pairs; a label is (name + ':', '')."""
    out = []
    for line in source.lower().splitlines():
        text = line.split(";")[0].strip()
        while match := re.match(r"(\w+:)\s*", text):
            out.append((match.group(1), ""))
            text = text[match.end() :]
        if text:
            word, _, operand = text.partition(" ")
            out.append((word, operand.replace(" ", "")))
    return out


def assemble(source: str, origin: int) -> tuple[bytes, dict[str, int]]:
    """Machine code and labels; ``.byte`` takes a list of values."""
    lines = _lines(source)
    labels: dict[str, int] = {}
    at = origin
    for word, operand in lines:
        if word.endswith(":"):
            labels[word[:-1]] = at
        elif word == ".byte":
            at += len(operand.split(","))
        else:
            at += _BYTES[_mode_of(word, operand)[0]]
    code = bytearray()
    for word, operand in lines:
        if word.endswith(":"):
            continue
        if word == ".byte":
            code += bytes(_value(part, labels) for part in operand.split(","))
            continue
        mode, expression = _mode_of(word, operand)
        code.append(_OPCODES[word, mode])
        size = _BYTES[mode] - 1
        if size:
            value = _value(expression, labels)
            if mode == "rel":
                value = (value - (origin + len(code) + 1)) & 0xFF
            code += value.to_bytes(size, "little")
    return bytes(code), labels


def build(source: str, *, chr_rom: bytes = b"", vertical: bool = True) -> bytes:
    """An iNES image of 32 KiB PRG; vectors go to labels reset, nmi and irq.

    Args:
        source: Assembly text, placed at $8000; label ``reset`` is required,
            ``nmi`` and ``irq`` default to it.
        chr_rom: Pattern tables, padded to 8 KiB.
        vertical: Vertical mirroring.
    """
    code, labels = assemble(source, 0x8000)
    prg = bytearray(0x8000)
    prg[: len(code)] = code
    reset = labels["reset"]
    for at, name in ((0x7FFA, "nmi"), (0x7FFC, "reset"), (0x7FFE, "irq")):
        prg[at : at + 2] = labels.get(name, reset).to_bytes(2, "little")
    return ines(prg, chr_rom, vertical=vertical)


def ines(prg: bytes, chr_rom: bytes = b"", *, vertical: bool = True) -> bytes:
    """The image of a cartridge with 32 KiB of program; see `build`."""
    header = b"NES\x1a" + bytes([2, 1, int(vertical), 0]) + bytes(8)
    return header + bytes(prg) + chr_rom.ljust(8192, b"\0")


def stand_in() -> bytes:
    """An image of ``stand_in.asm``, which keeps work RAM as the game does."""
    source = (Path(__file__).parent / "stand_in.asm").read_text()
    chr_rom = bytes((i * 37 ^ i >> 4) & 0xFF for i in range(8192))
    return build(source, chr_rom=chr_rom)
