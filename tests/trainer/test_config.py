"""Configuration: JSON round trip, command line, presets, devices."""

import json
import re
import typing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.cli import parse
from trainer.config import flags, plain
from trainer.config.learning import Adam, AdamW, Impala, Muon, linear
from trainer.config.network import GRU, GTrXL
from trainer.config.plain import from_dict, to_dict
from trainer.config.presets import PRESETS, for_levels, preset
from trainer.config.schema import (
    EnvConfig,
    LearnerConfig,
    ModelConfig,
    ReplayConfig,
    RunConfig,
)
from trainer.machine.device import autocast_dtype, choose_device


def test_json_round_trip(tmp_path):
    config = RunConfig(
        seed=9,
        run_dir=tmp_path,
        env=EnvConfig(num_envs=8, groups=4),
        model=ModelConfig(name="cnn-345k", widths=(8, 16)),
        learner=LearnerConfig(loss=Impala()),
        replay=ReplayConfig(replay_share=0.5),
    )
    path = tmp_path / "config.json"
    plain.save(config, path, commit="abc")
    data = json.loads(path.read_text())
    assert data.pop("commit") == "abc"
    assert from_dict(RunConfig, data) == config
    with pytest.raises(ValueError, match="no field colour"):
        from_dict(RunConfig, data | {"colour": 1})


def test_flags_reach_their_fields():
    config = parse(
        "--device cpu --task SuperMarioBros-1-2-v0 --num-envs 16 --groups 4 "
        "--model cnn-345k --max-steps 5 --max-seconds 7.5 --seed 3 --run-dir x/y "
        "--loss impala --popart --wandb --checkpoint-seconds 5 "
        "--widths 8 16 --memory gru --replay-share 0.25 --lag 1 --mode async "
        "--no-stop-when-solved --precision fp16".split()
    )
    assert config.env.task == "SuperMarioBros-1-2-v0"
    assert (config.env.num_envs, config.env.groups) == (16, 4)
    assert config.model.name == "cnn-345k"
    assert (config.max_steps, config.max_seconds, config.seed) == (5, 7.5, 3)
    assert config.run_dir == Path("x/y")
    assert config.checkpoint_seconds == 5
    assert config.learner.loss == Impala()
    assert config.model.popart
    assert config.wandb
    assert (config.model.widths, config.model.memory) == ((8, 16), GRU())
    assert config.replay.replay_share == 0.25
    assert (config.lag, config.mode, config.precision) == (1, "async", "fp16")
    assert not config.stop_when_solved


def test_no_flags_on_a_cpu_are_the_defaults():
    assert parse(["--device", "cpu"]) == RunConfig(device="cpu")


@pytest.mark.parametrize(
    ("given", "momentum", "envs", "unrolls"),
    [
        ("", 0.95, 64, 64),
        ("--mode async", 0.95, 64, 64),
        ("--mode async --lag 1", 0.8, 64, 64),
        ("--lag 1", 0.8, 32, 32),
        ("--obs tiles --lag 2", 0.8, 32, 32),
        ("--lag 1 --loss impala", 0.8, 16, 16),
        ("--lag 1 --loss impala --replay-share 0.5", 0.8, 64, 64),
        ("--lag 1 --num-envs 64", 0.8, 64, 64),
        ("--lag 1 --unrolls-per-batch 128", 0.8, 64, 128),
        ("--lag 1 --levels 1-1,1-2", 0.8, 64, 256),
        ("--preset impala", 0.8, 64, 64),
        ("--preset impala --lag 0", 0.95, 64, 64),
        ("--preset gpu-impala", 0.8, 1024, 256),
        ("--preset gpu --lag 1", 0.8, 128, 128),
    ],
)
def test_defaults_follow_the_lag(given, momentum, envs, unrolls):
    config = parse(given.split())
    assert config.learner.optimizer.momentum == momentum
    assert (config.env.num_envs, config.learner.unrolls_per_batch) == (envs, unrolls)


def test_other_optimisers_have_no_momentum_to_follow_the_lag():
    assert parse(["--lag", "1", "--optimizer", "adam"]).learner.optimizer == Adam()


def test_gtrxl_has_a_lower_rate_of_muon():
    rates = [
        parse(["--obs", "tiles", *flags]).learner.optimizer.matrix_lr
        for flags in (
            ["--memory", "gru"],
            ["--memory", "gtrxl"],
            ["--memory", "gtrxl", "--levels", "1-1,1-2"],
            ["--memory", "gtrxl", "--muon-lr", "0.04"],
        )
    ]
    assert rates == [0.045, 0.015, 0.015, 0.04]
    assert (
        parse(["--memory", "gtrxl", "--optimizer", "adam"]).learner.optimizer == Adam()
    )


