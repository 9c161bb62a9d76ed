"""Whole runs on a fake pool, on EnvPool's Atari, and on the game."""

import json
import os
import re
import signal
import sys
import threading
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from fake_pools import FakePool
from small_runs import (
    CPU,
    ENVS,
    STEPS,
    change,
    make_config,
    read_points,
    threads_of_runs,
    weights_in,
)

from trainer.config.schema import EnvConfig, LearnerConfig, RunConfig
from trainer.learn.learner import Learner
from trainer.models import checkpoint
from trainer.rollout.finished import FinishedEpisodes
from trainer.rollout.store import Batch
from trainer.run import main
from trainer.session import build, files, reports, resume, training
from trainer.session.build import Run
from trainer.session.resume import Saver
from trainer.session.training import run_training
from trainer.show.display import Display
from trainer.show.run_files import read_run


@pytest.mark.slow
def test_a_run_leaves_everything(tmp_path, pools, capsys):
    metrics = run_training(make_config(tmp_path))
    folder = tmp_path / "run"
    assert metrics["steps"] >= STEPS
    assert metrics["solved"] == 0
    assert metrics["signal"] == 0
    config = json.loads((folder / "config.json").read_text())
    assert config["env"]["num_envs"] == ENVS
    assert "commit" in config
    points = read_points(folder)
    assert points[-1]["step"] == metrics["steps"]
    for name in (
        "rollout/return",
        "rollout/best_x_50",
        "rollout/clear_rate",
        "learn/loss/total",
        "learn/rho",
        "queue/free_slots",
        "time/sps",
        "time/share_wait",
        "time/share_learn",
    ):
        assert points[-1][name] is not None, name
    assert list(folder.glob("events.out.tfevents*"))
    state = checkpoint.load(folder, CPU)
    assert state["steps"] == metrics["steps"]
    assert pools[0].closed
    output = capsys.readouterr().out
    assert "parameters" in output
    assert "SPS: Environment steps per second" in output
    assert "max_steps reached" in output
    assert str(folder) in output
    # What bounds the speed, in a line of its own.
    assert any("bound" in line or "balanced" in line for line in output.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "least", "most"),
    [
        ({"max_steps": STEPS}, 0.0, 0.0),  # at its end
        ({"max_steps": 10**9, "max_seconds": 1.0}, 0.0, 1.0),
        ({"max_steps": 100_000}, 0.1, None),
    ],
)
def test_the_time_that_is_left_is_a_curve(tmp_path, pools, limits, least, most):
    """As the line of progress has it: to the first of max_steps and max_seconds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = []

    class Steps(Display):
        last_step = 0

        def report(self, step, values, eta_s):
            shown.append(eta_s)
            if step >= STEPS > self.last_step:
                os.kill(os.getpid(), signal.SIGINT)
            self.last_step = step

    config = make_config(tmp_path, **limits)
    run_training(config, Steps())
    left = [point["time/eta_seconds"] for point in read_points(config.run_dir)]
    assert left == shown
    assert left[-1] >= least
    assert most is None or left[-1] <= most
    board = EventAccumulator(str(config.run_dir)).Reload()
    found = [event.value for event in board.Scalars("time/eta_seconds")]
    assert found == pytest.approx(left)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone has it")
@pytest.mark.parametrize("nice", ["5", "0"])
def test_the_first_lines_say_that_emulation_is_of_low_priority(
    tmp_path, pools, capsys, monkeypatch, nice
):
    monkeypatch.setenv("MARIO_NICE", nice)
    run_training(make_config(tmp_path, max_steps=100))
    first, _, _ = capsys.readouterr().out.partition("columns:")
    assert ("emulation threads at nice 5: " in first) == (nice == "5")
    assert ("MARIO_NICE=0 turns this off" in first) == (nice == "5")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"lag": 1, "mode": "async", "unrolls_per_batch": 4},
        {"mode": "async", "unrolls_per_batch": 4},
        {"precision": "bf16"},
        {
            "replay_share": 0.5, "unrolls_per_batch": 12, "replay_capacity": 10,
            "memory": "lstm", "burn_in": 8, "lag": 1,
        },
    ],
)  # fmt: skip
def test_every_kind_of_run_ends_well(tmp_path, pools, options):
    """Of those that test_resume.py does not resume."""
    metrics = run_training(make_config(tmp_path, **options))
    assert metrics["steps"] >= STEPS
    assert weights_in(tmp_path / "run").isfinite().all()
    lag = options.get("lag", 0)
    if options.get("mode") == "async":
        lags = [point["learn/policy_lag"] for point in read_points(tmp_path / "run")]
        # So many batches wait, and so many more are learned from while an environment
        # fills an unroll.
        most = lag + ENVS / options["unrolls_per_batch"]
        assert 0 < sum(lags) / len(lags) <= most
    else:
        assert metrics["learn/policy_lag"] == lag
    if "replay_share" in options:
        assert metrics["replay/unrolls"] == 10
        assert metrics["learn/replay/share"] == pytest.approx(0.5)
        assert metrics["learn/replay/age"] > 0
    assert threads_of_runs() == []


@pytest.mark.slow
@pytest.mark.parametrize("steps", [100, 10_000])
def test_who_clears_nothing_hears_of_the_frontier(
    tmp_path, pools, monkeypatch, capsys, steps
):
    monkeypatch.setattr(reports, "_SUGGEST_STEPS", steps)
    monkeypatch.setattr(FinishedEpisodes, "cleared_levels", lambda self: [])
    run_training(make_config(tmp_path))
    told = capsys.readouterr().out.count("no clear in 1")
    assert told == (steps == 100)


@pytest.mark.parametrize(
    "loss", ["ppo", pytest.param("impala", marks=pytest.mark.slow)]
)
def test_it_learns_and_stops_when_solved(tmp_path, pools, loss, capsys):
    config = make_config(
        tmp_path, max_steps=30_000, stop_when_solved=True, solve_rate=0.8,
        solve_episodes=12, log_seconds=1.0, loss=loss, lr=3e-3, gamma=0.5,
        epochs=4 if loss == "ppo" else 1,
    )  # fmt: skip
    metrics = run_training(config)
    assert metrics["solved"] == 1
    assert metrics["steps"] < 30_000
    lines = read_points(tmp_path / "run", "evaluations.jsonl")
    assert lines[-2]["name"] == "evaluation"
    assert lines[-2]["clear_rate"] >= 0.8
    assert lines[-1]["name"] == "second evaluation"
    streams = [line["stream"] for line in lines]
    assert streams == list(range(1, len(lines) + 1))
    output = capsys.readouterr().out
    assert output.count("first clear of ") == 1
    assert f"first clear of {config.env.task} after " in output
    assert "training episodes cleared the level" in output
    assert "solved: " in output


@pytest.mark.slow
def test_a_failed_evaluation_lets_the_training_go_on(tmp_path, pools, monkeypatch):
    """Both have to pass; the next attempt is after 50 more episodes."""
    rates, calls = [0.2, 0.95, 0.89, 0.97, 0.9], []

    def fake(model, env, levels, protocol):
        rate = rates[len(calls)]
        calls.append((pools[0].episode.sum(), protocol.stream, protocol.episodes))
        return {
            "clears": int(rate * 100),
            "episodes": 100,
            "clear_rate": rate,
            "clear_rate_95": (0.0, 1.0),
        }

    monkeypatch.setattr(reports, "evaluate", fake)
    monkeypatch.setattr(build.FinishedEpisodes, "clear_rates", lambda self: [0.93])
    config = make_config(tmp_path, stop_when_solved=True, max_steps=10_000)
    metrics = run_training(config)
    assert metrics["solved"] == 1
    assert [stream for _, stream, _ in calls] == [1, 2, 3, 4, 5]
    assert {episodes for *_, episodes in calls} == {100}
    at = [episode for episode, *_ in calls]
    assert 50 <= at[1] - at[0] < 70
    assert at[2] == at[1]
    assert 50 <= at[3] - at[2] < 70
    assert at[4] == at[3]
    assert metrics["evaluation/clear_rate"] == 0.9
    lines = read_points(tmp_path / "run", "evaluations.jsonl")
    assert [line["name"] for line in lines] == [
        "evaluation", "evaluation", "second evaluation",
        "evaluation", "second evaluation",
    ]  # fmt: skip
    assert read_run(tmp_path / "run").solved


@pytest.mark.parametrize(("rate", "stop"), [(0.89, True), (1.0, False)])
def test_nothing_is_evaluated_in_vain(tmp_path, pools, monkeypatch, rate, stop):
    monkeypatch.setattr(build.FinishedEpisodes, "clear_rates", lambda self: [rate])
    monkeypatch.setattr(reports, "evaluate", lambda *_, **__: 1 / 0)
    config = make_config(tmp_path, stop_when_solved=stop)
    assert run_training(config)["solved"] == 0


# -- what the options of a run do --------------------------------------------


class Watched(NamedTuple):
    """A run: its metrics, all batches, the rows of each `send`, its pool."""

    metrics: dict[str, float]
    batches: list[Batch]
    sizes: list[int]
    pool: FakePool

    @property
    def lags(self):
        """How many policies old rows are, after the first few batches."""
        return {
            number - version
            for number, batch in enumerate(self.batches)
            for version in batch.versions[:-1].unique().tolist()
            if number >= 3
        }

    @property
    def replayed(self):
        """Importance weights of the first replayed unrolls."""
        return next(b.weights[~b.fresh] for b in self.batches if not b.fresh.all())

    @property
    def fresh(self):
        """Unrolls of each batch that are fresh, and all."""
        return {(int(b.fresh.sum()), len(b.fresh)) for b in self.batches}

    @property
    def rows(self):
        """Rows of an unroll, with its burn-in and its bootstrap."""
        return {len(batch.actions) for batch in self.batches}


def seeds_differ(one, two):
    """Actions, of which there are three, are alike by chance; so are weights."""
    assert one.pool.rng.random() != two.pool.rng.random()
    alike = (one.batches[0].actions == two.batches[0].actions).float().mean()
    values = torch.stack([run.batches[0].values.flatten() for run in (one, two)])
    return alike < 0.6 and torch.corrcoef(values)[0, 1] < 0.9


def is_rounded(one, two):
    """The first rows, of the same weights: as near as eight bits, and not nearer."""
    exact, rounded = (run.batches[0].values[0] for run in (one, two))
    return 1e-4 < (rounded - exact).norm() / exact.norm() < 0.02


def corrects_more(one, two):
    """Of the same unrolls, the weights are (least P / P) to a greater power."""
    power = (two.log() / one.log())[one < 0.95]
    return power.min() > 1.5 and power.max() - power.min() < 0.01


REPLAY = {"replay_share": 0.5}
EFFECTS = [  # of one option, and how a run with it differs from one without
    ({}, {"seed": 2}, seeds_differ),
    ({}, {"lag": 1}, lambda one, two: (one.lags, two.lags) == ({0}, {1})),
    ({"lag": 1}, {"lag": 2}, lambda one, two: (one.lags, two.lags) == ({1}, {2})),
    ({}, {"mode": "async"}, lambda one, two: one.pool.sync and not two.pool.sync),
    ({}, {"mode": "async"}, lambda one, two: one.lags == {0} < two.lags),
    ({}, {"precision": "bf16"}, is_rounded),
    ({}, {"unroll": 4}, lambda one, two: (one.rows, two.rows) == ({9}, {5})),
    ({}, {"groups": 3}, lambda one, two: (one.sizes, two.sizes) == ([3], [2])),
    (
        {}, {"unrolls_per_batch": 12},
        lambda one, two: (one.fresh, two.fresh) == ({(6, 6)}, {(12, 12)}),
    ),
    # Nothing can be replayed with the first batch.
    (
        {}, REPLAY,
        lambda one, two: (one.fresh, two.fresh) == ({(6, 6)}, {(6, 6), (6, 12)}),
    ),
    (
        REPLAY, {"replay_capacity": 7},
        lambda one, two: [run.metrics["replay/unrolls"] for run in (one, two)]
        == [6 * len(one.batches), 7],
    ),
    # Unrolls that are all drawn alike need no correction; others do.
    (
        REPLAY, {"replay_alpha": 0.0},
        lambda one, two: one.replayed.min() < 0.9 and (two.replayed == 1).all(),
    ),
    (
        REPLAY, {"replay_beta": 1.0},
        lambda one, two: corrects_more(one.replayed, two.replayed),
    ),
    (
        {"memory": "gru"}, {"burn_in": 4},
        lambda one, two: (one.rows, two.rows) == ({9}, {13}),
    ),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "changed", "effect"), EFFECTS, ids=[str(row[1]) for row in EFFECTS]
)
def test_every_option_of_a_run_does_what_it_says(
    tmp_path, pools, monkeypatch, base, changed, effect
):
    one, two = (
        watched(tmp_path, pools, monkeypatch, options)
        for options in (base, base | changed)
    )
    assert effect(one, two)


_WATCHED = {}


def watched(tmp_path, pools, monkeypatch, options):
    """A short run; each is done once."""
    key = repr(sorted(options.items()))
    if key in _WATCHED:
        return _WATCHED[key]
    batches, sizes, update, send = [], set(), Learner.update, FakePool.send

    def watch(learner, batch, step):
        fields = {
            name: field.clone()
            for name, field in batch._asdict().items()
            if name != "frames"
        }
        batches.append(batch._replace(**fields))
        return update(learner, batch, step)

    def count(pool, action, env_id):
        sizes.add(len(env_id))
        return send(pool, action, env_id)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", watch)
        patch.setattr(FakePool, "send", count)
        config = make_config(tmp_path / str(len(_WATCHED)), max_steps=400, **options)
        metrics = run_training(replace(config, log_seconds=100.0))
    assert weights_in(config.run_dir).isfinite().all()
    _WATCHED[key] = Watched(metrics, batches, sorted(sizes), pools[-1])
    return _WATCHED[key]


@pytest.mark.slow
def test_serial_is_the_same_in_one_thread(tmp_path, pools, monkeypatch):
    config = make_config(tmp_path / "one", learner_threads=1)
    run_training(config)
    seen = []
    shards = build.Shards
    monkeypatch.setattr(build, "Shards", lambda n: (seen.append(n), shards(n))[1])
    serial = make_config(tmp_path / "two", learner_threads=2, serial=True)
    run_training(serial)
    assert seen == [1]
    one, two = (weights_in(tmp_path / name / "run") for name in ("one", "two"))
    assert torch.equal(one, two)


# -- checkpoints -------------------------------------------------------------


def test_resume_continues(tmp_path, pools, capsys):
    first = make_config(tmp_path)
    run_training(first)
    path = checkpoint.find(tmp_path / "run")
    state = checkpoint.load(path, CPU)
    assert path.name == f"step-{state['steps']:09}.pt"
    old = state["learner"]
    metrics = run_training(
        replace(first, resume=path, run_dir=tmp_path / "more", max_steps=500)
    )
    assert metrics["steps"] >= 500
    output = capsys.readouterr().out
    assert "where it had ended: max_steps reached" in output
    assert output.count("first clear of ") == 1  # of both runs together
    assert metrics["learn/updates"] > old["updates"]
    # The versions of the policy continue, too.
    points = read_points(tmp_path / "more")
    assert max(point["learn/policy_lag"] for point in points) == 0
    state["model"]["head.value.bias"] = torch.zeros(2)
    checkpoint.save(path, state)
    first = replace(first, max_steps=500)
    with pytest.raises(ValueError, match=r"head\.value\.bias is \(2,\) in the"):
        run_training(replace(first, resume=tmp_path / "run"))


def test_checkpoints_are_periodic(tmp_path, pools, monkeypatch):
    saved = []
    monkeypatch.setattr(Saver, "save", lambda self, **_: saved.append(1) or len(saved))
    run_training(make_config(tmp_path, checkpoint_seconds=0.0))
    assert len(saved) > 5


def test_an_evaluation_plays_the_averaged_weights(tmp_path, pools, monkeypatch):
    played = []

    def fake(model, env, *_):
        played.append(torch.cat([p.flatten() for p in model.parameters()]))
        return {
            "clears": 100, "episodes": 100, "clear_rate": 1.0,
            "clear_rate_95": (0.9, 1.0),
        }  # fmt: skip

    monkeypatch.setattr(reports, "evaluate", fake)
    monkeypatch.setattr(
        build.FinishedEpisodes, "clear_rates", lambda self: [float(self.count > 20)]
    )
    run_training(make_config(tmp_path, ema=0.99, stop_when_solved=True))
    state = checkpoint.load(tmp_path / "run", CPU)
    averaged = torch.cat([state["ema"][name].flatten() for name in state["ema"]])
    assert torch.equal(played[0].detach(), averaged)
    assert torch.equal(played[1].detach(), averaged)
    assert not torch.equal(averaged, weights_in(tmp_path / "run"))


# -- how a run ends ----------------------------------------------------------


@pytest.fixture
def signal_soon(monkeypatch):
    """Sends this process a signal soon after the next run has started."""
    start = Run.start

    def prepare(number):
        def begin(self):
            start(self)
            threading.Timer(0.2, os.kill, (os.getpid(), number)).start()

        monkeypatch.setattr(Run, "start", begin)

    return prepare


@pytest.mark.parametrize(
    ("number", "lag"),
    [
        (signal.SIGINT, 0),
        (signal.SIGTERM, 1),
        (signal.SIGHUP, 0),
        (signal.SIGUSR1, 1),
    ],
)
def test_a_signal_ends_the_run_with_a_checkpoint(
    tmp_path, pools, capsys, signal_soon, number, lag
):
    config = make_config(tmp_path, max_steps=10**9, checkpoint_seconds=1e9, lag=lag)
    before = signal.getsignal(number)
    signal_soon(number)
    metrics = run_training(config)
    assert 0 < metrics["steps"] < 10**9
    state = checkpoint.load(tmp_path / "run", CPU)
    assert state["steps"] == metrics["steps"]
    assert metrics["signal"] == number
    out = capsys.readouterr().out
    command = f"--resume {tmp_path}/run"
    assert re.search(rf"interrupted after .*; continue with {command}\n", out)
    assert signal.getsignal(number) is before


def test_a_signal_amid_the_last_evaluation(tmp_path, pools, monkeypatch):
    """The run has ended; the caller of several runs sees the signal."""

    def fake(model, env, *_):
        os.kill(os.getpid(), signal.SIGINT)
        monkeypatch.setattr(reports, "evaluate", lambda *_, **__: result)
        return result

    result = {
        "clears": 100, "episodes": 100, "clear_rate": 1.0, "clear_rate_95": (0.9, 1.0),
    }  # fmt: skip
    monkeypatch.setattr(reports, "evaluate", fake)
    monkeypatch.setattr(build.FinishedEpisodes, "clear_rates", lambda self: [1.0])
    metrics = run_training(make_config(tmp_path, stop_when_solved=True))
    assert (metrics["solved"], metrics["signal"]) == (1, signal.SIGINT)
    state = checkpoint.load(tmp_path / "run", CPU)
    assert state["progress"]["ended"] == "solved: 100% cleared"


def test_a_signal_after_the_last_update_is_not_lost(tmp_path, pools, monkeypatch):
    save = Saver.save

    def slow(self, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return save(self, **options)

    config = make_config(tmp_path, max_steps=200, checkpoint_seconds=1e9)
    monkeypatch.setattr("trainer.session.resume._FIRST_S", 1e9)
    monkeypatch.setattr(Saver, "save", slow)
    assert run_training(config)["signal"] == signal.SIGTERM
    assert checkpoint.load(tmp_path / "run", CPU)["progress"]["ended"]


@pytest.mark.parametrize("error", [RuntimeError("reentrant"), BrokenPipeError()])
def test_a_signal_that_cannot_be_told_of_counts(error):
    def log(text):
        raise error

    with training.stop_on_signal(log) as stopping:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.signal == signal.SIGTERM


def test_a_time_limit_ends_the_run(tmp_path, pools):
    metrics = run_training(make_config(tmp_path, max_steps=10**9, max_seconds=0.5))
    assert 0.5 <= metrics["seconds"] < 20


def test_a_nan_loss_stops_the_run_and_keeps_the_batch(tmp_path, pools, monkeypatch):
    make = build.make_pool

    def broken(*args, **kwargs):
        pool = make(*args, **kwargs)
        recv = pool.recv

        def spoil():
            obs, reward, *rest = recv()
            return obs, reward + float("nan"), *rest

        pool.recv = spoil
        return pool

    monkeypatch.setattr(build, "make_pool", broken)
    with pytest.raises(RuntimeError, match=r"the loss is nan.*nan_batch\.pt"):
        run_training(make_config(tmp_path))
    batch = torch.load(tmp_path / "run" / "nan_batch.pt", weights_only=True)
    assert batch["actions"].shape == (9, ENVS)
    assert batch["obs"].shape[:2] == (9, ENVS)
    # Weights that are lost replace no checkpoint.
    assert checkpoint.list_files(tmp_path / "run") == []


@pytest.mark.parametrize("lag", [0, 1])
def test_a_failing_pool_still_leaves_a_checkpoint(tmp_path, pools, monkeypatch, lag):
    config = make_config(tmp_path, lag=lag)
    original = Run.build

    def broken_later(self):
        original(self)
        recv, left = self.pool.recv, [50]

        def fail():
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("env 3: it broke")
            return recv()

        self.pool.recv = fail

    monkeypatch.setattr(Run, "build", broken_later)
    with pytest.raises(RuntimeError, match="env 3"):
        run_training(config)
    assert checkpoint.load(tmp_path / "run", CPU)["collecting"] is None
    assert pools[0].closed
    assert threads_of_runs() == []


def test_a_checkpoint_that_fails_hides_no_failure(tmp_path, pools, monkeypatch, capsys):
    def lost(*args, **kwargs):
        raise RuntimeError("the device is lost")

    def fail(self, batch, step):
        monkeypatch.setattr(resume, "capture", lost)
        raise RuntimeError("env 3: it broke")

    monkeypatch.setattr(Learner, "update", fail)
    with pytest.raises(RuntimeError, match="env 3: it broke"):
        run_training(make_config(tmp_path))
    assert "could not write a checkpoint: the device is lost" in capsys.readouterr().out


def test_a_profile_is_written(tmp_path, pools):
    run_training(make_config(tmp_path, max_steps=600, profile=1))
    trace = json.loads((tmp_path / "run" / "trace.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"collect", "learn"} <= names


def test_a_full_device_is_explained(tmp_path, pools, monkeypatch, capsys):
    def full(self, batch, step):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(Learner, "update", full)
    options = "--device cpu --num-envs 6 --unroll 8 --unrolls-per-batch 6 --no-videos"
    assert main([*options.split(), "--run-dir", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "out of device memory (CUDA out of memory)" in error
    assert "--minibatch-size" in error
    assert "--num-envs (now 6)" in error


# -- options that are refused ------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"burn_in": 4}, "burn_in=4 needs a network with a memory"),
        ({"burn_in": 9, "memory": "gru"}, "burn_in must be at most unroll=8, got 9"),
        (
            {
                "replay_share": 0.5,
                "unrolls_per_batch": 12,
                "replay_capacity": 10**9,
            },
            "unrolls and replay need .* lower --replay-capacity",
        ),
        ({"unrolls_per_batch": 8}, "must be a multiple of num_envs=6"),
        ({"serial": True, "lag": 1}, "lag must be 0"),
        ({"groups": 4}, "groups must divide num_envs=6, got 4"),
    ],
)
def test_options_that_do_not_fit_are_errors(tmp_path, pools, options, says):
    with pytest.raises(ValueError, match=says):
        run_training(make_config(tmp_path, **options))
    assert not (tmp_path / "run").exists()


@pytest.mark.families
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--device cuda", "--device cuda"),
        ("--task Pong-v6", "unknown task 'Pong-v6'; similar ids: Pong-v5"),
        ("--task CartPole-v1", "CartPole-v1 has observations (4,)"),
        ("--task Ant-v4", "Ant-v4 has observations (27,)"),
        ("--task Pong-v5 --run-dir {file}", "cannot write to the run folder"),
        ("--task Pong-v5 --run-dir {file}/below", "cannot write to the run folder"),
        ("--task Pong-v5 --resume {file}", "is not a checkpoint of this trainer"),
        ("--task Pong-v5 --resume {folder}", "no checkpoint at"),
        ("--resume released:1-1", "released:1-1 is a policy (weights only): --resume"),
        ("--resume x/1-1.safetensors", "1-1.safetensors is a policy (weights only)"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(
    tmp_path, capsys, monkeypatch, options, says
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "config.json"
    file.write_text("{}")
    words = options.format(file=file, folder=tmp_path).split()
    counts = "--num-envs 2 --groups 1 --num-threads 1"
    assert main([*words, *counts.split(), "--unrolls-per-batch", "2"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert says in error
    assert list(tmp_path.iterdir()) == [file]


def test_a_failure_while_training_is_status_1(tmp_path, monkeypatch, pools, capsys):
    def fail(*arguments):
        raise RuntimeError("env 3: it broke")

    monkeypatch.setattr(training, "_loop", fail)
    options = "--device cpu --num-envs 6 --unrolls-per-batch 6 --no-videos"
    assert main([*options.split(), "--run-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "error: env 3: it broke\n"


def test_learner_threads(monkeypatch):
    def count(cores, **options):
        monkeypatch.setattr(build, "available_cores", lambda: cores)
        return build.shard_count(RunConfig(learner=LearnerConfig(**options)))

    assert count(2, minibatch_size=256) == 2
    assert count(64, minibatch_size=256) == 4
    assert count(8, minibatch_size=16) == 1
    assert count(8, minibatch_size=16, learner_threads=3) == 3


def test_default_run_dirs_do_not_collide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files.time, "strftime", lambda form: "T")
    first = files.new_run_dir("Task")
    first.mkdir(parents=True)
    assert str(first) == "runs/Task-T"
    assert str(files.new_run_dir("Task")) == "runs/Task-T-2"


# -- real pools --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.families
def test_a_short_run_on_envpool_atari(tmp_path):
    """The whole loop on a real pool, whose ROM comes with EnvPool."""
    status = main(
        f"--device cpu --task Pong-v5 --num-envs 4 --num-threads 1 "
        f"--unrolls-per-batch 4 --unroll 8 --minibatch-size 16 --max-steps 300 "
        f"--run-dir {tmp_path}".split()
    )
    assert status == 0
    assert checkpoint.load(tmp_path, CPU)["steps"] >= 300


def game(tmp_path, threads, **options):
    """A small run on the game; an update takes 16 steps."""
    config = RunConfig(
        device="cpu",
        precision="fp32",
        run_dir=tmp_path,
        log_seconds=100.0,
        stop_when_solved=False,
        env=EnvConfig(num_envs=4, num_threads=threads, img_height=36, img_width=36),
        learner=LearnerConfig(
            unroll=4, unrolls_per_batch=4, minibatch_size=16, epochs=1
        ),
    )
    return change(config, **options)


@pytest.mark.rom
@pytest.mark.slow
@pytest.mark.parametrize(("lag", "updates"), [(0, 80), (1, 30)])
def test_the_seed_decides_the_weights_on_any_number_of_threads(tmp_path, lag, updates):
    weights = []
    for number, threads in enumerate((1, 2)):
        steps = updates * 4 * 4
        config = game(tmp_path / str(number), threads, lag=lag, max_steps=steps)
        metrics = run_training(config)
        assert metrics["learn/updates"] >= updates
        weights.append(weights_in(config.run_dir))
    assert torch.equal(*weights)


@pytest.mark.rom
@pytest.mark.parametrize(
    "mode", ["sync", pytest.param("async", marks=pytest.mark.slow)]
)
def test_a_short_run_on_the_game(tmp_path, mode):
    """The default task with its own options, for a few thousand steps."""
    status = main(
        f"--device cpu --num-envs 16 --unrolls-per-batch 16 --mode {mode} "
        f"--max-steps 2000 --run-dir {tmp_path}".split()
    )
    assert status == 0
    points = read_points(tmp_path)
    assert points[-1]["rollout/best_x"] > 50
    assert points[-1]["rollout/episodes"] > 0
