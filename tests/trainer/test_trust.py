"""Files name code of their runs; nothing imports it unless the command line does."""

import json
import sys
from pathlib import Path

import pytest
import torch
from learners import change
from small_runs import CPU

from trainer import baselines, campaign, evaluate, publish, run, video, watch
from trainer.config.plain import from_dict, to_dict
from trainer.config.schema import EnvConfig, ModelConfig, RunConfig
from trainer.film.live import Pace, PlayOptions
from trainer.film.shared_game import SharedGame
from trainer.learn import distil
from trainer.machine.ranks import ALONE
from trainer.models import checkpoint, released
from trainer.models.policy import load_policy
from trainer.session import files
from trainer.tuning.campaign_config import CampaignConfig
from trainer.tuning.population import Population, PopulationConfig

CODE = """
from dataclasses import replace
from pathlib import Path
from trainer.models import ActorCritic

Path({marker!r}).touch()

def Net(config, shape, num_actions):
    return ActorCritic(replace(config, name="cnn-72k"), shape, num_actions)

def reward(info):
    return info["reward"]
"""
STATE = dict.fromkeys("learner rng episodes collecting explore replay ema".split())


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """A file that exists as soon as anything imports hostile.py, of this folder."""
    path = tmp_path / "imported"
    (tmp_path / "hostile.py").write_text(CODE.format(marker=str(path)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop("hostile", None)


def config_of(**options):
    return change(RunConfig(device="cpu"), **options)


def hostile_run(folder=Path("runs/theirs"), **options):
    """A run folder with a checkpoint that names code."""
    (folder / "checkpoints").mkdir(parents=True)
    spaces = {"observation": [4, 84, 84], "actions": 5}
    more = {"steps": 7, "spaces": spaces, "progress": {"ended": "", "best_score": 0.0}}
    config = to_dict(config_of(**options).resolved())
    state = {"config": config, "model": {"w": torch.zeros(1)}, **STATE, **more}
    checkpoint.save(folder / "checkpoints" / "step-000000007.pt", state)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def hostile_file(path=Path("theirs.safetensors"), model=None, env=None):
    """A policy's file that names code."""
    about = to_dict(RunConfig().resolved())
    policy = released.PolicyFile(
        about["env"] | (env or {}), about["model"] | (model or {}), "fp32", 7, "",
        averaged=False, weights={"w": torch.zeros(1)},
    )  # fmt: skip
    released.write_policy(path, policy)
    return path


def refused(main, words, flag, capsys, marker):
    assert main([str(word) for word in words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert said.startswith("error: "), said
    assert f"add {flag} to this command" in said
    assert not marker.exists()


PLAYING = {
    "evaluate": (evaluate.main, ["--no-pictures", "--episodes", "1", "--policy"]),
    "watch": (
        watch.main,
        ["--display", "none", "--record", "a.json", "--episodes", "1", "--policy"],
    ),
    "web": (watch.main, ["--web", "--web-port", "0", "--episodes", "1", "--policy"]),
    "video": (video.main, ["--max-seconds", "1", "--policy"]),
    "baselines": (baselines.main, ["--no-a2c", "--episodes", "1", "--checkpoint"]),
}


@pytest.mark.parametrize("kind", ["file", "run"])
@pytest.mark.parametrize("name", PLAYING)
def test_no_command_imports_the_network_that_a_policy_names(marker, capsys, name, kind):
    path = hostile_file(model={"name": "hostile:Net"})
    if kind == "run":
        path = hostile_run(model="hostile:Net")
    main, words = PLAYING[name]
    refused(main, [*words, path], "--model hostile:Net", capsys, marker)


@pytest.mark.parametrize("kind", ["file", "run"])
@pytest.mark.parametrize("name", ["evaluate", "baselines"])
def test_no_command_imports_the_reward_that_a_policy_names(marker, capsys, name, kind):
    path = hostile_file(env={"reward_fn": "hostile:reward"})
    if kind == "run":
        path = hostile_run(reward_fn="hostile:reward")
    main, words = PLAYING[name]
    refused(main, [*words, path], "--reward-fn hostile:reward", capsys, marker)


def test_publishing_imports_nothing_that_a_checkpoint_names(marker, capsys):
    words = [hostile_run(model="hostile:Net"), "--to", "out", "--episodes", "1"]
    refused(publish.main, words, "--model hostile:Net", capsys, marker)
    assert not Path("out").exists()


def test_replaying_a_release_imports_nothing(marker, capsys):
    folder = Path("release")
    folder.mkdir()
    file = hostile_file(folder / "1-1.safetensors", model={"name": "hostile:Net"})
    row = {"level": "1-1", "argmax": False, "clears": 0, "episodes": 1}
    row |= {"interval": [0, 1], "cleared_starts": None, "clear_rate": 0.0}
    policy = {"file": file.name, "sha256": released.sha256(file), "steps": 1}
    card = released.Card(
        {}, {"episodes": 1, "seed": 1}, "SuperMarioBros-v0", "", ["1-1"],
        {"1-1": policy | {"results": [row]}},
    )  # fmt: skip
    released.write_card(folder, card)
    words = ["--policy", folder]
    refused(evaluate.main, words, "--model hostile:Net", capsys, marker)


@pytest.mark.parametrize("where", ["auto", "runs/theirs"])
@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"model": "hostile:Net"}, "--model hostile:Net"),
        ({"reward_fn": "hostile:reward"}, "--reward-fn hostile:reward"),
    ],
)
def test_resuming_imports_nothing_and_says_which_flag_does(
    marker, capsys, where, options, flag
):
    hostile_run(**options)
    refused(run.main, ["--resume", where], flag, capsys, marker)


