"""ROM lookup: recognition by content, the World revision, and every bad file."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import pytest

from mario_envpool import rom

NROM = b"NES\x1a" + bytes([2, 1, 1, 0]) + bytes(8)


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if gym-super-mario-bros were not installed and MARIO_ROM not set."""
    monkeypatch.delenv("MARIO_ROM", raising=False)
    monkeypatch.setattr(rom, "_package_files", lambda: iter(()))
    monkeypatch.setattr(rom, "_package_version", lambda: "")


def install_fake(
    folder: Path, monkeypatch: pytest.MonkeyPatch, version: str, files: list[bytes]
) -> None:
    """Puts a gym_super_mario_bros on sys.path that must not be imported."""
    package = folder / "gym_super_mario_bros"
    (package / "_roms").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('was imported')\n")
    for i, data in enumerate(files):
        (package / "_roms" / f"file{i}.nes").write_bytes(data)
    info = folder / f"gym_super_mario_bros-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: gym-super-mario-bros\nVersion: {version}\n"
    )
    monkeypatch.delenv("MARIO_ROM", raising=False)
    monkeypatch.delitem(sys.modules, "gym_super_mario_bros", raising=False)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.rom
@pytest.mark.parametrize("name", rom.ROMS)
def test_every_revision_has_its_sha1(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MARIO_ROM", raising=False)
    try:
        data = rom.load(name)
    except rom.RomError as error:
        pytest.skip(str(error))
    assert hashlib.sha1(data).hexdigest() == rom.SHA1[name]
    assert len(data) == 16 + 40 * 1024


@pytest.mark.rom
def test_a_description_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MARIO_ROM", raising=False)
    known = [file for file in rom.find() if file.name]
    assert known
    for file in known:
        said = rom.describe(file.sha1)
        assert said.startswith(f"{file.name} (")
        assert f", {file.path.name}) of gym-super-mario-bros 7.4 (pip" in said


def test_every_revision_is_described() -> None:
    for name, sha1 in rom.SHA1.items():
        assert rom.describe(sha1).startswith(f"{name} (")
    assert rom.describe("0" * 40) == "an unknown revision"


@pytest.mark.rom
def test_names_of_files_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [rom.load(name) for name in ("rectangle", "vanilla")]
    install_fake(tmp_path, monkeypatch, "7.4.0", images)
    assert [file.name for file in rom.find()] == ["rectangle", "vanilla"]
    assert rom.load("rectangle") == images[0]
    assert hashlib.sha1(rom.load("world")).hexdigest() == rom.SHA1["world"]
    assert "gym_super_mario_bros" not in sys.modules


@pytest.mark.rom
def test_version_9_plays_v0_and_explains_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [rom.load(name) for name in ("vanilla", "lost-levels")]
    install_fake(tmp_path, monkeypatch, "9.1.0", images)
    assert rom.load("vanilla") == images[0]
    assert rom.load("lost-levels") == images[1]
    for name in ("downsample", "pixel", "rectangle", "world"):
        with pytest.raises(rom.RomError) as caught:
            rom.load(name)
        message = str(caught.value)
        assert name in message
        assert "9.1.0 holds lost-levels, vanilla" in message
        assert "gym-super-mario-bros>=7.4,<8" in message


@pytest.mark.rom
def test_a_file_or_folder_of_the_user_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = tmp_path / "any name.bin"
    world.write_bytes(rom.load("world"))
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(world, folder / "x.nes")
    assert rom.load("vanilla", str(world)) == world.read_bytes()
    monkeypatch.setenv("MARIO_ROM", str(world))
    assert rom.load("vanilla") == world.read_bytes()
    monkeypatch.setenv("MARIO_ROM", str(folder))
    assert rom.load("world") == world.read_bytes()
    with pytest.raises(rom.RomError, match=r"holds world; run: pip install"):
        rom.load("vanilla")


@pytest.mark.rom
def test_the_other_game_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.nes"
    file.write_bytes(rom.load("vanilla"))
    with pytest.raises(rom.RomError, match="SuperMarioBros2-v0"):
        rom.load("lost-levels", str(file))


def test_nothing_installed(no_package: None) -> None:
    with pytest.raises(rom.RomError, match="not installed; run: pip install"):
        rom.load()
    assert rom.find() == []


def test_unknown_revision() -> None:
    with pytest.raises(rom.RomError, match=r"rom='europe' is not known.*vanilla"):
        rom.load("europe")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not an iNES file"),
        (b"PK\x03\x04" + bytes(100), r"not an iNES file .*504b0304"),
        (b"NES\x1a\x02", "truncated .5 bytes"),
        (NROM + bytes(1000), r"truncated .1016 bytes; its header declares 40976"),
        (NROM[:6] + b"\x41" + bytes(9) + bytes(40960), "uses mapper 4;"),
        (NROM[:6] + b"\x10\x40" + bytes(8) + bytes(40960), "uses mapper 65;"),
        (NROM + bytes(40960), "unknown NROM game .*PRG CRC32 011FFCA6"),
    ],
)
def test_bad_files_say_what_they_are(
    data: bytes, problem: str, tmp_path: Path, no_package: None
) -> None:
    file = tmp_path / "bad.nes"
    file.write_bytes(data)
    with pytest.raises(rom.RomError, match=problem) as caught:
        rom.load("vanilla", str(file))
    assert str(file) in str(caught.value)
    assert "pip install 'gym-super-mario-bros" in str(caught.value)
    (listed,) = rom.find(str(file))
    assert listed.name is None
    # The same file in a folder is named in the message about the folder.
    with pytest.raises(rom.RomError, match=r"holds no known ROM \(and bad.nes: it"):
        rom.load("vanilla", str(tmp_path))


def test_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(rom.RomError, match=r"rom_path='.*none.nes' does not exist"):
        rom.load("vanilla", str(tmp_path / "none.nes"))
    monkeypatch.setenv("MARIO_ROM", str(tmp_path / "none.nes"))
    with pytest.raises(rom.RomError, match=r"MARIO_ROM='.*none.nes' does not exist"):
        rom.load()


def test_a_name_that_no_file_can_have() -> None:
    with pytest.raises(rom.RomError, match=r"rom_path='x+' does not exist"):
        rom.load("vanilla", "x" * 5000)


def test_a_folder_is_searched_one_level_down(tmp_path: Path) -> None:
    deep = tmp_path / "roms" / "deep"
    deep.mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "roms", deep):
        (folder / f"in {folder.name}.nes").write_bytes(NROM)
    found = [file.path.parent for file in rom.find(str(tmp_path))]
    assert sorted(found) == [tmp_path, tmp_path / "roms"]
    with pytest.raises(
        rom.RomError, match=r"with the folders directly below, holds no"
    ):
        rom.load("vanilla", str(tmp_path))


def test_a_folder_of_other_games_gives_a_short_message(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"game {i:02}.nes").write_bytes(NROM)
    with pytest.raises(
        rom.RomError, match=r"game 04.nes: .*; 25 more files\)"
    ) as caught:
        rom.load("vanilla", str(tmp_path))
    assert "game 05" not in str(caught.value)


def test_a_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.nes"
    file.touch()

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    for given in (file, tmp_path):
        with pytest.raises(rom.RomError, match="cannot be read: Permission denied"):
            rom.load("vanilla", str(given))
