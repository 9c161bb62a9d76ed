"""Finds the Super Mario Bros. ROM and checks its revision.

This package contains no ROM. The files come from an installed gym-super-mario-bros
7.4, which is located but never imported, or from a file or folder that the user names
(``rom_path=`` or the variable ``MARIO_ROM``). In a folder, the ``.nes`` files of the
folder and of the folders directly below are considered, but no deeper ones; a file may
be packed in ``.zip`` or ``.gz``. A ROM is recognised by its program and its pictures
(PRG and CHR), never by its name or its header, and gets the header of the usual dumps.

The revisions, and the ids that use them:

=====================  ==========================================  ==========
``rom=``               contents                                    default of
=====================  ==========================================  ==========
vanilla                European revision, run at NTSC timing       ``-v0``
downsample             European with 8 PRG bytes and CHR changed   ``-v1``
pixel                  European PRG, other CHR                     ``-v2``
rectangle              World PRG, other CHR                        ``-v3``
world                  World revision, assembled in memory         --
lost-levels            Super Mario Bros. 2, converted to NROM      2 ``-v0``
lost-levels-downsample the same with other CHR                     2 ``-v1``
=====================  ==========================================  ==========
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path

from . import archives

PACKAGE = "gym-super-mario-bros"
#: The folder of modules with the names of that package and of nes-py.
STAND_INS = Path(__file__).parent / "compat" / "stand_ins"
INSTALL = "pip install 'gym-super-mario-bros>=7.4,<8'"

#: SHA-1 of the image of each revision, as ``load`` returns it.
SHA1 = {
    "vanilla": "ab30029efec6ccfc5d65dfda7fbc6e6489a80805",
    "downsample": "4bf894b301f339bce306af4813923a9900d034d1",
    "pixel": "63a520bf1a2911d7f3c343cbda42c1969e0ae184",
    "rectangle": "b0e9b156a51017c33a6b76708fc71395f8d32b15",
    "world": "ea343f4e445a9050d4b4fbac2c77d0693b1d0922",
    "lost-levels": "cc9457e33e132cd233efcc05dc8e85fc308e0fe2",
    "lost-levels-downsample": "0fcda592319f8c2b7009ca627600396fd13843c6",
}
ROMS = tuple(SHA1)
_NAME_OF = {sha1: name for name, sha1 in SHA1.items()}
# The contents of each revision, and its file in gym-super-mario-bros 7.4.
_ABOUT = {
    "vanilla": "European revision, super-mario-bros.nes",
    "downsample": "European revision, changed, super-mario-bros-downsample.nes",
    "pixel": "European revision, other tiles, super-mario-bros-pixel.nes",
    "rectangle": "World revision, other tiles, super-mario-bros-rectangle.nes",
    "world": "World revision, assembled from two files",
    "lost-levels": "Super Mario Bros. 2, super-mario-bros-2.nes",
    "lost-levels-downsample": "Super Mario Bros. 2, other tiles, "
    "super-mario-bros-2-downsample.nes",
}

# The most unknown files that a message describes.
_MOST_NAMED = 5
_HEADER_BYTES = 16
_PRG_BYTES = 32 * 1024
_CHR_BYTES = 8 * 1024
# iNES header of an NROM-256 board with vertical mirroring.
_NROM_HEADER = b"NES\x1a" + bytes([2, 1, 1, 0]) + bytes(8)
# Where the PRG of a dump begins: behind a header, behind a header and a trainer of 512
# bytes, or at once.
_PRG_OFFSETS = (_HEADER_BYTES, _HEADER_BYTES + 512, 0)
_IN_FOLDERS = (".nes", ".nes.gz", ".zip")
# Limit of a file and of its unpacked contents; no cartridge of a NES has as much.
_MOST_BYTES = 16 << 20


class RomError(ValueError):
    """No usable ROM; the message names the files found and the package to install."""


@dataclass(frozen=True)
class RomFile:
    """One file that might be a ROM.

    Attributes:
        path: path of the file.
        source: why the file was considered, for messages.
        name: the revision, one of ``ROMS``, or None.
        sha1: SHA-1 of ``image``, or of the whole file if its revision is not known, in
            hexadecimal; empty if the file cannot be read.
        problem: why the file is not in ``ROMS``; empty if it is.
        image: the ROM as ``load`` returns it; empty if its revision is not known.
    """

    path: Path
    source: str
    name: str | None
    sha1: str
    problem: str
    image: bytes = field(default=b"", repr=False)


def load(rom: str = "vanilla", rom_path: str | os.PathLike[str] = "") -> bytes:
    """Returns the iNES image of a ROM.

    Args:
        rom: which revision, one of ``ROMS``.
        rom_path: a ROM file, which is used even if it is another revision of the game
            (``revision`` says which), or a folder with ``.nes`` files in it or directly
            below. Empty: the file or folder in ``MARIO_ROM``, else the installed
            gym-super-mario-bros. A ``~`` at the beginning is the home of the user.

    Returns:
        The whole image: 16 bytes of header, PRG, CHR. Equal games are equal images,
        whatever the header of the file is.

    Raises:
        RomError: there is no such ROM, the file is damaged, or it is another game.
    """
    if rom not in SHA1:
        raise RomError(f"rom={rom!r} is not known; choose one of {', '.join(ROMS)}")
    given, origin = _given(rom_path)
    if given and not os.path.isdir(given):  # False for any text, unlike Path.is_dir()
        return _load_file(Path(given), origin, rom)
    files = find(rom_path)
    images = {file.name: file.image for file in files if file.name}
    if rom in images:
        return images[rom]
    if rom == "world" and {"rectangle", "vanilla"} <= images.keys():
        return _world(images["rectangle"], images["vanilla"])
    raise RomError(_explain_missing(rom, files, given))


def revision(rom: str = "vanilla", rom_path: str | os.PathLike[str] = "") -> str:
    """Returns which revision ``load`` returns: ``rom``, or that of the file named."""
    given, origin = _given(rom_path)
    if not given or os.path.isdir(given):
        return rom
    return _NAME_OF[hashlib.sha1(_load_file(Path(given), origin, rom)).hexdigest()]


def describe(sha1: str) -> str:
    """Describes the revision of a SHA-1 and its source.

    Args:
        sha1: SHA-1 of a whole image, in hexadecimal.
    """
    name = _NAME_OF.get(sha1)
    if name is None:
        return "an unknown revision"
    return f"{name} ({_ABOUT[name]}) of {PACKAGE} 7.4 ({INSTALL})"


def find(rom_path: str | os.PathLike[str] = "") -> list[RomFile]:
    """Lists every ROM file that ``load`` would consider, recognised or not.

    Args:
        rom_path: a file or folder; empty means ``MARIO_ROM``, else the installed
            gym-super-mario-bros.
    """
    given, origin = _given(rom_path)
    if given:
        path = Path(given)
        is_folder = os.path.isdir(path)
        paths = _in_folder(path) if is_folder else [path]
        files = [_identify(item, origin) for item in paths if os.path.isfile(item)]
        if not is_folder:
            return files
        # A .zip in a folder may be anything.
        return [f for f in files if f.name or f.path.suffix.lower() != ".zip"]
    version = _package_version()
    source = f"{PACKAGE} {version}" if version else PACKAGE
    return [_identify(item, source) for item in _package_files()]


def _given(rom_path: str | os.PathLike[str]) -> tuple[str, str]:
    """Returns the file or folder that the user names, or "", and where it is named."""
    named = os.fsdecode(rom_path or "")
    origin = "rom_path" if named else "MARIO_ROM"
    return os.path.expanduser(named or os.environ.get("MARIO_ROM", "")), origin


def _in_folder(folder: Path) -> list[Path]:
    """Lists ROM files, at most one folder deep, because "/" may be given."""
    every = sorted([*folder.glob("*"), *folder.glob("*/*")])
    return [path for path in every if path.name.lower().endswith(_IN_FOLDERS)]


def _load_file(path: Path, origin: str, rom: str) -> bytes:
    """Returns a file that the user named; it may be another revision than ``rom``."""
    if not os.path.isfile(path):
        raise RomError(
            f"{origin}={str(path)!r} does not exist; name a Super Mario Bros. .nes "
            f"file or a folder of .nes files, or leave it out and run: {INSTALL}"
        )
    file = _identify(path, origin)
    if file.name is None:
        raise RomError(
            f"{origin}={str(path)!r} cannot be used: {file.problem}. Known revisions "
            f"are {', '.join(ROMS)}, as in gym-super-mario-bros 7.4: {INSTALL}"
        )
    if file.name.startswith("lost-levels") != rom.startswith("lost-levels"):
        raise RomError(
            f"{origin}={str(path)!r} is {file.name!r}, but this id plays {rom!r}: "
            "the Lost Levels need the id SuperMarioBros2-v0 or -v1, the first game "
            "needs another id"
        )
    return file.image


def _package_version() -> str:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _package_files() -> Iterator[Path]:
    """Yields the ROM files of gym-super-mario-bros without importing it.

    An import fails under NumPy 2 and registers ids with Gym.
    """
    # Not the modules that stand in for it.
    path = [folder for folder in sys.path if Path(folder) != STAND_INS]
    spec = PathFinder.find_spec("gym_super_mario_bros", path)
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(folder).rglob("*.nes"))


def _identify(path: Path, source: str) -> RomFile:
    try:
        if path.stat().st_size > _MOST_BYTES:
            problem = f"it is no ROM: it has more than {_MOST_BYTES:,} bytes"
            return RomFile(path, source, None, "", problem)
        data = path.read_bytes()
    except OSError as error:
        return RomFile(path, source, None, "", f"it cannot be read: {error.strerror}")
    try:
        data, packing = archives.unpack(data, (".nes",), _MOST_BYTES), ""
    except ValueError as error:
        packing = f", and {error}"
    image = _canonical(data)
    sha1 = hashlib.sha1(image or data).hexdigest()
    problem = "" if image else _describe_unknown(data, sha1) + packing
    return RomFile(path, source, _NAME_OF.get(sha1), sha1, problem, image)


def _canonical(data: bytes) -> bytes:
    """Returns the image of a known revision with the usual header, else b""."""
    for offset in _PRG_OFFSETS:
        image = _NROM_HEADER + data[offset : offset + _PRG_BYTES + _CHR_BYTES]
        if hashlib.sha1(image).hexdigest() in _NAME_OF:
            return image
    return b""


def _describe_unknown(data: bytes, sha1: str) -> str:
    """Describes an unrecognised file by its header."""
    if data[:4] != b"NES\x1a":
        return (
            f"it is not an iNES file ({len(data)} bytes that start with "
            f"{data[:4].hex() or '--'}, not 4e45531a)"
        )
    if len(data) < _HEADER_BYTES:
        return f"it is truncated ({len(data)} bytes, less than a header)"
    prg_bytes, chr_bytes = data[4] * 16 * 1024, data[5] * 8 * 1024
    trainer_bytes = 512 if data[6] & 4 else 0
    expected = _HEADER_BYTES + trainer_bytes + prg_bytes + chr_bytes
    mapper = data[6] >> 4 | data[7] & 0xF0
    if mapper != 0:
        return f"it uses mapper {mapper}; only NROM (mapper 0) is supported"
    if len(data) < expected:
        return (
            f"it is truncated ({len(data)} bytes; its header declares {expected}: "
            f"{prg_bytes} PRG and {chr_bytes} CHR)"
        )
    prg = data[_HEADER_BYTES + trainer_bytes :][:prg_bytes]
    chr_rom = data[_HEADER_BYTES + trainer_bytes + prg_bytes :][:chr_bytes]
    return (
        f"it is an unknown NROM game (SHA-1 {sha1}, PRG CRC32 {zlib.crc32(prg):08X}, "
        f"CHR CRC32 {zlib.crc32(chr_rom):08X})"
    )


def _world(rectangle: bytes, vanilla: bytes) -> bytes:
    """Assembles the World revision in memory: World PRG, original CHR."""
    prg = rectangle[_HEADER_BYTES:][:_PRG_BYTES]
    chr_rom = vanilla[_HEADER_BYTES + _PRG_BYTES :][:_CHR_BYTES]
    image = _NROM_HEADER + prg + chr_rom
    sha1 = hashlib.sha1(image).hexdigest()
    if sha1 != SHA1["world"]:
        raise RomError(
            f"the assembled World revision has SHA-1 {sha1}, not {SHA1['world']}"
        )
    return image


def _explain_missing(rom: str, files: list[RomFile], given: str) -> str:
    """Returns the message for a revision that is not among ``files``."""
    version = _package_version()
    if given:
        where = f"the folder {given!r}, with the folders directly below,"
    elif version:
        where = f"{PACKAGE} {version}"
    else:
        return (
            f"no Super Mario Bros. ROM found for rom={rom!r}: {PACKAGE} is not "
            f"installed; run: {INSTALL} -- or set rom_path= or MARIO_ROM"
        )
    known = sorted(file.name for file in files if file.name)
    strange = [f"{file.path.name}: {file.problem}" for file in files if not file.name]
    if len(strange) > _MOST_NAMED:
        strange[_MOST_NAMED:] = [f"{len(strange) - _MOST_NAMED} more files"]
    found = f"{where} holds {', '.join(known) if known else 'no known ROM'}"
    if strange:
        found += f" (and {'; '.join(strange)})"
    needs = " (needs the vanilla and rectangle files)" if rom == "world" else ""
    hint = INSTALL
    if not given and version.split(".")[0].isdigit() and int(version.split(".")[0]) > 7:
        hint += (
            f" -- {version} no longer contains that file; with it, ids that end in -v0 "
            "(and SuperMarioBros2 ids whose file it contains) still work"
        )
    return f"rom={rom!r}{needs} not found: {found}; run: {hint}"
