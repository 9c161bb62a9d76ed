"""Recordings of play, movies of other emulators, data sets of Minari."""

from __future__ import annotations

import gzip
import json
import sys
import zipfile
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_runs import save_policy
from watching import FakeScreen

from mario_envpool import nes, rom
from trainer import plan as command
from trainer import watch
from trainer.config.schema import EnvConfig
from trainer.film.filmed_env import FilmedEnv, game_config
from trainer.film.recorder import Recorder
from trainer.planning import demonstration, minari_data, movies


def sums(pictures):
    return [zlib.crc32(picture.tobytes()) for picture in pictures]


@pytest.fixture
def shown(monkeypatch):
    """A checksum of every picture of every step that is played."""
    found, step = [], FilmedEnv.step

    def spied(self, action):
        result = step(self, action)
        found.extend(sums(result.frames))
        return result

    monkeypatch.setattr(FilmedEnv, "step", spied)
    return found


def replayed(made):
    """A checksum of every picture of a demonstration, without its idle frames."""
    demonstration.verify(made)
    return sums(demonstration.pictures(made))


# -- recordings ----------------------------------------------------------------


@pytest.mark.rom
def test_play_of_a_policy_replays_exactly(tmp_path, shown, capsys):
    save_policy(tmp_path, 1000)
    file = tmp_path / "kept" / "play.json"
    words = ["--policy", str(tmp_path), "--record", str(file), "--display", "none"]
    assert watch.main([*words, "--episodes", "2", "--seed", "5"]) == 0
    made = [demonstration.load(file.with_name(n)) for n in ("play.json", "play-2.json")]
    assert f"recorded {file}: {made[0].frames} frames, died" in capsys.readouterr().out
    assert {m.level for m in made} == {"1-1"}
    pictures = [replayed(m) for m in made]
    idle = sum(map(len, pictures)) - len(shown)
    first = len(pictures[0]) - next(
        n for n in range(31) if pictures[0][n:] == shown[: len(pictures[0]) - n]
    )
    second = shown[first:]
    assert pictures[0][-first:] + pictures[1][-len(second) :] == shown
    assert 0 <= idle <= 60
    assert all(set(m.buttons) == {0, nes.RIGHT | nes.A | nes.B} for m in made)


@pytest.mark.rom
def test_play_of_a_person_replays_exactly(tmp_path, shown, monkeypatch, capsys):
    random = np.random.default_rng(3)
    screen = FakeScreen(last=150)
    keys = [0, nes.RIGHT, nes.RIGHT | nes.B, nes.RIGHT | nes.A, nes.LEFT, nes.DOWN]
    screen.buttons = lambda: int(keys[random.integers(len(keys))])
    monkeypatch.setattr(watch, "Window", lambda: screen)
    file = tmp_path / "play.json"
    words = ["--human", "--level", "1-2", "--speed", "1000", "--record", str(file)]
    assert watch.main(words) == 0
    made = demonstration.load(file)
    assert (made.level, made.ending) == ("1-2", "stopped")
    assert len(set(made.buttons)) == len(keys)
    assert replayed(made) == shown
    assert "frames, stopped" in capsys.readouterr().out
    assert command.main(["--replay", str(file)]) == 0
    assert "plays as recorded (it stopped)" in capsys.readouterr().out


@pytest.mark.rom
def test_skipped_waits_of_a_whole_game_replay(tmp_path, shown):
    """A life is lost on the way, and the next one begins."""
    game = FilmedEnv(game_config(EnvConfig(task="SuperMarioBros-v0", noop_max=0)))
    recorder = Recorder(tmp_path / "game.json")
    lives = game.reset().info["life"]
    recorder.begin(game)
    while game.step(1).info["life"] == lives:
        pass
    for _ in range(30):
        game.step(3)
    recorder.end()
    made = demonstration.load(tmp_path / "game.json")
    assert made.level == ""
    assert replayed(made) == shown


