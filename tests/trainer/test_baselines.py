"""Baselines: what they do, how A2C is made of the learner, the table."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stub_runs import metrics

from trainer import baselines as module
from trainer.baselines import BaselinesConfig, a2c_config, baselines, main
from trainer.config.schema import EnvConfig
from trainer.evaluation.play import Played
from trainer.evaluation.results import level_result
from trainer.evaluation.scripted import Constant, Jumper, scripted
from trainer.evaluation.tables import policies_table
from trainer.learn.losses import Targets, ppo_loss
from trainer.learn.ppo import _stored_targets_are_exact
from trainer.models.policy import Policy
from trainer.rollout.episodes import Episode

CPU = torch.device("cpu")
ENV = EnvConfig()
ACTIONS = ("NOOP", "right", "right+A", "right+B", "right+A+B")
MOVING, STANDING = 40, 0


def play(model, changes, first=None):
    """Actions over rows of one environment, whose pictures change so much."""
    rows = len(changes)
    obs = torch.zeros(rows, 1, 4, 8, 8, dtype=torch.uint8)
    obs[:, 0, -1] = torch.tensor(changes, dtype=torch.uint8)[:, None, None]
    if first is None:
        first = [True] + [False] * (rows - 1)
    output, state = model(
        obs, torch.zeros(1, model.state_size), torch.tensor(first)[:, None]
    )
    assert output.logits.shape == (rows, 1, 5)
    assert output.values.shape == (rows, 1)
    assert state.shape == (1, model.state_size)
    return [ACTIONS[i] for i in output.logits[:, 0].argmax(-1)]


def test_random_has_no_preference():
    model = scripted(ENV)["random"]
    assert isinstance(model, Constant)
    obs, first = torch.zeros(2, 3, 4, 8, 8), torch.zeros(2, 3, dtype=torch.bool)
    output, state = model(obs, torch.zeros(3, 0), first)
    assert output.logits.shape == (2, 3, 5)
    assert output.logits.unique().numel() == 1
    assert state.shape == (3, 0)


def test_right_is_sure_of_it():
    model = scripted(ENV)["right"]
    assert set(play(model, [MOVING, STANDING] * 10)) == {"right+B"}
    assert model.logits.softmax(-1).max() > 1 - 1e-6


@pytest.mark.parametrize(("name", "count"), [("simple", 7), ("complex", 12)])
def test_scripts_know_every_action_set(name, count):
    for model in scripted(replace(ENV, action_set=name)).values():
        logits = [value for value in model.buffers() if value.ndim]
        assert all(len(value) == count for value in logits)


def test_the_jumper_has_a_rhythm():
    jumper = scripted(ENV)["jumper"]
    run, jump = ["right+B"] * 6, ["right+A+B"] * 5
    assert play(jumper, [MOVING] * 22) == run + jump + run + jump


def test_the_rhythm_is_one_of_frames():
    jumper = scripted(replace(ENV, frame_skip=12))["jumper"]
    run, jump = ["right+B"] * 3, ["right+A+B"] * 2
    assert play(jumper, [MOVING] * 5) == run + jump


def test_the_jumper_jumps_when_it_is_stuck():
    jumper = scripted(ENV)["jumper"]
    run, jump = ["right+B"], ["right+A+B"]
    # At once but for one step in which the button is up.
    actions = play(jumper, [MOVING] * 3 + [STANDING] * 12)
    assert actions == run * 3 + jump * 5 + run + jump * 5 + run


def test_a_new_episode_begins_with_running():
    jumper = scripted(ENV)["jumper"]
    first = [True] + [False] * 6 + [True] + [False] * 6
    actions = play(jumper, [MOVING] * 14, first)
    assert actions == 2 * (["right+B"] * 6 + ["right+A+B"])


def test_one_step_after_the_other_is_the_same_as_all_at_once():
    jumper: Jumper = scripted(ENV)["jumper"]
    generator = torch.Generator().manual_seed(1)
    obs = torch.randint(0, 3, (30, 5, 4, 8, 8), generator=generator).to(torch.uint8)
    first = torch.rand(30, 5, generator=generator) < 0.1
    whole, last = jumper(obs, torch.zeros(5, 1), first)
    state = torch.zeros(5, 1)
    for row in range(30):
        one, state = jumper(obs[row : row + 1], state, first[row : row + 1])
        assert torch.equal(one.logits[0], whole.logits[row])
    assert torch.equal(state, last)


def test_a2c_is_one_step_without_corrections():
    config = a2c_config("SuperMarioBros-1-2-v0")
    config.validate()
    learner = config.learner
    assert config.env.task == "SuperMarioBros-1-2-v0"
    assert (config.mode, config.lag, learner.epochs) == ("sync", 0, 1)
    assert learner.minibatch_size == learner.unroll * learner.unrolls_per_batch
    assert learner.advantages == "gae"
    assert _stored_targets_are_exact(config)
    assert (config.replay.replay_share, learner.ema) == (0, 0)
    assert not learner.normalise_advantages


def test_the_clip_loss_is_the_policy_gradient_where_the_ratio_is_1():
    """Huang et al. 2022: why the ppo loss can be A2C's."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(20, 5, generator=generator, requires_grad=True)
    actions = torch.randint(5, (20,), generator=generator)
    log_pi = logits.log_softmax(-1).gather(1, actions[:, None])[:, 0]
    targets = Targets(
        actions=actions,
        log_mu=log_pi.detach(),
        advantages=torch.randn(20, generator=generator),
        values=torch.zeros(20),
        weights=torch.full((20,), 1 / 20),
        scales=torch.ones(20),
    )
    loss = ppo_loss(
        logits,
        torch.zeros(20),
        targets,
        clip_range=a2c_config("x").learner.loss.clip_range,
        value_coef=0.0,
        value_kind="squared",
        entropy_coef=0.0,
    )
    (gradient,) = torch.autograd.grad(loss.total, logits, retain_graph=True)
    plain = -(log_pi * targets.advantages).mean()
    (expected,) = torch.autograd.grad(plain, logits)
    assert torch.allclose(gradient, expected, atol=1e-7)