def test_preset_gives_defaults_and_flags_win():
    config = parse(["--preset", "gpu-impala", "--num-envs", "256"])
    large = preset("gpu-impala")
    assert config.model.name == large.model.name == "impala"
    assert config.env.num_envs == 256
    assert config.env.groups == large.env.groups == 4
    assert config.preset == "gpu-impala"


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
        (learner(epochs=0), "epochs must be at least 1, got 0"),
        (learner(unroll=0), "unroll must be at least 1, got 0"),
        (learner(unrolls_per_batch=0), "unrolls_per_batch must be at least 1"),
        (learner(minibatch_size=0), "minibatch_size must be at least 1"),
        (learner(grad_accum_steps=0), "grad_accum_steps must be at least 1, got 0"),
        (learner(warmup_updates=-1), "warmup_updates must be at least 0, got -1"),
        (learner(learner_threads=-1), "learner_threads must be at least 0"),
        (learner(gamma=1.5), "gamma must be 0 to 1, got 1.5"),
        (learner(lam=-0.5), "lam must be 0 to 1, got -0.5"),
        (learner(ema=1.01), "ema must be 0 to 1, got 1.01"),
        ({"max_steps": -1}, "max_steps must be"),
        ({"max_seconds": -1.0}, "max_seconds must be"),
        ({"lag": -1}, "lag must be at least 0, got -1"),
        ({"profile": -1}, "profile must be at least 0"),
        ({"solve_rate": 1.5}, "solve_rate must be 0 to 1, got 1.5"),
        ({"solve_episodes": 0}, "solve_episodes must be at least 1"),
        ({"seed": -1}, "seed must be 0 to 20000, got -1"),
        (replay(replay_share=-0.1), "replay_share must be 0 to 0.75, got -0.1"),
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
        (learner(advantages="one-step"), "one-step needs loss=impala; the loss of PPO"),
        (
            learner(unrolls_per_batch=96),
            "unrolls_per_batch=96 must be a multiple of num_envs=64",
        ),
        (replay(replay_share=0.9), "replay_share must be 0 to 0.75, got 0.9"),
        (replay() | {"env": SMALL} | learner(advantages="gae"), "advantages=vtrace"),
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
        learner(loss=Impala(), epochs=1),
        learner(advantages="gae"),
        learner(loss=Impala(), advantages="gae"),
        learner(loss=Impala(), advantages="one-step"),
        replay(),
        replay() | {"env": SMALL},
        replay() | {"mode": "async"},
        replay(replay_share=0.75),
        replay(replay_share=0.0) | learner(advantages="gae"),
    ],
)
def test_what_goes_together_is_allowed(change):
    RunConfig(**change).validate()


DEMONSTRATED = "--starts backward or --imitation or --guide"
GAE_NEEDS = "--lag or --mode async or --loss impala"


