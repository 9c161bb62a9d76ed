"""Many environments with dm_env's API; random play, a line for each episode.

python examples/dm_env_loop.py --steps 20000
"""

from __future__ import annotations

import numpy as np
import tyro

import mario_envpool


def main(steps: int = 20_000, num_envs: int = 8) -> None:
    """Plays random actions for `steps` steps."""
    pool = mario_envpool.make_dm("SuperMarioBros-1-1-v0", num_envs=num_envs, seed=1)
    num_actions = pool.action_spec().num_values
    rng = np.random.default_rng(1)
    returns = np.zeros(num_envs)
    pool.reset()
    for _ in range(0, steps, num_envs):
        actions = rng.integers(num_actions, size=num_envs).astype(np.int32)
        timestep = pool.step(actions)
        # The step after the last step of an episode returns the first of the next one.
        returns = np.where(timestep.first(), 0, returns + timestep.reward)
        for i in np.flatnonzero(timestep.last()):
            x_pos = timestep.observation.x_pos[i]
            print(f"environment {i}: return {returns[i]:6.0f}  x_pos {x_pos}")
    pool.close()


if __name__ == "__main__":
    tyro.cli(main)
