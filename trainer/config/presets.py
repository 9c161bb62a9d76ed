"""Defaults by hardware, loss, optimiser and levels.

The defaults for a CPU are those of the dataclasses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from trainer.config.learning import Adam, Impala, Muon, Ppo
from trainer.config.schema import (
    EnvConfig,
    LearnerConfig,
    ModelConfig,
    PresetName,
    ReplayConfig,
    RunConfig,
)
from trainer.machine.cpu import available_cores

# The hardware of each preset. A GB is 2^30 bytes, as in the names of GPUs.
PRESETS: dict[PresetName, str] = {
    "cpu": "no GPU",
    "tiles": "no GPU, --obs tiles",
    "impala": "no GPU, Espeholt et al. 2018",
    "gpu-small": "below 12 GB",
    "gpu-mid": "12 to 40 GB",
    "gpu-large": "above 40 GB",
}


# 22 minutes with 4 frames per step; a playthrough without warps takes less than 20.
_WHOLE_GAME_STEPS = 20_000


def preset(name: PresetName) -> RunConfig:
    """The configuration a run starts from on a kind of device.

    On a GPU: batches of 8,192 steps and IMPALA's network (Espeholt et al. 2018),
    one epoch, a learning rate with warm-up and a cosine schedule. Discount and reward
    are those of the CPU recipe.
    """
    if name == "cpu":
        return RunConfig()
    if name == "tiles":
        return replace(
            RunConfig(),
            env=replace(EnvConfig(), obs="tiles", stack_num=1),
            model=ModelConfig(name="tiles"),
            # With the learning rates for pixels 1-1 took 160 k steps instead of 140 k.
            learner=replace(
                LearnerConfig(), optimizer=Muon(matrix_lr=0.045), lr=1.5e-3
            ),
        )
    if name == "impala":
        # The loss and overlap of the paper, with prioritized replay.
        return replace(
            for_algorithm(RunConfig(), "impala"),
            lag=1,
            replay=ReplayConfig(replay_share=0.25),
        )
    learner = replace(
        LearnerConfig(),
        optimizer=Adam(),
        gamma=0.95,
        unrolls_per_batch=256,
        epochs=1,
        minibatch_size=2048,
        lr=5e-4,
        lr_end=5e-5,
        lr_steps=8_000_000,
        lr_schedule="cosine",
        warmup_updates=50,
        entropy_steps=4_800_000,
    )
    large = RunConfig(
        mode="async",
        lag=1,
        max_steps=20_000_000,
        env=replace(EnvConfig(), num_envs=1024, groups=4, frame_skip=4),
        model=ModelConfig(name="impala"),
        learner=learner,
    )
    if name == "gpu-large":
        return large
    if name == "gpu-mid":
        return replace(large, env=replace(large.env, num_envs=512))
    return replace(
        large,
        env=replace(large.env, num_envs=256),
        model=ModelConfig(name="nature"),
        learner=replace(learner, unrolls_per_batch=128, minibatch_size=1024),
    )


def for_algorithm(config: RunConfig, loss: str = "", optimizer: str = "") -> RunConfig:
    """A preset with the defaults that fit a loss and an optimiser.

    PPO's clip stops the gradient of a row when its action has become 1.2 times as
    probable. IMPALA's policy gradient has no such limit: a row contributes in every
    gradient step, and Muon's steps have the same length for a small gradient as for a
    large one. With PPO's learning rates no run with lag learned 1-1; with a quarter of
    Muon's rate all did (docs/lab-book.md). Other optimisers take half of the rate that
    AdamW has beside Muon, where it trains only heads, biases and the first layer.

    Args:
        config: a preset.
        loss: word of `LearnerConfig.loss`; "": the preset's.
        optimizer: word of `LearnerConfig.optimizer`; "": the preset's.
    """
    learner = config.learner
    if loss == Impala.kind:
        learner = replace(learner, loss=Impala())
        if isinstance(learner.optimizer, Muon):
            muon = replace(learner.optimizer, matrix_lr=0.015)
            learner = replace(learner, optimizer=muon)
    if optimizer not in ("", learner.optimizer.kind) and learner.lr > 1e-3:
        learner = replace(learner, lr=1e-3)
    return replace(config, learner=learner)


def for_levels(
    config: RunConfig,
    levels: Sequence[str],
    test_levels: Sequence[str] = (),
    *,
    whole_game: bool = False,
) -> RunConfig:
    """A preset with the defaults of a run over some levels.

    The presets are for 1-1 and for tasks without levels. Any other level on tiles, and
    several levels of any kind, have a higher discount, more steps without progress
    before an episode is truncated, more actions than running right, and starts at the
    frontier (only in sync mode: the cost beside a GPU has not been measured). A single
    level on pixels learned more slowly with these values. 8-4 has pipes that Mario
    enters from above, so its actions include DOWN.

    Several levels have different returns, so each has a value head. In small batches,
    learning one level undoes what the previous batch taught about another, so batches
    are larger. The schedules have 500,000 steps per level (docs/lab-book.md).

    A whole game is longer than any level, and its last castle, 8-4, has such pipes.

    Args:
        config: a preset.
        levels: to train on; () where the task has none.
        test_levels: to test on.
        whole_game: whether the task is a whole game.
    """
    if whole_game:
        env = replace(
            config.env,
            action_set="complex",
            stall_steps=200,
            max_episode_steps=_WHOLE_GAME_STEPS,
        )
        config = replace(config, env=env)
    several, one_hard = len(levels) > 1, len(levels) == 1 and levels[0] != "1-1"
    if several or (one_hard and config.env.obs == "tiles"):
        starts = "frontier" if config.mode == "sync" else config.explore.starts
        config = replace(
            config,
            env=replace(config.env, action_set="simple", stall_steps=200),
            explore=replace(config.explore, starts=starts),
            model=replace(config.model, popart=True),
            # 0.95 was found with 6 frames per step; with another frame skip the
            # discount per frame stays the same. With the Huber loss the critic predicts
            # a median, which ignores deaths with a probability below 50 %.
            learner=replace(
                config.learner,
                gamma=round(0.95 ** (config.env.frame_skip / 6), 3),
                value_loss="squared",
            ),
        )
    if several:
        steps, learner = 500_000 * len(levels), _several_levels_rates(config.learner)
        unrolls = 256 if len(levels) <= 8 else 512
        config = replace(
            config,
            max_steps=max(steps, config.max_steps),
            model=replace(config.model, value_heads=0),
            learner=replace(
                learner,
                unrolls_per_batch=max(unrolls, learner.unrolls_per_batch),
                minibatch_size=max(8 * unrolls, learner.minibatch_size),
                lr_steps=max(steps, learner.lr_steps),
                entropy_steps=max(steps * 6 // 10, learner.entropy_steps),
            ),
        )
    if "8-4" in (*levels, *test_levels):
        config = replace(config, env=replace(config.env, action_set="complex"))
    return config


def _several_levels_rates(learner: LearnerConfig) -> LearnerConfig:
    """The learning rates and epochs of PPO with Muon for several levels."""
    if not (isinstance(learner.loss, Ppo) and isinstance(learner.optimizer, Muon)):
        return learner
    muon = replace(learner.optimizer, matrix_lr=0.03)
    return replace(learner, optimizer=muon, lr=1e-3, epochs=3)


def choose_preset(device: torch.device) -> PresetName:
    """The preset for a device, by its memory."""
    if device.type != "cuda":
        return "cpu"
    # A GPU sold with 12 GB reports 11.6 to 12.0.
    size = round(torch.cuda.get_device_properties(device).total_memory / 2**30)
    if size < 12:
        return "gpu-small"
    return "gpu-mid" if size <= 40 else "gpu-large"


def share_cores(config: RunConfig, jobs: int) -> RunConfig:
    """The config of one of several concurrent runs, with its share of the threads."""
    if jobs == 1:
        return config
    cores = max(1, available_cores() // jobs)
    env, learner = config.env, config.learner
    return replace(
        config,
        env=replace(env, num_threads=env.num_threads or cores),
        learner=replace(learner, learner_threads=learner.learner_threads or cores),
    )
