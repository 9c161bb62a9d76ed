"""Native steps of the optimiser against PyTorch's, which are their twins."""

import copy

import pytest
import torch
from torch import nn

from trainer import _native
from trainer.learn import optim
from trainer.learn.optim import Muon, _group, clip_gradients
from trainer.models.native import PATHS

if not PATHS:
    pytest.skip("trainer._native is not built", allow_module_level=True)

# Hidden weights of networks: cnn-72k, cnn-345k and tiles; as many rows as nature's
# linear layer, in blocks; tall ones in blocks of columns; one row, one column.
SHAPES = [
    [(32, 16, 3, 3), (128, 512)],
    [(64, 32, 3, 3), (256, 1152)],
    [(48, 64, 3, 3), (96, 960)],
    [(512, 576)],
    [(200, 60), (300, 140), (130, 47)],
    [(1, 9), (9, 1), (1, 1), (2, 3, 1)],
]
OTHERS = [(), (1,), (16, 4, 8, 8), (7, 33), (12,)]
RATES = {"momentum": 0.95, "weight_decay": 0.1, "eps": 1e-5, "capturable": False}


def some(shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * 0.1 for shape in shapes]


def made(matrices, path, others=OTHERS, seed=1):
    """An optimiser of parameters that are always the same."""
    hidden, rest = (
        [nn.Parameter(values) for values in some(shapes, seed)]
        for shapes in (matrices, others)
    )
    groups = (_group(hidden, 0.02, "muon", False), _group(rest, 0.01, "muon", False))
    optimizer = Muon(*groups, **RATES)
    optimizer.native_path = path
    return optimizer


def params(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def steps(optimizer, seeds):
    for seed in seeds:
        shapes = [param.shape for param in params(optimizer)]
        for param, gradient in zip(params(optimizer), some(shapes, seed), strict=True):
            param.grad = gradient
        optimizer.step()


def assert_close(one, other):
    for a, b in zip(params(one), params(other), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
        assert one.state[a].keys() == other.state[b].keys()
        for name, value in one.state[a].items():
            torch.testing.assert_close(value, other.state[b][name])


def native_calls(monkeypatch):
    """The native steps that are made from now on, one entry for each."""
    calls = []
    step = _native.muon_step

    def called(*args):
        calls.append(args)
        step(*args)

    monkeypatch.setattr(_native, "muon_step", called)
    return calls


@pytest.mark.parametrize("shapes", SHAPES)
def test_steps_are_pytorchs(shapes, monkeypatch):
    torchs = made(shapes, None)
    calls = native_calls(monkeypatch)
    steps(torchs, (2, 3, 4))
    assert not calls
    for path in PATHS[-2:]:
        native = made(shapes, path)
        steps(native, (2, 3, 4))
        assert_close(native, torchs)
    assert len(calls) == 3 * len(PATHS[-2:])


@pytest.mark.parametrize("native_first", [True, False])
def test_a_state_goes_from_either_to_the_other(native_first):
    path = PATHS[-1]
    paths = (path, None) if native_first else (None, path)
    first, second = (made(SHAPES[0], path) for path in paths)
    steps(first, (2, 3))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    with torch.no_grad():
        for a, b in zip(params(first), params(second), strict=True):
            b.copy_(a)
    steps(first, (4, 5))
    steps(second, (4, 5))
    assert_close(first, second)
    steps(first, (6,))
    with pytest.raises(AssertionError):
        assert_close(first, second)


def test_a_copy_of_an_optimiser_steps():
    one = made([(6, 40)], optim.NATIVE_PATH)
    steps(one, (2,))
    other = copy.deepcopy(one)
    for optimizer in (one, other):
        steps(optimizer, (3,))
    for a, b in zip(params(one), params(other), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("what", ["gradient", "weight", "dtype"])
def test_what_has_gaps_or_another_type_is_left_to_pytorch(what, monkeypatch):
    calls = native_calls(monkeypatch)
    pair = [made([(6, 40)], path, others=[]) for path in (PATHS[-1], None)]
    for optimizer in pair:
        (param,) = params(optimizer)
        if what == "weight":
            param.data = param.data.T.contiguous().T
        if what == "dtype":
            param.data = param.data.double()
        gradient = torch.randn(
            (40, 6), generator=torch.Generator().manual_seed(3), dtype=param.dtype
        ).T
        param.grad = gradient if what == "gradient" else gradient.contiguous()
        optimizer.step()
    assert not calls
    assert torch.equal(*(params(optimizer)[0] for optimizer in pair))


def test_rates_that_are_tensors_are_left_to_pytorch(monkeypatch):
    optimizer = made([(6, 40)], PATHS[-1])
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"])
        group["capturable"] = True
    calls = native_calls(monkeypatch)
    steps(optimizer, (2,))
    assert not calls


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_clipping_is_pytorchs(share):
    shapes = [*OTHERS, (40, 50), (65,)]
    clipped, torchs = some(shapes, 1), [nn.Parameter(v) for v in some(shapes, 2)]
    for param, gradient in zip(torchs, some(shapes, 1), strict=True):
        param.grad = gradient
    norm = torch.cat([gradient.flatten() for gradient in clipped]).norm()
    expected = nn.utils.clip_grad_norm_(torchs, share * norm)
    torch.testing.assert_close(clip_gradients(clipped, float(share * norm)), expected)
    for gradient, param in zip(clipped, torchs, strict=True):
        torch.testing.assert_close(gradient, param.grad)
