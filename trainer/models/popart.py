"""PopArt: a value layer that keeps its outputs normalised, whatever returns are.

Source: van Hasselt et al. 2016 (arXiv:1602.07714), section 2; several outputs, one for
each task, are Hessel et al. 2019 (arXiv:1809.04474), section 3. The names are theirs:
Adaptively Rescale Targets, and Preserve Outputs Precisely while doing so.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.machine.ranks import ALONE, Ranks

# Bounds of the deviations (Hessel et al. 2019, table 2).
_LEAST, _MOST = 1e-4, 1e6


class PopArt(nn.Module):
    """Values v = std * layer(features) + mean, each output with its own mean and std.

    The critic's loss belongs on what the layer itself says: divided by `std`, the
    error of v is that of the layer against the normalised target.

    Attributes:
        mean: (L,) float32, of the targets of each output.
        std: (L,) float32, their deviation, 1 before there are any.
        known: (L,) float32, how much of both is known: the weight of all targets so
            far, 0 to 1. Without it the first ones would be averaged with nothing.
    """

    mean: Tensor
    std: Tensor
    known: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        """Normalises a layer of L outputs, which stays as it is until `update`."""
        super().__init__()
        self.layer = layer
        outputs = layer.out_features
        self.register_buffer("mean", torch.zeros(outputs))
        self.register_buffer("std", torch.ones(outputs))
        self.register_buffer("known", torch.zeros(outputs))

    def forward(self, features: Tensor) -> Tensor:
        """(N, F) to values (N, L)."""
        values: Tensor = self.layer(features)
        return values * self.std + self.mean

    def scales(self, levels: Tensor) -> Tensor:
        """The deviation of each row's output, for level numbers (...) int64."""
        return self.std[self._outputs(levels)]

    def _outputs(self, levels: Tensor) -> Tensor:
        """Which output rows have: that of their level, or the only one."""
        return levels.clamp(max=len(self.std) - 1)

    @torch.no_grad()
    def update(
        self,
        targets: Tensor,
        levels: Tensor,
        weights: Tensor,
        step: float,
        ranks: Ranks = ALONE,
    ) -> None:
        """Takes targets into the statistics; values stay what they were (`rescale`).

        The statistics are exponential moving averages over rows, in which a row has
        the weight `step` when it comes; those of one call come at once. An output
        without a row keeps what it has. Nothing here waits for the device.

        Args:
            targets: (N,) float32 returns.
            levels: (N,) int64 level of each.
            weights: (N,) float32, 0 for rows to ignore, else how many rows it is.
            step: 0 to 1, without 0.
            ranks: processes with rows of their own, whose statistics stay equal.
        """
        # A product, not a sum by index, whose order is not fixed on a GPU.
        member = F.one_hot(self._outputs(levels), len(self.std)) * weights[:, None]
        count = ranks.sum(member.sum(0))
        share = member / count.clamp(min=1e-8)
        mean = ranks.sum(share.T @ targets)
        variance = ranks.sum((share * (targets[:, None] - mean).square()).sum(0))
        moved = 1 - (1 - step) ** count
        known = self.known + moved * (1 - self.known)
        rate = moved / known.clamp(min=1e-8)
        apart = (mean - self.mean).square()
        old = torch.where(self.known > 0, self.std.square(), 0.0)
        # The same as E[x^2] - E[x]^2 of the moving averages, without its cancellation.
        new = (1 - rate) * old + rate * variance + rate * (1 - rate) * apart
        std = new.sqrt().clamp(_LEAST, _MOST)
        self.rescale(
            self.mean + rate * (mean - self.mean),
            torch.where(known > 0, std, self.std),
        )
        self.known.copy_(known)

    @torch.no_grad()
    def rescale(self, mean: Tensor, std: Tensor) -> None:
        """Changes the statistics, (L,) both, and the layer so that all values stay.

        What an output says before its first target is not worth keeping: preserved
        under a small deviation it would be a large error, long to unlearn.
        """
        old = self.known > 0
        ratio = torch.where(old, self.std / std, 1.0)
        shift = torch.where(old, (self.mean - mean) / std, 0.0)
        for name, param in self.layer.named_parameters():
            # Those of noisy layers, too: weight_sigma, bias_sigma.
            param.mul_(ratio[:, None] if param.ndim == 2 else ratio)
            if name == "bias":
                param.add_(shift)
        self.mean.copy_(mean)
        self.std.copy_(std)
