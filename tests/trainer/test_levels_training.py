"""Training on many levels: which ones, what they imply, rates and evaluations."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_pools import Followed
from rich.console import Console
from small_runs import change, make_config, read_points, weights_in

from trainer.cli import parse
from trainer.config.presets import for_levels, preset
from trainer.config.schema import EnvConfig, LearnerConfig, ModelConfig, RunConfig
from trainer.config.tasks import (
    LevelPlaces,
    all_levels,
    level_numbers,
    levels_of,
    split_levels,
)
from trainer.evaluation.play import Played
from trainer.evaluation.protocol import evaluate_checkpoint
from trainer.evaluation.results import level_result, levels_in_a_row, summarise_levels
from trainer.evaluation.tables import as_text, level_table
from trainer.film.filmed_env import FilmedEnv, Player, game_config
from trainer.machine.timings import Timings
from trainer.models import build_model, checkpoint, heads
from trainer.models.policy import Policy, load_policy
from trainer.rollout.collector import Actor, Collector
from trainer.rollout.episodes import Episode, OpenEpisodes
from trainer.rollout.finished import FinishedEpisodes
from trainer.rollout.store import Rollouts
from trainer.session import build, files, reports, resume, training
from trainer.session.training import open_run, run_training

TASK = "SuperMarioBros-1-1-v0"
CPU = torch.device("cpu")


# -- which levels ------------------------------------------------------------


@pytest.mark.parametrize(
    ("levels", "test", "train", "tested"),
    [
        ((), (), (), ()),
        (("4-2,1-1",), (), ("1-1", "4-2"), ()),
        (("4-2", "1-1"), (), ("1-1", "4-2"), ()),
        ((), ("1-2",), ("1-1",), ("1-2",)),
        (("1-1,1-2,1-3",), ("1-2",), ("1-1", "1-3"), ("1-2",)),
        (("1-1",), ("8-4,1-3",), ("1-1",), ("1-3", "8-4")),
    ],
)
def test_a_split(levels, test, train, tested):
    split = split_levels(levels, test, TASK)
    assert split == (train, tested)
    assert split_levels(*split, TASK) == split  # of a run that goes on


def test_a_number_of_test_levels():
    train, test = split_levels(("all",), ("8",), TASK)
    assert (len(train), len(test)) == (24, 8)
    assert sorted({*train, *test}) == sorted(all_levels(TASK))
    assert len({level[-1] for level in test}) > 1  # not all of one kind
    assert split_levels(("all",), ("8",), TASK) == (train, test)
    assert levels_of(train, test, TASK) == all_levels(TASK)


@pytest.mark.parametrize(
    ("levels", "test", "task", "message"),
    [
        (("1-1",), ("1-1",), TASK, "test_levels=1-1 leaves no level to train on"),
        (("1-1,1-2",), ("2",), TASK, "=2 leaves no level to train on"),
        (("1-9",), (), TASK, "there is no level '1-9'"),
        (("1-1",), ("9-1",), TASK, "there is no level '9-1'"),
        ((), ("1-1",), "SuperMarioBros-v0", "test_levels needs --levels"),
        (("1-1",), (), "Pong-v5", "task Pong-v5 has no levels"),
    ],
)
def test_wrong_levels_are_named(levels, test, task, message):
    env = EnvConfig(task=task, levels=levels, test_levels=test)
    with pytest.raises(ValueError, match=message):
        RunConfig(env=env).validate()


def test_places_of_levels():
    places = LevelPlaces(("4-2", "1-1"))
    info = {"world": np.array([1, 4, 8, 1, 36]), "stage": np.array([1, 2, 4, 2, 1])}
    assert places(level_numbers(info)).tolist() == [
        1,
        0,
        -1,
        -1,
        -1,
    ]  # the last is the minus world


# -- what they imply ---------------------------------------------------------


def test_options_that_many_levels_bring():
    config = parse(["--device", "cpu", "--obs", "tiles", "--levels", "all"])
    assert config.model.name == "tiles"
    assert (config.env.action_set, config.max_steps) == ("complex", 16_000_000)
    one = preset("tiles").learner
    assert config.learner.gamma > one.gamma
    assert config.learner.unrolls_per_batch == 8 * one.unrolls_per_batch
    assert config.learner.minibatch_size == 4096
    assert (config.learner.epochs, config.learner.lr) == (3, 1e-3)
    assert config.explore.starts == "frontier"
    large = preset("gpu-impala")
    some = for_levels(large, ("1-1", "1-2"))
    assert some.learner.minibatch_size == large.learner.minibatch_size
    assert some.explore == large.explore  # async
    resolved = config.resolved()
    assert resolved.env.task == "SuperMarioBros-v0"
    assert resolved.env.levels == all_levels(TASK)
    assert (resolved.model.value_heads, resolved.model.popart) == (32, True)
    assert resolved.resolved() == resolved
    config.validate()


def test_flags_replace_them():
    options = "--device cpu --levels 1-1,1-2 --gamma 0.9 --value-heads 1 --no-popart"
    config = parse(options.split()).resolved()
    assert (config.learner.gamma, config.env.action_set) == (0.9, "simple")
    assert (config.model.value_heads, config.model.popart) == (1, False)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--levels", "1-1"],
        ["--test-levels", "1-2"],
        ["--levels", "1-2"],  # only on tiles
        ["--task", "Pong-v5"],
    ],
)
def test_what_is_not_hard_has_the_options_of_the_preset(options):
    config = parse(["--device", "cpu", *options])
    plain = RunConfig(device="cpu")
    assert replace(config, env=plain.env) == plain
    assert config.env.action_set == plain.env.action_set


@pytest.mark.parametrize(
    "options", [["--levels", "1-2"], ["--task", "SuperMarioBros-1-2-v0"]]
)
def test_one_hard_level_has_its_options_and_the_batches_of_one(options):
    options = ["--device", "cpu", "--obs", "tiles", *options]
    config, plain = parse(options), preset("tiles")
    env, learner = config.env, config.learner
    assert (env.action_set, env.stall_steps, learner.gamma) == ("simple", 200, 0.95)
    assert (config.explore.starts, config.model.popart) == ("frontier", True)
    assert learner.value_loss == "squared"
    others = {"gamma": plain.learner.gamma, "value_loss": "huber"}
    assert replace(learner, **others) == plain.learner
    assert config.resolved().model.value_heads == 1
    one = parse(["--device", "cpu", "--obs", "tiles", "--levels", "1-1"])
    assert (one.env.action_set, one.explore.starts) == ("right_only", "level")


def test_heads_are_one_or_one_for_each_level():
    env = EnvConfig(levels=("1-1", "1-2", "1-3"))
    RunConfig(env=env, model=ModelConfig(value_heads=3)).validate()
    with pytest.raises(ValueError, match="of which there are 3; got 2"):
        RunConfig(env=env, model=ModelConfig(value_heads=2)).validate()


# -- rows know their level ---------------------------------------------------


def pool_of_levels(kind):
    """A fake pool whose episodes are of 1-1, 1-2, 1-3 in turns."""

    class Pool(kind):
        num_stages = 3

        def recv(self):
            *results, info = super().recv()
            env = info["env_id"]
            info["stage"] = 1 + (env + self.episode[env]) % 3
            # In the last row of an episode it is in another world, as behind a warp.
            info["world"] = 1 + 3 * self.over[env]
            info["start"] = info["stage"] - 1
            return *results, info

        def set_starts(self, weights, snapshots=None):
            pass

    return Pool


def use_levels(monkeypatch, fake_pool):
    """Lets runs play fake pools, of as many stages as they have levels."""
    kind = pool_of_levels(fake_pool)

    def make(env, seed, **_):
        pool = kind(env.num_envs, env.num_envs, seed)
        pool.num_stages = max(1, len(env.levels))
        return pool

    monkeypatch.setattr(build, "make_pool", make)


@pytest.mark.parametrize("burn_in", [0, 3])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_rows_carry_the_level_of_their_episode(fake_pool, burn_in, asynchronous):
    pool = pool_of_levels(fake_pool)(6, 3 if asynchronous else 6)
    torch.manual_seed(0)
    model = build_model(ModelConfig(), (4, 36, 36), 3)
    generator = torch.Generator().manual_seed(0)
    actor = Actor(model, num_actions=3, dtype=None, generator=generator)
    rollouts = Rollouts(
        num_envs=6, num_slots=60, unroll=5, obs_shape=(4, 36, 36), num_actions=3,
        device=CPU, stack_num=4, burn_in=burn_in,
    )  # fmt: skip
    collector = Collector(
        pool, rollouts, groups=2, asynchronous=asynchronous,
        episodes=OpenEpisodes(6, levels=("1-3", "1-1", "1-2")),
        finished=FinishedEpisodes(), timings=Timings(),
    )  # fmt: skip
    collector.start()
    seen = set()
    for _ in range(4):
        collector.collect(12, lambda: actor, lambda: True)
        slots = rollouts.take(12)
        batch = rollouts.batch(slots)
        pixels = batch.frames.view(torch.uint8).view(-1, 36 * 36)[batch.stacks[..., -1]]
        env, episode = pixels[..., 0].long(), pixels[..., 1].long()
        # The pictures say whose they are: a stage of 1 + (env + episode) % 3.
        assert torch.equal(batch.levels, (env + episode + 1) % 3)
        seen |= set(batch.levels.flatten().tolist())
        rollouts.release(slots)
    assert seen == {0, 1, 2}


@pytest.mark.parametrize(
    "loss", ["ppo", pytest.param("impala", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("lag", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_of_levels_goes_on_as_if_never_interrupted(
    tmp_path, monkeypatch, fake_pool, loss, lag
):
    use_levels(monkeypatch, fake_pool)
    config = make_config(
        tmp_path, loss=loss, lag=lag, levels=("1-1", "1-2", "1-3"), value_heads=0,
        popart=True, ema=0.9, end_episodes=0, epochs=1,
    )  # fmt: skip
    whole, half = tmp_path / "whole", tmp_path / "half"
    run_training(replace(config, run_dir=whole))
    run_training(replace(config, run_dir=half, max_steps=150))
    run_training(replace(config, run_dir=half, resume=half))
    for name in ("model", "ema"):
        assert torch.equal(weights_in(whole, name), weights_in(half, name))
    statistics = read_points(whole)[-1]
    assert statistics["learn/popart/std_most"] > statistics["learn/popart/std_least"]


@pytest.mark.slow
def test_a_named_task_takes_the_place_of_a_runs_levels(
    tmp_path, monkeypatch, fake_pool
):
    use_levels(monkeypatch, fake_pool)
    config = make_config(
        tmp_path, levels=("1-1",), test_levels=("1-2",), end_episodes=0, max_steps=200
    )
    run_training(config)
    goes_on = ["--resume", str(config.run_dir)]
    env = parse([*goes_on, "--task", "SuperMarioBros-1-2-v0"]).resolved().env
    assert (env.task, env.levels) == ("SuperMarioBros-1-2-v0", ())
    for same in ([], ["--task", "SuperMarioBros-v0"]):
        assert parse([*goes_on, *same]).env.levels == ("1-1",)
    named = ["--task", "SuperMarioBros-1-3-v0", "--levels", "1-3"]
    assert parse([*goes_on, *named]).env.levels == ("1-3",)


@pytest.mark.slow
def test_other_test_levels_keep_the_episodes(tmp_path, monkeypatch, fake_pool, capsys):
    use_levels(monkeypatch, fake_pool)
    both = {"levels": ("1-1", "1-3"), "value_heads": 0, "end_episodes": 0}
    config = make_config(tmp_path, max_steps=200, **both)
    run_training(config)
    goes_on = {"max_steps": 300, "test_levels": ("1-2",)}
    more = make_config(tmp_path, **both | goes_on)
    run_training(replace(more, resume=config.run_dir))
    told = capsys.readouterr().out
    assert "test_levels [] -> ['1-2']" in told
    assert "new episodes begin" not in told


@pytest.mark.slow
def test_auto_finds_a_run_of_all_levels_by_its_task(tmp_path, monkeypatch, fake_pool):
    use_levels(monkeypatch, fake_pool)
    monkeypatch.chdir(tmp_path)
    config = make_config(
        tmp_path, levels=("1-3",), max_steps=200, end_episodes=0,
        run_dir=tmp_path / "runs" / "mine",
    )  # fmt: skip
    trained = open_run(config)
    training.train(trained)
    path = checkpoint.find(config.run_dir)
    state = checkpoint.load(path, torch.device("cpu"))
    state["progress"]["ended"] = ""
    checkpoint.save(path, state)
    found, _ = files.locate(files.AUTO, "SuperMarioBros-1-3-v0")
    assert found.resolve() == path
    with pytest.raises(FileNotFoundError, match="task SuperMarioBros-v0"):
        files.locate(files.AUTO, "SuperMarioBros-1-2-v0")
    goes_on = parse(["--resume", "auto", "--task", "SuperMarioBros-1-3-v0"])
    resumed = open_run(replace(goes_on, max_steps=400))
    assert resumed.config.env.levels == ("1-3",)
    assert resumed.run_dir.resolve() == config.run_dir
    resumed.close()


@pytest.mark.slow
def test_a_run_of_the_same_by_another_name_goes_on_in_its_folder(
    tmp_path, monkeypatch, fake_pool
):
    """The task of one level and that level in --levels are the same."""
    use_levels(monkeypatch, fake_pool)
    config = make_config(tmp_path, max_steps=200, task="SuperMarioBros-1-3-v0")
    run_training(config)
    named = make_config(tmp_path, max_steps=400, levels=("1-3",), end_episodes=0)
    run_training(replace(named, resume=config.run_dir))
    other = make_config(tmp_path, max_steps=600, levels=("1-2",), end_episodes=0)
    with pytest.raises(ValueError, match="is a run of levels 1-3: to continue it"):
        run_training(replace(other, resume=config.run_dir))


def test_tiles_bring_their_options_with_any_preset():
    options = "--obs tiles --preset gpu --model tiles --stack-num 1".split()
    config = parse([*options, "--task", "SuperMarioBros-1-3-v0"])
    assert (config.env.action_set, config.learner.gamma) == ("simple", 0.95)


def test_a_task_of_one_level_and_others_are_refused():
    with pytest.raises(ValueError, match="1-2-v0 plays only 1-2"):
        parse(["--task", "SuperMarioBros-1-2-v0", "--levels", "1-1,1-3"])
    several = ["--task", "SuperMarioBrosRandomStages-v0", "--levels", "1-1,1-3"]
    assert parse(several).env.levels == ("1-1,1-3",)


# -- solved, best, and what is printed at the end ----------------------------


def test_missing_episodes_are_no_clears():
    tracker = Followed(1, window=4, levels=("1-1", "1-2", "1-3"))
    for stage, flags in ((1, [True] * 4), (2, [True] * 3)):
        for flag in flags:
            for done in (False, True):
                info = {
                    "flag_get": np.array([flag and done]),
                    "world": np.array([1]),
                    "stage": np.array([stage]),
                }
                ids, zero = np.zeros(1, np.int32), np.zeros(1, np.float32)
                tracker.add(ids, zero, np.array([done]), info)
    assert tracker.finished.clear_rates() == [1.0, 0.75, 0.0]
    # Not 7 of the last 7: however often each is played, all count alike.
    statistics = tracker.statistics()
    assert statistics["clear_rate"] == pytest.approx(1.75 / 3)
    assert statistics["worst_clear_rate"] == 0.0


def result(level, clears, unseen=False):
    played = []
    for number in range(10):
        cleared = number < clears
        last = {"x_pos": 50, "y_pos": 79, "area_pointer": 37, "time": 200}
        last |= {"end_reason": 2 if cleared else 1, "flag_get": int(cleared)}
        played.append(Played(0, Episode(1.0, 100, 50, cleared), last))
    return level_result(level, played, repeat_action_probability=0.0, unseen=unseen)


RESULTS = [result("1-1", 10), result("1-2", 3, True), result("1-3", 9)]


def test_the_table_shows_both_parts():
    lines = as_text(level_table(RESULTS, [])).splitlines()
    cells = [line.split()[:2] for line in lines if line.split()]
    assert cells[2:] == [
        ["1-1", "100.0"],
        ["1-3", "90.0"],
        ["train", "95.0"],
        ["1-2", "30.0"],
        ["test", "30.0"],
    ]
    assert max(map(len, lines)) <= 80
    one = as_text(level_table([RESULTS[0], RESULTS[2]], [])).split("\n")
    assert one[-1].split()[:2] == ["all", "95.0"]
    assert Console(width=80).measure(level_table(RESULTS, RESULTS)).maximum <= 80


def test_the_row_of_levels_is_that_of_the_game():
    assert levels_in_a_row(RESULTS) == pytest.approx(1 + 0.3 + 0.3 * 0.9)


def test_rates_are_of_trained_levels():
    summary = summarise_levels(RESULTS)
    assert (summary["clears"], summary["episodes"]) == (19, 20)
    assert (summary["worst_level"], summary["worst_clear_rate"]) == ("1-3", 0.9)
    assert summary["test_clear_rate"] == 0.3
    assert summarise_levels(RESULTS[:1])["test_clear_rate"] is None
    assert [level["unseen"] for level in summary["levels"]] == [False, True, False]


@pytest.fixture
def told(monkeypatch, fake_pool):
    """Runs of levels on fake pools; what their evaluations are to find, and were."""
    use_levels(monkeypatch, fake_pool)
    told = SimpleNamespace(results=[], asked=[])

    def evaluate(model, env, levels, protocol):
        told.asked.append((levels, protocol.episodes))
        return told.results.pop(0)

    monkeypatch.setattr(reports, "evaluate", evaluate)
    return told


def levels_config(tmp_path, **options):
    return make_config(
        tmp_path, levels=("1-1", "1-3"), test_levels=("1-2",), value_heads=0, **options
    )


@pytest.mark.slow
def test_solved_is_every_level(tmp_path, told, monkeypatch):
    monkeypatch.setattr(FinishedEpisodes, "clear_rates", lambda self: [1.0, 0.9])
    poor = [result("1-1", 10), result("1-2", 0, True), result("1-3", 8)]
    told.results = [poor, RESULTS, poor, RESULTS, RESULTS]
    config = levels_config(tmp_path, stop_when_solved=True, max_steps=20_000)
    assert run_training(config)["solved"] == 1
    # A test level that is never cleared is no hindrance; a trained one at 80 % is.
    assert told.asked == [(("1-1", "1-2", "1-3"), 100)] * 5
    lines = read_points(config.run_dir, "evaluations.jsonl")
    assert [line["worst_clear_rate"] for line in lines] == [0.8, 0.9, 0.8, 0.9, 0.9]


@pytest.mark.slow
def test_one_poor_level_is_not_solved(tmp_path, told, monkeypatch):
    monkeypatch.setattr(FinishedEpisodes, "clear_rates", lambda self: [1.0, 0.8])
    config = levels_config(tmp_path, stop_when_solved=True, end_episodes=0)
    assert run_training(config)["solved"] == 0
    assert told.asked == []


def test_the_end_shows_a_table(tmp_path, told, capsys):
    told.results = [RESULTS]
    config = levels_config(tmp_path, end_episodes=7)
    metrics = run_training(config)
    assert told.asked == [(("1-1", "1-2", "1-3"), 7)]
    assert metrics["evaluation/clear_rate"] == 0.95
    assert metrics["evaluation/test_clear_rate"] == 0.3
    assert "train  95.0 %" in capsys.readouterr().out
    last = read_points(config.run_dir)[-1]
    assert last["evaluation/worst_clear_rate"] == 0.9


# -- on the game -------------------------------------------------------------


def small(tmp_path, threads=2, **options):
    base = preset("tiles")
    config = RunConfig(
        device="cpu", precision="fp32", run_dir=tmp_path, log_seconds=0.01,
        stop_when_solved=False, videos=False, end_episodes=2,
        env=EnvConfig(
            num_envs=4, num_threads=threads, obs="tiles", stack_num=1,
            levels=("1-1,1-2,4-2",), test_levels=("1-2",), max_episode_steps=30,
        ),
        model=replace(base.model, value_heads=0, popart=True),
        learner=LearnerConfig(
            unroll=8, unrolls_per_batch=4, minibatch_size=16, epochs=1,
        ),
    )  # fmt: skip
    return change(config, max_steps=1200, **options)


@pytest.mark.slow
@pytest.mark.rom
def test_levels_are_played_and_evaluated(tmp_path):
    one, two = tmp_path / "1", tmp_path / "2"
    run_training(small(one, threads=1))
    run_training(small(two, threads=2))
    assert torch.equal(weights_in(one), weights_in(two))
    last = [point for point in read_points(one) if "rollout/episodes" in point][-1]
    played = {k for k in last if k.startswith("levels/")}
    assert played == {"levels/1-1", "levels/4-2"}  # never the test level
    assert last["level_best_x/4-2"] > 0
    (line,) = read_points(one, "evaluations.jsonl")
    unseen = {level["level"]: level["unseen"] for level in line["levels"]}
    assert unseen == {"1-1": False, "1-2": True, "4-2": False}
    policy = load_policy(one, CPU)
    assert (policy.env.levels, policy.env.test_levels) == (("1-1", "4-2"), ("1-2",))
    results = evaluate_checkpoint(
        one, episodes=1, argmax=False, stall_steps=5, device="cpu"
    ).levels
    assert [(r.level, r.unseen) for r in results] == [
        ("1-1", False),
        ("1-2", True),
        ("4-2", False),
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("1-1 1-2", "1-1 1-2", [[0], [1]]),
        ("1-1 4-2", "1-1 1-2 4-2", [[0], [0, 1], [1]]),
        ("1-1 4-2", "4-2", [[1]]),
        ("1-1 4-2", "8-1", [[0, 1]]),
        ("1-1", "1-1 1-2", [[0], [0]]),
    ],
)
def test_a_level_keeps_its_value_head(old, new, expected):
    old, new = old.split(), new.split()
    assert heads.value_sources(old, len(old), new, len(new)) == expected


def test_one_head_of_many_levels_is_their_mean():
    assert heads.value_sources(["1-1", "1-2"], 2, ["1-1", "1-2"], 1) == [[0, 1]]


def test_heads_of_unknown_networks_are_not_moved():
    with pytest.raises(
        ValueError, match="only continue with the levels of its checkpoint"
    ):
        heads.move_values(
            {"model": {"critic.weight": torch.ones(2, 3)}, "learner": {}},
            torch.nn.Linear(1, 1), None, [[1], [0]],
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.parametrize("noisy", [False, True])
def test_a_run_goes_on_with_other_levels(tmp_path, noisy, capsys):
    config = change(small(tmp_path), noisy=noisy, ema=0.9, optimizer="muon")
    run_training(config)
    old = checkpoint.load(tmp_path, CPU)
    resumed = parse(["--resume", str(tmp_path), "--levels", "1-2,4-2", "--run-dir",
                     str(tmp_path / "more"), "--test-levels", "1-1"])  # fmt: skip
    made = open_run(replace(resumed, max_steps=100_000))
    assert "known levels keep their output of the critic" in capsys.readouterr().out
    assert made.config.env.levels == ("1-2", "4-2")
    new = resume.capture(made, complete=False)
    made.close()
    for kind in (lambda s: s["model"], lambda s: s["learner"]["ema"]):
        was, now = kind(old), kind(new)
        heads = [
            n for n in was if "value" in n and not n.endswith(("noise_out", "noise_in"))
        ]
        assert len(heads) >= 4
        for name in heads:
            assert torch.equal(now[name][1], was[name][1]), name
            assert torch.allclose(now[name][0], was[name].mean(0)), name
        others = [name for name in was if "value" not in name]
        assert all(torch.equal(now[name], was[name]) for name in others)
    moments = 0
    was, now = (s["learner"]["optimizer"]["state"] for s in (old, new))
    for number, parameter in was.items():
        for name, tensor in parameter.items():
            if tensor.ndim and len(tensor) == 2:  # outputs
                assert torch.equal(now[number][name][1], tensor[1])
                assert torch.allclose(now[number][name][0], tensor.mean(0))
                moments += 1
    assert moments >= 4  # two of the weight and two of the bias


@pytest.mark.slow
@pytest.mark.rom
def test_a_run_of_many_levels_goes_on_with_one(tmp_path):
    run_training(small(tmp_path))
    old = checkpoint.load(tmp_path, CPU)["model"]["head.value.layer.weight"]
    for words in (["--levels", "4-2"], ["--task", "SuperMarioBros-4-2-v0"]):
        where = ["--resume", str(tmp_path), "--run-dir", str(tmp_path / words[0])]
        resumed = parse([*where, *words, "--test-levels", ""])
        made = open_run(replace(resumed, max_steps=100_000))
        weight = made.model.state_dict()["head.value.layer.weight"]
        made.close()
        assert torch.equal(weight, old[1:])


@pytest.mark.rom
def test_a_film_shows_the_value_of_the_games_level(tmp_path):
    """A level of the run has its own head's, another one none."""
    config = small(tmp_path).resolved()
    torch.manual_seed(0)
    model = build_model(config.model, (1, 16, 16), 5)
    policy = Policy(model.eval(), config.env, CPU, None, 0, False)
    games = [
        FilmedEnv(game_config(config.env, level=level), seed=1)
        for level in ("4-2", "1-2")
    ]
    steps = [game.reset() for game in games]
    one, other = (Player(policy, seed=1, argmax=True)(step) for step in steps)
    obs = torch.from_numpy(steps[0].obs)[None, None]
    first = torch.ones(1, 1, dtype=torch.bool)
    (_, values), _ = model(obs, torch.zeros(1, 0), first)
    assert one.value == pytest.approx(values[0, 0, 1].item(), abs=1e-5)
    assert other.value is None


@pytest.mark.parametrize(
    ("arguments", "actions"),
    [
        (["--task", "SuperMarioBros-8-4-v0"], "complex"),
        (["--levels", "8-4"], "complex"),
        (["--levels", "8-4", "--action-set", "simple"], "simple"),
        (["--task", "SuperMarioBros-8-3-v0"], "right_only"),
        (["--task", "SuperMarioBros-8-3-v0", "--obs", "tiles"], "simple"),
        (["--task", "SuperMarioBros-8-4-v0", "--obs", "tiles"], "complex"),
        (["--task", "SuperMarioBros-1-1-v0"], "right_only"),
        (["--task", "SuperMarioBros8-4-v0"], "complex"),
        (["--task", "SuperMarioBrosRandomStages-v0"], "complex"),
        (["--levels", "8-3,8-4", "--test-levels", "8-4"], "complex"),
        (["--levels", "all", "--test-levels", "8"], "complex"),  # 8-4 is drawn
    ],
)
def test_pipes_need_down(arguments, actions):
    assert parse(arguments).env.action_set == actions
