"""The gradient of PPO's loss on a CPU, in native code from the frames to the weights.

If the network is an encoder with native code (trainer/models/native.py) and two linear
heads, a part of a minibatch takes four calls: gather the frames, encode them, evaluate
the heads and the loss with their gradients (csrc/learner), and compute the encoder's
gradients. PyTorch needs a few hundred operators for the same result, and their overhead
exceeds the arithmetic; it computes the gradients of all other networks.
tests/trainer/test_fused.py compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from trainer.config.learning import Ppo
from trainer.learn.gradients import Gradient
from trainer.learn.learner import Learner
from trainer.learn.losses import Loss
from trainer.models import ActorCritic
from trainer.models.heads import PolicyValueHead
from trainer.models.native import EncoderPass, has_hooks
from trainer.models.popart import PopArt
from trainer.rollout.batch import observations

with suppress(ImportError):  # if it is not built, there is no `EncoderPass` either
    from trainer import _native

_TERMS = tuple(f"loss/{name}" for name in Loss._fields if name != "augmented")


class FusedGradient:
    """The gradient steps of PPO on the rows of one batch.

    It stores the addresses of the weights, so each batch needs a new object.
    """

    def __init__(
        self, learner: Learner, encoder: EncoderPass, head: PolicyValueHead, loss: Ppo
    ) -> None:
        """Takes a supported network; `of` checks whether a network is supported."""
        self._learner, self._encoder = learner, encoder
        c, params = learner.config.learner, learner.gradient_step.params
        self._options = (
            loss.clip_range,
            c.value_coef,
            float(learner.entropy_coef),
            c.value_loss == "huber",
            c.normalise_advantages,
        )
        policy, value = _layers(head)
        self._outputs = policy.out_features, value.out_features
        self._head_weights = [weight.data_ptr() for weight in _weights(head)]
        scale = (
            (head.value.mean, head.value.std) if isinstance(head.value, PopArt) else ()
        )
        self._head_weights += [tensor.data_ptr() for tensor in scale] or [0, 0]
        places = {id(param): i for i, param in enumerate(params)}
        self._of_encoder = [places[id(weight)] for weight in encoder.weights]
        self._of_head = [places[id(weight)] for weight in _weights(head)]
        # Each shard has separate memory.
        self._gradients = [
            [torch.zeros_like(param) for param in params]
            for _ in range(learner.gradient_step.shards.count)
        ]

    @classmethod
    def of(cls, learner: Learner) -> FusedGradient | None:
        """The fused gradient of a network's current weights; None if unsupported."""
        model, c = learner.model, learner.config
        if (
            not isinstance(c.learner.loss, Ppo)
            or learner.device.type != "cpu"
            or learner.dtype != torch.bfloat16
            or learner.augmentation
            or c.compile
            or c.learner.grad_accum_steps != 1
            or not isinstance(model, ActorCritic)
            or not model.native
            or any(map(has_hooks, model.modules()))
            or type(model).forward is not ActorCritic.forward
            or model.memory is not None
            or type(model.head) is not PolicyValueHead
            or any(type(layer) is not nn.Linear for layer in _layers(model.head))
        ):
            return None
        encoder = EncoderPass.of(model.encoder, learner.obs_shape)
        if encoder is None:
            return None
        covered = {id(weight) for weight in (*encoder.weights, *_weights(model.head))}
        if covered != {id(param) for param in learner.gradient_step.params}:
            return None
        return cls(learner, encoder, model.head, c.learner.loss)

    def step(self, fields: Sequence[Tensor], rows: Tensor) -> None:
        """A gradient step on rows (n,) of `PPO.fields_of` (1, N, ...).

        The fields are contiguous, and the network has no memory.
        """
        learner = self._learner
        stacks, _, levels, _, actions, *targets = fields
        addresses = [field.data_ptr() for field in (actions, levels, *targets)]

        def gradient(shard: int, some: slice) -> Gradient:
            images = observations(
                learner.frames, stacks[0, rows[some]], learner.obs_shape
            )
            kept = self._encoder.forward(images)
            features = kept[0]
            d_features = torch.empty_like(features)
            gradients = self._gradients[shard]
            terms = _native.ppo_head_loss(
                (features.shape[1], *self._outputs),
                self._head_weights,
                self._options,
                addresses,
                rows.data_ptr(),
                len(rows),
                some.start,
                some.stop - some.start,
                features.data_ptr(),
                d_features.data_ptr(),
                [gradients[i].data_ptr() for i in self._of_head],
            )
            of_encoder = [gradients[i] for i in self._of_encoder]
            self._encoder.backward(images, kept, d_features, of_encoder)
            return Gradient(_TERMS, torch.tensor(terms), gradients)

        step = learner.gradient_step
        step(step.split(len(rows)), gradient)


def _layers(head: PolicyValueHead) -> tuple[nn.Linear, nn.Linear]:
    value = head.value
    return head.policy, value.layer if isinstance(value, PopArt) else value


def _weights(head: PolicyValueHead) -> list[Tensor]:
    """Weights and biases, logits first."""
    return [w for layer in _layers(head) for w in (layer.weight, layer.bias)]
