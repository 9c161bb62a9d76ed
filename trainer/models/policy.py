"""Policies out of checkpoints, for everything that plays and does not train."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from trainer.config.plain import from_dict
from trainer.config.schema import EnvConfig, ModelConfig
from trainer.envs.pool import make_pool
from trainer.machine.cpu import keep_large_blocks
from trainer.machine.device import autocast_dtype, choose_device
from trainer.models import PolicyModel, build_model, checkpoint, to_device
from trainer.models.native import computes

_logger = logging.getLogger(__name__)


class Policy(NamedTuple):
    """A network with its trained weights, and where it belongs.

    Attributes:
        model: in evaluation mode, on the device.
        env: environments of its run.
        device: of the model.
        dtype: autocast type of the network, None for float32.
        steps: environment steps that it was trained for.
        averaged: whether the weights are the moving average (`ema`).
    """

    model: PolicyModel
    env: EnvConfig
    device: torch.device
    dtype: torch.dtype | None
    steps: int
    averaged: bool


def playing_device(name: str) -> torch.device:
    """The device of a name such as "auto", set up for acting alone."""
    device = choose_device(name)
    if device.type == "cpu":
        keep_large_blocks()
        # Acting is one thread beside the emulation.
        torch.set_num_threads(1)
    return device


def load_policy(path: Path, device: torch.device, *, ema: bool = True) -> Policy:
    """Builds the network of a checkpoint and loads its weights.

    Args:
        path: checkpoint, or the folder of a run, whose newest one it then is.
        device: for the model.
        ema: take the averaged weights where the checkpoint has them.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: it is damaged, or its weights do not fit its network.
    """
    state = checkpoint.load(path, device, needs=("config", "model", "steps"))
    env = from_dict(EnvConfig, state["config"]["env"])
    if env.rom_path and not Path(env.rom_path).exists():
        _logger.warning(
            "the ROM of the run, %s, is not there: playing the one that MARIO_ROM "
            "names, or the installed one",
            env.rom_path,
        )
        env = replace(env, rom_path="")
    kind = from_dict(ModelConfig, state["config"]["model"])
    averaged = ema and state.get("ema") is not None
    shape, num_actions = _spaces(env)
    model = build_model(kind, shape, num_actions)
    own_code = computes(model, shape)
    model = to_device(model, kind.name, device)
    checkpoint.load_weights(model, state["ema" if averaged else "model"])
    return Policy(
        model=model.eval(),
        env=env,
        device=device,
        dtype=autocast_dtype(device, state["config"]["precision"], own_code=own_code),
        steps=int(state["steps"]),
        averaged=averaged,
    )


def save_policy(source: Path, path: Path) -> None:
    """Writes the policy of a checkpoint alone: weights to play with, and its config.

    Args:
        source: checkpoint, or the folder of a run, whose newest one it then is.
        path: of the new checkpoint; its folder exists.

    Raises:
        FileNotFoundError, OSError, ValueError: as of `checkpoint.load` and `.save`.
    """
    needs = ("config", "model", "steps")
    state = checkpoint.load(source, torch.device("cpu"), needs)
    averaged = state.get("ema")
    checkpoint.save(
        path,
        {
            "config": state["config"],
            "model": state["model"] if averaged is None else averaged,
            "steps": state["steps"],
        },
    )


def run_folder(path: Path) -> Path | None:
    """The folder of the run of a checkpoint; None if it lies in none.

    Args:
        path: as given to `load_policy`.
    """
    folder = path if path.is_dir() else path.absolute().parent
    if folder.name == checkpoint.FOLDER:
        folder = folder.parent
    return folder if (folder / "config.json").is_file() else None


def _spaces(env: EnvConfig) -> tuple[tuple[int, ...], int]:
    """The shape of an observation, and the number of actions."""
    # A reward of the user's own changes neither, and may not be there.
    env = replace(env, num_envs=1, groups=1, num_threads=1, reward_fn="")
    pool = make_pool(env, seed=0)
    try:
        return tuple(pool.observation_space.shape), int(pool.action_space.n)
    finally:
        pool.close()
