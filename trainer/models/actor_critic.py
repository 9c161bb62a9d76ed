"""The network of a run: from uint8 frames to a policy; built, measured and averaged."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from trainer.config.schema import ModelConfig
from trainer.machine.cuda import copy_all
from trainer.machine.imports import load
from trainer.models.encoders import ENCODERS, Shape, build_encoder
from trainer.models.heads import PolicyValueHead
from trainer.models.memory import build_memory
from trainer.models.native import EncoderPass, features_of, has_hooks
from trainer.models.popart import PopArt

with suppress(ImportError):  # not built: no network is native
    from trainer import _native


class PolicyOutput(NamedTuple):
    """Logits (T, B, A) and values (T, B) or, of L > 1 heads, (T, B, L); float32."""

    logits: Tensor
    values: Tensor

    def values_at(self, levels: Tensor) -> Tensor:
        """The value of each row's own level, (T, B), for indices of levels (T, B)."""
        if self.values.ndim == levels.ndim:
            return self.values
        return self.values.gather(-1, levels.unsqueeze(-1)).squeeze(-1)


class PolicyModel(nn.Module):
    """The interface of a network for collector, learner and evaluation.

    Attributes:
        state_size: S, floats of state per environment; 0 without memory.
    """

    state_size: int = 0

    @property
    def popart(self) -> PopArt | None:
        """The layer that normalises the values; None if there is none."""
        return None

    def forward(
        self, obs: Tensor, state: Tensor, first: Tensor
    ) -> tuple[PolicyOutput, Tensor]:
        """Runs T rows of B environments; acting is T = 1.

        The module must not change and must not draw random numbers, because several
        threads run it at once. It must not wait for the device, because CUDA graphs
        record it.

        Args:
            obs: (T, B, C, H, W) uint8.
            state: (B, S) float32 before row 0, zeros at the very start.
            first: (T, B) bool, rows before which the state becomes zeros.

        Returns:
            The policy's output at all rows, and the state (B, S) after the last.
        """
        raise NotImplementedError

    def resample_noise(self, generator: torch.Generator | None = None) -> None:
        """Draws new noise, if any; called before each act and gradient step.

        Args:
            generator: on the model's device; None: the device's default generator.
        """


class ActorCritic(PolicyModel):
    """Shared encoder, memory, policy head and value head.

    The easiest custom network is another encoder, with everything else as configured.
    In a file `mine.py`, for `--model mine:Small`:

        import torch
        from torch import nn
        from trainer.models import ActorCritic
        from trainer.models.encoders import CentredConv2d

        class Small(ActorCritic):
            def make_encoder(self, config, shape):
                body = nn.Sequential(
                    CentredConv2d(shape[0], 8, 8, 8), nn.ReLU(), nn.Flatten()
                )
                size = body(torch.zeros(1, *shape)).shape[1]
                return body, size

    Pixels arrive as 0..255; `CentredConv2d` (encoders.py) centres them. To change
    an encoder of encoders.py, return `build_encoder(replace(config, name="cnn-345k"),
    shape)`, or parts of it.

    Attributes:
        native: whether native code (models/native.py) runs supported encoders on a CPU
            in bfloat16; if not, PyTorch's operators do.
    """

    native: bool = True

    def __init__(self, config: ModelConfig, shape: Shape, num_actions: int) -> None:
        super().__init__()
        self.encoder, features = self.make_encoder(config, shape)
        self.memory = build_memory(config.memory, features)
        if self.memory is not None:
            features, self.state_size = self.memory.size, self.memory.state_size
        self.head = PolicyValueHead(features, num_actions, config)

    def make_encoder(self, config: ModelConfig, shape: Shape) -> tuple[nn.Module, int]:
        """The encoder, from pixels (N, C, H, W) to (N, F), and the number F."""
        return build_encoder(config, shape)

    @property
    def popart(self) -> PopArt | None:
        """See `PolicyModel.popart`."""
        value = self.head.value
        return value if isinstance(value, PopArt) else None

    def resample_noise(self, generator: torch.Generator | None = None) -> None:
        """Draws new noise for noisy heads."""
        self.head.resample_noise(generator)

    def forward(
        self, obs: Tensor, state: Tensor, first: Tensor
    ) -> tuple[PolicyOutput, Tensor]:
        """See `PolicyModel.forward`.

        Pixels become the autocast type if autocast is on (0..255 are exact in
        bfloat16), otherwise float32; the first layer centres them. Native encoders
        take uint8 pixels.
        """
        rows = obs.shape[:2]
        pixels = obs.flatten(0, 1)
        features = features_of(self.encoder, pixels) if self.native else None
        if features is None:
            kind = obs.device.type
            on = torch.is_autocast_enabled(kind)
            pixels = pixels.to(torch.get_autocast_dtype(kind) if on else torch.float32)
            features = self.encoder(pixels)
        if self.memory is not None:
            features, state = self.memory(features.unflatten(0, rows), state, first)
            features = features.flatten(0, 1)
        logits, values = self.head(features)
        output = PolicyOutput(logits.unflatten(0, rows), values.unflatten(0, rows))
        return output, state


