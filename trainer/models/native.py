"""Encoders on a CPU in native code (csrc/encoders): uint8 images to features.

The native code replaces the small encoders' PyTorch operators on a CPU in bfloat16. It
rounds the values that autocast rounds: inputs, weights, activations except the
features, and the gradients of activations. Sums are float32 as in PyTorch, but in
another order. Numbers below 2^-55 count as 0. The modules and their parameters do not
change: every call reads the weights in place.

PyTorch runs all encoders that the native code does not support.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from trainer.config.schema import TILES_SHAPE
from trainer.models.encoders import CentredConv2d
from trainer.models.tiles import CODE_SIZE, CODES, NEAR, SCALES, THINGS, TilesEncoder

try:
    from trainer import _native
except ImportError:  # not built
    PATHS: list[str] = []
    _BEST: str | None = None
else:
    PATHS = _native.paths()
    _BEST = _native.best_path()


# Dilation, groups and padding of the convolutions that the native code supports.
_PLAIN = ((1, 1), 1, "zeros")

# A module, the name of its parameter, and the parameter's shape.
_Weight = tuple[nn.Module, str, tuple[int, ...]]


class _Plan(NamedTuple):
    """How the native code runs an encoder on images of one shape.

    Attributes:
        forward, backward: functions of the module `_native`.
        shape: the shape arguments of these functions.
        map: M, numbers per image after the first convolution.
        inputs: I, numbers per image that the linear layer takes.
        features: F, numbers per image that the linear layer returns.
        weights: parameters, in the order of the native code.
        layers: convolutions, and their properties except the weights.
        scales: a tensor that gets no gradient and is not moved.
        rest: modules after the linear layer, which PyTorch runs.
    """

    forward: Callable[..., None]
    backward: Callable[..., None]
    shape: tuple[int, ...]
    map: int
    inputs: int
    features: int
    weights: tuple[_Weight, ...]
    layers: tuple[tuple[nn.Conv2d, tuple[Any, ...]], ...]
    scales: Tensor | None = None
    rest: tuple[nn.Module, ...] = ()


class _Known(NamedTuple):
    """The result of analysing an encoder.

    Attributes:
        parts: the modules in it, each with its name and the parent's modules; without
            a plan only its children. The encoder itself is left out, so that this
            record does not keep it alive.
        image: (C, H, W).
        plan: the plan; None if native code does not support the encoder.
    """

    parts: tuple[tuple[dict[str, nn.Module | None], str, nn.Module | None], ...]
    image: torch.Size
    plan: _Plan | None


_KNOWN: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()


def features_of(
    encoder: nn.Module, images: Tensor, path: str | None = _BEST
) -> Tensor | None:
    """The features of an encoder, computed natively; None if it is not supported.

    Args:
        encoder: an encoder from `build_encoder`, or any other module.
        images: (N, C, H, W) uint8.
        path: instruction set from `PATHS`; None: do not use native code.

    Returns:
        (N, F) float32.
    """
    if not torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return None
    if torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return None
    found = _usable(encoder, images, path)
    if path is None or found is None:
        return None
    plan, weights = found
    images = images.contiguous()
    if torch.is_grad_enabled() and any(w.requires_grad for w in weights):
        result: Tensor = _Encode.apply(plan, path, images, *weights)  # type: ignore[no-untyped-call]
    else:
        result = _run(plan, path, images, weights, None, None)
    for module in plan.rest:
        result = module(result)
    return result


def computes(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether native code runs a whole network, except the heads, on this CPU.

    Args:
        model: a network from `build_model`, or any other module.
        shape: (C, H, W) of the observations.
    """
    return (
        getattr(model, "native", False)
        and getattr(model, "memory", None) is None
        and isinstance(encoder := getattr(model, "encoder", None), nn.Module)
        and EncoderPass.of(encoder, shape) is not None
    )


