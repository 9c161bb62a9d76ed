"""The optimiser and its schedules.

`build_optimizer` gives a `torch.optim.Optimizer` whose groups know the rate they
start with (`base_lr`), so that one factor moves them all.
"""

from __future__ import annotations

import logging
import math
from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from trainer.config import learning
from trainer.config.checks import check_ranges
from trainer.config.learning import LearnerConfig
from trainer.config.schedules import linear
from trainer.learn import native_steps

Group = dict[str, Any]

_logger = logging.getLogger(__name__)


def learning_rate_factor(config: LearnerConfig, step: int, updates: int) -> float:
    """What the starting rates are multiplied by: warm-up times schedule.

    Args:
        config: the schedule.
        step: environment steps so far.
        updates: updates so far.
    """
    share = linear(0.0, 1.0, config.lr_steps, step)
    if config.lr_schedule == "cosine":
        share = (1 - math.cos(math.pi * share)) / 2
    # The first update has a share of the rate already: at 0 it would be wasted.
    warm_up = min(1.0, (updates + 1) / max(1, config.warmup_updates))
    return warm_up * (1 + (config.lr_end / config.lr - 1) * share)


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Sets the rate of every group to `factor` times the one it started with."""
    for group in optimizer.param_groups:
        rate = factor * group["base_lr"]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # in place: a CUDA graph reads this tensor
        else:
            group["lr"] = rate


def build_optimizer(
    model: nn.Module, config: LearnerConfig, capturable: bool
) -> torch.optim.Optimizer:
    """The optimiser of a run.

    Its `load_state_dict` takes what was learned from the checkpoint, the rates and
    other options from `config`: a resumed run can have other ones, or continue on
    another device. Muon leaves a network without hidden matrices to AdamW, and the log
    says so.

    Args:
        model: on its device already.
        config: which optimiser, and its options.
        capturable: whether steps are recorded in CUDA graphs; rates are then
            tensors.

    Raises:
        ValueError: an option out of its range.
    """
    check_ranges(config)
    kind, lr = config.optimizer, config.lr
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer
    if isinstance(kind, learning.Muon):
        hidden = hidden_matrices(model)
        if not hidden:
            _logger.warning(
                "muon works on weights between the first layer and the heads, and this "
                "network has none: AdamW updates all weights, at --lr"
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
    elif isinstance(kind, learning.RMSprop):
        optimizer = torch.optim.RMSprop(
            [_group(params, lr, kind.kind, capturable)],
            alpha=kind.alpha,
            eps=kind.eps,
            capturable=capturable,
        )
    elif isinstance(kind, learning.Adam | learning.AdamW):
        made: type[torch.optim.Adam | torch.optim.AdamW] = torch.optim.Adam
        decay = 0.0
        if isinstance(kind, learning.AdamW):
            decay, made = kind.weight_decay, torch.optim.AdamW
        # Fused: one kernel over all parameters, on CPU and CUDA alike.
        optimizer = made(
            [_group(params, lr, kind.kind, capturable)],
            eps=kind.eps,
            weight_decay=decay,
            capturable=capturable,
            fused=True,
        )
    else:
        assert_never(kind)
    optimizer.register_load_state_dict_pre_hook(_keep_options)
    optimizer.register_load_state_dict_post_hook(_lay_out_like_weights)
    return optimizer


def _group(params: list[nn.Parameter], lr: float, kind: str, capturable: bool) -> Group:
    """A parameter group with the rate it starts with, and its optimiser's name."""
    rate: float | Tensor = lr
    if capturable and params:
        rate = torch.tensor(lr, device=params[0].device)
    return {"params": params, "lr": rate, "base_lr": lr, "kind": kind}


