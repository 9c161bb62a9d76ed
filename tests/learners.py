"""Learners of tiny networks, and batches of random rows for them."""

from dataclasses import fields, replace

import torch

from trainer.config.schema import LearnerConfig, ModelConfig, RunConfig
from trainer.learn.learner import Learner
from trainer.machine.device import Shards
from trainer.models import build_model
from trainer.rollout.batch import Batch

T, B, A, SHAPE = 8, 6, 3, (4, 36, 36)
CPU = torch.device("cpu")
SMALL = RunConfig(
    learner=LearnerConfig(
        unroll=T, unrolls_per_batch=B, minibatch_size=24, passes=2, lr_steps=100,
        entropy_steps=100, adam_eps=1e-3,
        optimizer="adam", lr=1e-3, lr_end=1e-4, entropy=0.01, entropy_end=0.001,
    ),
    model=ModelConfig(memory_size=8, memory_heads=2, memory_steps=3),
)  # fmt: skip


def change(config=SMALL, **options):
    """A config with options of any of its parts, and of its own, changed."""
    for name in ("learner", "replay", "model", "augmentation", "env"):
        part = getattr(config, name)
        own = {f.name for f in fields(part)} & set(options)
        part = replace(part, **{key: options.pop(key) for key in own})
        config = replace(config, **{name: part})
    return replace(config, **options)


def make_batch(config=SMALL, seed=0):
    """Random rows; column 0 terminates at row 3, column 1 is truncated there."""
    g = torch.Generator().manual_seed(seed)
    burn_in = config.replay.burn_in
    K = burn_in + T + 1
    frames = torch.randint(0, 256, (K * B * 4, 36 * 36), generator=g, dtype=torch.uint8)
    done = torch.zeros(K, B, dtype=torch.bool)
    done[burn_in + 3, :2] = True
    truncated = torch.zeros_like(done)
    truncated[burn_in + 3, 1] = True
    first = torch.zeros_like(done)
    first[burn_in + 4, :2] = True
    return Batch(
        frames=frames.view(torch.int64),
        stacks=torch.randperm(K * B * 4, generator=g).view(K, B, 4),
        actions=torch.randint(A, (K, B), generator=g),
        logits=0.3 * torch.randn(K, B, A, generator=g),
        values=torch.randn(K, B, generator=g),
        rewards=torch.randn(K, B, generator=g),
        done=done,
        truncated=truncated,
        is_first=first,
        versions=torch.zeros(K, B, dtype=torch.int64),
        levels=torch.zeros(K, B, dtype=torch.int64),
        state=0.5 * torch.randn(B, make_model(config).state_size, generator=g),
        weights=torch.ones(B),
        fresh=torch.ones(B, dtype=torch.bool),
    )


def with_replay(batch, count=3, weight=1.0):
    """The last `count` unrolls are replayed ones."""
    weights, fresh = batch.weights.clone(), batch.fresh.clone()
    weights[-count:], fresh[-count:] = weight, False
    return batch._replace(weights=weights, fresh=fresh)


def paint(batch, row, column, value):
    """Makes the picture of a row one colour."""
    pixels = batch.frames.view(torch.uint8).view(-1, 36 * 36).clone()
    pixels[batch.stacks[row, column]] = value
    return batch._replace(frames=pixels.view(torch.int64))


def make_model(config=SMALL):
    torch.manual_seed(5)
    return build_model(config.model, SHAPE, A)


def make_learner(config=SMALL, shards=1, dtype=None):
    return Learner(
        make_model(config),
        config,
        obs_shape=SHAPE,
        device=CPU,
        dtype=dtype,
        shards=Shards(shards),
    )


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def weights_after(batch, config=SMALL, shards=1, step=50, dtype=None, updates=1):
    learner = make_learner(config, shards, dtype)
    for _ in range(updates):
        learner.update(batch, step)
    learner._shards.close()
    return flat(learner.model)


def evaluate(learner, batch):
    learner._frames = batch.frames
    return learner._evaluate(learner.model, batch)
