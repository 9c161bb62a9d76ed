"""RLlib and MO-Gymnasium, where they are installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mario_envpool.env import MarioEnv

pytestmark = pytest.mark.rom


def test_rllib_trains() -> None:
    pytest.importorskip(
        "ray.rllib", reason="pip install 'ray[rllib]'", exc_type=ImportError
    )
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.tune.registry import register_env

    register_env("mario", lambda config: MarioEnv(**config))
    game = {"task_id": "SuperMarioBros-1-1-v0", "channels_last": True, "float32": True}
    config = (
        PPOConfig()
        .environment("mario", env_config=game)
        .env_runners(num_env_runners=0)
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    )
    algorithm = config.build_algo()
    assert algorithm.train()["env_runners"]["num_env_steps_sampled"] >= 64
    algorithm.stop()


def test_mo_gymnasium_plays() -> None:
    pytest.importorskip("mo_gymnasium", reason="pip install mo-gymnasium")
    program = """
import mario_envpool.compat
mario_envpool.compat.install()
import mo_gymnasium
env = mo_gymnasium.make("mo-supermario-v0")
env.reset(seed=1)
for _ in range(60):
    obs, reward, terminated, truncated, info = env.step(130)
print(obs.shape, reward.shape, terminated, info["x_pos"])
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "(240, 256, 3) (5,) False 177\n", done.stderr