def result(level, clears, episodes=10, best_x=300):
    last = {"end_reason": 2, "time": 100, "area_pointer": 0, "x_pos": 5, "y_pos": 5}
    played = [
        Played(0, Episode(1.0, 50, best_x, i < clears), last | {"flag_get": i < clears})
        for i in range(episodes)
    ]
    return level_result(level, played, repeat_action_probability=0.0)


@pytest.fixture
def played(monkeypatch):
    """What was evaluated, and the A2C runs; nothing is played or trained."""
    seen, runs = [], []

    def evaluate(model, env, **options):
        seen.append((model, env, options))
        return [result(level, 3) for level in options["levels"]]

    def train(config, display):
        runs.append(config)
        return metrics()

    def load(path, device, **_):
        if "missing" in str(path):
            raise FileNotFoundError(f"no checkpoint at {path}")
        return Policy(
            Constant([0.0]).eval(), replace(ENV, frame_skip=4), device, None, 1, True
        )

    monkeypatch.setattr(module, "evaluate_levels", evaluate)
    monkeypatch.setattr(module, "run_training", train)
    monkeypatch.setattr(module, "load_policy", load)
    return seen, runs


@pytest.fixture
def config(tmp_path):
    return BaselinesConfig(out=tmp_path / "out", device="cpu")


def test_every_policy_plays_the_same(config, played):
    seen, _ = played
    config = replace(
        config, episodes=7, noop_max=5, seed=3, checkpoint=(Path("a/mine"),)
    )
    results = baselines(config)
    assert list(results) == ["random", "right", "jumper", "a2c", "mine"]
    for _, _, options in seen:
        assert options["levels"] == ("1-1",)
        assert (options["episodes"], options["noop_max"]) == (7, 5)
        assert options["seed"] == 3
    assert [env.frame_skip for _, env, _ in seen] == [6, 6, 6, 4, 4]
    assert all(not model.training for model, _, _ in seen)


