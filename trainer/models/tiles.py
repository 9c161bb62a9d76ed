"""The encoder of tiles and motion, as trainer/envs/tiles.py packs them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config.schema import TILES_ROWS

CODES = 32  # more than there are
CODE_SIZE = 8
THINGS = 8  # rows of motion, of six numbers
# Of x, y, speed to the right, speed down, state: what brings them near 1.
SCALES = (32.0, 32.0, 24.0, 4.0, 4.0)


class TilesEncoder(nn.Module):
    """Embedded tiles through two convolutions; motion joins them in the last layer.

    Args:
        widths: channels of the two convolutions.
        features: F.
    """

    scales: Tensor

    def __init__(self, widths: tuple[int, ...], features: int) -> None:
        super().__init__()
        first, second = widths
        self.codes = nn.Embedding(CODES, CODE_SIZE)
        self.cells = nn.Sequential(
            nn.Conv2d(CODE_SIZE, first, 3, 2, padding=1),
            nn.ReLU(),
            nn.Conv2d(first, second, (3, 4), 2),  # of 7 x 8, to the last column
            nn.ReLU(),
            nn.Flatten(),
        )
        size = second * 3 * 3 + THINGS * (CODE_SIZE + len(SCALES))
        self.join = nn.Linear(size, features)
        scales = torch.tensor(SCALES).reciprocal()
        self.register_buffer("scales", scales, persistent=False)

    def forward(self, frames: Tensor) -> Tensor:
        """Maps bytes (N, 1, 16, 16), any float type, to (N, F)."""
        cells = frames[:, 0, :TILES_ROWS].long()
        embedded = self.codes(cells).permute(0, 3, 1, 2).to(frames.dtype)
        motion = frames[:, 0, TILES_ROWS:].reshape(-1, THINGS, 6)
        things = self.codes(motion[..., 0].long()).to(frames.dtype)
        # The bytes are those of signed numbers.
        numbers = motion[..., 1:]
        numbers = torch.where(numbers > 127, numbers - 256, numbers) * self.scales
        joined = torch.cat(
            [
                self.cells(embedded),
                things.flatten(1),
                numbers.to(frames.dtype).flatten(1),
            ],
            1,
        )
        return F.relu(self.join(joined))
