"""Reads edited files of other programs: each is read, or refused with its reason.

    python tests/hardening/test_readers.py --inputs 1000000

An input is a valid file, edited: bytes overwritten, cut out or repeated, or lines
exchanged, before or after it is packed. A reader may raise ValueError only.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import random
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import rom_builder

from mario_envpool import archives, nes, rom, states
from trainer.planning import movies

MOST_BYTES = 1 << 20

# A program of ours, as if it were the game.
KNOWN = rom._NROM_HEADER + rom_builder.stand_in()[16:]

FM2 = b"""version 3
emuVersion 22020
palFlag 0
romFilename M\xe9lanie
romChecksum base64:jjYwGG411HcjG/j9UOVM3Q==
fourscore 0
port0 1
port1 1
port2 0
FDS 0
|1|........|........||
|0|RLDUTSBA|........||
|0|R......A|........||
"""
BK2_HEADER = (
    b"MovieVersion BizHawk v2.0.0\nPlatform NES\nMD5 8e3630186e35d477231bf8fd50e54cdd"
)
BK2_LOG = (
    f"[Input]\n{movies._BK2_KEY}\n|P.|U......A|\n|..|.D......|\n[/Input]\n".encode()
)
# Numbers and words at the edges of what a field may hold.
WORDS = [
    b"",
    b"0",
    b"1",
    b"-1",
    b"2",
    b"31",
    b"9" * 5000,
    b"|",
    b"||||",
    b"\n",
    b"\x85",
]
WORDS += [b"base64:", b"\xff", b"\0" * 9, b"PK\x03\x04", b"\x1f\x8b", b"#", b"LogKey:"]


class Edits:
    """Makes inputs from a seed."""

    def __init__(self, seed: int, folder: str) -> None:
        self.random = random.Random(seed)
        self.file = Path(folder) / "input"

    def edited(self, data: bytes) -> bytes:
        """The data with up to four edits."""
        for _ in range(self.random.randrange(5)):
            at = self.random.randrange(len(data) + 1)
            end = min(len(data), at + self.random.choice([0, 1, 1, 2, 4, 9, 60]))
            new = self.random.choice([*WORDS, self.random.randbytes(end - at)])
            if self.random.random() < 0.2:  # cut off, or repeated
                new = self.random.choice([b"", data[at:end] * 3])
            data = data[:at] + new + data[end:]
        return data

    def exchanged(self, data: bytes) -> bytes:
        """The data with its lines in another order, in one case of eight."""
        if self.random.randrange(8):
            return data
        lines = data.split(b"\n")
        self.random.shuffle(lines)
        return b"\n".join(lines)

    def packed(self, data: bytes, name: str) -> bytes:
        """The data in up to four archives, edited now and then."""
        for _ in range(self.random.choice([0, 0, 1, 1, 2, 3, 4])):
            if self.random.random() < 0.5:
                data, name = gzip.compress(data, 1), name + ".gz"
            else:
                more = {"read me.txt": b"", f"__MACOSX/._{name}": b"", "b.zip": b""}
                some = self.random.sample(list(more), self.random.randrange(4))
                data = zipped({name: data, **{other: more[other] for other in some}})
                name += ".zip"
            if self.random.random() < 0.1:
                data = self.edited(data)
        return data

    def movie(self) -> bytes:
        """An .fm2 or .bk2 file."""
        if self.random.random() < 0.5:
            return self.packed(self.edited(self.exchanged(FM2)), "a.fm2")
        parts = {"Header.txt": BK2_HEADER, "Input Log.txt": BK2_LOG}
        edited = {n: self.edited(self.exchanged(part)) for n, part in parts.items()}
        return self.packed(zipped(edited), "a.bk2")


def zipped(files: dict[str, bytes]) -> bytes:
    """A .zip of some files, with one of the methods of compression."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return made.getvalue()


def read_movie(edits: Edits) -> None:
    """Reads a movie."""
    movie = movies.parse(edits.movie())
    assert movie.kind in (movies.FM2, movies.BK2)
    assert movie.buttons


def read_rom(edits: Edits) -> None:
    """Reads a ROM file; one that is read is the known one."""
    edits.file.write_bytes(edits.packed(edits.edited(KNOWN), "a.nes"))
    assert rom.load("world", edits.file) == KNOWN


def read_state(edits: Edits) -> None:
    """Reads a save state; a console plays on from one that is read."""
    packed = edits.packed(edits.edited(STATE), f"a{states.SUFFIX}")
    edits.file.with_name("known").write_bytes(KNOWN)
    edits.file.write_bytes(packed)
    save = states.load(edits.file, "world", edits.file.with_name("known"))
    console = nes.Console(KNOWN)
    console.load(save)
    console.step(edits.random.randrange(256))


