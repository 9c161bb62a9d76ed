"""Encoders, heads, and the networks made of them; test_memory.py has memories."""

import copy
import inspect
import math
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import conv2d

from trainer.config.network import GRU, LSTM, GTrXL
from trainer.config.schema import ModelConfig
from trainer.models import ActorCritic, build_model, describe_model, encoders, to_device
from trainer.models.encoders import (
    PIXEL_MEAN,
    PIXEL_SCALE,
    CentredConv2d,
    EncoderPlan,
    build_encoder,
)
from trainer.models.heads import NoisyLinear

ENCODERS = ["cnn-157k", "cnn-345k", "nature", "impala", "convnext"]
MEMORIES = [GRU(), LSTM(), GTrXL()]
SHAPE = (4, 84, 84)
OBS = torch.randint(0, 256, (3, 2, *SHAPE), dtype=torch.uint8)
SMALL = {
    "none": None,
    "gru": GRU(8),
    "lstm": LSTM(8),
    "gtrxl": GTrXL(8, layers=2, heads=2, steps=4),
}


def build(**options):
    return build_model(ModelConfig(**{"name": "cnn-157k", **options}), SHAPE, 5)


def run(model, obs=OBS):
    """The policy's output from the very start."""
    rows = obs.shape[:2]
    state = torch.zeros(rows[1], model.state_size)
    return model(obs, state, torch.zeros(rows, dtype=torch.bool))[0]


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(8, 4, 0), (3, 1, 1)])
def test_centring_is_folded_exactly(kernel, stride, padding):
    layer = CentredConv2d(4, 5, kernel, stride, padding=padding)
    pixels = OBS.flatten(0, 1).float()
    plain = conv2d(
        (pixels - PIXEL_MEAN) / PIXEL_SCALE, layer.weight, layer.bias, stride, padding
    )
    folded = layer(pixels)
    torch.testing.assert_close(folded, plain, atol=1e-4, rtol=1e-4)
    parameters = list(layer.parameters())
    a = torch.autograd.grad(folded.square().mean(), parameters)
    b = torch.autograd.grad(plain.square().mean(), parameters)
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_frame_of_the_mean_is_zero_to_the_first_layer(name):
    layer = build(name=name).encoder[0]
    grey = torch.full((1, *SHAPE), PIXEL_MEAN)
    with torch.no_grad():
        assert layer(grey).abs().max() < 1e-3
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(grey.bfloat16()).abs().max() < 0.02


@pytest.mark.parametrize(
    "options",
    [
        *({"name": name} for name in ENCODERS),
        *({"memory": memory} for memory in MEMORIES),
        {"noisy": True},
        {"layer_norm": True},
    ],
    ids=str,
)
def test_every_model_acts_and_trains(options):
    model = build(**options)
    logits, values = run(model)
    assert logits.shape == (3, 2, 5)
    assert values.shape == (3, 2)
    assert logits.dtype == values.dtype == torch.float32
    if not options.get("noisy"):
        # Near uniform at the start, so that exploration is.
        assert (logits.softmax(-1) - 0.2).abs().max() < 0.05
    (logits.square().sum() + values.sum()).backward()
    for name, p in model.named_parameters():
        assert p.grad.abs().sum() > 0, name


def test_rows_are_independent_without_a_memory():
    model = build()
    state, first = torch.zeros(2, 0), torch.zeros(3, 2, dtype=torch.bool)
    (logits, values), after = model(OBS, state, first)
    assert after is state
    flat = run(model, OBS.view(1, 6, *SHAPE))
    assert torch.equal(flat.logits.view(3, 2, 5), logits)
    assert torch.equal(flat.values.view(3, 2), values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "options",
    [*({"name": n} for n in ENCODERS), *({"memory": m} for m in MEMORIES)],
    ids=str,
)
def test_autocast_agrees_with_float32(options, dtype):
    model = build(**options)
    with torch.no_grad():
        exact = run(model)
        with torch.autocast("cpu", dtype):
            rounded = run(model)
    assert rounded.logits.dtype == rounded.values.dtype == torch.float32
    torch.testing.assert_close(rounded.values, exact.values, atol=0.15, rtol=0.1)
    assert not torch.equal(rounded.values, exact.values)


@pytest.mark.parametrize("name", ["impala", "convnext"])
def test_channels_last_agrees(name):
    model = build(name=name)
    with torch.no_grad():
        expected = run(model)
        model.to(memory_format=torch.channels_last)
        assert model.encoder[0].weight.stride(1) == 1
        torch.testing.assert_close(run(model), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "stride"), [("impala", 1), ("convnext", 1), ("cnn-157k", 64)]
)
def test_layout_on_a_cpu(name, stride):
    model = to_device(build(name=name), name, torch.device("cpu"))
    assert model.encoder[0].weight.stride(1) == stride


