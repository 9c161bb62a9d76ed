"""What ARCHITECTURE.md says of csrc and no compiler checks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
REGISTERS = "cycle|i_change|pc|a|x|y|sp|p|i_before|jammed"
WRITES = re.compile(
    rf"(\+\+|--)\s*[\w.>-]*\bcpu(\.|->)({REGISTERS})\b"
    rf"|\bcpu(\.|->)({REGISTERS})\s*(\+\+|--|[-+*/|&^%]?=(?!=)|<<=|>>=)"
)
# A tool that sets registers by hand, between two runs.
BY_HAND = {"python/console_binding.h"}
# The interpreter, and the one that runs translated code instead.
ENGINES = {"cpu", "translation"}


def test_only_the_engines_write_the_registers() -> None:
    csrc = ROOT / "csrc"
    found = [
        f"{path.relative_to(csrc)}:{number}: {line.strip()}"
        for path in sorted(csrc.rglob("*.[ch]*"))
        if path.stem not in ENGINES and str(path.relative_to(csrc)) not in BY_HAND
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if WRITES.search(line.split("//")[0])
    ]
    assert not found, "\n".join(found)
    # The pattern sees such a line at all.
    assert WRITES.search((csrc / "nes" / "cpu.cc").read_text().replace("->", "."))


def test_every_fuzz_target_has_kept_inputs() -> None:
    """``replay.cc`` refuses an empty folder; each target must have its folder."""
    cmake = (ROOT / "CMakeLists.txt").read_text()
    named = re.findall(r"set\(fuzz_targets (\w+)\)|fuzz_targets ([\w ]+)\)", cmake)
    targets = {word for pair in named for text in pair for word in text.split()}
    folders = {
        folder.name: sum(not file.name.startswith(".") for file in folder.iterdir())
        for folder in (ROOT / "tests" / "fuzz" / "regressions").iterdir()
    }
    assert targets == set(folders)
    assert all(count > 0 for count in folders.values()), folders
