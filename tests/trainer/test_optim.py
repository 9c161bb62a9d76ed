"""Optimisers, schedules of their rates, averaged weights.

test_learner_options.py has the formulas of the optimisers, but for Muon's iteration.
"""

import copy
import importlib
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.config import flags
from trainer.config.learning import linear
from trainer.config.schema import RunConfig
from trainer.learn.optim import (
    Muon,
    _iterate,
    _iterate_squares,
    build_optimizer,
    hidden_matrices,
    learning_rate_factor,
    orthogonalise,
    set_learning_rate,
)
from trainer.models.actor_critic import Ema

RATES = {"lr": 0.01, "lr_end": 0.001, "muon_lr": 0.02}


class Net(nn.Module):
    """Named like the actor-critic; a kernel, a wide and a tall matrix are hidden."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 2), nn.ReLU(), nn.Flatten(),
            nn.Linear(54, 8), nn.ReLU(), nn.Linear(8, 20), nn.ReLU(),
        )  # fmt: skip
        self.age_bias = nn.Parameter(torch.zeros(2, 3))
        self.head = nn.ModuleList([nn.Linear(20, 3), nn.Linear(20, 1)])

    def forward(self, x):
        y = self.encoder(x)
        return sum(head(y).square().mean() for head in self.head)


def config(**changes):
    return flags.change(RunConfig(), **(RATES | changes)).learner


def run(steps=3, capturable=False, factor=None, **changes):
    """Weights after some steps of a net that is always the same."""
    torch.manual_seed(1)
    net, images = Net(), torch.randn(5, 1, 6, 6)
    optimizer = build_optimizer(net, config(**changes), capturable)
    if factor is not None:
        set_learning_rate(optimizer, factor)
    train(net, optimizer, images, steps)
    return net, optimizer, images


def train(net, optimizer, images, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        net(images).backward()
        optimizer.step()


def same(one, other):
    return all(
        torch.equal(a, b)
        for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )


# -- optimisers against formulas ----------------------------------------------


def muon_by_formula(w, gradients, lr, momentum, decay=0.0):
    average = torch.zeros_like(w)
    for g in gradients:
        average = momentum * average + (1 - momentum) * g
        ahead = momentum * average + (1 - momentum) * g
        u, s, v = torch.linalg.svd(ahead.flatten(1).double(), full_matrices=False)
        s = s / s.norm()
        for _ in range(5):
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        step = (u * s) @ v
        rows, columns = step.shape
        step = step * max(1, rows / columns) ** 0.5
        w = w * (1 - lr * decay) - lr * step.float().view_as(w)
    return w


@pytest.mark.parametrize("layer", [2, 5, 7])  # wide, wide and tall
@pytest.mark.parametrize(("momentum", "decay"), [(0.95, 0.0), (0.5, 3.0)])
def test_muon_equals_formula(layer, momentum, decay):
    torch.manual_seed(2)
    net = Net()
    changes = {"momentum": momentum, "weight_decay": decay}
    optimizer = build_optimizer(net, config(optimizer="muon", **changes), False)
    param = net.encoder[layer].weight
    before, gradients = param.detach().clone(), []
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 1, 6, 6)).backward()
        gradients.append(param.grad.clone())
        optimizer.step()
    expected = muon_by_formula(before, gradients, 0.02, momentum, decay)
    torch.testing.assert_close(param.detach(), expected, atol=1e-4, rtol=1e-3)


def test_adam_and_rmsprop_know_no_weight_decay():
    for name in ("adam", "rmsprop"):
        one, other = (run(optimizer=name, weight_decay=d)[0] for d in (0.0, 1.0))
        assert same(one, other)


# -- Muon ---------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (6, 40), (40, 6), (1, 9)])
def test_orthogonalise(shape):
    # Singular values of 1 to 1/16; a matrix of one row has but one.
    rank = min(shape)
    u = torch.linalg.qr(torch.randn(shape[0], rank))[0]
    v = torch.linalg.qr(torch.randn(shape[1], rank))[0]
    matrix = 100 * (u * torch.logspace(0, -4, rank, base=2)) @ v.T
    result = orthogonalise(matrix)
    core = u.T @ result @ v
    values = core.diagonal()
    assert values.min() > 0.6
    assert values.max() < 1.3
    torch.testing.assert_close(core, values.diag(), atol=1e-4, rtol=0)


def test_iterating_squares_is_the_published_iteration():
    for wide in (torch.randn(16, 200), torch.randn(16, 2) @ torch.randn(2, 16)):
        wide = (wide / wide.norm()).unsqueeze(0)
        torch.testing.assert_close(
            _iterate_squares(wide), _iterate(wide), atol=1e-4, rtol=1e-4
        )


def test_zero_gradient_moves_nothing_under_muon():
    assert torch.equal(orthogonalise(torch.zeros(3, 7)), torch.zeros(3, 7))


def test_muon_takes_hidden_weights():
    net = Net()
    names = {id(param): name for name, param in net.named_parameters()}
    assert [names[id(param)] for param in hidden_matrices(net)] == [
        "encoder.2.weight",
        "encoder.5.weight",
        "encoder.7.weight",
    ]
    optimizer = build_optimizer(net, config(optimizer="muon"), capturable=False)
    groups = optimizer.param_groups
    assert [group["base_lr"] for group in groups] == [0.02, 0.01]
    assert [len(group["params"]) for group in groups] == [3, len(names) - 3]


def test_muon_without_a_head_leaves_the_last_two_out():
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    assert [id(p) for p in hidden_matrices(net)] == [
        id(net[1].weight),
        id(net[2].weight),
    ]


def test_muon_skips_frozen_weights():
    net = Net()
    net.encoder[2].weight.requires_grad_(False)
    found = [id(param) for param in hidden_matrices(net)]
    assert found == [id(net.encoder[layer].weight) for layer in (5, 7)]


def test_muon_without_hidden_weights_is_adamw(caplog):
    nets = [nn.Sequential(nn.Linear(4, 4)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers = [
        build_optimizer(net, config(optimizer=name), capturable=False)
        for net, name in zip(nets, ("muon", "adamw"), strict=True)
    ]
    assert "this network has none: AdamW updates all weights" in caplog.text
    before = nets[0][0].weight.detach().clone()
    for _ in range(3):
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
    assert not torch.equal(nets[0][0].weight, before)
    torch.testing.assert_close(nets[0][0].weight, nets[1][0].weight)
    saved = optimizers[0].state_dict()
    optimizers[0].load_state_dict(saved)


def test_muon_works_with_a_scaled_loss():
    net, optim, images = run(steps=0, optimizer="muon")
    assert isinstance(optim, Muon)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(net(images)).backward()
    scaler.step(optim)
    plain, _, _ = run(steps=1, optimizer="muon")
    for a, b in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_steps_skip_parameters_without_a_gradient():
    for optimizer in ("adam", "muon"):
        net, _, _ = run(optimizer=optimizer)
        assert torch.equal(net.age_bias, torch.zeros(2, 3))


# -- rates --------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "rmsprop", "muon"])
def test_rates_scale_all_groups(optimizer):
    net, optim, _ = run(steps=0, optimizer=optimizer)
    before = copy.deepcopy(net)
    assert same(run(factor=0.0, optimizer=optimizer)[0], before)
    half, _, _ = run(factor=0.5, optimizer=optimizer)
    halved, _, _ = run(lr=0.005, muon_lr=0.01, optimizer=optimizer)
    assert same(half, halved)
    assert not same(half, run(optimizer=optimizer)[0])
    set_learning_rate(optim, 0.5)
    set_learning_rate(optim, 0.25)  # of the first rate, not of the last
    assert optim.param_groups[-1]["lr"] == pytest.approx(0.0025)


def test_muon_lr_is_the_matrices_own():
    one, _, _ = run(optimizer="muon", muon_lr=0.02)
    other, _, _ = run(optimizer="muon", muon_lr=0.04, steps=1)
    start, _, _ = run(optimizer="muon", steps=0)
    step, _, _ = run(optimizer="muon", steps=1)
    for layer, factor in ((2, 2), (5, 2), (0, 1)):
        torch.testing.assert_close(
            other.encoder[layer].weight - start.encoder[layer].weight,
            factor * (step.encoder[layer].weight - start.encoder[layer].weight),
            atol=1e-6, rtol=1e-3,
        )  # fmt: skip
    assert not same(one, step)


@pytest.fixture
def on_gpu(monkeypatch):
    """PyTorch takes the CPU for a GPU; gives what it asks about a recording."""
    asked = []

    def capturing(*_):
        asked.append("capturing")
        return False

    rmsprop = importlib.import_module("torch.optim.rmsprop")
    monkeypatch.setattr(
        rmsprop, "_get_capturable_supported_devices", lambda *_: ["cpu"]
    )
    # How an optimiser asks: up to PyTorch 2.12, and later.
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", capturing)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda")
    )
    stream = SimpleNamespace(is_capturing=capturing)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda *_: stream)
    return asked


class NoWaiting(TorchDispatchMode):
    """Refuses what waits for the device, which no graph can."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function is not torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "rmsprop", "muon"])
