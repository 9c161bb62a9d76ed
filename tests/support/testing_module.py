"""Builds `mario_envpool._testing`, which tests and benches use and pip does not build.

    python tests/support/testing_module.py

pytest does this by itself when the module is missing or older than the sources of the
tests or than `mario_envpool._core`. The build folder is that of `pip install -e .`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent.parent
# Of an editable install, as setup.py names it.
BUILD = ROOT / f"build/editable-{hashlib.sha1(sys.prefix.encode()).hexdigest()[:8]}"


def build() -> None:
    """Builds the module unless it is new; RuntimeError says what is missing or failed.

    Processes take turns.
    """
    from mario_envpool import _core

    core = Path(_core.__file__)
    module = core.with_name(core.name.replace("_core", "_testing"))
    BUILD.mkdir(parents=True, exist_ok=True)
    with FileLock(BUILD / "testing.lock"):
        sources = [
            core,
            *ROOT.glob("tests/cpp/*.h"),
            *ROOT.glob("tests/cpp/*_module.cc"),
        ]
        newest = max(source.stat().st_mtime for source in sources)
        if module.exists() and module.stat().st_mtime >= newest:
            return
        cmake, ninja = tool("cmake"), tool("ninja")
        run(
            *(cmake, "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            f"-DPython_EXECUTABLE={sys.executable}",
            "-DMARIO_BUILD_TESTING_MODULE=ON",
        )
        run(cmake, "--build", str(BUILD), "--target", "_testing")
        shutil.copyfile(BUILD / module.name, module)


def tool(name: str) -> str:
    """The path of a program, which may be in a virtual environment not on PATH."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if found is None:
        raise RuntimeError(f"{name} not found; pip install -e '.[test]' installs it")
    return found


def run(*command: str) -> None:
    """Runs a command; RuntimeError has its output."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"mario_envpool._testing cannot be built: {' '.join(command)} failed:\n"
            f"{done.stdout}"
        )


if __name__ == "__main__":
    build()
