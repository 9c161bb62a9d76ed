"""The gradient step that all algorithms share.

The losses are sums over rows, so a minibatch can be computed in parts: on a CPU in one
shard per thread, and each shard in `grad_accum_steps` parts one after the other, which
needs less memory. The gradients of the parts are added in a fixed order, clipped by
their norm (Pascanu et al. 2013, arXiv:1211.5063, section 3.2), and given to the
optimiser. If a run has several ranks, each computes its share of a minibatch, and the
gradients are averaged over the ranks before the clip, as one flat tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.learn import native_steps
from trainer.learn.imitation import Imitation
from trainer.learn.losses import Loss
from trainer.learn.statistics import Statistics
from trainer.machine.cpu import Shards
from trainer.machine.monitor import mark
from trainer.machine.ranks import ALONE, Ranks
from trainer.models import PolicyModel


class Gradient(NamedTuple):
    """The contribution of a part of a minibatch to the gradient.

    Attributes:
        terms: names of the loss and its parts.
        losses: (n,) float32 values of the terms.
        gradients: one for each trainable parameter, in the order of the parameters.
    """

    terms: tuple[str, ...]
    losses: Tensor
    gradients: list[Tensor]


class GradientStep:
    """One step of the optimiser on a loss.

    Attributes:
        params: the parameters to train.
        shards: threads that share a minibatch.
        grad_accum_steps: parts in which each thread computes its share.
        imitation: a loss of demonstrations to add; None if there is none.
    """

    def __init__(
        self,
        model: PolicyModel,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        *,
        max_grad_norm: float,
        grad_accum_steps: int,
        shards: Shards,
        device: torch.device,
        statistics: Statistics,
        ranks: Ranks = ALONE,
    ) -> None:
        """Prepares steps of the trainable parameters of `model`."""
        self.shards = shards
        self.grad_accum_steps = grad_accum_steps
        self.imitation: Imitation | None = None
        self._device = device
        self.params = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = optimizer
        self._scaler = scaler
        self._max_grad_norm = max_grad_norm
        self._statistics = statistics
        self._ranks = ranks

    def split(self, count: int) -> list[slice]:
        """Items 0 to count - 1 in contiguous parts, one for each shard."""
        return _chunks(slice(0, count), self.shards.count)

    def __call__(
        self, items: list[slice], part_loss: Callable[[int, slice], Loss]
    ) -> None:
        """Makes one step."""

        def gradient(shard: int, some: slice) -> Gradient:
            parts = _chunks(some, self.grad_accum_steps)
            return reduce(_add, (self._gradient(part_loss(shard, p)) for p in parts))

        self.make(items, gradient)

    def make(
        self, items: list[slice], gradient: Callable[[int, slice], Gradient]
    ) -> None:
        """Makes one step from gradients that any code may compute."""
        imitation = self.imitation if self.imitation and self.imitation.weight else None
        rows = imitation.draw().tensor_split(len(items)) if imitation else ()

        def share(shard: int) -> tuple[Gradient, Tensor | None]:
            part = gradient(shard, items[shard])
            if imitation is None:
                return part, None
            return part, self._add_imitation(imitation, part.gradients, rows[shard])

        with mark("gradients"):
            shares = self.shards.map(share, list(range(len(items))))
        parts = [part for part, _ in shares]
        losses = [loss for _, loss in shares if loss is not None]
        if losses:
            self._statistics.log("loss/imitation", torch.stack(losses).sum())
        with mark("optimizer"):
            self.apply(parts)

    def _add_imitation(
        self, imitation: Imitation, gradients: list[Tensor], rows: Tensor
    ) -> Tensor:
        """Adds the gradient of rows of demonstrations, in place; returns their loss."""
        total = torch.zeros((), device=self._device)
        for some in _chunks(slice(0, len(rows)), self.grad_accum_steps):
            loss = imitation.loss(rows[some])
            scaled = self._scaler.scale(imitation.weight * loss)
            own = torch.autograd.grad(scaled, self.params, allow_unused=True)
            # The critic's weights have no imitation gradient.
            pairs = [p for p in zip(gradients, own, strict=True) if p[1] is not None]
            torch._foreach_add_([one for one, _ in pairs], [more for _, more in pairs])
            total += loss.detach()
        return total

    def _gradient(self, loss: Loss) -> Gradient:
        # Not backward(): shards would add to the same .grad concurrently.
        gradients = torch.autograd.grad(self._scaler.scale(loss.total), self.params)
        terms = {
            name: value for name, value in loss._asdict().items() if value is not None
        }
        losses = torch.stack([value.detach() for value in terms.values()])
        return Gradient(
            tuple(f"loss/{name}" for name in terms), losses, list(gradients)
        )

    def apply(self, parts: list[Gradient]) -> None:
        """Adds the gradients of the shards in order, averages, clips, and steps."""
        terms, losses, gradients = reduce(_add, parts)
        self._ranks.average(gradients)
        for param, gradient in zip(self.params, gradients, strict=True):
            param.grad = gradient
        self._scaler.unscale_(self._optimizer)
        norm = _clip(gradients, self._max_grad_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        # If a scaled loss overflows, the scaler skips the step.
        overflows = self._scaler.is_enabled()
        self._statistics.log("gradient_norm", norm, finite_only=overflows)
        self._statistics.log_all(terms, losses)


def _clip(gradients: list[Tensor], max_norm: float) -> Tensor:
    """Scales gradients down, in place, as torch.nn.utils.clip_grad_norm_ does.

    Takes a quarter of PyTorch's time on a CPU, even without native code.
    """
    if native_steps.BEST and native_steps.plain(*gradients):
        path = native_steps.BEST
        return torch.tensor(native_steps.clip_norm(gradients, max_norm, path))
    norm: Tensor = torch.stack(torch._foreach_norm(gradients)).norm()
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1))
    return norm


def _add(total: Gradient, part: Gradient) -> Gradient:
    """Sums losses and, in place, gradients."""
    torch._foreach_add_(total.gradients, part.gradients)
    return total._replace(losses=total.losses + part.losses)


def _chunks(items: slice, count: int) -> list[slice]:
    """At most `count` contiguous parts, all except the last of the same size."""
    size = max(1, -(-(items.stop - items.start) // count))
    starts = range(items.start, items.stop, size)
    return [slice(start, min(start + size, items.stop)) for start in starts]
