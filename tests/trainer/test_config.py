"""Configuration: JSON round trip, command line, presets, devices."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from trainer import config as config_module
from trainer.config import EnvConfig, LearnerConfig, ModelConfig, RunConfig, from_dict
from trainer.device import autocast_dtype, choose_device
from trainer.optim import linear
from trainer.presets import preset
from trainer.run import parse


def test_json_round_trip(tmp_path):
    config = RunConfig(
        seed=9,
        run_dir=tmp_path,
        env=EnvConfig(num_envs=8, batch_size=4),
        model=ModelConfig(name="nano"),
        learner=LearnerConfig(loss="impala"),
    )
    path = tmp_path / "config.json"
    config_module.save(config, path, commit="abc")
    data = json.loads(path.read_text())
    assert data.pop("commit") == "abc"
    assert from_dict(RunConfig, data) == config
    with pytest.raises(ValueError, match="no field colour"):
        from_dict(RunConfig, data | {"colour": 1})


def test_flags_reach_their_fields():
    config = parse(
        "--device cpu --task SuperMarioBros-1-2-v0 --num-envs 16 --batch-size 8 "
        "--model nano --max-steps 5 --max-seconds 7.5 --seed 3 --run-dir x/y "
        "--loss impala --no-normalise-advantages --wandb --resume c.pt".split()
    )
    assert config.env.task == "SuperMarioBros-1-2-v0"
    assert (config.env.num_envs, config.env.batch_size) == (16, 8)
    assert config.model.name == "nano"
    assert (config.max_steps, config.max_seconds, config.seed) == (5, 7.5, 3)
    assert config.run_dir == Path("x/y")
    assert config.resume == Path("c.pt")
    assert config.learner.loss == "impala"
    assert not config.learner.normalise_advantages
    assert config.wandb


def test_no_flags_on_a_cpu_are_the_defaults():
    assert parse(["--device", "cpu"]) == RunConfig(device="cpu")


def test_preset_gives_defaults_and_flags_win():
    config = parse(["--preset", "gpu", "--num-envs", "256"])
    assert config.model.name == preset("gpu").model.name == "impala"
    assert config.env.num_envs == 256
    assert config.env.batch_size == preset("gpu").env.batch_size
    assert config.preset == "gpu"


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_presets_are_valid(name):
    preset(name).validate()


def test_every_field_has_a_help_line():
    for kind in (RunConfig, EnvConfig, ModelConfig, LearnerConfig):
        source = Path(config_module.__file__).read_text()
        body = source.split(f"class {kind.__name__}:")[1].split("\n@")[0]
        for field in dataclasses.fields(kind):
            if not dataclasses.is_dataclass(field.type) and field.name not in (
                "env",
                "model",
                "learner",
            ):
                after = body.split(f"\n    {field.name}: ")[1].split("\n", 1)[1]
                assert after.lstrip().startswith('"""'), field.name


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"env": EnvConfig(num_envs=4, batch_size=5)}, "batch_size must be 1 to"),
        ({"learner": LearnerConfig(passes=0)}, "passes must be at least 1, got 0"),
        ({"learner": LearnerConfig(gamma=1.5)}, "gamma must be 0 to 1, got 1.5"),
        ({"max_steps": 0}, "max_steps must be"),
        ({"max_seconds": -1.0}, "max_seconds must be"),
        ({"seed": -1}, "seed must be 0 to 20000, got -1"),
    ],
)
def test_wrong_values_are_named(change, text):
    with pytest.raises(ValueError, match=text):
        RunConfig(**change).validate()


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(RuntimeError, match="--device cuda, but this PyTorch"):
        choose_device("cuda")
    with pytest.raises(ValueError, match="'tpu'"):
        choose_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("auto").type == "cuda"
    assert choose_device("cuda:0").index == 0
    with pytest.raises(RuntimeError, match="there are 1 GPUs"):
        choose_device("cuda:3")


def test_precision():
    cpu = torch.device("cpu")
    assert autocast_dtype(cpu, "fp32") is None
    assert autocast_dtype(cpu, "bf16") is torch.bfloat16
    assert autocast_dtype(cpu, "auto") in (None, torch.bfloat16)


def test_linear_schedule():
    assert linear(1.0, 0.0, 100, 0) == 1
    assert linear(1.0, 0.0, 100, 25) == 0.75
    assert linear(1.0, 0.5, 100, 500) == 0.5
    assert linear(1.0, 0.5, 0, 0) == 0.5
