"""The native encoders against the same modules in PyTorch.

PyTorch in float64, with every value rounded where the native code rounds it, differs
by the order of float32 sums only; PyTorch as users run it differs by bfloat16.
"""

import ast
import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from mario_envpool.tiles import NAMES
from trainer.config.network import GRU
from trainer.config.schema import TILES_ROWS, TILES_SHAPE, ModelConfig
from trainer.models import ActorCritic, build_model
from trainer.models.encoders import (
    FRAMES_AHEAD,
    NEAR_CELL,
    NEAR_LEFT,
    NEAR_SIDE,
    NEAR_TOP,
    PIXEL_MEAN,
    PIXEL_SCALE,
    build_encoder,
    near_maps,
)
from trainer.models.native import PATHS, features_of

pytestmark = pytest.mark.skipif(
    len(PATHS) < 2, reason="the CPU has none of the instructions with code of their own"
)

SHAPES = {
    "cnn-72k": (4, 40, 40),
    "tiles": TILES_SHAPE,
    "cnn-157k": (4, 84, 84),
    "cnn-345k": (4, 84, 84),
}
MODELS = list(SHAPES)


def images_for(name, rows, seed=0):
    """Mostly one grey, with things in it, like the game; codes below 32."""
    g = torch.Generator().manual_seed(seed)
    shape = (rows, *SHAPES[name])
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=g)
    if name == "tiles":
        images[:, :, :TILES_ROWS] %= 32
        images.view(rows, -1)[:, TILES_ROWS * 16 :: 6] %= 32
        return images
    sky = torch.rand(shape, generator=g) < 0.6
    return torch.where(sky, 144, images)


def made(name, **options):
    """An encoder whose biases are not 0."""
    torch.manual_seed(1)
    encoder, features = build_encoder(ModelConfig(name=name, **options), SHAPES[name])
    for parameter in encoder.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 0, 0.1)
    return encoder, features


def native(encoder, images, path=PATHS[-1]):
    with torch.autocast("cpu", torch.bfloat16):
        result = features_of(encoder, images, path)
    assert result is not None
    return result


def gradients(features, encoder, dy):
    return torch.autograd.grad(features, list(encoder.parameters()), dy)


def dy_for(rows, features):
    g = torch.Generator().manual_seed(2)
    return torch.randn(rows, features, generator=g) / rows


def distance(a, b):
    """Of two tensors, as a part of the second one."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm())


class RoundedWeight(torch.autograd.Function):
    """bfloat16 and back; the gradient stays a float32 sum."""

    @staticmethod
    def forward(ctx, x):
        return x.bfloat16().double()

    @staticmethod
    def backward(ctx, d):
        return d


class RoundedGradient(torch.autograd.Function):
    """As it is, with a rounded gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, d):
        return d.bfloat16().double()


def conv(x, layer, padding=0):
    weight = RoundedWeight.apply(layer.weight)
    return functional.conv2d(x, weight, layer.bias, layer.stride, padding)


def hidden(x):
    """A ReLU whose output is rounded, and the gradient of its input."""
    return RoundedWeight.apply(functional.relu(RoundedGradient.apply(x)))


def last(x, layer):
    """Of the gradient before the last ReLU the linear layer sees the rounded one."""
    x = functional.linear(x, RoundedWeight.apply(layer.weight), layer.bias)
    return functional.relu(RoundedGradient.apply(x))


