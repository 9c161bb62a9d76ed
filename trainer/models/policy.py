"""Policies out of checkpoints, for everything that plays and does not train."""

from __future__ import annotations

import hashlib
import logging
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mario_envpool import rom
from trainer.config.plain import from_dict, to_dict
from trainer.config.schema import EnvConfig, ModelConfig
from trainer.config.tasks import is_native
from trainer.envs.pool import make_pool
from trainer.machine.cpu import keep_large_blocks
from trainer.machine.device import autocast_dtype, choose_device
from trainer.models import (
    PolicyModel,
    build_model,
    checkpoint,
    hub,
    policy_file,
    released,
    to_device,
)
from trainer.models.native import computes

_logger = logging.getLogger(__name__)

# Whose output are an ActorCritic's logits, where its heads are no noisy ones.
_LAST_LAYER = ("head.policy.weight", "head.policy.bias")


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


def load_policy(
    path: Path | str, device: torch.device | str = "cpu", *, ema: bool = True
) -> Policy:
    """Builds the network of a checkpoint or a policy's file, and loads its weights.

    Args:
        path: checkpoint, the folder of a run, whose newest one it then is, a file
            of `save_policy`, the name of a released policy, such as released:8-1, or
            an address on the Hugging Face Hub, hf://user/name.
        device: for the model, or its name for PyTorch.
        ema: take the averaged weights where the checkpoint has them; a policy's file
            has one kind only.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: it is damaged, its weights do not fit its network, a policy's file
            is for another ROM, or there is no such released policy.
        ImportError, OSError: the policy is on the Hub, and cannot be fetched.
    """
    path, device = hub.locate(Path(path)), torch.device(device)
    if path.suffix == policy_file.SUFFIX:
        found = policy_file.read(path, device)
    elif not path.exists() or (path.is_dir() and not checkpoint.list_files(path)):
        raise FileNotFoundError(_none_at(path))
    else:
        found = _of_checkpoint(path, device, ema)
    env = from_dict(EnvConfig, found.env)
    if env.rom_path and not Path(env.rom_path).exists():
        _logger.warning(
            "the ROM of the run, %s, is not there: playing the one that MARIO_ROM "
            "names, or the installed one",
            env.rom_path,
        )
        env = replace(env, rom_path="")
    kind = from_dict(ModelConfig, found.model)
    if found.rom_sha1 and found.rom_sha1 != (here := _rom_sha1(env)):
        raise ValueError(
            f"{path} is a policy for the ROM with SHA-1 {found.rom_sha1}, "
            f"{rom.describe(found.rom_sha1)}; the one here has {here}: name the other "
            "one by MARIO_ROM"
        )
    shape, num_actions = _spaces(env)
    if path.suffix == policy_file.SUFFIX and ":" not in kind.name:
        # Without memory: a file of others may name a network of any size.
        with torch.device("meta"):
            checkpoint.check_shapes(
                build_model(kind, shape, num_actions), found.weights
            )
    model = build_model(kind, shape, num_actions)
    own_code = computes(model, shape)
    model = to_device(model, kind.name, device)
    checkpoint.load_weights(model, found.weights)
    return Policy(
        model=model.eval(),
        env=env,
        device=device,
        dtype=autocast_dtype(device, found.precision, own_code=own_code),
        steps=found.steps,
        averaged=found.averaged,
    )


