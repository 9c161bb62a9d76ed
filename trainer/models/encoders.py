"""Encoders: uint8 pixels (N, C, H, W), or tiles and motion, to features (N, F).

`cnn-72k`, `cnn-157k` and `cnn-345k` are named by their number of parameters and sized
for acting and learning on a CPU, `cnn-72k` for images of 40x40. `nature` is Mnih et al.
2015. `impala` is the residual network of Espeholt et al. 2018 (figure 3, right) with
16-32-32 channels. `convnext` has the blocks of Liu et al. 2022 in three stages that fit
84x84. `tiles` takes what trainer/envs/pool.py packs.

To add an encoder, write a function such as `_impala` that builds its modules, and name
it in `ENCODERS` and in the help of `--model` (trainer/config/network.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mario_envpool.tiles import NAMES
from trainer.config.schema import TILES_ROWS, TILES_SHAPE, ModelConfig

# Frames of Super Mario Bros. are mostly one grey near 144, the sky, and sprites differ
# little from it. With x / 255 as the input, six of six runs did not pass the first
# goombas in 276 k steps; with (x - 144) / 64 the first run learned.
PIXEL_MEAN = 144.0
PIXEL_SCALE = 64.0

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

Shape = tuple[int, int, int]


class CentredConv2d(nn.Conv2d):
    """A convolution of (pixel - 144) / 64 that never builds the centred image.

    The scale is applied to the weights and the shift to the bias, a few hundred
    numbers instead of 28,224 per sample; the result is the same. The padding value is
    the mean, which is zero in a centred image.
    """

    def forward(self, pixels: Tensor) -> Tensor:
        """Maps pixels (N, C, H, W), any float type holding 0..255."""
        weight = self.weight / PIXEL_SCALE
        if not pixels.is_meta and torch.is_autocast_enabled(pixels.device.type):
            # Round once, so that weight and shift use the same rounded numbers.
            weight = weight.to(pixels.dtype)
        shift = PIXEL_MEAN * weight.sum((1, 2, 3), dtype=torch.float32)
        assert self.bias is not None
        padding = self.padding[0]
        if padding:
            assert isinstance(padding, int)
            pixels = F.pad(pixels, (padding,) * 4, value=PIXEL_MEAN)
        return F.conv2d(pixels, weight, self.bias - shift, self.stride)


class _Residual(nn.Module):
    """A residual block: relu-conv-relu-conv, added to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to the same shape."""
        branch: Tensor = self.second(F.relu(self.first(F.relu(x))))
        return x + branch


class _ConvNeXt(nn.Module):
    """Depthwise 7x7, norm, an MLP of four times the width (Liu et al. 2022, fig. 4)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand = nn.Linear(channels, 4 * channels)
        self.reduce = nn.Linear(4 * channels, channels)
        # 0.1 is for networks of up to 18 blocks (Touvron et al. 2021, section 2).
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to the same shape."""
        y = self.norm(self.mix(x).permute(0, 2, 3, 1))
        y = self.reduce(F.gelu(self.expand(y)))
        # Under autocast the product, and everything after it, would be float32.
        branch: Tensor = self.scale.to(y.dtype) * y
        return x + branch.permute(0, 3, 1, 2)


class _ChannelNorm(nn.LayerNorm):
    """Normalises the channels of each pixel of (N, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to the same shape."""
        y: Tensor = super().forward(x.permute(0, 2, 3, 1))
        return y.permute(0, 3, 1, 2)


class TilesEncoder(nn.Module):
    """Embedded tiles through two convolutions; motion joins them in the last layer.

    Motion enters as numbers, and as maps of dangerous things near Mario. Whether two
    things will collide depends on single pixels and on both coordinates, which one
    layer hardly learns from the numbers.
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
    """Maps of dangerous things near Mario: motion (N, 8, 6) to (N, NEAR), 0 to 1.

    A thing is spread over the four cells around its corner by its distance from their
    middles, which keeps its position to the pixel. If several things share a cell, the
    largest share counts. There are 12 rows of 12 cells for each of `FRAMES_AHEAD`.
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


class EncoderPlan(NamedTuple):
    """How an encoder is built, and the defaults of its options."""

    modules: Callable[[Shape, EncoderPlan, list[nn.Module]], list[nn.Module]]
    widths: tuple[int, ...]
    features: int
    kernels: tuple[tuple[int, int], ...] = ()  # (size, stride)
    blocks: int = 0
    # PyTorch's bf16 convolutions on a CPU run networks of many small kernels faster
    # with the channels last: impala trains in half of the time and acts in a third;
    # cnn-157k and cnn-345k would take 1.2 to 1.6 times as long.
    channels_last_on_cpu: bool = False


def _plain(shape: Shape, plan: EncoderPlan, norm: list[nn.Module]) -> list[nn.Module]:
    """Convolutions, each with a ReLU."""
    modules: list[nn.Module] = []
    channels = pairwise((shape[0], *plan.widths))
    for in_out, (size, stride) in zip(channels, plan.kernels, strict=True):
        conv = nn.Conv2d if modules else CentredConv2d
        modules += [conv(*in_out, size, stride), nn.ReLU()]
    return _with_linear(modules, shape, plan, norm)


def _impala(shape: Shape, plan: EncoderPlan, norm: list[nn.Module]) -> list[nn.Module]:
    """Stages of a convolution, a max-pool that halves, and residual blocks."""
    modules: list[nn.Module] = []
    for channels, width in pairwise((shape[0], *plan.widths)):
        conv = nn.Conv2d if modules else CentredConv2d
        modules += [conv(channels, width, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
        modules += [_Residual(width) for _ in range(plan.blocks)]
    return _with_linear([*modules, nn.ReLU()], shape, plan, norm)


def _convnext(
    shape: Shape, plan: EncoderPlan, norm: list[nn.Module]
) -> list[nn.Module]:
    """A stem of 4x4 patches, then stages of blocks with 2x2 patches between."""
    modules: list[nn.Module] = []
    for channels, width in pairwise((shape[0], *plan.widths)):
        if modules:
            modules += [_ChannelNorm(channels), nn.Conv2d(channels, width, 2, 2)]
        else:
            modules += [CentredConv2d(channels, width, 4, 4), _ChannelNorm(width)]
        modules += [_ConvNeXt(width) for _ in range(plan.blocks)]
    return _with_linear([*modules, _ChannelNorm(plan.widths[-1])], shape, plan, norm)


def _with_linear(
    modules: list[nn.Module], shape: Shape, plan: EncoderPlan, norm: list[nn.Module]
) -> list[nn.Module]:
    """Adds the layer of the features; running one image gives its number of inputs."""
    modules.append(nn.Flatten())
    try:
        with torch.no_grad():
            flat: Tensor = nn.Sequential(*modules)(torch.zeros(1, *shape))
    except RuntimeError as error:
        raise ValueError(
            f"images of {shape[1]}x{shape[2]} are too small for this network; "
            "use 84x84 (img_height, img_width), fewer widths, or another --model"
        ) from error
    return [*modules, nn.Linear(flat.shape[1], plan.features), *norm, nn.ReLU()]


def _tiles(shape: Shape, plan: EncoderPlan, norm: list[nn.Module]) -> list[nn.Module]:
    """The encoder of tiles and motion, which ends with its own linear layer."""
    if shape != TILES_SHAPE:
        raise ValueError(
            f"the network tiles needs --obs tiles or tiles+world, of shape "
            f"{TILES_SHAPE}, but the observations have shape {shape}"
        )
    return [TilesEncoder(plan.widths, plan.features), *norm]


ENCODERS = {
    "cnn-72k": EncoderPlan(_plain, (16, 32), 128, ((4, 4), (3, 2))),  # for 40x40
    "cnn-157k": EncoderPlan(_plain, (16, 32), 128, ((8, 6), (3, 2))),  # less work
    "cnn-345k": EncoderPlan(_plain, (16, 32), 128, ((8, 4), (4, 2))),  # Mnih 2013
    "nature": EncoderPlan(_plain, (32, 64, 64), 512, ((8, 4), (4, 2), (3, 1))),
    "impala": EncoderPlan(
        _impala, (16, 32, 32), 256, blocks=2, channels_last_on_cpu=True
    ),
    "convnext": EncoderPlan(
        _convnext, (32, 64, 96), 256, blocks=2, channels_last_on_cpu=True
    ),
    "tiles": EncoderPlan(_tiles, (16, 32), 128),
}


def build_encoder(config: ModelConfig, shape: Shape) -> tuple[nn.Sequential, int]:
    """The encoder that `config` names, for images (C, H, W), and its features F."""
    plan = _customised(config)
    norm: list[nn.Module] = [nn.LayerNorm(plan.features)] if config.layer_norm else []
    encoder = nn.Sequential(*plan.modules(shape, plan, norm))
    encoder.apply(_orthogonal)
    return encoder, plan.features


def _customised(config: ModelConfig) -> EncoderPlan:
    """The encoder's defaults, replaced by the config's values."""
    name = config.name
    if name not in ENCODERS:
        raise ValueError(
            f"unknown model {name!r}; choose one of {', '.join(ENCODERS)}, or give a "
            "custom model as module:Class"
        )
    plan = ENCODERS[name]
    if min(config.features, config.blocks, *config.widths, 0) < 0 or 0 in config.widths:
        raise ValueError(
            f"widths={config.widths}, blocks={config.blocks} and features="
            f"{config.features} must be positive (0 blocks or features: the default of "
            f"{name})"
        )
    if config.blocks and not plan.blocks:
        raise ValueError(
            f"blocks={config.blocks}, but {name} has no blocks; leave blocks 0, or use "
            + " or ".join(name for name, plan in ENCODERS.items() if plan.blocks)
        )
    if config.widths and not plan.blocks and len(config.widths) != len(plan.widths):
        raise ValueError(
            f"widths={config.widths}, but {name} has {len(plan.widths)} convolutions; "
            f"give one width each, such as the default {plan.widths}"
        )
    return plan._replace(
        widths=config.widths or plan.widths,
        features=config.features or plan.features,
        blocks=config.blocks or plan.blocks,
    )


def _orthogonal(module: nn.Module) -> None:
    """Orthogonal weights, zero bias (Schulman et al. 2017, as implemented)."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.orthogonal_(module.weight, math.sqrt(2))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, _Residual):
        # Six blocks would multiply the variance of the stem by several dozen.
        nn.init.orthogonal_(module.second.weight, 0.1)
