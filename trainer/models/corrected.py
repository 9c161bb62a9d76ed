"""A network with a table of corrections: what else to do where it would die.

`tuning/corrections.py` finds such a table. The network then takes the actions of the
table where observations look like those of the table, and teaches them to a student
that plays all levels (`tuning/one_network.py`). A policy's file may have a table beside
the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.models.actor_critic import ActorCritic, PolicyModel, PolicyOutput

_PREFIX = "corrections."


class Table(NamedTuple):
    """Corrections of a network.

    Attributes:
        obs: (N, C, H, W) uint8.
        actions: (N,) int64, what to do where features are like those of `obs`.
        alike: () float32, the distance below which features are alike.
    """

    obs: Tensor
    actions: Tensor
    alike: Tensor

    def weights(self) -> dict[str, Tensor]:
        """The table as weights of a policy's file."""
        return {_PREFIX + name: value for name, value in self._asdict().items()}


def split(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Table | None]:
    """The weights of a network, and its table if there is one.

    Raises:
        ValueError: parts of the table are missing.
    """
    own = {name: w for name, w in weights.items() if not name.startswith(_PREFIX)}
    if len(own) == len(weights):
        return own, None
    names = [_PREFIX + name for name in Table._fields]
    if sorted({*weights} - {*own}) != sorted(names):
        raise ValueError(f"a table of corrections has {', '.join(names)}")
    return own, Table(*(weights[name] for name in names))


def apply(
    logits: Tensor,
    features: Tensor,
    table: Tensor,
    actions: Tensor,
    alike: Tensor | float,
) -> Tensor:
    """Logits (N, A), but certain of the actions of a table where features are alike.

    Args:
        logits: of the network.
        features: (N, F) of its observations.
        table: (M, F), features of the table's observations.
        actions: (M,) int64, its actions.
        alike: as in `Table`.
    """
    distance, nearest = torch.cdist(features, table).min(1)
    certain = F.one_hot(actions[nearest], logits.shape[1]).to(logits.dtype).log()
    return torch.where((distance < alike)[:, None], certain, logits)


class Corrected(PolicyModel):
    """A network without memory, and its table."""

    actions: Tensor
    alike: Tensor
    table: Tensor

    def __init__(
        self, network: PolicyModel, table: Table, shape: tuple[int, ...], actions: int
    ) -> None:
        """Takes a network for observations of a shape; its table moves to its device.

        Raises:
            ValueError: the table does not fit the network.
        """
        super().__init__()
        if not isinstance(network, ActorCritic) or network.state_size:
            raise ValueError("corrections need an ActorCritic without memory")
        count = len(table.actions) if table.actions.ndim else 0
        for name, value, kind, wanted in (
            ("actions", table.actions, torch.int64, (max(1, count),)),
            ("obs", table.obs, torch.uint8, (count, *shape)),
            ("alike", table.alike, torch.float32, ()),
        ):
            if value.dtype != kind or value.shape != wanted:
                raise ValueError(
                    f"{_PREFIX}{name} is {value.dtype} {tuple(value.shape)}, but must "
                    f"be {kind} {wanted}"
                )
        if not 0 <= int(table.actions.min()) <= int(table.actions.max()) < actions:
            raise ValueError(f"{_PREFIX}actions must be 0 to {actions - 1}")
        if not table.alike > 0:
            raise ValueError(f"{_PREFIX}alike must be above 0, got {table.alike:g}")
        self.network: ActorCritic = network
        device = next(network.parameters()).device
        self.register_buffer("actions", table.actions.to(device))
        self.register_buffer("alike", table.alike.to(device))
        # On the CPU, where what no embedding has raises an error.
        encoder = copy.deepcopy(network.encoder).cpu()
        try:
            with torch.no_grad():
                features = encoder(table.obs.cpu().float())
        except IndexError:
            raise ValueError(f"{_PREFIX}obs has values that no tile has") from None
        self.register_buffer("table", features.to(device))

    def forward(
        self, obs: Tensor, state: Tensor, first: Tensor
    ) -> tuple[PolicyOutput, Tensor]:
        """See `PolicyModel.forward`."""
        output, state = self.network(obs, state, first)
        # In float32, as in the search for the table.
        with torch.autocast(obs.device.type, enabled=False):
            features = self.network.encoder(obs.flatten(0, 1).float())
        logits = apply(
            output.logits.flatten(0, 1),
            features,
            self.table,
            self.actions,
            self.alike,
        )
        return output._replace(logits=logits.view_as(output.logits)), state
