"""Policies from checkpoints, for all code that plays without training."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mario_envpool import rom
from trainer.config import shown
from trainer.config.plain import from_dict
from trainer.config.schema import EnvConfig, ModelConfig
from trainer.config.tasks import is_native
from trainer.envs.pool import make_pool
from trainer.machine.cpu import keep_large_blocks
from trainer.machine.device import autocast_dtype, choose_device, prepare
from trainer.machine.imports import check_named
from trainer.models import PolicyModel, build_model, checkpoint, hub, to_device
from trainer.models.corrected import Corrected, split
from trainer.models.native import computes
from trainer.models.released import (
    CARD,
    PREFIX,
    SUFFIX,
    PolicyFile,
    read_policy,
    write_policy,
)

_logger = logging.getLogger(__name__)

# Parameters of the layer that outputs an ActorCritic's logits.
LAST_LAYER = ("head.policy.weight", "head.policy.bias")


class Policy(NamedTuple):
    """A network with its trained weights and its environments.

    Attributes:
        model: network in evaluation mode, on the device.
        env: environments of its run.
        dtype: autocast type of the network, None for float32.
        steps: environment steps of its training.
        averaged: whether the weights are the moving average (`ema`).
    """

    model: PolicyModel
    env: EnvConfig
    device: torch.device
    dtype: torch.dtype | None
    steps: int
    averaged: bool


def playing_device(name: str) -> torch.device:
    """The device for a name such as "auto", set up for acting without training."""
    device = prepare(choose_device(name))
    if device.type == "cpu":
        keep_large_blocks()
        # One thread acts, next to the threads of the emulation.
        torch.set_num_threads(1)
    return device


def load_policy(
    path: Path | str,
    device: torch.device | str = "cpu",
    *,
    ema: bool = True,
    model: str = "",
    reward_fn: str | None = None,
    option: str = "model",
) -> Policy:
    """Builds the network of a checkpoint or a policy's file, and loads its weights.

    Args:
        path: a checkpoint; a run folder, for its newest checkpoint; a file from
            `save_policy`; the name of a released policy, such as released:8-1; or an
            address on the Hugging Face Hub, hf://user/name.
        device: device of the model, or PyTorch's name of it.
        ema: use the averaged weights if the checkpoint has them; a policy's file has
            only one kind of weights.
        model: a network of your own, module:Class, that the file may name.
        reward_fn: a reward of your own, module:function, that the file may name; None:
            the policy plays without the reward of its run.
        option: of the command that gives `model`, for errors.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: the file is damaged, its weights do not fit its network, a policy's
            file is for another ROM, it names code that the arguments do not name, or
            the released policy does not exist.
        ImportError, OSError: a policy on the Hub cannot be fetched.
    """
    source = hub.parse(path) if hub.is_address(path) else path
    path, device = hub.locate(Path(path)), torch.device(device)
    if path.suffix == SUFFIX:
        stored = read_policy(path, device)
    elif not path.exists() or (path.is_dir() and not checkpoint.list_files(path)):
        raise FileNotFoundError(_none_at(path))
    else:
        stored = _read_checkpoint(path, device, ema)
    try:
        env = from_dict(EnvConfig, stored.env)
        config = from_dict(ModelConfig, stored.model)
        weights, table = split(stored.weights)
    except ValueError as error:
        raise ValueError(f"{source} is damaged: {error}") from error
    if reward_fn is None:
        env = replace(env, reward_fn="")
    code = {option: config.name, "reward_fn": env.reward_fn}
    check_named(source, code, (model, reward_fn or ""))
    if env.rom_path and not Path(env.rom_path).exists():
        _logger.warning(
            "the ROM of the run, %s, is missing: playing the ROM of MARIO_ROM, or the "
            "installed ROM",
            env.rom_path,
        )
        env = replace(env, rom_path="")
    shape, num_actions, rom_sha1 = _game_of(env)
    if stored.rom_sha1 not in ("", rom_sha1):
        raise ValueError(
            f"{path} is a policy for the ROM with SHA-1 {stored.rom_sha1}, "
            f"{rom.describe(stored.rom_sha1)}, but the installed ROM has {rom_sha1}: "
            "set MARIO_ROM to the path of the other ROM"
        )
    if path.suffix == SUFFIX and ":" not in config.name:
        # On the meta device: a foreign file may name a network of any size.
        with torch.device("meta"):
            blank = build_model(config, shape, num_actions)
        checkpoint.check_shapes(blank, weights)
    network = build_model(config, shape, num_actions)
    own_code = computes(network, shape)
    network = to_device(network, config.name, device)
    checkpoint.load_weights(network, weights)
    if table is not None:
        try:
            network = Corrected(network, table, shape, num_actions)
        except ValueError as error:
            raise ValueError(f"{source} is damaged: {error}") from error
    return Policy(
        model=network.eval(),
        env=env,
        device=device,
        dtype=autocast_dtype(device, stored.precision, own_code=own_code),
        steps=stored.steps,
        averaged=stored.averaged,
    )


def save_policy(
    source: Path, path: Path, *, temperature: float = 1.0, bits: int = 16
) -> None:
    """Writes only the policy of a checkpoint: its weights and their configuration.

    Averaged weights are used if the checkpoint has them. Paths of this machine and a
    reward function are left out.

    Args:
        source: a checkpoint, or a run folder, for its newest checkpoint.
        path: path of the file, which ends with .safetensors; its folder must exist.
        temperature: divisor of the logits; below 1, likely actions become more likely.
            It scales the weights of the last layer.
        bits: 8 or 16 bits per number of a large matrix; all other numbers have 16.

    Raises:
        FileNotFoundError, OSError, ValueError: from `load_policy`, or the file cannot
            be written, or the network's last layer is unknown.
    """
    stored = _read_checkpoint(source, torch.device("cpu"), ema=True)
    try:
        env = from_dict(EnvConfig, stored.env)
    except ValueError as error:
        raise ValueError(f"{source} is damaged: {error}") from error
    public = shown.settings(stored.env, ("env",)) | {"rom_path": "", "reward_fn": ""}
    try:
        weights = with_temperature(stored.weights, temperature)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    *_, rom_sha1 = _game_of(env)
    stored = stored._replace(env=public, rom_sha1=rom_sha1, weights=weights)
    write_policy(path, stored, bits=bits)


def with_temperature(
    weights: Mapping[str, Tensor], temperature: float
) -> dict[str, Tensor]:
    """Weights of a network, with its logits divided by a temperature.

    Raises:
        ValueError: the network's last layer is unknown, and the temperature is not 1.
    """
    if temperature == 1.0:
        return dict(weights)
    if not weights.keys() >= set(LAST_LAYER):
        raise ValueError(
            "a temperature needs a network whose last layer is an ActorCritic's; leave "
            "the temperature out"
        )
    scaled = {name: weights[name] / temperature for name in LAST_LAYER}
    return dict(weights) | scaled


def _read_checkpoint(path: Path, device: torch.device, ema: bool) -> PolicyFile:
    """The policy in a checkpoint, without the ROM's hash."""
    state = checkpoint.load(path, device, needs=("config", "model", "steps"))
    config = state["config"]
    averaged = ema and state.get("ema") is not None
    return PolicyFile(
        env=config["env"],
        model=config["model"],
        precision=config["precision"],
        steps=int(state["steps"]),
        rom_sha1="",
        averaged=averaged,
        weights=state["ema" if averaged else "model"],
    )