def _keep_options(
    optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> dict[str, Any]:
    """Puts an optimiser's own options in the place of those of a checkpoint.

    Raises:
        ValueError: the checkpoint is of another kind of optimiser.
    """
    own, saved = optimizer.param_groups, state["param_groups"]
    if own[0]["kind"] != saved[0]["kind"]:
        raise ValueError(
            f"the checkpoint was trained with optimizer={saved[0]['kind']}, this run "
            f"has {own[0]['kind']}; resume with --optimizer {saved[0]['kind']}"
        )
    groups = [
        mine | {"params": theirs["params"]}
        for mine, theirs in zip(own, saved, strict=True)
    ]
    return state | {"param_groups": groups}


@torch.no_grad()
def _lay_out_like_weights(optimizer: torch.optim.Optimizer) -> None:
    """Gives moments from a checkpoint the strides of their weights.

    They have those of their run, which may have had another device; fused kernels go
    over both by their order in memory.
    """
    for param, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == param.shape:
                like = torch.empty_like(param, dtype=value.dtype)
                state[name] = like.copy_(value)


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that Muon is for: weights between the first layer and the heads.

    A weight has a name that begins so and two dimensions or more. The first in the
    order of registration belongs to the first layer; the heads are the submodule
    `head`, in a model without one the last two weights, logits' and value's.
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
    """Momentum, orthogonalised, for matrices; AdamW for all else.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural
    networks". A convolution's kernel is a matrix with one row per output channel.
    `torch.optim.Muon` takes neither these nor rates that are tensors.

    On a CPU native code makes both steps where it can (native_steps.py). The figures
    differ from PyTorch's by rounding.

    Attributes:
        native_path: instruction set of the native code; None: all is PyTorch's.
    """

    # Of the class: copies of an optimiser have no attributes of their own.
    native_path: str | None = native_steps.BEST

    def __init__(
        self,
        matrices: Group,
        others: Group,
        *,
        momentum: float,
        weight_decay: float,
        eps: float,
        capturable: bool,
    ) -> None:
        """Takes one group of either kind, each with its lr.

        Args:
            matrices: parameters of two dimensions or more.
            others: those for AdamW.
            momentum: decay of the matrices' mean gradient.
            weight_decay: of all parameters, decoupled.
            eps: AdamW's.
            capturable: whether steps are recorded in CUDA graphs.
        """
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
        """One step from the gradients there are."""
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
        lr, path = group["lr"], self.native_path
        if (
            path
            and isinstance(lr, float)
            and native_steps.plain(*params, *gradients, *averages)
        ):
            native_steps.muon(
                list(zip(params, gradients, averages, strict=True)),
                lr=lr,
                momentum=group["momentum"],
                weight_decay=group["weight_decay"],
                path=path,
            )
            return
        torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
        # Nesterov: where the average will be after one more gradient like this.
        ahead = torch._foreach_lerp(gradients, averages, group["momentum"])
        for param, direction in zip(params, ahead, strict=True):
            step = orthogonalise(direction.flatten(1))
            # Entries of a tall matrix of orthogonal columns are smaller.
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
        lr, path = group["lr"], self.native_path
        if (
            path
            and isinstance(lr, float)
            and native_steps.plain(*params, *gradients, *means, *squares, *steps)
        ):
            native_steps.adamw(
                list(zip(params, gradients, means, squares, steps, strict=True)),
                lr=lr,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                path=path,
            )
            return
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
            beta1=0.9,
            beta2=0.999,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


# Jordan et al. 2024: x -> 3.4445 x - 4.775 x^3 + 2.0315 x^5, five times, brings
# singular values from (0, 1] to about 1 (.7 to 1.2).
_LINEAR, _CUBIC, _QUINTIC = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
# Larger matrices are cut into blocks of as many rows (Khaled et al. 2025, "MuonBP",
# between two full steps): the work is then linear in the rows instead of quadratic.
# For nature's 512 x 3136 on one core that is 16 ms instead of 84; in native code 5 ms.
_BLOCK_ROWS = 128


def orthogonalise(matrix: Tensor) -> Tensor:
    """Brings all singular values near 1 and keeps the singular vectors.

    Of blocks of 128 rows each, or of columns where there are fewer of them.

    Args:
        matrix: (M, N) float32.

    Returns:
        (M, N) float32.
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
    """What one iteration multiplies x by, given square = x x^T."""
    factor = torch.baddbmm(square, square, square, beta=_CUBIC, alpha=_QUINTIC)
    factor.diagonal(dim1=-2, dim2=-1).add_(_LINEAR)
    return factor


def _iterate(x: Tensor) -> Tensor:
    """The iteration as published, of blocks (n, rows, N); stands TF32's rounding."""
    for _ in range(_ITERATIONS):
        x = _factor(x @ x.mT) @ x
    return x


def _iterate_squares(x: Tensor) -> Tensor:
    """The same on x x^T, from left and right, with x multiplied once at the end.

    On a CPU 2.7 and 4.6 times as fast for the linear layers of cnn-157k and cnn-345k,
    which are 9 and 20 times as wide as tall. It needs true float32: rounding
    errors in x x^T grow twelvefold per iteration.
    """
    square = x @ x.mT
    product = factor = _factor(square)
    for _ in range(_ITERATIONS - 1):
        square = factor @ square @ factor
        factor = _factor(square)
        product = factor @ product
    return product @ x
