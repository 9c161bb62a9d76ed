"""Advantage actor-critic with the trainer's learner."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainer.config.learning import Ppo, RMSprop
from trainer.config.schema import RunConfig
from trainer.machine.process import Interrupted
from trainer.session.training import run_training
from trainer.show.display import QuietDisplay


def a2c_config(task: str) -> RunConfig:
    """The config of advantage actor-critic (Mnih et al. 2016) for the same learner.

    Each training batch comes from the current policy and has one gradient step. The
    ratio in the ppo loss is then 1 and its gradient is the plain policy gradient, so
    A2C is a special case of PPO (Huang et al. 2022, arXiv:2205.09123). As in OpenAI's
    A2C: advantages of five steps (lambda 1), not normalised, RMSProp at 7e-4 with
    epsilon 1e-5, and a squared value loss. Without V-trace, replay, overlap and
    averaged weights. Environments, network, discount and entropy bonus are those of the
    CPU recipe.
    """
    base = RunConfig()
    learner = replace(
        base.learner,
        loss=Ppo(),
        advantages="gae",
        unroll=5,
        unrolls_per_batch=base.env.num_envs,
        epochs=1,
        minibatch_size=5 * base.env.num_envs,
        lam=1.0,
        normalise_advantages=False,
        value_loss="squared",
        optimizer=RMSprop(eps=1e-5),
        lr=7e-4,
        lr_end=0.0,
        ema=0.0,
    )
    return replace(
        base,
        preset="cpu",
        lag=0,
        mode="sync",
        env=replace(base.env, task=task),
        learner=learner,
        replay=replace(base.replay, replay_share=0.0),
        stop_when_solved=False,
        end_episodes=0,
        videos=False,
    )


def train_a2c(
    levels: Sequence[str], *, seconds: float, seed: int, device: str, out: Path
) -> Path:
    """Trains A2C; returns the folder of its run."""
    level = f"-{levels[0]}" if len(levels) == 1 else "RandomStages"
    folder = out / f"a2c-{time.strftime('%Y%m%d-%H%M%S')}"
    training = replace(
        a2c_config(f"SuperMarioBros{level}-v0"),
        device=device,
        seed=seed,
        max_seconds=seconds,
        # Only the time ends the run.
        max_steps=2**62,
        run_dir=folder,
    )
    print(f"training A2C for {seconds:g} s: {folder}/", flush=True)
    if number := run_training(training, QuietDisplay())["signal"]:
        raise Interrupted(int(number))
    return folder