@pytest.mark.rom
def test_what_cannot_be_played_again_is_refused(tmp_path):
    recorder = Recorder(tmp_path / "play.json")
    sticky = EnvConfig(repeat_action_probability=0.25)
    game = FilmedEnv(game_config(sticky, level="1-1"))
    game.reset()
    with pytest.raises(
        ValueError, match=r"episodes with repeat_action_probability=0.25 cannot"
    ):
        recorder.begin(game)
    game = FilmedEnv(game_config(EnvConfig(), level="1-1"))
    game.reset()
    game.step(1)
    with pytest.raises(ValueError, match="must begin at the start of 1-1"):
        recorder.begin(game)
    assert recorder.end() == ""
    assert not list(tmp_path.iterdir())


# -- movies --------------------------------------------------------------------


@pytest.fixture
def sprilo(verification):
    """The image of a free game, and the buttons of a movie of it."""
    folder = verification / "tas"
    buttons = gzip.decompress((folder / "sprilo.bin.gz").read_bytes())
    return (folder / "sprilo.nes").read_bytes(), buttons


@pytest.mark.verification
@pytest.mark.parametrize("kind", ["fm2", "bk2"])
def test_buttons_of_a_movie_come_back(sprilo, tmp_path, kind):
    image, buttons = sprilo
    assert len(buttons) == 4572
    path = tmp_path / f"sprilo.{kind}"
    write = {"fm2": movies.write_fm2, "bk2": movies.write_bk2}[kind]
    write(path, buttons, image, "Sprilo")
    found = movies.read(path)
    assert found.buttons == buttons
    assert found.rom_sum in movies._sums(image)
    with pytest.raises(
        ValueError, match="the movie is for another ROM: no installed ROM"
    ):
        movies.rom_of(found)


def test_every_button_comes_back(tmp_path):
    buttons = bytes(range(256))
    for write, name in ((movies.write_fm2, "a.fm2"), (movies.write_bk2, "a.bk2")):
        write(tmp_path / name, buttons, bytes(64), "none")
        assert movies.read(tmp_path / name).buttons == buttons


@pytest.mark.rom
@pytest.mark.verification
def test_a_speed_run_is_imported_and_plays_to_its_end(
    verification, load_rom, tmp_path, capsys
):
    load_rom("world")
    packed = verification / "tas" / "smb-warps.fceux-lead2.fm2.gz"
    path = tmp_path / "warps.fm2"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    words = ["--import", str(path), "--out", str(tmp_path), "--bk2"]
    assert command.main(words) == 0
    assert "17,866 frames" in (out := capsys.readouterr().out)
    assert "plays to its end" in out
    made = demonstration.load(tmp_path / "warps.json")
    assert (made.options["rom"], made.start, made.ending) == (
        *("world", "power-on", "cleared"),
    )
    console = nes.Console(rom.load("world"))
    console.step_many(made.buttons)
    assert [int(console.ram[a]) for a in (0x75F, 0x75C, 0x770)] == [7, 3, 2]
    assert movies.read(tmp_path / "warps.bk2").buttons == made.buttons
    with pytest.raises(ValueError, match="begins at power-on"):
        demonstration.environment(made)


FM2 = "version 3\npalFlag 0\nport0 1\nromChecksum base64:AAAA\n"
FRAME = "|0|........|||\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not an .fm2 file"),
        (FM2, "it has no frames"),
        (FM2 + "|0|R.......", "frame 0 is damaged"),
        (FM2 + "|0|R.......|||\n|0|....|||", "frame 1 is damaged"),
        (FM2 + FRAME + "|1|........|||", "the console is reset in frame 1"),
        (FM2 + FRAME + "|2|........|||", "the console is reset in frame 1"),
        (FM2 + "|4|........|||", "frame 0 has the command 4 of another machine"),
        (FM2 + "|x|........|||", "frame 0 is damaged"),
        (FM2 + "|0|........|R.......||", "the second controller is used in frame 0"),
        (FM2.replace("port0 1", "port0 5"), "it has no gamepad in the first port"),
        (FM2 + "port1 2\n", "another device than a gamepad in the second port"),
        (FM2 + "port2 1\n", "it has a device in the expansion port"),
        (FM2 + "savestate base64:AAAA\n", "it begins from a saved state"),
        (FM2 + "binary 1\n", "it is in the binary format"),
        (FM2.replace("AAAA", "???") + FRAME, "romChecksum is damaged"),
        (b"\xff\xfe\x00", "cannot be imported"),
    ],
)
def test_a_movie_of_fceux_that_is_damaged_or_more(tmp_path, text, message):
    path = tmp_path / "a.fm2"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        movies.read(path)


