"""A rollout compiled by jax against the same rollout in a Python loop.

    python bench/xla.py
    python bench/xla.py --num-envs 8 --obs ram --repeats 9

Both play the same actions in pools of the same seed, in turns; ratios are those of
pairs. *step alone* uses fixed actions. *with a network* chooses actions with the same
small network: in one compiled function, or from NumPy to jax and back at every step.
Needs jax (docs/clients/jax.md).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mario_envpool

Rollout = Callable[[], float]  # plays, and returns the sum of its rewards


def choose(weights: jax.Array, obs: jax.Array) -> jax.Array:
    """The greedy action of a network of one layer, int32 (n,)."""
    flat = obs.reshape(len(obs), -1).astype(jnp.float32)
    return jnp.argmax(flat @ weights, axis=1).astype(jnp.int32)


def compiled(pool: Any, actions: Any, weights: Any) -> Rollout:
    """A rollout in one compiled function."""
    handle, recv, _, step = pool.xla()
    pool.async_reset()
    handle, state = recv(handle)

    @jax.jit
    def run(handle: Any, obs: Any) -> Any:
        def body(carry: Any, given: Any) -> Any:
            handle, obs = carry
            action = given if weights is None else choose(weights, obs)
            handle, (obs, reward, *_) = step(handle, action)
            return (handle, obs), reward.sum()

        return jax.lax.scan(body, (handle, obs), actions)

    carry = (handle, state[0])

    def rollout() -> float:
        nonlocal carry
        carry, rewards = run(*carry)
        return float(rewards.sum())

    return rollout


def looped(pool: Any, actions: Any, weights: Any) -> Rollout:
    """The same rollout, step by step."""
    act = jax.jit(choose)
    obs, _ = pool.reset()

    def rollout() -> float:
        nonlocal obs
        total = 0.0
        for given in actions:
            action = given if weights is None else np.asarray(act(weights, obs))
            obs, reward, *_ = pool.step(action)
            total += float(reward.sum())
        return total

    return rollout


def compare(name: str, options: argparse.Namespace, weights: Any) -> None:
    """Prints steps per second of both, and their ratio."""
    config = {
        "num_envs": options.num_envs,
        "num_threads": options.num_threads,
        "obs_type": options.obs,
        "seed": 1,
    }
    pools = [mario_envpool.make(options.task, **config) for _ in range(2)]
    rng = np.random.default_rng(1)
    actions = rng.integers(7, size=(options.steps, options.num_envs), dtype=np.int32)
    rollouts = [
        compiled(pools[0], actions, weights),
        looped(pools[1], actions, weights),
    ]
    assert rollouts[0]() == rollouts[1](), "both must play the same"
    rates: list[list[float]] = [[], []]
    for _ in range(options.repeats):
        for rollout, seen in zip(rollouts, rates, strict=True):
            begin = time.perf_counter()
            rollout()
            seen.append(actions.size / (time.perf_counter() - begin))
    ratios = [ours / theirs for ours, theirs in zip(*rates, strict=True)]
    print(
        f"{name:16} compiled {statistics.median(rates[0]):>9,.0f}  "
        f"loop {statistics.median(rates[1]):>9,.0f}  "
        f"ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )


def main() -> None:
    """Parses the flags and compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--task", default="SuperMarioBros-1-1-v0")
    parser.add_argument("--obs", default="tiles", help="obs_type")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--num-threads", type=int, default=0)
    parser.add_argument("--steps", type=int, default=500, help="steps per rollout")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{options.num_envs} envs, {options.obs}; environment steps per second")
    compare("step alone", options, None)
    pool = mario_envpool.make(options.task, num_envs=1, obs_type=options.obs)
    inputs = int(np.prod(pool.observation_space.shape))
    weights = jax.random.normal(jax.random.key(1), (inputs, 7))
    compare("with a network", options, weights)


if __name__ == "__main__":
    main()
