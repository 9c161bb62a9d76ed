"""The critic's outputs of levels, when a run goes on with other levels.

Each level keeps the output that it had; one of a level that was not there begins with
the means of all others' weights and statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

# The critic's layer in an ActorCritic, and what is drawn anew instead of moved.
_VALUE, _NOISE = "head.value.", "noise_out"


def sources(
    old: Sequence[str], old_outputs: int, new: Sequence[str], new_outputs: int
) -> list[list[int]]:
    """Which old outputs each new one begins as the mean of.

    Args:
        old: levels of the checkpoint.
        old_outputs: of its critic: one of each level, or 1.
        new: levels of the run that goes on.
        new_outputs: of its critic, likewise.

    Returns:
        Of each new output numbers of old ones.
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
        state: of a run's checkpoint.
        model: the network of the run that goes on.
        optimizer: its optimiser.
        parts: of each output, as of `sources`.

    Raises:
        ValueError: the network is no ActorCritic, whose outputs are known.
    """
    if not any(name.startswith(_VALUE) for name in state["model"]):
        raise ValueError(
            "this network of your own goes on with the levels of its checkpoint only: "
            "which of its weights belong to a level is not known"
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
    """What an optimiser keeps of each parameter of the critic's layer."""
    names = {param: name for name, param in model.named_parameters()}
    for own, saved in zip(optimizer.param_groups, state["param_groups"], strict=False):
        for param, number in zip(own["params"], saved["params"], strict=False):
            if names[param].startswith(_VALUE) and number in state["state"]:
                yield state["state"][number]
