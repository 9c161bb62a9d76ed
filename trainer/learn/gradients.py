"""The gradient step of all losses, and what it reports.

The losses are sums over rows, so a minibatch can be computed in parts: on a CPU in one
shard per thread, and each shard in `grad_accum_steps` parts one after the other, which
needs less memory. The gradients of the parts are added in a fixed order, clipped by
their norm (Pascanu et al. 2013, arXiv:1211.5063, section 3.2), and given to the
optimiser. If a run has several ranks, each computes its share of a minibatch, and the
gradients are averaged over the ranks before the clip, as one flat tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from trainer.config.learning import LearnerConfig
from trainer.learn.losses import Loss
from trainer.learn.optim import clip_gradients
from trainer.machine.cpu import Shards
from trainer.machine.monitor import mark
from trainer.machine.ranks import ALONE, Ranks
from trainer.models import PolicyModel, PolicyOutput


class Statistics:
    """Means of scalars since the last call of `means`.

    They are sums on the device, copied to the host only when read. A CUDA graph of the
    gradient step also records the additions, so each replay logs.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Of scalars that come together: their n sums, and how often they came.
        self._sums: dict[tuple[str, ...], Tensor] = {}

    def log(self, name: str, value: Tensor, *, finite_only: bool = False) -> None:
        """Adds a scalar to its sum, in place and without waiting for the device."""
        value = value.float()
        if finite_only:
            finite = value.nan_to_num(0.0, 0.0, 0.0)
            self.log_all((name,), finite, value.isfinite().float())
        else:
            self.log_all((name,), value)

    def log_all(
        self, names: tuple[str, ...], values: Tensor, counted: Tensor | float = 1.0
    ) -> None:
        """Adds scalars (n,) that always come together under these names, at once."""
        if names not in self._sums:
            self._sums[names] = torch.zeros(len(names) + 1, device=self.device)
        sums = self._sums[names]
        sums[:-1] += values.detach()
        sums[-1] += counted

    def means(self) -> dict[str, float]:
        """Returns the means by name and resets them; this waits for the device."""
        if not self._sums:
            return {}
        numbers = iter(torch.cat(list(self._sums.values())).tolist())
        result: dict[str, float] = {}
        for names, sums in self._sums.items():
            totals, count = [next(numbers) for _ in names], next(numbers)
            if count:
                result |= {n: t / count for n, t in zip(names, totals, strict=True)}
            sums.zero_()
        return result


class Gradient(NamedTuple):
    """The contribution of a part of a minibatch to the gradient."""

    terms: tuple[str, ...]  # names of the loss and its n - 1 terms
    losses: Tensor  # (n,) float32
    gradients: list[Tensor]  # one for each trainable parameter, in their order


