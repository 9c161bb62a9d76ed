"""The optimiser and its schedules.

`build_optimizer` returns a `torch.optim.Optimizer` whose groups store their initial
rate (`base_lr`), so one factor scales all rates.

On a CPU native code (csrc/learner) makes Muon's steps of hidden matrices. The overhead
of PyTorch's operators exceeds the arithmetic here: Muon needs forty of them for the two
matrices of the default network. PyTorch handles tensors that the native code does not
support: on another device, not float32, or not contiguous.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from trainer.config import learning
from trainer.config.learning import LearnerConfig, linear
from trainer.config.options import check_ranges
from trainer.models.native import BEST as NATIVE_PATH

with suppress(ImportError):  # not built
    from trainer import _native

Group = dict[str, Any]

_BETAS = (0.9, 0.999)  # of AdamW beside Muon

_logger = logging.getLogger(__name__)


def learning_rate_factor(config: LearnerConfig, step: int, updates: int) -> float:
    """The factor of the initial rates after environment steps and updates.

    It is warm-up times schedule.
    """
    share = linear(0.0, 1.0, config.lr_steps, step)
    if config.lr_schedule == "cosine":
        share = (1 - math.cos(math.pi * share)) / 2
    # The first update already has a share of the rate: at 0 it would have no effect.
    warm_up = min(1.0, (updates + 1) / max(1, config.warmup_updates))
    return warm_up * (1 + (config.lr_end / config.lr - 1) * share)


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Sets the rate of every group to `factor` times its initial rate."""
    for group in optimizer.param_groups:
        rate = factor * group["base_lr"]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # in place: a CUDA graph reads this tensor
        else:
            group["lr"] = rate


def build_optimizer(
    model: nn.Module, config: LearnerConfig, capturable: bool
) -> torch.optim.Optimizer:
    """Builds the optimiser of a run; `capturable` if CUDA graphs record its steps.

    Its `load_state_dict` takes the moments from the checkpoint, but the rates and other
    options from `config`: a resumed run may change options, or continue on another
    device. If a network has no hidden matrices, AdamW replaces Muon, with a warning in
    the log.
    """
    check_ranges(config)
    kind, lr = config.optimizer, config.lr
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer
    if isinstance(kind, learning.Muon):
        hidden = hidden_matrices(model)
        if not hidden:
            _logger.warning(
                "muon updates the weights between the first layer and the heads, but "
                "this network has none: AdamW updates all weights, with --lr"
            )
        chosen = set(hidden)
        others = [p for p in params if p not in chosen]
        optimizer = Muon(
            _group(hidden, kind.matrix_lr, kind.kind, capturable),
            _group(others, lr, kind.kind, capturable),
            momentum=kind.momentum,
            weight_decay=kind.weight_decay,
            eps=kind.eps,
            capturable=capturable,
        )
    else:
        group = _group(params, lr, kind.kind, capturable)
        optimizer = kind.build([group], capturable=capturable)
    optimizer.register_load_state_dict_pre_hook(_keep_options)
    optimizer.register_load_state_dict_post_hook(_lay_out_like_weights)
    return optimizer


def _group(params: list[nn.Parameter], lr: float, kind: str, capturable: bool) -> Group:
    """A parameter group with its initial rate and its optimiser's name."""
    rate: float | Tensor = lr
    if capturable and params:
        rate = torch.tensor(lr, device=params[0].device)
    return {"params": params, "lr": rate, "base_lr": lr, "kind": kind}


