"""Runs of a second or less on fake pools, and how to look at what they leave."""

import json
import threading
from dataclasses import fields, replace

import torch

from trainer import checkpoint
from trainer.config import EnvConfig, LearnerConfig, ModelConfig, RunConfig

CPU = torch.device("cpu")
ENVS = 6


def change(config, **options):
    """A config with options of any of its parts, and of its own, changed."""
    for name in ("env", "learner", "replay", "model"):
        part = getattr(config, name)
        own = {f.name for f in fields(part)} & set(options) - {"name"}
        part = replace(part, **{key: options.pop(key) for key in own})
        config = replace(config, **{name: part})
    return replace(config, **options)


def make_config(tmp_path, **options):
    base = RunConfig(
        device="cpu",
        precision="fp32",
        run_dir=tmp_path / "run",
        max_steps=600,
        stop_when_solved=False,
        log_seconds=0.01,
        env=EnvConfig(num_envs=ENVS, groups=2),
        model=ModelConfig(memory_size=8, memory_heads=2, memory_steps=4),
        learner=LearnerConfig(
            unroll=8,
            unrolls_per_batch=ENVS,
            minibatch_size=24,
            passes=2,
            learner_threads=2,
            optimizer="adam",
            lr=1e-3,
        ),
    )
    return change(base, **options)


def read_points(folder, name="metrics.jsonl"):
    lines = (folder / name).read_text().splitlines()
    return [json.loads(line) for line in lines]


def weights_in(folder, name="model"):
    state = checkpoint.load(folder, CPU)[name]
    return torch.cat([tensor.flatten() for tensor in state.values()])


def threads_of_runs():
    """Collectors and shards that still run."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("collector", "shard"))]
