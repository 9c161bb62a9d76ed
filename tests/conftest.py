"""Fixtures and skip rules shared by all tests.

A test that needs the game is marked ``rom``, one that needs the verification
material ``verification``, one that needs EnvPool's own environments ``families``;
they are skipped with the reason where it is missing. Set
``MARIO_REQUIRE=rom,verification`` (or ``families``) to fail instead of skipping (CI
does for what it has).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import testing_module
from material import verification_folder

# Tests need this module, which pip does not build; conftest.py of tests/pool needs it
# before pytest calls any hook.
testing_module.build()


def missing_rom() -> str:
    """Why the game cannot be played here; empty if it can."""
    from mario_envpool import rom

    try:
        rom.load("vanilla")
    except rom.RomError as error:
        return str(error)
    return ""


def missing_verification() -> str:
    """Why there is no verification material here; empty if there is."""
    folder = verification_folder()
    if (folder / "roms" / "manifest.json").is_file():
        return ""
    return f"no verification material in {folder}; set MARIO_VERIFICATION"


def missing_families() -> str:
    """Why `import envpool` fails here; empty if it does not."""
    done = subprocess.run(
        [sys.executable, "-c", "import mario_envpool, envpool"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what cannot run here, with the reason."""
    required = os.environ.get("MARIO_REQUIRE", "").split(",")
    for mark, explain in (
        ("rom", missing_rom),
        ("verification", missing_verification),
        ("families", missing_families),
    ):
        marked = [item for item in items if item.get_closest_marker(mark)]
        reason = explain() if marked else ""
        if reason and mark not in required:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def catalogues(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the catalogues of starts in a folder that is not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("catalogues")
        patch.setenv("MARIO_ENVPOOL_CACHE", str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def hangups() -> None:
    """SIGHUP ends runs, also where pytest itself was started by nohup."""
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def verification() -> Path:
    """The folder of the verification material."""
    reason = missing_verification()
    if reason:
        pytest.skip(reason)
    return verification_folder()


@pytest.fixture(scope="session")
def load_rom() -> Callable[[str], bytes]:
    """``load_rom("world")`` returns an iNES image, or skips with the reason."""
    from mario_envpool import rom

    def load(name: str) -> bytes:
        try:
            return rom.load(name)
        except rom.RomError as error:
            pytest.skip(str(error))

    return load