def save_policy(
    source: Path, path: Path, *, temperature: float = 1.0, bits: int = 16
) -> None:
    """Writes the policy of a checkpoint alone: weights, and what they are for.

    Weights are the averaged ones where there are any. Paths of this machine are left
    out.

    Args:
        source: checkpoint, or the folder of a run, whose newest one it then is.
        path: of the file, which ends with .safetensors; its folder exists.
        temperature: by which the logits are divided; below 1 likely actions become
            more likely. The last layer's weights are scaled.
        bits: 8 or 16, of a number in a large matrix; all others have 16.

    Raises:
        FileNotFoundError, OSError, ValueError: as of `load_policy`, or the file cannot
            be written, or the network's last layer is not known.
    """
    found = _of_checkpoint(source, torch.device("cpu"), ema=True)
    env = replace(from_dict(EnvConfig, found.env), rom_path="", reward_fn="")
    rom_sha1 = _rom_sha1(from_dict(EnvConfig, found.env))
    weights = dict(found.weights)
    if temperature != 1.0:
        if not weights.keys() >= set(_LAST_LAYER):
            raise ValueError(f"{source}: a policy of another kind has no temperature")
        for name in _LAST_LAYER:
            weights[name] = weights[name] / temperature
    policy_file.write(
        path,
        found._replace(env=to_dict(env), rom_sha1=rom_sha1, weights=weights),
        bits=bits,
    )


def _of_checkpoint(
    path: Path, device: torch.device, ema: bool
) -> policy_file.PolicyFile:
    """What a policy's file would hold, but for the ROM's hash."""
    state = checkpoint.load(path, device, needs=("config", "model", "steps"))
    config = state["config"]
    averaged = ema and state.get("ema") is not None
    return policy_file.PolicyFile(
        env=config["env"],
        model=config["model"],
        precision=config["precision"],
        steps=int(state["steps"]),
        rom_sha1="",
        averaged=averaged,
        weights=state["ema" if averaged else "model"],
    )


def _none_at(path: Path) -> str:
    """What is there instead of a policy, and what to give."""
    for folder in (path, path / "policies"):  # those of a campaign
        if files := sorted(folder.glob(f"*{policy_file.SUFFIX}")):
            kind, more = "folder" if folder == path else "campaign", ""
            if (folder / released.CARD).is_file():
                kind, more = "release", "; python -m trainer.evaluate takes all at once"
            return (
                f"{path} is a {kind} with policies: give one of them, such as "
                f"{files[0]}{more}"
            )
    below = sorted([*path.glob("*/"), *path.glob("levels/*/")])
    if runs := [run for run in below if checkpoint.list_files(run)]:
        return f"{path} is a folder with runs: give one of them, such as {runs[0]}"
    if (path / "config.json").is_file():
        return f"{path} is a run without a checkpoint so far: wait for the first one"
    return (
        f"no checkpoint at {path}; runs write theirs to RUN_DIR/{checkpoint.FOLDER}/, "
        f"and the policies of this package are {released.PREFIX}1-1 and so on"
    )


def policy_name(path: Path) -> str:
    """The name of a policy's file, such as 8-1; "" of a checkpoint or run.

    Args:
        path: as given to `load_policy`.
    """
    path = hub.locate(path)
    return path.stem if path.suffix == policy_file.SUFFIX else ""


def run_folder(path: Path) -> Path | None:
    """The folder of the run of a checkpoint; None if it lies in none.

    Args:
        path: as given to `load_policy`.
    """
    if str(path).startswith(released.PREFIX) or hub.is_address(path):
        return None
    folder = path if path.is_dir() else path.absolute().parent
    if folder.name == checkpoint.FOLDER:
        folder = folder.parent
    return folder if (folder / "config.json").is_file() else None


def _spaces(env: EnvConfig) -> tuple[tuple[int, ...], int]:
    """The shape of an observation, and the number of actions."""
    with closing(_one(env)) as pool:
        return tuple(pool.observation_space.shape), int(pool.action_space.n)


def _rom_sha1(env: EnvConfig) -> str:
    """The SHA-1 of the ROM that a run plays here; of tasks without one it is ""."""
    if not is_native(env.task):
        return ""
    with closing(_one(env)) as pool:
        return hashlib.sha1(rom.load(pool.config["rom"], env.rom_path)).hexdigest()


def _one(env: EnvConfig) -> Any:
    """One environment; a reward of the user's own, which may not be there, is left."""
    return make_pool(
        replace(env, num_envs=1, groups=1, num_threads=1, reward_fn=""), seed=0
    )
