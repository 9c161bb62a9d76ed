"""ONNX files of policies: the same decisions as PyTorch, and what others read."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mario_envpool
from trainer.config.network import GRU, LSTM, GTrXL
from trainer.config.schema import EnvConfig, ModelConfig
from trainer.export import export, main, metadata
from trainer.models import build_model
from trainer.models.policy import Policy, load_policy, observation_shape

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.rom

CPU = torch.device("cpu")
DECISIONS, ROWS = 10_000, 500
TILES = EnvConfig("SuperMarioBros-v0", ("1-1", "4-2"), obs="tiles", stack_num=1)
PICTURES = EnvConfig(task="SuperMarioBros-1-2-v0")
NETWORKS = {
    "cnn-72k": (PICTURES, None),
    "nature": (replace(PICTURES, stack_num=2), GRU(size=32)),
    "impala": (replace(PICTURES, img_height=40, img_width=40), LSTM(size=32)),
    "convnext": (
        replace(PICTURES, img_height=40, img_width=40),
        GTrXL(size=32, steps=4),
    ),
    "tiles": (TILES, None),
}


def make_policy(name):
    """A network with random weights, its heads larger, so that decisions differ."""
    torch.manual_seed(3)
    env, memory = NETWORKS[name]
    if name == "cnn-72k":
        env = replace(env, img_height=40, img_width=40)
    config = ModelConfig(name=name, memory=memory) if memory else ModelConfig(name=name)
    model = build_model(config, observation_shape(env), len(env.actions)).eval()
    with torch.no_grad():
        model.head.policy.weight *= 100
    return Policy(model, env, CPU, None, 1234, averaged=False)


def run(path, **inputs):
    session = onnxruntime.InferenceSession(path)
    names = [wanted.name for wanted in session.get_inputs()]
    return session.run(None, {name: inputs[name].numpy() for name in names})


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_the_file_decides_like_pytorch(name, tmp_path):
    policy = make_policy(name)
    path = tmp_path / "policy.onnx"
    export(policy, path)
    model = policy.model
    model.native = False
    generator = torch.Generator().manual_seed(5)
    shape = observation_shape(policy.env)
    state = torch.zeros(ROWS, model.state_size)
    near = 0
    for number in range(DECISIONS // ROWS):
        obs = torch.randint(0, 13, (ROWS, *shape), generator=generator)
        obs = obs.to(torch.uint8) * (1 if name == "tiles" else 20)
        first = torch.rand(ROWS, generator=generator) < (0.05 if number else 1)
        logits, value, *after = run(path, obs=obs, state=state, first=first)
        with torch.no_grad():
            output, state = model(obs[None], state, first[None])
        expected = output.logits[0].numpy()
        best = np.sort(expected, axis=1)
        apart = best[:, -1] - best[:, -2] > 1e-4
        near += int((~apart).sum())
        chosen = logits.argmax(1)
        np.testing.assert_array_equal(chosen[apart], expected.argmax(1)[apart])
        np.testing.assert_allclose(value, output.values[0].numpy(), atol=1e-4)
        assert len(after) == (model.state_size > 0)
        if after:
            np.testing.assert_allclose(after[0], state.numpy(), atol=1e-4)
    assert near < DECISIONS / 100
    assert len(set(chosen.tolist())) > 1


def test_a_network_of_all_levels(tmp_path):
    """It has a value for each level."""
    policy, path = load_policy("released:one"), tmp_path / "one.onnx"
    export(policy, path)
    generator = torch.Generator().manual_seed(5)
    obs = torch.randint(0, 8, (3, 1, 16, 16), generator=generator, dtype=torch.uint8)
    policy.model.native = False
    with torch.no_grad():
        output, _ = policy.model(
            obs[None], torch.zeros(3, 0), torch.zeros(1, 3, dtype=torch.bool)
        )
    logits, values = run(path, obs=obs)
    assert values.shape == (3, 32)
    np.testing.assert_allclose(logits, output.logits[0].numpy(), atol=1e-4)
    np.testing.assert_allclose(values, output.values[0].numpy(), atol=1e-4)


def test_the_model_is_left_as_it_was(tmp_path):
    policy = make_policy("cnn-72k")
    export(policy, tmp_path / "policy.onnx")
    assert policy.model.native


def test_the_metadata_is_all_that_a_player_needs(tmp_path, capsys):
    path = tmp_path / "new" / "1-1.onnx"
    assert main(["released:1-1", "--onnx", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"wrote {path}, 0.")
    assert err == ""
    onnx.checker.check_model(path)
    session = onnxruntime.InferenceSession(path)
    about = json.loads(session.get_modelmeta().custom_metadata_map["mario_envpool"])
    policy = load_policy("released:1-1")
    assert about == metadata(policy)
    assert about["actions"] == list(policy.env.actions)
    assert (about["levels"], about["state_size"]) == (["1-1"], 0)
    assert str(Path.home()) not in path.read_bytes().decode("latin-1")
    assert str(Path.cwd()) not in path.read_bytes().decode("latin-1")
    options = about["options"]
    pool = mario_envpool.make(about["task"], num_envs=1, env_type="gym", **options)
    assert pool.action_space.n == len(about["actions"])
    pool.close()


def test_pictures_have_the_size_of_the_network(tmp_path):
    policy = make_policy("nature")
    pool = mario_envpool.make("SuperMarioBros-v0", **metadata(policy)["options"])
    assert pool.observation_space.shape == observation_shape(policy.env)
    pool.close()


class NoOnnx(nn.Module):
    """A network with an operation that ONNX lacks."""

    state_size = 0

    def __init__(self, config, shape, num_actions):
        super().__init__()
        self.head = nn.Linear(1, num_actions)

    def forward(self, obs, state, first):
        rows = obs.flatten(2).float().sum(-1, keepdim=True)
        if rows.sum().item() < 0:  # depends on data
            rows = rows + 1
        logits = self.head(rows)
        return (logits, logits[..., 0]), state


def test_what_cannot_be_exported(tmp_path, capsys, monkeypatch):
    assert main(["released:1-1", "--onnx", "policy.txt"]) == 2
    assert "--onnx writes a .onnx file, got policy.txt" in capsys.readouterr().err
    path = tmp_path / "policy.onnx"
    policy = make_policy("cnn-72k")
    other = policy._replace(model=NoOnnx(None, (), 5))
    with pytest.raises(ValueError, match="the network cannot be exported: "):
        export(other, path)
    pong = policy._replace(env=EnvConfig(task="Pong-v5"))
    with pytest.raises(ValueError, match="only policies for Super Mario Bros"):
        export(pong, path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install 'mario-envpool"):
        export(policy, path)
    assert not path.exists()
