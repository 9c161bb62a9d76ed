"""Learners of tiny networks, and batches of random rows for them."""

import small_runs
import torch
from small_runs import CPU

from trainer.config.learning import Adam
from trainer.config.plain import to_dict
from trainer.config.schema import LearnerConfig, RunConfig
from trainer.learn import build_learner
from trainer.machine.cpu import Shards
from trainer.models import build_model, checkpoint
from trainer.rollout.store import Batch

T, B, A, SHAPE = 8, 6, 3, (4, 36, 36)
SMALL = RunConfig(
    learner=LearnerConfig(
        unroll=T, unrolls_per_batch=B, minibatch_size=24, epochs=2, lr_steps=100,
        entropy_steps=100,
        optimizer=Adam(eps=1e-3), lr=1e-3, lr_end=1e-4, entropy=0.01, entropy_end=0.001,
    ),
)  # fmt: skip


def change(config=SMALL, **options):
    return small_runs.change(config, **options)


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


def make_learner(config=SMALL, shards=1, dtype=None, model=None, obs_shape=SHAPE):
    return build_learner(
        model or make_model(config),
        config,
        obs_shape=obs_shape,
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
    close_shards(learner)
    return flat(learner.model)


def close_shards(learner):
    """Ends the threads that `make_learner` started."""
    learner.gradient_step.shards.close()


def evaluate(model, batch, config=SMALL, obs_shape=SHAPE):
    """Logits (T + 1, B, A) and values (T + 1, B) of a network without a learner."""
    learner = make_learner(config, model=model, obs_shape=obs_shape)
    learner.frames = batch.frames
    with torch.no_grad():
        return learner.forward(*batch.inputs(slice(None)))


def write_checkpoint(path, **options):
    """Writes a checkpoint of a network for tiles; returns its averaged weights."""
    config = change(RunConfig(), obs="tiles", model="tiles", stack_num=1, **options)
    config = config.resolved()
    model = build_model(config.model, (1, 16, 16), len(config.env.actions))
    average = {name: weight + 1 for name, weight in model.state_dict().items()}
    state = {"config": to_dict(config), "model": model.state_dict(), "ema": average}
    checkpoint.save(path, state | {"steps": 7, "games": [1, 2]})
    return average
