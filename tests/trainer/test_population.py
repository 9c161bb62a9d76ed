"""Population-based training: exploit, explore, going on. Runs take no time here."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stub_runs import MUTATIONS, metrics

from trainer.config.schema import RunConfig
from trainer.models import checkpoint
from trainer.population import main
from trainer.tuning import command, mutations, options
from trainer.tuning import population as module
from trainer.tuning.population import PopulationConfig, evolve

BASE = RunConfig(device="cpu", seed=5)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MUTATIONS)
    return PopulationConfig(
        members=4,
        generations=3,
        steps_per_generation=1000,
        mutations=f"{path}:MUTATIONS",
        out=tmp_path / "out",
    )


class Trainer:
    """Instead of runs: writes checkpoints that say whose weights they are."""

    def __init__(self, rates=(0.1, 0.7, 0.3, 0.5)):
        self.rates = rates
        self.seen = []
        self.fail = {}  # number of a call to what happens there

    def __call__(self, config, display):
        call = len(self.seen)
        self.seen.append(config)
        outcome = self.fail.get(call)
        if isinstance(outcome, BaseException):
            raise outcome
        member = int(config.run_dir.name.removeprefix("member-"))
        origin = member
        if config.resume is not None:
            state = checkpoint.load(config.resume, torch.device("cpu"))
            assert state["steps"] == config.max_steps - 1000
            origin = int(state["model"]["origin"])
        folder = config.run_dir / checkpoint.FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"step-{config.max_steps:09}.pt"
        model = {"origin": torch.tensor(origin)}
        checkpoint.save(path, {"model": model, "steps": config.max_steps})
        rates = {"rollout/clear_rate": self.rates[member], "rollout/best_x_50": 700.0}
        point = {"step": config.max_steps, **rates}
        (config.run_dir / "metrics.jsonl").write_text(json.dumps(point) + "\n")
        return metrics(**rates, signal=2.0 if outcome == "signal" else 0.0)


@pytest.fixture
def trainer(monkeypatch):
    result = Trainer()
    monkeypatch.setattr(module, "run_training", result)
    return result


def origins(config):
    """Whose weights the members have at the end."""
    folders = [config.out / config.name / f"member-{i}" for i in range(config.members)]
    states = [checkpoint.load(folder, torch.device("cpu")) for folder in folders]
    return [int(state["model"]["origin"]) for state in states]


def events(config):
    lines = (config.out / config.name / "population.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_worst_take_the_weights_of_the_best(config, trainer, capsys):
    population = evolve(config, BASE)
    assert origins(config) == [1, 1, 2, 3]
    assert len(trainer.seen) == 12
    exploits = [event for event in events(config) if "source" in event]
    assert [(e["generation"], e["member"], e["source"]) for e in exploits] == [
        (0, 0, 1),
        (1, 0, 1),
    ]
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if "takes" in line)
    old, new = trainer.seen[1].learner, trainer.seen[4].learner
    assert line.startswith(
        "generation 0: member 0 (clear 10 %, x 700) takes member 1's weights "
        "(clear 70 %, x 700); "
    )
    if new.lr != old.lr:
        assert f"lr {options.show(old.lr)} -> {options.show(new.lr)}" in line
    assert new != old
    assert "best: " in out
    assert "member-1 (clear 70 %" in out
    assert population.ranking() == [1, 3, 2, 0]


def test_only_who_takes_weights_changes_its_settings(config, trainer):
    evolve(config, BASE)
    by_member = [trainer.seen[i::4] for i in range(4)]
    assert by_member[0][0].learner.lr == BASE.learner.lr
    assert len({c.learner for c in by_member[0]}) == 3
    for runs in by_member[1:]:
        assert len({c.learner for c in runs}) == 1
    assert len({c.learner for c in trainer.seen[:4]}) == 4


def test_what_members_run(config, trainer):
    evolve(config, BASE)
    for number, run in enumerate(trainer.seen):
        generation, member = divmod(number, 4)
        assert run.seed == 5 + member
        assert run.run_dir.name == f"member-{member}"
        assert run.max_steps == 1000 * (generation + 1)
        assert (run.resume is None) == (generation == 0)
        assert not run.stop_when_solved
        run.validate()


def test_a_quarter_of_many_exploits(config, trainer):
    trainer.rates = [i / 10 for i in range(9)]
    config = replace(config, members=9, generations=2)
    evolve(config, BASE)
    assert sorted(origins(config))[:5] == [2, 3, 4, 5, 6]
    assert set(origins(config)[:2]) <= {7, 8}


def test_equals_take_nothing(config, trainer):
    trainer.rates = [0.5] * 4
    evolve(config, BASE)
    assert origins(config) == [0, 1, 2, 3]
    assert not [event for event in events(config) if "source" in event]


def test_before_any_clears_the_distance_counts():
    near = {"rollout/clear_rate": 0.0, "rollout/best_x_50": 700.0}
    far = {"rollout/clear_rate": 0.0, "rollout/best_x_50": 900.0}
    clears = {"rollout/clear_rate": 0.1, "rollout/best_x_50": 300.0}
    failed = {"error": "the loss is nan"}
    ranked = sorted([clears, failed, far, near], key=module.score)
    assert ranked == [failed, near, far, clears]


@pytest.mark.parametrize("how", ["signal", KeyboardInterrupt()])
@pytest.mark.parametrize("call", [0, 2, 5])
def test_an_interrupted_population_goes_on(config, trainer, how, call):
    evolve(replace(config, name="whole"), BASE)
    whole = trainer.seen[:]
    trainer.seen.clear()
    trainer.fail = {call: how}
    with pytest.raises(KeyboardInterrupt):
        evolve(config, BASE)
    evolve(config, BASE)
    if how == "signal":
        # It had come to the end of the generation, which nobody had noted.
        trainer.fail = {}
        assert len(trainer.seen) == 12
    else:
        del trainer.seen[call]
    for ours, theirs in zip(trainer.seen, whole, strict=True):
        assert ours.learner == theirs.learner
        assert ours.max_steps == theirs.max_steps
    assert origins(config) == origins(replace(config, name="whole"))


def test_an_exploit_that_was_interrupted_is_done_again(config, trainer, monkeypatch):
    evolve(replace(config, name="whole"), BASE)
    original = checkpoint.hand_over

    def broken(source, run_dir):
        original(source, run_dir)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "hand_over", broken)
    with pytest.raises(KeyboardInterrupt):
        evolve(config, BASE)
    monkeypatch.setattr(checkpoint, "hand_over", original)
    evolve(config, BASE)
    assert origins(config) == [1, 1, 2, 3]
    one, other = trainer.seen[:12], trainer.seen[12:]
    assert [c.learner for c in one] == [c.learner for c in other]


def test_more_generations_may_be_asked_for_later(config, trainer):
    evolve(config, BASE)
    evolve(config, BASE)
    assert len(trainer.seen) == 12
    evolve(replace(config, generations=4), BASE)
    assert len(trainer.seen) == 16
    assert trainer.seen[-1].max_steps == 4000


def test_a_member_that_fails_takes_the_weights_of_another(config, trainer, capsys):
    trainer.fail = {2: RuntimeError("the loss is nan\nand more")}
    evolve(config, BASE)
    assert origins(config)[2] == 1
    out = capsys.readouterr().out
    assert "member 2: failed: the loss is nan;" in out
    assert "member 2 (failed: the loss is nan) takes member 1's weights" in out


def test_values_that_do_not_fit_each_other_fail_the_member(trainer):
    """Not the population: alone each may be allowed."""
    values = {"unroll": 8, "burn_in": 16}
    metrics = module.train_member(BASE, values)
    assert "burn_in must be at most unroll=8" in metrics["error"]
    assert metrics["signal"] == 0
    assert not trainer.seen


def test_when_all_fail_it_is_an_error(config, trainer):
    trainer.fail = dict.fromkeys(range(4), ValueError("no such thing"))
    with pytest.raises(RuntimeError, match=r"all members failed; .* no such thing"):
        evolve(config, BASE)


def test_the_checkpoint_that_is_handed_over_is_the_only_one(tmp_path):
    for name, steps in (("a", (1000, 2000)), ("b", (500, 3000))):
        folder = tmp_path / name / checkpoint.FOLDER
        folder.mkdir(parents=True)
        for step in steps:
            checkpoint.save(folder / f"step-{step:09}.pt", {"steps": step})
    source = checkpoint.find(tmp_path / "a")
    checkpoint.hand_over(source, tmp_path / "b")
    files = checkpoint.list_files(tmp_path / "b")
    assert [path.name for path in files] == ["step-000002000.pt"]
    assert len(checkpoint.list_files(tmp_path / "a")) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": 1}, "members must be at least 2, got 1"),
        ({"generations": 0}, "generations must be at least 1"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"steps_per_generation": 0}, "steps_per_generation must be at least 1"),
    ],
)
def test_wrong_options_are_named(config, trainer, options, message):
    with pytest.raises(ValueError, match=message):
        evolve(replace(config, **options), BASE)


@pytest.mark.parametrize(
    "text",
    [
        "{'memory_size': [8, 9]}",
        "{'env.frame_skip': [2, 3, 4]}",
        "{'optimizer': ['adam', 'muon']}",
    ],
)
def test_settings_that_do_not_fit_the_weights_are_refused(config, trainer, text):
    path = Path(config.mutations.rpartition(":")[0])
    path.write_text(f"MUTATIONS = {text}")
    with pytest.raises(ValueError, match=r"--mutations: .*cannot change when weights"):
        evolve(config, BASE)


def test_a_population_goes_on_only_as_it_was_begun(config, trainer):
    evolve(config, BASE)
    with pytest.raises(ValueError, match="was begun with another members"):
        evolve(replace(config, members=5), BASE)
    with pytest.raises(ValueError, match="another trainer flags"):
        evolve(config, replace(BASE, seed=6))


def test_the_command(config, trainer, capsys):
    flags = [
        "--mutations",
        config.mutations,
        "--out",
        str(config.out),
        "--members",
        "3",
    ]
    flags += ["--generations", "2", "--steps-per-generation", "1000"]
    assert main([*flags, "--", "--device", "cpu", "--gamma", "0.9"]) == 0
    assert {run.learner.gamma for run in trainer.seen} == {0.9}
    assert "generation 1: begins" in capsys.readouterr().out
    trainer.fail = {len(trainer.seen): KeyboardInterrupt()}
    again = [*flags, "--name", "x", "--", "--device", "cpu"]
    assert main(again) == 130
    assert "the same command resumes" in capsys.readouterr().err
    assert main([*flags, "--members", "1"]) == 2
    assert capsys.readouterr().err == "error: members must be at least 2, got 1\n"
    assert main([*flags, "--", "--max-steps", "9"]) == 2
    assert "give --generations and" in capsys.readouterr().err
    assert main(["--space", "mine.toml"]) == 2
    assert capsys.readouterr().err == "error: --space is now --mutations\n"


def test_settings_are_drawn_by_the_seed(config, trainer):
    table = command.load(config.mutations, "--mutations")
    values = {"lr": 1e-3, "lam": 0.9, "epochs": 2}
    drawn = [mutations.explore(table, values, random.Random(3)) for _ in range(2)]
    assert drawn[0] == drawn[1]


@pytest.mark.rom
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_population_on_the_game(config, capsys, jobs):
    flags = [
        "--mutations",
        config.mutations,
        "--out",
        str(config.out),
        "--members",
        "2",
    ]
    flags += ["--generations", "2", "--steps-per-generation", "500"]
    flags += ["--jobs", str(jobs), "--", "--device", "cpu", "--num-envs", "8"]
    flags += ["--unrolls-per-batch", "8", "--learner-threads", "1"]
    assert main(flags) == 0
    out = capsys.readouterr().out
    assert "generation 1: member 1: clear" in out
    for member in range(2):
        folder = config.out / "population" / f"member-{member}"
        state = checkpoint.load(folder, torch.device("cpu"))
        assert 1000 <= state["steps"] < 1256
