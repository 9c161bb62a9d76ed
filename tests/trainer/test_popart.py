"""PopArt and value heads: statistics, values that stay, levels that count alike."""

import math

import pytest
import torch
from learners import B, T, change, evaluate, flat, make_batch, make_learner

from trainer.config.schema import ModelConfig
from trainer.learn.losses import Targets, impala_loss
from trainer.models import build_model
from trainer.models.heads import NoisyLinear
from trainer.models.popart import PopArt

STEP = 0.01


def layer(outputs, noisy=False):
    torch.manual_seed(1)
    made = NoisyLinear(8, outputs, 0.5) if noisy else torch.nn.Linear(8, outputs)
    return PopArt(made)


def some_targets(seed, count=200, levels=3):
    g = torch.Generator().manual_seed(seed)
    numbers = torch.randint(levels, (count,), generator=g)
    numbers[numbers == 1] = 2 if seed % 2 else 1  # level 1 is not in every batch
    scales = torch.tensor([100.0, 1.0, 0.01])[numbers]
    targets = scales * (torch.randn(count, generator=g) + 3 + seed)
    weights = (torch.rand(count, generator=g) < 0.8).float()
    return targets, numbers, weights


def slow_statistics(batches, level):
    """The mean and second moment of a level, row by row, in double precision."""
    first = second = known = 0.0
    for targets, numbers, weights in batches:
        rows = [
            (float(x), float(w))
            for x, n, w in zip(targets.double(), numbers, weights, strict=True)
            if n == level
        ]
        count = sum(w for _, w in rows)
        if not count:
            continue
        moved = 1 - (1 - STEP) ** count
        known += moved * (1 - known)
        rate = moved / known
        first += rate * (sum(w * x for x, w in rows) / count - first)
        second += rate * (sum(w * x * x for x, w in rows) / count - second)
    return first, math.sqrt(second - first**2)


def test_statistics_against_the_slow_twin():
    popart = layer(3)
    batches = [some_targets(seed) for seed in range(6)]
    for batch in batches:
        popart.update(*batch, STEP)
    for level in range(3):
        mean, std = slow_statistics(batches, level)
        assert popart.mean[level].item() == pytest.approx(mean, rel=1e-4)
        assert popart.std[level].item() == pytest.approx(std, rel=1e-3)


def test_the_first_targets_are_not_averaged_with_nothing():
    popart = layer(1)
    targets, numbers, weights = some_targets(0)
    popart.update(targets, numbers, weights, 1e-6)
    rows = targets[weights > 0]
    assert popart.mean.item() == pytest.approx(rows.mean().item(), rel=1e-4)
    assert popart.std.item() == pytest.approx(rows.std(correction=0).item(), rel=1e-4)


@pytest.mark.parametrize("noisy", [False, True])
def test_values_stay_while_statistics_move(noisy):
    popart = layer(3, noisy)
    features = torch.randn(50, 8)
    said = popart.layer(features)
    popart.update(*some_targets(0), STEP)
    # The first values are the layer's own, on the scale of the targets.
    before = popart(features)
    torch.testing.assert_close(before, said * popart.std + popart.mean)
    old = popart.std.clone()
    for seed in range(1, 5):
        popart.update(*some_targets(seed), STEP)
    assert (popart.std / old - 1).abs().min() > 0.01
    torch.testing.assert_close(popart(features), before, rtol=1e-3, atol=2e-3)


def test_a_level_without_rows_keeps_everything():
    popart = layer(3)
    popart.update(*some_targets(0), STEP)
    old = [x[1].clone() for x in (popart.mean, popart.std, popart.layer.weight)]
    targets, numbers, weights = some_targets(1)
    assert not (numbers == 1).any()
    popart.update(targets, numbers, weights, STEP)
    new = [x[1] for x in (popart.mean, popart.std, popart.layer.weight)]
    assert all(torch.equal(a, b) for a, b in zip(old, new, strict=True))
    popart.update(targets, numbers, torch.zeros_like(weights), STEP)
    assert torch.isfinite(popart.std).all()


def test_one_output_is_that_of_all_levels():
    popart = layer(1)
    assert torch.equal(popart.scales(torch.tensor([0, 3, 7])), torch.ones(3))


def test_the_loss_is_that_of_the_normalised_layer():
    """v / std against v's target / std is the layer against the normalised target."""
    popart = layer(2)
    popart.update(*some_targets(0, levels=2), STEP)
    features, levels = torch.randn(20, 8), torch.arange(20) % 2
    returns = 50 * torch.randn(20)
    zeros = torch.zeros(20)
    targets = Targets(
        actions=torch.zeros(20, dtype=torch.int64), log_mu=zeros, advantages=zeros,
        values=returns, weights=torch.full((20,), 1 / 20), scales=popart.scales(levels),
    )  # fmt: skip
    values = popart(features)[torch.arange(20), levels]
    loss = impala_loss(
        torch.zeros(20, 3), values, targets, value_coef=1.0, value_kind="squared",
        entropy_coef=0.0,
    )  # fmt: skip
    said = popart.layer(features)[torch.arange(20), levels]
    wanted = (returns - popart.mean[levels]) / popart.std[levels]
    slow = (0.5 * (said - wanted).square()).mean()
    torch.testing.assert_close(loss.total, slow)
    weight = popart.layer.weight
    one, other = (torch.autograd.grad(x, weight)[0] for x in (loss.total, slow))
    torch.testing.assert_close(one, other)


