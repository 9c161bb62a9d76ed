"""``reward="v9"``: the reward of gym-super-mario-bros 9.1.0.

Recorded traces have few coins and no power-up, so a twin of a few lines, which knows
work RAM only, is asked about everything else.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.rom

# Our part -> the trace's.
PARTS = {
    "progress": "progress",
    "clock": "time",
    "score": "score",
    "coins": "coins",
    "powerup": "powerup",
    "flag": "completion",
    "death": "death",
}
# (trace, its episodes, how many of them are compared in full)
TRACES = [
    ("SuperMarioBros-1-1-v0.simple.s11", 10, 10),
    ("SuperMarioBros-2-2-v0.simple.s14", 3, 3),
    ("SuperMarioBros-v0.complex.s16", 3, 1),  # three lives: to the first death
]
V9: dict[str, Any] = {"reward": "v9"}

SCORE, COINS, TIME = slice(0x7DE, 0x7E4), slice(0x7ED, 0x7EF), slice(0x7F8, 0x7FB)
PLAYER_STATE, FLOAT_STATE, ENEMY, PAGE, X = 0x0E, 0x1D, 0x16, 0x6D, 0x86
VIEWPORT, POWER, LIVES, MODE, TASK = 0xB5, 0x756, 0x75A, 0x770, 0x772
DYING, FLAGPOLE = 0x0B, 0x31


def parts(result: dict[str, Any]) -> dict[str, float]:
    return {name: float(result[f"info:reward_{name}"]) for name in PARTS}


def nonzero(result: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in parts(result).items() if value != 0}


@pytest.mark.verification
@pytest.mark.parametrize(("name", "episodes", "whole"), TRACES)
def test_equals_the_trace_one_step_earlier(
    name: str, episodes: int, whole: int, verification: Path, make_late: Any
) -> None:
    """All of 1-1 and 2-2, and a game of three lives up to the first death."""
    trace = np.load(verification / "traces-gsm9" / f"{name}.npz")
    with np.load(verification / "traces-gsm" / f"{name}.npz") as older:
        env = make_late(str(trace["env_id"]), older["reset_ram"], **V9)

    starts = [*np.nonzero(trace["reset_before"])[0].tolist(), len(trace["reward"])]
    assert len(starts) - 1 == episodes
    seen_whole = 0
    for first, end in itertools.pairwise(starts):
        env.reset()
        for t in range(first, end - 1):
            reward, over, _, result = env.step(int(trace["action_byte"][t]))
            assert reward == trace["reward"][t + 1], t
            for ours, theirs in PARTS.items():
                part = float(result[f"info:reward_{ours}"])
                assert part == trace[f"p_{theirs}"][t + 1], (t, ours)
            if over or part < 0:  # a death
                break
        else:
            assert not trace["terminated"][end - 1]
        seen_whole += t == end - 2
        assert not over or trace["terminated"][t + 1]
    assert seen_whole == whole


class Twin:
    """The reward of one frame after another, from work RAM."""

    def __init__(self, ram: np.ndarray) -> None:
        self.best, self.last, self.cleared = self.x(ram), self.counters(ram), False

    @staticmethod
    def x(ram: np.ndarray) -> int:
        return int(ram[PAGE]) * 256 + int(ram[X])

    @staticmethod
    def counters(ram: np.ndarray) -> np.ndarray:
        def number(at: slice) -> int:
            return int("".join(str(digit) for digit in ram[at]))

        power = min(int(ram[POWER]), 2)
        return np.array([number(TIME), number(SCORE), number(COINS), power])

    @staticmethod
    def clear(ram: np.ndarray) -> bool:
        ends = [kind for kind in ram[ENEMY : ENEMY + 5] if kind in (0x2D, FLAGPOLE)]
        return bool(ram[MODE] == 2 or (ends and ram[FLOAT_STATE] == 3))

    def frame(self, ram: np.ndarray) -> dict[str, float]:
        now = self.counters(ram)
        time, score, coins, power = (now - self.last).tolist()
        self.last = now
        ahead = self.x(ram) - self.best
        self.best = max(self.best, self.x(ram))
        first_clear = self.clear(ram) and not self.cleared
        self.cleared |= first_clear
        if coins < -50:
            coins += 100
        dead = ram[PLAYER_STATE] in (DYING, 6) or ram[VIEWPORT] > 1
        return {
            "progress": ahead if 0 < ahead <= 5 else 0,
            "clock": min(time, 0),
            "score": max(score, 0) / 100,
            "coins": max(coins, 0) * 5,
            "powerup": power * 5,
            "flag": 50 * first_clear,
            "death": -25 * bool(dead),
        }


def disturb(ram: np.ndarray, rng: np.random.Generator, clears: bool) -> None:
    """Something that random play does too rarely."""
    event = int(rng.integers(10))
    if event < 2:
        ram[COINS] = rng.integers(10, size=2)
    elif event < 4:
        ram[SCORE] = rng.integers(10, size=6) * (np.arange(6) >= rng.integers(6))
    elif event < 6:
        ram[POWER] = rng.integers(4)
    elif event == 6:
        ram[PAGE] = min(int(ram[PAGE]) + 1, 12)
    elif event == 7:
        ram[TIME] = 3, *rng.integers(10, size=2)
    elif event == 8:
        ram[PLAYER_STATE] = DYING
    elif clears:
        end_world(ram)


def end_world(ram: np.ndarray) -> None:
    """Begins what follows Bowser's fall."""
    ram[MODE], ram[TASK] = 2, 0