def test_capturable_steps_neither_warn_nor_wait_for_the_device(on_gpu, optimizer):
    """The first steps are not recorded; a warning of PyTorch would be an error here."""
    net, optim, _ = run(steps=1, optimizer=optimizer, capturable=True)
    with NoWaiting():
        optim.step()
    # Muon does not ask: it uses AdamW's function, not its class.
    assert len(on_gpu) == (0 if optimizer == "muon" else 2)
    assert all(param.isfinite().all() for param in net.parameters())


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "rmsprop", "muon"])
def test_capturable_rates_are_changed_in_place(on_gpu, optimizer):
    net, optim, images = run(steps=2, optimizer=optimizer, capturable=True)
    # Muon's native code has another order of sums, and takes no rates that are tensors.
    other, _, _ = run(steps=2, optimizer=optimizer)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
    rates = [group["lr"] for group in optim.param_groups]
    assert all(isinstance(rate, torch.Tensor) for rate in rates)
    set_learning_rate(optim, 0.0)
    assert [group["lr"] for group in optim.param_groups] == rates
    assert all(
        group["lr"] is rate
        for group, rate in zip(optim.param_groups, rates, strict=True)
    )
    before = copy.deepcopy(net)
    train(net, optim, images, 1)
    assert same(net, before)


def test_rates_must_be_positive():
    for name in ("lr", "muon_lr"):
        with pytest.raises(ValueError, match=f"{name} must be above 0, got 0.0"):
            build_optimizer(Net(), config(**{name: 0.0}), capturable=False)