LOG = "[Input]\n" + movies._BK2_KEY + "\n|..|........|\n"


@pytest.mark.parametrize(
    ("header", "log", "message"),
    [
        (None, LOG, "it has no Header.txt"),
        ("Platform SNES\n", LOG, "it is for the platform SNES"),
        ("StartsFromSavestate True\n", LOG, "it begins from a saved state"),
        ("", LOG + "|P.|........|\n", "Reset is pressed in frame 1"),
        ("", LOG + "|.P|........|\n", "Power is pressed in frame 1"),
        ("", LOG + "|..|....|\n", "frame 1 is damaged"),
        ("", "|..|........|\n", "has 0 LogKey lines, must have one"),
        ("", LOG.replace("P1", "P2"), "its LogKey does not have the gamepad P1"),
    ],
)
def test_a_movie_of_bizhawk_that_is_damaged_or_more(tmp_path, header, log, message):
    path = tmp_path / "a.bk2"
    with zipfile.ZipFile(path, "w") as archive:
        if header is not None:
            archive.writestr("Header.txt", header)
        archive.writestr("Input Log.txt", log)
    with pytest.raises(ValueError, match=message):
        movies.read(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match="cannot be imported"):
        movies.read(path)


def test_a_recording_of_gym_retro_is_named(tmp_path):
    """It begins from a saved state, and its log has another line of keys."""
    path = tmp_path / "a.bk2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("Header.txt", "MovieVersion Retro\nPlatform NES\nSHA1 ?\n")
        archive.writestr("Input Log.txt", "[Input]\nP1 A|P1 Right|\n|..|A.|\n")
        archive.writestr("Core.bin", b"FCS\xff")
    message = r"recording of gym-retro, .* --starts FILE\.state"
    with pytest.raises(ValueError, match=message):
        movies.read(path)


def test_the_first_frame_may_switch_the_console_on(tmp_path):
    """The header may be that of a PAL movie, in another encoding than UTF-8."""
    header = FM2.replace("palFlag 0", "palFlag 1").encode() + b"romFilename \xe9\n"
    for number in (b"1", b"2", b"3", b""):
        path = tmp_path / "a.fm2"
        path.write_bytes(header + b"|" + number + b"|R......A|||\n" + FRAME.encode())
        assert movies.read(path) == (".fm2", bytes([0x81, 0]), "000000")
    for commands in ("P.", ".r", "Pr"):
        path = tmp_path / "a.bk2"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("Header.txt", "PAL 1\nMD5 AB\n")
            log = LOG.replace("|..|........|", f"|{commands}|.......A|")
            archive.writestr("Input Log.txt", log)
        assert movies.read(path) == (".bk2", bytes([nes.A]), "ab")


@pytest.mark.parametrize("kind", ["fm2", "bk2"])
def test_a_movie_may_be_packed(tmp_path, kind):
    write = {"fm2": movies.write_fm2, "bk2": movies.write_bk2}[kind]
    plain = tmp_path / f"a.{kind}"
    write(plain, bytes(range(9)), bytes(64), "none")
    packed = tmp_path / f"a.{kind}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    zipped = tmp_path / "b.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.write(plain, "other name.FM2" if kind == "fm2" else "a.bk2")
        archive.writestr("read me.txt", "none")
    assert movies.read(packed) == movies.read(zipped) == movies.read(plain)
    assert [movies.name_of(p) for p in (plain, packed, zipped)] == ["a", "a", "b"]
    zipped.write_bytes(zipped.read_bytes()[:60])
    with pytest.raises(ValueError, match="its archive cannot be unpacked"):
        movies.read(zipped)


def strangers(verification):
    """The movies of other people, and the frame in which each ends."""
    folder = verification / "movies"
    return folder, json.loads((folder / "expected.json").read_text())


