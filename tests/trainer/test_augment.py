"""Augmentation: what is changed and how, and that learning heeds it."""

from dataclasses import replace

import pytest
import torch
from learners import (
    B,
    T,
    change,
    close_shards,
    evaluate,
    flat,
    make_batch,
    make_learner,
)

from mario_envpool.actions import ACTION_SETS
from trainer.config.schema import AugmentConfig, EnvConfig
from trainer.learn import augment
from trainer.learn.augment import Augmentation, brightened, mirrored, shifted
from trainer.learn.losses import Targets, consistency
from trainer.run import main

CPU = torch.device("cpu")
COMPLEX = EnvConfig(action_set="complex")


def pictures(items=30):
    g = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (2, items, 3, 9, 11), generator=g, dtype=torch.uint8)


def augmentation(*kinds, env=COMPLEX, **options):
    return Augmentation(
        AugmentConfig(augment=kinds, **options), env, torch.device("cpu")
    )


def test_shifts_against_the_slow_twin():
    obs = pictures()
    g = torch.Generator().manual_seed(2)
    down, right = torch.randint(-4, 5, (2, 30), generator=g)
    got = shifted(obs, down, right, 4)
    for item in range(30):
        for y in range(9):
            for x in range(11):
                from_y = min(max(y - int(down[item]), 0), 8)
                from_x = min(max(x - int(right[item]), 0), 10)
                expected = obs[:, item, :, from_y, from_x]
                assert torch.equal(got[:, item, :, y, x], expected)
    assert not torch.equal(got, obs)


def test_brightness_against_the_slow_twin():
    obs = pictures(3)
    factors = torch.tensor([0.5, 1.0, 1.75])
    got = brightened(obs, factors)
    for item, factor in enumerate(factors.tolist()):
        old, new = obs[:, item].flatten().tolist(), got[:, item].flatten().tolist()
        assert new == [min(255, round(pixel * factor)) for pixel in old]


def test_strengths_are_obeyed(monkeypatch):
    obs, numbers = pictures(), torch.rand(4, 30)
    flipped = augmentation("flip").observations(obs, numbers)
    for item in range(30):
        expected = obs[:, item].flip(-1) if numbers[3, item] < 0.5 else obs[:, item]
        assert torch.equal(flipped[:, item], expected)
    pixels = augmentation("shift")._offsets(torch.linspace(0, 0.9999, 9000))
    assert sorted(set(pixels.tolist())) == list(range(-4, 5))
    for name in ("SHIFT", "BRIGHTNESS", "FLIP"):
        monkeypatch.setattr(augment, name, 0)
        nothing = augmentation(name.lower()).observations(obs, numbers)
        assert torch.equal(nothing, obs)


def test_tiles_are_shifted_by_a_cell_and_motion_stays():
    g = torch.Generator().manual_seed(3)
    obs = torch.randint(0, 256, (2, 60, 1, 16, 16), generator=g, dtype=torch.uint8)
    numbers = torch.rand(4, 60, generator=g)
    tiles = augmentation("shift", env=replace(COMPLEX, obs="tiles"))
    got = tiles.observations(obs, numbers)
    assert torch.equal(got[..., 13:, :], obs[..., 13:, :])
    down, right = ((n * 3).floor().long() - 1 for n in numbers[:2])
    expected = shifted(obs[..., :13, :], down, right, 1)
    assert torch.equal(got[..., :13, :], expected)
    moves = set(zip(down.tolist(), right.tolist(), strict=True))
    assert moves == {(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)}


def test_rows_and_frames_of_an_item_change_alike():
    """So that speeds, which a network reads from frames, stay what they are."""
    frame = torch.randint(0, 256, (1, 8, 1, 9, 11), dtype=torch.uint8)
    obs = frame.expand(5, 8, 4, 9, 11)
    changed = augmentation("shift", "brightness", "flip").observations(
        obs, torch.rand(4, 8)
    )
    assert torch.equal(changed, changed[:1, :, :1].expand_as(changed))
    assert not torch.equal(changed, obs)


def test_mirrored_actions():
    actions = ACTION_SETS["complex"]
    twins = {actions[i]: actions[j] for i, j in enumerate(mirrored(actions))}
    assert twins["NOOP"] == "NOOP"
    assert twins["right+A+B"] == "left+A+B"
    assert twins["left"] == "right"
    assert twins["down"] == "down"
    numbers = torch.tensor([[0.0, 0.0]] * 3 + [[0.1, 0.9]])
    logits = torch.randn(2, 2, len(actions))
    told = augmentation("flip").logits(logits, numbers)
    assert torch.equal(told[:, 1], logits[:, 1])
    for i, j in enumerate(mirrored(actions)):
        assert torch.equal(told[:, 0, i], logits[:, 0, j])


