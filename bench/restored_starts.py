"""Does a policy perform as well from restored states as from states it has reached?

    python bench/restored_starts.py --checkpoint runs/SuperMarioBros-1-1-v0-...

The bench plays episodes from the level's start and takes a snapshot of each episode at
a random step. Then it begins the same number of episodes from these snapshots
(`set_starts`). A snapshot includes the frames before it, so only chance differs: the
intervals of the two clear rates must overlap, otherwise the exit status is 1. The third
row does what reimplementations of Go-Explore often do: copies of the start's own frame
replace the frames before it, so the speeds are lost.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from trainer.envs.pool import make_pool
from trainer.evaluation.play import MAX_SEEDS, Played, first_seed, play, wilson
from trainer.models.policy import Policy, load_policy, playing_device

# Steps after which a snapshot is taken: the first and the last possible.
STEPS = (20, 120)


class Photographed:
    """A pool that keeps a snapshot of each environment's first episode."""

    def __init__(self, pool: Any, seed: int) -> None:
        """Draws the step of each snapshot."""
        self._pool = pool
        count = len(pool.all_env_ids)
        self._step = np.random.default_rng(seed).integers(*STEPS, count, endpoint=True)
        self.snapshots: dict[int, np.ndarray] = {}  # by environment

    def __getattr__(self, name: str) -> Any:
        """Whatever else a pool can do."""
        return getattr(self._pool, name)

    def recv(self) -> Any:
        """The pool's recv; takes the snapshots that are due."""
        obs, reward, terminated, truncated, info = self._pool.recv()
        env_id, done = info["env_id"], terminated | truncated
        due = (info["elapsed_step"] == self._step[env_id]) & ~done
        for env in env_id[due].tolist():
            if env not in self.snapshots:
                (self.snapshots[env],) = self._pool.snapshot(np.array([env], np.int32))
        return obs, reward, terminated, truncated, info


class WithoutPast:
    """A pool that replaces the frames before a start with copies of its first frame."""

    def __init__(self, pool: Any) -> None:
        """Wraps a pool of stacked frames."""
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        """Whatever else a pool can do."""
        return getattr(self._pool, name)

    def recv(self) -> Any:
        """The pool's recv, with copies of the start's frame before the start."""
        obs, *rest, info = self._pool.recv()
        obs, stack = obs.copy(), obs.shape[1]
        for row, step in enumerate(info["elapsed_step"].tolist()):
            if step < stack - 1:
                obs[row, : stack - 1 - step] = obs[row, stack - 1 - step]
        return obs, *rest, info


def played(pool: Any, policy: Policy, episodes: int, seed: int) -> list[Played]:
    """Plays with sampled actions."""
    generator = torch.Generator(policy.device).manual_seed(seed)
    return play(
        pool,
        policy.model,
        episodes,
        device=policy.device,
        dtype=policy.dtype,
        generator=generator,
    )


def measure(policy: Policy, episodes: int, seed: int) -> dict[str, list[bool]]:
    """Whether each episode cleared the level, by kind of start."""
    env = replace(policy.env, num_envs=min(episodes, MAX_SEEDS), groups=1)
    snapshots: list[np.ndarray] = []
    reached: list[bool] = []
    stream = 0
    while len(reached) < episodes:
        with closing(make_pool(env, first_seed(seed, stream))) as pool:
            photographed = Photographed(pool, seed + stream)
            for episode in played(photographed, policy, env.num_envs, seed + stream):
                if episode.env in photographed.snapshots:
                    reached.append(episode.episode.cleared)
        snapshots += photographed.snapshots.values()
        stream += 1
    result = {"reached by playing": reached}
    blobs = np.stack(snapshots)
    kinds: dict[str, Any] = {"restored": lambda pool: pool}
    if env.stack_num > 1:
        kinds["restored, without its past"] = WithoutPast
    for name, wrap in kinds.items():
        with closing(make_pool(env, first_seed(seed, stream))) as pool:
            weights = np.ones(pool.num_stages + len(blobs))
            weights[: pool.num_stages] = 0.0
            pool.set_starts(weights, blobs)
            result[name] = [
                episode.episode.cleared
                for episode in played(wrap(pool), policy, len(reached), seed + stream)
            ]
    return result


def main(arguments: list[str] | None = None) -> int:
    """Prints the table; 1 if restored states are worse."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="a checkpoint or a run folder"
    )
    parser.add_argument(
        "--episodes", type=int, default=500, help="least episodes of each kind"
    )
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    if given.episodes < 1:
        parser.error("--episodes must be 1 or more")
    policy = load_policy(given.checkpoint, playing_device("auto"))
    result = measure(policy, given.episodes, given.seed)
    table = Table("episodes begin from", "episodes", "cleared", "95 % interval")
    intervals = {}
    for name, cleared in result.items():
        low, high = intervals[name] = wilson(sum(cleared), len(cleared))
        rate = sum(cleared) / len(cleared)
        interval = f"{low:.1%} to {high:.1%}"
        table.add_row(name, str(len(cleared)), f"{rate:.1%}", interval)
    Console().print(table)
    return int(intervals["restored"][1] < intervals["reached by playing"][0])


if __name__ == "__main__":
    raise SystemExit(main())