@pytest.mark.parametrize(
    ("options", "beside", "needs", "enough"),
    [
        (
            "--reward-progress 2 --reward-step 0 --reward-death 0 --reward-flag 9",
            "--reward classic",
            "--reward progress",
            "",
        ),
        ("--memory-size 64", "", "--memory gru, lstm or gtrxl", "--memory gru"),
        ("--memory-size 256", "", "--memory gru, lstm or gtrxl", "--memory lstm"),
        (
            "--memory-layers 2 --memory-steps 8",
            "--memory gru",
            "--memory gtrxl",
            "--memory gtrxl",
        ),
        ("--clip-range 0.1", "--loss impala", "--loss ppo", ""),
        ("--muon-lr 0.1", "--optimizer adam", "--optimizer muon", ""),
        (
            "--weight-decay 0.1",
            "--optimizer adam",
            "--optimizer muon or adamw",
            "--optimizer adamw",
        ),
        (
            "--replay-capacity 64 --replay-alpha 1 --checkpoint-replay",
            "",
            "--replay-share",
            "--replay-share 0.5",
        ),
        (
            "--checkpoint-replay",
            "--replay-share 0.5 --mode async --lag 1",
            "--mode sync",
            "--replay-share 0.5",
        ),
        (
            "--snapshot-share 0.7",
            "",
            "--starts frontier, backward or files",
            "--starts frontier",
        ),
        ("--level-sampling uniform", "", "several --levels", "--levels 1-1 1-2"),
        (
            "--level-sampling uniform",
            "--levels 1-1",
            "several --levels",
            "--task SuperMarioBrosRandomStages-v0",
        ),
        (
            "--repeat-action-probability 0.1 --action-set complex --stall-steps 7 "
            "--reward-death -3",
            "--task Pong-v5",
            "a Super Mario Bros. task",
            "",
        ),
        ("--bonus-steps 9", "", "--novelty or --count-bonus", "--novelty 0.1"),
        ("--bonus-steps 9", "", "--novelty or --count-bonus", "--count-bonus 0.1"),
        ("--end-episodes 5", "", "--levels", "--levels 1-1"),
        ("--demonstrations 2", "", DEMONSTRATED, "--starts backward"),
        ("--demonstrations 2", "", DEMONSTRATED, "--imitation 0.1"),
        ("--demonstrations 2", "", DEMONSTRATED, "--guide 0.15"),
        (
            "--demonstrations 2",
            "--demos a.json",
            "a run without --demos",
            "--imitation 0.1",
        ),
        ("--cloning-steps 5", "", "--demos", "--demos a.json"),
        ("--entropy 0.1", "--loss distillation", "--loss ppo or impala", "--loss ppo"),
        ("--advantages gae", "", GAE_NEEDS, "--lag 1"),
        ("--advantages gae", "", GAE_NEEDS, "--mode async"),
        ("--advantages gae", "", GAE_NEEDS, "--loss impala"),
        ("--compile", "--serial", "--no-serial", ""),
    ],
)
def test_an_option_that_cannot_matter_is_refused(options, beside, needs, enough):
    def line(*words):
        return ["--device", "cpu", *" ".join(words).split()]

    for one in re.findall(r"--\S+(?: -?[^-\s]\S*)?", options):
        with pytest.raises(
            ValueError, match=f"^{one} is for .*; this run has"
        ) as error:
            parse(line(one, beside))
        assert f"is for {needs}; this run has --" in str(error.value)
    parse(line(options, enough))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            "--memory gru --memory-steps 16",
            "--memory-steps 16 is for --memory gtrxl; this run has --memory gru",
        ),
        (
            "--bonus_steps=9",
            "--bonus-steps 9 is for --novelty or --count-bonus; this run has "
            "--novelty 0, --count-bonus 0",
        ),
    ],
)
def test_the_refusal_of_an_option_names_what_the_run_has(options, text):
    with pytest.raises(ValueError, match=f"^{text}$"):
        parse(["--device", "cpu", *options.split()])


@pytest.mark.parametrize(
    "options",
    [
        "--advantages vtrace",
        "--advantages vtrace --replay-share 0.5 --unrolls-per-batch 128",
        "--no-compile --serial",
    ],
)
def test_a_value_that_needs_nothing_is_allowed(options):
    """Only gae, and compiling, cannot matter beside some other options."""
    parse(["--device", "cpu", *options.split()])


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("levels", ["", "--levels 1-2", "--levels 1-1,8-4"])
def test_defaults_and_presets_are_never_refused(name, levels):
    parse(["--preset", name, "--max-steps", "9", *levels.split()])


def test_choices_are_types():
    config = parse(
        "--device cpu --memory gtrxl --memory-size 64 --memory-steps 8 "
        "--optimizer adamw --weight-decay 0.1".split()
    )
    assert config.model.memory == GTrXL(size=64, steps=8)
    assert config.learner.optimizer == AdamW(weight_decay=0.1)
    assert parse(["--device", "cpu"]).learner.optimizer == Muon()


CHOICES = [
    {"memory": memory, "optimizer": optimizer}
    for memory in ("none", "gru", "lstm", "gtrxl")
    for optimizer in ("muon", "adamw", "adam", "rmsprop")
]


@pytest.mark.parametrize("chosen", CHOICES)
def test_choices_come_back_from_json_and_from_flat_values(tmp_path, chosen):
    numbers = {"memory_size": 9, "memory_steps": 7, "muon_lr": 0.5, "weight_decay": 0.1}
    config = flags.change(RunConfig(), **chosen, **numbers)
    plain.save(config, tmp_path / "config.json")
    data = json.loads((tmp_path / "config.json").read_text())
    assert from_dict(RunConfig, data) == config
    assert flags.build(flags.values(config)) == config
    memory, optimizer = data["model"]["memory"], data["learner"]["optimizer"]
    assert optimizer["kind"] == chosen["optimizer"]
    assert (memory["kind"] if memory else "none") == chosen["memory"]
    flat = plain.flat(data)
    assert flat["learner.optimizer"] == chosen["optimizer"]
    assert (flat["model.memory"] or "none") == chosen["memory"]
    if chosen["memory"] == "gru":
        assert memory == {"kind": "gru", "size": 9}
        assert flat["model.memory.size"] == 9