def slow_near_maps(motion):
    """What hurts near Mario, thing by thing and cell by cell."""
    maps = torch.zeros(len(motion), len(FRAMES_AHEAD), NEAR_SIDE, NEAR_SIDE)
    for row, frame in enumerate(motion.view(torch.int8).tolist()):
        mario, *things = frame
        for code, x, y, speed_x, speed_y, _ in things:
            if code not in (NAMES.index("enemy"), NAMES.index("danger")):
                continue
            for number, frames in enumerate(FRAMES_AHEAD):
                at_x = x + (speed_x - mario[3]) * frames // 16
                at_y = y + (speed_y - mario[4]) * frames // 16
                for r in range(NEAR_SIDE):
                    for c in range(NEAR_SIDE):
                        right = 1 - abs(at_x - (NEAR_LEFT + c * NEAR_CELL)) / NEAR_CELL
                        down = 1 - abs(at_y - (NEAR_TOP + r * NEAR_CELL)) / NEAR_CELL
                        share = max(right, 0) * max(down, 0)
                        cell = maps[row, number, r, c]
                        maps[row, number, r, c] = max(cell, share)
    return maps.flatten(1)


def test_maps_of_what_hurts_near_mario():
    motion = images_for("tiles", 50)[:, 0, TILES_ROWS:].reshape(-1, 8, 6)
    # Near enough that most are on the maps.
    motion[:25, :, 0] = motion[:25, :, 0] % 3 + NAMES.index("fireball")
    motion[:25, :, 1:] = motion[:25, :, 1:] % 48 + 232
    expected = slow_near_maps(motion)
    assert 0.02 < float((expected > 0).float().mean()) < 0.5
    torch.testing.assert_close(near_maps(motion), expected, rtol=0, atol=0)


def rounded_reference(name, encoder, images):
    """The encoder in float64, which rounds where the native code does."""
    if name == "tiles":
        (tiles,) = encoder
        codes = RoundedWeight.apply(tiles.codes.weight)
        cells = codes[images[:, 0, :TILES_ROWS].long()].permute(0, 3, 1, 2)
        motion = images[:, 0, TILES_ROWS:].reshape(-1, 8, 6)
        numbers = motion[..., 1:].view(torch.int8) * tiles.scales.float()
        first, _, second, _, _ = tiles.cells
        x = hidden(conv(cells, first, padding=1))
        x = hidden(conv(x, second)).flatten(1)
        things = codes[motion[..., 0].long()].flatten(1)
        near = slow_near_maps(motion).double()
        x = torch.cat([x, things, numbers.bfloat16().double().flatten(1), near], 1)
        return last(x, tiles.join)
    first, _, second, _, _, linear, _ = encoder
    x = hidden(conv((images.double() - PIXEL_MEAN) / PIXEL_SCALE, first))
    return last(hidden(conv(x, second)).flatten(1), linear)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", MODELS)
def test_equals_pytorch_that_rounds_at_the_same_places(name, path):
    # Float32 sums may fall on either side of a rounding, and rarely of a ReLU.
    encoder, features = made(name)
    images, dy = images_for(name, 7), dy_for(7, features)
    y = native(encoder, images, path)
    wide = copy.deepcopy(encoder).double()
    want = rounded_reference(name, wide, images)
    torch.testing.assert_close(y.double(), want, atol=2e-3, rtol=1e-3)
    assert distance(y, want) < 3e-4
    names = [n for n, _ in encoder.named_parameters()]
    theirs = gradients(want, wide, dy.double())
    for key, a, b in zip(names, gradients(y, encoder, dy), theirs, strict=True):
        assert a.shape == b.shape
        assert distance(a, b) < 4e-3, key


@pytest.mark.parametrize("name", MODELS)
def test_is_nearer_to_float64_than_pytorch_in_bfloat16(name):
    encoder, features = made(name)
    images, dy = images_for(name, 64), dy_for(64, features)
    y = native(encoder, images)
    with torch.autocast("cpu", torch.bfloat16):
        usual = encoder(images.bfloat16())
    wide = copy.deepcopy(encoder).double()
    exact = wide(images.double())
    assert distance(y, exact) < min(0.01, 1.1 * distance(usual, exact))
    ours, theirs, best = (
        gradients(y, encoder, dy),
        gradients(usual, encoder, dy.to(usual.dtype)),
        gradients(exact, wide, dy.double()),
    )
    for a, b, c in zip(ours, theirs, best, strict=True):
        assert distance(a, c) < 1.3 * distance(b, c) + 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_without_gradients_features_are_the_same(name):
    encoder, _ = made(name)
    images = images_for(name, 40)
    with torch.no_grad():
        alone = native(encoder, images)
    assert not alone.requires_grad
    assert torch.equal(alone, native(encoder, images))
    frozen = copy.deepcopy(encoder).requires_grad_(False)
    assert not native(frozen, images).requires_grad


