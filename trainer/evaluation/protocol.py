"""How policies are evaluated: fresh seeds, idle frames, an exact number of episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer.config.schema import EnvConfig
from trainer.config.tasks import game_of, is_native, parse_levels
from trainer.envs.pool import make_pool
from trainer.evaluation.play import MAX_SEEDS, Played, first_seed, play, wilson
from trainer.evaluation.results import (
    STALL_STEPS,
    LevelResult,
    level_result,
)

# Environments that play at the same time, at most; and per level, one at least.
_MAX_ENVS = 512

# The game's own clock ends an episode sooner.
_NO_LIMIT = 2**31 - 1


def evaluate_levels(
    model: nn.Module,
    env: EnvConfig,
    *,
    levels: Sequence[str],
    episodes: int,
    seed: int,
    device: torch.device,
    dtype: torch.dtype | None,
    noops: int = 30,
    sticky: float = 0.0,
    argmax: bool = False,
    stall: int = STALL_STEPS,
    stream: int = 0,
    tell: Callable[[int], None] | None = None,
) -> list[LevelResult]:
    """Plays levels, all at once; the same arguments, the same episodes.

    Any number of emulation threads gives the same result. The game's clock and
    `stall` are the only limits of an episode.

    Args:
        model: the policy, on the device; its noise is off while it plays.
        env: of its run; counts, idle frames and limits are replaced.
        levels: such as "1-1", distinct.
        episodes: of each level, exactly. With argmax it means nothing: each start
            of 0 to `noops` idle frames is played once.
        seed: of environments and actions, 0 to MAX_SEED.
        device: of the model.
        dtype: autocast type of the network, None for float32.
        noops: idle frames before an episode, 0 to this many.
        sticky: chance at every frame that the buttons stay as they were.
        argmax: take the likeliest action instead of a sample.
        stall: steps without a new best position that end an episode; 0: none do.
        stream: which evaluation with this seed (`first_seed`).
        tell: called with the number of episodes that have just ended.

    Returns:
        One result for each level, in the order of `levels`.

    Raises:
        ValueError: an argument is out of range, or the task has no levels.
    """
    if not levels:
        raise ValueError("levels must name one at least, got none")
    parse_levels(",".join(levels), env.task)
    _check(env, episodes, sticky)
    _check_limits(noops, stall)
    copies = noops + 1 if argmax else _copies(episodes, len(levels))
    share = copies if argmax else episodes
    # Environment i plays level i % n. The seeds do not depend on the other levels.
    copy_of = np.repeat(np.arange(copies), len(levels))
    first = first_seed(seed, stream)
    seeds = first + copy_of
    options: dict[str, Any] = {"stages": list(levels), "env_seed": seeds.tolist()}
    starts = copy_of.tolist() if argmax else None
    if argmax:
        options["noops"] = starts
    played = _play(
        model,
        replace(
            env,
            task=game_of(env.task),
            levels=(),
            stall_steps=stall,
            max_episode_steps=_NO_LIMIT,
        ),
        num_envs=copies * len(levels),
        episodes=share * len(levels),
        seed=first,
        device=device,
        dtype=dtype,
        noop_max=noops,
        sticky=sticky,
        argmax=argmax,
        tell=tell,
        **options,
    )
    return [
        level_result(
            level,
            [p for p in played if p.env % len(levels) == number],
            sticky=sticky,
            starts=starts,
            unseen=bool(env.levels) and level not in env.levels,
        )
        for number, level in enumerate(levels)
    ]


def _check(env: EnvConfig, episodes: int, sticky: float) -> None:
    """Raises ValueError for what no task can do."""
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    if not 0 <= sticky < 1:
        raise ValueError(f"sticky must be 0 to below 1, got {sticky:g}")
    if sticky and not is_native(env.task):
        raise ValueError(f"task {env.task} has no sticky actions, got {sticky:g}")


def _check_limits(noops: int, stall: int) -> None:
    """Raises ValueError for what no level can do."""
    if not 0 <= noops < MAX_SEEDS:
        raise ValueError(f"noops must be 0 to {MAX_SEEDS - 1}, got {noops}")
    if stall < 0:
        raise ValueError(f"stall must be at least 0, got {stall}")


def _copies(episodes: int, levels: int) -> int:
    """Environments of each level: no more than play as often as another, or once."""
    return max(1, min(episodes, MAX_SEEDS, _MAX_ENVS // levels))


def evaluate_policy(
    model: nn.Module,
    env: EnvConfig,
    *,
    episodes: int,
    seed: int,
    device: torch.device,
    dtype: torch.dtype | None,
    stream: int = 0,
    noops: int = 30,
    sticky: float = 0.0,
    argmax: bool = False,
) -> dict[str, Any]:
    """Plays a policy in the task of its run; the same arguments, the same episodes.

    Any number of emulation threads gives the same result. The weights must stay
    as they are meanwhile.

    Args:
        model: the policy, on the device; its noise is off while it plays.
        env: of its run; counts, idle frames and sticky actions are replaced.
        episodes: to count, exactly.
        seed: of environments and actions, 0 to MAX_SEED.
        device: of the model.
        dtype: autocast type of the network, None for float32.
        stream: which evaluation with this seed (`first_seed`). A trainer gives
            each of its own a new one, from 1 on.
        noops: idle frames before an episode, 0 to this many.
        sticky: chance at every frame that the buttons stay as they were.
        argmax: take the likeliest action instead of a sample.

    Returns:
        `summarise`'s numbers, and the arguments noops, sticky, argmax, seed, stream.

    Raises:
        ValueError: an argument is out of range, or the task has no sticky actions.
    """
    played = _play(
        model,
        env,
        num_envs=min(episodes, MAX_SEEDS),
        episodes=episodes,
        seed=first_seed(seed, stream),
        device=device,
        dtype=dtype,
        noop_max=noops,
        sticky=sticky,
        argmax=argmax,
    )
    options = {"noops": noops, "sticky": sticky, "argmax": argmax}
    options |= {"seed": seed, "stream": stream}
    return options | summarise(played)


def _play(
    model: nn.Module,
    env: EnvConfig,
    *,
    num_envs: int,
    episodes: int,
    seed: int,
    device: torch.device,
    dtype: torch.dtype | None,
    noop_max: int,
    sticky: float,
    argmax: bool,
    tell: Callable[[int], None] | None = None,
    **options: Any,
) -> list[Played]:
    """Opens a pool, plays in it, and closes it."""
    _check(env, episodes, sticky)
    env = replace(
        env,
        num_envs=num_envs,
        groups=1,
        num_threads=min(env.num_threads, num_envs),
        noop_max=noop_max,
        repeat_action_probability=sticky,
    )
    generator = torch.Generator(device).manual_seed(seed)
    pool = make_pool(env, seed, **options)
    try:
        return play(
            pool,
            model,
            episodes,
            device=device,
            dtype=dtype,
            generator=None if argmax else generator,
            groups=2 if is_native(env.task) else 1,
            tell=tell,
        )
    finally:
        pool.close()


def summarise(played: Sequence[Played]) -> dict[str, Any]:
    """Rates, means and medians; None where there is nothing to say."""
    episodes = [p.episode for p in played]
    has_flag = "flag_get" in played[0].last
    clears = [e.steps for e in episodes if e.cleared]
    best = [e.best_x for e in episodes]
    result: dict[str, Any] = {
        "episodes": len(episodes),
        "clears": len(clears) if has_flag else None,
        "clear_rate": len(clears) / len(episodes) if has_flag else None,
        "clear_rate_95": wilson(len(clears), len(episodes)) if has_flag else None,
        "best_x_mean": float(np.mean(best)) if has_flag else None,
        "best_x_median": float(np.median(best)) if has_flag else None,
        "return_mean": float(np.mean([e.total_reward for e in episodes])),
        "episode_steps_mean": float(np.mean([e.steps for e in episodes])),
    }
    for name, function in (("mean", np.mean), ("median", np.median)):
        result[f"steps_to_clear_{name}"] = float(function(clears)) if clears else None
    return result