def test_a2c_trains_for_its_seconds(config, played):
    _, runs = played
    baselines(replace(config, a2c_seconds=5.0, seed=9))
    assert len(runs) == 1
    assert runs[0].max_seconds == 5
    assert runs[0].seed == 9
    assert not runs[0].stop_when_solved
    assert runs[0].env.task == "SuperMarioBros-1-1-v0"
    assert runs[0].run_dir.parent == config.out
    runs[0].validate()


def test_a2c_trains_on_random_levels_where_there_are_several(config, played):
    _, runs = played
    baselines(replace(config, levels="1-1,4-2"))
    assert runs[0].env.task == "SuperMarioBrosRandomStages-v0"


def test_a2c_can_be_left_out(config, played):
    assert list(baselines(replace(config, a2c=False))) == ["random", "right", "jumper"]
    assert not played[1]


def test_checkpoints_of_one_name_have_rows_of_their_own(config, played):
    paths = (Path("a/run/checkpoints/best.pt"), Path("b/run/checkpoints/best.pt"))
    results = baselines(replace(config, a2c=False, checkpoint=paths))
    assert list(results)[3:] == ["run/best.pt", "b/run/checkpoints/best.pt"]


def text(results):
    from rich.console import Console

    console = Console(width=80)
    with console.capture() as capture:
        console.print(policies_table(results))
    return [line.split() for line in capture.get().splitlines()]


def test_the_table_of_a_level():
    rows = text({"one": [result("1-1", 5)], "none": [result("1-1", 0, best_x=400)]})
    expected = ["one", "50.0", "%", "23.7-76.3", "%", "300", "1.00", "50"]
    assert rows[-2] == expected
    assert rows[-1] == ["none", "0.0", "%", "0.0-27.8", "%", "400", "1.00", "-"]


def test_the_table_of_several_levels_counts_and_averages():
    rows = text({"one": [result("1-1", 5), result("1-2", 0, best_x=500)]})
    expected = ["one", "25.0", "%", "11.2-46.9", "%", "400", "1.00", "50", "1/2"]
    assert rows[-1] == expected


def test_the_command(config, played, capsys):
    flags = ["--out", str(config.out), "--episodes", "9", "--no-a2c"]
    flags += ["--checkpoint", "x/one", "--checkpoint", "x/two", "--device", "cpu"]
    assert main(flags) == 0
    out = capsys.readouterr().out
    assert "jumper" in out
    assert "levels 1-1; 9 episodes per level" in out
    content = json.loads((config.out / "baselines.json").read_text())
    assert list(content["policies"]) == ["random", "right", "jumper", "one", "two"]
    assert content["policies"]["one"][0]["clears"] == 3
    assert content["episodes"] == 9
    assert content["a2c_seconds"] is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--levels", "9-9"], "there is no level '9-9'"),
        (["--a2c-seconds", "0"], "a2c_seconds must be above 0, got 0"),
        (["--checkpoint", "missing"], "no checkpoint at missing"),
        (["--device", "tpu"], "device must be auto"),
    ],
)
def test_what_is_wrong_is_said(played, capsys, flags, message):
    assert main(flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert not played[1]


@pytest.mark.rom
def test_baselines_of_the_game(tmp_path, capsys):
    flags = ["--out", str(tmp_path), "--episodes", "2", "--a2c-seconds", "1"]
    assert main([*flags, "--levels", "1-1,1-2", "--device", "cpu"]) == 0
    content = json.loads((tmp_path / "baselines.json").read_text())
    rows = content["policies"]
    assert list(rows) == ["random", "right", "jumper", "a2c"]
    # Who only runs ends at the first enemy of either level.
    best = {name: [r["best_x_median"] for r in rows[name]] for name in rows}
    assert best["jumper"][0] > best["right"][0] > 200
    assert all(r["episodes"] == 2 for r in rows["a2c"])