@pytest.mark.rom
@pytest.mark.verification
@pytest.mark.slow
def test_movies_of_other_people_play_to_their_end(verification, load_rom):
    load_rom("world")
    folder, ends = strangers(verification)
    assert len(ends) == 19
    for name, frames in ends.items():
        foreign = "no-checksum" in name or "latin1" in name or "stops" in name
        made = demonstration.from_movie(folder / name, "world" if foreign else "")
        assert made.options["rom"] == ("vanilla" if "pal" in name else "world")
        if frames is not None:
            assert (made.ending, made.frames) == ("cleared", frames), name
        else:
            assert (made.ending, demonstration.last_level(made)) == ("stopped", "4-2")


@pytest.mark.rom
@pytest.mark.verification
def test_the_status_says_how_a_movie_ends(verification, load_rom, tmp_path, capsys):
    load_rom("world")
    folder, ends = strangers(verification)

    def run(*words):
        status = command.main(["--import", *map(str, words), "--out", str(tmp_path)])
        said = capsys.readouterr()
        return status, said.out, said.err

    status, out, _ = run(folder / "human-latin1-0.fm2", "--rom", "world")
    assert status == 0
    assert f"{ends['human-latin1-0.fm2']:,} frames" in out
    status, out, _ = run(folder / "human-stops-0.fm2", "--rom", "world")
    assert status == 3
    assert "plays as recorded (it stopped in 4-2)" in out
    assert demonstration.load(tmp_path / "human-stops-0.json").ending == "stopped"
    status, _, err = run(folder / "human-latin1-0.fm2")
    assert status == 4
    assert "no installed ROM (vanilla, " in err
    assert "name it: --rom world" in err
    (tmp_path / "bad.fm2").write_text("none")
    status, _, err = run(tmp_path / "bad.fm2")
    assert status == 1
    assert "it is not an .fm2 file" in err
    assert run(tmp_path / "bad.fm2", folder / "human-latin1-0.fm2")[0] == 4


