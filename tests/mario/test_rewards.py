"""Rewards: their parts, their sums, new best positions and mazes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.rom

PARTS = "progress clock death score step flag wrong_pass coins powerup clipped".split()


def parts(result: dict[str, Any]) -> dict[str, float]:
    return {name: float(result[f"info:reward_{name}"]) for name in PARTS}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reward_clip": True},
        {"reward": "v9"},
        {"reward": "v9", "reward_clip": True},
        {"reward": "progress"},
        {
            "reward": "progress",
            "reward_score": 0.025,
            "reward_clock": -1.0,
            "reward_clip": True,
        },
    ],
)
def test_parts_add_up(options: dict[str, Any], make_env: Any) -> None:
    rng = np.random.default_rng(0)
    env = make_env(**options)
    seen = dict.fromkeys(PARTS, 0.0)
    result = env.reset()
    assert parts(result) == dict.fromkeys(PARTS, 0.0)
    for _ in range(600):
        reward, terminated, _, result = env.step(int(rng.integers(1, 5)))
        assert np.float32(sum(parts(result).values())) == pytest.approx(
            reward, abs=1e-5
        )
        for name, value in parts(result).items():
            seen[name] += abs(value)
        if terminated:
            env.reset()
    assert seen["progress"] > 0
    assert seen["death"] > 0
    assert (seen["step"] > 0) == (options.get("reward") == "progress")
    assert (seen["clock"] > 0) == (
        options.get("reward") != "progress" or "reward_clock" in options
    )


def test_classic_reward_is_the_clipped_sum_of_frames(make_env: Any) -> None:
    """Four single frames give what one step of four gives, up to the end."""
    rng = np.random.default_rng(1)
    single = make_env(frame_skip=1)
    skipping = make_env(frame_skip=4)
    single.reset()
    skipping.reset()
    deaths = 0
    for _ in range(800):
        action = int(rng.integers(1, 5))
        total = 0.0
        for _ in range(4):
            reward, over, _, result = single.step(action)
            assert -15 <= reward <= 15
            total += reward
            if over:
                break
        got, done, _, other = skipping.step(action)
        assert (got, done) == (total, over)
        for key in ("x_pos", "time", "score", "life", "status"):
            assert result[f"info:{key}"] == other[f"info:{key}"]
        if over:
            deaths += 1
            assert parts(other)["death"] == -25
            single.reset()
            skipping.reset()
    assert deaths >= 2


def test_reward_clip_is_the_sign(make_env: Any) -> None:
    plain, clipped = make_env(), make_env(reward_clip=True)
    plain.reset()
    clipped.reset()
    signs = set()
    for action in [1, 3, 3, 6, 6, 6, 6, 6, 0, 0, 0, 0, 1, 1, 1] * 3:
        reward = plain.step(action)[0]
        assert clipped.step(action)[0] == np.sign(reward)
        signs.add(int(np.sign(reward)))
    assert signs == {-1, 0, 1}


def test_progress_pays_only_new_best_positions(make_env: Any) -> None:
    env = make_env(reward="progress", reward_step=0.0)
    start = best = int(env.reset()["info:x_pos"])
    paid = 0.0
    for action in [3] * 10 + [6] * 15 + [3] * 20:
        reward, terminated, _, result = env.step(action)
        x = int(result["info:x_pos"])
        if x <= best:
            assert reward == 0
        best = max(best, x)
        paid += reward
        assert not terminated
        assert result["info:best_x"] == best
    assert paid == pytest.approx((best - start) / 10, abs=1e-3)


def test_score_and_clock_parts(make_env: Any) -> None:
    env = make_env(frame_skip=1, reward="progress", reward_score=0.5, reward_clock=-2.0)
    env.reset()
    env.ram[0x07DE:0x07E4] = 0, 0, 0, 2, 0, 0
    result = env.step(0)[3]
    assert parts(result)["score"] == 10  # 200 points x 0.5 x scale 0.1
    ticks = 0.0
    for _ in range(48):
        ticks += parts(env.step(0)[3])["clock"]
    assert ticks == pytest.approx(-2 * 2 * 0.1)


def test_coins_part(make_env: Any) -> None:
    env = make_env(frame_skip=1, reward="progress", reward_coins=2.0, reward_step=0.0)
    env.reset()
    env.ram[0x07ED:0x07EF] = 0, 3
    reward, _, _, result = env.step(0)
    assert parts(result)["coins"] == pytest.approx(3 * 2 * 0.1)
    assert reward == pytest.approx(0.6)
    assert parts(env.step(0)[3])["coins"] == 0


@pytest.mark.parametrize("kind", ["classic", "v9", "progress"])
def test_scale_is_a_factor_of_every_reward(kind: str, make_env: Any) -> None:
    """By default 1 for the rewards of gym-super-mario-bros, and 0.1 for progress."""
    plain, scaled = make_env(reward=kind), make_env(reward=kind, reward_scale=0.05)
    plain.reset()
    scaled.reset()
    factor = 0.5 if kind == "progress" else 0.05
    seen = 0.0
    for action in [3] * 40 + [1, 6, 6, 4]:
        reward, over, _, result = plain.step(action)
        got, _, _, other = scaled.step(action)
        assert got == pytest.approx(factor * reward, abs=1e-6)
        for name, part in parts(result).items():
            assert parts(other)[name] == pytest.approx(factor * part, abs=1e-5), name
        seen = max(seen, abs(reward))
        if over:
            break
    assert seen > 1


@pytest.mark.parametrize(("kind", "natural"), [("classic", 1.0), ("progress", 0.1)])
def test_the_default_scale_may_be_given(
    kind: str, natural: float, make_env: Any
) -> None:
    default, given = (
        make_env(reward=kind, reward_scale=scale) for scale in (0.0, natural)
    )
    default.reset()
    given.restore(default.snapshot())
    with pytest.raises(ValueError, match="options"):
        make_env(reward=kind, reward_scale=2.0).restore(default.snapshot())


class Maze:
    """A castle whose player is put in front of the game's own lane checks."""

    def __init__(self, make_env: Any, stage: str, **options: Any) -> None:
        self.env = make_env(
            f"SuperMarioBros-{stage}-v0", frame_skip=1, reward="progress", **options
        )
        self.env.reset()

    def pass_check(self, page: int, y: int) -> tuple[bool, float, bool]:
        """Goes on page `page` past height `y`: (wrong, part, terminated)."""
        ram = self.env.ram
        for column in (1, 0):  # the game checks when it builds column 0
            ram[[0x6D, 0x71A, 0x71B]] = 4
            ram[[0x71C, 0x71D]] = 0, 255
            ram[0x725], ram[0x726], ram[0x745] = page, column, 1
            ram[0xCE], ram[0x1D] = y, 0
            ram[[0x9F, 0x433]] = 0
            _, terminated, _, result = self.env.step(0)
        assert ram[0x745] == 0, "the game made no check"
        wrong = bool(result["info:wrong_pass"])
        return wrong, parts(result)["wrong_pass"], terminated