def two_levels(**options):
    """A batch of two levels, a dark and a bright one; one pays 10,000 times as much.

    Action 0 pays in level 0, action 2 in level 1, and the others cost as much.
    """
    config = change(
        epochs=1, lr=3e-3, lr_end=3e-3, gamma=0.0, entropy=0.0, entropy_end=0.0,
        clip_range=10.0, lag=1, minibatch_size=T * B, adam_eps=1e-5,
        value_loss="squared", **options,
    )  # fmt: skip
    batch = make_batch(config)
    batch.levels[:, B // 2 :] = 1
    pixels = torch.full((len(batch.frames), 36 * 36), 230, dtype=torch.uint8)
    pixels[batch.stacks[:, : B // 2].flatten()] = 60
    good = torch.where(batch.levels == 0, 0, 2)
    pay = torch.where(batch.levels == 0, 100.0, 0.01)
    reward = torch.where(batch.actions == good, pay, -pay)
    batch.rewards[1:] = reward[:-1]
    logits = torch.zeros_like(batch.logits)
    return config, batch._replace(frames=pixels.view(torch.int64), logits=logits)


def learned(config, batch, updates=40):
    """Probability of the good action, and the value by what it pays, in both levels."""
    learner = make_learner(config)
    for _ in range(updates):
        learner.update(batch, 0)
    logits, values = evaluate(learner.model, batch)
    odds = logits.softmax(-1)
    return (odds[0, 0, 0], values[0, 0] / 100), (odds[0, -1, 2], values[0, -1] / 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["ppo", "impala"])
def test_levels_of_any_scale_are_learned_alike(loss):
    config, batch = two_levels(loss=loss, popart=True, value_heads=2)
    for probability, value in learned(config, batch):
        assert probability > 0.9
        assert 0.5 < value < 1.5
    config, batch = two_levels(loss=loss)
    (_, _), (probability, _) = learned(config, batch)
    assert probability < 0.6  # the other level's returns are all there is


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("loss", ["ppo", "impala"])
def test_a_head_learns_from_its_level_alone(loss, memory):
    config = change(loss=loss, memory=memory, value_heads=3, lag=1)
    batch = make_batch(config)
    batch.levels[:] = torch.arange(B) % 2
    learner = make_learner(config)
    old = learner.model.head.value.weight.detach().clone()
    learner.update(batch, 0)
    moved = (learner.model.head.value.weight - old).abs().amax(1)
    assert (moved[:2] > 0).all()
    assert moved[2] == 0


def test_values_are_those_of_the_rows_levels():
    """Against one network for each level that has that level's head alone."""
    config = change(value_heads=2)
    batch = make_batch(config)
    batch.levels[:, 1::2] = 1
    learner = make_learner(config)
    _, values = evaluate(learner.model, batch)
    for level in range(2):
        single = make_learner(change())
        state = learner.model.state_dict()
        for name in ("head.value.weight", "head.value.bias"):
            state[name] = state[name][level : level + 1]
        single.model.load_state_dict(state)
        _, alone = evaluate(single.model, batch)
        own = batch.levels == level
        torch.testing.assert_close(values[own], alone[own])


def test_averaged_values_stay_too():
    config, batch = two_levels(popart=True, value_heads=2, ema=0.9999)
    learner = make_learner(config)
    learner.update(batch, 0)
    # So many updates ago that the average hardly moves.
    learner.version = 10**6
    batch.rewards[:] *= 3
    model = learner.ema.model
    old = model.popart.std.clone()
    _, before = evaluate(model, batch)
    learner.update(batch, 0)
    assert torch.equal(model.popart.std, learner.model.popart.std)
    assert (model.popart.std > 1.5 * old).all()
    _, after = evaluate(model, batch)
    torch.testing.assert_close(after, before, rtol=0.02, atol=0.1)


def test_without_popart_nothing_is_divided():
    """All levels at once in a single head: the same as no levels at all."""
    batch, plain = make_batch(), make_batch()
    batch.levels[:, 1::2] = 1
    one, other = make_learner(), make_learner()
    one.update(batch, 0)
    other.update(plain, 0)
    assert torch.equal(flat(one.model), flat(other.model))


SOURCE = """
import torch
from torch import nn
class Own(nn.Module):
    def __init__(self, config, shape, num_actions):
        super().__init__()
        self.actions, self.heads = num_actions, {heads}
        self.weight = nn.Parameter(torch.zeros(1))
    def forward(self, obs, state, first):
        logits = self.weight.expand(*first.shape, self.actions)
        shape = first.shape if self.heads == 1 else (*first.shape, self.heads)
        return (logits, self.weight.expand(shape)), state
"""


@pytest.mark.parametrize(
    ("offers", "wanted", "popart", "message"),
    [
        (1, 1, False, ""),
        (2, 2, False, ""),
        (1, 2, False, r"\(2, 3, 2\).*or choose --value-heads 1: the run has 2 levels"),
        (1, 1, True, "has no attribute popart; choose --no-popart"),
    ],
)
def test_networks_of_ones_own(tmp_path, monkeypatch, offers, wanted, popart, message):
    name = f"own_{offers}_{wanted}_{popart}"
    (tmp_path / f"{name}.py").write_text(SOURCE.format(heads=offers))
    monkeypatch.syspath_prepend(tmp_path)
    config = ModelConfig(name=f"{name}:Own", value_heads=wanted, popart=popart)
    if not message:
        assert build_model(config, (4, 36, 36), 3).popart is None
        return
    with pytest.raises(ValueError, match=message):
        build_model(config, (4, 36, 36), 3)