@pytest.mark.parametrize("name", MODELS)
def test_a_row_does_not_depend_on_others(name):
    encoder, _ = made(name)
    images = images_for(name, 45)
    together = native(encoder, images)
    one_by_one = [native(encoder, images[i : i + 1]) for i in range(45)]
    assert torch.equal(torch.cat(one_by_one), together)


def test_no_rows_give_no_features_and_gradients_of_zero():
    for name in ("cnn-72k", "tiles"):
        encoder, features = made(name)
        y = native(encoder, torch.empty(0, *SHAPES[name], dtype=torch.uint8))
        assert y.shape == (0, features)
        for d in gradients(y, encoder, torch.empty(0, features)):
            assert not d.any()


def test_threads_share_a_module():
    encoder, features = made("cnn-72k")
    parts = [images_for("cnn-72k", 50, seed) for seed in range(8)]
    dy = dy_for(50, features)

    def work(images):
        torch.set_num_threads(1)
        return gradients(native(encoder, images), encoder, dy)

    alone = [work(images) for images in parts]
    with ThreadPoolExecutor(4) as pool:
        for a, b in zip(alone, pool.map(work, parts), strict=True):
            assert all(map(torch.equal, a, b))


def test_numbers_that_are_tiny_or_not_finite():
    encoder, features = made("cnn-72k")
    images, dy = images_for("cnn-72k", 4), dy_for(4, features)
    with torch.no_grad():
        encoder[0].weight[0] *= 1e-30
        encoder[0].bias[0] = 1e-38
        encoder[2].weight[3] *= 1e-42
        encoder[5].bias[5] = float("nan")
        encoder[5].weight[7] = float("inf")
    dy[0] *= 1e-36
    results = []
    for path in PATHS:
        y = native(encoder, images, path)
        results.append([y.detach(), *gradients(y, encoder, dy)])
    assert results[0][0][:, 5].isnan().all()
    assert not results[0][0][:, 7].isfinite().any()
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a.nan_to_num(123), b.nan_to_num(123))


def test_weights_are_read_anew():
    encoder, _ = made("cnn-72k")
    images = images_for("cnn-72k", 3)
    before = native(encoder, images)
    for parameter in encoder.parameters():
        parameter.data.mul_(0.5)  # no version counter sees this
    assert not torch.equal(native(encoder, images), before)


def test_changed_weights_are_noticed_on_the_way_back():
    encoder, features = made("tiles")
    y = native(encoder, images_for("tiles", 3))
    with torch.no_grad():
        encoder[0].join.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(y, encoder, dy_for(3, features))


def test_codes_that_there_are_none_of():
    encoder, _ = made("tiles")
    for place in (0, 12 * 16 + 15, 13 * 16):
        images = images_for("tiles", 3)
        images.view(3, -1)[1, place] = 32
        with pytest.raises(IndexError, match="above 31"):
            native(encoder, images)


def left_to_pytorch(encoder, images, dtype=torch.bfloat16, path=PATHS[-1]):
    with torch.autocast("cpu", dtype or torch.bfloat16, dtype is not None):
        return features_of(encoder, images, path) is None