class NativeNetwork(NamedTuple):
    """A whole network in native code on a CPU: an encoder, and two linear heads.

    Its decisions equal those of `ActorCritic.forward` but for the order of sums.
    """

    encoder: EncoderPass
    head: PolicyValueHead
    outputs: tuple[int, int, int]  # features, logits, values
    addresses: list[int]  # of the head's weights, and of PopArt's mean and std

    @classmethod
    def of(cls, model: nn.Module, shape: tuple[int, ...]) -> NativeNetwork | None:
        """The network for images (C, H, W), in bfloat16; None if it has other parts.

        It stores the addresses of the weights, which must not move in memory.
        """
        if (
            not isinstance(model, ActorCritic)
            or not model.native
            or any(map(has_hooks, model.modules()))
            or type(model).forward is not ActorCritic.forward
            or model.memory is not None
            or type(model.head) is not PolicyValueHead
            or any(type(layer) is not nn.Linear for layer in model.head.layers)
        ):
            return None
        encoder = EncoderPass.of(model.encoder, shape)
        if encoder is None:
            return None
        head, popart = model.head, model.popart
        policy, value = head.layers
        scale = [0, 0]
        if popart is not None:
            scale = [popart.mean.data_ptr(), popart.std.data_ptr()]
        addresses = [weight.data_ptr() for weight in head.weights]
        outputs = policy.in_features, policy.out_features, value.out_features
        return cls(encoder, head, outputs, addresses + scale)

    def decide(
        self, images: Tensor, levels: Tensor, noise: Tensor | None, version: int
    ) -> Tensor:
        """Decisions on images (n, C, H, W) as records (n, words) int64.

        Args:
            images: uint8.
            levels: (n,) int64, selects the output of the critic.
            noise: (n, A) float32, Exp(1)-distributed; None: values only.
            version: of the policy, for the records (rollout/store.py).
        """
        images = images.contiguous()
        features = self.encoder.features(images)
        actions = self.outputs[1]
        records = torch.empty(len(images), (6 + actions) // 2, dtype=torch.int64)
        _native.decide(
            self.outputs,
            self.addresses,
            len(images),
            features.data_ptr(),
            levels.contiguous().data_ptr(),
            0 if noise is None else noise.data_ptr(),
            version,
            records.data_ptr(),
        )
        return records


class ModelSize(NamedTuple):
    """How large a network is.

    Attributes:
        parameters: trained scalars.
        forward_flops: operations of one row's forward pass by PyTorch's counter:
            convolutions, matrix products and attention (a multiply-add is two),
            without element-wise work.
    """

    parameters: int
    forward_flops: int


def to_device(model: PolicyModel, name: str, device: torch.device) -> PolicyModel:
    """Moves a network to a device, in the layout that is fastest there.

    Args:
        model: a network from `build_model`.
        name: ModelConfig.name.
        device: the target device.
    """
    model = model.to(device)
    plan = ENCODERS.get(name)
    if device.type == "cuda" or (plan is not None and plan.channels_last_on_cpu):
        # nn.Module.to takes memory_format, but its annotations lack it.
        cast(Any, model).to(memory_format=torch.channels_last)
    return model


def build_model(
    config: ModelConfig, shape: tuple[int, ...], num_actions: int
) -> PolicyModel:
    """Builds the network of a run.

    Args:
        config: configuration of the network. For a name `module:Class`,
            Class(config, shape, num_actions) is called. It must return an nn.Module
            with the `forward` of `PolicyModel`, and may have its `state_size` and
            `resample_noise`. With L > 1 value heads, values are (T, B, L).
        shape: observation shape; must be (channels, height, width).
        num_actions: size of the discrete action space.

    Raises:
        ValueError: observations are not images, the network does not exist, or its
            outputs are wrong.
    """
    if len(shape) != 3:
        raise ValueError(
            f"observations have shape {shape}, but encoders take images "
            "(channels, height, width)"
        )
    image = (shape[0], shape[1], shape[2])
    if ":" not in config.name:
        return ActorCritic(config, image, num_actions)
    make = load(config.name, "model", "module:Class")
    model = make(config, image, num_actions) if callable(make) else make
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model {config.name!r} gives a {type(model).__name__}; it must be a class "
            "of torch.nn.Module, for instance a subclass of trainer.models.ActorCritic"
        )
    result = model if isinstance(model, PolicyModel) else _Adapted(model)
    _check_contract(config, model, result.state_size, image, num_actions)
    if config.popart and result.popart is None:
        raise ValueError(
            f"model {config.name!r} has no attribute popart; choose --no-popart, or "
            "make it a subclass of trainer.models.ActorCritic"
        )
    return result


