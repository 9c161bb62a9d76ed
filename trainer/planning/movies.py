"""Reads and writes movies of other emulators: .fm2 of FCEUX and .bk2 of BizHawk.

A movie has the buttons of the first controller in every frame since power-on, and names
its ROM. It may be packed in .zip or .gz, as TASVideos serves movies. Source: the
descriptions of the formats at https://fceux.com/web/FM2.html and
https://tasvideos.org/Bizhawk/BK2Format.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from mario_envpool import archives, nes, rom
from trainer.machine.files import replacing

_HEADER_BYTES = 16
# Limit of a file and of its unpacked contents: far more than a day of play.
_MOST_BYTES = 256 << 20
FM2, BK2 = ".fm2", ".bk2"

# Right, left, down, up, start, select, B, A: from the highest bit to the lowest.
_FM2_ORDER, _FM2_BITS = "RLDUTSBA", [128 >> number for number in range(8)]
# Bits of the first number of a frame: reset and power.
_FM2_RESETS = 3
_BK2_HEADER, _BK2_LOG = "Header.txt", "Input Log.txt"
_BK2_BUTTONS = "Up Down Left Right Start Select B A".split()
_BK2_LETTERS = "UDLRSsBA"
_BK2_BITS = [nes.BUTTONS[n if len(n) == 1 else n.lower()] for n in _BK2_BUTTONS]
_BK2_RESETS = {"Reset", "Power"}
_RETRO_STATE = "Core.bin"
_BK2_KEY = "LogKey:#Reset|Power|#" + "".join(f"P1 {name}|" for name in _BK2_BUTTONS)


class Movie(NamedTuple):
    """The contents of a movie file."""

    kind: str  # FM2 or BK2
    buttons: bytes  # a byte for each frame (bits as in `mario_envpool.nes`)
    # hexadecimal MD5, SHA-1 or CRC32 of the ROM, with or without its header
    rom_sum: str


def read(path: Path) -> Movie:
    """Reads a movie.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: it is not a movie, it is damaged, or a console with one gamepad and
            no reset after its first frame cannot play it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give a movie, .fm2 or .bk2")
    if path.suffix.lower() not in (FM2, BK2, *archives.PACKED):
        raise ValueError(f"{path} is not a supported movie; give .fm2 or .bk2")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} is too large: a movie has at most {_MOST_BYTES:,} B")
    try:
        movie = parse(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} cannot be imported: {error}") from None
    return movie


def parse(data: bytes) -> Movie:
    """Reads the content of a movie file; raises ValueError as `read` does."""
    data = archives.unpack(data, (FM2, BK2), _MOST_BYTES)
    movie = _read_bk2(data) if data.startswith(b"PK") else _read_fm2(data)
    if not movie.buttons:
        raise ValueError("it has no frames")
    return movie


def name_of(path: Path) -> str:
    """The name of a movie file without its suffixes, of which it may have several."""
    while path.suffix.lower() in (FM2, BK2, *archives.PACKED):
        path = path.with_suffix("")
    return path.name


def rom_of(movie: Movie) -> str:
    """The name of the ROM that a movie is for, one of `mario_envpool.rom.ROMS`.

    Raises:
        RomError: no installed ROM has the checksum of the movie.
    """
    here = []
    for name in rom.ROMS:
        try:
            image = rom.load(name)
        except rom.RomError:
            continue
        here.append(name)
        if movie.rom_sum in _sums(image):
            return name
    raise rom.RomError(
        f"the movie is for another ROM: no installed ROM "
        f"({', '.join(here) or 'none is installed'}) has the checksum "
        f"{movie.rom_sum or '(none)'}; if one of them is the game of the movie, name "
        "it: --rom world"
    )


