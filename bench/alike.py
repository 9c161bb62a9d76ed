"""Do levels look alike where policies want different actions?

    python bench/alike.py
    python bench/alike.py runs/<campaign>/policies --episodes 64

Plays episodes of each level with the level's policy, and compares the observations of
all levels byte for byte. In a conflict, an observation was seen in several levels, and
the policies of two of them were sure of different actions: no network that sees only
such observations can do what both of them do.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from trainer.config.tasks import parse_levels
from trainer.envs.pool import make_pool
from trainer.learn.gradients import run_rows
from trainer.models.policy import load_policy

# A policy is sure of an action with at least this probability.
SURE = 0.8
# The longest episodes take some hundred steps.
STEPS = 1000

# What a policy was sure of: by observation, how often it wanted each action.
Wanted = dict[bytes, Counter[str]]


class Conflicts(NamedTuple):
    """What `compare` found."""

    observations: int  # different ones
    shared: int  # seen in several levels
    conflicts: int  # of these, with different actions
    pairs: Counter[tuple[str, str]]  # conflicts of two levels
    steps: Counter[str]  # steps of each level in an observation with a conflict


@torch.no_grad()
def play(path: Path, level: str, episodes: int, seed: int) -> Wanted:
    """Plays one episode in each of `episodes` environments, with sampled actions."""
    policy = load_policy(path, torch.device("cpu"))
    env = replace(policy.env, levels=(level,), num_envs=episodes)
    wanted: Wanted = {}
    generator = torch.Generator().manual_seed(seed)
    ids = np.arange(episodes, dtype=np.int32)
    with closing(make_pool(env, seed, asynchronous=False)) as pool:
        pool.send(np.zeros(episodes, np.int32), ids)
        playing = np.ones(episodes, bool)
        for _ in range(STEPS):
            obs, _, terminated, truncated, _ = pool.recv()
            images = torch.from_numpy(np.ascontiguousarray(obs))
            logits = run_rows(policy.model, images, policy.dtype).logits[0].float()
            shares = logits.softmax(-1)
            most, best = (values.numpy() for values in shares.max(-1))
            for row in np.flatnonzero(playing & (most >= SURE)).tolist():
                counts = wanted.setdefault(obs[row].tobytes(), Counter())
                counts[policy.env.actions[best[row]]] += 1
            playing &= ~(terminated | truncated)
            if not playing.any():
                break
            actions = torch.multinomial(shares, 1, generator=generator)[:, 0]
            pool.send(actions.numpy().astype(np.int32), ids)
    return wanted


def compare(levels: Mapping[str, Wanted]) -> Conflicts:
    """Counts observations of several levels, and those with different actions."""
    seen: dict[bytes, dict[str, Counter[str]]] = defaultdict(dict)
    for level, wanted in levels.items():
        for observation, counts in wanted.items():
            seen[observation][level] = counts
    shared = [by_level for by_level in seen.values() if len(by_level) > 1]
    pairs: Counter[tuple[str, str]] = Counter()
    steps: Counter[str] = Counter()
    conflicts = 0
    for by_level in shared:
        usual = {level: max(c, key=c.__getitem__) for level, c in by_level.items()}
        apart = [(a, b) for a, b in combinations(usual, 2) if usual[a] != usual[b]]
        pairs.update(apart)
        conflicts += bool(apart)
        for level in {level for two in apart for level in two}:
            steps[level] += by_level[level].total()
    return Conflicts(len(seen), len(shared), conflicts, pairs, steps)


def main(argv: Sequence[str] | None = None) -> None:
    """Plays, compares and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, help="policies 1-1.safetensors and so on"
    )
    parser.add_argument("--levels", default="all", help="such as 1-1,3-1 (default all)")
    parser.add_argument("--episodes", type=int, default=64, help="of each level")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    if args.episodes < 1:
        parser.error(f"--episodes must be at least 1, got {args.episodes}")
    torch.set_num_threads(1)
    try:
        levels = parse_levels(args.levels, "SuperMarioBros-v0")
    except ValueError as error:
        parser.error(str(error))
    found = {}
    for level in levels:
        path = Path(f"released:{level}")
        if args.folder is not None:
            path = args.folder / f"{level}.safetensors"
        try:
            found[level] = play(path, level, args.episodes, args.seed)
        except (FileNotFoundError, ValueError) as error:
            parser.error(str(error))
    result = compare(found)
    print(
        f"{result.observations:,} observations in which a policy is sure, "
        f"{result.shared:,} of several levels, {result.conflicts:,} with conflicts"
    )
    for (one, other), count in result.pairs.most_common(12):
        print(f"  {one} and {other}: {count} observations")
    print("steps of an episode in such observations:")
    for level, count in result.steps.most_common():
        print(f"  {level}: {count / args.episodes:.1f}")


if __name__ == "__main__":
    main()
