"""PPO of Stable-Baselines3 on the native pool (pip install 'mario-envpool[sb3]').

python examples/sb3_ppo.py --steps 1000000
"""

from __future__ import annotations

from pathlib import Path

import tyro
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from mario_envpool.compat.sb3 import MarioVecEnv

# For speed: one action every 6 frames, small pictures without the status bar, and a
# reward for new best positions with a penalty for deaths.
TASK = {
    "noop_max": 30,
    "frame_skip": 6,
    "img_height": 42,
    "img_width": 42,
    "hud": "crop",
    "reward": "progress",
    "reward_step": -0.5,
    "reward_death": -50.0,
    "reward_scale": 0.02,
}


def main(
    steps: int = 1_000_000, num_envs: int = 16, save: Path | None = None, seed: int = 1
) -> None:
    """Trains, evaluates, and saves the model if a path is given."""
    venv = MarioVecEnv("SuperMarioBros-1-1-v0", num_envs, info_keys=(), **TASK)
    model = PPO(
        "CnnPolicy",
        venv,
        n_steps=128,
        batch_size=32 * num_envs,
        n_epochs=4,
        gamma=0.93,
        ent_coef=0.01,
        seed=seed,
        verbose=1,
    )
    model.learn(steps)
    mean, spread = evaluate_policy(model, venv, num_envs, deterministic=False)
    print(f"return after training: {mean:.1f} +- {spread:.1f}")
    if save is not None:
        model.save(save)
    venv.close()


if __name__ == "__main__":
    tyro.cli(main)
