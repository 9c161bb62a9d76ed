"""Snapshots hold everything: an environment continues bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.rom

OPTIONS: list[dict[str, Any]] = [
    {},
    {"repeat_action_probability": 0.3, "noop_max": 20, "stack_num": 3},
    {"frame_max": True, "gray_scale": False, "img_height": 40, "img_width": 48},
    {"reward": "progress", "stall_steps": 25},
    {"random_stages": True, "stages": [], "noop_max": 5},
    {"stages": [], "episodic_life": True},
    {"reward": "v9", "frame_skip": 3},
    {"timing": "nes_py", "frame_max": True},
    {"timing": "nes_py", "frame_skip": 1, "stages": [], "episodic_life": True},
]


def play(env: Any, seed: int, steps: int = 150) -> list[Any]:
    rng = np.random.default_rng(seed)
    seen: list[Any] = []
    for _ in range(steps):
        reward, terminated, truncated, result = env.step(int(rng.integers(7)))
        seen.append((reward, terminated, truncated, *result.values()))
        if terminated or truncated:
            seen.append(tuple(env.reset().values()))
    seen.append(env.render())
    return seen


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        all(np.array_equal(p, q) for p, q in zip(x, y, strict=True))
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("steps_before", [0, 77])
def test_goes_on_bit_for_bit(
    options: dict[str, Any], steps_before: int, make_env: Any
) -> None:
    env = make_env(seed=5, **options)
    before = env.reset()
    for t in range(steps_before):
        _, terminated, truncated, before = env.step((t * 5) % 7)
        if terminated or truncated:
            before = env.reset()
    blob = env.snapshot()
    assert env.snapshot() == blob
    picture = env.render()
    want = play(env, seed=1)

    other = make_env(seed=99, **options)  # never reset
    got = other.restore(blob)
    assert all(np.array_equal(got[key], before[key]) for key in before)
    assert np.array_equal(other.render(), picture)
    assert other.snapshot() == blob
    assert same(play(other, seed=1), want)
    # And back again in the first one.
    env.restore(blob)
    assert same(play(env, seed=1), want)


def test_equal_states_are_equal_bytes(make_env: Any) -> None:
    """Nothing of the rooms of an earlier episode stays."""
    env = make_env(seed=1)
    env.reset()
    blob = env.snapshot()
    for pointer in range(20):
        env.ram[0x074F] = pointer  # another room
        env.step(3)
    env.reset()
    assert env.snapshot() == blob


def test_kept_generator_goes_its_own_way(make_env: Any) -> None:
    options = {"repeat_action_probability": 0.5}
    env = make_env(seed=1, **options)
    env.reset()
    blob = env.snapshot()
    want = play(env, seed=4)
    env.restore(blob, keep_rng=True)  # its generator has moved on
    assert not same(play(env, seed=4), want)
    env.restore(blob)
    assert same(play(env, seed=4), want)


def test_foreign_snapshots_are_refused(make_env: Any) -> None:
    env = make_env()
    env.reset()
    blob = env.snapshot()
    untouched = env.snapshot()
    for other, message in (
        (make_env(rom="pixel"), "not a snapshot for this ROM"),
        (make_env(noop_max=1), "these options"),
    ):
        other.reset()
        with pytest.raises(ValueError, match=message):
            env.restore(other.snapshot())
    there = "under timing='nes_py', but this environment has timing='console'"
    other = make_env(timing="nes_py")
    other.reset()
    with pytest.raises(ValueError, match=there):
        env.restore(other.snapshot())
    with pytest.raises(ValueError, match="under timing='console', but this"):
        other.restore(blob)
    one, two = (make_env(custom_actions=a) for a in (["right,A"], ["right", "A"]))
    one.reset()
    with pytest.raises(ValueError, match="these options"):
        two.restore(one.snapshot())
    with pytest.raises(ValueError, match="not a snapshot for the Super Mario"):
        env.restore(b"X" + blob[1:])
    with pytest.raises(ValueError, match="this version"):
        env.restore(blob[:8] + b"\xff" + blob[9:])
    with pytest.raises(ValueError, match=r"has \d+ bytes, but .* have \d+"):
        env.restore(blob[:-1])
    assert env.snapshot() == untouched
