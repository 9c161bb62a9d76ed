"""Plays a checkpoint: `python -m trainer.evaluate --checkpoint RUN_OR_FILE`.

Prints how often the policy clears its level, how far it comes, and what it earns,
in the environments of its own run but with seeds that no run trains with.

Every environment plays a number of episodes that is fixed beforehand. Taking the
first N that end would favour the short ones, which are the early deaths.

    python -m trainer.evaluate --checkpoint runs/TASK-TIME
    python -m trainer.evaluate --checkpoint checkpoint.pt --episodes 1000 --json

Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from trainer import checkpoint
from trainer.collector import SEED_STRIDE, make_pool, sample
from trainer.config import EnvConfig, ModelConfig, check_seed, from_dict
from trainer.device import Stage, autocast_dtype, choose_device
from trainer.metrics import Episode, EpisodeTracker
from trainer.model import ActorCritic, build_model

# Runs use the seeds above each multiple of SEED_STRIDE, one per environment.
_SEED_OFFSET = SEED_STRIDE // 2


@dataclass(frozen=True)
class EvaluateConfig:
    """Plays a checkpoint and says how well it does."""

    checkpoint: Path
    """Checkpoint, or the folder of a run."""

    episodes: int = 100
    """Episodes to count, exactly."""

    noops: int = 30
    """Idle frames before each episode, 0 to this many."""

    argmax: bool = False
    """Take the likeliest action; otherwise actions are sampled, as in training."""

    seed: int = 1
    """Seed of environments and actions, 0 to 20,000. Environments never have one
    that a run trains with."""

    device: str = "auto"
    """auto (cuda where there is one), cpu, cuda or cuda:N."""

    json: bool = False
    """Print one JSON object instead of the table."""


def play(
    pool: Any,
    model: ActorCritic,
    num_episodes: int,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    generator: torch.Generator | None,
) -> tuple[list[Episode], bool]:
    """Plays `num_episodes` episodes, as evenly as can be over the environments.

    The pool's batch_size must be its num_envs; `dtype` None is float32 without
    autocast, `generator` None takes the likeliest actions.

    Returns:
        The episodes, and whether the task tells of clears.
    """
    num_envs = len(pool.all_env_ids)
    left = np.full(num_envs, num_episodes // num_envs)
    left[: num_episodes % num_envs] += 1
    episodes = EpisodeTracker(num_envs, window=num_episodes)
    stage = Stage(device, pool)
    pool.async_reset()
    while True:
        obs, reward, terminated, truncated, info = pool.recv()
        env_id, done = info["env_id"], terminated | truncated
        counted = left[env_id] > 0
        known = {k: info[k][counted] for k in ("x_pos", "flag_get") if k in info}
        episodes.add(env_id[counted], reward[counted], done[counted], known)
        left[env_id[counted & done]] -= 1
        if not left.any():
            break
        with torch.no_grad(), torch.autocast(device.type, dtype, dtype is not None):
            logits = model(stage(obs)).logits
        actions = sample(logits, generator) if generator else logits.argmax(-1)
        pool.send(actions.to("cpu", torch.int32).numpy(), env_id)
    stage.close()
    return list(episodes.recent), "flag_get" in info


def wilson(successes: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """The interval of a rate (Wilson 1927), by default with 95 % confidence."""
    rate, square = successes / count, z * z / count
    centre = (rate + square / 2) / (1 + square)
    spread = math.sqrt(rate * (1 - rate) * square + square * square / 4) / (1 + square)
    return max(0.0, centre - spread), min(1.0, centre + spread)


def summarise(episodes: Sequence[Episode], has_flag: bool) -> dict[str, Any]:
    """Rates, means and medians; None where there is nothing to say."""
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


def evaluate(config: EvaluateConfig) -> dict[str, Any]:
    """Plays a checkpoint; returns `summarise`'s numbers and what was played."""
    check_seed(config.seed)
    if config.episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {config.episodes}")
    device = choose_device(config.device)
    state = checkpoint.load(
        config.checkpoint, device, needs=("config", "model", "steps")
    )
    trained = state["config"]
    env = from_dict(EnvConfig, trained["env"])
    num_envs = min(config.episodes, env.num_envs)
    env = replace(env, num_envs=num_envs, batch_size=num_envs, noop_max=config.noops)
    pool = make_pool(env, config.seed * SEED_STRIDE + _SEED_OFFSET)
    try:
        shape = tuple(pool.observation_space.shape)
        kind = from_dict(ModelConfig, trained["model"])
        model = build_model(kind, shape, int(pool.action_space.n)).to(device).eval()
        checkpoint.load_weights(model, state["model"])
        generator = torch.Generator(device).manual_seed(config.seed)
        dtype = autocast_dtype(device, trained["precision"])
        episodes, has_flag = play(
            pool,
            model,
            config.episodes,
            device=device,
            dtype=dtype,
            generator=None if config.argmax else generator,
        )
    finally:
        pool.close()
    options = {k: v for k, v in asdict(config).items() if k not in ("json", "episodes")}
    played = options | {"checkpoint": str(config.checkpoint), "task": env.task}
    played |= {"trained_steps": state["steps"], "frame_skip": env.frame_skip}
    return played | summarise(episodes, has_flag)


def table(result: dict[str, Any]) -> str:
    """What a person reads."""
    actions = "likeliest actions" if result["argmax"] else "sampled actions"
    lines = [
        f"{result['checkpoint']}: {result['task']}, {result['trained_steps']:,} steps",
        f"{result['episodes']} episodes, {actions}, up to {result['noops']} idle "
        f"frames, seed {result['seed']}",
    ]
    if result["clear_rate"] is not None:
        low, high = result["clear_rate_95"]
        lines += [
            f"clear rate      {result['clear_rate']:.1%} "
            f"(95 % interval {low:.1%} to {high:.1%})",
            f"best x          mean {result['best_x_mean']:.0f}, "
            f"median {result['best_x_median']:.0f}",
        ]
    lines += [
        f"return          mean {result['return_mean']:.2f}",
        f"episode steps   mean {result['episode_steps_mean']:.0f}",
    ]
    if result["clears"]:
        lines.append(
            f"steps to clear  mean {result['steps_to_clear_mean']:.0f}, "
            f"median {result['steps_to_clear_median']:.0f} "
            f"({result['frame_skip']} frames each)"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    config = tyro.cli(
        EvaluateConfig,
        args=argv,
        prog="python -m trainer.evaluate",
        description=__doc__,
    )
    try:
        result = evaluate(config)
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result) if config.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
