"""Defaults by hardware, loss, optimiser, lag and levels, as values of options.

The defaults for a CPU are those of the dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trainer.config.flags import change, values
from trainer.config.schema import PresetName, RunConfig
from trainer.machine.cpu import available_cores

# With the learning rates for pixels 1-1 took 160 k steps instead of 140 k.
_TILES = {
    "obs": "tiles", "stack_num": 1, "model": "tiles", "muon_lr": 0.045, "lr": 1.5e-3,
    "turbo_swim": 6,
}  # fmt: skip
# The recipe for a CPU with a larger network, and batches of twice its size.
_GPU = {"num_envs": 128, "model": "nature", "unrolls_per_batch": 128}
# The loss and overlap of the paper, with prioritized replay.
_IMPALA = {"loss": "impala", "muon_lr": 0.015, "lag": 1, "replay_share": 0.25}
# Its network, and as many environments as keep a large GPU and its host busy.
_GPU_IMPALA = {
    "mode": "async", "num_envs": 1024, "groups": 4, "model": "impala",
    "unrolls_per_batch": 256, "minibatch_size": 2048, "epochs": 1,
    "max_steps": 20_000_000, "lr_steps": 8_000_000, "entropy_steps": 4_800_000,
}  # fmt: skip
PRESETS: dict[PresetName, dict[str, Any]] = {
    "cpu": {},
    "tiles": _TILES,  # a CPU, --obs tiles
    "impala": _IMPALA,  # a CPU, Espeholt et al. 2018
    "gpu": _GPU,
    "gpu-impala": _IMPALA | _GPU_IMPALA,  # a large GPU, Espeholt et al. 2018
}

# 22 minutes with 4 frames per step; a playthrough without warps takes less than 20.
_WHOLE_GAME_STEPS = 20_000


def preset(name: PresetName) -> RunConfig:
    """The configuration a run starts from on a kind of device."""
    return change(RunConfig(), **PRESETS[name])


def for_algorithm(config: RunConfig, loss: str = "", optimizer: str = "") -> RunConfig:
    """A preset with the defaults that fit the words of a loss and an optimiser.

    PPO's clip stops the gradient of a row when its action has become 1.2 times as
    probable. IMPALA's policy gradient has no such limit: a row contributes in every
    gradient step, and Muon's steps have the same length for a small gradient as for a
    large one. With PPO's learning rates no run with lag learned 1-1; with a quarter of
    Muon's rate all did (docs/lab-book.md). Other optimisers take half of the rate that
    AdamW has beside Muon, where it trains only heads, biases and the first layer.
    """
    now = values(config)
    changes: dict[str, Any] = {}
    if loss == "impala":
        changes |= {"loss": loss, "muon_lr": 0.015}
    if optimizer not in ("", now["optimizer"]):
        changes["lr"] = min(now["lr"], 1e-3)
    return change(config, **changes)


def for_lag(config: RunConfig, given: Mapping[str, Any]) -> RunConfig:
    """A preset with the defaults that fit a lag, which may be among the given options.

    Muon's momentum of 0.95 averages 20 gradient steps, which are five updates by
    default: a delay of its own that adds to the lag. And the policy moves far in an
    update of 2,048 rows. With half as many environments and rows, PPO had 88 % of
    clears in 1-1 at a lag of 1, before 78 %; IMPALA, with a quarter, 79 %, before 64 %
    (docs/lab-book.md). Not measured, hence as before: async mode, and replay.
    """
    now = values(config)
    run = now | dict(given)
    if not run["lag"]:
        return config
    changes: dict[str, Any] = {}
    if run["optimizer"] == "muon":
        changes |= {"optimizer": "muon", "momentum": 0.8}
    sizes = "num_envs", "unrolls_per_batch"
    is_for_cpu = all(now[size] == 64 for size in sizes)
    is_measured = run["mode"] == "sync" and not run["replay_share"]
    if is_for_cpu and is_measured and not given.keys() & set(sizes):
        changes |= dict.fromkeys(sizes, 16 if run["loss"] == "impala" else 32)
    return change(config, **changes)


def for_levels(
    config: RunConfig,
    levels: Sequence[str],
    test_levels: Sequence[str] = (),
    *,
    whole_game: bool = False,
) -> RunConfig:
    """A preset with the defaults of a run over some levels; () where a task has none.

    The presets are for 1-1 and for tasks without levels. A single other level on pixels
    learned more slowly with the values below (docs/lab-book.md).
    """
    now = values(config)
    changes: dict[str, Any] = {}
    several, one_hard = len(levels) > 1, len(levels) == 1 and levels[0] != "1-1"
    if whole_game:
        changes |= {"stall_steps": 200, "max_episode_steps": _WHOLE_GAME_STEPS}
    if several or (one_hard and now["obs"] != "pixels"):
        changes |= {
            "action_set": "simple",  # more than running right
            "stall_steps": 200,
            "popart": True,
            # 0.95 was found with 6 frames per step; with another frame skip the
            # discount per frame stays the same.
            "gamma": round(0.95 ** (now["frame_skip"] / 6), 3),
            # The Huber loss predicts a median, which ignores deaths with a probability
            # below 50 %.
            "value_loss": "squared",
            "turbo_swim": now["frame_skip"],
        }
        if now["mode"] == "sync":
            changes["starts"] = "frontier"
    if several:
        # In small batches, learning one level undoes what the previous batch taught
        # about another. Levels have different returns, so each has a value head.
        steps, unrolls = 500_000 * len(levels), 256 if len(levels) <= 8 else 512
        least = {
            "num_envs": 64,  # also with a lag
            "max_steps": steps,
            "lr_steps": steps,
            "entropy_steps": steps * 6 // 10,
            "unrolls_per_batch": unrolls,
            "minibatch_size": 8 * unrolls,
        }
        changes |= {name: max(number, now[name]) for name, number in least.items()}
        changes["value_heads"] = 0
        if (now["loss"], now["optimizer"]) == ("ppo", "muon"):
            changes |= {"muon_lr": 0.03, "lr": 1e-3, "epochs": 3}
    if whole_game or "8-4" in (*levels, *test_levels):
        changes["action_set"] = "complex"  # 8-4 has pipes that Mario enters from above
    return change(config, **changes)


def for_memory(config: RunConfig, memory: str = "") -> RunConfig:
    """A preset with the defaults that fit the word of a memory.

    With Muon's rate for networks without a memory, GTrXL on 1-1 from tiles reached half
    of the clears after 70 k steps, became deterministic and lost all of them; with a
    third of the rate it kept them (docs/lab-book.md).
    """
    now = values(config)
    if memory != "gtrxl" or now["optimizer"] != "muon":
        return config
    return change(config, muon_lr=min(now["muon_lr"], 0.015))


def choose_preset(device: torch.device) -> PresetName:
    """The preset for a device."""
    return "gpu" if device.type == "cuda" else "cpu"


def share_cores(config: RunConfig, jobs: int) -> RunConfig:
    """The config of one of several concurrent runs, with its share of the threads."""
    if jobs == 1:
        return config
    cores = max(1, available_cores() // jobs)
    return change(
        config,
        num_threads=config.env.num_threads or cores,
        learner_threads=config.learner.learner_threads or cores,
    )
