"""The critic's outputs per level, when a run continues with other levels.

Each known level keeps its output; the output of a new level begins with the mean
weights and statistics of all old outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

# The critic's layer in an ActorCritic, and its buffers that are drawn again, not moved.
_VALUE, _NOISE = "head.value.", "noise_out"


def sources(
    old: Sequence[str], old_outputs: int, new: Sequence[str], new_outputs: int
) -> list[list[int]]:
    """For each new output, the old outputs whose mean it begins with.

    Args:
        old: levels of the checkpoint.
        old_outputs: outputs of its critic: one per level, or 1.
        new: levels of the continued run.
        new_outputs: outputs of its critic: one per level, or 1.

    Returns:
        For each new output, the indices of old outputs.
    """
    known = list(old) if old_outputs > 1 else []
    own = list(new) if new_outputs > 1 or len(new) == 1 else [""]
    everything = list(range(old_outputs))
    return [[known.index(n)] if n in known else everything for n in own]


def move(
    state: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    parts: Sequence[Sequence[int]],
) -> None:
    """Rewrites a checkpoint's state in place: weights, averages and moments.

    Args:
        state: state of a run's checkpoint.
        model: network of the continued run.
        optimizer: optimiser of the continued run.
        parts: old outputs of each new output, from `sources`.

    Raises:
        ValueError: the network is not an ActorCritic, so its outputs are unknown.
    """
    if not any(name.startswith(_VALUE) for name in state["model"]):
        raise ValueError(
            "a custom network can only continue with the levels of its checkpoint, "
            "because it is unknown which of its weights belong to a level: choose the "
            "same levels"
        )
    learner = state["learner"]
    named = (state["model"], learner["ema"])
    for tensors in (*named, learner["buffers"]):
        for name in [n for n in tensors or {} if n.startswith(_VALUE)]:
            if name.endswith(_NOISE):
                del tensors[name]
            elif not name.endswith("noise_in"):
                tensors[name] = _moved(tensors[name], parts)
    for moments in _moments(learner["optimizer"], model, optimizer):
        for name, value in moments.items():
            if isinstance(value, Tensor) and value.ndim:
                moments[name] = _moved(value, parts)


def _moved(rows: Tensor, parts: Sequence[Sequence[int]]) -> Tensor:
    """Means of rows."""
    return torch.stack([rows[list(part)].mean(0) for part in parts])


def _moments(
    state: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[dict[str, Any]]:
    """The optimiser's moments of each parameter of the critic's layer."""
    names = {param: name for name, param in model.named_parameters()}
    for own, saved in zip(optimizer.param_groups, state["param_groups"], strict=False):
        for param, number in zip(own["params"], saved["params"], strict=False):
            if names[param].startswith(_VALUE) and number in state["state"]:
                yield state["state"][number]
