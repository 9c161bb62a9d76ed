"""Atomic writes: a file is complete or unchanged, whatever happens meanwhile."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

TEMPORARY = ".tmp"


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Replaces a file atomically: writes a temporary file, then renames it."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb") as file:
            if private:
                temporary.chmod(0o600)  # while it is empty
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # The error of a full disk names no file.
        if isinstance(error, OSError) and error.errno and not error.filename:
            error.filename = str(path)
        raise
    if os.name == "nt":
        return  # folders cannot be opened there
    # The folder records the rename.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def make_folder(folder: Path) -> None:
    """Creates a folder and those above it; an error says what to do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"cannot write to the folder {folder} ({error.strerror}); choose another"
        ) from error


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    """Replaces a file by a text; see `replacing`."""
    with replacing(path, private=private) as file:
        file.write(text.encode())


def write_json(
    path: Path, content: Mapping[str, Any], *, indent: int = 2, private: bool = False
) -> None:
    """Replaces a file by an indented JSON object; see `replacing`."""
    write_text(path, json.dumps(content, indent=indent) + "\n", private=private)


def copy(source: Path, path: Path) -> None:
    """Replaces a file by a copy of another; see `replacing`."""
    with source.open("rb") as original, replacing(path) as file:
        shutil.copyfileobj(original, file)


# The newest episodes of a run, and those before them.
EPISODES = ("episodes.jsonl", "episodes.1.jsonl")
_MOST_BYTES = 100_000_000  # of a file of episodes


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row as a line of JSON; numbers that are not finite become null."""
    # Python writes NaN as a bare word, which is not valid JSON.
    plain = {
        k: None if isinstance(v, float) and not math.isfinite(v) else v
        for k, v in row.items()
    }
    return (json.dumps(plain) + "\n").encode()


class Lines:
    """A file of JSON objects, one per line; a full disk loses lines but no run.

    A file of `EPISODES` that is full is renamed, and replaces the one before it.
    """

    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        self._path, self._log = path, log
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise OSError(
                f"cannot write to {path} ({error.strerror}); move it away, or choose "
                "another folder"
            ) from error
        self._lost = 0

    def write(self, row: Mapping[str, Any]) -> bool:
        """Appends a whole line or nothing; returns whether the line is written."""
        line = json_line(row)
        end = self._file.seek(0, os.SEEK_END)
        try:
            if self._path.name == EPISODES[0] and end > _MOST_BYTES:
                self._path.replace(self._path.with_name(EPISODES[1]))
                old, self._file = self._file, self._path.open("ab", buffering=0)
                old.close()
                end = 0
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._file.truncate(end)
            if not self._lost:
                self._log(
                    f"could not write to {self._path} ({error.strerror}); training "
                    "continues without these lines"
                )
            self._lost += 1
            return False
        if self._lost:
            self._log(f"writing to {self._path} again; {self._lost} lines are missing")
            self._lost = 0
        return True

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def same_folder(one: Path | None, other: Path | None) -> bool:
    """Whether two paths lead to the same folder; False if one is None."""
    return one is not None and other is not None and one.resolve() == other.resolve()


def drop_after(run_dir: Path, step: int) -> int:
    """Drops the rows of a run beyond a step, and incomplete rows."""
    dropped = 0
    of_steps = "metrics.jsonl", *EPISODES
    for name, key in (*((n, "step") for n in of_steps), ("evaluations.jsonl", "steps")):
        path = run_dir / name
        if not path.is_file():
            continue
        # Bytes, because the file may contain anything after a power cut. Line by line,
        # because it may be large.
        with path.open("rb") as lines:
            lost = sum(_step_in(line, key) > step for line in lines)
            if lost:
                lines.seek(0)
                with replacing(path) as file:
                    file.writelines(x for x in lines if _step_in(x, key) <= step)
        dropped += lost
    return dropped


def _step_in(line: bytes, key: str) -> float:
    """The step of a row; infinite if the row is damaged or incomplete."""
    try:
        return float(json.loads(line)[key]) if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf
