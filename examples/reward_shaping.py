"""A custom reward: a function from a batch of results to its rewards.

python examples/reward_shaping.py --steps 20000
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tyro

import mario_envpool

Array = npt.NDArray[Any]


class Treasure:
    """Rewards coins and points; a death costs five coins."""

    def __init__(self, num_envs: int) -> None:
        self.coins = np.zeros(num_envs)
        self.score = np.zeros(num_envs)

    def __call__(self, batch: dict[str, Array]) -> Array:
        """Returns the rewards of the rows; rows that begin an episode count as 0."""
        env = batch["env_id"]
        coins = (batch["coins"] - self.coins[env]) % 100  # 100 coins become a life
        score = batch["score"] - self.score[env]
        self.coins[env], self.score[env] = batch["coins"], batch["score"]
        dead = batch["terminated"] & ~batch["flag_get"]
        return np.asarray(coins + 0.001 * score - 5 * dead)


def main(steps: int = 20_000, num_envs: int = 8) -> None:
    """Plays random actions and prints the shaped return of each episode."""
    pool = mario_envpool.make(
        "SuperMarioBros-1-1-v0", num_envs=num_envs, reward_fn=Treasure(num_envs)
    )
    rng = np.random.default_rng(1)
    returns = np.zeros(num_envs)
    pool.reset()
    for _ in range(0, steps, num_envs):
        actions = rng.integers(pool.action_space.n, size=num_envs)
        _, reward, terminated, truncated, info = pool.step(actions)
        returns += reward
        for i in np.flatnonzero(terminated | truncated):
            print(f"return {returns[i]:6.2f}  coins {info['coins'][i]}")
            returns[i] = 0
    pool.close()


if __name__ == "__main__":
    tyro.cli(main)
