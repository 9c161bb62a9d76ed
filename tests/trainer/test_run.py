"""Whole runs on a fake pool, on EnvPool's Atari, and on the game."""

import json
import os
import signal
import threading
from dataclasses import replace

import pytest
import torch

from trainer import checkpoint, run
from trainer.config import EnvConfig, LearnerConfig, RunConfig
from trainer.run import main, run_training

CPU = torch.device("cpu")


def make_config(tmp_path, **changes):
    base = RunConfig(
        device="cpu",
        precision="fp32",
        run_dir=tmp_path / "run",
        max_steps=2_000,
        log_seconds=0.01,
        env=EnvConfig(num_envs=6, batch_size=4),
        learner=LearnerConfig(
            unroll=8, unrolls_per_batch=8, minibatch_size=32, learner_threads=2
        ),
    )
    return replace(base, **changes)


def read_points(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def pools(monkeypatch, fake_pool):
    """Makes runs use fake pools; gives the list of them."""
    made = []

    def make(config, seed):
        made.append(fake_pool(config.num_envs, config.batch_size, seed))
        return made[-1]

    monkeypatch.setattr(run, "make_pool", make)
    return made


def test_a_run_leaves_everything(tmp_path, pools, capsys):
    metrics = run_training(make_config(tmp_path))
    folder = tmp_path / "run"
    assert metrics["steps"] >= 2_000
    assert metrics["solved"] == 0
    assert metrics["signal"] == 0
    config = json.loads((folder / "config.json").read_text())
    assert config["env"]["num_envs"] == 6
    assert "commit" in config
    points = read_points(folder)
    assert points[-1]["step"] == metrics["steps"]
    for name in (
        "rollout/return",
        "rollout/best_x_50",
        "rollout/clear_rate",
        "learn/loss/total",
        "learn/rho",
        "time/sps",
        "time/share_wait",
        "time/share_learn",
    ):
        assert points[-1][name] is not None, name
    assert list(folder.glob("events.out.tfevents*"))
    state = checkpoint.load(folder / "checkpoint.pt", CPU)
    assert state["steps"] == metrics["steps"]
    assert pools[0].closed
    output = capsys.readouterr().out
    assert "parameters on cpu" in output
    assert "SPS: environment steps per second" in output
    assert "max_steps reached" in output
    assert str(folder) in output


@pytest.mark.parametrize("loss", ["clip", "impala"])
def test_it_learns_and_stops_when_solved(tmp_path, pools, loss):
    config = make_config(tmp_path, max_steps=30_000, stop_clear_rate=0.9)
    learner = replace(
        config.learner, loss=loss, lr=3e-3, gamma=0.5,
        passes=4 if loss == "clip" else 1,
    )  # fmt: skip
    metrics = run_training(replace(config, learner=learner))
    assert metrics["solved"] == 1
    assert metrics["steps"] < 30_000
    assert metrics["rollout/clear_rate"] >= 0.9


def test_resume_continues(tmp_path, pools, capsys):
    first = make_config(tmp_path)
    run_training(first)
    path = tmp_path / "run" / "checkpoint.pt"
    state = checkpoint.load(path, CPU)
    resumed = run.Run(replace(first, resume=path, run_dir=tmp_path / "again"))
    for name, tensor in resumed.state()["model"].items():
        assert torch.equal(tensor, state["model"][name]), name
    old, new = state["optimizer"]["state"], resumed.state()["optimizer"]["state"]
    assert torch.equal(old[0]["exp_avg"], new[0]["exp_avg"])
    for name in ("steps", "updates"):
        assert resumed.state()[name] == state[name] > 0
    for name in ("minibatch_rng", "action_rng"):
        assert torch.equal(resumed.state()[name], state[name])
    resumed.close()
    metrics = run_training(
        replace(first, resume=path, run_dir=tmp_path / "more", max_steps=3_000)
    )
    assert metrics["steps"] >= 3_000
    assert metrics["learn/updates"] > state["updates"]
    other = replace(first, resume=path, model=replace(first.model, name="nano"))
    with pytest.raises(ValueError, match="choose the same --model"):
        run_training(other)
    state["model"]["head.value.bias"] = torch.zeros(2)
    checkpoint.save(path, state)
    with pytest.raises(ValueError, match=r"head\.value\.bias is \(2,\) there"):
        run_training(replace(first, resume=tmp_path / "run"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_a_checkpoint(tmp_path, pools, capsys, number):
    config = make_config(tmp_path, max_steps=10**9, checkpoint_seconds=1e9)
    before = signal.getsignal(number)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), number))
    timer.start()
    metrics = run_training(config)
    timer.join()
    assert 0 < metrics["steps"] < 10**9
    state = checkpoint.load(tmp_path / "run" / "checkpoint.pt", CPU)
    assert state["steps"] == metrics["steps"]
    assert metrics["signal"] == number
    assert "interrupted" in capsys.readouterr().out
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_the_exit_status_names_the_signal(tmp_path, pools, number, status):
    options = "--device cpu --num-envs 6 --batch-size 4 --unroll 8 --max-steps 999999"
    timer = threading.Timer(1.0, os.kill, (os.getpid(), number))
    timer.start()
    assert main([*options.split(), "--run-dir", str(tmp_path)]) == status
    timer.join()
    assert checkpoint.load(tmp_path, CPU)["steps"] > 0


