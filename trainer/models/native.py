"""Encoders on a CPU in native code (csrc/encoders): uint8 images to features.

The native code replaces the small encoders' PyTorch operators on a CPU in bfloat16. It
rounds the values that autocast rounds: inputs, weights, activations except the
features, and the gradients of activations. Sums are float32 as in PyTorch, but in
another order. Numbers below 2^-55 count as 0. The modules and their parameters do not
change: every call reads the weights in place. A module may be replaced, but the options
of a layer, such as its stride, must stay.

PyTorch runs all encoders that the native code does not support.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from trainer.config.schema import TILES_SHAPE
from trainer.models.encoders import (
    CODE_SIZE,
    CODES,
    NEAR,
    SCALES,
    THINGS,
    CentredConv2d,
    TilesEncoder,
)

try:
    from trainer import _native
except ImportError:  # not built
    PATHS: list[str] = []
    BEST: str | None = None
else:
    PATHS = _native.paths()
    BEST = _native.best_path()

# Dilation, groups and padding mode of the convolutions that the native code supports.
_PLAIN = ((1, 1), 1, "zeros")

# A module, the name of its parameter, and the parameter's shape.
_Weight = tuple[nn.Module, str, tuple[int, ...]]


class _Plan(NamedTuple):
    """How the native code runs an encoder on images of one shape."""

    forward: Callable[..., None]
    backward: Callable[..., None]
    shape: tuple[int, ...]  # arguments of `forward` and `backward`
    map_size: int  # numbers per image after the first convolution
    inputs: int  # of the linear layer, per image
    features: int
    weights: tuple[_Weight, ...]  # in the order of the native code
    scales: tuple[Tensor, ...] = ()  # without a gradient
    rest: tuple[nn.Module, ...] = ()  # after the linear layer; PyTorch runs them


# For each encoder: the modules below it and the shape of an image when the plan was
# made, and the plan. Not the encoder, so that it can be freed.
_plans: WeakKeyDictionary[
    nn.Module, tuple[list[nn.Module], torch.Size, _Plan | None]
] = WeakKeyDictionary()


def features_of(
    encoder: nn.Module, images: Tensor, path: str | None = BEST
) -> Tensor | None:
    """Features (N, F) float32 of uint8 images; None if native code does not compute it.

    `path` is an instruction set from `PATHS`; None: do not use native code.
    """
    on = torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
    if not on or torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return None
    passes = _passes_of(encoder, images, path)
    if passes is None:
        return None
    images = images.contiguous()
    if torch.is_grad_enabled() and any(w.requires_grad for w in passes.weights):
        result: Tensor = _Encode.apply(passes, images, *passes.weights)  # type: ignore[no-untyped-call]
    else:
        result = passes.features(images)
    for module in passes.plan.rest:
        result = module(result)
    return result


def computes(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether native code runs a whole network, except the heads, on this CPU."""
    return (
        getattr(model, "native", False)
        and getattr(model, "memory", None) is None
        and isinstance(encoder := getattr(model, "encoder", None), nn.Module)
        and EncoderPass.of(encoder, shape) is not None
    )


class EncoderPass(NamedTuple):
    """The two passes of an encoder without autograd, for PPO's native gradient."""

    plan: _Plan
    path: str
    weights: list[Tensor]  # parameters that get gradients, in the order of `backward`

    @classmethod
    def of(
        cls, encoder: nn.Module, shape: tuple[int, ...], path: str | None = BEST
    ) -> EncoderPass | None:
        """The passes for images (C, H, W); None unless the whole encoder is supported.

        The encoder's parameters must not move in memory.
        """
        passes = _passes_of(encoder, torch.empty(0, *shape, dtype=torch.uint8), path)
        return None if passes is None or passes.plan.rest else passes

    def features(
        self, images: Tensor, maps: Tensor | None = None, inputs: Tensor | None = None
    ) -> Tensor:
        """Features (N, F) float32; writes the activations to `maps` and `inputs`."""
        features = torch.empty(len(images), self.plan.features)
        self.plan.forward(
            *self._arguments(images),
            0 if maps is None else maps.data_ptr(),
            0 if inputs is None else inputs.data_ptr(),
            features.data_ptr(),
        )
        return features

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features (N, F) float32 of images (N, C, H, W), and what `backward` needs."""
        rows = len(images)
        maps = torch.empty(rows, self.plan.map_size, dtype=torch.bfloat16)
        inputs = torch.empty(rows, self.plan.inputs, dtype=torch.bfloat16)
        return self.features(images, maps, inputs), maps, inputs

    def backward(
        self,
        images: Tensor,
        kept: tuple[Tensor, Tensor, Tensor],
        d_features: Tensor,
        gradients: list[Tensor],
    ) -> None:
        """Writes the gradients of all weights; `kept` is the result of `forward`."""
        features, maps, inputs = kept
        self.plan.backward(
            *self._arguments(images),
            maps.data_ptr(),
            inputs.data_ptr(),
            features.data_ptr(),
            d_features.data_ptr(),
            [gradient.data_ptr() for gradient in gradients],
        )

    def _arguments(self, images: Tensor) -> tuple[Any, ...]:
        """The arguments with which both native functions begin."""
        return (
            self.plan.shape,
            self.path,
            len(images),
            images.data_ptr(),
            [weight.data_ptr() for weight in self.weights],
            *(scales.data_ptr() for scales in self.plan.scales),
        )


class _Encode(torch.autograd.Function):
    """Features of images, with gradients for the weights but not for the images."""

    @staticmethod
    def forward(
        ctx: Any, passes: EncoderPass, images: Tensor, *weights: Tensor
    ) -> Tensor:
        """Features; keeps what the backward pass needs."""
        kept = passes.forward(images)
        ctx.save_for_backward(images, *kept, *weights)
        ctx.passes = passes
        return kept[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_features: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all weights."""
        images, features, maps, inputs, *weights = ctx.saved_tensors
        gradients = [torch.empty_like(w) for w in weights]
        passes = ctx.passes._replace(weights=weights)
        d_features = d_features.float().contiguous()
        passes.backward(images, (features, maps, inputs), d_features, gradients)
        return (None, None, *gradients)


