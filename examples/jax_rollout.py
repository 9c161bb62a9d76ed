"""A network and the game in one compiled function: `pool.xla()` with jax.

python examples/jax_rollout.py --steps 1000000

Plays on tiles with a small network of random weights, and prints the speed.
Needs jax when this package is built: docs/clients/jax.md.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import tyro

import mario_envpool


def init(key: jax.Array, inputs: int, actions: int, hidden: int = 64) -> list[Any]:
    """Returns the weights of two layers."""
    first, second = jax.random.split(key)
    return [
        jax.random.normal(first, (inputs, hidden)) / inputs**0.5,
        jax.random.normal(second, (hidden, actions)) / hidden**0.5,
    ]


def logits(weights: list[Any], obs: jax.Array) -> jax.Array:
    """Returns (n, actions) from tiles, (n, ...)."""
    tiles = obs.reshape(len(obs), -1).astype(jnp.float32)
    return jax.nn.relu(tiles / 8 @ weights[0]) @ weights[1]


def main(steps: int = 200_000, num_envs: int = 32, length: int = 64) -> None:
    """Plays rollouts of `length` steps in `num_envs` environments."""
    pool = mario_envpool.make(
        "SuperMarioBros-1-1-v0", num_envs=num_envs, obs_type="tiles", seed=1
    )
    pool.async_reset()
    handle, recv, _, step = pool.xla()
    handle, (obs, *_) = recv(handle)

    @jax.jit
    def rollout(weights: list[Any], handle: Any, obs: Any, key: jax.Array) -> Any:
        def body(carry: Any, key: jax.Array) -> Any:
            handle, obs = carry
            action = jax.random.categorical(key, logits(weights, obs))
            handle, (obs, reward, terminated, truncated, info) = step(handle, action)
            return (handle, obs), (reward, terminated | truncated, info["x_pos"])

        keys = jax.random.split(key, length)
        return jax.lax.scan(body, (handle, obs), keys)

    key = jax.random.key(1)
    weights = init(key, obs[0].size, pool.action_space.n)
    played, total, episodes, best = 0, 0.0, 0, 0
    begin = time.perf_counter()
    while played < steps:
        key, now = jax.random.split(key)
        (handle, obs), (rewards, ends, x) = rollout(weights, handle, obs, now)
        played += ends.size
        total += float(rewards.sum())
        episodes += int(ends.sum())
        best = max(best, int(x.max()))
    seconds = time.perf_counter() - begin
    print(f"{played / seconds:,.0f} steps/s, including the time to compile")
    print(f"{episodes} episodes, {total / played:.2f} reward per step, farthest {best}")
    pool.close()


if __name__ == "__main__":
    tyro.cli(main)