def _none_at(path: Path) -> str:
    """The message for a path without a policy: what it is, and what to give."""
    for folder in (path, path / "policies"):  # the latter in a campaign's folder
        if files := sorted(folder.glob(f"*{SUFFIX}")):
            more = "; --whole-game plays each level with its own"
            if (folder / CARD).is_file():
                more += ", and trainer.evaluate plays a release as its card says"
            return (
                f"{path} has several policies: give one of them, such as {files[0]}"
                f"{more}"
            )
    below = sorted([*path.glob("*/"), *path.glob("levels/*/")])
    if runs := [run for run in below if checkpoint.list_files(run)]:
        return f"{path} is a folder with several runs: give one, such as {runs[0]}"
    if (path / "config.json").is_file():
        return f"{path} is a run without a checkpoint yet: wait for the first one"
    return (
        f"no checkpoint at {path}; runs write their checkpoints to "
        f"RUN_DIR/{checkpoint.FOLDER}/, and the policies of this package are "
        f"{PREFIX}1-1 and so on"
    )


def policy_name(path: Path) -> str:
    """The name of a policy's file, such as 8-1; "" for a checkpoint or run."""
    path = hub.locate(path)
    return path.stem if path.suffix == SUFFIX else ""


def run_folder(path: Path) -> Path | None:
    """The run folder of what `load_policy` reads; None if it is not in one."""
    if str(path).startswith(PREFIX) or hub.is_address(path):
        return None
    folder = path if path.is_dir() else path.absolute().parent
    if folder.name == checkpoint.FOLDER:
        folder = folder.parent
    return folder if (folder / "config.json").is_file() else None


def observation_shape(env: EnvConfig) -> tuple[int, ...]:
    """The shape (C, H, W) of the observations of a run's environments."""
    shape, *_ = _game_of(env)
    return shape


def _game_of(env: EnvConfig) -> tuple[tuple[int, ...], int, str]:
    """The shape of observations, the number of actions, and the ROM's SHA-1, if any.

    Without a custom reward, which may not be importable here.
    """
    one = replace(env, num_envs=1, groups=1, num_threads=1, reward_fn="")
    with closing(make_pool(one, seed=0)) as pool:
        sha1 = ""
        if is_native(env.task):
            image = rom.load(pool.config["rom"], env.rom_path)
            sha1 = hashlib.sha1(image).hexdigest()
        return tuple(pool.observation_space.shape), int(pool.action_space.n), sha1
