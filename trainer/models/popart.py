"""PopArt: a value layer whose outputs are normalised, whatever the scale of returns.

Source: van Hasselt et al. 2016 (arXiv:1602.07714), section 2; for several outputs, one
per task, Hessel et al. 2019 (arXiv:1809.04474), section 3. The name is theirs:
Preserving Outputs Precisely, while Adaptively Rescaling Targets.
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

    The critic's loss applies to the layer's own output: divided by `std`, the error of
    v is the error of the layer against the normalised target.

    Attributes:
        mean: (L,) float32, mean of the targets of each output.
        std: (L,) float32, deviation of the targets, 1 before the first target.
        known: (L,) float32, total weight of all targets so far in the moving averages,
            0 to 1, which corrects the averages of the first targets.
    """

    mean: Tensor
    std: Tensor
    known: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        """Wraps a layer of L outputs, which does not change before `update`."""
        super().__init__()
        self.layer = layer
        outputs = layer.out_features
        self.register_buffer("mean", torch.zeros(outputs))
        self.register_buffer("std", torch.ones(outputs))
        self.register_buffer("known", torch.zeros(outputs))

    def forward(self, features: Tensor) -> Tensor:
        """Maps (N, F) to values (N, L)."""
        values: Tensor = self.layer(features)
        return values * self.std + self.mean

    def scales(self, levels: Tensor) -> Tensor:
        """The deviation of each row's output, for level numbers (...) int64."""
        return self.std[self._outputs(levels)]

    def _outputs(self, levels: Tensor) -> Tensor:
        """The output index of each row: that of its level, or 0 for a single output."""
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
        """Updates the statistics with targets; values do not change (`rescale`).

        The statistics are exponential moving averages over rows, in which a new row has
        the weight `step`; all rows of one call are averaged first. The statistics of an
        output without rows do not change. Nothing here waits for the device.

        Args:
            targets: (N,) float32 returns.
            levels: (N,) int64 level of each row.
            weights: (N,) float32 number of rows that each row counts for; 0 to ignore.
            step: above 0, at most 1.
            ranks: processes with separate rows, whose statistics stay equal.
        """
        # A product, because the order of a sum by index is not fixed on a GPU.
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
        # Equals E[x^2] - E[x]^2 of the moving averages, without its cancellation.
        new = (1 - rate) * old + rate * variance + rate * (1 - rate) * apart
        std = new.sqrt().clamp(_LEAST, _MOST)
        self.rescale(
            self.mean + rate * (mean - self.mean),
            torch.where(known > 0, std, self.std),
        )
        self.known.copy_(known)

    @torch.no_grad()
    def rescale(self, mean: Tensor, std: Tensor) -> None:
        """Changes the statistics, (L,) both, and the layer, so that values stay equal.

        The values of an output before its first target are not preserved: under a small
        deviation they would be a large error that takes long to unlearn.
        """
        old = self.known > 0
        ratio = torch.where(old, self.std / std, 1.0)
        shift = torch.where(old, (self.mean - mean) / std, 0.0)
        for name, param in self.layer.named_parameters():
            # This includes weight_sigma and bias_sigma of noisy layers.
            param.mul_(ratio[:, None] if param.ndim == 2 else ratio)
            if name == "bias":
                param.add_(shift)
        self.mean.copy_(mean)
        self.std.copy_(std)