def test_linear():
    assert [linear(1.0, 0.0, 10, step) for step in (0, 5, 10, 99)] == [1, 0.5, 0, 0]
    assert linear(1.0, 0.5, 0, 0) == 0.5


@pytest.mark.parametrize(
    ("schedule", "quarter"),
    [("linear", 0.75), ("cosine", (1 + math.cos(math.pi / 4)) / 2)],
)
def test_schedule(schedule, quarter):
    c = config(lr_schedule=schedule, lr_steps=1000)
    factors = [learning_rate_factor(c, step, 0) for step in (0, 250, 500, 1000, 9999)]
    # From 1 to lr_end / lr = .1.
    expected = [1, 0.1 + 0.9 * quarter, 0.55, 0.1, 0.1]
    assert factors == pytest.approx(expected)


def test_warm_up_multiplies_the_schedule():
    c = config(warmup_updates=4, lr_steps=1000)
    factors = [learning_rate_factor(c, 500, updates) for updates in range(6)]
    assert factors == pytest.approx([0.55 * s for s in (0.25, 0.5, 0.75, 1, 1, 1)])


# -- checkpoints --------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "rmsprop", "muon"])
def test_resumes_exactly(optimizer):
    net, optim, images = run(optimizer=optimizer)
    other = copy.deepcopy(net)
    again = build_optimizer(other, config(optimizer=optimizer), capturable=False)
    again.load_state_dict(copy.deepcopy(optim.state_dict()))
    fresh = copy.deepcopy(net)
    for model, own in (
        (net, optim),
        (other, again),
        (fresh, build_optimizer(fresh, config(optimizer=optimizer), capturable=False)),
    ):
        train(model, own, images, 2)
    assert same(net, other)
    assert not same(net, fresh)


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_options_of_a_resumed_run_are_its_own(optimizer):
    net, optim, images = run(optimizer=optimizer)
    changed = config(optimizer=optimizer, adam_eps=0.5, lr=0.03, muon_lr=0.03)
    again = build_optimizer(net, changed, capturable=True)
    rates = [group["lr"] for group in again.param_groups]
    again.load_state_dict(optim.state_dict())
    for group, rate in zip(again.param_groups, rates, strict=True):
        assert group["capturable"]
        assert group["eps"] == 0.5
        assert group["base_lr"] == 0.03
        assert torch.equal(group["lr"], rate)
    before = copy.deepcopy(net)
    train(net, again, images, 1)
    assert not same(net, before)