def test_checkpoints_are_periodic(tmp_path, pools, monkeypatch):
    saved = []
    monkeypatch.setattr(run.Run, "save", lambda self: saved.append(1))
    run_training(make_config(tmp_path, checkpoint_seconds=0.0))
    assert len(saved) > 10


def test_a_time_limit_ends_the_run(tmp_path, pools):
    metrics = run_training(make_config(tmp_path, max_steps=10**9, max_seconds=1.0))
    assert 1.0 <= metrics["seconds"] < 20


def test_a_nan_loss_stops_the_run_and_keeps_the_batch(tmp_path, pools, monkeypatch):
    class Broken(type(run.make_pool(EnvConfig(num_envs=1, batch_size=1), 0))):
        def recv(self):
            obs, reward, *rest = super().recv()
            return obs, reward + float("nan"), *rest

    monkeypatch.setattr(run, "make_pool", lambda config, seed: Broken(6, 4, seed))
    with pytest.raises(RuntimeError, match=r"the loss is nan.*nan_batch\.pt"):
        run_training(make_config(tmp_path))
    batch = torch.load(tmp_path / "run" / "nan_batch.pt", weights_only=True)
    assert batch["actions"].shape == (9, 8)


def test_a_failing_pool_still_leaves_a_checkpoint(tmp_path, pools, monkeypatch):
    config = make_config(tmp_path)
    original = run.Run.__init__

    def broken_later(self, config):
        original(self, config)
        recv, left = self.pool.recv, [30]

        def fail():
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("env 3: it broke")
            return recv()

        self.pool.recv = fail

    monkeypatch.setattr(run.Run, "__init__", broken_later)
    with pytest.raises(RuntimeError, match="env 3"):
        run_training(config)
    assert (tmp_path / "run" / "checkpoint.pt").is_file()
    assert pools[0].closed


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--device cuda", "--device cuda"),
        ("--task Pong-v6", "there is no task 'Pong-v6'; near ids: Pong-v5"),
        ("--task CartPole-v1", "CartPole-v1 has observations (4,)"),
        ("--task Ant-v4", "Ant-v4 has observations (27,)"),
        ("--task Pong-v5 --run-dir {file}", "cannot write to the run folder"),
        ("--task Pong-v5 --run-dir {file}/below", "cannot write to the run folder"),
        ("--task Pong-v5 --resume {file}", "is not a checkpoint of this trainer"),
        ("--task Pong-v5 --resume {folder}", "no checkpoint at"),
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
    counts = "--num-envs 2 --batch-size 2 --num-threads 1".split()
    assert main([*words, *counts]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert says in error
    assert list(tmp_path.iterdir()) == [file]


def test_a_failure_while_training_is_status_1(tmp_path, monkeypatch, pools, capsys):
    def fail(*arguments):
        raise RuntimeError("env 3: it broke")

    monkeypatch.setattr(run, "_loop", fail)
    assert main(["--device", "cpu", "--run-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "error: env 3: it broke\n"


def test_learner_threads(monkeypatch):
    def count(cores, **options):
        monkeypatch.setattr(run, "available_cores", lambda: cores)
        return run._shard_count(RunConfig(learner=LearnerConfig(**options)))

    assert count(2, minibatch_size=256) == 2
    assert count(64, minibatch_size=256) == 4
    assert count(8, minibatch_size=16) == 1
    assert count(8, minibatch_size=16, learner_threads=3) == 3


def test_default_run_dirs_do_not_collide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run.time, "strftime", lambda form: "T")
    first = run._new_run_dir("Task")
    first.mkdir(parents=True)
    assert str(first) == "runs/Task-T"
    assert str(run._new_run_dir("Task")) == "runs/Task-T-2"


def test_a_short_run_on_envpool_atari(tmp_path):
    """The whole loop on a real pool, whose ROM comes with EnvPool."""
    status = main(
        f"--device cpu --task Pong-v5 --num-envs 4 --batch-size 2 --num-threads 1 "
        f"--unrolls-per-batch 4 --unroll 8 --minibatch-size 16 --max-steps 300 "
        f"--run-dir {tmp_path}".split()
    )
    assert status == 0
    assert checkpoint.load(tmp_path / "checkpoint.pt", CPU)["steps"] >= 300


@pytest.mark.rom
def test_a_short_run_on_the_game(tmp_path):
    """The default task with its own options, for a few thousand steps."""
    status = main(
        f"--device cpu --num-envs 16 --batch-size 8 --unrolls-per-batch 16 "
        f"--max-steps 4000 --run-dir {tmp_path}".split()
    )
    assert status == 0
    points = read_points(tmp_path)
    assert points[-1]["rollout/best_x"] > 50
    assert points[-1]["rollout/episodes"] > 0
