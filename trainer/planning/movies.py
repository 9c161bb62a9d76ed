"""Reads and writes movies of other emulators: .fm2 of FCEUX and .bk2 of BizHawk.

A movie has the buttons of the first controller in every frame since power-on, and names
its ROM. Source: the descriptions of the formats at https://fceux.com/web/FM2.html and
https://tasvideos.org/Bizhawk/BK2Format.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from mario_envpool import nes, rom
from trainer.machine.files import replacing

_HEADER_BYTES = 16
# Limit of a file and of its unpacked contents: far more than a day of play.
_MOST_BYTES = 256 << 20

# Right, left, down, up, start, select, B, A: from the highest bit to the lowest.
_FM2_ORDER, _FM2_BITS = "RLDUTSBA", [128 >> number for number in range(8)]
_BK2_HEADER, _BK2_LOG = "Header.txt", "Input Log.txt"
_BK2_BUTTONS = "Up Down Left Right Start Select B A".split()
_BK2_LETTERS = "UDLRSsBA"
_BK2_BITS = [nes.BUTTONS[n if len(n) == 1 else n.lower()] for n in _BK2_BUTTONS]
_BK2_KEY = "LogKey:#Reset|Power|#" + "".join(f"P1 {name}|" for name in _BK2_BUTTONS)


class Movie(NamedTuple):
    """The contents of a movie file."""

    buttons: bytes  # a byte for each frame (bits as in `mario_envpool.nes`)
    # hexadecimal MD5, SHA-1 or CRC32 of the ROM, with or without its header
    rom_sum: str


def read(path: Path) -> Movie:
    """Reads a movie."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give a movie, .fm2 or .bk2")
    kinds = {".fm2": _read_fm2, ".bk2": _read_bk2}
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise ValueError(f"{path} is not a supported movie; give {' or '.join(kinds)}")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} is too large: a movie has at most {_MOST_BYTES:,} B")
    try:
        movie = kind(path)
        if not movie.buttons:
            raise ValueError("it has no frames")
    # zipfile raises NotImplementedError and RuntimeError for contents it cannot unpack.
    except (ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be imported: {error}") from None
    return movie


def rom_of(movie: Movie) -> str:
    """The name of the ROM that a movie is for, one of `mario_envpool.rom.ROMS`."""
    here = []
    for name in rom.ROMS:
        try:
            image = rom.load(name)
        except rom.RomError:
            continue
        here.append(name)
        if movie.rom_sum in _sums(image):
            return name
    raise ValueError(
        f"the movie is for another ROM: no installed ROM "
        f"({', '.join(here) or 'none is installed'}) has the checksum "
        f"{movie.rom_sum or '(none)'}"
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


def _read_fm2(path: Path) -> Movie:
    """Reads an .fm2 file; raises ValueError if it is damaged or not only buttons."""
    lines = _text(path.read_bytes())
    header = _pairs(line for line in lines if not line.startswith("|"))
    if "version" not in header:
        raise ValueError("it is not an .fm2 file: its first line must be the version")
    for key, wrong, why in (
        ("binary", "1", "it is in the binary format; save it as text in FCEUX"),
        ("palFlag", "1", "it is for a PAL console; only NTSC movies can be imported"),
        ("port0", "0", "it has no gamepad in the first port"),
        ("FDS", "1", "it is for a Famicom Disk System"),
        ("fourscore", "1", "it is for four controllers"),
    ):
        if header.get(key) == wrong:
            raise ValueError(why)
    if "savestate" in header:
        raise ValueError("it begins from a saved state, and not at power-on")
    buttons = bytearray()
    for line in lines:
        if line.startswith("|"):
            buttons.append(_frame_of_fm2(line, len(buttons)))
    checksum = header.get("romChecksum", "").removeprefix("base64:")
    try:
        return Movie(bytes(buttons), base64.b64decode(checksum, validate=True).hex())
    except binascii.Error:
        raise ValueError("its romChecksum is damaged") from None


def _frame_of_fm2(line: str, frame: int) -> int:
    parts = line.split("|")
    if len(parts) < 4 or len(parts[2]) != len(_FM2_ORDER):
        raise ValueError(f"frame {frame} is damaged: {line[:40]!r}")
    if parts[1] not in ("", "0"):
        raise ValueError(f"the console is reset in frame {frame}")
    if any(set(part) - set(". ") for part in parts[3:]):
        raise ValueError(f"the second controller is used in frame {frame}")
    pressed = zip(parts[2], _FM2_BITS, strict=True)
    return sum(bit for held, bit in pressed if held not in ". ")


def _read_bk2(path: Path) -> Movie:
    """Reads a .bk2 file; raises ValueError if it is damaged or not only buttons."""
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        if {_BK2_HEADER, _BK2_LOG} - names:
            raise ValueError(f"it has no {_BK2_HEADER} or no {_BK2_LOG}")
        for name in (_BK2_HEADER, _BK2_LOG):
            if archive.getinfo(name).file_size > _MOST_BYTES:
                raise ValueError(f"its {name} is larger than {_MOST_BYTES:,} bytes")
        header = _pairs(_text(archive.read(_BK2_HEADER)))
        lines = _text(archive.read(_BK2_LOG))
    if header.get("Platform", "NES") != "NES":
        raise ValueError(f"it is for the platform {header['Platform']}, not NES")
    if header.get("PAL", "0") in ("1", "True"):
        raise ValueError("it is for a PAL console; only NTSC movies can be imported")
    if header.get("StartsFromSavestate") == "True" or "CoreState" in names:
        raise ValueError("it begins from a saved state, and not at power-on")
    keys = [line for line in lines if line.startswith("LogKey:")]
    if len(keys) != 1:
        raise ValueError(f"its {_BK2_LOG} has {len(keys)} LogKey lines, must have one")
    fields = [name for name in re.split(r"LogKey:|[#|]", keys[0]) if name]
    bits = {f"P1 {n}": b for n, b in zip(_BK2_BUTTONS, _BK2_BITS, strict=True)}
    if set(bits) - set(fields):
        raise ValueError("its LogKey does not have the gamepad P1")
    frames = [line for line in lines if line.startswith("|")]
    return Movie(
        bytes(_frame_of_bk2(line, i, fields, bits) for i, line in enumerate(frames)),
        header.get("SHA1", "").split(":")[-1].lower(),
    )


def _frame_of_bk2(
    line: str, frame: int, fields: list[str], bits: Mapping[str, int]
) -> int:
    held = line.replace("|", "")
    if len(held) != len(fields):
        raise ValueError(f"frame {frame} is damaged: {line[:40]!r}")
    pressed = [n for n, letter in zip(fields, held, strict=True) if letter != "."]
    if others := [name for name in pressed if name not in bits]:
        raise ValueError(f"{', '.join(others)} is pressed in frame {frame}")
    return sum(bits[name] for name in set(pressed))


def _held(byte: int, letters: str, bits: Iterable[int]) -> str:
    pairs = zip(letters, bits, strict=True)
    return "".join(letter if byte & bit else "." for letter, bit in pairs)


def _text(content: bytes) -> list[str]:
    """Lines of a file; raises UnicodeDecodeError, a ValueError, if it is not text."""
    return content.decode("utf-8-sig").splitlines()


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
