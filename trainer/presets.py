"""Defaults by hardware. The CPU's are those of the dataclasses themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from trainer.config import EnvConfig, LearnerConfig, ModelConfig, RunConfig

PresetName = Literal["cpu", "gpu"]


def preset(name: PresetName) -> RunConfig:
    """The configuration a run starts from on a kind of device.

    The GPU's has not been tuned: widths follow Cleanba (Huang et al. 2023) and
    the level's own discount, reward and schedules are the CPU recipe's.
    """
    cpu = RunConfig()
    if name == "cpu":
        return cpu
    return replace(
        cpu,
        max_steps=10_000_000,
        env=replace(EnvConfig(), num_envs=512, batch_size=128),
        model=ModelConfig(name="impala"),
        learner=replace(
            LearnerConfig(),
            unrolls_per_batch=256,
            minibatch_size=2048,
            lr=5e-4,
            lr_end=5e-5,
            lr_steps=4_000_000,
            entropy_steps=2_400_000,
        ),
    )
