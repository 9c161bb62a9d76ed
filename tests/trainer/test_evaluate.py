"""Evaluation: tasks, levels, the command."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from players import SHAPE, Counter, Pixels, SyncPool
from small_runs import full_disk, make_config, read_points

from trainer.config.plain import to_dict
from trainer.config.schema import EnvConfig, ModelConfig, RunConfig
from trainer.evaluate import main
from trainer.evaluation import protocol
from trainer.evaluation.play import Played, first_seed
from trainer.evaluation.protocol import (
    evaluate_checkpoint,
    evaluate_levels,
    evaluate_policy,
)
from trainer.evaluation.results import summarise
from trainer.film.filmed_env import FilmedEnv, Player, film_episode, game_config
from trainer.models import build_model, checkpoint, policy
from trainer.models.policy import Policy
from trainer.rollout.episodes import Episode
from trainer.rollout.finished import FinishedEpisodes
from trainer.session.training import run_training

CPU = torch.device("cpu")


class Opened(NamedTuple):
    """A pool, and what it was made from."""

    env: EnvConfig
    seed: int
    pool: SyncPool
    more: dict


def as_played(episodes):
    return [Played(0, episode, {"flag_get": episode.cleared}) for episode in episodes]


def test_summary():
    episodes = [Episode(1.0, 300, 3161, True), Episode(-1.0, 20, 300, False)]
    result = summarise(as_played([*episodes, Episode(3.0, 280, 3161, True)]))
    assert result["clears"] == 2
    assert result["clear_rate"] == pytest.approx(2 / 3)
    assert result["best_x_mean"] == pytest.approx(2207.33, abs=0.01)
    assert result["best_x_median"] == 3161
    assert result["return_mean"] == 1
    assert result["steps_to_clear_mean"] == result["steps_to_clear_median"] == 290
    assert summarise(as_played(episodes[1:]))["steps_to_clear_mean"] is None
    assert summarise([Played(0, episodes[0], {})])["clear_rate"] is None


@pytest.fixture
def pools(monkeypatch):
    """The fake pools that evaluations open, and what they asked for."""
    opened = []

    def make(env, seed, **more):
        pool = SyncPool(env.num_envs)
        opened.append(Opened(env, seed, pool, more))
        return pool

    monkeypatch.setattr(protocol, "make_pool", make)
    return opened


def test_a_live_model_is_played_and_left_as_it_was(pools):
    trained = EnvConfig(
        num_envs=512, groups=4, num_threads=64, repeat_action_probability=0.2
    )
    model = Counter(1.0).train()
    options = {"episodes": 12, "seed": 3, "device": CPU, "dtype": None}
    result = evaluate_policy(
        model, trained, **options, noop_max=9, repeat_action_probability=0.1
    )
    assert model.training
    assert result["episodes"] == 12
    assert (result["noop_max"], result["argmax"]) == (9, False)
    assert result["repeat_action_probability"] == 0.1
    env, seed, pool, more = pools[0]
    assert more == {}
    assert env == replace(
        trained,
        num_envs=12,
        groups=1,
        num_threads=12,
        noop_max=9,
        repeat_action_probability=0.1,
        stall_steps=250,
        max_episode_steps=2**31 - 1,
    )
    assert seed == first_seed(3, 0)
    assert pool.most_requests == 2
    assert pool.closed
    plain = evaluate_policy(model, trained, **options)
    assert pools[1].env.repeat_action_probability == 0  # not the run's
    assert plain == evaluate_policy(model, trained, **options)
    second = evaluate_policy(model, trained, **options, stream=1)
    assert pools[-1].seed == first_seed(3, 1)
    assert second["return_mean"] != plain["return_mean"]  # other samples too
    assert evaluate_policy(model, trained, **options, argmax=True)["clears"] == 12


def test_the_model_is_left_as_it_was_after_an_error(pools):
    class Broken(Counter):
        def forward(self, obs, state, first):
            raise RuntimeError("out of luck")

    model = Broken().train()
    with pytest.raises(RuntimeError, match="out of luck"):
        evaluate_policy(model, EnvConfig(), episodes=2, seed=1, device=CPU, dtype=None)
    assert model.training
    assert pools[0].pool.closed


def test_a_task_without_sticky_actions_is_named():
    options = {"episodes": 1, "seed": 1, "device": CPU, "dtype": None}
    pong = EnvConfig(task="Pong-v5")
    with pytest.raises(ValueError, match=r"Pong-v5 has no sticky actions, got 0\.1"):
        evaluate_policy(Counter(), pong, repeat_action_probability=0.1, **options)


def test_levels_share_a_pool(pools):
    trained = EnvConfig(num_envs=512, groups=4, stall_steps=77)
    given = {"seed": 3, "device": CPU, "dtype": None, "levels": ["1-1", "4-2", "8-4"]}
    results = evaluate_levels(Counter(), trained, episodes=5, **given, noop_max=9)
    assert [r.level for r in results] == given["levels"]
    assert [r.episodes for r in results] == [5] * 3
    assert [r.clear_rate for r in results] == [1.0] * 3
    env, seed, _, more = pools[0]
    assert (env.task, env.stall_steps) == ("SuperMarioBros-v0", 250)
    assert (env.num_envs, env.noop_max) == (15, 9)
    assert env.max_episode_steps > 10_000
    assert more["stages"] == given["levels"]
    # Equal copies of each level, whatever the other levels are.
    assert more["env_seed"] == [seed + i // 3 for i in range(15)]
    assert "noops" not in more


@pytest.mark.slow
@pytest.mark.parametrize("episodes", [7, 100, 1001])
def test_no_level_is_played_more_than_another(pools, monkeypatch, episodes):
    monkeypatch.setattr(protocol, "_MAX_ENVS", 20)
    given = {"seed": 1, "device": CPU, "dtype": None, "levels": ["1-1", "1-2", "1-3"]}
    results = evaluate_levels(Counter(0.0), EnvConfig(), episodes=episodes, **given)
    assert [r.episodes for r in results] == [episodes] * 3
    assert pools[0].env.num_envs == 18
    assert len({r.return_mean for r in results}) > 1  # each has its own


def test_argmax_plays_each_start_once(pools):
    given = {"seed": 3, "device": CPU, "dtype": None, "levels": ["1-1", "1-2"]}
    results = evaluate_levels(
        Counter(), EnvConfig(), episodes=5, argmax=True, noop_max=30, **given
    )
    assert [r.episodes for r in results] == [31, 31]
    assert [r.cleared_starts for r in results] == [list(range(31))] * 2
    more = pools[0].more
    starts = list(zip(more["noops"], more["stages"] * 31, strict=True))
    assert sorted(starts) == [(k, s) for k in range(31) for s in ("1-1", "1-2")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": ["9-1"]}, "there is no level '9-1' in SuperMarioBros-v0"),
        ({"levels": []}, "levels must name at least one level, got none"),
        ({"stall_steps": -1}, "stall_steps must be 0 to 2.1"),
        ({"episodes": 0}, "episodes must be at least 1, got 0"),
        ({"episodes": -1}, "episodes must be at least 1, got -1"),
        (
            {"repeat_action_probability": 1.0},
            "repeat_action_probability must be at least 0 and below 1, got 1",
        ),
        ({"noop_max": 128}, "noop_max must be 0 to 127, got 128"),
        ({"task": "Pong-v5"}, "task Pong-v5 has no levels"),
    ],
)
def test_wrong_levels_are_named(options, message):
    given = {"levels": ["1-1"], "episodes": 1, "seed": 1, "device": CPU, "dtype": None}
    env = EnvConfig(task=options.pop("task", "SuperMarioBros-1-1-v0"))
    with pytest.raises(ValueError, match=message):
        evaluate_levels(Counter(), env, **(given | options))


def save_checkpoint(path, config, model, **more):
    state = {"config": to_dict(config), "model": model.state_dict(), "steps": 7}
    (path / "checkpoints").mkdir(exist_ok=True)
    (path / "config.json").write_text("{}")
    checkpoint.save(path / "checkpoints" / "step-000000007.pt", state | more)


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """A checkpoint whose averaged weights know the answers; the latest do not."""
    monkeypatch.setattr(policy, "build_model", lambda *_: Counter())
    monkeypatch.setattr(policy, "_game_of", lambda *_: (SHAPE, 3, ""))
    ema = Counter(30.0).state_dict()
    env = EnvConfig(num_envs=8, groups=2, stall_steps=77)
    config = RunConfig(env=env, precision="fp32")
    save_checkpoint(tmp_path, config, Counter(-30.0), ema=ema)
    return tmp_path


def command(*words):
    return main(["--device", "cpu", "--no-pictures", *map(str, words)])


def test_the_command_plays_the_averaged_weights(pools, run_dir, capsys):
    words = ("--checkpoint", run_dir, "--episodes", 5, "--json")
    assert command(*words) == 0
    averaged = json.loads(capsys.readouterr().out)
    assert (averaged["weights"], averaged["trained_steps"]) == ("ema", 7)
    assert averaged["levels"] == ["1-1"]
    sampled, argmax = averaged["results"]
    assert (sampled["argmax"], sampled["episodes"]) == (False, 5)
    assert (argmax["argmax"], argmax["episodes"]) == (True, 31)
    assert sampled["clear_rate"] == argmax["clear_rate"] == 1
    assert json.loads((run_dir / "evaluation" / "table.json").read_text()) == averaged
    assert command(*words, "--no-ema", "--no-argmax") == 0
    latest = json.loads(capsys.readouterr().out)
    assert latest["weights"] == "latest"
    assert [result["clear_rate"] for result in latest["results"]] == [0.0]


def test_the_command_plays_any_levels(pools, run_dir, tmp_path, capsys):
    words = ("--checkpoint", run_dir, "--episodes", 2, "--stall-steps", 9)
    assert command(*words, "--levels", "1-1, 1-2", "--out", tmp_path / "x") == 0
    assert pools[0].more["stages"] == ["1-1", "1-2"]
    assert pools[0].env.stall_steps == 9
    assert "levels in a row from 1-1: 2.00" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "x" / "table.json").read_text())["levels_in_a_row"][
        1:
    ]
    assert row == {
        "repeat_action_probability": 0.0,
        "argmax": True,
        "levels": 2.0,
    }
    assert command(*words, "--levels", "all") == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("31/31" in line for line in lines) == 32
    assert max(len(line) for line in lines[1:-1]) <= 80


def test_each_sticky_chance_has_a_table(pools, run_dir, capsys):
    chances = ("--repeat-action-probability", 0, 0.1, 0)  # one of them twice
    words = ("--checkpoint", run_dir, "--episodes", 4, *chances)
    assert command(*words, "--no-argmax", "--noop-max", 9, "--seed", 3) == 0
    text = capsys.readouterr().out
    head = "SuperMarioBros-1-1-v0, 7 steps, averaged weights\nseed 3, 0 to 9 idle"
    assert head in text
    plain, sticky = text.split("probability 0.1 per frame")
    assert plain.count("100.0 %") == sticky.count("100.0 %") == 1
    assert [p.env.repeat_action_probability for p in pools] == [0, 0.1]
    assert {(p.env.noop_max, p.seed) for p in pools} == {(9, first_seed(3))}


def test_errors_are_one_line(tmp_path, pools, run_dir, capsys):
    def error(*words):
        assert command(*words) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        return text

    assert error("--checkpoint", tmp_path / "none").startswith("error: no checkpoint")
    of_run = ("--checkpoint", run_dir)
    zero = error(*of_run, "--episodes", 0)
    assert zero == "error: episodes must be at least 1, got 0\n"
    for seed in ("-1", "20001"):
        assert f"must be 0 to 20000, got {seed}" in error(*of_run, "--seed", seed)
    # Nothing is played before everything is known to be possible.
    played = len(pools)
    assert "got 1.5" in error(*of_run, "--repeat-action-probability", 0, 1.5)
    assert "got 200" in error(*of_run, "--noop-max", 200)
    assert "needs at least one value, got none" in error(
        *of_run, "--repeat-action-probability"
    )
    assert len(pools) == played
    for levels in ("9-1", "1-5", "11", "1-1;1-2", ","):
        text = error(*of_run, "--levels", levels)
        assert text.endswith("1-1 to 8-4, as in 1-1,4-2, or all\n")
    (tmp_path / "checkpoint.pt").write_text("{}")
    assert "is not a checkpoint" in error("--checkpoint", tmp_path / "checkpoint.pt")


def test_a_folder_that_cannot_be_written_to(pools, run_dir, capsys):
    """That is said first; with a full disk the table is shown, an older one whole."""
    words = ("--checkpoint", run_dir, "--episodes", 2)
    (run_dir / "evaluation").write_text("a file")
    assert command(*words) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.startswith(f"error: cannot write to the folder {run_dir}/eval")
    assert shown.err.endswith("; choose another\n")
    out = run_dir / "other"
    assert command(*words, "--out", out) == 0
    before = {path.name: path.read_text() for path in out.iterdir()}
    assert before.keys() == {"table.json", "table-episodes.jsonl"}
    with full_disk():
        assert command(*words, "--out", out, "--seed", 2) == 2
    shown = capsys.readouterr()
    assert "31/31" in shown.out
    assert f"{out}/table.json" in shown.err
    assert {path.name: path.read_text() for path in out.iterdir()} == before


def test_a_checkpoint_that_lies_in_no_run(pools, run_dir, capsys):
    file = run_dir / "x[red]y" / "some.pt"
    file.parent.mkdir()
    (run_dir / "checkpoints" / "step-000000007.pt").rename(file)
    assert command("--checkpoint", file, "--episodes", 2) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{file}: SuperMarioBros-1-1-v0")  # no markup
    assert out.endswith(f"wrote no files: {file} is not in a run folder; see --out\n")
    assert list(file.parent.iterdir()) == [file]


def test_the_run_of_a_checkpoint(run_dir, monkeypatch):
    folder = run_dir / "checkpoints"
    for path in (run_dir, folder, folder / "best.pt", run_dir / "best.pt"):
        assert policy.run_folder(path) == run_dir
    monkeypatch.chdir(folder)
    assert policy.run_folder(Path("best.pt")) == run_dir
    # A config.json further up is something else.
    for path in (run_dir / "a" / "best.pt", folder / "b" / "best.pt"):
        assert policy.run_folder(path) is None


@pytest.mark.slow
@pytest.mark.families
def test_on_envpool_atari(tmp_path, monkeypatch, capsys):
    """A task without clears and positions."""
    monkeypatch.setattr(policy, "build_model", lambda *_: Pixels(6))
    env = EnvConfig(task="Pong-v5", num_envs=2, num_threads=1, max_episode_steps=40)
    save_checkpoint(tmp_path, RunConfig(env=env, precision="fp32"), Pixels(6))
    words = ("--checkpoint", tmp_path, "--episodes", 3, "--no-argmax")
    assert command(*words, "--json") == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["episodes"] == 3
    assert result["episode_steps_mean"] == 40
    assert result["clear_rate"] is result["best_x_mean"] is None
    assert command(*words) == 0
    assert "clear" not in capsys.readouterr().out
    assert command(*words, "--levels", "1-1") == 2
    assert "task Pong-v5 has no levels" in capsys.readouterr().err


def play_game(**options):
    torch.manual_seed(0)
    env = EnvConfig(num_threads=options.pop("num_threads", 1), max_episode_steps=60)
    given = {"episodes": 6, "seed": 1, "device": CPU, "dtype": None} | options
    return evaluate_policy(Pixels(5), env, **given)


@pytest.mark.rom
def test_on_the_game():
    """The arguments decide the episodes, the number of threads does not."""
    first = play_game()
    assert first["episodes"] == 6
    assert first["clear_rate"] == 0
    assert first["best_x_mean"] > 40
    assert play_game(num_threads=2) == first
    for other in ({"seed": 2}, {"stream": 1}, {"repeat_action_probability": 0.9}):
        assert play_game(**other)["return_mean"] != first["return_mean"], other
    still = {"noop_max": 0, "argmax": True}  # no chance is left
    alike = [play_game(**still, seed=seed)["return_mean"] for seed in (1, 2)]
    assert alike[0] == alike[1]


class Still(Pixels):
    """Never does a thing."""

    def forward(self, obs, state, first):
        output, state = super().forward(obs, state, first)
        return SimpleNamespace(
            logits=output.logits * 0 + torch.tensor([9.0] + [0] * 4)
        ), state


LEVELS = ("1-1", "1-2", "2-2")


def play_levels(model=None, **options):
    torch.manual_seed(0)
    env = EnvConfig(num_threads=options.pop("num_threads", 1))
    given = {"levels": LEVELS, "episodes": 4, "seed": 1, "device": CPU, "dtype": None}
    return evaluate_levels(model or Pixels(5), env, **(given | options))


@pytest.mark.slow
@pytest.mark.rom
def test_levels_of_the_game():
    """The arguments decide the table, the number of threads does not."""
    first = play_levels()
    for result in first:
        ends = result.clears + len(result.deaths) + result.stalled + result.timed_out
        assert result.episodes == ends == 4
        assert result.best_x_median > 100
        assert all(0 <= place.x < 5000 for place in result.deaths)
        assert all(0 <= place.y < 300 for place in result.deaths)
    assert play_levels(num_threads=2) == first
    for other in ({"seed": 2}, {"repeat_action_probability": 0.9}, {"noop_max": 3}):
        assert play_levels(**other) != first, other


@pytest.mark.rom
def test_who_stands_still_has_stalled():
    (result,) = play_levels(
        Still(5), levels=["2-2"], stall_steps=20, argmax=True, noop_max=1
    )
    assert result.stalled == result.episodes == len(result.stalls) == 2
    assert result.deaths == []
    (result,) = play_levels(
        Still(5), levels=["1-1"], stall_steps=0, argmax=True, noop_max=1
    )
    assert result.timed_out == result.episodes == 2
    assert result.stalled == 0
    assert result.deaths == []


@pytest.mark.slow
@pytest.mark.rom
def test_argmax_starts_differ():
    """31 starts are 31 different games, and the same ones every time."""
    model = build_model(ModelConfig(name="cnn-345k"), (4, 84, 84), 5)
    first = play_levels(model, argmax=True, episodes=1)
    assert play_levels(model, argmax=True, episodes=9, num_threads=2) == first
    assert all(r.episodes == 31 for r in first)
    assert all(len(set(r.deaths)) > 1 for r in first)


@pytest.mark.rom
def test_what_is_evaluated_is_what_would_be_filmed():
    """One environment after the other, without pool, groups and batches."""
    torch.manual_seed(0)
    env = EnvConfig(num_threads=1)
    model = build_model(ModelConfig(), (4, 84, 84), 5).eval()
    given = {
        "noop_max": 2,
        "stall_steps": 20,
        "argmax": True,
        "dtype": None,
        "device": CPU,
    }
    played = Policy(model, env, CPU, None, 0, averaged=False)
    for result in evaluate_levels(
        model, env, levels=["1-1", "2-2"], episodes=1, seed=1, **given
    ):
        ends = {"died": [], "stopped": []}
        returns = []
        for start in range(3):
            options = game_config(env, level=result.level, noop_max=0, stall_steps=20)
            game = FilmedEnv(options | {"noops": [start]}, seed=9)
            player = Player(played, seed=0, argmax=True)
            *_, shot = film_episode(game, game.reset(), player, "")
            returns.append(shot.reading.total)
            ends[shot.reading.ending].append(shot.reading.x)
        assert result.return_mean == pytest.approx(np.mean(returns), abs=1e-6)
        assert [place.x for place in result.deaths] == sorted(ends["died"])
        assert [place.x for place in result.stalls] == sorted(ends["stopped"])


@pytest.mark.rom
def test_the_command_on_the_game(tmp_path):
    env = EnvConfig(num_envs=4, num_threads=1)
    model = build_model(ModelConfig(), (4, 84, 84), 5)
    save_checkpoint(tmp_path, RunConfig(env=env, precision="fp32"), model)
    result = evaluate_checkpoint(tmp_path, episodes=3, device="cpu", stall_steps=30)
    assert [r.episodes for r in result.levels] == [3, 31]
    assert result.levels[0].best_x_median > 40


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.parametrize("levels", [(), ("1-1", "1-3")])
def test_the_command_repeats_the_evaluations_of_a_run(tmp_path, monkeypatch, levels):
    """Episode by episode, from the last checkpoint and the numbers in the log."""
    rates = [1.0] * max(1, len(levels))
    monkeypatch.setattr(FinishedEpisodes, "clear_rates", lambda self: rates)
    config = make_config(
        tmp_path, precision="bf16", stop_when_solved=True, solve_rate=0.0,
        solve_episodes=5, ema=0.9, seed=7, levels=levels, num_envs=6,
        stall_steps=10,  # of training; evaluations have a limit of their own
        max_episode_steps=40,
    )  # fmt: skip
    assert run_training(config)["solved"] == 1
    lines = read_points(config.run_dir, "evaluations.jsonl")
    assert [line["name"] for line in lines] == ["evaluation", "second evaluation"]
    seen = []
    for number, line in enumerate(lines, 1):
        assert (line["seed"], line["stream"]) == (7, number)
        out = tmp_path / str(number)
        words = f"--checkpoint {config.run_dir} --seed 7 --stream {number} --episodes 5"
        words += f" --no-argmax --no-pictures --device cpu --out {out}"
        assert main(words.split()) == 0
        table = json.loads((out / "table.json").read_text())
        assert table["results"] == line["levels"]
        assert table["stall_steps"] == 250
        seen.append([r["episode_steps"] for r in table["results"]])
        # Longer than the limits of training.
        assert max(max(steps) for steps in seen[-1]) > 40
    assert seen[0] != seen[1]