def test_the_command_line_may_name_the_code_of_a_run_or_replace_it(marker):
    hostile_run(reward_fn="hostile:reward")
    words = ["--resume", "runs/theirs"]
    assert run.parse([*words, "--reward-fn=hostile:reward"]).env.reward_fn
    assert run.parse([*words, "--reward-fn", "mine:f"]).env.reward_fn == "mine:f"
    assert run.parse([*words, "--reward-fn", ""]).env.reward_fn == ""
    assert not marker.exists()


def test_a_restart_by_torchrun_passes_on_what_the_command_line_names(
    marker, tmp_path, monkeypatch
):
    folder = hostile_run(tmp_path / "runs" / "theirs", model="hostile:Net")
    noted = {"run_dir": str(folder), "resume": None, "had": []}
    monkeypatch.setattr(files, "_read_note", lambda: noted)
    with pytest.raises(ValueError, match="add --model hostile:Net to this command"):
        files.config_after_restart(ALONE, RunConfig)
    named = run.code_in(["--model", "hostile:Net"])
    found = files.config_after_restart(ALONE, RunConfig, named)
    assert found is not None
    assert found.model.name == "hostile:Net"
    assert not marker.exists()


def test_teachers_import_nothing_that_the_command_line_does_not_name(marker):
    path = hostile_file(model={"name": "hostile:Net"})
    with pytest.raises(ValueError, match="add --teacher-model hostile:Net to this"):
        distil._load(path, EnvConfig(), CPU, "")
    assert not marker.exists()


@pytest.mark.parametrize("merged", [False, True])
def test_a_resumed_campaign_imports_nothing_of_its_file(marker, capsys, merged):
    folder = Path("campaign")
    folder.mkdir()
    flags = ["--model", "hostile:Net"]
    options = CampaignConfig(
        levels="1-1,1-2", max_seconds=20, slice_seconds=5,
        merge_flags=" ".join(flags) if merged else "",
    )  # fmt: skip
    content = {"command": "", "options": to_dict(options)}
    content["flags"] = [] if merged else flags
    (folder / "campaign.json").write_text(json.dumps(content))
    words = ["--resume", folder]
    refused(campaign.main, words, "--model hostile:Net", capsys, marker)
    assert campaign.main(["--resume", str(folder), "--", "--lr", "1"]) == 2
    said = capsys.readouterr().err
    assert "leave out all other options, except --more-seconds and the code" in said


def test_a_state_file_of_a_population_sets_only_what_changes(marker, tmp_path):
    config = PopulationConfig(out=tmp_path / "out")
    population = Population(config, RunConfig())
    population._save()
    path = population.folder / "state.json"
    state = json.loads(path.read_text())
    state["members"][1]["values"]["reward_fn"] = "hostile:reward"
    path.write_text(json.dumps(state))
    with pytest.raises(ValueError, match="is damaged: member 1 has reward_fn"):
        Population(config, RunConfig())
    assert not marker.exists()


def test_a_policy_that_is_only_shown_plays_without_the_reward_of_its_run(marker):
    """watch, video and publish need no flag for it: nothing could import it."""
    path = hostile_file(env={"reward_fn": "hostile:reward"})
    with pytest.raises((ValueError, RuntimeError), match=r"do not fit|ROM"):
        load_policy(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("model", {"name": ["hostile:Net"]}),
        ("model", {"name": None}),
        ("model", {"memory": "hostile:Net"}),
        ("env", {"reward_fn": {"hostile": "reward"}}),
        ("env", {"levels": "hostile"}),
        ("env", {"num_envs": "4"}),
    ],
)
def test_a_value_of_another_type_is_one_line(marker, capsys, part, wrong):
    path = hostile_file(**{part: wrong})
    assert evaluate.main(["--policy", str(path), "--episodes", "1"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "theirs.safetensors is damaged" in said
    assert not marker.exists()


@pytest.mark.parametrize("config", [RunConfig(), config_of(memory="gru", lr=1)])
def test_every_config_is_read_as_it_was_written(config):
    assert from_dict(RunConfig, json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.rom
@pytest.mark.slow
def test_code_that_the_command_line_names_plays(marker, tmp_path, capsys):
    from trainer.models import ActorCritic

    env = EnvConfig(num_envs=4, img_height=36, img_width=36)
    config = config_of(env=env, model="hostile:Net")
    model = ActorCritic(ModelConfig(), (4, 36, 36), 5)
    state = {"config": to_dict(config), "model": model.state_dict(), "steps": 1}
    checkpoint.save(tmp_path / "mine.pt", state)
    named = ["--model", "hostile:Net"]
    words = ["--policy", "mine.pt", "--episodes", "1", "--json", *named]
    assert evaluate.main(words) == 0
    assert marker.exists()
    words = ["mine.pt", "--to", "out", "--episodes", "1", *named]
    assert publish.main(words) == 0
    words = ["--policy", "out/1-1.safetensors", "--episodes", "1"]
    assert evaluate.main(words) == 2
    assert evaluate.main([*words, *named]) == 0
    options = PlayOptions(Path("mine.pt"), model="hostile:Net")
    game = SharedGame(options, Pace(1))
    assert game.levels
    capsys.readouterr()
