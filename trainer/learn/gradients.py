"""The gradient step that both algorithms share.

The losses are sums over rows, so a minibatch can be computed in parts: on a CPU in one
shard per thread, and each shard in `grad_accum_steps` parts one after the other, which
needs less memory. The gradients of the parts are added in a fixed order, clipped by
their norm (Pascanu et al. 2013, arXiv:1211.5063, section 3.2), and given to the
optimiser.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

from trainer.learn.losses import Loss
from trainer.learn.statistics import Statistics
from trainer.machine.cpu import Shards
from trainer.models import PolicyModel

# A loss without its graph, and its gradient for each parameter.
Gradient = tuple[Loss, list[Tensor]]


class GradientStep:
    """One step of the optimiser on a loss.

    Attributes:
        shards: threads that share a minibatch.
        grad_accum_steps: parts in which each of them computes its share.
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
    ) -> None:
        """Prepares steps of the trainable parameters of `model`.

        Args:
            model: what is trained.
            optimizer: of its parameters.
            scaler: of the loss; enabled for fp16.
            max_grad_norm: clip of the gradient's norm.
            grad_accum_steps: parts of a shard, one after the other.
            shards: threads that share a minibatch.
            device: of the model and the minibatches.
            statistics: where the loss is logged.
        """
        self.shards = shards
        self.grad_accum_steps = grad_accum_steps
        self._device = device
        self._params = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = optimizer
        self._scaler = scaler
        self._max_grad_norm = max_grad_norm
        self._statistics = statistics

    def split(self, count: int) -> list[Tensor]:
        """Items 0 to count - 1 in contiguous parts, one for each shard."""
        return list(torch.arange(count, device=self._device).chunk(self.shards.count))

    def __call__(
        self, items: list[Tensor], part_loss: Callable[[int, Tensor], Loss]
    ) -> None:
        """Makes one step.

        Args:
            items: of each shard, from `split`.
            part_loss: the loss of some items of a shard, given the shard's number and
                the items. The losses of all parts add up to that of the minibatch.
        """

        def gradient(shard: int) -> Gradient:
            parts = items[shard].chunk(self.grad_accum_steps)
            return reduce(_add, (self._gradient(part_loss(shard, p)) for p in parts))

        self._apply(self.shards.map(gradient, list(range(len(items)))))

    def _gradient(self, loss: Loss) -> Gradient:
        # Not backward(): shards would add to the same .grad at the same time.
        gradients = torch.autograd.grad(self._scaler.scale(loss.total), self._params)
        return loss._replace(total=loss.total.detach()), list(gradients)

    def _apply(self, parts: list[Gradient]) -> None:
        """Adds the gradients of the shards in order, clips, and steps."""
        loss, gradients = reduce(_add, parts)
        for param, gradient in zip(self._params, gradients, strict=True):
            param.grad = gradient
        self._scaler.unscale_(self._optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self._params, self._max_grad_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        # A scaled loss may overflow, and then there is no step.
        overflows = self._scaler.is_enabled()
        self._statistics.log("gradient_norm", norm, finite_only=overflows)
        for name, value in zip(Loss._fields, loss, strict=True):
            if value is not None:
                self._statistics.log(f"loss/{name}", value)


def _add(total: Gradient, part: Gradient) -> Gradient:
    """Sums losses and, in place, gradients."""
    torch._foreach_add_(total[1], part[1])
    pairs = zip(total[0], part[0], strict=True)
    sums = (None if a is None or b is None else a + b for a, b in pairs)
    return Loss._make(sums), total[1]
