"""MarioVecEnv: the contract of Stable-Baselines3, and the same play as the pool's."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="pip install 'mario-envpool[sb3]'")

from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor

from mario_envpool.compat.sb3 import MarioVecEnv
from mario_envpool.env import MarioEnv

pytestmark = pytest.mark.rom
STAGE = "SuperMarioBros-1-1-v0"
RIGHT = 1


def right_biased(rng: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    return rng.choice(7, size=count, p=[0.02, 0.1, 0.15, 0.25, 0.4, 0.04, 0.04])


@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_the_checker_finds_nothing_in_the_gymnasium_environment(
    render_mode: str | None,
) -> None:
    check_env(MarioEnv(STAGE, render_mode=render_mode))


def test_agrees_with_a_dummy_vec_env_step_by_step() -> None:
    config: dict[str, Any] = {"noop_max": 30, "max_episode_steps": 60}
    ours = MarioVecEnv(STAGE, 4, **config)
    theirs = DummyVecEnv([lambda: Monitor(MarioEnv(STAGE, **config))] * 4)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.seed(11) == theirs.seed(11)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    assert ours.reset_infos == theirs.reset_infos
    rng = np.random.default_rng(0)
    ends = {"TimeLimit.truncated": 0, "terminal": 0}
    for _ in range(250):
        actions = right_biased(rng, 4)
        obs, rewards, dones, infos = ours.step(actions)
        expected = theirs.step(actions)
        np.testing.assert_array_equal(obs, expected[0])
        np.testing.assert_array_equal(rewards, expected[1])
        assert rewards.dtype == expected[1].dtype
        np.testing.assert_array_equal(dones, expected[2])
        assert ours.reset_infos == theirs.reset_infos
        for info, reference, done in zip(infos, expected[3], dones, strict=True):
            if not done:
                assert reference.pop("TimeLimit.truncated") is False
                assert info == reference
                continue
            last, expected_last = (
                each.pop("terminal_observation") for each in (info, reference)
            )
            np.testing.assert_array_equal(last, expected_last)
            for each in (info, reference):
                del each["episode"]["t"]
            assert info == reference
            ends["TimeLimit.truncated"] += info["TimeLimit.truncated"]
            ends["terminal"] += not info["TimeLimit.truncated"]
    assert min(ends.values()) >= 2


def test_infos_hold_what_was_asked_for() -> None:
    venv = MarioVecEnv(STAGE, 2, info_keys=("x_pos", "flag_get"))
    venv.reset()
    infos = venv.step(np.full(2, RIGHT))[3]
    assert infos == [{"x_pos": 40, "flag_get": False}] * 2
    assert type(infos[0]["x_pos"]) is int
    venv = MarioVecEnv(STAGE, 2, info_keys=(), max_episode_steps=2)
    venv.reset()
    assert venv.step(np.full(2, RIGHT))[3] == [{}, {}]
    last = venv.step(np.full(2, RIGHT))[3][1]
    assert set(last) == {"terminal_observation", "TimeLimit.truncated", "episode"}
    with pytest.raises(ValueError, match=r"'x'.*the keys are coins"):
        MarioVecEnv(STAGE, 2, info_keys=("x",))


def test_seeds() -> None:
    venv = MarioVecEnv(STAGE, 3, noop_max=30)
    venv.seed(2**32 - 1)
    first = venv.reset()
    drawn = venv.reset()
    venv.seed(2**32 - 1)
    np.testing.assert_array_equal(venv.reset(), first)
    np.testing.assert_array_equal(venv.reset(), drawn)
    # Of 8 pictures in the first half second all are equal once in 150 times.
    fresh = [MarioVecEnv(STAGE, 64, noop_max=30).reset() for _ in range(2)]
    assert (fresh[0] != fresh[1]).any()  # nobody gave a seed
    fixed = [MarioVecEnv(STAGE, 8, noop_max=30, seed=3).reset() for _ in range(2)]
    np.testing.assert_array_equal(fixed[0], fixed[1])
    venv.set_options({"stages": ["1-2"]})
    with pytest.raises(ValueError, match="reset has no options"):
        venv.reset()


def test_calls_out_of_order() -> None:
    venv = MarioVecEnv(STAGE, 2)
    first = venv.reset()
    with pytest.raises(RuntimeError, match="no step is under way"):
        venv.step_wait()
    venv.step_async(np.full(2, RIGHT))
    with pytest.raises(RuntimeError, match="a step is under way"):
        venv.step_async(np.full(2, RIGHT))
    np.testing.assert_array_equal(venv.reset(), first)  # drops the step
    with pytest.raises(RuntimeError, match="no step is under way"):
        venv.step_wait()
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        venv.step_async(np.full(3, RIGHT))
    venv.close()
    venv.close()
    with pytest.raises(RuntimeError, match="closed"):
        venv.reset()


def test_arguments() -> None:
    with pytest.raises(ValueError, match="render_mode='human'"):
        MarioVecEnv(STAGE, render_mode="human")
    with pytest.raises(ValueError, match="batch_size=1"):
        MarioVecEnv(STAGE, 2, batch_size=1)
    with pytest.raises(TypeError, match="env_type"):
        MarioVecEnv(STAGE, env_type="dm")


def test_attributes_and_methods() -> None:
    venv = MarioVecEnv(STAGE, 3, render_mode="rgb_array", frame_skip=2)
    venv.reset()
    assert venv.get_attr("render_mode") == ["rgb_array"] * 3
    assert venv.get_attr("config", [0, 2])[1]["frame_skip"] == 2
    assert venv.metadata["render_fps"] == 30
    assert venv.has_attr("spec")
    assert not venv.has_attr("action_masks")
    with pytest.raises(AttributeError, match="'frame_skip' cannot be set"):
        venv.set_attr("frame_skip", 4)
    with pytest.raises(TypeError, match=r"render takes no arguments here, got \('hum"):
        venv.env_method("render", "human")
    blobs = venv.env_method("snapshot", indices=[0, 2])
    assert [len(blob) for blob in blobs] == [venv.pool.snapshot([0]).shape[1]] * 2
    assert venv.env_method("render", indices=1)[0].shape == (240, 256, 3)
    with pytest.raises(AttributeError, match="no method 'jump'"):
        venv.env_method("jump")
    assert venv.env_is_wrapped(Monitor, [0]) == [True]
    assert venv.env_is_wrapped(DummyVecEnv) == [False] * 3
    assert len(venv.get_images()) == 3
    picture = venv.render()
    assert picture is not None
    assert picture.shape == (480, 512, 3)
    with pytest.raises(RuntimeError, match="rgb_array"):
        MarioVecEnv(STAGE).get_images()


def test_wrappers_of_stable_baselines() -> None:
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        monitored = VecMonitor(MarioVecEnv(STAGE, 2, max_episode_steps=5))
    venv = VecFrameStack(monitored, 2)
    venv.reset()
    for _ in range(5):
        obs, _, dones, infos = venv.step(np.full(2, RIGHT))
    assert obs.shape == (2, 8, 84, 84)
    assert dones.all()
    assert infos[0]["episode"]["l"] == 5
    assert infos[0]["terminal_observation"].shape == (8, 84, 84)


def test_several_kinds_of_observation() -> None:
    venv = MarioVecEnv(
        STAGE, 2, obs_type=["tiles", "motion"], stack_num=1, max_episode_steps=3
    )
    first = venv.reset()
    assert venv.observation_space.contains({key: first[key][0] for key in first})
    for _ in range(3):
        obs, _, dones, infos = venv.step(np.full(2, RIGHT))
    assert dones.all()
    for key in ("tiles", "motion"):
        np.testing.assert_array_equal(obs[key], first[key])
    for i, info in enumerate(infos):
        last = info["terminal_observation"]
        assert last.keys() == first.keys()
        assert not np.array_equal(last["motion"], first["motion"][i])


def test_a_reward_function_that_fails_loses_no_step() -> None:
    fails = {"step": False, "reset": False}

    def reward(batch: dict[str, Any]) -> Any:
        is_reset = not batch["elapsed_step"].any()
        if fails["reset" if is_reset else "step"]:
            raise KeyError("x")
        return 0.5 * batch["elapsed_step"]

    venv = MarioVecEnv(STAGE, 2, reward_fn=reward, max_episode_steps=2)
    venv.reset()
    venv.step(np.full(2, RIGHT))
    venv.step_async(np.full(2, RIGHT))
    for stage in fails:
        fails[stage] = True
        with pytest.raises(RuntimeError, match="reward_fn raised KeyError"):
            venv.step_wait()
        fails[stage] = False
    _, rewards, dones, infos = venv.step_wait()
    assert rewards.tolist() == [1, 1]
    assert dones.all()
    assert infos[0]["episode"]["r"] == 1.5
    assert venv.step(np.full(2, RIGHT))[1].tolist() == [0.5, 0.5]
    fails["step"] = True
    with pytest.raises(RuntimeError, match="reward_fn raised KeyError"):
        venv.step(np.full(2, RIGHT))
    venv.reset()  # gives the step up
    fails["step"] = False
    assert venv.step(np.full(2, RIGHT))[1].tolist() == [0.5, 0.5]


@pytest.mark.slow
def test_ppo_learns_saves_and_evaluates_without_a_warning(tmp_path: Path) -> None:
    venv = MarioVecEnv(STAGE, 2, max_episode_steps=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PPO("CnnPolicy", venv, n_steps=32, batch_size=32, n_epochs=1, seed=1)
        model.learn(128)
        assert model.ep_info_buffer is not None
        assert {info["l"] for info in model.ep_info_buffer} == {20}
        model.save(tmp_path / "model.zip")
        loaded = PPO.load(tmp_path / "model.zip", env=venv)
        returns, lengths = evaluate_policy(
            loaded, venv, n_eval_episodes=4, return_episode_rewards=True
        )
    assert lengths == [20] * 4
    assert len(returns) == 4