@pytest.mark.parametrize("memory", SMALL)
def test_forward_waits_for_no_data(memory):
    # As CUDA graphs need. Fake tensors have none, so asking them is an error.
    model = build(memory=SMALL[memory], noisy=True)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert run(model).logits.shape == (3, 2, 5)


@pytest.mark.slow
def test_compiles_into_one_graph():
    model = build(memory=SMALL["gtrxl"], noisy=True)
    model.native = False  # what is compiled are PyTorch's operators
    rows = (OBS, torch.zeros(2, model.state_size), torch.zeros(3, 2, dtype=torch.bool))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(*rows), model(*rows))


def test_threads_may_share_a_model():
    model = build(memory=SMALL["gtrxl"], noisy=True)
    parts = [torch.randint_like(OBS, 256) for _ in range(8)]
    with torch.no_grad():
        alone = [run(model, part) for part in parts]

    def shared(part):
        with torch.no_grad():
            return run(model, part)

    with ThreadPoolExecutor(4, initializer=torch.set_num_threads, initargs=(1,)) as p:
        together = list(p.map(shared, parts))
    torch.testing.assert_close(together, alone)


# Encoders' options.


@pytest.mark.parametrize("name", ENCODERS)
def test_widths_and_features_are_taken(name):
    widths = (8, 12, 6) if name in ("nature", "impala", "convnext") else (8, 12)
    encoder, features = build_encoder(
        ModelConfig(name=name, widths=widths, features=40), SHAPE
    )
    assert features == 40
    assert encoder(torch.zeros(2, *SHAPE)).shape == (2, 40)
    convolutions = [m for m in encoder if isinstance(m, nn.Conv2d)]
    assert tuple(c.out_channels for c in convolutions) == widths


@pytest.mark.parametrize("name", ["impala", "convnext"])
def test_blocks_and_any_number_of_stages_are_taken(name):
    def residual(**options):
        encoder, _ = build_encoder(ModelConfig(name=name, **options), SHAPE)
        kinds = [type(m).__name__ for m in encoder]
        return kinds.count("_Residual") + kinds.count("_ConvNeXt")

    assert residual() == 6
    assert residual(blocks=3) == 9
    assert residual(blocks=1, widths=(8, 8, 8, 8)) == 4


@pytest.mark.parametrize("name", ENCODERS)
def test_layer_norm_normalises_the_features(name):
    pixels = OBS.flatten(0, 1).float()
    plain, _ = build_encoder(ModelConfig(name=name), SHAPE)
    normed, _ = build_encoder(ModelConfig(name=name, layer_norm=True), SHAPE)
    with torch.no_grad():
        before_relu = normed[:-1](pixels)
        torch.testing.assert_close(
            before_relu.std(1, correction=0), torch.ones(6), atol=1e-3, rtol=0
        )
        assert before_relu.mean(1).abs().max() < 1e-4
        assert plain[:-1](pixels).mean(1).abs().max() > 1e-3


def test_an_encoder_is_an_entry_of_the_table(monkeypatch):
    def flat(shape, plan, norm):
        return [nn.Flatten(), nn.Linear(math.prod(shape), plan.features), *norm]

    monkeypatch.setitem(encoders.ENCODERS, "flat", EncoderPlan(flat, (), 16))
    model = build(name="flat")
    assert isinstance(model.encoder[1], nn.Linear)
    assert model.head.policy.in_features == 16


def test_convnext_block_is_a_sum_of_written_out_steps():
    encoder, _ = build_encoder(ModelConfig(name="convnext"), SHAPE)
    block = encoder[2]
    x = torch.randn(2, 32, 9, 9)
    y = conv2d(x, block.mix.weight, block.mix.bias, padding=3, groups=32)
    y = (y - y.mean(1, keepdim=True)) / (
        y.var(1, keepdim=True, correction=0) + 1e-5
    ) ** 0.5
    y = torch.einsum("oc,nchw->nohw", block.expand.weight, y)
    y = y * 0.5 * (1 + torch.erf(y / math.sqrt(2)))
    y = torch.einsum("oc,nchw->nohw", block.reduce.weight, y)
    torch.testing.assert_close(block(x), x + 0.1 * y, atol=1e-4, rtol=1e-4)


# Size.


