"""Image encoders: uint8 pixels (N, C, H, W) to features (N, F).

`cnn-72k`, `cnn-157k` and `cnn-345k` are named by their number of parameters and sized
for acting and learning on a CPU, `cnn-72k` for images of 40x40. `nature` is Mnih et al.
2015. `impala` is the residual network of Espeholt et al. 2018 (figure 3, right) with
16-32-32 channels. `convnext` has the blocks of Liu et al. 2022 in three stages that fit
84x84.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config.schema import TILES_SHAPE, ModelConfig
from trainer.models.tiles import TilesEncoder

# Frames of Super Mario Bros. are mostly one grey near 144, the sky, and sprites differ
# little from it. With x / 255 as the input, six of six runs did not pass the first
# goombas in 276 k steps; with (x - 144) / 64 the first run learned.
PIXEL_MEAN = 144.0
PIXEL_SCALE = 64.0

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


def _plain(
    channels: int, widths: tuple[int, ...], kernels: tuple[tuple[int, int], ...]
) -> list[nn.Module]:
    """Convolutions with kernels of (size, stride), each with a ReLU."""
    modules: list[nn.Module] = []
    for i, (width, (size, stride)) in enumerate(zip(widths, kernels, strict=True)):
        conv = nn.Conv2d if i else CentredConv2d
        modules += [conv(channels, width, size, stride), nn.ReLU()]
        channels = width
    return modules


def _impala(channels: int, widths: tuple[int, ...], blocks: int) -> list[nn.Module]:
    """Stages of a convolution, a max-pool that halves, and residual blocks."""
    modules: list[nn.Module] = []
    for i, width in enumerate(widths):
        conv = nn.Conv2d if i else CentredConv2d
        modules += [conv(channels, width, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
        modules += [_Residual(width) for _ in range(blocks)]
        channels = width
    return [*modules, nn.ReLU()]


def _convnext(channels: int, widths: tuple[int, ...], blocks: int) -> list[nn.Module]:
    """A stem of 4x4 patches, then stages of blocks with 2x2 patches between."""
    modules: list[nn.Module] = []
    for i, width in enumerate(widths):
        if i:
            modules += [_ChannelNorm(channels), nn.Conv2d(channels, width, 2, 2)]
        else:
            modules += [CentredConv2d(channels, width, 4, 4), _ChannelNorm(width)]
        modules += [_ConvNeXt(width) for _ in range(blocks)]
        channels = width
    return [*modules, _ChannelNorm(channels)]


class _Plan(NamedTuple):
    """An encoder's defaults; plain encoders have `kernels`, the others `blocks`."""

    widths: tuple[int, ...]
    features: int
    kernels: tuple[tuple[int, int], ...] = ()
    blocks: int = 0


ENCODERS = {
    "cnn-72k": _Plan((16, 32), 128, kernels=((4, 4), (3, 2))),  # for 40x40
    "cnn-157k": _Plan((16, 32), 128, kernels=((8, 6), (3, 2))),  # half the work
    "cnn-345k": _Plan((16, 32), 128, kernels=((8, 4), (4, 2))),  # Mnih et al. 2013
    "nature": _Plan((32, 64, 64), 512, kernels=((8, 4), (4, 2), (3, 1))),
    "impala": _Plan((16, 32, 32), 256, blocks=2),
    "convnext": _Plan((32, 64, 96), 256, blocks=2),
    "tiles": _Plan((16, 32), 128),  # no pixels: tiles and motion
}


def build_encoder(config: ModelConfig, shape: Shape) -> tuple[nn.Sequential, int]:
    """Builds an encoder by its name.

    Args:
        config: `name` is a key of `ENCODERS`; widths, blocks and features replace its
            defaults, layer_norm normalises the output of the last layer.
        shape: (C, H, W) of the images.

    Returns:
        The module and its number of features F.

    Raises:
        ValueError: the encoder does not exist, the images are too small for it, or it
            does not have an option.
    """
    plan = _customised(config)
    if config.name == "tiles":
        return _tiles(config, plan, shape), plan.features
    if plan.kernels:
        modules = _plain(shape[0], plan.widths, plan.kernels)
    else:
        stages = _impala if config.name == "impala" else _convnext
        modules = stages(shape[0], plan.widths, plan.blocks)
    modules.append(nn.Flatten())
    modules.append(nn.Linear(_flat_size(modules, shape), plan.features))
    if config.layer_norm:
        modules.append(nn.LayerNorm(plan.features))
    encoder = nn.Sequential(*modules, nn.ReLU())
    encoder.apply(_orthogonal)
    return encoder, plan.features


def _tiles(config: ModelConfig, plan: _Plan, shape: Shape) -> nn.Sequential:
    """The encoder of tiles, with layer_norm if the config has it."""
    if shape != TILES_SHAPE:
        raise ValueError(
            f"the network tiles needs --obs tiles, of shape {TILES_SHAPE}, but the "
            f"observations have shape {shape}"
        )
    encoder = nn.Sequential(TilesEncoder(plan.widths, plan.features))
    if config.layer_norm:
        encoder.append(nn.LayerNorm(plan.features))
    encoder.apply(_orthogonal)
    return encoder


def _customised(config: ModelConfig) -> _Plan:
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
            "impala or convnext"
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


def _flat_size(modules: list[nn.Module], shape: Shape) -> int:
    """Numbers per image in the output of `modules`, found by running one image."""
    try:
        with torch.no_grad():
            flat: Tensor = nn.Sequential(*modules)(torch.zeros(1, *shape))
    except RuntimeError as error:
        raise ValueError(
            f"images of {shape[1]}x{shape[2]} are too small for this network; "
            "use 84x84 (img_height, img_width), fewer widths, or another --model"
        ) from error
    return flat.shape[1]


def _orthogonal(module: nn.Module, gain: float = math.sqrt(2)) -> None:
    """Orthogonal weights, zero bias (Schulman et al. 2017, as implemented)."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.orthogonal_(module.weight, gain)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, _Residual):
        # Six blocks would multiply the variance of the stem by several dozen.
        nn.init.orthogonal_(module.second.weight, 0.1)
