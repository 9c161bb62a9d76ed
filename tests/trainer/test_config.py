"""Configuration: JSON round trip, command line, presets, devices."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from trainer.cli import parse
from trainer.config import schema as config_module
from trainer.config.checks import unused_options
from trainer.config.presets import PRESETS, for_levels, preset
from trainer.config.schedules import linear
from trainer.config.schema import (
    AugmentConfig,
    EnvConfig,
    ExploreConfig,
    LearnerConfig,
    ModelConfig,
    ReplayConfig,
    RunConfig,
    from_dict,
)
from trainer.machine.device import autocast_dtype, choose_device


def test_json_round_trip(tmp_path):
    config = RunConfig(
        seed=9,
        run_dir=tmp_path,
        env=EnvConfig(num_envs=8, groups=4),
        model=ModelConfig(name="nano", widths=(8, 16)),
        learner=LearnerConfig(loss="impala"),
        replay=ReplayConfig(replay_share=0.5),
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
        "--device cpu --task SuperMarioBros-1-2-v0 --num-envs 16 --groups 4 "
        "--model nano --max-steps 5 --max-seconds 7.5 --seed 3 --run-dir x/y "
        "--loss impala --no-normalise-advantages --wandb --keep-checkpoints 5 "
        "--widths 8 16 --memory gru --replay-share 0.25 --lag 1 --mode async "
        "--no-stop-when-solved --precision fp16".split()
    )
    assert config.env.task == "SuperMarioBros-1-2-v0"
    assert (config.env.num_envs, config.env.groups) == (16, 4)
    assert config.model.name == "nano"
    assert (config.max_steps, config.max_seconds, config.seed) == (5, 7.5, 3)
    assert config.run_dir == Path("x/y")
    assert config.keep_checkpoints == 5
    assert config.learner.loss == "impala"
    assert not config.learner.normalise_advantages
    assert config.wandb
    assert (config.model.widths, config.model.memory) == ((8, 16), "gru")
    assert config.replay.replay_share == 0.25
    assert (config.lag, config.mode, config.precision) == (1, "async", "fp16")
    assert not config.stop_when_solved


def test_no_flags_on_a_cpu_are_the_defaults():
    assert parse(["--device", "cpu"]) == RunConfig(device="cpu")


def test_preset_gives_defaults_and_flags_win():
    config = parse(["--preset", "gpu-large", "--num-envs", "256"])
    large = preset("gpu-large")
    assert config.model.name == large.model.name == "impala"
    assert config.env.num_envs == 256
    assert config.env.groups == large.env.groups == 4
    assert config.preset == "gpu-large"


def test_every_field_has_a_help_line():
    for kind in (
        RunConfig,
        EnvConfig,
        ModelConfig,
        LearnerConfig,
        ReplayConfig,
        ExploreConfig,
        AugmentConfig,
    ):
        source = Path(config_module.__file__).read_text()
        body = source.split(f"class {kind.__name__}:")[1].split("\n@")[0]
        for field in dataclasses.fields(kind):
            if not dataclasses.is_dataclass(field.type) and field.name not in (
                "env",
                "model",
                "learner",
                "replay",
                "explore",
                "augmentation",
            ):
                after = body.split(f"\n    {field.name}: ")[1].split("\n", 1)[1]
                assert after.lstrip().startswith('"""'), field.name


def learner(**fields):
    return {"learner": LearnerConfig(**fields)}


