"""The device memory that a run needs, and what to lower if that is too much."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from trainer.config.presets import PRESETS, preset
from trainer.config.schema import (
    RunConfig,
)
from trainer.models import ActorCritic, build_model
from trainer.rollout.store import Rollouts


def store_slots(config: RunConfig) -> int:
    """Unrolls that the store holds: in progress, waiting, in an update, for replay."""
    if not config.replay.replay_share:
        return config.working_slots
    return config.working_slots + config.replay.replay_capacity


def _slot_bytes(config: RunConfig) -> int:
    """Bytes of an unroll: a frame per row, and the other fields of the rows."""
    shape, stack = _shape(config), config.env.stack_num
    burn_in = config.replay.burn_in
    return Rollouts.bytes_per_slot(config.learner.unroll, burn_in, shape, stack)


def store_bytes(config: RunConfig) -> int:
    """Bytes of the store on the device, replay included.

    The state of a memory is not counted; it is small beside the frames.
    """
    return store_slots(config) * _slot_bytes(config)


def gradient_bytes(config: RunConfig) -> int:
    """Bytes that one part of a minibatch keeps for its gradient.

    They are measured on the CPU as the bytes that a forward pass saves per further row,
    in bf16 unless the precision is fp32.
    """
    shape = _shape(config)
    actions = len(config.resolved().env.actions)
    model = build_model(config.resolved().model, shape, actions)
    half = config.precision != "fp32"
    if isinstance(model, ActorCritic):
        model.native = False  # as on a GPU
    few, more = (_saved_bytes(model, shape, rows, half) for rows in (2, 6))
    part = config.learner.minibatch_size / config.learner.grad_accum_steps
    return round((more - few) / 4 * part)


def _saved_bytes(
    model: nn.Module, shape: tuple[int, int, int], rows: int, half: bool
) -> int:
    """Bytes that a forward pass of some rows keeps for its gradient."""
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    obs = torch.zeros(1, rows, *shape, dtype=torch.uint8)
    state = torch.zeros(rows, cast(int, model.state_size))
    first = torch.zeros(1, rows, dtype=torch.bool)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, half):
        model(obs, state, first)
    return sum(saved.values())


def _shape(config: RunConfig) -> tuple[int, int, int]:
    env = config.resolved().env
    return (env.stack_num, env.img_height, env.img_width)


def table() -> str:
    """The presets as a table in Markdown."""
    head = (
        "preset | for GPUs of | environments | groups | batch (unrolls x steps) | "
        "minibatch | network | precision | mode, lag | store | gradient"
    )
    rows = [head, " | ".join(["---"] * len(head.split("|")))]
    for name, whom in PRESETS.items():
        config = preset(name)
        env, learner = config.env, config.learner
        cells: list[Any] = [
            f"`{name}`",
            whom,
            f"{env.num_envs:,}",
            env.groups,
            f"{learner.unrolls_per_batch} x {learner.unroll}",
            f"{learner.minibatch_size:,}",
            config.model.name,
            config.precision,
            f"{config.mode}, {config.lag}",
            _size(store_bytes(config)),
            _size(gradient_bytes(config)),
        ]
        rows.append(" | ".join(str(cell) for cell in cells))
    return "\n".join(f"| {row} |" for row in rows)


def _size(count: int) -> str:
    """A number of bytes as text."""
    if count < 2**30:
        return f"{count / 2**20:.{0 if count >= 10 * 2**20 else 1}f} MB"
    return f"{count / 2**30:.1f} GB"


def out_of_memory_advice(config: RunConfig, error: BaseException) -> str:
    """What to lower when the device memory is full, with the current values."""
    env, learner, replay = config.env, config.learner, config.replay
    store = [
        f"--num-envs (now {env.num_envs})",
        f"--unrolls-per-batch ({learner.unrolls_per_batch})",
        f"--unroll ({learner.unroll})",
    ]
    if replay.replay_share:
        store.append(f"--replay-capacity ({replay.replay_capacity})")
    what = str(error).strip().split("\n")[0].split(". ")[0]
    return (
        f"out of device memory ({what}). The store of unrolls takes about "
        f"{_size(store_bytes(config))}: lower {', '.join(store)}. The memory of a "
        f"gradient step grows with its rows: lower --minibatch-size (now "
        f"{learner.minibatch_size}), or raise --grad-accum-steps "
        f"({learner.grad_accum_steps}), which changes nothing else"
    )
