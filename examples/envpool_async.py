"""EnvPool's asynchronous mode: act in the environments that are ready.

python examples/envpool_async.py --steps 100000
"""

from __future__ import annotations

import time

import envpool
import numpy as np
import tyro

import mario_envpool  # noqa: F401  registers the ids with EnvPool


def main(steps: int = 100_000, num_envs: int = 64, batch_size: int = 16) -> None:
    """Plays random actions and prints the speed."""
    pool = envpool.make(
        "SuperMarioBros-1-1-v0",
        env_type="gymnasium",
        num_envs=num_envs,
        batch_size=batch_size,
        seed=1,
    )
    rng = np.random.default_rng(1)
    best = np.zeros(num_envs, np.int64)
    pool.async_reset()
    begin = time.perf_counter()
    for _ in range(0, steps, batch_size):
        _, _, _, _, info = pool.recv()
        env_id = info["env_id"]
        best[env_id] = np.maximum(best[env_id], info["x_pos"])
        actions = rng.integers(pool.action_space.n, size=batch_size)
        pool.send(actions, env_id)
    seconds = time.perf_counter() - begin
    print(f"{steps / seconds:,.0f} steps/s, farthest x_pos {best.max()}")
    pool.close()


if __name__ == "__main__":
    tyro.cli(main)
