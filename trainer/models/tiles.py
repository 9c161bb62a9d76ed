"""The encoder of tiles and motion, as trainer/envs/tiles.py packs them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mario_envpool.tiles import NAMES
from trainer.config.schema import TILES_ROWS

CODES = 32  # more than the number of tile codes
CODE_SIZE = 8
THINGS = 8  # rows of motion, of six numbers
# Maps of enemies near Mario, one for now and one for some frames ahead, with cells of
# 8 pixels.
HURTS = (NAMES.index("enemy"), NAMES.index("danger"))
FRAMES_AHEAD = (0, 8)
NEAR_CELL, NEAR_SIDE = 8, 12
NEAR_LEFT, NEAR_TOP = -32, -48  # the first cells' middles, pixels from Mario
NEAR = len(FRAMES_AHEAD) * NEAR_SIDE * NEAR_SIDE
# Divisors that bring x, y, speed to the right, speed down and state near 1.
SCALES = (32.0, 32.0, 24.0, 48.0, 4.0)


class TilesEncoder(nn.Module):
    """Embedded tiles through two convolutions; motion joins them in the last layer.

    Motion enters as numbers, and as maps of dangerous things near Mario. Whether two
    things will collide depends on single pixels and on both coordinates, which one
    layer hardly learns from the numbers.

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
        size = second * 3 * 3 + THINGS * (CODE_SIZE + len(SCALES)) + NEAR
        self.join = nn.Linear(size, features)
        scales = torch.tensor(SCALES).reciprocal()
        self.register_buffer("scales", scales, persistent=False)

    def forward(self, frames: Tensor) -> Tensor:
        """Maps bytes (N, 1, 16, 16), any float type, to (N, F)."""
        cells = frames[:, 0, :TILES_ROWS].long()
        embedded = self.codes(cells).permute(0, 3, 1, 2).to(frames.dtype)
        motion = frames[:, 0, TILES_ROWS:].reshape(-1, THINGS, 6)
        things = self.codes(motion[..., 0].long()).to(frames.dtype)
        # The bytes are signed numbers.
        numbers = motion[..., 1:]
        numbers = torch.where(numbers > 127, numbers - 256, numbers) * self.scales
        joined = torch.cat(
            [
                self.cells(embedded),
                things.flatten(1),
                numbers.to(frames.dtype).flatten(1),
                near_maps(motion).to(frames.dtype),
            ],
            1,
        )
        return F.relu(self.join(joined))


def near_maps(motion: Tensor) -> Tensor:
    """Maps of dangerous things near Mario, now and some frames ahead.

    A thing is spread over the four cells around its corner by its distance from their
    middles, which keeps its position to the pixel. If several things share a cell, the
    largest share counts.

    Args:
        motion: (N, 8, 6) bytes of signed numbers, of any type; Mario's row first.

    Returns:
        (N, NEAR) float32, 0 to 1: for each of `FRAMES_AHEAD` 12 rows of 12 cells.
    """
    numbers = motion.to(torch.int32)
    numbers = torch.where(numbers > 127, numbers - 256, numbers)
    mario, things = numbers[:, :1], numbers[:, 1:]
    hurts = (things[..., 0] == HURTS[0]) | (things[..., 0] == HURTS[1])
    cells = NEAR_CELL * torch.arange(NEAR_SIDE, device=motion.device)
    maps = []
    for frames in FRAMES_AHEAD:
        # Speeds are in 1/16 pixel per frame.
        moved = things[..., 1:3] + ((things - mario)[..., 3:5] * frames >> 4)
        x, y = moved[..., :1] - NEAR_LEFT, moved[..., 1:] - NEAR_TOP
        columns = (NEAR_CELL - (x - cells).abs()).clamp_min(0)
        rows = (NEAR_CELL - (y - cells).abs()).clamp_min(0) * hurts[..., None]
        maps.append((rows[..., :, None] * columns[..., None, :]).amax(1).flatten(1))
    return torch.cat(maps, 1) / NEAR_CELL**2