class EncoderPass:
    """The two passes of an encoder without autograd, for `trainer.learn.fused`.

    Attributes:
        weights: parameters that get gradients, in the order of `backward`.
    """

    def __init__(self, plan: _Plan, path: str, weights: list[Tensor]) -> None:
        """Runs a plan; `of` makes one."""
        self.weights = weights
        self._plan, self._path = plan, path

    @classmethod
    def of(
        cls, encoder: nn.Module, shape: tuple[int, ...], path: str | None = _BEST
    ) -> EncoderPass | None:
        """The pass of an encoder under bfloat16; None if it is not fully supported.

        Args:
            encoder: an encoder whose parameters do not move in memory.
            shape: (C, H, W) of the images.
            path: as in `features_of`.
        """
        found = _usable(encoder, torch.empty(0, *shape, dtype=torch.uint8), path)
        if path is None or found is None or found[0].rest:
            return None
        return cls(found[0], path, found[1])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features (N, F) float32 of images (N, C, H, W), and what `backward` needs."""
        return _run_and_keep(self._plan, self._path, images, self.weights)

    def backward(
        self,
        images: Tensor,
        kept: tuple[Tensor, Tensor, Tensor],
        d_features: Tensor,
        gradients: list[Tensor],
    ) -> None:
        """Writes the gradients of all weights.

        Args:
            images: the argument of `forward`.
            kept: the result of `forward`.
            d_features: (N, F) float32 gradient of the features.
            gradients: outputs, float32, with the shapes of `weights`.
        """
        _run_back(
            self._plan, self._path, images, self.weights, kept, d_features, gradients
        )


def _usable(
    encoder: nn.Module, images: Tensor, path: str | None
) -> tuple[_Plan, list[Tensor]] | None:
    """The plan and the weights of an encoder; None if it is not supported."""
    if (
        path is None
        or type(images) is not Tensor
        or not images.is_cpu
        or images.dtype != torch.uint8
    ):
        return None
    known = _KNOWN.get(encoder)
    if known is None or known.image != images.shape[1:] or _changed(known):
        known = _KNOWN[encoder] = _find_out(encoder, images)
    plan = known.plan
    if plan is None or has_hooks(encoder):
        return None
    if any(has_hooks(part) for _, _, part in known.parts if part is not None):
        return None
    weights = _plain_weights(plan)
    return None if weights is None else (plan, weights)


def _find_out(encoder: nn.Module, images: Tensor) -> _Known:
    """Analyses an encoder for images of this shape."""
    plan = _plan(encoder, images)
    parts = tuple(
        (module._modules, name, child)
        for module in (encoder.modules() if plan else [encoder])
        for name, child in module._modules.items()
    )
    return _Known(parts, images.shape[1:], plan)


def _changed(known: _Known) -> bool:
    """Whether a module was replaced since the analysis."""
    return any(modules.get(name) is not part for modules, name, part in known.parts)


def _plan(encoder: nn.Module, images: Tensor) -> _Plan | None:
    """The plan of an encoder; None if it is not supported."""
    if type(encoder) is not nn.Sequential or images.ndim != 4 or not len(encoder):
        return None
    modules = list(encoder)
    if type(modules[0]) is TilesEncoder:
        return _tiles_plan(modules[0], tuple(modules[1:]), images)
    return _cnn_plan(modules, images)


def _cnn_plan(modules: list[nn.Module], images: Tensor) -> _Plan | None:
    """The plan of an encoder of pixels; None if it is not supported."""
    kinds = (CentredConv2d, nn.ReLU, nn.Conv2d, nn.ReLU, nn.Flatten, nn.Linear, nn.ReLU)
    if tuple(map(type, modules)) != kinds:
        return None
    first, _, second, _, flatten, linear, _ = modules
    assert isinstance(first, nn.Conv2d)
    assert isinstance(second, nn.Conv2d)
    assert isinstance(linear, nn.Linear)
    assert isinstance(flatten, nn.Flatten)
    if not (_is_plain(first) and _is_plain(second)):
        return None
    shape = (
        *images.shape[1:],
        first.kernel_size[0],
        first.stride[0],
        first.out_channels,
        second.kernel_size[0],
        second.stride[0],
        second.out_channels,
        linear.out_features,
    )
    if not _native.cnn_valid(shape):
        return None
    sides = [_windows(side, first) for side in images.shape[2:]]
    inputs = second.out_channels
    for side in sides:
        inputs *= _windows(side, second)
    if (flatten.start_dim, flatten.end_dim) != (1, -1):
        return None
    return _Plan(
        _native.cnn_forward,
        _native.cnn_backward,
        shape,
        first.out_channels * sides[0] * sides[1],
        inputs,
        linear.out_features,
        (
            *_with_bias(first, (shape[5], shape[0], shape[3], shape[3])),
            *_with_bias(second, (shape[8], shape[5], shape[6], shape[6])),
            *_with_bias(linear, (shape[9], inputs)),
        ),
        ((first, _layer(first)), (second, _layer(second))),
    )


def _tiles_plan(
    encoder: TilesEncoder, rest: tuple[nn.Module, ...], images: Tensor
) -> _Plan | None:
    """The plan of the encoder of tiles; None if its widths are not supported."""
    kinds = (nn.Conv2d, nn.ReLU, nn.Conv2d, nn.ReLU, nn.Flatten)
    if tuple(map(type, encoder.cells)) != kinds or type(encoder.join) is not nn.Linear:
        return None
    first, _, second, _, flatten = encoder.cells
    assert isinstance(first, nn.Conv2d)
    assert isinstance(second, nn.Conv2d)
    assert isinstance(flatten, nn.Flatten)
    layers = (_layer(first), _layer(second), (flatten.start_dim, flatten.end_dim))
    known = (((3, 3), (2, 2), (1, 1), *_PLAIN), ((3, 4), (2, 2), (0, 0), *_PLAIN))
    if layers != (*known, (1, -1)) or type(encoder.codes) is not nn.Embedding:
        return None
    shape = (first.out_channels, second.out_channels, encoder.join.out_features)
    if images.shape[1:] != TILES_SHAPE or any(size % 16 for size in shape):
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
        ((first, layers[0]), (second, layers[1])),
        # Under autocast they are concatenated with the motion's numbers in float32.
        encoder.scales.float().contiguous(),
        rest,
    )


def _with_bias(layer: nn.Module, shape: tuple[int, ...]) -> tuple[_Weight, ...]:
    """The weight of a layer, of this shape, and its bias."""
    return ((layer, "weight", shape), (layer, "bias", shape[:1]))


def _layer(layer: nn.Conv2d) -> tuple[Any, ...]:
    """All properties of a convolution except its weights."""
    return (
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.dilation,
        layer.groups,
        layer.padding_mode,
    )


def _is_plain(layer: nn.Conv2d) -> bool:
    """Whether a convolution has only a square kernel and a stride."""
    kernel, stride = layer.kernel_size, layer.stride
    square = kernel[0] == kernel[1] and stride[0] == stride[1]
    return square and _layer(layer)[2:] == ((0, 0), *_PLAIN)


def _windows(side: int, layer: nn.Conv2d) -> int:
    return (side - layer.kernel_size[0]) // layer.stride[0] + 1


def _plain_weights(plan: _Plan) -> list[Tensor] | None:
    """The current parameters; None unless the native code can read them."""
    if any(_layer(layer) != expected for layer, expected in plan.layers):
        return None
    found: list[Tensor] = []
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
        found.append(w)
    return found


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks on its inputs or outputs."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _run(
    plan: _Plan,
    path: str,
    images: Tensor,
    weights: Sequence[Tensor],
    maps: Tensor | None,
    x: Tensor | None,
) -> Tensor:
    """Features (N, F) float32; writes the activations to `maps` and `x`."""
    rows = len(images)
    y = torch.empty(rows, plan.features)
    plan.forward(
        plan.shape,
        path,
        rows,
        images.data_ptr(),
        [w.data_ptr() for w in weights],
        *_scales(plan),
        0 if maps is None else maps.data_ptr(),
        0 if x is None else x.data_ptr(),
        y.data_ptr(),
    )
    return y


def _scales(plan: _Plan) -> tuple[int, ...]:
    return () if plan.scales is None else (plan.scales.data_ptr(),)


def _run_and_keep(
    plan: _Plan, path: str, images: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Features, and the activations in bfloat16 in the native code's layout."""
    rows = len(images)
    maps = torch.empty(rows, plan.map, dtype=torch.bfloat16)
    x = torch.empty(rows, plan.inputs, dtype=torch.bfloat16)
    return _run(plan, path, images, weights, maps, x), maps, x