def describe_model(model: PolicyModel, shape: tuple[int, ...]) -> ModelSize:
    """Counts parameters and operations; runs one row of zeros of this shape."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    # The counter does not support a CPU's fused attention, but supports its parts.
    parts = sdpa_kernel(SDPBackend.MATH)
    with _evaluating(model), parts, FlopCounterMode(display=False) as counter:
        model(*_blank_rows(model.state_size, shape, 1, 1, device))
    parameters = sum(p.numel() for p in model.parameters())
    return ModelSize(parameters, counter.get_total_flops())


class _Adapted(PolicyModel):
    """A custom module, with defaults for the parts that it leaves out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.state_size = int(getattr(model, "state_size", 0))

    def resample_noise(self, generator: torch.Generator | None = None) -> None:
        """Passes the call on if the module has such a method."""
        draw = getattr(self.model, "resample_noise", None)
        if callable(draw):
            draw(generator)

    def forward(
        self, obs: Tensor, state: Tensor, first: Tensor
    ) -> tuple[PolicyOutput, Tensor]:
        """See `PolicyModel.forward`."""
        (logits, values), state = self.model(obs, state, first)
        return PolicyOutput(logits, values), state


def _check_contract(
    config: ModelConfig, model: nn.Module, size: int, shape: Shape, num_actions: int
) -> None:
    """Raises ValueError unless the outputs for blank rows are right."""
    T, B, L = 2, 3, config.value_heads
    name, values = config.name, (T, B) if L == 1 else (T, B, L)
    rows = _blank_rows(size, shape, T, B, torch.device("cpu"))
    try:
        with _evaluating(model):
            result = model(*rows)
    except Exception as error:
        error.add_note(
            f"This error is from a trial of model {name!r} with (obs, state, first) = "
            f"{_outline(rows)}."
        )
        raise
    expected = (
        f"((float32 {(T, B, num_actions)}, float32 {values}), float32 {(B, size)})"
    )
    if _outline(result) != expected:
        one = f" (or choose --value-heads 1: the run has {L} levels)" if L > 1 else ""
        raise ValueError(
            f"model {name!r} returned {_outline(result)} for {T} rows of {B} "
            f"environments; it must return ((logits, values), state) as {expected}, "
            f"where the state's size is the model's state_size, {size}{one}"
        )


def _blank_rows(
    state_size: int, shape: tuple[int, ...], T: int, B: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Arguments of a network: T rows of B environments, all zeros."""
    return (
        torch.zeros(T, B, *shape, dtype=torch.uint8, device=device),
        torch.zeros(B, state_size, device=device),
        torch.zeros(T, B, dtype=torch.bool, device=device),
    )


def _outline(value: object) -> str:
    """Types and shapes of tensors in tuples, like (float32 (2, 3), uint8 (4,))."""
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{kind} {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"({', '.join(_outline(v) for v in value)})"
    return type(value).__name__


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, random numbers or changes of statistics."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


@torch.no_grad()
def copy_weights(target: nn.Module, source: nn.Module) -> None:
    """Copies parameters and buffers between modules of the same kind, in place."""
    for kind in (nn.Module.parameters, nn.Module.buffers):
        copy_all(list(kind(target)), list(kind(source)))


class Ema:
    """Exponential moving average of a model's weights, for evaluation.

    Attributes:
        model: a copy with the averaged weights; buffers are the latest.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay
        self._source = model

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """Adds the weights after one more update, the last of `updates`."""
        # The first updates have more weight; otherwise the random initial weights
        # would dominate for 1 / (1 - decay) updates.
        decay = min(self.decay, (1 + updates) / (10 + updates))
        latest = [param.detach() for param in self._source.parameters()]
        torch._foreach_lerp_(list(self.model.parameters()), latest, 1 - decay)
        buffers = zip(self.model.buffers(), self._source.buffers(), strict=True)
        for copied, original in buffers:
            copied.copy_(original)
