"""Save states of other emulators: stable-retro's, which are those of FCEUmm.

>>> import mario_envpool
>>> state = mario_envpool.states.load("Level1-1.state")
>>> pool = mario_envpool.make("SuperMarioBros-v0", num_envs=8, rom="world")
>>> pool.set_starts([0, 1], state)  # every episode begins there

FCEUmm saves at the end of a frame. The game then waits in a loop for the next one, so
that the parts of a console that the file lacks (the place in the frame, the counters of
the sound unit) do not show. Source: the files themselves, whose entries have names.
"""

from __future__ import annotations

import os
from pathlib import Path

from . import _core, archives, nes
from . import rom as roms

#: How the names of these files end.
SUFFIX = ".state"

_MAGIC, _HEADER_BYTES = b"FCS\xff", 16
_MOST_BYTES = 1 << 20
# The entries that are read, with their bytes.
_SIZES = {
    "PC": 2, "A": 1, "X": 1, "Y": 1, "S": 1, "P": 1, "RAM": 2048, "NTAR": 2048,
    "PRAM": 32, "SPRA": 256, "PPUR": 4, "XOFF": 1, "VTGL": 1, "RADD": 2, "TADD": 2,
}  # fmt: skip
# The revisions with the program that the states are of: stable-retro knows no other.
_REVISIONS = ("world", "rectangle")
# Long enough for the game to wait for a frame.
_BOOT_FRAMES = 60
_JUMP = 0x4C
_NMI_ON = 0x80
# What the game writes there to know its own RAM after a reset.
_OWN, _OWN_VALUE = 0x7FF, 0xA5


def load(
    path: str | os.PathLike[str],
    rom: str = "world",
    rom_path: str | os.PathLike[str] = "",
) -> bytes:
    """Reads a save state of Super Mario Bros. from stable-retro.

    Args:
        path: a ``.state`` file, packed with gzip or not.
        rom: the ROM that will play: "world", of which the states are, or "rectangle",
            which has the same program.
        rom_path: a ROM file or folder, as the option of ``make``.

    Returns:
        A state as ``nes.Console.save`` returns it, for ``nes.Console.load`` and for
        ``restore`` and ``set_starts`` of pools and environments with that ROM. An
        episode begins there without a frame being played; with ``timing="nes_py"``
        after two idle frames.

    Raises:
        FileNotFoundError: the file does not exist.
        RomError: there is no such ROM.
        ValueError: the file is not such a state, is damaged, or is of another game.
    """
    revision = roms.revision(rom, rom_path)
    if revision not in _REVISIONS:
        raise ValueError(
            f"{path} cannot be loaded into rom={revision!r}: stable-retro's states are "
            "of the World revision; choose rom='world', or 'rectangle' (ids with -v3)"
        )
    image = roms.load(rom, rom_path)
    try:
        return _into(nes.Console(image), parse(_read(path)))
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from None


def level(path: str | os.PathLike[str]) -> str:
    """Returns the level of a state, such as "1-1"; raises as ``load``."""
    try:
        ram = parse(_read(path))["RAM"]
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from None
    world, stage = (ram[_core.ram_addresses[name]] for name in ("World", "Stage"))
    return f"{world + 1}-{stage + 1}"


def parse(data: bytes) -> dict[str, bytes]:
    """Returns the entries of a state's file that are read, by name.

    Raises:
        ValueError: it is not a state of FCEUmm, or an entry is missing or damaged.
    """
    data = archives.unpack(data, (SUFFIX,), _MOST_BYTES)
    if not data.startswith(_MAGIC):
        raise ValueError(
            f"it is not a state of FCEUmm, which begins with {_MAGIC.hex()}, "
            f"but with {data[:4].hex() or 'nothing'}"
        )
    found: dict[str, bytes] = {}
    at = _HEADER_BYTES
    while at < len(data):
        at, end = at + 5, min(at + 5 + _size(data, at + 1), len(data))
        while at < end:
            key, size = data[at : at + 4].rstrip(b"\0"), _size(data, at + 4)
            found[key.decode("latin-1")] = data[at + 8 : at + 8 + size]
            at += 8 + size
    for name, size in _SIZES.items():
        if len(found.get(name, b"")) != size:
            raise ValueError(
                f"its entry {name} has {len(found.get(name, b''))} bytes, must have "
                f"{size}: it is damaged, or of another machine"
            )
    return {name: found[name] for name in _SIZES}


def _read(path: str | os.PathLike[str]) -> bytes:
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} does not exist; give a file {SUFFIX}")
    if os.path.getsize(path) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
    return Path(path).read_bytes()


def _size(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _into(console: nes.Console, entries: dict[str, bytes]) -> bytes:
    """Returns the save of a console that waits for a frame with these entries."""
    numbers = {
        name: int.from_bytes(value, "little")
        for name, value in entries.items()
        if len(value) <= 2
    }
    pc, ram = numbers["PC"], entries["RAM"]
    ctrl, mask, status, _ = entries["PPUR"]
    here = [console.peek(pc + i & 0xFFFF) for i in range(3)]
    waits = here == [_JUMP, pc & 0xFF, pc >> 8] and ctrl & _NMI_ON
    if not waits or ram[_OWN] != _OWN_VALUE:
        raise ValueError("it is a state of another game than Super Mario Bros.")
    console.step_many(bytes(_BOOT_FRAMES))
    console.ram[:] = list(ram)
    console.set_registers(
        pc=pc,
        a=numbers["A"],
        x=numbers["X"],
        y=numbers["Y"],
        sp=numbers["S"],
        p=numbers["P"] & 0xEF | 0x20,
    )
    console.set_picture(
        nametable=entries["NTAR"],
        palette=entries["PRAM"],
        oam=entries["SPRA"],
        ctrl=ctrl,
        mask=mask,
        status=status,
        v=numbers["RADD"],
        t=numbers["TADD"],
        fine_x=numbers["XOFF"],
        w=numbers["VTGL"],
    )
    return console.save()
