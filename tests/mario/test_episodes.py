"""Beginnings and ends of episodes, beyond what the traces hold."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mario_envpool import _core, nes

pytestmark = pytest.mark.rom

DEATH, FLAG, GAME_OVER, LIFE, WRONG_PASS, STALL = range(1, 7)


def end_reason(result: dict[str, Any]) -> int:
    return int(result["info:end_reason"])


def play_to_end(env: Any, seed: int = 0, limit: int = 4000) -> tuple[Any, int]:
    """Right-biased random play; the last step and the number of steps."""
    rng = np.random.default_rng(seed)
    for t in range(limit):
        last = env.step(int(rng.integers(1, 5)))
        if last[1] or last[2]:
            return last, t + 1
    raise AssertionError("the episode did not end")


def kill(env: Any) -> Any:
    env.ram[0x0E] = 0x0B
    return env.step(0)


def test_death_ends_a_single_stage(make_env: Any) -> None:
    env = make_env()
    env.reset()
    (_, terminated, truncated, result), _ = play_to_end(env)
    assert (terminated, truncated) == (True, False)
    assert end_reason(result) == DEATH
    assert result["info:life"] == 2
    assert end_reason(env.reset()) == 0


def test_whole_game_ends_with_the_last_life(make_env: Any) -> None:
    env = make_env("SuperMarioBros-v0", frame_skip=1)
    env.reset()
    lives = []
    for _ in range(3):
        assert not kill(env)[1]
        lives.append(int(env.ram[0x75A]))
    assert lives == [1, 0, 255]
    _, terminated, _, result = env.step(0)
    assert terminated
    assert end_reason(result) == GAME_OVER
    assert env.reset()["info:life"] == 2


def test_episodic_life_plays_on(make_env: Any) -> None:
    env = make_env("SuperMarioBros-v0", episodic_life=True)
    env.reset()
    lives = []
    for _ in range(2):
        for _ in range(10):
            env.step(1)
        _, terminated, _, result = kill(env)
        assert terminated
        assert end_reason(result) == LIFE
        result = env.reset()
        lives.append(int(result["info:life"]))
        # A whole stack of the new picture, and a game that can be played.
        assert (result["obs"] == result["obs"][-1]).all()
        assert end_reason(result) == 0
    assert lives == [1, 0]
    assert kill(env)[1]
    assert env.reset()["info:life"] == 2  # the game was over: a new one
    # A new seed begins a new game, too.
    kill(env)
    assert env.reset(seed=1)["info:life"] == 2


def play_movie(rom: bytes, movie: bytes, rows: int) -> tuple[Any, int]:
    """A console after `rows` rows, put in step by blank frames in front."""
    for lead in range(6):
        console = _core.Console(rom)
        for _ in range(lead):
            console.step(0, draw=False)
        for row in range(rows):
            console.step(movie[row], draw=False)
            # In step, 1-1 is finished at row 1,941.
            if row == 1960 and console.ram[0x75C] != 1:
                break
        else:
            return console, rows
    raise AssertionError("no number of blank frames puts the movie in step")


@pytest.mark.verification
def test_finishing_8_4_ends_the_whole_game(
    verification: Path, make_env: Any, load_rom: Any
) -> None:
    """The warps movie from 8-4's last room on: terminated, with flag_get."""
    movie = gzip.decompress((verification / "tas/smb-warps.bin.gz").read_bytes())
    console, row = play_movie(load_rom("world"), movie, 17_864 - 60)
    assert (console.ram[0x75F], console.ram[0x75C]) == (7, 3)
    for env_id, stages in (("SuperMarioBros-v3", []), ("SuperMarioBros-8-4-v3", None)):
        options = {} if stages is None else {"stages": stages}
        env = make_env(env_id, rom="world", frame_skip=1, action_set="raw", **options)
        env.reset()
        env.load_console(console.save())
        steps = 0
        for buttons in movie[row:]:
            _, terminated, _, result = env.step(buttons)
            steps += 1
            if terminated:
                break
        assert terminated
        assert end_reason(result) == FLAG
        assert result["info:flag_get"]
        assert (result["info:world"], result["info:stage"]) == (8, 4)
        assert abs(steps - 60) <= 8
        assert env.ram[0x770] == 2 or stages is None


@pytest.mark.parametrize(
    ("env_id", "world", "ends"),
    [
        ("SuperMarioBros-v0", 1, False),
        ("SuperMarioBros-v0", 7, False),
        ("SuperMarioBros-v0", 8, True),
        ("SuperMarioBros2-v0", 3, False),
        ("SuperMarioBros2-v0", 4, True),  # its NROM conversion ends here
    ],
)
def test_only_the_last_castle_ends_the_whole_game(
    env_id: str, world: int, ends: bool, make_env: Any
) -> None:
    env = make_env(env_id)
    env.reset()
    env.ram[[0x75F, 0x75C]] = world - 1, 3
    env.ram[[0x770, 0x772]] = 2, 0  # the castle's cut-scene from its beginning
    _, terminated, _, result = env.step(0)
    assert terminated == ends
    if ends:
        assert end_reason(result) == FLAG
        assert result["info:flag_get"]
    else:
        assert end_reason(result) == 0
        assert (env.ram[0x75F], env.ram[0x75C]) == (world, 0)  # the next world


