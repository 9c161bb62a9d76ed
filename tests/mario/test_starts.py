"""Episodes that begin in saved states: what is reset, and what continues."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest

import mario_envpool
from mario_envpool.env import MarioEnv, Observation, each
from mario_envpool.vector import MarioVectorEnv

pytestmark = pytest.mark.rom

TASK = "SuperMarioBros-1-1-v0"
EVERYONE = np.arange(2, dtype=np.int32)
RIGHT, JUMP = 3, 4  # right+B, right+A+B
OPTIONS: list[dict[str, Any]] = [
    {},
    {"obs_type": "tiles"},
    {"obs_type": ["gray", "motion"], "frame_max": True},
    {"frame_skip": 6, "stack_num": 3},
    {"noop_max": 30},
    {"timing": "nes_py", "frame_max": True},
]


def make(**options: Any) -> Any:
    return mario_envpool.make(TASK, num_envs=2, seed=5, **options)


def play(pool: Any, steps: int, seed: int = 0) -> list[tuple[Any, ...]]:
    """Rows of some steps to the right."""
    rng = np.random.default_rng(seed)
    return [pool.step(rng.choice([RIGHT, JUMP], 2)) for _ in range(steps)]


def equal(ours: Observation, theirs: Observation) -> bool:
    if isinstance(ours, dict):
        return all(np.array_equal(ours[key], theirs[key]) for key in ours)
    return np.array_equal(ours, theirs)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_start_goes_on_bit_for_bit(options: dict[str, Any]) -> None:
    """Pictures and frame stacks are those of the episode that was saved."""
    pool = make(**options)
    pool.reset()
    obs = play(pool, 20)[-1][0]
    blobs = pool.snapshot(EVERYONE)
    wanted = play(pool, 15, seed=1)

    other = make(**options)
    other.set_starts([0, 1], blobs[:1])
    first, info = other.reset()
    assert equal(first, each(lambda rows: rows[[0, 0]], obs))
    assert info["start"].tolist() == [1, 1]
    assert info["elapsed_step"].tolist() == [0, 0]
    rng = np.random.default_rng(1)
    for row, want in enumerate(wanted):
        # Environment 0's actions in both: the same as it did.
        action = rng.choice([RIGHT, JUMP], 2)[0]
        seen = other.step(np.array([action, action]))
        assert equal(seen[0], each(lambda rows: rows[[0, 0]], want[0]))
        assert seen[1][0] == want[1][0], row
        assert seen[2][0] == want[2][0], row
        assert seen[4]["x_pos"][0] == want[4]["x_pos"][0]
        assert seen[4]["elapsed_step"][0] == row + 1
        if seen[2][0]:
            break
    assert row >= 5


def test_experts_stack_is_no_copy_of_one_frame() -> None:
    """What a stack of four equal frames would hide is in it: speed."""
    pool = make()
    pool.reset()
    play(pool, 20)
    pool.set_starts([0, 1], pool.snapshot(EVERYONE)[:1])
    frames = pool.reset()[0][0]
    assert all(not np.array_equal(frames[i], frames[i + 1]) for i in range(3))


def test_counters_of_the_episode_begin_anew() -> None:
    options = {"reward": "progress", "stall_steps": 30, "max_episode_steps": 40}
    idle, run = np.zeros(2, np.int32), np.full(2, RIGHT)
    pool = make(**options)
    pool.reset()
    for _ in range(5):
        pool.step(run)
    for _ in range(20):
        info = pool.step(idle)[4]  # stands still, for two thirds of a stall
    blobs = pool.snapshot(EVERYONE)
    x = info["x_pos"][0]
    pool.set_starts([0, 1], blobs[:1])
    _, first = pool.reset()
    assert first["best_x"][0] == first["x_pos"][0] == x
    assert first["end_reason"][0] == 0
    for step in range(1, 31):
        _, _, _, truncated, info = pool.step(idle)
        assert info["elapsed_step"][0] == step
        assert info["reward_progress"][0] == 0
        assert truncated[0] == (step == 30), "a stall counts from the start"


def test_a_stage_start_is_what_it_was() -> None:
    """With idle frames, and from the same generator after the draw."""
    options = {"stages": ["1-1", "1-2"], "noop_max": 30, "num_envs": 2, "seed": 1}
    pool = mario_envpool.make("SuperMarioBros-v0", **options)
    assert pool.num_stages == 2
    pool.set_starts([0, 1])
    pictures = set()
    for _ in range(6):
        obs, info = pool.reset()
        assert info["stage"].tolist() == [2, 2]
        assert info["start"].tolist() == [1, 1]
        assert np.array_equal(obs[:, 0], obs[:, 3])
        pictures |= {row.tobytes() for row in obs[:, 0]}
    assert len(pictures) > 3
    exact = mario_envpool.make("SuperMarioBros-1-2-v0", num_envs=1).reset()[0]
    pool = mario_envpool.make("SuperMarioBros-v0", **options | {"noop_max": 0})
    pool.set_starts([0, 1])
    assert np.array_equal(pool.reset()[0][1:], exact)


@pytest.mark.parametrize(
    ("task", "options", "count"),
    [
        ("SuperMarioBros-v0", {}, 1),
        ("SuperMarioBros-4-2-v0", {}, 1),
        ("SuperMarioBrosRandomStages-v0", {}, 32),
        ("SuperMarioBros-v0", {"stages": ["1-1", "8-4", "2-2"]}, 3),
    ],
)
def test_number_of_stages(task: str, options: dict[str, Any], count: int) -> None:
    assert mario_envpool.make(task, num_envs=1, **options).num_stages == count


def test_a_start_may_be_of_another_stage_and_the_draw_replaces_random_stages() -> None:
    options = {"stages": ["1-1", "1-2"], "random_stages": True, "seed": 2}
    pool = mario_envpool.make("SuperMarioBros-v0", num_envs=8, **options)
    pool.set_starts([0, 1])
    assert set(pool.reset()[1]["stage"].tolist()) == {2}
    blob = pool.snapshot(EVERYONE)[:1]
    pool.set_starts([1, 0, 1], blob)
    info = pool.reset()[1]
    assert set(info["start"].tolist()) == {0, 2}
    assert info["stage"].tolist() == [2 if i == 2 else 1 for i in info["start"]]


def test_lost_lives_and_starts() -> None:
    """With episodic_life a drawn start comes before what the lost life left."""
    pool = mario_envpool.make(
        "SuperMarioBros-v0", num_envs=2, episodic_life=True, stack_num=1
    )
    pool.reset()
    play(pool, 5)
    pool.set_starts([0, 1], pool.snapshot(EVERYONE)[:1])
    x = int(pool.reset()[1]["x_pos"][0])
    died = False
    for _ in range(400):
        *_, terminated, _, info = pool.step(np.full(2, RIGHT))
        if died:
            assert info["x_pos"][0] == x
            assert info["start"][0] == 1
            return
        died = bool(terminated[0])
    raise AssertionError("nobody died")


def test_loop_counts_the_passes_of_a_maze(make_env: Any) -> None:
    env = make_env("SuperMarioBros-7-4-v0")
    assert env.reset()["info:loop"] == 0
    env.ram[0x06DA], env.ram[0x06D9] = 2, 1
    assert env.step(0)[3]["info:loop"] == 33


def test_gymnasium_environments_have_starts() -> None:
    env = MarioEnv(TASK, max_episode_steps=30)
    env.reset(seed=1)
    for _ in range(12):
        obs = env.step(RIGHT)[0]
    saved = env.snapshot()
    assert env.num_stages == 1
    env.set_starts([0, 1, 0], [saved, saved])
    first, info = env.reset(seed=4)
    assert np.array_equal(first, obs)
    assert (info["start"], info["elapsed_step"]) == (1, 0)
    rows: npt.NDArray[np.uint8] = np.frombuffer(saved, np.uint8)[None]
    for snapshots in (rows, list(np.asfortranarray(rows.repeat(2, 0))[:1])):
        env.set_starts([0, 1], snapshots)
        assert np.array_equal(env.reset()[0], obs)
    env.set_starts([1], rows[:0])
    assert env.reset()[1]["start"] == 0
    with pytest.raises(ValueError, match=r"snapshots of \d+ bytes and of \d+"):
        env.set_starts([0, 1, 1], [saved, saved[:-1]])
    with pytest.raises(TypeError, match="a list of snapshots"):
        env.set_starts([0, 1], saved)
    env.set_starts(None)
    assert env.reset()[1]["start"] == -1

    envs = MarioVectorEnv(3, TASK, max_episode_steps=30)
    envs.reset(seed=1)
    assert envs.num_stages == 1
    envs.set_starts(np.array([0.0, 1.0]), rows)
    several, infos = envs.reset()
    assert all(np.array_equal(row, obs) for row in several)
    assert infos["start"].tolist() == [1, 1, 1]
    envs.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        envs.set_starts(None)


def test_foreign_and_ended_states_are_refused() -> None:
    pool = make()
    pool.reset()
    other = make(noop_max=3)
    other.reset()
    foreign = other.snapshot(EVERYONE)
    with pytest.raises(ValueError, match=r"snapshot 0 is refused.*these options"):
        pool.set_starts([1, 1, 1], foreign)
    for _ in range(200):
        terminated = pool.step(np.full(2, RIGHT))[2]
        if terminated[0]:
            break
    with pytest.raises(ValueError, match="snapshot 0 is refused: its episode is over"):
        pool.set_starts([1, 1], pool.snapshot(EVERYONE)[:1])
    assert pool.reset()[1]["start"].tolist() == [-1, -1]


def test_the_checksum_finds_the_top_bits_of_two_words() -> None:
    pool = make()
    pool.reset()
    blobs = pool.snapshot(EVERYONE)
    for place in range(47, 2000, 8):  # the tops of words behind the header
        damaged = blobs[:1].copy()
        damaged[0, [place, place + 64]] ^= 0x80
        with pytest.raises(ValueError, match="checksum"):
            pool.restore(EVERYONE[:1], damaged)


def test_the_period_of_turbo_swim_goes_on() -> None:
    options: dict[str, Any] = {"obs_type": "ram", "stack_num": 1, "turbo_swim": 6}
    options |= {"custom_actions": ["right+A"], "num_envs": 2}
    pool, other = (
        mario_envpool.make("SuperMarioBros-2-2-v0", **options) for _ in range(2)
    )
    held = np.zeros(2, np.int32)
    pool.reset()
    for _ in range(5):  # 20 frames are no multiple of 6
        pool.step(held)
    other.set_starts([0, 1], pool.snapshot(EVERYONE)[:1])
    other.reset()
    for _ in range(6):
        np.testing.assert_array_equal(other.step(held)[0], pool.step(held)[0][[0, 0]])
