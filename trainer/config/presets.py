"""Defaults by hardware, what they need, and what to lower where it is too much.

The CPU's are those of the dataclasses themselves.
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

# Whom a preset is for; GB as cards are sold, which is 2^30 bytes.
PRESETS: dict[PresetName, str] = {
    "cpu": "no GPU",
    "tiles": "no GPU, --obs tiles",
    "impala": "no GPU, Espeholt et al. 2018",
    "gpu-small": "below 12 GB",
    "gpu-mid": "12 to 40 GB",
    "gpu-large": "above 40 GB",
}


# 22 minutes with 4 frames a step: a playthrough without warps takes less than 20.
_WHOLE_GAME_STEPS = 20_000


def preset(name: PresetName) -> RunConfig:
    """The configuration a run starts from on a kind of device.

    On a GPU: batches of 8,192 steps and IMPALA's network (Espeholt et al. 2018),
    one pass, the learning rate warmed up and annealed as a cosine. The level's own
    discount and reward are the CPU recipe's.
    """
    if name == "cpu":
        return RunConfig()
    if name == "tiles":
        return replace(
            RunConfig(),
            env=replace(EnvConfig(), obs="tiles", stack_num=1),
            model=ModelConfig(name="tiles"),
            # With pixels' rates 1-1 took 160 k steps instead of 140.
            learner=replace(
                LearnerConfig(), optimizer=Muon(matrix_lr=0.045), lr=1.5e-3
            ),
        )
    if name == "impala":
        # The paper's loss and overlap, and its replay by priority.
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

    PPO's clip ends the pull of a row when its action has become 1.2 times as likely.
    IMPALA's policy gradient has no such end: a row pulls as long as it is learned from,
    and Muon's steps are as long for a small gradient as for a large one. With PPO's
    rates no run with policy lag learned 1-1; with a quarter of Muon's all did
    (docs/results.md). Adam and the others take half of the rate that AdamW has beside
    Muon, which is for heads, biases and the first layer alone.

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

    The presets themselves are for 1-1 and for tasks without levels. Other levels on
    tiles, and several of any kind, have returns that look further, patience, more
    actions than running right, and starts at the frontier, whose cost beside a GPU has
    not been measured. One level on pictures learned more slowly so. 8-4 has pipes that
    one enters from above, so DOWN is among its actions.

    Several levels differ in their returns, hence a value head for each. What is learned
    of one in a small batch is unlearned in the next, so batches grow. The schedules
    have half a million steps for each level (docs/results.md).

    A whole game is longer than any level, and its last castle has pipes as well.

    Args:
        config: a preset.
        levels: to train on; () where the task has none.
        test_levels: to be tested on.
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
            # Found with 6 frames a step; for others it looks as far ahead.
            # Huber's loss makes the critic a median: it does not see a death that is
            # less than likely.
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
    """The rates and passes of PPO and Muon that several levels were measured with."""
    if not (isinstance(learner.loss, Ppo) and isinstance(learner.optimizer, Muon)):
        return learner
    muon = replace(learner.optimizer, matrix_lr=0.03)
    return replace(learner, optimizer=muon, lr=1e-3, epochs=3)


def choose_preset(device: torch.device) -> PresetName:
    """The preset for a device, by its memory."""
    if device.type != "cuda":
        return "cpu"
    # A card sold with 12 GB reports 11.6 to 12.0.
    size = round(torch.cuda.get_device_properties(device).total_memory / 2**30)
    if size < 12:
        return "gpu-small"
    return "gpu-mid" if size <= 40 else "gpu-large"


def share_cores(config: RunConfig, jobs: int) -> RunConfig:
    """The config of one of several runs at the same time: its share of the threads."""
    if jobs == 1:
        return config
    cores = max(1, available_cores() // jobs)
    env, learner = config.env, config.learner
    return replace(
        config,
        env=replace(env, num_threads=env.num_threads or cores),
        learner=replace(learner, learner_threads=learner.learner_threads or cores),
    )