@pytest.mark.parametrize("frame_skip", [1, 4])
@pytest.mark.parametrize(
    "level",
    ["-1-1-v0", "-1-2-v0", "-4-2-v0", "-8-4-v3", "-v0", "2-v0", "2-1-1-v0"],
)
def test_equals_the_twin(level: str, frame_skip: int, make_env: Any) -> None:
    name = f"SuperMarioBros{level}"
    same: dict[str, Any] = {"action_set": "complex", "img_height": 24, "img_width": 24}
    env = make_env(name, frame_skip=frame_skip, **V9, **same)
    single = make_env(name, frame_skip=1, **V9, **same)
    # In the whole game, whatever follows a world would have to follow, too.
    one_stage = level.count("-") > 1
    rng = np.random.default_rng(7)
    seen = dict.fromkeys(PARTS, 0)
    over = True
    for t in range(1600 // frame_skip):
        if over:
            env.reset()
            single.reset()
            twin = Twin(single.info_ram())
        if t % 5 == 4:
            before = single.ram.copy()
            disturb(single.ram, rng, clears=one_stage)
            changed = single.ram != before
            env.ram[changed] = single.ram[changed]
        action = int(rng.choice([0, 1, 2, 3, 4, 4, 4, 4, 8, 10]))
        want = dict.fromkeys(PARTS, 0.0)
        reward = 0.0
        for _ in range(frame_skip):
            over = single.step(action)[1]
            frame = twin.frame(single.info_ram())
            reward += min(15, max(-15, sum(frame.values())))
            for part, value in frame.items():
                want[part] += value
            if over:
                break
        got, done, _, result = env.step(action)
        assert done == over
        assert got == pytest.approx(reward, rel=1e-6), t
        assert parts(result) == pytest.approx(want, rel=1e-6), t
        clipped = reward - sum(want.values())
        assert result["info:reward_clipped"] == pytest.approx(clipped, rel=1e-6)
        for part in PARTS:
            seen[part] += want[part] != 0
    if not one_stage:
        del seen["flag"]
    assert min(seen.values()) > 0, seen


@pytest.fixture
def env(make_env: Any) -> Any:
    """The whole game, a frame a step: it goes on after flags and deaths."""
    env = make_env("SuperMarioBros-v0", frame_skip=1, **V9)
    env.reset()
    env.step(0)
    return env


def step(env: Any, action: int = 0) -> dict[str, float]:
    return nonzero(env.step(action)[3])


def test_a_quiet_frame_pays_nothing(env: Any) -> None:
    assert step(env) == {}


def test_coins_and_their_wrap(env: Any) -> None:
    env.ram[COINS] = 9, 8
    assert step(env) == {"coins": 490}
    env.ram[COINS] = 0, 1  # 98 -> 101
    assert step(env) == {"coins": 15}
    env.ram[COINS] = 5, 0
    step(env)
    env.ram[COINS] = 0, 0  # a loss of 50 is no wrap
    assert step(env) == {}


def test_score(env: Any) -> None:
    env.ram[SCORE] = 0, 0, 1, 2, 5, 0
    assert step(env) == {"score": 12.5}
    env.ram[SCORE] = 0, 0, 0, 0, 0, 0
    assert step(env) == {}


def test_power_is_gained_and_lost(env: Any) -> None:
    for status, change in ((1, 5), (3, 5), (2, 0), (0, -10)):
        env.ram[POWER] = status
        assert step(env) == ({"powerup": change} if change else {})


def test_completion_is_paid_once_an_episode(env: Any) -> None:
    for wanted in (50, 0):
        end_world(env.ram)
        assert step(env).get("flag", 0) == wanted
        assert "flag" not in step(env)
    env.reset()
    end_world(env.ram)
    assert step(env)["flag"] == 50


def test_a_jump_of_the_map_moves_the_best_without_pay(env: Any) -> None:
    start = int(env.info_ram()[X])
    env.ram[X] = start + 100
    assert step(env) == {}
    env.ram[X] = start + 90  # below the best
    assert step(env) == {}
    env.ram[X] = start + 105
    assert step(env) == {"progress": 5}


def test_the_best_outlives_rooms_and_lives(env: Any) -> None:
    while int(env.info_ram()[X]) < 60:
        step(env, 1)
    env.ram[0x74F] += 1  # another room, as an underground bonus is
    env.ram[X] = 44
    assert "progress" not in step(env)
    env.ram[0x74F] -= 1
    env.ram[PLAYER_STATE] = DYING
    assert step(env)["death"] == -25
    assert env.ram[LIVES] == 1
    paid = sum(step(env, 1).get("progress", 0) for _ in range(20))
    assert 40 < int(env.info_ram()[X]) < 60
    assert paid == 0
    env.reset()
    assert sum(step(env, 1).get("progress", 0) for _ in range(20)) > 0


def test_each_frame_is_clipped(make_env: Any) -> None:
    env = make_env("SuperMarioBros-1-1-v0", frame_skip=4, **V9)
    env.reset()
    env.step(0)
    env.ram[COINS] = 1, 0
    reward, _, _, result = env.step(0)
    assert (reward, nonzero(result)) == (15, {"coins": 50})
    assert result["info:reward_clipped"] == -35
    env.ram[PLAYER_STATE] = DYING
    reward, terminated, _, result = env.step(0)
    assert terminated
    assert (reward, nonzero(result)) == (-15, {"death": -25})