def test_size_is_the_hand_computed_one():
    size = describe_model(build(), SHAPE)
    # 16 pictures of 13x13 from 4x8x8, 32 of 6x6 from 16x3x3, 128, 5 + 1.
    assert size.parameters == 4112 + 4640 + 147_584 + 774
    products = 16 * 169 * 256 + 32 * 36 * 144 + 1152 * 128 + 128 * 6
    assert size.forward_flops == 2 * products


def test_attention_is_counted():
    one, nine = (
        describe_model(build(memory=GTrXL(steps=steps)), SHAPE) for steps in (1, 9)
    )
    # 8 more rows: a key and a value each, a score and a weighted value per query, for
    # which each of 4 heads has 8 more columns with the bias.
    columns = 256 + 4 * 8
    assert nine.forward_flops - one.forward_flops == 8 * 2 * (2 * 256**2 + 2 * columns)
    assert nine.parameters - one.parameters == 8 * 4  # ages of 4 heads


# Noise.


def test_noise_changes_when_it_is_resampled_and_only_then():
    model = build(noisy=True)
    draws = torch.Generator().manual_seed(1)
    model.resample_noise(draws)
    before = torch.get_rng_state()
    a, b = run(model), run(model)
    assert torch.equal(a.logits, b.logits)
    assert torch.equal(torch.get_rng_state(), before)
    model.resample_noise(draws)
    c = run(model)
    assert not torch.isclose(a.logits, c.logits).any()
    assert not torch.isclose(a.values, c.values).any()
    model.resample_noise(draws.manual_seed(1))
    assert torch.equal(run(model).logits, a.logits)
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_has_no_noise():
    noisy = build(noisy=True).eval()
    plain = build()
    plain.load_state_dict(
        {k: v for k, v in noisy.state_dict().items() if "sigma" not in k}
    )
    assert torch.equal(run(noisy).logits, run(plain).logits)
    noisy.resample_noise()
    assert torch.equal(run(noisy).logits, run(plain).logits)
    assert not torch.equal(run(noisy.train()).logits, run(plain).logits)


def test_noise_is_no_part_of_a_checkpoint_but_of_a_copy():
    model = build(noisy=True)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    twin = copy.deepcopy(model)
    assert torch.equal(run(twin).logits, run(model).logits)
    twin.resample_noise()
    assert not torch.equal(run(twin).logits, run(model).logits)


def test_noise_has_the_scale_of_the_paper():
    layer = NoisyLinear(64, 8, sigma=0.5)
    assert torch.all(layer.weight_sigma == 0.5 / 8)
    assert torch.all(layer.bias_sigma == 0.5 / 8)
    mean, generator = copy.deepcopy(layer).eval(), torch.Generator().manual_seed(0)
    of_weight, of_bias, nothing = [], [], torch.zeros(1, 64)
    with torch.no_grad():
        for _ in range(300):
            layer.resample_noise(generator)
            of_bias.append(layer(nothing) - mean(nothing))
            noise = layer(torch.eye(64)) - mean(torch.eye(64)) - of_bias[-1]
            of_weight.append(noise)
    # E f(e)^2 = E|e| = sqrt(2 / pi), once for the output and once for the input.
    factor, scale = math.sqrt(2 / math.pi), 0.5 / 8
    squares = torch.cat(of_bias).square().mean().item()
    assert squares == pytest.approx(scale**2 * factor, rel=0.1)
    squares = torch.cat(of_weight).square().mean().item()
    assert squares == pytest.approx(scale**2 * factor**2, rel=0.1)
    assert build(noisy=True).head.value.bias_sigma.item() == (
        pytest.approx(0.5 / math.sqrt(128))
    )


def test_without_noise_resampling_draws_nothing():
    model = build()
    generator = torch.Generator().manual_seed(1)
    before, output = generator.get_state(), run(model)
    model.resample_noise(generator)
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(run(model).logits, output.logits)


# Networks of the user's own.

