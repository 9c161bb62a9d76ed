"""MarioEnv: one environment for Gymnasium."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from mario_envpool.env import MarioEnv

pytestmark = pytest.mark.rom
TASK = "SuperMarioBros-1-1-v0"


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows open, but nowhere."""
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def test_gymnasiums_own_check(window: None) -> None:
    env = gymnasium.make(
        f"mario_envpool:{TASK}", render_mode="rgb_array", disable_env_checker=True
    )
    check_env(env.unwrapped)  # makes further ones, of each render mode
    check_env(MarioEnv("SuperMarioBrosRandomStages-v0"), skip_render_check=True)


def test_made_by_gymnasium() -> None:
    env = gymnasium.make(f"mario_envpool:{TASK}", stack_num=2, frame_skip=3)
    assert isinstance(env.unwrapped, MarioEnv)
    assert env.observation_space.shape == (2, 84, 84)
    assert env.unwrapped.metadata["render_fps"] == 20
    obs, info = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    assert type(info["x_pos"]) is int
    assert type(info["flag_get"]) is bool
    assert not {"env_id", "players"} & set(info)
    obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert type(reward) is float
    assert type(terminated) is type(truncated) is bool
    env.close()


def frames(env: Any, count: int = 6, **reset: Any) -> np.ndarray[Any, Any]:
    obs = [env.reset(**reset)[0]]
    obs += [env.step(1)[0] for _ in range(count)]
    return np.stack(obs)


def test_seeds_of_reset() -> None:
    env = MarioEnv(TASK, noop_max=100)
    first = frames(env, seed=5)
    following = frames(env)
    assert not np.array_equal(first, following)
    np.testing.assert_array_equal(frames(env, seed=5), first)
    np.testing.assert_array_equal(frames(env), following)
    assert not np.array_equal(frames(env, seed=6), first)
    # The constructor's seed is the same thing.
    np.testing.assert_array_equal(frames(MarioEnv(TASK, noop_max=100, seed=5)), first)
    # Gymnasium's seeds are unbounded.
    env.reset(seed=2**70 + 5)


def test_without_a_seed_episodes_differ_between_environments() -> None:
    runs = [frames(MarioEnv(TASK, noop_max=120)) for _ in range(4)]
    assert any(not np.array_equal(runs[0], run) for run in runs[1:])


def test_arrays_are_copies() -> None:
    env = MarioEnv(TASK)
    kept = [env.reset(seed=0)[0]]
    kept += [env.step(1)[0] for _ in range(10)]
    before = [obs.copy() for obs in kept]
    for obs in kept:
        assert obs.flags.owndata
        assert obs.flags.writeable
    for _ in range(20):
        env.step(1)
    for obs, same in zip(kept, before, strict=True):
        np.testing.assert_array_equal(obs, same)


def test_steps_outside_of_an_episode_are_refused() -> None:
    env = MarioEnv(TASK, max_episode_steps=2)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    env.reset()
    assert env.step(0)[3] is False
    assert env.step(0)[2:4] == (False, True)
    with pytest.raises(gymnasium.error.ResetNeeded, match="episode is over"):
        env.step(0)
    env.reset()
    env.step(0)


def test_wrong_arguments_are_refused() -> None:
    env = MarioEnv(TASK)
    env.reset()
    for action in (-1, 7, 10**6):
        with pytest.raises((ValueError, IndexError), match="action"):
            env.step(action)
    with pytest.raises(TypeError):
        env.step(1.5)  # type: ignore[arg-type]
    env.step(np.int64(1))  # still alive
    with pytest.raises(ValueError, match=r"no options, got .'speed'"):
        env.reset(options={"speed": 2})
    with pytest.raises(ValueError, match=r"option of make: stages=\['1-1'\], random"):
        env.reset(options={"stages": ["1-1"]})
    with pytest.raises(ValueError, match="render_mode='ansi'"):
        MarioEnv(TASK, render_mode="ansi")
    with pytest.raises(ValueError, match="num_envs=2 cannot be set"):
        MarioEnv(TASK, num_envs=2)
    with pytest.raises(ValueError, match="num_envs=0 cannot be set"):
        MarioEnv(TASK, num_envs=0)


def test_closing() -> None:
    env = MarioEnv(TASK, render_mode="rgb_array")
    env.reset()
    env.close()
    env.close()
    for call in (env.reset, env.render, lambda: env.step(0)):
        with pytest.raises(gymnasium.error.ClosedEnvironmentError):
            call()


def test_rgb_array_is_the_screen() -> None:
    env = MarioEnv(TASK, render_mode="rgb_array")
    env.reset()
    frame = env.render()
    assert frame is not None
    assert frame.shape == (240, 256, 3)
    assert frame.dtype == np.uint8
    sky = frame[100, 200]
    assert sky[2] > sky[0]  # blue


