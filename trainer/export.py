"""Writes a policy as an ONNX file: `python -m trainer.export POLICY --onnx FILE`.

Other programs run the file without PyTorch (examples/onnx_play.py does it with
onnxruntime). Encoder, memory and heads compute in float32, for any number of
environments N:

    input   obs         (N, C, H, W) uint8
            state       (N, S) float32, the memory; zeros at the very start
            first       (N,) bool, whether an episode begins
    output  logits      (N, A) float32
            value       (N,) float32, or (N, L) of a network with L value heads
            next_state  (N, S) float32

A network without memory has neither `state`, `first` nor `next_state`. The metadata
`mario_envpool` of the file is a JSON object: `task` and `options` of
`mario_envpool.make` for the policy's environments, the buttons of its `actions`,
`levels`, and `steps` of its training.

    python -m trainer.export released:1-1 --onnx 1-1.onnx
    python -m trainer.export runs/TASK-TIME --onnx policy.onnx

Needs the extra onnx. Exit status: 0, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor, nn

from trainer.cli import main_of
from trainer.config.environment import POLICY_OPTIONS
from trainer.config.schema import IMAGE_SIZE, EnvConfig
from trainer.config.tasks import game_of, is_native, own_levels
from trainer.envs.pool import OBS_TYPES
from trainer.machine.files import make_folder, replacing
from trainer.models import ActorCritic, PolicyModel
from trainer.models.policy import Policy, load_policy, observation_shape

#: Key of the metadata.
METADATA = "mario_envpool"
_SUFFIX = ".onnx"
# Names of inputs and outputs; those behind the first are of networks with memory.
_INPUTS, _OUTPUTS = ("obs", "state", "first"), ("logits", "value", "next_state")


@dataclass(frozen=True)
class ExportConfig:
    """Writes a policy as an ONNX file."""

    checkpoint: tyro.conf.Positional[Path]
    """Checkpoint, run folder (its newest checkpoint), policy file, released:8-1, or an
    address on the Hub, hf://user/name."""

    onnx: Path
    """File to write, .onnx."""

    model: str = ""
    """Network of your own, module:Class, if the policy has one: code that a file names
    is imported only if you name it here."""

    ema: bool = True
    """Write the averaged weights if the checkpoint has them."""


class _OneStep(nn.Module):
    """A network for one step of N environments, without a dimension of time."""

    def __init__(self, model: PolicyModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, obs: Tensor, state: Tensor | None = None, first: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Logits and value, and the next state of a network with memory."""
        if state is None or first is None:
            state = obs.new_zeros(len(obs), 0, dtype=torch.float32)
            first = obs.new_zeros(len(obs), dtype=torch.bool)
        output, after = self.model(obs[None], state, first[None])
        result = output.logits[0], output.values[0]
        return (*result, after) if self.model.state_size else result


def export(policy: Policy, path: Path) -> None:
    """Writes the network of a policy, with its metadata.

    Raises:
        ValueError: the extra is not installed, the task is not Super Mario Bros., or
            the network has an operation that ONNX lacks.
        OSError: the file cannot be written.
    """
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript")):
        raise ValueError(
            "an ONNX file needs the packages onnx and onnxscript: "
            "pip install 'mario-envpool[onnx]'"
        )
    if not is_native(policy.env.task):
        raise ValueError(
            f"only policies for Super Mario Bros. are exported, got the task "
            f"{policy.env.task}"
        )
    import onnx

    model = copy.deepcopy(policy.model).float().eval()
    if isinstance(model, ActorCritic):
        model.native = False  # ONNX has no operations for code in C++
    rows = 3  # neither 0 nor 1, which an export may take for a constant
    arguments: list[Tensor] = [
        torch.zeros(rows, *observation_shape(policy.env), dtype=torch.uint8)
    ]
    if model.state_size:
        arguments += [torch.zeros(rows, model.state_size), torch.zeros(rows).bool()]
    count = 3 if model.state_size else 1
    # Says which packages it would also support.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter about itself
            program = torch.onnx.export(
                _OneStep(model),
                tuple(arguments),
                input_names=_INPUTS[:count],
                output_names=_OUTPUTS[: 2 + (count > 1)],
                dynamic_shapes=tuple({0: "N"} for _ in arguments),
                dynamo=True,
                verbose=False,
            )
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"the network cannot be exported: {reason}") from error
    assert program is not None
    content = program.model_proto
    _forget_sources(content)
    onnx.helper.set_model_props(content, {METADATA: json.dumps(metadata(policy))})
    with replacing(path) as file:
        file.write(content.SerializeToString())


def _forget_sources(content: Any) -> None:
    """Removes what the exporter notes of each operation: lines and paths of code."""
    graphs = [content.graph, *content.functions]
    for part in [content, *graphs, *(node for g in graphs for node in g.node)]:
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    for graph in graphs:
        for value in graph.value_info:
            value.ClearField("metadata_props")


def metadata(policy: Policy) -> dict[str, Any]:
    """What a program must know to play the policy; nothing of this machine."""
    env = policy.env
    return {
        "task": game_of(env.task),
        "options": _pool_options(env),
        "actions": list(env.actions),
        "levels": list(env.levels or own_levels(env.task)),
        "steps": policy.steps,
        "state_size": policy.model.state_size,
    }


def _pool_options(env: EnvConfig) -> dict[str, Any]:
    """Options of `mario_envpool.make` for environments like those of a run."""
    options = {name: getattr(env, name) for name in POLICY_OPTIONS}
    for name in ("img_height", "img_width"):
        options[name] = options[name] or IMAGE_SIZE
    levels = list(env.levels or own_levels(env.task))
    if levels:
        options |= {"stages": levels, "random_stages": True}
    if env.sees_tiles:
        options["obs_type"] = OBS_TYPES[env.obs]
    return options | {"custom_actions": list(env.actions)}


def _run(config: ExportConfig) -> None:
    if config.onnx.suffix != _SUFFIX:
        raise ValueError(f"--onnx writes a {_SUFFIX} file, got {config.onnx}")
    policy = load_policy(config.checkpoint, ema=config.ema, model=config.model)
    make_folder(config.onnx.absolute().parent)
    export(policy, config.onnx)
    size = config.onnx.stat().st_size / 2**20
    print(f"wrote {config.onnx}, {size:.1f} MiB", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of(ExportConfig, _run, "export", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
