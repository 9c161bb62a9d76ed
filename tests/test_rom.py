"""ROM lookup: recognition by content, the World revision, and every bad file."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import mario_envpool
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


def variants(image: bytes) -> dict[str, bytes]:
    """Files with the same game: other headers, more bytes, packed."""
    header, body = image[:16], image[16:]
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("read me.txt", "none")
        archive.writestr("Game (World).NES", image)
    return {
        "NES 2.0": header[:7] + b"\x08\0\0\0\x07\0\0\0\x01" + body,
        "no header": body,
        "horizontal": header[:6] + b"\0" + header[7:] + body,
        "battery": header[:6] + b"\x03" + header[7:] + body,
        "mapper": header[:6] + b"\x11" + header[7:] + body,
        "DiskDude!": header[:7] + b"DiskDude!" + body,
        "no magic": bytes(16) + body,
        "trailing": image + b"more" * 100,
        "trainer": header[:6] + b"\x05" + header[7:] + bytes(512) + body,
        "gz": gzip.compress(image),
        "zip": zipped.getvalue(),
        "gz of zip": gzip.compress(zipped.getvalue()),
    }


@pytest.mark.rom
@pytest.mark.parametrize("name", ["vanilla", "lost-levels"])
def test_a_game_is_known_by_its_program_and_pictures(name: str, tmp_path: Path) -> None:
    image = rom.load(name)
    for what, data in variants(image).items():
        file = tmp_path / "folder" / "any.nes"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        assert rom.load(name, file) == image, what
        (found,) = rom.find(file)
        assert (found.name, found.sha1, found.problem) == (name, rom.SHA1[name], "")
        assert rom.load(name, tmp_path) == image
    file.rename(file.with_name("b.ZIP"))
    file.with_name("c.zip").write_bytes(b"PK\x03\x04")
    assert [found.path.name for found in rom.find(tmp_path)] == ["b.ZIP"]


@pytest.mark.rom
def test_a_file_may_be_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.nes").write_bytes(rom.load("world"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rom.load("vanilla", "~/a.nes") == rom.load("world")
    assert rom.load("world", Path("~")) == rom.load("world")
    config = mario_envpool.make_spec("SuperMarioBros-v0", rom_path="~/a.nes").config
    assert config.rom_path == str(tmp_path / "a.nes")
    monkeypatch.setenv("MARIO_ROM", "~/a.nes")
    assert rom.load("vanilla") == rom.load("world")


@pytest.mark.rom
def test_the_config_names_the_revision_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.nes"
    file.write_bytes(rom.load("world"))
    pool = mario_envpool.make("SuperMarioBros-1-1-v0", rom_path=file)
    assert (pool.config["rom"], pool.config["rom_path"]) == ("world", str(file))
    # The snapshots of a ROM do not depend on how it was named.
    named = mario_envpool.make("SuperMarioBros-1-1-v0", rom="world")
    named.reset()
    pool.restore(np.zeros(1, np.int32), named.snapshot(np.zeros(1, np.int32)))
    monkeypatch.setenv("MARIO_ROM", str(file))
    assert mario_envpool.make_spec("SuperMarioBros-v0").config.rom == "world"
    monkeypatch.setenv("MARIO_ROM", str(tmp_path))
    with pytest.raises(rom.RomError, match=r"holds world; run: pip install"):
        mario_envpool.make_spec("SuperMarioBros-v0")
    with pytest.raises(TypeError, match="rom_path"):
        mario_envpool.make_spec("SuperMarioBros-v0", rom_path=3)


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    file = tmp_path / "a.nes"
    with file.open("wb") as stream:
        stream.truncate((16 << 20) + 1)
    with pytest.raises(rom.RomError, match="it has more than 16,777,216 bytes"):
        rom.load("vanilla", file)
    file.write_bytes(gzip.compress(bytes((16 << 20) + 1), 1))
    with pytest.raises(rom.RomError, match="unpacks to more than 16,777,216 bytes"):
        rom.load("vanilla", file)


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
