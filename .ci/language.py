"""Searches the texts of the repository for phrases that must not come back.

`python .ci/language.py` prints each phrase of `.ci/phrases.txt` that a text file
contains, with file, line and what to write instead. Exit status: 1 if there is one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PHRASES = ROOT / ".ci" / "phrases.txt"
SUFFIXES = {".py", ".pyi", ".ipynb", ".md", ".h", ".cc", ".inc", ".html", ".sh"}
SUFFIXES |= {".toml", ".yml"}


def phrases(text: str) -> list[tuple[re.Pattern[str], str]]:
    """The patterns of a list and the words that replace them."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [line.split("\t") for line in lines]
    # A phrase may span two lines.
    return [
        (re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE), words)
        for pattern, words in pairs
    ]


def findings(path: Path, banned: list[tuple[re.Pattern[str], str]]) -> list[str]:
    """A line for each banned phrase in a file."""
    # The sign of a comment between two lines of a sentence counts as blanks.
    text = path.read_text(encoding="utf-8")
    joined = re.sub(r"\n[ \t]*(?:///?|#|>)?[ \t]*", lambda m: " " * len(m[0]), text)
    found = []
    for pattern, words in banned:
        for match in pattern.finditer(joined):
            line = text.count("\n", 0, match.start()) + 1
            phrase = " ".join(match[0].split())
            found.append(f"{path.relative_to(ROOT)}:{line}: {phrase!r}: write {words}")
    return found


def main() -> int:
    """The command; returns the exit status."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    paths = [ROOT / name for name in listed.splitlines()]
    banned = phrases(PHRASES.read_text(encoding="utf-8"))
    texts = [path for path in paths if path.suffix in SUFFIXES and path.exists()]
    found = [line for path in texts for line in findings(path, banned)]
    print("\n".join(found) or f"no banned phrase in {len(texts)} files")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
