"""One environment with Gymnasium's API; random play, a line for each episode.

python examples/gymnasium_loop.py --steps 2000
"""

from __future__ import annotations

import warnings

import gymnasium
import tyro

# Gymnasium mistakes -v3, another revision of the ROM, for a newer version of -v0.
warnings.filterwarnings("ignore", ".*SuperMarioBros.* is out of date")


def main(steps: int = 2000, seed: int = 1) -> None:
    """Plays random actions for `steps` steps."""
    env = gymnasium.make("mario_envpool:SuperMarioBros-1-1-v0")
    env.action_space.seed(seed)
    env.reset(seed=seed)
    total = 0.0
    for _ in range(steps):
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        total += float(reward)
        if terminated or truncated:
            print(f"return {total:6.0f}  x_pos {info['x_pos']:5d}  time {info['time']}")
            total = 0.0
            env.reset()
    env.close()


if __name__ == "__main__":
    tyro.cli(main)