def test_wrong_pass_of_4_4(make_env: Any) -> None:
    maze = Maze(make_env, "4-4")
    assert maze.pass_check(5, 0x50) == (True, -2.5, False)
    assert maze.pass_check(9, 0x50) == (True, -2.5, False)
    assert maze.pass_check(9, 0xB0) == (False, 0.0, False)


def test_wrong_pass_of_7_4_counts_each_of_three_checks(make_env: Any) -> None:
    maze = Maze(make_env, "7-4")
    assert maze.pass_check(4, 0xB0) == (False, 0.0, False)
    assert maze.pass_check(5, 0xB0) == (True, -2.5, False)
    # The third throws back for the second's mistake, which is told already.
    assert maze.pass_check(6, 0x50) == (False, 0.0, False)
    assert maze.env.ram[0x6D] == 0
    maze.env.reset()
    assert maze.pass_check(4, 0xB0)[0] is False
    assert maze.pass_check(5, 0x80)[0] is False
    assert maze.pass_check(6, 0x50)[0] is True  # two right, the third wrong


def test_wrong_pass_of_8_4(make_env: Any) -> None:
    maze = Maze(make_env, "8-4")
    for page in (6, 11, 16):
        assert maze.pass_check(page, 0xB0) == (True, -2.5, False)


def test_wrong_pass_may_end_the_episode(make_env: Any) -> None:
    maze = Maze(make_env, "4-4", end_on_wrong_pass=True)
    assert maze.pass_check(5, 0x50) == (True, -2.5, True)
    assert int(maze.env.step(0)[3]["info:end_reason"]) in (0, 1, 5)


def test_no_wrong_pass_without_a_maze(make_env: Any) -> None:
    env = make_env("SuperMarioBros-1-1-v0")
    env.reset()
    for t in range(300):
        _, terminated, _, result = env.step(3 if t % 7 else 4)
        assert not result["info:wrong_pass"]
        if terminated:
            env.reset()
