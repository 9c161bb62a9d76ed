"""Unpacks a file out of .gz and .zip, which may be nested, within limits.

Movies, ROMs and save states come packed. An archive says by its first bytes what it is,
never by its name.
"""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from pathlib import PurePosixPath
from typing import IO, cast

_GZIP, _ZIP = b"\x1f\x8b", (b"PK\x03\x04", b"PK\x05\x06")
#: How the names of archives end.
PACKED = (".gz", ".zip")
# An archive may contain itself, so that unpacking it would never end.
_MOST_LAYERS = 4
# Methods whose output Python bounds while it unpacks.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: What reading a damaged archive raises, beside ValueError: zipfile raises RuntimeError
#: for passwords, and NotImplementedError, which is one, for versions.
ERRORS = (EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error)


def unpack(data: bytes, suffixes: tuple[str, ...], most_bytes: int) -> bytes:
    """Returns the file in an archive; other data, and other .zip files, as they are.

    Args:
        data: the content of a file.
        suffixes: how the name of the wanted file in a .zip ends, in lower case.
        most_bytes: limit of the content of each archive.

    Raises:
        ValueError: an archive is damaged, unpacks to more than the limit, has several
            such files, or is packed too often.
    """
    for _ in range(_MOST_LAYERS):
        try:
            if data.startswith(_GZIP):
                with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                    data = read(cast(IO[bytes], file), most_bytes)
            elif data.startswith(_ZIP):
                with zipfile.ZipFile(io.BytesIO(data)) as archive:
                    member = _only(archive, suffixes)
                    if member is None:
                        return data
                    data = member_of(archive, member, most_bytes)
            else:
                return data
        except ERRORS as error:
            raise ValueError(f"its archive cannot be unpacked: {error}") from None
    raise ValueError(f"it is packed more than {_MOST_LAYERS - 1} times")


def read(file: IO[bytes], most_bytes: int) -> bytes:
    """Reads a file to its end; raises ValueError if it has more than `most_bytes`."""
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"it unpacks to more than {most_bytes:,} bytes")
    return data


def member_of(archive: zipfile.ZipFile, name: str, most_bytes: int) -> bytes:
    """Reads a file of a .zip; raises ValueError if it has more than `most_bytes`."""
    if archive.getinfo(name).compress_type not in _METHODS:
        raise ValueError(f"its {name} is not packed with deflate; pack it again")
    with archive.open(name) as file:
        return read(file, most_bytes)


def _only(archive: zipfile.ZipFile, suffixes: tuple[str, ...]) -> str | None:
    """The name of the wanted file, else of an archive; None if there is neither."""
    # macOS adds a second file, whose name begins with "._", for each file.
    names = [
        n for n in archive.namelist() if not PurePosixPath(n).name.startswith("._")
    ]
    for ends in (suffixes, PACKED):
        found = [name for name in names if name.lower().endswith(ends)]
        if len(found) > 1:
            raise ValueError(
                f"its .zip has {len(found)} files {' or '.join(ends)}: give one of them"
            )
        if found:
            return found[0]
    return None
