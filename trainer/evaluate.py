"""Plays a policy: `python -m trainer.evaluate --checkpoint RUN_OR_FILE`.

Prints how often the policy clears its level, how far it comes, and what it earns,
in the environments of its own run but with seeds that no run trains with. With
`--sticky 0 0.1` also how it holds when buttons stick, one row for each chance.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import tyro
from torch import Tensor, nn

from trainer import checkpoint
from trainer.collector import SEED_STRIDE, is_native, make_pool, sample
from trainer.config import MAX_SEED, EnvConfig, ModelConfig, check_seed, from_dict
from trainer.cuda import Stage
from trainer.device import autocast_dtype, choose_device, keep_large_blocks
from trainer.metrics import Episode, EpisodeTracker
from trainer.model import build_model

# Environments of an evaluation, at most.
MAX_ENVS = 128

# Evaluations have the seeds from here to 2^31, above those of all runs, in blocks
# of MAX_ENVS. As many blocks as fit, but no common factor with MAX_SEED + 1.
_FIRST_SEED = (MAX_SEED + 1) * SEED_STRIDE
_BLOCKS = 1_150_000


@dataclass(frozen=True)
class EvaluateConfig:
    """Plays a checkpoint and says how well it does."""

    checkpoint: Path
    """Checkpoint, or the folder of a run."""

    episodes: int = 100
    """Episodes to count, exactly."""

    noops: int = 30
    """Idle frames before each episode, 0 to this many."""

    sticky: tuple[float, ...] = (0.0,)
    """Chance at every frame that the buttons stay as they were, whatever the run
    trained with; several give a row each."""

    argmax: bool = False
    """Take the likeliest action; otherwise actions are sampled, as in training."""

    ema: bool = True
    """Play the averaged weights where the checkpoint has them."""

    seed: int = 1
    """Seed of environments and actions, 0 to 20,000. Environments never have one
    that a run trains with."""

    device: str = "auto"
    """auto (cuda where there is one), cpu, cuda or cuda:N."""

    json: bool = False
    """Print JSON, one object per line and value of sticky, instead of the table."""


def first_seed(seed: int, stream: int = 0) -> int:
    """The seed of environment 0 of an evaluation; environment i has i more.

    A run with seed s trains with s * SEED_STRIDE + i, all below; no evaluation
    uses such a seed. The streams of one seed differ from each other, and up to
    the 57th also from those of other seeds.

    Args:
        seed: 0 to MAX_SEED.
        stream: which evaluation with this seed; the command is stream 0.
    """
    check_seed(seed)
    if not 0 <= stream < _BLOCKS:
        raise ValueError(f"stream must be 0 to {_BLOCKS - 1}, got {stream}")
    return _FIRST_SEED + (stream * (MAX_SEED + 1) + seed) % _BLOCKS * MAX_ENVS


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
    """Plays a policy in new environments; the same arguments, the same episodes.

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
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    if not 0 <= sticky < 1:
        raise ValueError(f"sticky must be 0 to below 1, got {sticky:g}")
    native = is_native(env.task)
    if sticky and not native:
        raise ValueError(f"task {env.task} has no sticky actions, got {sticky:g}")
    num_envs = min(episodes, MAX_ENVS)
    env = replace(
        env,
        num_envs=num_envs,
        groups=1,
        num_threads=min(env.num_threads, num_envs),
        noop_max=noops,
        repeat_action_probability=sticky,
    )
    generator = torch.Generator(device).manual_seed(first_seed(seed, stream))
    pool = make_pool(env, first_seed(seed, stream))
    try:
        with _evaluating(model):
            played, has_flag = play(
                pool,
                model,
                episodes,
                device=device,
                dtype=dtype,
                generator=None if argmax else generator,
                groups=2 if native else 1,
            )
    finally:
        pool.close()
    options = {"noops": noops, "sticky": sticky, "argmax": argmax}
    options |= {"seed": seed, "stream": stream}
    return options | summarise(played, has_flag)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Switches a network to evaluation, and back to what it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def play(
    pool: Any,
    model: nn.Module,
    num_episodes: int,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    generator: torch.Generator | None,
    groups: int = 1,
) -> tuple[list[Episode], bool]:
    """Plays `num_episodes` episodes, as evenly as can be over the environments.

    An environment stops when it has played its share.

    Args:
        pool: in sync mode, which decides the order of all that is sampled.
        model: the policy, on the device.
        num_episodes: to play.
        device: of the model.
        dtype: autocast type of the network, None for float32.
        generator: of the sampled actions; None takes the likeliest.
        groups: one group is acted for while the others emulate. More than one
            needs a pool that takes several requests at a time.

    Returns:
        The episodes, and whether the task tells of clears.
    """
    num_envs = len(pool.all_env_ids)
    left = np.full(num_envs, num_episodes // num_envs)
    left[: num_episodes % num_envs] += 1
    episodes = EpisodeTracker(num_envs, window=num_episodes)
    actor = _Actor(pool, model, device, generator)
    pool.async_reset()
    # All answer at first, then group by group.
    waiting, parts = 1, groups
    # One autocast for all: it casts the weights once.
    with torch.no_grad(), torch.autocast(device.type, dtype, dtype is not None):
        while waiting:
            obs, reward, terminated, truncated, info = pool.recv()
            env_id, done = info["env_id"], terminated | truncated
            known = {k: info[k] for k in ("x_pos", "flag_get") if k in info}
            episodes.add(env_id, reward, done, known)
            left[env_id[done]] -= 1
            going = np.flatnonzero(left[env_id] > 0)
            opening = info["elapsed_step"] == 0
            for rows in np.array_split(going, parts):
                if rows.size:
                    # A slice is a view, the pool's own memory.
                    pick = rows if rows.size < len(env_id) else slice(None)
                    actor.send(obs[pick], env_id[pick], opening[pick])
                    waiting += 1
            waiting, parts = waiting - 1, 1
    actor.close()
    return list(episodes.recent), "flag_get" in info


class _Actor:
    """The policy with the memory of every environment."""

    def __init__(
        self,
        pool: Any,
        model: nn.Module,
        device: torch.device,
        generator: torch.Generator | None,
    ) -> None:
        self._pool = pool
        self._model = model
        self._generator = generator
        self._stage = Stage(device, pool)
        size = cast(int, model.state_size)
        self._state = torch.zeros(len(pool.all_env_ids), size, device=device)

    def send(
        self,
        obs: npt.NDArray[np.uint8],
        env_id: npt.NDArray[np.int32],
        first: npt.NDArray[np.bool_],
    ) -> None:
        """Acts for some environments."""
        env = self._stage(env_id.astype(np.int64))
        pixels, opening = self._stage(obs), self._stage(first)
        output, state = self._model(pixels[None], self._state[env], opening[None])
        self._state[env] = state
        logits: Tensor = output.logits[0]
        actions = (
            sample(logits, self._generator) if self._generator else logits.argmax(-1)
        )
        self._pool.send(actions.to("cpu", torch.int32).numpy(), env_id)

    def close(self) -> None:
        """Ends transfers."""
        self._stage.close()


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


def evaluate(config: EvaluateConfig) -> list[dict[str, Any]]:
    """Plays a checkpoint.

    Returns:
        For each value of sticky, `evaluate_policy`'s numbers and what was played.
    """
    device = choose_device(config.device)
    if device.type == "cpu":
        keep_large_blocks()
        # Acting is one thread beside the emulation.
        torch.set_num_threads(1)
    state = checkpoint.load(
        config.checkpoint, device, needs=("config", "model", "steps")
    )
    trained = state["config"]
    env = from_dict(EnvConfig, trained["env"])
    averaged = config.ema and state.get("ema") is not None
    played = {
        "checkpoint": str(config.checkpoint),
        "task": env.task,
        "trained_steps": state["steps"],
        "weights": "ema" if averaged else "latest",
        "frame_skip": env.frame_skip,
        "device": str(device),
    }
    shape, num_actions = _spaces(env)
    kind = from_dict(ModelConfig, trained["model"])
    model = build_model(kind, shape, num_actions).to(device)
    checkpoint.load_weights(model, state["ema" if averaged else "model"])
    return [
        played
        | evaluate_policy(
            model,
            env,
            episodes=config.episodes,
            seed=config.seed,
            device=device,
            dtype=autocast_dtype(device, trained["precision"]),
            noops=config.noops,
            sticky=sticky,
            argmax=config.argmax,
        )
        for sticky in config.sticky
    ]


def _spaces(env: EnvConfig) -> tuple[tuple[int, ...], int]:
    """The shape of an observation, and the number of actions."""
    pool = make_pool(replace(env, num_envs=1, groups=1, num_threads=1), seed=0)
    try:
        return tuple(pool.observation_space.shape), int(pool.action_space.n)
    finally:
        pool.close()


def table(results: Sequence[dict[str, Any]]) -> str:
    """What a person reads: one row for each result, all of one checkpoint."""
    one = results[0]
    actions = "likeliest actions" if one["argmax"] else "sampled actions"
    weights = "averaged weights" if one["weights"] == "ema" else "latest weights"
    lines = [
        f"{one['checkpoint']}: {one['task']}, {one['trained_steps']:,} steps, "
        f"{weights}",
        f"{one['episodes']} episodes, {actions}, up to {one['noops']} idle frames, "
        f"seed {one['seed']}; a step is {one['frame_skip']} frames",
    ]
    rows = [_cells(result) for result in results]
    widths = {k: max(len(k), *(len(row[k]) for row in rows)) for k in rows[0]}
    for row in ({name: name for name in widths}, *rows):
        lines.append("  ".join(row[k].rjust(widths[k]) for k in widths).rstrip())
    return "\n".join(lines)


def _cells(result: dict[str, Any]) -> dict[str, str]:
    """A row of the table, by the names of its columns."""
    cells = {
        "return": f"{result['return_mean']:.2f}",
        "episode steps": f"{result['episode_steps_mean']:.0f}",
    }
    if result["clear_rate"] is None:
        return cells
    low, high = result["clear_rate_95"]
    steps = (
        f"{result['steps_to_clear_mean']:.0f} / {result['steps_to_clear_median']:.0f}"
        if result["clears"]
        else "-"
    )
    return {
        "sticky": f"{result['sticky']:g}",
        "cleared": f"{result['clear_rate']:.1%}",
        "95 % interval": f"{low:.1%} to {high:.1%}",
        "best x mean / median": (
            f"{result['best_x_mean']:.0f} / {result['best_x_median']:.0f}"
        ),
        **cells,
        "steps to clear mean / median": steps,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    config = tyro.cli(
        EvaluateConfig,
        args=argv,
        prog="python -m trainer.evaluate",
        description=__doc__,
    )
    try:
        results = evaluate(config)
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    lines = [json.dumps(result) for result in results]
    print("\n".join(lines) if config.json else table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
