"""Image encoders: uint8 pixels (N, C, H, W) to features (N, F).

`pico` and `nano` are sized for acting and learning on a CPU; `nature` is Mnih
et al. 2015; `impala` is the residual network of Espeholt et al. 2018 (figure 3,
right) with 16-32-32 channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Super Mario Bros frames are mostly one grey, the sky, near 144, and sprites
# differ little from it. Six runs of six that fed x/255 never passed the first
# goombas in 276 k steps; (x - 144) / 64 learned in the first run.
PIXEL_MEAN = 144.0
PIXEL_SCALE = 64.0


class CentredConv2d(nn.Conv2d):
    """A convolution of (pixel - 144) / 64 that never builds the centred image.

    The scale goes into the weights and the shift into the bias, a few hundred
    numbers instead of 28,224 per sample; the result is the same. Padding is
    filled with the mean, which is what zero is to a centred image.
    """

    def forward(self, pixels: Tensor) -> Tensor:
        """Maps pixels (N, C, H, W), any float type holding 0..255."""
        weight = self.weight / PIXEL_SCALE
        if torch.is_autocast_enabled(pixels.device.type):
            # Round once, so that weight and shift agree on what was rounded.
            weight = weight.to(pixels.dtype)
        shift = PIXEL_MEAN * weight.sum((1, 2, 3), dtype=torch.float32)
        assert self.bias is not None
        padding = self.padding[0]
        if padding:
            assert isinstance(padding, int)
            pixels = F.pad(pixels, (padding,) * 4, value=PIXEL_MEAN)
        return F.conv2d(pixels, weight, self.bias - shift, self.stride)


def _orthogonal(module: nn.Module, gain: float = math.sqrt(2)) -> None:
    """Orthogonal weights, zero bias (Schulman et al. 2017, as implemented)."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.orthogonal_(module.weight, gain)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, _Residual):
        # Six blocks would multiply the variance of the stem by dozens.
        nn.init.orthogonal_(module.second.weight, 0.1)


def _plain(
    shape: tuple[int, int, int], layers: list[tuple[int, int, int]], features: int
) -> nn.Sequential:
    """Convolutions of (channels, kernel, stride), then one linear layer."""
    modules: list[nn.Module] = []
    channels = shape[0]
    for i, (width, kernel, stride) in enumerate(layers):
        conv = CentredConv2d if i == 0 else nn.Conv2d
        modules += [conv(channels, width, kernel, stride), nn.ReLU()]
        channels = width
    return _with_linear(nn.Sequential(*modules, nn.Flatten()), shape, features)


def _with_linear(
    body: nn.Sequential, shape: tuple[int, int, int], features: int
) -> nn.Sequential:
    """Appends the linear layer, sized by running one image through `body`."""
    with torch.no_grad():
        try:
            flat = body(torch.zeros(1, *shape)).shape[1]
        except RuntimeError as error:
            raise ValueError(
                f"images of {shape[1]}x{shape[2]} are too small for this network; "
                "use 84x84 (img_height, img_width), or another --model"
            ) from error
    return nn.Sequential(*body, nn.Linear(flat, features), nn.ReLU())


class _Residual(nn.Module):
    """relu-conv-relu-conv, added to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to the same shape."""
        branch: Tensor = self.second(F.relu(self.first(F.relu(x))))
        return x + branch


def pico(shape: tuple[int, int, int]) -> nn.Sequential:
    """16@8x8/6, 32@3x3/2, 128 features: half of nano's arithmetic."""
    return _plain(shape, [(16, 8, 6), (32, 3, 2)], 128)


def nano(shape: tuple[int, int, int]) -> nn.Sequential:
    """16@8x8/4, 32@4x4/2, 128 features (the shape of Mnih et al. 2013)."""
    return _plain(shape, [(16, 8, 4), (32, 4, 2)], 128)


def nature(shape: tuple[int, int, int]) -> nn.Sequential:
    """32@8x8/4, 64@4x4/2, 64@3x3/1, 512 features."""
    return _plain(shape, [(32, 8, 4), (64, 4, 2), (64, 3, 1)], 512)


def impala(shape: tuple[int, int, int]) -> nn.Sequential:
    """Three stages of conv, max-pool and two residual blocks; 256 features."""
    modules: list[nn.Module] = []
    channels = shape[0]
    for i, width in enumerate((16, 32, 32)):
        conv = CentredConv2d if i == 0 else nn.Conv2d
        modules += [
            conv(channels, width, 3, padding=1),
            nn.MaxPool2d(3, 2, 1),
            _Residual(width),
            _Residual(width),
        ]
        channels = width
    body = nn.Sequential(*modules, nn.ReLU(), nn.Flatten())
    return _with_linear(body, shape, 256)


ENCODERS: dict[str, Callable[[tuple[int, int, int]], nn.Sequential]] = {
    "pico": pico,
    "nano": nano,
    "nature": nature,
    "impala": impala,
}


def build_encoder(name: str, shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
    """Builds an encoder by name.

    Args:
        name: a key of `ENCODERS`.
        shape: (C, H, W) of the images.

    Returns:
        The module and its number of features.

    Raises:
        ValueError: no such encoder, or the images are too small for it.
    """
    if name not in ENCODERS:
        raise ValueError(f"unknown model {name!r}; choose one of {', '.join(ENCODERS)}")
    encoder = ENCODERS[name](shape)
    encoder.apply(_orthogonal)
    linear = encoder[-2]
    assert isinstance(linear, nn.Linear)
    return encoder, linear.out_features