def test_what_it_does_not_know_is_left_to_pytorch():
    encoder, _ = made("cnn-72k")
    images = images_for("cnn-72k", 2)
    assert not left_to_pytorch(encoder, images)
    assert left_to_pytorch(encoder, images, None)
    assert left_to_pytorch(encoder, images, torch.float16)
    assert left_to_pytorch(encoder, images, path=None)
    assert left_to_pytorch(encoder, images.float())
    assert left_to_pytorch(encoder, images.to("meta"))
    assert left_to_pytorch(nn.Sequential(*encoder, nn.Tanh()), images)
    assert left_to_pytorch(nn.Flatten(), images)
    assert left_to_pytorch(copy.deepcopy(encoder).double(), images)
    assert left_to_pytorch(
        copy.deepcopy(encoder).to(memory_format=torch.channels_last), images
    )
    for options in ({"widths": (16, 24)}, {"features": 100}, {"layer_norm": True}):
        assert left_to_pytorch(made("cnn-72k", **options)[0], images)
    for options in ({"widths": (8, 32)}, {"features": 100}):
        assert left_to_pytorch(made("tiles", **options)[0], images_for("tiles", 2))
    other = build_encoder(ModelConfig(name="nature"), (4, 84, 84))[0]
    assert left_to_pytorch(other, images_for("cnn-157k", 2))


def test_what_was_found_out_is_forgotten_when_an_encoder_changes():
    encoder, _ = made("cnn-72k")
    images = images_for("cnn-72k", 2)
    before = native(encoder, images)
    encoder[1] = nn.Tanh()
    assert left_to_pytorch(encoder, images)
    encoder[1] = nn.ReLU()
    assert torch.equal(native(encoder, images), before)
    handle = encoder[2].register_forward_hook(lambda *_: None)
    assert left_to_pytorch(encoder, images)
    handle.remove()
    encoder[0].bias = None
    assert left_to_pytorch(encoder, images)


def test_nothing_keeps_an_encoder_alive():
    encoder, _ = made("tiles")
    native(encoder, images_for("tiles", 2))
    alive = weakref.ref(encoder)
    del encoder
    gc.collect()
    assert alive() is None


def test_a_norm_behind_the_encoder_of_tiles():
    encoder, _ = made("tiles", layer_norm=True)
    images = images_for("tiles", 5)
    inner = native(nn.Sequential(encoder[0]), images)
    assert torch.equal(native(encoder, images), encoder[1](inner))


@pytest.mark.parametrize("memory", [None, GRU(8)])
@pytest.mark.parametrize("name", ["cnn-72k", "tiles"])
def test_a_network_takes_it_on_a_cpu(name, memory, monkeypatch):
    torch.manual_seed(0)
    shape = SHAPES[name]
    model = build_model(ModelConfig(name=name, memory=memory), shape, 5)
    obs = images_for(name, 6).view(2, 3, *shape)
    given = (
        obs,
        torch.zeros(3, model.state_size),
        torch.zeros(2, 3, dtype=torch.bool),
    )
    calls = []

    def count(encoder, images):
        calls.append(images.dtype)
        return features_of(encoder, images, PATHS[-1])

    monkeypatch.setattr("trainer.models.actor_critic.features_of", count)
    with torch.autocast("cpu", torch.bfloat16):
        ours, _ = model(*given)
        assert calls == [torch.uint8]
        model.native = False
        theirs, _ = model(*given)
    assert len(calls) == 1
    torch.testing.assert_close(ours, theirs, atol=0.03, rtol=0.03)


def test_an_encoder_of_ones_own_runs_as_it_is():
    class Small(ActorCritic):
        def make_encoder(self, config, shape):
            return nn.Sequential(nn.Flatten(), nn.Linear(6400, 16)), 16

    model = Small(ModelConfig(), (4, 40, 40), 3)
    obs = images_for("cnn-72k", 2)[None]
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = model(obs, torch.zeros(2, 0), torch.zeros(1, 2, dtype=torch.bool))
    assert output.logits.shape == (1, 2, 3)


def test_the_stub_names_what_the_module_has():
    from trainer import _native

    stub = Path(_native.__file__).with_name("_native.pyi")
    named = {n.name for n in ast.parse(stub.read_text()).body if hasattr(n, "name")}
    assert named == {name for name in dir(_native) if not name.startswith("_")}