# No deadline: a machine may be busy.
@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.data())
def test_any_values_come_back_from_json(data):
    drawn = {
        option.name: data.draw(_values_of(option.hint))
        for option in flags.options().values()
    }
    config = flags.build(drawn)
    assert from_dict(RunConfig, json.loads(json.dumps(to_dict(config)))) == config
    assert flags.build(flags.values(config)) == config


def _values_of(hint):
    """A strategy of values of an option's type."""
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from(typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return st.lists(_values_of(typing.get_args(hint)[0]), max_size=2).map(tuple)
    if Path in typing.get_args(hint):
        return st.sampled_from([None, Path("a/b")])
    kinds = {int: st.integers(), float: st.floats(allow_nan=False)}
    return (kinds | {bool: st.booleans(), str: st.text()})[hint]


def test_a_choice_without_such_a_kind_is_refused():
    data = to_dict(RunConfig())
    data["learner"]["optimizer"] = {"kind": "sgd"}
    text = "unknown kind 'sgd'; choose one of muon, adamw"
    with pytest.raises(ValueError, match=text):
        from_dict(RunConfig, data)


def _flags_in(text):
    """The flags of a help text; --no-x belongs to --x."""
    rows = re.findall(r"^\W{0,4}(--[a-z][a-z0-9-]*)", text, re.M)
    assert len(rows) == len(set(rows))
    return set(rows)


def test_help_shows_what_most_runs_need_and_help_all_everything(capsys):
    shown = []
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as done:
            parse([flag], "About.")
        assert done.value.code == 0
        shown.append(capsys.readouterr().out)
    few, all_of_them = map(_flags_in, shown)
    assert len(few) == 35
    assert few < all_of_them
    assert len(all_of_them) <= 110
    assert shown[0].splitlines()[-1].endswith("--help-all")
    known = {o.name for o in flags.options().values() if o.flag}
    assert all_of_them == {f"--{name.replace('_', '-')}" for name in known}


def test_every_option_has_a_help_text():
    for option in flags.options().values():
        assert option.help.endswith("."), option.name


@pytest.mark.parametrize(
    ("share", "count"), [(0.0, 0), (0.001, 1), (0.25, 21), (0.5, 64), (0.75, 192)]
)
def test_replayed_unrolls_are_added_to_the_fresh_ones(share, count):
    config = RunConfig(**replay(replay_share=share))
    assert config.replayed_unrolls == count
    assert count / (64 + count) == pytest.approx(share, abs=0.02)


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
    with pytest.raises(RuntimeError, match="the last GPU is cuda:0"):
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
        model = ModelConfig(name=options.get("name", "cnn-72k"))
        resolved = RunConfig(env=env, model=model).resolved().env
        return resolved.img_height, resolved.img_width

    assert size() == (40, 40)
    assert size(name="cnn-345k") == size(name="mine:Own") == (84, 84)
    assert size(name="cnn-345k", img_height=64, img_width=48) == (64, 48)
    assert size(name="cnn-345k", img_height=64) == (64, 64)


@pytest.mark.parametrize("levels", [("1-1,1-2",), ("1-1", "1-2")])
def test_levels_are_counted_however_they_are_written(levels):
    env = EnvConfig(levels=levels)
    RunConfig(env=env, model=ModelConfig(value_heads=2)).validate()
    one = EnvConfig(levels=("1-1", "1-1"))
    with pytest.raises(ValueError, match="of which there are 1; got 2"):
        RunConfig(env=one, model=ModelConfig(value_heads=2)).validate()


def test_levels_look_as_far_ahead_whatever_the_frame_skip():
    six = preset("cpu")
    four = replace(six, env=replace(six.env, frame_skip=4))
    for config in (for_levels(each, ["1-1", "1-2"]) for each in (six, four)):
        skip = config.env.frame_skip
        assert config.learner.gamma ** (1 / skip) == pytest.approx(
            0.95 ** (1 / 6), abs=2e-4
        )
    assert six.env.frame_skip != four.env.frame_skip