def _run_back(
    plan: _Plan,
    path: str,
    images: Tensor,
    weights: Sequence[Tensor],
    kept: tuple[Tensor, Tensor, Tensor],
    dy: Tensor,
    gradients: Sequence[Tensor],
) -> None:
    """Writes the gradients of all weights."""
    y, maps, x = kept
    plan.backward(
        plan.shape,
        path,
        len(images),
        images.data_ptr(),
        [w.data_ptr() for w in weights],
        *_scales(plan),
        maps.data_ptr(),
        x.data_ptr(),
        y.data_ptr(),
        dy.data_ptr(),
        [g.data_ptr() for g in gradients],
    )


class _Encode(torch.autograd.Function):
    """Features of images, with gradients for the weights but not for the images."""

    @staticmethod
    def forward(
        ctx: Any, plan: _Plan, path: str, images: Tensor, *weights: Tensor
    ) -> Tensor:
        """Features; keeps what the backward pass needs."""
        kept = _run_and_keep(plan, path, images, weights)
        ctx.save_for_backward(images, *kept, *weights)
        ctx.plan = plan
        ctx.path = path
        return kept[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all weights."""
        images, y, maps, x, *weights = ctx.saved_tensors
        dy = dy.float().contiguous()
        gradients = [torch.empty_like(w) for w in weights]
        _run_back(ctx.plan, ctx.path, images, weights, (y, maps, x), dy, gradients)
        return (None, None, None, *gradients)