def test_stall_truncates(make_env: Any) -> None:
    env = make_env(stall_steps=30)
    env.reset()
    for _ in range(10):
        env.step(1)
    steps, truncated = 0, False
    while not truncated:
        _, terminated, truncated, result = env.step(6)
        assert not terminated
        steps += 1
    assert end_reason(result) == STALL
    # A few steps still carry the player forward.
    assert 30 <= steps <= 36
    env.reset()
    for _ in range(29):
        assert not env.step(0)[2]
    assert env.step(0)[2]


def test_noop_starts_are_drawn_from_the_seed(make_env: Any) -> None:
    env = make_env(noop_max=12, frame_skip=1)
    counts = []
    for _ in range(200):
        before = env.frames
        env.reset()
        counts.append(env.frames - before)
    assert set(counts) == set(range(13))
    assert min(np.bincount(counts)) >= 4
    other = make_env(noop_max=12, frame_skip=1)
    repeated = []
    for _ in range(200):
        before = other.frames
        other.reset()
        repeated.append(other.frames - before)
    assert counts == repeated
    before = env.frames
    env.reset(seed=0)
    assert env.frames - before == counts[0]


def test_noops_are_exact(make_env: Any) -> None:
    options = {"noops": [0, 7, 30], "noop_max": 12, "frame_skip": 1}
    for number in range(4):
        env = make_env(number=number, **options)
        for _ in range(3):
            before = env.frames
            env.reset()
            assert env.frames - before == (0, 7, 30, 0)[number]


def test_noop_start_shows_the_waited_frames(make_env: Any) -> None:
    env = make_env(noop_max=40, seed=2, img_height=240, img_width=256)
    for _ in range(5):
        obs = env.reset()["obs"]
        assert (obs == obs[-1]).all()
        gray = env.render().astype(int) @ [4899, 9617, 1868]
        assert np.array_equal(obs[-1], (gray + 8192) >> 14)


def test_long_noops_do_not_end_the_episode(make_env: Any) -> None:
    """Standing still in 1-1 is deadly after some time; the start is not."""
    env = make_env(noop_max=1000, stages=["1-1"])
    for seed in range(12):
        env.reset(seed=seed)
        assert env.ram[0x0E] == 8
        assert env.ram[0xB5] == 1


def test_sticky_actions_repeat_frames(make_env: Any) -> None:
    """The buttons the game read are new in about three of four frames."""
    env = make_env(
        frame_skip=1, repeat_action_probability=0.25, action_set="raw", seed=3
    )
    env.reset()
    repeated = wanted = 0
    for t in range(2000):
        action = 2 if t % 2 else 0  # B alone: the player stands
        _, terminated, _, _ = env.step(action)
        if terminated:
            env.reset()
            continue
        wanted += 1
        repeated += int(env.ram[0x06FC] & 0x40 != (0x40 if action else 0))
    # 1/4 repeat the frame before; of those in a row every second is right again.
    assert 0.16 < repeated / wanted < 0.24


def test_lost_levels(make_env: Any) -> None:
    env = make_env("SuperMarioBros2-v0")
    result = env.reset()
    assert (result["info:world"], result["info:stage"]) == (1, 1)
    x = int(result["info:x_pos"])
    for _ in range(20):
        result = env.step(1)[3]
    assert result["info:x_pos"] > x
    stage = make_env("SuperMarioBros2-v0", stages=["3-2"])
    result = stage.reset()
    assert (result["info:world"], result["info:stage"]) == (3, 2)
    other = make_env("SuperMarioBros2-v0", rom="lost-levels-downsample")
    assert not np.array_equal(other.reset()["obs"], env.reset()["obs"])


def test_reset_in_the_middle(make_env: Any) -> None:
    env = make_env("SuperMarioBros-v0")
    first = env.reset()
    for t in range(50):
        env.step(t % 5)
    again = env.reset()
    assert all(np.array_equal(first[key], again[key]) for key in first)


