"""Presets: valid, chosen by hardware, and what they need is what they take."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trainer.config.presets import PRESETS, choose_preset, preset
from trainer.config.schema import EnvConfig, LearnerConfig, ReplayConfig, RunConfig
from trainer.models import build_model
from trainer.rollout.store import Rollouts
from trainer.session.build import out_of_memory_advice, store_bytes, store_slots

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid(name):
    config = preset(name)
    config.validate()
    assert (config == RunConfig()) == (name == "cpu")


def test_the_device_chooses():
    assert choose_preset(torch.device("cuda")) == "gpu"
    assert choose_preset(torch.device("cpu")) == "cpu"


def tensors_of(thing):
    return [x for x in vars(thing).values() if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize("burn_in", [0, 8])
def test_the_store_takes_what_is_said(burn_in):
    """Against every tensor of a store with as many slots."""
    config = RunConfig(
        env=EnvConfig(num_envs=4, groups=2, img_height=84, img_width=84),
        learner=LearnerConfig(unroll=16, unrolls_per_batch=8),
        replay=ReplayConfig(replay_share=0.5, replay_capacity=6, burn_in=burn_in),
    )
    slots = store_slots(config)
    assert slots == 4 + 2 + 8 + 6
    store = Rollouts(
        num_envs=4,
        num_slots=slots,
        unroll=16,
        obs_shape=(4, 84, 84),
        num_actions=5,
        device=torch.device("cpu"),
        stack_num=4,
        burn_in=burn_in,
    )
    tensors = [*tensors_of(store), *tensors_of(store._frames)]
    taken = sum(tensor.nbytes for tensor in tensors)
    assert store_bytes(config) == pytest.approx(taken, rel=0.02)


def test_slots_follow_lag_and_replay():
    config = replace(preset("gpu-impala"), replay=ReplayConfig())
    slots = store_slots(config)
    assert slots == 1024 + 256 + 2 * 256
    assert store_slots(replace(config, lag=3)) == slots + 2 * 256
    shared = ReplayConfig(replay_share=0.5, replay_capacity=1000)
    replayed = store_slots(replace(config, replay=shared))
    assert replayed == slots + 1000


def gradient_bytes(config):
    """Bytes that one part of a minibatch keeps for its gradient.

    They are measured on the CPU as the bytes that a forward pass saves per further row,
    in bf16 unless the precision is fp32.
    """
    env = config.resolved().env
    shape = env.stack_num, env.img_height, env.img_width
    model = build_model(config.resolved().model, shape, len(env.actions))
    model.native = False  # as on a GPU

    def saved_bytes(rows):
        saved = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        obs = torch.zeros(1, rows, *shape, dtype=torch.uint8)
        state, first = torch.zeros(rows, model.state_size), torch.zeros(1, rows)
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with hooks, torch.autocast("cpu", torch.bfloat16, config.precision != "fp32"):
            model(obs, state, first.bool())
        return sum(saved.values())

    part = config.learner.minibatch_size / config.learner.grad_accum_steps
    return (saved_bytes(6) - saved_bytes(2)) / 4 * part


@pytest.mark.parametrize("name", PRESETS)
def test_the_documentation_says_what_the_presets_take(name):
    lines = (ROOT / "docs" / "training.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"| `{name}` |")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    config = preset(name)
    assert cells[2] == f"{config.env.num_envs} in {config.env.groups} groups"
    assert cells[3] == config.model.name
    needed = store_bytes(config), gradient_bytes(config)
    for cell, size in zip(cells[-2:], needed, strict=True):
        megabytes = size / 2**20
        text = f"{megabytes:.0f} MB" if megabytes < 1024 else f"{size / 2**30:.1f} GB"
        assert cell == text


def test_out_of_memory_names_the_numbers_to_lower():
    error = RuntimeError("CUDA out of memory. Tried to allocate 2 GiB.\nSee also ...")
    config = replace(
        preset("gpu"), learner=LearnerConfig(grad_accum_steps=2, unroll=48)
    )
    text = out_of_memory_advice(config, error)
    assert "\n" not in text
    assert "CUDA out of memory)" in text
    for part in (
        "--num-envs (now 128)",
        "--unrolls-per-batch (64)",
        "--unroll (48)",
        "--minibatch-size (now 1024)",
        "--grad-accum-steps (2)",
        f"{store_bytes(config) / 2**20:.0f} MB",
    ):
        assert part in text
    assert "--replay-capacity" not in text
    replayed = replace(config, replay=ReplayConfig(replay_share=0.5))
    assert "--replay-capacity (256)" in out_of_memory_advice(replayed, error)