def test_files_that_are_no_movies(tmp_path, capsys):
    text = tmp_path / "a.txt"
    text.write_text("none")
    assert command.main(["--import", str(text), str(tmp_path / "none.fm2")]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"error: {text} is not a supported movie; give .fm2 or .bk2"
    assert second.startswith(f"error: {tmp_path / 'none.fm2'} does not exist")
    for words, message in (
        (["--import", "a.fm2", "--replay", "a.json"], "either --replay or --import"),
        (["--import", "a.fm2", "--levels", "1-1"], "--import does not search"),
        (["--minari", "a-v0"], "--minari makes a data set of files"),
        (["--bk2", "--levels", "1-2"], "--bk2 writes movies from power-on"),
        (["--rom", "world"], "--rom names the ROM of movies: it needs --import FILES"),
        (["--import", "a.fm2", "--rom", "europe"], "rom must be one of vanilla, "),
    ):
        assert command.main(words) == 2
        assert message in capsys.readouterr().err


# -- Minari --------------------------------------------------------------------


@pytest.fixture
def played(tmp_path):
    """A recording of 40 frames in 1-1."""
    config = game_config(EnvConfig(noop_max=3), level="1-1")
    game = FilmedEnv(config, seed=1)
    recorder = Recorder(tmp_path / "play.json")
    game.reset()
    recorder.begin(game)
    for action in (1, 3, 4, 2, 0) * 2:
        game.step(action)
    recorder.end()
    return demonstration.load(tmp_path / "play.json")


@pytest.mark.rom
def test_minari_loads_the_data_set(played, tmp_path, monkeypatch, capsys):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    shorter = tmp_path / "shorter.json"
    demonstration.record(
        played.task, played.level, played.options, played.buttons[:25], to_flag=False
    ).save(shorter)
    words = ["--replay", str(tmp_path / "play.json"), str(shorter)]
    assert command.main([*words, "--minari", "mario/1-1-v0"]) == 0
    assert str(tmp_path / "sets" / "mario" / "1-1-v0") in capsys.readouterr().out
    dataset = minari.load_dataset("mario/1-1-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (2, played.frames + 25)
    first, second = dataset.iterate_episodes()
    assert bytes(first.actions.tolist()) == played.buttons
    assert bytes(second.actions.tolist()) == played.buttons[:25]
    assert first.rewards.sum() == played.reward
    assert first.truncations[-1]
    assert not first.terminations.any()
    env = demonstration.environment(played, obs_type="gray")
    seen = [env.reset()["obs"]]
    seen += [env.step(byte)[3]["obs"] for byte in played.buttons]
    assert (first.observations == np.stack(seen)).all()
    again = dataset.recover_environment()
    obs, _ = again.reset(seed=0)
    assert (obs == first.observations[0]).all()
    again.close()
    assert command.main([*words, "--minari", "mario/1-1-v0"]) == 2
    assert "the data set mario/1-1-v0 already exists" in capsys.readouterr().err


@pytest.mark.rom
@pytest.mark.parametrize("obs", ["rgb", "tiles"])
def test_a_data_set_of_several_levels(played, tmp_path, monkeypatch, obs):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    paths = []
    for level in ("1-1", "4-2", "1-1"):
        made = demonstration.record(
            played.task, level, played.options, bytes([129] * 20), to_flag=False
        )
        paths.append(str(tmp_path / f"{len(paths)}.json"))
        made.save(Path(paths[-1]))
    words = ["--replay", *paths, "--minari", f"mario/{obs}-v0", "--minari-obs", obs]
    assert command.main(words) == 0
    dataset = minari.load_dataset(f"mario/{obs}-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (3, 60)
    for episode, level in zip(
        dataset.iterate_episodes(), ("1-1", "4-2", "1-1"), strict=True
    ):
        world, stage = map(int, level.split("-"))
        assert set(episode.infos["world"].tolist()) == {world}
        assert set(episode.infos["stage"].tolist()) == {stage}
        env = demonstration.environment(replace(played, level=level), obs_type=obs)
        expected = [env.reset()["obs"]]
        expected += [env.step(129)[3]["obs"] for _ in range(20)]
        seen = episode.observations
        if obs == "tiles":
            assert seen["motion"].shape == (21, 8, 6)
            seen = seen["tiles"]
        np.testing.assert_array_equal(seen, np.stack(expected).reshape(seen.shape))
    with closing(dataset.recover_environment()) as env:
        drawn, _ = env.reset(seed=0)
        assert env.observation_space.contains(drawn)
    assert command.main(["--replay", *paths, "--minari-obs", "rgb"]) == 2


@pytest.mark.rom
def test_a_data_set_is_of_one_kind(played, tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    other = replace(played, level="")
    with pytest.raises(ValueError, match=r"but the whole game .* differs from 1-1"):
        minari_data.export([played, other], "a-v0")
    other = replace(played, options=played.options | {"power_on_ram": 255})
    with pytest.raises(ValueError, match="a data set needs one game, one ROM and one"):
        minari_data.export([played, other], "a-v0")
    movie = replace(played, start="power-on")
    with pytest.raises(ValueError, match="a movie from power-on is not an episode"):
        minari_data.export([movie], "a-v0")
    with pytest.raises(
        ValueError, match="but was recorded with 63 frames and reward 99"
    ):
        minari_data.export([replace(played, reward=99.0)], "a-v0")
    with pytest.raises(ValueError, match="Malformed dataset ID"):
        minari_data.export([played], "no name")


def test_without_minari(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ImportError, match=r"pip install 'mario-envpool\[minari\]'"):
        minari_data.export([], "a-v0")


# -- files ---------------------------------------------------------------------


@pytest.mark.rom
def test_a_file_says_how_it_ends_and_begins(played, tmp_path):
    path = tmp_path / "play.json"
    text = path.read_text()
    assert '"ending": "stopped"' in text
    path.write_text(text.replace('"stopped"', '"won"'))
    with pytest.raises(ValueError, match="ending must be one of cleared, died, stop"):
        demonstration.load(path)
    with pytest.raises(ValueError, match="do not reach the flag within"):
        demonstration.verify(replace(played, ending="cleared"))
    with pytest.raises(ValueError, match=r"\(stopped\), but was recorded"):
        demonstration.verify(replace(played, ending="died"))