def test_render_is_the_last_frame(make_env: Any) -> None:
    """Also after waits were skipped, and without changing anything."""
    env = make_env("SuperMarioBros-v0", img_height=240, img_width=256, stack_num=1)
    twin = make_env("SuperMarioBros-v0", img_height=240, img_width=256, stack_num=1)
    env.reset()
    twin.reset()
    rng = np.random.default_rng(9)
    for t in range(200):
        action = int(rng.integers(5))
        if t == 100:
            env.ram[0x0E] = twin.ram[0x0E] = 0x0B
        obs = env.step(action)[3]["obs"]
        gray = env.render().astype(int) @ [4899, 9617, 1868]
        assert np.array_equal(obs[0], (gray + 8192) >> 14), t
        assert np.array_equal(obs, twin.step(action)[3]["obs"]), t


@pytest.mark.parametrize(
    ("stage", "pointer"), [("1-1", 0x25), ("1-2", 0x40), ("2-2", 0x01), ("8-4", 0x65)]
)
def test_area_pointer_is_that_of_the_loaded_room(
    make_env: Any, stage: str, pointer: int
) -> None:
    """Not that of the room behind the next pipe, which $0750 holds."""
    env = make_env(stages=[stage], frame_skip=1, action_set="raw")
    pointers = {int(env.reset()["info:area_pointer"])}
    announced = set()
    for _ in range(1400):
        # Over all obstacles at full speed.
        env.ram[[0x0716, 0xB5, 0xCE, 0x9F, 0x57]] = 1, 0, 160, 0, 40
        env.ram[[0x0723, 0x0745]] = 0  # no locked screen, no maze
        _, terminated, _, result = env.step(0x82)
        assert not terminated
        pointers.add(int(result["info:area_pointer"]))
        announced.add(int(env.ram[0x0750]))
    assert pointers == {pointer}
    assert announced - {pointer}


@pytest.mark.parametrize("cut_waits", [True, False])
@pytest.mark.parametrize("kind", ["gray", "tiles"])
def test_a_step_that_ends_at_waits(make_env: Any, cut_waits: bool, kind: str) -> None:
    """No button is held into the next life, and the row is of its first frame."""
    options = {"action_set": "right_only", "frame_skip": 6, "obs_type": kind}
    options |= {"cut_waits": cut_waits, "step_ends_at_waits": True}
    env, filmed, held = (
        make_env("SuperMarioBros-v0", **options | change)
        for change in ({}, {}, {"step_ends_at_waits": False})
    )
    for each in (env, filmed, held):
        each.reset()
        each.ram[0x07F8:0x07FB] = 0, 0, 1  # the clock runs out
    steps = 0
    while env.ram[0x75A] == 2:
        *_, seen = env.step(1)
        frames, *_, also_seen = filmed.film(1)
        held.step(1)
        steps += 1
    assert steps < 30
    assert len(frames) < 6
    assert env.snapshot() == filmed.snapshot()
    for name, value in seen.items():
        np.testing.assert_array_equal(value, also_seen[name], err_msg=name)
    assert seen["info:life"] == 1
    assert seen["info:x_pos"] == 40
    # Speed and position of the player; the other environment runs already.
    assert (env.ram[0x57], env.ram[0x86]) == (0, 40)
    assert held.ram[0x57] > 0
    # The observation is of the frame that is shown.
    later = make_env("SuperMarioBros-v0", **options)
    later.reset()
    later.restore(env.snapshot())
    np.testing.assert_array_equal(env.render(), later.render())
    np.testing.assert_array_equal(env.info_ram(), env.ram)


FRAME_COUNTER, INTERVAL, RANDOM = 0x09, 0x77F, slice(0x7A7, 0x7AE)
LIVES = 0x75A


def numbers(ram: np.ndarray) -> tuple[int, int, bytes]:
    """What a level knows of the time before it, besides Mario's state."""
    return int(ram[FRAME_COUNTER]), int(ram[INTERVAL]), ram[RANDOM].tobytes()


GAME = {"cut_waits": False, "step_ends_at_waits": True, "action_set": "right_only"}


# In v3 the wait after a death lasts 15 frames longer with a pause.
@pytest.mark.parametrize(
    ("version", "name", "frames"),
    [("v0", "vanilla", 0), ("v0", "vanilla", 5), ("v3", "rectangle", 0)],
)
def test_a_pause_brings_the_random_numbers_of_the_levels_own_task(
    make_env: Any, load_rom: Any, version: str, name: str, frames: int
) -> None:
    """A life begins with them, by buttons alone: the game is still a movie."""
    options = {"frame_skip": 6} | ({"noops": [frames]} if frames else {})
    alone = make_env(f"SuperMarioBros-1-1-{version}", **options)
    alone.reset()
    _, *own = numbers(alone.ram)
    found = {}
    for pause in (False, True):
        options["pause_for_rng"] = pause
        env = make_env(f"SuperMarioBros-{version}", **GAME | options)
        env.reset() if frames else env.reset_and_record()
        steps = 0
        while env.ram[LIVES] == 2:
            env.step(1)
            steps += 1
        assert steps < 60
        assert env.read()["info:x_pos"] == 40
        found[pause] = numbers(env.ram)[1:]
        if not frames:
            console = nes.Console(load_rom(name))
            console.step_many(env.movie)
            np.testing.assert_array_equal(console.ram, env.ram)
    assert found[True] == tuple(own)
    assert found[False] != tuple(own)