def _keep_options(
    optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> dict[str, Any]:
    """Replaces the options of a checkpoint with the optimiser's own."""
    groups, saved = optimizer.param_groups, state["param_groups"]
    kind, saved_kind = groups[0]["kind"], saved[0]["kind"]
    if kind != saved_kind:
        raise ValueError(
            f"the checkpoint was trained with optimizer={saved_kind}, but this run has "
            f"{kind}; resume with --optimizer {saved_kind}"
        )
    pairs = zip(groups, saved, strict=True)
    merged = [group | {"params": old["params"]} for group, old in pairs]
    return state | {"param_groups": merged}


@torch.no_grad()
def _lay_out_like_weights(optimizer: torch.optim.Optimizer) -> None:
    """Gives moments from a checkpoint the strides of their weights.

    The saved run may have had another device and other strides, but fused kernels read
    weights and moments in the order of memory.
    """
    for param, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == param.shape:
                like = torch.empty_like(param, dtype=value.dtype)
                state[name] = like.copy_(value)


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that Muon updates: weights between the first layer and the heads.

    A weight is a parameter whose name begins with "weight" and that has two or more
    dimensions. The first in the order of registration belongs to the first layer. The
    heads are the submodule `head`, or, in a model without it, the last two weights
    (logits and value).
    """
    weights = [
        param
        for name, param in model.named_parameters()
        if name.rpartition(".")[2].startswith("weight")
        and param.ndim >= 2
        and param.requires_grad
    ]
    head = getattr(model, "head", None)
    if isinstance(head, nn.Module):
        outputs = set(head.parameters())
        return [param for param in weights[1:] if param not in outputs]
    return weights[1:-2]


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised, for matrices; AdamW for all other parameters.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural
    networks". A convolution's kernel is a matrix with one row per output channel.
    `torch.optim.Muon` supports neither convolutions nor rates that are tensors.

    On a CPU native code makes the steps of matrices where it can. The results differ
    from PyTorch's by rounding.

    Attributes:
        native_path: instruction set of the native code; None: use only PyTorch.
    """

    # A class attribute, because copies of an optimiser have no other attributes.
    native_path: str | None = NATIVE_PATH

    def __init__(
        self,
        matrices: Group,  # parameters of two or more dimensions, and their rate
        others: Group,  # for AdamW
        *,
        momentum: float,  # decay of the matrices' mean gradient
        weight_decay: float,  # decoupled, of all parameters
        eps: float,  # of AdamW
        capturable: bool,
    ) -> None:
        options = {
            "momentum": momentum,
            "weight_decay": weight_decay,
            "eps": eps,
            "capturable": capturable,
            "fused": True,  # AdamW's steps are counted on the device
        }
        super().__init__([matrices, others], options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Makes one step from the parameters' gradients."""
        assert closure is None, "closures are not supported"
        matrices, others = self.param_groups
        self._step_matrices(matrices)
        self._step_others(others)

    def _step_matrices(self, group: Group) -> None:
        params = [param for param in group["params"] if param.grad is not None]
        if not params:
            return
        for param in params:
            if not self.state[param]:
                self.state[param] = {"momentum": torch.zeros_like(param)}
        gradients = [param.grad for param in params]
        averages = [self.state[param]["momentum"] for param in params]
        # A rate is a tensor if steps are recorded.
        constant = isinstance(group["lr"], float)
        if self.native_path and constant and _is_plain(*params, *gradients, *averages):
            tensors = zip(params, gradients, averages, strict=True)
            rows = [
                (len(w), w[0].numel(), w.data_ptr(), g.data_ptr(), m.data_ptr())
                for w, g, m in tensors
            ]
            scratch = torch.empty(max(_native.muon_scratch(m, n) for m, n, *_ in rows))
            options = (group["lr"], group["momentum"], group["weight_decay"])
            _native.muon_step(self.native_path, rows, options, scratch.data_ptr())
            return
        torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
        # Nesterov: the average after one more gradient like this one.
        ahead = torch._foreach_lerp(gradients, averages, group["momentum"])
        for param, direction in zip(params, ahead, strict=True):
            step = orthogonalise(direction.flatten(1))
            # A tall matrix with orthogonal columns has smaller entries.
            scale = max(1.0, step.shape[0] / step.shape[1]) ** 0.5
            param.mul_(1 - group["lr"] * group["weight_decay"])
            param.sub_(group["lr"] * scale * step.reshape(param.shape))

    def _step_others(self, group: Group) -> None:
        params = [param for param in group["params"] if param.grad is not None]
        if not params:
            return
        for param in params:
            if not self.state[param]:
                self.state[param] = {
                    "step": torch.zeros((), device=param.device),
                    "exp_avg": torch.zeros_like(param),
                    "exp_avg_sq": torch.zeros_like(param),
                }
        gradients = [param.grad for param in params]
        means, squares, steps = (
            [self.state[param][name] for param in params]
            for name in ("exp_avg", "exp_avg_sq", "step")
        )
        adamw(
            params,
            gradients,
            means,
            squares,
            [],
            steps,
            fused=True,
            capturable=group["capturable"],
            amsgrad=False,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def clip_gradients(gradients: list[Tensor], max_norm: float) -> Tensor:
    """Scales gradients down, in place, as torch.nn.utils.clip_grad_norm_ does.

    Returns their norm before the clip, () float32.
    """
    if NATIVE_PATH is not None and _is_plain(*gradients):
        parts = [(gradient.data_ptr(), gradient.numel()) for gradient in gradients]
        return torch.tensor(_native.clip_norm(parts, max_norm))
    norm: Tensor = torch.stack(torch._foreach_norm(gradients)).norm()
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1))
    return norm


def _is_plain(*tensors: Tensor | None) -> bool:
    """Whether the native code supports the memory of tensors."""
    return all(
        tensor is not None
        and tensor.dtype == torch.float32
        and tensor.is_cpu
        and tensor.is_contiguous()
        for tensor in tensors
    )


# Jordan et al. 2024: x -> 3.4445 x - 4.775 x^3 + 2.0315 x^5, five times, brings
# singular values from (0, 1] to about 1 (0.7 to 1.2).
_LINEAR, _CUBIC, _QUINTIC = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
# Larger matrices are cut into blocks of this many rows (Khaled et al. 2025, "MuonBP",
# between two full steps): the work is then linear in the rows instead of quadratic.
# For nature's 512 x 3136 on one core it takes 16 ms instead of 84; native code 5 ms.
_BLOCK_ROWS = 128


def orthogonalise(matrix: Tensor) -> Tensor:
    """Brings all singular values (M, N) near 1 and keeps the singular vectors.

    Works on blocks of 128 rows each, or of 128 columns if there are fewer columns.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
    iterate = _iterate if wide.is_cuda else _iterate_squares
    even = wide.shape[0] // _BLOCK_ROWS * _BLOCK_ROWS
    parts = []
    if even:
        parts.append(wide[:even].reshape(-1, _BLOCK_ROWS, wide.shape[1]))
    if even < wide.shape[0]:
        parts.append(wide[even:].unsqueeze(0))
    norms = [torch.linalg.matrix_norm(part, keepdim=True) for part in parts]
    pairs = zip(parts, norms, strict=True)
    blocks = [iterate(part / (norm + 1e-7)).flatten(0, 1) for part, norm in pairs]
    result = torch.cat(blocks)
    return result if matrix.shape[0] <= matrix.shape[1] else result.mT


def _factor(square: Tensor) -> Tensor:
    """The matrix that one iteration multiplies x by, given square = x x^T."""
    factor = torch.baddbmm(square, square, square, beta=_CUBIC, alpha=_QUINTIC)
    factor.diagonal(dim1=-2, dim2=-1).add_(_LINEAR)
    return factor


def _iterate(x: Tensor) -> Tensor:
    """The iteration as published, of blocks (n, rows, N); tolerates TF32's rounding."""
    for _ in range(_ITERATIONS):
        x = _factor(x @ x.mT) @ x
    return x


def _iterate_squares(x: Tensor) -> Tensor:
    """The same iteration on x x^T, from both sides; multiplies x once at the end.

    On a CPU this is 2.7 and 4.6 times as fast for the linear layers of cnn-157k and
    cnn-345k, which are 9 and 20 times as wide as tall. It needs true float32: rounding
    errors in x x^T grow twelvefold per iteration.
    """
    square = x @ x.mT
    product = factor = _factor(square)
    for _ in range(_ITERATIONS - 1):
        square = factor @ square @ factor
        factor = _factor(square)
        product = factor @ product
    return product @ x