def test_resuming_with_another_optimiser_is_refused():
    _, optim, _ = run(optimizer="muon")
    other = build_optimizer(Net(), config(optimizer="adam"), capturable=False)
    with pytest.raises(
        ValueError, match=r"optimizer=muon.* has adam; .*--optimizer muon"
    ):
        other.load_state_dict(optim.state_dict())


# -- moving average -----------------------------------------------------------


def test_ema_follows_its_formula():
    net = nn.BatchNorm1d(2)
    ema = Ema(net, decay=0.5)
    average = net.weight.detach().clone()
    for updates in range(12):
        with torch.no_grad():
            net.weight.normal_()
            net.running_mean.normal_()
        ema.update(updates)
        decay = min(0.5, (1 + updates) / (10 + updates))
        average = decay * average + (1 - decay) * net.weight.detach()
        torch.testing.assert_close(ema.model.weight, average)
        assert torch.equal(ema.model.running_mean, net.running_mean)
    assert not torch.equal(ema.model.weight, net.weight)
    assert not any(param.requires_grad for param in ema.model.parameters())


@pytest.mark.parametrize("kind", ["adam", "adamw", "rmsprop", "muon"])
@pytest.mark.parametrize("laid_out", [torch.channels_last, torch.contiguous_format])
def test_a_checkpoint_goes_on_with_weights_in_another_order(kind, laid_out):
    """Fused kernels go over weights and moments by their order in memory."""
    (other,) = {torch.channels_last, torch.contiguous_format} - {laid_out}
    torch.manual_seed(1)
    images = torch.randn(5, 2, 6, 6)
    nets = []
    for kept in (False, True):
        torch.manual_seed(1)
        net = Wrapped().to(memory_format=laid_out)
        optimizer = build_optimizer(net, config(optimizer=kind), False)
        train(net, optimizer, images, 2)
        if not kept:
            state = copy.deepcopy(optimizer.state_dict())
            net = copy.deepcopy(net).to(memory_format=other)
            optimizer = build_optimizer(net, config(optimizer=kind), False)
            optimizer.load_state_dict(state)
        for param, moments in optimizer.state.items():
            for moment in moments.values():
                if isinstance(moment, torch.Tensor) and moment.shape == param.shape:
                    assert moment.stride() == param.stride()
        train(net, optimizer, images, 2)
        nets.append(net)
    for one, two in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(one, two, atol=2e-5, rtol=1e-3)


class Wrapped(Net):
    """A net whose first layers are convolutions of two channels."""

    def __init__(self):
        super().__init__()
        conv, body = nn.Conv2d(2, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 2), nn.Flatten())
        self.encoder = nn.Sequential(conv, nn.ReLU(), body, nn.Linear(36, 20))
