"""The planner: search over snapshots, demonstrations, and the command."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mario_envpool import _core, nes, rom
from trainer import plan as command
from trainer.planning import demonstration
from trainer.planning.levels import TRIED, Budget, plan_level
from trainer.planning.search import Search, place, plan

# -- search, in a world of squares ---------------------------------------------

RIGHT, LEFT, UP, DOWN = range(4)
MOVES = np.array([(1, 0), (-1, 0), (0, 1), (0, -1)])
SIDE = 12


class Squares:
    """Environments on a board: a wall with one gap, a pit, and a flag behind both."""

    action_space = SimpleNamespace(n=4)

    def __init__(self, num_envs=16, apart=False):
        self.config = {"num_envs": num_envs}
        self.at = np.zeros((num_envs, 2), np.int64)
        self.apart, self.steps, self.answer = apart, 0, None

    def _info(self, envs):
        x, y = self.at[envs].T
        zero = np.zeros_like(x)
        return {
            "env_id": envs,
            "x_pos": x * 32,
            "y_pos": y * 48,
            "flag_get": (x == SIDE - 1) & (y == SIDE - 1),
            **dict.fromkeys(("world", "stage", "area", "area_pointer", "loop"), zero),
        }

    def _obs(self, n):
        return np.zeros((n, 1), np.uint8)

    def reset(self):
        self.at[:] = 0
        if self.apart:
            self.at[1] = 3, 3
        return self._obs(len(self.at)), self._info(np.arange(len(self.at)))

    def step(self, actions):
        self.steps += len(actions)
        to = np.clip(self.at + MOVES[actions], 0, SIDE - 1)
        wall = (to[:, 0] == 5) & (to[:, 1] != 2)
        self.at = np.where(wall[:, None], self.at, to)
        fallen = (self.at == (8, 8)).all(1)
        envs = np.arange(len(self.at))
        info = self._info(envs)
        over = fallen | info["flag_get"]
        return self._obs(len(envs)), None, over, np.zeros_like(over), info

    def snapshot(self, envs):
        return self.at[envs].astype(np.uint8)

    def restore(self, envs, blobs, rng):
        assert rng == "keep"
        self.at[envs] = blobs
        self.answer = envs

    def recv(self):
        envs = np.sort(self.answer)[::-1]  # in another order
        return self._obs(len(envs)), None, None, None, self._info(envs)


def walk(actions, start=(0, 0)):
    pool = Squares(1)
    pool.at[:] = start
    for action in actions:
        *_, over, _, info = pool.step(np.array([action]))
        if over[0]:
            return bool(info["flag_get"][0])
    return False


def test_a_way_is_found_and_leads_there():
    found = plan(Squares(), seed=3)
    assert walk(found.actions)
    assert found.info["x_pos"] == (SIDE - 1) * 32
    assert found.end.tolist() == [SIDE - 1, SIDE - 1]
    assert found.searched >= 2 * found.found_after


def test_more_search_makes_it_shorter_and_never_longer():
    first, more = (plan(Squares(), seed=3, shorten=s) for s in (0.0, 30.0))
    assert first.first_steps == more.first_steps == len(first.actions)
    assert len(more.actions) == 2 * (SIDE - 1) < len(first.actions)
    assert walk(more.actions)


def test_a_plan_has_other_ways_too():
    found = plan(Squares(), seed=3, shorten=30.0)
    lengths = [len(way) for way in found.ways]
    assert lengths == sorted(lengths)
    assert lengths[0] == len(found.actions)
    assert lengths[-1] <= 1.1 * lengths[0]
    assert 1 < len(lengths) <= 24
    assert all(walk(way) for way in found.ways)


def test_the_same_seed_finds_the_same_way():
    ways = [plan(Squares(), seed=s).actions.tolist() for s in (7, 7, 8)]
    assert ways[0] == ways[1] != ways[2]


def test_it_begins_where_it_is_told():
    start = np.array([9, 11], np.uint8)
    found = plan(Squares(), start=start)
    assert len(found.actions) == 2
    assert walk(found.actions, start)


def test_a_goal_of_ones_own_and_places_to_keep_out_of():
    def corner(rows):
        return (rows.info["x_pos"] == 0) & (rows.info["y_pos"] == (SIDE - 1) * 48)

    def edge(rows):
        return (rows.info["x_pos"] == 0) & (rows.info["y_pos"] == 5 * 48)

    straight = plan(Squares(), goal=corner, shorten=5.0)
    around = plan(Squares(), goal=corner, lost=edge, shorten=20.0)
    assert set(straight.actions) == {UP}
    assert len(around.actions) == SIDE - 1 + 2


def test_the_search_gives_up():
    def never(rows):
        return np.zeros(len(rows.terminated), bool)

    pool = Squares()
    assert plan(pool, goal=never, max_steps=1000) is None
    assert 1000 <= pool.steps <= 1000 + 16
    assert plan(Squares(), goal=never, max_seconds=0.0) is None


def test_an_action_without_weight_is_never_taken():
    weights = [3, 0, 1, 1]
    found = plan(Squares(), weights=weights)
    assert LEFT not in found.actions
    manners = plan(Squares(), weights=[weights, [1, 0, 0, 0]])
    assert LEFT not in manners.actions


@pytest.mark.parametrize("weights", [[1, 1], [0, 0, 0, 0], [1, -1, 1, 1]])
def test_weights_that_do_not_fit_are_refused(weights):
    with pytest.raises(ValueError, match="weights must be 4 numbers"):
        plan(Squares(), weights=weights)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"goal": lambda _: False}, r"goal must return bool of shape"),
        ({"lost": lambda rows: rows.info["x_pos"]}, r"lost must return bool of shape"),
        ({"cells": lambda rows, _: rows.info["x_pos"] * 0.5}, "got float64"),
        ({"cells": lambda *_: 3}, r"cells must return \(16,\) or \(16, k\) integers"),
        ({"max_cells": 20}, "more than max_cells=20 cells"),
    ],
)
def test_what_functions_of_ones_own_return_is_checked(options, text):
    with pytest.raises(ValueError, match=text):
        plan(Squares(), **options)


@pytest.mark.parametrize("name", ["noop_max", "repeat_action_probability"])
def test_pools_whose_ways_would_not_play_again_are_refused(name):
    pool = Squares()
    pool.config = pool.config | {name: 3}
    with pytest.raises(ValueError, match=f"the pool has {name}=3"):
        plan(pool)


def test_cells_may_have_several_numbers():
    def cells(rows, fineness):
        return np.stack([place(rows, fineness), rows.info["x_pos"]], 1)

    assert walk(plan(Squares(), cells=cells, seed=3).actions)


def test_ctrl_c_ends_the_search_for_shorter_ways(monkeypatch):
    step = Search.step

    def until_found(search):
        if search.best is not None:
            raise KeyboardInterrupt
        step(search)

    monkeypatch.setattr(Search, "step", until_found)
    found = plan(Squares(), seed=3)
    assert found.interrupted
    assert walk(found.actions)


def test_the_search_tells_how_far_it_is(monkeypatch):
    monkeypatch.setattr("trainer.planning.search._REPORT_SECONDS", 0.0)
    lines = []
    plan(Squares(), seed=3, report=lines.append)
    assert re.fullmatch(r"[\d,]+ steps searched, [\d,]+ cells", lines[-1])


def test_environments_must_begin_alike():
    with pytest.raises(ValueError, match="must all begin in the same state: plan one"):
        plan(Squares(apart=True))


def test_places_become_smaller_where_none_is_found(monkeypatch):
    monkeypatch.setattr("trainer.planning.search._PATIENCE", 100)
    seen = set()

    def cells(rows, fineness):
        seen.add(fineness)
        return place(rows, fineness)

    def never(rows):
        return np.zeros(len(rows.terminated), bool)

    plan(Squares(), goal=never, cells=cells, max_steps=20_000)
    assert seen == {0, 1, 2, 3}


def test_cells_of_different_places_differ():
    names = ("world", "stage", "area", "area_pointer", "loop")
    one = dict.fromkeys(names, np.array([1]))
    one |= {"x_pos": np.array([640]), "y_pos": np.array([96])}

    def key(fineness=0, air=0, used=0, **other):
        info = one | {name: np.array([value]) for name, value in other.items()}
        ram = np.zeros((1, 2048), np.uint8)
        ram[0, 0x1D] = air
        ram[0, 0x500 : 0x500 + used] = 0xC4
        return int(place(SimpleNamespace(info=info, obs=ram), fineness)[0])

    changes = [{name: 2} for name in names] + [{"x_pos": 672}, {"y_pos": 144}]
    keys = [key(), key(1), key(air=1), *(key(**change) for change in changes)]
    assert len(set(keys)) == len(keys)
    assert key(x_pos=671) == key() != key(y_pos=95)
    assert key(1, x_pos=656) != key(1)
    # Blocks that were hit, only where cells are small.
    assert key(used=1) == key()
    assert len({key(1, used=used) for used in (0, 1, 2)}) == 3


# -- demonstrations ------------------------------------------------------------


@pytest.fixture(scope="module")
def castle():
    """What the planner finds in 1-4, with few environments."""
    found = plan_level("SuperMarioBros-v0", "1-4", Budget(64, 2, shorten=0.0))
    assert found.plan is not None
    return found


def test_a_demonstration_ends_at_the_flag(castle):
    made = castle.demonstration
    assert made.frames <= 4 * len(castle.plan.actions)
    assert made.frames > 4 * (len(castle.plan.actions) - 1)
    demonstration.verify(made)
    with pytest.raises(ValueError, match="do not reach the flag within"):
        demonstration.verify(replace(made, buttons=made.buttons[:-1]))
    with pytest.raises(ValueError, match=r"with reward .*, but was recorded with"):
        demonstration.verify(replace(made, reward=made.reward + 1))


@pytest.mark.slow
def test_a_file_plays_in_another_process(castle, tmp_path):
    path = tmp_path / "plans" / "1-4.json"
    castle.demonstration.save(path)
    assert demonstration.load(path) == castle.demonstration
    done = subprocess.run(
        [sys.executable, "-m", "trainer.plan", "--replay", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "plays to its end" in done.stdout


def test_a_file_for_another_rom_is_refused(castle, tmp_path, capsys):
    path = tmp_path / "1-4.json"
    replace(castle.demonstration, rom_sha1="0" * 40).save(path)
    good = tmp_path / "good.json"
    castle.demonstration.save(good)
    assert command.main(["--replay", str(path), str(good)]) == 1
    said = capsys.readouterr()
    assert f"error: {path}: " in said.err
    assert "needs the ROM with SHA-1 000" in said.err
    assert f"{good}: " in said.out  # the others are played all the same


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "is not a demonstration, or is damaged"),
        ("[]", "its format is not"),
        ('{"format": "other"}', "its format is not"),
        (lambda c: c.pop("level"), "is a damaged demonstration"),
        (lambda c: c.update(reward=float("nan")), "reward must be a finite number"),
        (lambda c: c["buttons"].append(["jump", 3]), "is a damaged demonstration"),
        (lambda c: c.update(buttons=[]), "buttons are missing"),
        (lambda c: c["options"].pop("rom"), "missing 1 required .* 'rom'"),
        (lambda c: c.update(options=[]), "options must be a table"),
        (
            lambda c: c["options"].update(cut_waits=None),
            "cut_waits must be of type bool",
        ),
        (lambda c: c["buttons"].append([5, 3]), "pairs of names and a number"),
        (lambda c: c["buttons"].append(["A", -3]), "pairs of names and a number"),
        (lambda c: c["buttons"].append(["A", 10**13]), "or too many"),
        (lambda c: c.update(level=3), "level must be of type str"),
        (lambda c: c.update(level="9-9"), "there is no level '9-9'"),
        (lambda c: c.update(task="Pong-v5", level=""), "Pong-v5 has no levels"),
        (lambda c: c.update(reward="12"), "reward must be of type float"),
        ("[" * 100_000, "is not a demonstration, or is damaged"),
    ],
)
def test_a_file_that_is_damaged_is_refused(castle, tmp_path, content, text):
    path = tmp_path / "1-4.json"
    castle.demonstration.save(path)
    if callable(content):
        known = json.loads(path.read_text())
        content(known)
        content = json.dumps(known)
    path.write_text(content)
    with pytest.raises(ValueError, match=text):
        demonstration.load(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"trainer\.plan writes demonstr"):
        demonstration.load(tmp_path / "1-1.json")


def test_a_button_that_is_named_twice_is_one_button():
    assert demonstration.byte_of("A+A") == nes.A


def test_a_level_that_begins_by_writing_ram_is_no_movie(castle):
    with pytest.raises(ValueError, match="cannot become a movie from power-on"):
        demonstration.movie(castle.demonstration)


def test_pictures_are_those_of_the_frames(castle):
    pictures = demonstration.pictures(castle.demonstration)
    some = [next(pictures) for _ in range(8)]
    assert all(picture.shape == (240, 256, 3) for picture in some)
    assert any((picture != some[0]).any() for picture in some)


@pytest.mark.parametrize("stages", [[], ["1-1"]])
def test_without_cut_waits_the_game_is_a_movie(stages):
    """Buttons alone bring a console to the same state, deaths and waits included."""
    image = rom.load()
    options = {"stages": stages, "action_set": "raw", "frame_skip": 1}
    options |= {"obs_type": "ram", "stack_num": 1, "cut_waits": False}
    env = _core._MarioEnv(image, options)
    env.reset_and_record()
    deaths = 0
    for _ in range(400):
        *_, terminated, _, info = env.step(nes.RIGHT)
        deaths = 2 - int(info["info:life"])
        if terminated:
            break
    assert terminated if stages else deaths
    console = nes.Console(image)
    console.step_many(env.movie)
    assert (console.ram == env.ram).all()


def test_a_movie_needs_one_beginning():
    image = rom.load()
    for options in ({"stages": ["1-1", "1-2"]}, {"noop_max": 3}):
        env = _core._MarioEnv(image, options)
        with pytest.raises(ValueError, match="a movie covers one level"):
            env.reset_and_record()
    with pytest.raises(RuntimeError, match="reset_and_record"):
        _ = _core._MarioEnv(image, {}).movie


def test_fm2_has_a_line_for_every_frame(castle, tmp_path, monkeypatch):
    monkeypatch.setattr(demonstration, "movie", lambda _: bytes([0, nes.START, 0x81]))
    path = tmp_path / "game.fm2"
    demonstration.save_fm2(castle.demonstration, path)
    lines = path.read_text().splitlines()
    frames = [line for line in lines if line.startswith("|")]
    assert frames == [
        *["|0|........|||"] * 2, "|0|....T...|||", "|0|R......A|||"
    ]  # fmt: skip
    assert any(line.startswith("romChecksum base64:") for line in lines)


# -- the command ---------------------------------------------------------------


def test_a_shorter_demonstration_stays(castle, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "plan_level", lambda *_, **__: castle)
    argv = ["--levels", "1-4", "--out", str(tmp_path)]
    assert command.main(argv) == 0
    assert "wrote" in capsys.readouterr().out
    assert command.main(argv) == 0
    assert "kept" in capsys.readouterr().out


def test_what_is_damaged_or_of_another_game_does_not_stay(
    castle, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(command, "plan_level", lambda *_, **__: castle)
    made, path = castle.demonstration, tmp_path / "1-4.json"
    argv = ["--levels", "1-4", "--out", str(tmp_path)]
    # A shorter one that does not come to its end.
    replace(made, buttons=made.buttons[:100]).save(path)
    assert command.main(argv) == 0
    assert f"replacing {path}: " in capsys.readouterr().out
    assert demonstration.load(path) == made
    path.write_text("{")
    assert command.main(argv) == 0
    assert demonstration.load(path) == made
    # A shorter one of another ROM stays, and so does the new one.
    other = replace(made, rom_sha1="0" * 40, buttons=made.buttons[:100])
    other.save(path)
    assert command.main(argv) == 0
    assert demonstration.load(path) == other
    beside = tmp_path / f"1-4-{made.rom_sha1[:8]}.json"
    assert demonstration.load(beside) == made


def test_what_was_found_before_a_signal_is_kept(castle, tmp_path, monkeypatch):
    found = castle._replace(plan=castle.plan._replace(interrupted=signal.SIGTERM))
    monkeypatch.setattr(command, "plan_level", lambda *_, **__: found)
    assert command.main(["--levels", "1-4,2-1", "--out", str(tmp_path)]) == 143
    assert [path.name for path in tmp_path.iterdir()] == ["1-4.json"]


def test_a_folder_that_cannot_be_written_to_is_named_first(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert command.main(["--out", str(tmp_path / "file")]) == 2
    assert "cannot write to the folder" in capsys.readouterr().err


def test_a_level_without_a_way(tmp_path, capsys):
    argv = ["--levels", "1-1,8-4", "--out", str(tmp_path), "--max-steps", "1"]
    assert command.main([*argv, "--num-envs", "4"]) == 1
    said = capsys.readouterr().out
    assert "8-4: no way found within --max-seconds 600 and --max-steps 1;" in said
    assert "0 of 2 levels; missing: 1-1, 8-4" in said
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ("--levels 9-9", "there is no level '9-9'"),
        ("--num-envs 0", "num_envs must be at least 1, got 0"),
        ("--max-seconds -1", "max_seconds must be at least 0, got -1"),
        ("--max-seconds nan", "max_seconds must be at least 0, got nan"),
        ("--task Pong-v5", "task Pong-v5 has no levels"),
        ("--task SuperMarioBros-1-2-v0", "give --task SuperMarioBros-v0 and --levels"),
        ("--fm2", "--levels 1-1 --no-cut-waits"),
        ("--levels 1-1,1-2 --no-cut-waits --fm2", "it needs --whole-game"),
        ("--whole-game --levels 1-1", "leave out --levels"),
        ("--whole-game --no-cut-waits", "leave out --no-cut-waits"),
        ("--replay 1-1.json --levels 1-1", "--replay does not search"),
    ],
)
def test_what_cannot_be_is_refused(argv, text, capsys):
    assert command.main(argv.split()) == 2
    assert text in capsys.readouterr().err


def test_buttons_that_are_tried_are_actions_of_the_pool():
    assert len(TRIED) == len(set(TRIED))
    assert all(weight > 0 for weight in TRIED.values())