def replay(**fields):
    return {"replay": ReplayConfig(**{"replay_share": 0.5} | fields)}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"env": EnvConfig(num_envs=4, groups=3)},
            "groups must divide num_envs=4, got 3",
        ),
        (
            {"env": EnvConfig(num_envs=4, groups=0)},
            "groups must divide num_envs=4, got 0",
        ),
        ({"env": EnvConfig(num_envs=2, groups=4)}, "groups must divide num_envs=2"),
        (learner(passes=0), "passes must be at least 1, got 0"),
        (learner(unroll=0), "unroll must be at least 1, got 0"),
        (learner(unrolls_per_batch=0), "unrolls_per_batch must be at least 1"),
        (learner(minibatch_size=0), "minibatch_size must be at least 1"),
        (learner(accumulate=0), "accumulate must be at least 1, got 0"),
        (learner(warmup_updates=-1), "warmup_updates must be at least 0, got -1"),
        (learner(target_updates=-1), "target_updates must be at least 0"),
        (learner(learner_threads=-1), "learner_threads must be at least 0"),
        (learner(gamma=1.5), "gamma must be 0 to 1, got 1.5"),
        (learner(lam=-0.5), "lam must be 0 to 1, got -0.5"),
        (learner(ema=1.01), "ema must be 0 to 1, got 1.01"),
        ({"max_steps": 0}, "max_steps must be"),
        ({"max_seconds": -1.0}, "max_seconds must be"),
        ({"lag": -1}, "lag must be at least 0, got -1"),
        ({"profile": -1}, "profile must be at least 0"),
        ({"solve_rate": 1.5}, "solve_rate must be 0 to 1, got 1.5"),
        ({"solve_episodes": 0}, "solve_episodes must be at least 1"),
        ({"seed": -1}, "seed must be 0 to 20000, got -1"),
        (replay(replay_share=-0.1), "replay_share must be 0 to 1, got -0.1"),
        (replay(replay_min_fresh=2.0), "replay_min_fresh must be 0 to 1"),
        (replay(replay_bytes=-1), "replay_bytes must be at least 0"),
        (replay(replay_alpha=-1.0), "replay_alpha must be 0 to 1"),
        (replay(burn_in=-1), "burn_in must be at least 0"),
    ],
)
def test_wrong_values_are_named(change, text):
    with pytest.raises(ValueError, match=text):
        RunConfig(**change).validate()


SMALL = EnvConfig(num_envs=32)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"serial": True, "lag": 1}, "serial has no overlap: lag must be 0, got 1"),
        (learner(loss="impala", advantages="gae"), "gae needs loss=clip"),
        (learner(loss="impala", target_updates=8), "target_updates needs loss=clip"),
        (
            learner(unrolls_per_batch=96),
            "the 96 fresh ones .* must be a multiple of num_envs=64",
        ),
        (replay(), "the 32 fresh ones .* must be a multiple of num_envs=64"),
        (
            replay(replay_share=0.9, replay_min_fresh=0.25) | {"mode": "async"},
            "replay_share=0.9 leaves less than replay_min_fresh=0.25",
        ),
        (replay() | {"env": SMALL} | learner(advantages="gae"), "advantages=vtrace"),
        (replay() | {"env": SMALL} | learner(targets="stored"), "targets=recomputed"),
        (
            replay(replay_capacity=0) | {"env": SMALL},
            "replay_capacity must be at least 1, got 0",
        ),
    ],
)
def test_what_excludes_each_other_is_refused(change, text):
    with pytest.raises(ValueError, match=text):
        RunConfig(**change).validate()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"serial": True},
        {"lag": 2},
        {"mode": "async"} | learner(unrolls_per_batch=96),
        learner(unrolls_per_batch=128),
        learner(loss="impala", passes=1),
        learner(advantages="gae", targets="stored"),
        learner(target_updates=8),
        replay() | {"env": SMALL},
        replay() | {"mode": "async"},
        replay(replay_share=0.75) | learner(unrolls_per_batch=256),
        replay(replay_share=0.875, replay_min_fresh=0.125) | {"mode": "async"},
        replay(replay_share=0.0, replay_capacity=0) | learner(advantages="gae"),
    ],
)
def test_what_goes_together_is_allowed(change):
    RunConfig(**change).validate()


