"""Encoders and the actor-critic."""

import pytest
import torch
from torch.nn.functional import conv2d

from trainer.config import ModelConfig
from trainer.model import build_model
from trainer.model.encoders import PIXEL_MEAN, PIXEL_SCALE, CentredConv2d

OBS = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(8, 4, 0), (3, 1, 1)])
def test_centring_is_folded_exactly(kernel, stride, padding):
    layer = CentredConv2d(4, 5, kernel, stride, padding=padding)
    plain = conv2d(
        (OBS.float() - PIXEL_MEAN) / PIXEL_SCALE,
        layer.weight,
        layer.bias,
        stride,
        padding,
    )
    folded = layer(OBS.float())
    torch.testing.assert_close(folded, plain, atol=1e-4, rtol=1e-4)
    parameters = list(layer.parameters())
    a = torch.autograd.grad(folded.square().mean(), parameters)
    b = torch.autograd.grad(plain.square().mean(), parameters)
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_a_frame_of_the_mean_is_zero_to_the_first_layer():
    layer = CentredConv2d(4, 5, 8, 4)
    with torch.no_grad():
        torch.nn.init.zeros_(layer.bias)
        grey = torch.full((1, 4, 84, 84), PIXEL_MEAN)
        assert layer(grey).abs().max() < 1e-3
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(grey.bfloat16()).abs().max() < 0.02


@pytest.mark.parametrize("name", ["pico", "nano", "nature", "impala"])
def test_every_model_acts_and_trains(name):
    model = build_model(ModelConfig(name=name), (4, 84, 84), 5)
    logits, values = model(OBS)
    assert logits.shape == (3, 5)
    assert values.shape == (3,)
    assert logits.dtype == values.dtype == torch.float32
    # Near uniform at the start, so that exploration is.
    assert (logits.softmax(-1) - 0.2).abs().max() < 0.05
    (logits.square().sum() + values.sum()).backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())


def test_bfloat16_agrees_with_float32():
    model = build_model(ModelConfig(name="pico"), (4, 84, 84), 5)
    with torch.no_grad():
        exact = model(OBS)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model(OBS)
    assert rounded.logits.dtype == torch.float32
    torch.testing.assert_close(rounded.values, exact.values, atol=0.1, rtol=0.05)
    assert not torch.equal(rounded.values, exact.values)


def test_models_differ_in_size():
    sizes = [
        build_model(ModelConfig(name=n), (4, 84, 84), 5).parameter_count()
        for n in ("pico", "nano", "nature")
    ]
    assert sizes == sorted(sizes)
    assert 150_000 < sizes[0] < 165_000


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="unknown model 'huge'; choose one of pico"):
        build_model(ModelConfig(name="huge"), (4, 84, 84), 5)
    with pytest.raises(ValueError, match="too small"):
        build_model(ModelConfig(name="nano"), (4, 12, 12), 5)
    with pytest.raises(ValueError, match="images"):
        build_model(ModelConfig(), (128,), 5)
