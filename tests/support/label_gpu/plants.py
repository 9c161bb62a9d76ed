"""Faults to plant in the trainer, each of which the label GPU must report.

A plant changes the trainer in this process for good.
"""

from __future__ import annotations

from typing import Any

import torch

from trainer.learn import losses, ppo
from trainer.machine import cuda
from trainer.rollout import collector, pipeline
from trainer.rollout import frames as store


def record_stream() -> None:
    """No stream says that it uses the memory of another."""
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[assignment]


def rows() -> None:
    """The collecting thread does not say that it uses rows of another thread."""
    collector.use_here = lambda device, *tensors: None


def frames() -> None:
    """Who reads the frames of a store does not announce it."""
    store.use_here = lambda device, *tensors: None


def fence() -> None:
    """The learner and the collector do not wait for each other's unrolls."""

    def wait(self: Any) -> None:
        if self._events is not None:
            self._events.clear()

    cuda.Fence.wait = wait  # type: ignore[method-assign]


def weights() -> None:
    """Acting does not wait until the published weights are copied."""
    init = pipeline.Weights.__init__

    def without(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        for written in self._written.values():
            written.wait = lambda: None

    pipeline.Weights.__init__ = without  # type: ignore[method-assign]


def copy() -> None:
    """The stream that acts does not wait for the copies of observations."""
    stream: Any = torch.cuda.Stream
    stream.kind.wait_event = lambda self, event: None


def item() -> None:
    """A gradient step asks the host for a number."""
    loss = losses.ppo_loss

    def asks(logits: Any, *args: Any, **options: Any) -> Any:
        assert float(logits.sum()) < 1e9
        return loss(logits, *args, **options)

    ppo.PPO.loss = staticmethod(asks)


def cpu_tensor() -> None:
    """The targets are computed with a tensor of the CPU."""
    log_prob = ppo.log_prob

    def mixed(logits: Any, actions: Any) -> Any:
        return log_prob(logits, actions) + torch.zeros(actions.shape)

    ppo.log_prob = mixed


PLANTS = {
    each.__name__: each
    for each in (
        record_stream, rows, frames, fence, weights, copy, item, cpu_tensor
    )
}  # fmt: skip