# The docstring's example, and modules that leave things out or get them wrong.
EXAMPLE = inspect.getdoc(ActorCritic).split("mine:Small`:")[1].split("Pixels")[0]
OWN = (
    textwrap.dedent(EXAMPLE)
    + """
class Plain(nn.Module):
    def __init__(self, config, shape, num_actions):
        super().__init__()
        self.linear = nn.Linear(shape[0], num_actions)
        self.norm = nn.BatchNorm1d(num_actions)

    def forward(self, obs, state, first):
        rows = obs.shape[:2]
        x = self.linear(obs.float().mean((3, 4)).flatten(0, 1))
        return (self.norm(x).unflatten(0, rows), x.sum(-1).unflatten(0, rows)), state

class Stateful(Plain):
    state_size = 7
    draws = 0

    def resample_noise(self, generator=None):
        self.draws += 1

class Half(Plain):
    def forward(self, obs, state, first):
        (logits, values), state = super().forward(obs, state, first)
        return (logits.half(), values), state

class Forgetful(Stateful):
    def forward(self, obs, state, first):
        return super().forward(obs, state, first)[0]

class Broken(Plain):
    def forward(self, obs, state, first):
        return self.linear(obs.float())

def function(config, shape, num_actions):
    return 3
"""
)


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_network.py").write_text(OWN)
    (tmp_path / "needs_more.py").write_text("import no_such_thing")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_module")
def test_another_encoder_is_one_method():
    model = build(name="own_network:Small", memory=GRU(16), noisy=True)
    assert isinstance(model, ActorCritic)
    assert model.encoder[0].out_channels == 8
    assert model.state_size == 16
    assert run(model).logits.shape == (3, 2, 5)


@pytest.mark.usefixtures("own_module")
def test_what_a_module_leaves_out_is_supplied():
    plain = build(name="own_network:Plain")
    assert plain.state_size == 0
    plain.resample_noise(None)
    output = run(plain)
    assert output.logits.shape == (3, 2, 5)
    assert output.values.shape == (3, 2)
    assert plain.training

    own = build(name="own_network:Stateful")
    assert own.state_size == 7
    own.resample_noise(None)
    assert own.model.draws == 1
    state = torch.randn(2, 7)
    assert own(OBS, state, torch.zeros(3, 2).bool())[1] is state
    assert describe_model(own, SHAPE).parameters == 4 * 5 + 5 + 2 * 5


@pytest.mark.usefixtures("own_module")
def test_the_trial_leaves_no_trace():
    fresh = build(name="own_network:Plain")
    assert fresh.model.norm.num_batches_tracked == 0
    assert fresh.training
    assert fresh.model.norm.training
    describe_model(fresh, SHAPE)
    assert fresh.model.norm.num_batches_tracked == 0


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:A", "'no_such_module' cannot be imported.*PYTHONPATH"),
        ("needs_more:A", "No module named 'no_such_thing'"),
        (":A", "cannot be imported"),
        ("own_network:Missing", "has no 'Missing'; the name must be module:Class"),
        ("own_network:", "has no ''; the name must be module:Class"),
        ("own_network:function", "gives a int; it must be a class of torch.nn.Module"),
        (
            "own_network:Half",
            r"returned \(\(float16 \(2, 3, 5\), float32 \(2, 3\)\), float32 \(3, 0\)\)."
            r".*must return .* \(\(float32 \(2, 3, 5\)",
        ),
        ("own_network:Forgetful", r"float32 \(3, 7\)\), where the state's size"),
    ],
)
def test_errors_of_own_networks_say_what_came_back(name, message):
    with pytest.raises(ValueError, match=message):
        build(name=name)


@pytest.mark.usefixtures("own_module")
def test_an_exception_inside_says_what_was_asked():
    with pytest.raises(RuntimeError) as caught:
        build(name="own_network:Broken")
    assert "trial of model 'own_network:Broken'" in caught.value.__notes__[0]
    assert "uint8 (2, 3, 4, 84, 84)" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"name": "huge"},
            "unknown model 'huge'; choose one of cnn-72k, cnn-157k.*module:Class",
        ),
        ({"blocks": 3}, "blocks=3, but cnn-157k has no blocks.*impala or convnext"),
        ({"widths": (16,)}, r"widths=\(16,\), but cnn-157k has 2 convolutions"),
        ({"name": "impala", "widths": (16, 0)}, "must be positive"),
        ({"features": -1}, "features=-1 must be positive"),
        ({"name": "impala", "blocks": -1}, "blocks=-1"),
        ({"memory": GRU(0)}, "memory_size must be at least 1, got 0"),
        ({"memory": GTrXL(steps=0)}, "memory_steps must be at least 1"),
        ({"memory": GTrXL(heads=3)}, "heads=3 must divide memory_size=256"),
    ],
)
def test_errors_say_what_to_do(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_errors_of_shapes():
    with pytest.raises(ValueError, match="12x12 are too small"):
        build_model(ModelConfig(name="cnn-345k"), (4, 12, 12), 5)
    with pytest.raises(ValueError, match="fewer widths"):
        build(name="convnext", widths=(8,) * 6)
    with pytest.raises(ValueError, match="images"):
        build_model(ModelConfig(), (128,), 5)