def _passes_of(
    encoder: nn.Module, images: Tensor, path: str | None
) -> EncoderPass | None:
    """The passes of an encoder now; None if native code does not support it."""
    if (
        path is None
        or type(images) is not Tensor
        or not images.is_cpu
        or images.dtype != torch.uint8
    ):
        return None
    below, image = list(encoder.modules())[1:], images.shape[1:]
    kept = _plans.get(encoder)
    if kept is None or kept[:2] != (below, image):
        kept = _plans[encoder] = below, image, _plan_of(encoder, image)
    plan = kept[2]
    if plan is None or has_hooks(encoder) or any(map(has_hooks, below)):
        return None
    weights: list[Tensor] = []
    for module, name, shape in plan.weights:
        w = module._parameters.get(name)
        if (
            type(w) not in (nn.Parameter, Tensor)
            or w is None
            or w.dtype != torch.float32
            or not w.is_cpu
            or not w.is_contiguous()
            or w.shape != shape
        ):
            return None
        weights.append(w)
    return EncoderPass(plan, path, weights)


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks on its inputs or outputs."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _plan_of(encoder: nn.Module, image: torch.Size) -> _Plan | None:
    """The plan of an encoder; None if it is not supported."""
    if type(encoder) is not nn.Sequential or len(image) != 3 or not len(encoder):
        return None
    modules = list(encoder)
    tiles = type(modules[0]) is TilesEncoder
    return (_tiles_plan if tiles else _cnn_plan)(modules, image)


def _cnn_plan(modules: list[nn.Module], image: torch.Size) -> _Plan | None:
    """The plan of an encoder of pixels; None if it is not supported."""
    kinds = (CentredConv2d, nn.ReLU, nn.Conv2d, nn.ReLU, nn.Flatten, nn.Linear, nn.ReLU)
    if tuple(map(type, modules)) != kinds:
        return None
    first, _, second, _, flatten, linear, _ = cast(Any, modules)
    for kernel, stride, *others in map(_properties, (first, second)):
        square = kernel[0] == kernel[1] and stride[0] == stride[1]
        if not square or tuple(others) != ((0, 0), *_PLAIN):
            return None
    sizes = [
        (layer.kernel_size[0], layer.stride[0], layer.out_channels)
        for layer in (first, second)
    ]
    shape = (*image, *sizes[0], *sizes[1], linear.out_features)
    if not _native.cnn_valid(shape) or _properties(flatten) != (1, -1):
        return None
    map_size, inputs = first.out_channels, second.out_channels
    for side in image[1:]:
        windows = (side - shape[3]) // shape[4] + 1
        map_size *= windows
        inputs *= (windows - shape[6]) // shape[7] + 1
    return _Plan(
        _native.cnn_forward,
        _native.cnn_backward,
        shape,
        map_size,
        inputs,
        linear.out_features,
        (
            *_with_bias(first, (shape[5], shape[0], shape[3], shape[3])),
            *_with_bias(second, (shape[8], shape[5], shape[6], shape[6])),
            *_with_bias(linear, (shape[9], inputs)),
        ),
    )


def _tiles_plan(modules: list[nn.Module], image: torch.Size) -> _Plan | None:
    """The plan of the encoder of tiles; None if its widths are not supported."""
    encoder, *rest = cast(Any, modules)
    kinds = (nn.Conv2d, nn.ReLU, nn.Conv2d, nn.ReLU, nn.Flatten)
    if tuple(map(type, encoder.cells)) != kinds or type(encoder.join) is not nn.Linear:
        return None
    first, _, second, _, flatten = encoder.cells
    supported = (
        ((3, 3), (2, 2), (1, 1), *_PLAIN),
        ((3, 4), (2, 2), (0, 0), *_PLAIN),
        (1, -1),
    )
    if tuple(map(_properties, (first, second, flatten))) != supported:
        return None
    shape = (first.out_channels, second.out_channels, encoder.join.out_features)
    if type(encoder.codes) is not nn.Embedding or any(size % 16 for size in shape):
        return None
    if image != TILES_SHAPE:
        return None
    motion = THINGS * (CODE_SIZE + len(SCALES)) + NEAR
    inputs = second.out_channels * 3 * 3 + motion
    return _Plan(
        _native.tiles_forward,
        _native.tiles_backward,
        shape,
        first.out_channels * 7 * 8,
        inputs,
        encoder.join.out_features,
        (
            (encoder.codes, "weight", (CODES, CODE_SIZE)),
            *_with_bias(first, (shape[0], CODE_SIZE, 3, 3)),
            *_with_bias(second, (shape[1], shape[0], 3, 4)),
            *_with_bias(encoder.join, (shape[2], inputs)),
        ),
        # Under autocast they are concatenated with the motion's numbers in float32.
        (encoder.scales.float().contiguous(),),
        tuple(rest),
    )


def _with_bias(layer: nn.Module, shape: tuple[int, ...]) -> tuple[_Weight, ...]:
    """The weight of a layer, of this shape, and its bias."""
    return ((layer, "weight", shape), (layer, "bias", shape[:1]))


def _properties(layer: nn.Module) -> tuple[Any, ...]:
    """All properties of a convolution or a Flatten except weights and channels."""
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim)
    assert isinstance(layer, nn.Conv2d)
    return (
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.dilation,
        layer.groups,
        layer.padding_mode,
    )