def fceumm(entries: dict[str, bytes]) -> bytes:
    """A file of FCEUmm with these entries."""
    body = b"".join(
        name.encode().ljust(4, b"\0") + len(value).to_bytes(4, "little") + value
        for name, value in entries.items()
    )
    chunk = b"\x01" + len(body).to_bytes(4, "little") + body
    return b"FCS\xff".ljust(16, b"\0") + chunk


# A state of that program, which waits in a loop. The place of the loop is in the ROM.
_LOOP = next(
    pc
    for pc in range(0x8000, 0x10000)
    if KNOWN[pc - 0x7FF0 : pc - 0x7FED] == bytes([0x4C, pc & 0xFF, pc >> 8])
)
_ENTRIES = {name: bytes(size) for name, size in states._SIZES.items()}
_ENTRIES |= {"PC": _LOOP.to_bytes(2, "little"), "PPUR": b"\x90\x1e\0\0"}
_ENTRIES["RAM"] = bytes(2047) + b"\xa5"
STATE = fceumm(_ENTRIES)

READERS: dict[str, Callable[[Edits], None]] = {
    "movie": read_movie,
    "rom": read_rom,
    "state": read_state,
}


def run(kind: str, seed: int, inputs: int) -> Counter[str]:
    """Reads inputs of one kind; counts what became of them."""
    counts = Counter[str]()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setitem(rom._NAME_OF, hashlib.sha1(KNOWN).hexdigest(), "world")
        edits = Edits(seed, folder)
        for number in range(inputs):
            try:
                READERS[kind](edits)
                counts["read"] += 1
            except ValueError as error:
                counts["refused" if str(error) else "refused without a reason"] += 1
            except Exception as error:
                raise AssertionError(
                    f"{kind}, seed {seed}, input {number}: {error!r}"
                ) from error
    return counts


@pytest.mark.parametrize("kind", READERS)
def test_an_edited_file_is_read_or_refused(kind: str) -> None:
    counts = run(kind, 1, 1000)
    assert counts.keys() == {"read", "refused"}
    assert min(counts.values()) > 100


def bomb(layers: int) -> bytes:
    """Zeros in nested archives, the innermost of 2 MiB."""
    data = gzip.compress(bytes(2 << 20))
    for _ in range(layers):
        data = zipped({"a.fm2": data})
    return data


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_limits_hold_through_nested_archives(layers: int) -> None:
    with pytest.raises(ValueError, match="unpacks to more than 1,048,576 bytes"):
        archives.unpack(bomb(layers), (".fm2",), MOST_BYTES)
    assert len(archives.unpack(bomb(layers), (".fm2",), 2 << 20)) == 2 << 20


def test_archives_end() -> None:
    with pytest.raises(ValueError, match="it is packed more than 3 times"):
        archives.unpack(bomb(3), (".fm2",), 2 << 20)


def test_a_size_that_is_not_true_changes_nothing() -> None:
    """The size in the directory of a .zip is only what its writer says."""
    packed = bytearray(zipped({"a.fm2": bytes(2 << 20)}))
    at = packed.index(b"PK\x01\x02") + 24
    packed[at : at + 4] = (100).to_bytes(4, "little")
    with pytest.raises(ValueError, match="its archive cannot be unpacked"):
        archives.unpack(bytes(packed), (".fm2",), MOST_BYTES)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.nes": b"1", "b.nes": b"2"}, "has 2 files .nes: give one of them"),
        ({"a.gz": b"1", "b.zip": b"2"}, "has 2 files .gz or .zip: give one of them"),
    ],
)
def test_one_file_of_an_archive_is_meant(files: dict[str, bytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        archives.unpack(zipped(files), (".nes",), MOST_BYTES)
    files.popitem()
    mac = {f"__MACOSX/._{name}": b"3" for name in files}
    assert archives.unpack(zipped(files | mac), (".nes",), MOST_BYTES) == b"1"


def test_other_data_and_other_archives_come_back() -> None:
    for data in (b"", b"PK", b"NES", zipped({"Header.txt": b"1"}), zipped({})):
        assert archives.unpack(data, (".nes",), MOST_BYTES) == data


def main() -> None:
    """Reads many inputs of each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for kind in READERS:
        start = time.monotonic()
        counts = run(kind, given.seed, given.inputs)
        print(f"{kind}: {dict(counts)} in {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