@pytest.mark.parametrize("version", ["v0", "v3"])
def test_a_pause_in_a_pipe_brings_the_random_numbers_of_the_levels_own_task(
    make_env: Any, version: str
) -> None:
    """The rest of the step follows, as it does there."""
    found = {}
    for name in ("own", "paused", "other"):
        options: dict[str, Any] = GAME | {"pause_for_rng": name == "paused"}
        if name == "own":  # the game's start is one frame later
            options = {"stages": ["1-1"], "noops": [1]}
        options |= {"frame_skip": 6, "action_set": "raw"}
        env = make_env(f"SuperMarioBros-{version}", **options)
        env.reset()
        for _ in range(52):  # over all obstacles, to a pipe with a room below
            env.ram[[0x0716, 0xB5, 0xCE, 0x9F, 0x57]] = 1, 0, 160, 0, 40
            env.step(0x82)
        env.ram[[0x0716, 0xB5, 0xCE, 0x6D, 0x86]] = 0, 1, 80, 3, 152
        env.ram[[0x57, 0x0705]] = 0  # no speed
        for _ in range(8):
            env.step(0)
        *_, before = numbers(env.ram)
        *_, result = env.step(0x20)  # down
        assert result["info:area_pointer"] == 0x42
        found[name] = before, numbers(env.ram)[-1]
    assert found["paused"] == found["own"]
    assert found["other"] != found["own"]


@pytest.mark.parametrize(
    "options", [{"stages": ["1-1"]}, {"cut_waits": True}, {"timing": "nes_py"}]
)
def test_a_pause_needs_a_whole_game_without_cuts(
    make_env: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="it needs the whole game"):
        make_env("SuperMarioBros-v0", pause_for_rng=True, **GAME | options)


# With timing=nes_py a frame ends while the game counts, so it is compared with none.
@pytest.mark.parametrize(
    "env_id",
    [
        "SuperMarioBros-1-1-v0",  # the European revision
        "SuperMarioBros-3-4-v3",
        "SuperMarioBros2-1-1-v0",
    ],
)
def test_random_numbers_are_those_of_a_later_frame(make_env: Any, env_id: str) -> None:
    """The game itself counts on; all other bytes stay as they are."""
    game = make_env(env_id, frame_skip=1, action_set="right_only")
    game.reset()
    start = game.ram.copy()
    later = [numbers(game.ram)]
    for _ in range(60):
        game.step(0)
        later.append(numbers(game.ram))
    env = make_env(env_id, rng_frames_max=50, seed=3)
    drawn = set()
    for _ in range(200):
        env.reset()
        drawn.add(numbers(env.ram))
        changed = np.flatnonzero(env.ram != start)
        allowed = {FRAME_COUNTER, INTERVAL, *range(0x7A7, 0x7AE)}
        assert set(changed.tolist()) <= allowed
    assert drawn <= set(later[:51])
    assert {later[0], later[50]} <= drawn


def test_all_random_numbers_of_the_game(make_env: Any) -> None:
    env = make_env(rng_frames_max=32766, noop_max=3)
    seen = [bytes(env.ram[RANDOM]) for _ in range(300) if env.reset()]
    assert len(set(seen)) > 290
    again = make_env(rng_frames_max=32766, noop_max=3)
    assert [bytes(again.ram[RANDOM]) for _ in range(300) if again.reset()] == seen
    # An observation of RAM shows them.
    ram = make_env(rng_frames_max=32766, obs_type="ram", stack_num=1)
    obs = ram.reset()["obs"].ravel()
    np.testing.assert_array_equal(obs, ram.ram)
    with pytest.raises(ValueError, match="rng_frames_max=32767 is not possible"):
        make_env(rng_frames_max=32767)
    with pytest.raises(ValueError, match="with timing=nes_py choose 0"):
        make_env(rng_frames_max=1, timing="nes_py")
    with pytest.raises(ValueError, match="rng_frames_max=0"):
        make_env(rng_frames_max=1).reset_and_record()


def test_a_snapshot_of_any_random_numbers_can_be_restored(make_env: Any) -> None:
    env, plain = make_env(rng_frames_max=32766, seed=8), make_env()
    env.reset()
    plain.reset()
    plain.restore(env.snapshot())
    assert numbers(plain.ram) == numbers(env.ram)
    for _ in range(20):
        assert env.step(3)[:3] == plain.step(3)[:3]
    assert (plain.ram == env.ram).all()