@pytest.mark.parametrize(
    ("kinds", "env", "message"),
    [
        (("zoom",), COMPLEX, "list of shift, brightness, flip; got 'zoom'"),
        (("flip",), replace(COMPLEX, obs="tiles"), "tiles, which can only be shifted"),
        (("shift", "brightness"), replace(COMPLEX, obs="tiles"), "augment=brightness"),
        (("flip",), EnvConfig(), "'right' is missing; --action-set complex"),
        (("flip",), EnvConfig(action_set="simple"), r"'right\+A' is missing"),
        (("flip",), replace(COMPLEX, task="Pong-v5"), "Pong-v5 has other actions"),
    ],
)
def test_what_cannot_be_is_named(kinds, env, message):
    with pytest.raises(ValueError, match=message):
        augmentation(*kinds, env=env)


@pytest.mark.rom
def test_the_command_says_so_too(tmp_path, capsys):
    options = f"--device cpu --augment shift,flip --run-dir {tmp_path / 'run'}"
    assert main(options.split()) == 2
    assert "error: augment=flip needs the mirror image" in capsys.readouterr().err


def test_kinds_are_written_with_commas_or_spaces():
    assert augmentation("shift, brightness,shift").kinds == ("shift", "brightness")
    assert augmentation("shift", "flip").kinds == ("shift", "flip")
    assert not augmentation()


def test_without_changes_nothing_is_drawn():
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    assert augmentation().draw(7, generator, CPU).shape == (0, 7)
    assert torch.equal(generator.get_state(), before)
    numbers = augmentation("shift").draw(7, generator, CPU)
    assert numbers.shape == (4, 7)
    assert not torch.equal(generator.get_state(), before)


def test_consistency_against_the_slow_twin():
    logits, values = torch.randn(6, 4), torch.randn(6)
    others, said = torch.randn(6, 4, requires_grad=True), torch.randn(6)
    zeros = torch.zeros(6)
    weights, scales = torch.rand(6), torch.rand(6) + 0.5
    actions = torch.zeros(6, dtype=torch.int64)
    targets = Targets(actions, zeros, zeros, zeros, weights, scales=scales)
    expected = 0.0
    for i in range(6):
        p, q = logits[i].softmax(-1), others[i].softmax(-1)
        kl = sum(p[a] * (p[a] / q[a]).log() for a in range(4))
        expected += weights[i] * (kl + ((said[i] - values[i]) / scales[i]) ** 2)
    got = consistency(logits, values, others, said, targets)
    torch.testing.assert_close(got, expected)
    assert consistency(logits, values, logits, values, targets).abs() < 1e-6


def augmented_config(cost, **options):
    """Nothing but the consistency is learned: nothing pays, and nothing else counts."""
    return change(
        augment=("shift", "brightness"), augment_coef=cost,
        value_coef=0.0, entropy=0.0, entropy_end=0.0, gamma=0.0, lr=3e-3, lr_end=3e-3,
        normalise_advantages=False, lag=1, epochs=1,
        minibatch_size=T * B, **options,
    )  # fmt: skip


def apart(config, updates=80):
    """How far the outputs on augmented rows are from those on true ones."""
    batch = make_batch(config)
    learner = make_learner(config)
    for _ in range(updates):
        # Rewards equal to the critic's values: no advantage.
        batch.rewards[1:] = evaluate(learner.model, batch).values[:-1]
        learner.update(batch, 0)
    batch.rewards[1:] = evaluate(learner.model, batch).values[:-1]
    learner.statistics()
    learner.update(batch, 0)
    return learner.statistics()["loss/augmented"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "memory"), [("ppo", "none"), ("ppo", "gru"), ("impala", "none")]
)
def test_learning_heeds_it(monkeypatch, loss, memory):
    monkeypatch.setattr(augment, "SHIFT", 2)  # of pictures of 36
    without = apart(augmented_config(0.0, loss=loss, memory=memory))
    assert apart(augmented_config(10.0, loss=loss, memory=memory)) < 0.5 * without


@pytest.mark.parametrize("loss", ["ppo", "impala"])
def test_it_is_the_same_again_and_in_shards(loss):
    config = augmented_config(1.0, loss=loss)
    weights = []
    for shards in (1, 1, 2):
        learner = make_learner(config, shards)
        learner.update(make_batch(config), 0)
        close_shards(learner)
        weights.append(flat(learner.model))
    assert torch.equal(weights[0], weights[1])
    torch.testing.assert_close(weights[0], weights[2], rtol=1e-4, atol=1e-5)


def test_without_it_there_is_no_such_loss():
    learner = make_learner()
    learner.update(make_batch(), 0)
    assert "loss/augmented" not in learner.statistics()