class GradientStep:
    """One step of the optimiser on the trainable parameters of a network.

    Attributes:
        imitation: a loss of demonstrations to add; None if there is none.
    """

    def __init__(
        self,
        model: PolicyModel,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,  # enabled for fp16
        config: LearnerConfig,
        shards: Shards,
        statistics: Statistics,
        ranks: Ranks = ALONE,
    ) -> None:
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.shards, self.grad_accum_steps = shards, config.grad_accum_steps
        self.imitation: Imitation | None = None
        self._optimizer, self._scaler = optimizer, scaler
        self._max_grad_norm = config.max_grad_norm
        self._statistics, self._ranks = statistics, ranks

    def split(self, count: int) -> list[slice]:
        """Items 0 to count - 1 in contiguous parts, one for each shard."""
        return _chunks(slice(0, count), self.shards.count)

    def __call__(
        self, items: list[slice], part: Callable[[int, slice], Loss | Gradient]
    ) -> None:
        """Makes one step on the items of each shard, from `split`.

        `part` takes a shard's number and some of its items. It returns their loss, or
        their gradient if other code than autograd computes it. The losses of all parts
        add up to the minibatch's loss.
        """
        imitation = self.imitation if self.imitation and self.imitation.weight else None
        rows = imitation.draw().tensor_split(len(items)) if imitation else ()

        def share(shard: int) -> tuple[Gradient, Tensor | None]:
            chunks = _chunks(items[shard], self.grad_accum_steps)
            gradient = reduce(_add, (self._gradient(part(shard, c)) for c in chunks))
            if imitation is None:
                return gradient, None
            return gradient, self._imitate(imitation, gradient.gradients, rows[shard])

        with mark("gradients"):
            shares = self.shards.map(share, list(range(len(items))))
        losses = [loss for _, loss in shares if loss is not None]
        if losses:
            self._statistics.log("loss/imitation", torch.stack(losses).sum())
        with mark("optimizer"):
            self._apply([gradient for gradient, _ in shares])

    def _gradient(self, part: Loss | Gradient) -> Gradient:
        if isinstance(part, Gradient):
            return part
        # Not backward(): shards would add to the same .grad concurrently.
        gradients = torch.autograd.grad(self._scaler.scale(part.total), self.params)
        terms = {
            f"loss/{name}": value.detach()
            for name, value in part._asdict().items()
            if value is not None
        }
        return Gradient(
            tuple(terms), torch.stack(list(terms.values())), list(gradients)
        )

    def _imitate(
        self, imitation: Imitation, gradients: list[Tensor], rows: Tensor
    ) -> Tensor:
        """Adds the gradient of rows of demonstrations, in place; returns their loss."""
        total = torch.zeros((), device=rows.device)
        for some in _chunks(slice(0, len(rows)), self.grad_accum_steps):
            loss = imitation.loss(rows[some])
            scaled = self._scaler.scale(imitation.weight * loss)
            # Zeros for the critic's weights, which this loss does not depend on.
            more = torch.autograd.grad(scaled, self.params, materialize_grads=True)
            torch._foreach_add_(gradients, more)
            total += loss.detach()
        return total

    def _apply(self, shares: list[Gradient]) -> None:
        """Adds the gradients of the shards in order, averages, clips, and steps."""
        terms, losses, gradients = reduce(_add, shares)
        self._ranks.average(gradients)
        for param, gradient in zip(self.params, gradients, strict=True):
            param.grad = gradient
        self._scaler.unscale_(self._optimizer)
        norm = clip_gradients(gradients, self._max_grad_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        # If a scaled loss overflows, the scaler skips the step.
        overflows = self._scaler.is_enabled()
        self._statistics.log("gradient_norm", norm, finite_only=overflows)
        self._statistics.log_all(terms, losses)


def _add(total: Gradient, part: Gradient) -> Gradient:
    """Sums losses and, in place, gradients."""
    torch._foreach_add_(total.gradients, part.gradients)
    return total._replace(losses=total.losses + part.losses)


def _chunks(items: slice, count: int) -> list[slice]:
    """At most `count` contiguous parts, all except the last of the same size."""
    size = max(1, -(-(items.stop - items.start) // count))
    starts = range(items.start, items.stop, size)
    return [slice(start, min(start + size, items.stop)) for start in starts]


def run_rows(
    model: PolicyModel, obs: Tensor, dtype: torch.dtype | None
) -> PolicyOutput:
    """The output (1, n) for single rows (n, C, H, W) of a network without a memory."""
    n, device = len(obs), obs.device
    state = torch.zeros(n, 0, device=device)
    first = torch.zeros(1, n, dtype=torch.bool, device=device)
    # As in `Learner.forward`: entered in every thread, and without a cache.
    with torch.autocast(device.type, dtype, dtype is not None, cache_enabled=False):
        output: PolicyOutput
        output, _ = model(obs[None], state, first)
    return output


class Imitation:
    """The cross-entropy of demonstrated actions, as the only loss or added.

    As the only loss it is behavioural cloning (Pomerleau 1989, "ALVINN"). Added to the
    policy gradient it is DAPG (Rajeswaran et al. 2018, arXiv:1709.10087, section 4.2):
    the gradient of the log-probability of demonstrated actions, with a weight that
    falls to 0.

    Attributes:
        weight: weight of the loss, which changes between updates.
    """

    # Rows of demonstrations in a gradient step.
    _ROWS = 256
    # Learning rate of cloning, which falls to 0: Adam's default (Kingma & Ba 2015).
    _CLONING_RATE = 1e-3

    def __init__(
        self,
        model: PolicyModel,
        obs: Tensor,  # (n, C, H, W) uint8, on the model's device
        actions: Tensor,  # (n,) int64
        dtype: torch.dtype | None,  # of autocast; None: float32
        generator: torch.Generator,
    ) -> None:
        self.weight = 0.0
        self._model, self._obs, self._actions = model, obs, actions
        self._dtype, self._generator = dtype, generator

    def draw(self) -> Tensor:
        """Rows for a gradient step, (k,) int64."""
        device = self._actions.device
        return torch.randint(
            len(self._actions), (self._ROWS,), generator=self._generator, device=device
        )

    def loss(self, rows: Tensor) -> Tensor:
        """The loss of some of the drawn rows; the losses of all parts add up."""
        logits = run_rows(self._model, self._obs[rows], self._dtype).logits[0].float()
        loss = functional.cross_entropy(logits, self._actions[rows], reduction="sum")
        return loss / self._ROWS

    def clone(self, steps: int) -> Iterator[float]:
        """Trains on only this loss, with a separate optimiser; yields the losses."""
        optimizer = torch.optim.Adam(self._model.parameters(), lr=self._CLONING_RATE)
        rate = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, max(1, steps))
        for _ in range(steps):
            loss = self.loss(self.draw())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rate.step()
            yield float(loss.detach())