@pytest.mark.parametrize(
    ("options", "unused_with", "used_with"),
    [
        ("--hud keep", "--obs tiles", ""),
        (
            "--reward-progress 2 --reward-step 0 --reward-death 0 --reward-flag 9",
            "--reward classic",
            "",
        ),
        ("--memory-size 64", "", "--memory gru"),
        ("--memory-layers 2 --memory-heads 2 --memory-steps 8", "", "--memory gtrxl"),
        ("--popart-step 0.1", "", "--popart"),
        ("--noisy-sigma 0.1", "", "--noisy"),
        ("--clip-range 0.1 --targets recomputed", "--loss impala", ""),
        ("--pg-rho-bar 2", "", "--loss impala"),
        ("--rho-bar 2 --c-bar 2", "--advantages gae", ""),
        ("--target-rho 3", "", "--target-updates 4"),
        ("--muon-lr 0.1 --momentum 0.9", "--optimizer adam", ""),
        ("--weight-decay 0.1", "--optimizer adam", "--optimizer adamw"),
        ("--weight-decay 0.1", "--optimizer adam", "--optimizer muon"),
        ("--adam-eps 0.1", "--optimizer rmsprop", "--optimizer adam"),
        ("--rmsprop-alpha 0.9 --rmsprop-eps 0.1", "", "--optimizer rmsprop"),
        (
            "--replay-capacity 64 --replay-bytes 9999 --replay-alpha 1 --replay-beta 1 "
            "--replay-beta-end 0.5 --replay-beta-steps 9 --replay-max-kl 2 "
            "--replay-min-rho 0.1 --replay-min-fresh 0.1 --checkpoint-replay",
            "",
            "--replay-share 0.5",
        ),
        ("--frontier-share 0.7", "", "--starts frontier"),
        ("--level-floor 0.2", "", "--task SuperMarioBrosRandomStages-v0"),
        ("--level-sampling uniform", "", "--levels 1-1 1-2"),
        ("--level-floor 0.2", "--level-sampling uniform --levels all", "--levels all"),
        (
            "--repeat-action-probability 0.1 --action-set complex --stall-steps 7 "
            "--reward-death -3",
            "--task Pong-v5",
            "",
        ),
        (
            "--checkpoint-replay",
            "--replay-share 0.5 --mode async --lag 1",
            "--replay-share 0.5",
        ),
        ("--cell-size 16", "", "--starts frontier"),
        ("--cell-size 16 --bonus-steps 9 --novelty-by-count", "", "--novelty 0.1"),
        ("--cell-size 16 --bonus-steps 9", "", "--count-bonus-end 0.1"),
        ("--augment-cost 0.2 --augment-shift 2", "", "--augment shift"),
        ("--augment-brightness 0.1", "", "--augment shift,brightness"),
        ("--augment-flip 0.1", "", "--augment flip --action-set complex"),
        ("--solve-episodes 50", "--no-stop-when-solved", ""),
        ("--end-episodes 5", "", "--levels 1-1"),
    ],
)
def test_options_that_change_nothing_are_named(options, unused_with, used_with):
    def told(others):
        config = parse(["--device", "cpu", *options.split(), *others.split()])
        return unused_options(config.resolved())

    names = [word for word in options.split() if word.startswith("--")]
    lines = [line.split(" changes nothing without ") for line in told(unused_with)]
    assert sorted(name for name, _ in lines) == sorted(names)
    assert not told(used_with)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_no_unused_options(name):
    for levels in ((), ("1-1",), ("1-2",), ("1-1", "8-4")):
        config = for_levels(preset(name), levels)
        config = dataclasses.replace(
            config, env=dataclasses.replace(config.env, levels=levels)
        )
        assert not unused_options(config.resolved())


def test_fresh_unrolls_are_what_replay_leaves():
    assert RunConfig().fresh_unrolls == 64
    assert RunConfig(**replay(replay_share=0.25)).fresh_unrolls == 48


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


def test_images_have_the_size_that_the_network_is_made_for():
    def size(**options):
        env = EnvConfig(**{k: v for k, v in options.items() if k != "name"})
        model = ModelConfig(name=options.get("name", "femto"))
        resolved = RunConfig(env=env, model=model).resolved().env
        return resolved.img_height, resolved.img_width

    assert size() == (40, 40)
    assert size(name="nano") == size(name="mine:Own") == (84, 84)
    assert size(name="nano", img_height=64, img_width=48) == (64, 48)
    assert size(name="nano", img_height=64) == (64, 64)


@pytest.mark.parametrize("levels", [("1-1,1-2",), ("1-1", "1-2"), ("all",)])
def test_levels_are_counted_however_they_are_written(levels):
    explore = ExploreConfig(level_sampling="learnability", level_floor=0.0)
    with pytest.raises(ValueError, match="level_floor must be above 0"):
        RunConfig(env=EnvConfig(levels=levels), explore=explore).validate()
    one = EnvConfig(levels=("1-1", "1-1"))
    RunConfig(env=one, explore=explore).validate()


def test_levels_look_as_far_ahead_whatever_the_frame_skip():
    cpu, gpu = (for_levels(preset(name), ["1-1", "1-2"]) for name in ("cpu", "gpu-mid"))
    for config in (cpu, gpu):
        skip = config.env.frame_skip
        assert config.learner.gamma ** (1 / skip) == pytest.approx(
            0.95 ** (1 / 6), abs=2e-4
        )
    assert cpu.env.frame_skip != gpu.env.frame_skip