def write_fm2(path: Path, buttons: bytes, image: bytes, name: str) -> None:
    """Writes a movie for FCEUX."""
    # FCEUX takes the sum of what follows the header.
    md5 = hashlib.md5(image[_HEADER_BYTES:], usedforsecurity=False).digest()
    lines = [
        "version 3",
        "emuVersion 20604",
        "rerecordCount 0",
        "palFlag 0",
        f"romFilename {name}",
        f"romChecksum base64:{base64.b64encode(md5).decode()}",
        "guid 00000000-0000-0000-0000-000000000000",
        "fourscore 0",
        "microphone 0",
        "port0 1",
        "port1 0",
        "port2 0",
        "FDS 0",
        "NewPPU 0",
        "comment author mario-envpool",
    ]
    lines += [f"|0|{_held(byte, _FM2_ORDER, _FM2_BITS)}|||" for byte in buttons]
    with replacing(path) as file:
        file.write(("\n".join(lines) + "\n").encode())


def write_bk2(path: Path, buttons: bytes, image: bytes, name: str) -> None:
    """Writes a movie for BizHawk; takes the arguments of `write_fm2`."""
    header = {
        "MovieVersion": "BizHawk v2.0.0",
        "Author": "mario-envpool",
        "emuVersion": "Version 2.9.1",
        "Platform": "NES",
        "GameName": name,
        "SHA1": hashlib.sha1(image, usedforsecurity=False).hexdigest().upper(),
        "Core": "NesHawk",
        "rerecordCount": "0",
    }
    log = ["[Input]", _BK2_KEY]
    log += [f"|..|{_held(byte, _BK2_LETTERS, _BK2_BITS)}|" for byte in buttons]
    log.append("[/Input]")
    with (
        replacing(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        lines = [f"{key} {value}" for key, value in header.items()]
        for member, text in ((_BK2_HEADER, lines), (_BK2_LOG, log)):
            # Without the time, so that equal movies are equal files.
            entry = zipfile.ZipInfo(member)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, "\n".join(text) + "\n")


def _read_fm2(data: bytes) -> Movie:
    """Reads an .fm2 file; raises ValueError if it is damaged or not only buttons."""
    lines = _text(data)
    header = _pairs(line for line in lines if not line.startswith("|"))
    if "version" not in header:
        raise ValueError("it is not an .fm2 file: its first line must be the version")
    for key, allowed, why in (
        ("binary", "0", "it is in the binary format; save it as text in FCEUX"),
        ("port0", "1", "it has no gamepad in the first port"),
        ("port1", "01", "it has another device than a gamepad in the second port"),
        ("port2", "0", "it has a device in the expansion port"),
        ("FDS", "0", "it is for a Famicom Disk System"),
        ("fourscore", "0", "it is for four controllers"),
    ):
        if header.get(key, allowed[0]) not in tuple(allowed):
            raise ValueError(why)
    if "savestate" in header:
        raise ValueError("it begins from a saved state, and not at power-on")
    buttons = bytearray()
    for line in lines:
        if line.startswith("|"):
            buttons.append(_frame_of_fm2(line, len(buttons)))
    checksum = header.get("romChecksum", "").removeprefix("base64:")
    try:
        rom_sum = base64.b64decode(checksum, validate=True).hex()
    except binascii.Error:
        raise ValueError("its romChecksum is damaged") from None
    return Movie(FM2, bytes(buttons), rom_sum)


def _frame_of_fm2(line: str, frame: int) -> int:
    parts = line.split("|")
    command = parts[1] or "0" if len(parts) >= 4 else ""
    if not command.isdecimal() or len(parts[2]) != len(_FM2_ORDER):
        raise ValueError(f"frame {frame} is damaged: {line[:40]!r}")
    if int(command) & _FM2_RESETS and frame > 0:
        raise ValueError(f"the console is reset in frame {frame}")
    if int(command) > _FM2_RESETS:
        raise ValueError(f"frame {frame} has the command {command} of another machine")
    if any(set(part) - set(". ") for part in parts[3:]):
        raise ValueError(f"the second controller is used in frame {frame}")
    pressed = zip(parts[2], _FM2_BITS, strict=True)
    return sum(bit for held, bit in pressed if held not in ". ")


def _read_bk2(data: bytes) -> Movie:
    """Reads a .bk2 file; raises ValueError if it is damaged or not only buttons."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = set(archive.namelist())
            if {_BK2_HEADER, _BK2_LOG} - names:
                raise ValueError(f"it has no {_BK2_HEADER} or no {_BK2_LOG}")
            header, lines = (
                _text(archives.member_of(archive, name, _MOST_BYTES))
                for name in (_BK2_HEADER, _BK2_LOG)
            )
    except archives.ERRORS as error:
        raise ValueError(f"it is damaged: {error}") from None
    return _movie_of_bk2(_pairs(header), lines, names)


def _movie_of_bk2(
    header: Mapping[str, str], lines: list[str], names: set[str]
) -> Movie:
    if header.get("Platform", "NES") != "NES":
        raise ValueError(f"it is for the platform {header['Platform']}, not NES")
    if header.get("StartsFromSavestate") == "True" or "CoreState" in names:
        raise ValueError("it begins from a saved state, and not at power-on")
    if _RETRO_STATE in names:
        raise ValueError(
            "it is a recording of gym-retro, which begins from a saved state, and not "
            f"at power-on; its {_RETRO_STATE}, unpacked as a file .state, can be a "
            "start: --starts FILE.state"
        )
    keys = [line for line in lines if line.startswith("LogKey:")]
    if len(keys) != 1:
        raise ValueError(f"its {_BK2_LOG} has {len(keys)} LogKey lines, must have one")
    fields = [name for name in re.split(r"LogKey:|[#|]", keys[0]) if name]
    bits = {f"P1 {n}": b for n, b in zip(_BK2_BUTTONS, _BK2_BITS, strict=True)}
    if set(bits) - set(fields):
        raise ValueError("its LogKey does not have the gamepad P1")
    frames = [line for line in lines if line.startswith("|")]
    buttons = (_frame_of_bk2(line, i, fields, bits) for i, line in enumerate(frames))
    sums = (header.get(key, "") for key in ("SHA1", "MD5"))
    rom_sum = next(filter(None, sums), "").split(":")[-1].lower()
    return Movie(BK2, bytes(buttons), rom_sum)


def _frame_of_bk2(
    line: str, frame: int, fields: list[str], bits: Mapping[str, int]
) -> int:
    held = line.replace("|", "")
    if len(held) != len(fields):
        raise ValueError(f"frame {frame} is damaged: {line[:40]!r}")
    pressed = {n for n, letter in zip(fields, held, strict=True) if letter != "."}
    if frame == 0:  # the console has just been switched on
        pressed -= _BK2_RESETS
    if others := sorted(pressed - bits.keys()):
        raise ValueError(f"{', '.join(others)} is pressed in frame {frame}")
    return sum(bits[name] for name in pressed)


def _held(byte: int, letters: str, bits: Iterable[int]) -> str:
    pairs = zip(letters, bits, strict=True)
    return "".join(letter if byte & bit else "." for letter, bit in pairs)


def _text(content: bytes) -> list[str]:
    """Lines of a file; names in another encoding than UTF-8 lose their letters."""
    return content.decode("utf-8-sig", "replace").splitlines()


def _pairs(lines: Iterable[str]) -> dict[str, str]:
    """The text before the first space of each line, mapped to the text after it."""
    return {key: value for key, _, value in (line.partition(" ") for line in lines)}


def _sums(image: bytes) -> set[str]:
    """All checksums by which a movie may name its ROM."""
    sums = set()
    for part in (image, image[_HEADER_BYTES:]):
        for name in ("md5", "sha1"):
            sums.add(hashlib.new(name, part, usedforsecurity=False).hexdigest())
        sums.add(f"{zlib.crc32(part):08x}")
    return sums