def test_human_mode_opens_a_window(window: None) -> None:
    env = MarioEnv(TASK, render_mode="human")
    env.reset()
    env.step(1)
    assert env.render() is None
    assert env._window is not None
    env.close()
    assert env._window is None


def test_no_mode_renders_nothing() -> None:
    env = MarioEnv(TASK)
    env.reset()
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.render() is None


def test_gymnasiums_time_limit() -> None:
    env = gymnasium.make(f"mario_envpool:{TASK}", max_episode_steps=3)
    env.reset()
    flags = [env.step(0)[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)]


def played(env: Any, steps: int) -> list[tuple[Any, ...]]:
    # Sticky actions show only where the action changes.
    return [env.step((3, 0)[i % 2]) for i in range(steps)]


def assert_same_steps(ours: list[tuple[Any, ...]], theirs: Any) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine[0], other[0])
        assert mine[1:] == other[1:]


def test_snapshots_go_on_where_they_were_taken() -> None:
    config = {"noop_max": 30, "repeat_action_probability": 0.3}
    env = MarioEnv(TASK, **config)
    env.reset(seed=3)
    obs, *_, info = played(env, 10)[-1]
    saved = env.snapshot()
    assert type(saved) is bytes
    following = played(env, 10)
    next_episode = frames(env)
    back = env.restore(saved)
    np.testing.assert_array_equal(back[0], obs)
    assert back[0].flags.owndata
    assert {**info, **back[1]}.keys() == info.keys()
    assert back[1]["x_pos"] == info["x_pos"]
    assert back[1]["elapsed_step"] == 10
    assert_same_steps(following, played(env, 10))
    # In another environment, which then continues with the saved generator.
    other = MarioEnv(TASK, **config)
    other.restore(np.frombuffer(saved, np.uint8))
    assert_same_steps(following, played(other, 10))
    np.testing.assert_array_equal(frames(other), next_episode)
    # With its own generator, sticky actions fall elsewhere.
    runs = []
    for seed in range(5):
        other.reset(seed=seed)
        other.restore(saved, rng="keep")
        runs.append(np.stack([step[0] for step in played(other, 10)]))
    assert any(not np.array_equal(runs[0], run) for run in runs[1:])


def test_a_snapshot_knows_whether_the_episode_is_over() -> None:
    env = MarioEnv(TASK, max_episode_steps=2)
    env.reset(seed=0)
    env.step(0)
    running = env.snapshot()
    env.step(0)
    over = env.snapshot()
    env.restore(running)
    assert env.step(0)[3] is True
    env.reset()
    env.restore(over)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


def test_wrong_snapshots_are_refused() -> None:
    env = MarioEnv(TASK)
    env.reset(seed=0)
    saved = env.snapshot()
    damaged = bytearray(saved)
    damaged[-1] ^= 1
    for blob in (b"", saved[:-1], bytes(damaged)):
        with pytest.raises(ValueError, match="restore"):
            env.restore(blob)
    with pytest.raises(ValueError, match="rng must be"):
        env.restore(saved, rng="new")
    with pytest.raises(ValueError, match="restore"):
        MarioEnv(TASK, frame_skip=2).restore(saved)
    with pytest.raises(TypeError):
        env.restore("text")  # type: ignore[arg-type]
    env.step(0)
    env.close()
    for call in (env.snapshot, lambda: env.restore(saved)):
        with pytest.raises(gymnasium.error.ClosedEnvironmentError):
            call()


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))]
)
def test_copies_are_new_environments_of_the_same_kind(again: Any) -> None:
    env = MarioEnv(TASK, "rgb_array", noop_max=100, seed=5, batch_size=1)
    first = frames(env)
    other = again(env)
    assert other.render_mode == "rgb_array"
    with pytest.raises(gymnasium.error.ResetNeeded):
        other.step(0)
    np.testing.assert_array_equal(frames(other), first)
    other.restore(env.snapshot())
    env.close()
    other.step(0)
    assert other.render().shape == (240, 256, 3)
    again(env).reset()  # of a closed one, too


def test_copies_of_what_gymnasium_made() -> None:
    env = gymnasium.make(f"mario_envpool:{TASK}", frame_skip=3, max_episode_steps=4)
    other = pickle.loads(pickle.dumps(env))
    assert other.spec == env.spec
    assert other.unwrapped.spec == env.unwrapped.spec is not None
    np.testing.assert_array_equal(other.reset(seed=1)[0], env.reset(seed=1)[0])
    assert other.unwrapped.metadata == env.unwrapped.metadata
