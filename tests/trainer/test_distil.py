"""Distillation: the loss, what teachers say of rows, and who may be one."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from learners import A, B, T, change, close_shards, make_batch, make_learner
from torch import nn

from trainer.config.plain import to_dict
from trainer.config.presets import PRESETS
from trainer.config.schema import EnvConfig, RunConfig
from trainer.learn import distil
from trainer.learn.distil import teacher_paths
from trainer.learn.losses import Targets, distillation_loss
from trainer.models import NativeNetwork, PolicyOutput, build_model, checkpoint
from trainer.models.policy import Policy
from trainer.rollout.collector import ActorOutput
from trainer.rollout.store import decided, decisions
from trainer.run import main

LEVELS = ("1-1", "1-2")


def test_loss_equals_formula():
    g = torch.Generator().manual_seed(3)
    logits = torch.randn(5, A, generator=g, requires_grad=True)
    values = torch.randn(5, generator=g)
    teachers = nn.functional.log_softmax(torch.randn(5, A, generator=g), -1)
    weights = torch.tensor([0.5, 0.25, 0.0, 0.125, 0.125])
    targets = Targets(
        actions=torch.zeros(5, dtype=torch.int64),
        log_mu=torch.zeros(5),
        advantages=torch.full((5,), torch.nan),  # not used
        values=torch.zeros(5),
        weights=weights,
        scales=torch.ones(5),
        teachers=teachers,
    )
    loss = distillation_loss(
        logits, values, targets, value_coef=2.0, value_kind="squared"
    )
    kl = torch.stack(
        [
            nn.functional.kl_div(own, teacher, reduction="sum", log_target=True)
            for own, teacher in zip(
                nn.functional.log_softmax(logits, -1), teachers, strict=True
            )
        ]
    )
    expected = (weights * kl).sum()
    torch.testing.assert_close(loss.policy, expected.detach())
    critic = (weights * 0.5 * values.square()).sum()
    torch.testing.assert_close(loss.total, expected + 2.0 * critic)
    (found,) = torch.autograd.grad(loss.total, logits)
    # Of a cross-entropy: what is too likely.
    by_hand = weights[:, None] * (nn.functional.softmax(logits, -1) - teachers.exp())
    torch.testing.assert_close(found, by_hand.detach())


class Fixed(nn.Module):
    """A teacher that always wants the same."""

    state_size = 0

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def resample_noise(self, generator):
        """It has none."""

    def forward(self, obs, state, first):
        rows = obs.shape[:2]
        logits = self.logits.expand(*rows, -1)
        return PolicyOutput(logits, torch.zeros(rows)), state


@pytest.fixture
def teachers(monkeypatch):
    """Of two levels; that of the second has the first and the third action alone."""
    wanted = {"1-1": ([4.0, 0.0, 0.0], [0, 1, 2]), "1-2": ([0.0, 4.0], [0, 2])}

    def load(path, env, device, model):
        logits, columns = wanted[path.name]
        policy = Policy(Fixed(logits), env, device, None, 0, False)
        return distil.Teacher(policy, torch.tensor(columns))

    monkeypatch.setattr(distil, "_load", load)
    monkeypatch.setattr(
        distil, "teacher_paths", lambda where, levels: [where / n for n in levels]
    )


def config_of(**more):
    config = change(loss="distillation", teachers="somewhere", **more)
    return change(config, levels=LEVELS)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("shards", [1, 2])
def test_each_row_is_taught_by_the_teacher_of_its_level(teachers, shards, temperature):
    config = config_of(teacher_temperature=temperature)
    batch = make_batch(config)
    batch.levels[:] = torch.arange(T + 1)[:, None] % 2
    learner = make_learner(config, shards)
    learner.frames = batch.frames
    found = learner.teachers_of(batch)
    assert not found.requires_grad  # in the shards' threads, too
    found = found.exp()
    close_shards(learner)
    assert found.shape == (T, B, A)
    first, second = found[0::2], found[1::2]
    sharp = torch.tensor([4.0, 0.0, 0.0]) / temperature
    torch.testing.assert_close(first, sharp.softmax(0).expand(first.shape))
    expected = torch.zeros(A)
    expected[[0, 2]] = (torch.tensor([0.0, 4.0]) / temperature).softmax(0)
    torch.testing.assert_close(
        second, expected.expand(second.shape), atol=1e-9, rtol=1e-5
    )


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_policy_becomes_that_of_its_teachers(teachers, memory):
    config = config_of(memory=memory, lr=1e-2, lr_end=1e-2)
    batch = make_batch(config)
    learner = make_learner(config)
    differences = []
    for _ in range(30):
        learner.update(batch, 50)
        differences.append(learner.statistics()["loss/policy"])
    close_shards(learner)
    assert differences[-1] < 0.1 * differences[0]
    assert all(torch.isfinite(p).all() for p in learner.model.parameters())


UPDATES = 10


def mixed(mixture, version, count=4000):
    """Where a mixture replaced actions: all were 0, two levels take turns."""
    actions = torch.zeros(count, dtype=torch.int64)
    logits, values = torch.zeros(count, A), torch.zeros(count)
    records = decisions(actions, logits, values, torch.tensor([version]))
    output = ActorOutput(actions, logits, values, torch.zeros(count, 0), records)
    levels = torch.arange(count) % 2
    pixels = torch.zeros(count, 1, 16, 16, dtype=torch.uint8)
    first = torch.zeros(count, dtype=torch.bool)
    envs = np.arange(count, dtype=np.int32)
    inputs = pixels, torch.zeros(count, 0), first, levels
    taught = mixture(envs, inputs, output, version)
    assert torch.equal(decided(records, A)[0], actions)
    untouched = np.setdiff1d(envs, taught)
    assert not actions[untouched].any()
    # The first teacher always wants 2; the second its own action 1, which is 2, too.
    assert (actions[taught] == 2).all()
    return taught


def test_teachers_choose_a_share_of_the_actions_that_falls_to_none():
    def teacher(logits, columns):
        policy = SimpleNamespace(model=Fixed(logits), dtype=None)
        return distil.Teacher(policy, torch.tensor(columns))

    sure = [
        teacher([-99.0, -99.0, 99.0], [0, 1, 2]),
        teacher([-99.0, 99.0], [0, 2]),
    ]
    mixture = distil.Mixture(sure, torch.Generator().manual_seed(3), UPDATES)
    first = mixed(mixture, 0)
    assert len(first) == 3500  # all but one environment in eight
    assert (first % 8 != 0).all()
    half = [mixed(mixture, UPDATES // 2, count=16) for _ in range(400)]
    assert all((envs % 8 != 0).all() for envs in half)
    sizes = [len(envs) for envs in half]  # a teacher acts for all 6 or 8, or for none
    assert set(sizes) == {0, 6, 8, 14}
    assert np.mean(sizes) == pytest.approx(7, rel=0.1)
    for version in (UPDATES, UPDATES + 1):
        assert not len(mixed(mixture, version))


def test_the_share_ends_after_steps_of_each_level(teachers):
    learner = make_learner(config_of(unroll=T, unrolls_per_batch=B))
    mixture = learner.mixture(torch.Generator())
    assert mixture._updates == pytest.approx(2 * 200_000 / (T * B))
    close_shards(learner)


def test_native_teachers_choose_as_those_of_pytorch():
    config = change(RunConfig(), **PRESETS["tiles"]).resolved()
    torch.manual_seed(5)
    model = build_model(config.model, (1, 16, 16), len(config.env.actions))
    with torch.no_grad():
        model.head.policy.weight *= 1e4  # sure of each action
    if NativeNetwork.of(model, (1, 16, 16)) is None:
        pytest.skip("no native encoder for this processor")
    columns = torch.arange(len(config.env.actions))
    found = []
    pixels = torch.randint(0, 32, (64, 1, 16, 16), dtype=torch.uint8)
    for dtype in (torch.bfloat16, None):
        policy = SimpleNamespace(model=model, dtype=dtype)
        teacher = distil.Teacher(policy, columns)
        mixture = distil.Mixture([teacher], torch.Generator().manual_seed(3), UPDATES)
        found.append(mixture._choose(0, pixels))
    assert found[0].unique().numel() > 1
    # Rounding to bfloat16 may decide between two actions that are as good.
    assert (found[0] == found[1]).float().mean() > 0.9


class Sum(Fixed):
    """A teacher whose logits are the sum of what it sees, times its own."""

    def forward(self, obs, state, first):
        output, state = super().forward(obs, state, first)
        logits = output.logits * obs.float().sum((2, 3, 4))[..., None]
        return output._replace(logits=logits), state


@pytest.mark.parametrize("hides", [True, False])
def test_a_teacher_of_tiles_does_not_see_the_world(monkeypatch, hides):
    frames = torch.zeros(3, 1, 16, 16, dtype=torch.uint8)
    frames[0, 0, 13, 5] = 1  # Mario's state
    frames[1, 0, 13, 11] = 21  # that of the first object
    frames[2, 0, 15, 15] = 32  # and of the last one
    before = frames.clone()
    policy = Policy(Sum([0.125, 0.0]), None, torch.device("cpu"), None, 0, False)
    teacher = distil.Teacher(policy, torch.tensor([0, 2]), hides)
    learner = object.__new__(distil.Distil)
    learner._temperature, learner.frames, learner.obs_shape = 1.0, None, None
    monkeypatch.setattr(distil, "observations", lambda *_: frames)
    found = torch.full((3, A), -30.0)
    learner._teach(teacher, torch.zeros(3, 1), torch.arange(3), found)
    seen = torch.tensor([1.0, 0.0, 0.0] if hides else [1.0, 21.0, 32.0]) / 8
    odds = (found[:, 0] - found[:, 2]).detach()
    torch.testing.assert_close(odds, seen)
    assert (found[:, 1] == -30).all()
    # Those that choose actions, too.
    shown = []

    def choose(number, seen):
        shown.append(seen)
        return torch.zeros(3, dtype=torch.int64)

    mixture = distil.Mixture([teacher], torch.Generator().manual_seed(1), UPDATES)
    monkeypatch.setattr(mixture, "_choose", choose)
    decided_here = decisions(
        torch.zeros(3).long(), torch.zeros(3, A), torch.zeros(3), torch.tensor([0])
    )
    output = SimpleNamespace(actions=torch.zeros(3).long(), records=decided_here)
    mixture(np.arange(1, 4), (frames, None, None, torch.zeros(3).long()), output, 0)
    expected = frames.clone()
    if hides:
        expected[1:] = 0
    torch.testing.assert_close(shown[0], expected)
    torch.testing.assert_close(frames, before)


@pytest.mark.parametrize("obs", ["tiles", "tiles+world"])
@pytest.mark.parametrize("own", ["tiles", "tiles+world"])
def test_which_observations_fit(obs, own):
    one, run = EnvConfig(obs=own), EnvConfig(obs=obs)
    if (own, obs) == ("tiles+world", "tiles"):
        with pytest.raises(ValueError, match=r"has obs=tiles\+world, but this run has"):
            distil.check_fits(one, run, "it")
    else:
        distil.check_fits(one, run, "it")


def write_teacher(path, **options):
    """A policy with the weights that it began with."""
    config = change(RunConfig(), **PRESETS["tiles"] | options).resolved()
    model = build_model(config.model, (1, 16, 16), len(config.env.actions))
    state = {"config": to_dict(config), "model": model.state_dict(), "steps": 1}
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(path, state)


def test_where_teachers_are_looked_for(tmp_path):
    write_teacher(tmp_path / "1-1.pt")
    write_teacher(tmp_path / "1-2" / checkpoint.FOLDER / "step-000000001.pt")
    assert teacher_paths(tmp_path, LEVELS) == [tmp_path / "1-1.pt", tmp_path / "1-2"]
    one = tmp_path / "1-1.pt"
    assert teacher_paths(one, LEVELS) == [one, one]
    with pytest.raises(
        FileNotFoundError, match=r"teacher for 1-3: the folder must have 1-3\.safet"
    ):
        teacher_paths(tmp_path, ("1-1", "1-3"))
    with pytest.raises(FileNotFoundError, match="must be a run or a checkpoint"):
        teacher_paths(tmp_path / "nowhere", ())


def test_a_loss_without_teachers_is_refused():
    with pytest.raises(ValueError, match="needs --teachers"):
        change(RunConfig(), loss="distillation").validate()


@pytest.mark.rom
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frame_skip": 4}, "frame_skip=4, but this run has frame_skip=6"),
        ({"action_set": "complex"}, "actions that this run does not have: .*down"),
        ({"memory": "gru"}, "has a memory"),
        ({"timing": "nes_py"}, "timing=nes_py, but this run has timing=console"),
    ],
)
def test_a_teacher_of_another_kind_is_refused(tmp_path, options, message, capsys):
    write_teacher(tmp_path / "1-1.pt", **options)
    flags = f"--obs tiles --loss distillation --teachers {tmp_path} --device cpu"
    assert main([*flags.split(), "--run-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: teacher ")
    assert re.search(message, error)


@pytest.mark.slow
@pytest.mark.rom
def test_a_run_with_teachers_goes_on_with_rewards(tmp_path):
    """Of two levels: teachers with fewer actions, then PPO from the checkpoint."""
    for level in LEVELS:
        write_teacher(tmp_path / "policies" / f"{level}.pt", action_set="simple")
    run = tmp_path / "run"
    common = ["--no-videos", "--dashboard", "off", "--device", "cpu"]
    common += ["--end-episodes", "0"]
    flags = (
        "--obs tiles+world --levels 1-1,1-2 --loss distillation --action-set complex "
        f"--max-steps 8192 --teachers {tmp_path}/policies --run-dir {run}"
    )
    assert main([*flags.split(), *common]) == 0
    written = (run / "episodes.jsonl").read_text().splitlines()
    more = f"--resume {run} --loss ppo --max-steps 16384"
    assert main([*more.split(), *common]) == 0
    assert checkpoint.load(run, torch.device("cpu"))["steps"] >= 16384
    # In 7 of 8 environments; those of the student may end none of the first 40.
    taught = ["taught" in json.loads(line) for line in written]
    assert 0.6 < sum(taught) / len(taught) < 1
