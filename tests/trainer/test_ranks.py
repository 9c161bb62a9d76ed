"""Several processes train one run, as torchrun starts them.

MARIO_KILLS=10 kills them ten times instead of twice.
"""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import ranks_program
import torch
from small_runs import (
    CPU,
    change,
    differences,
    essence,
    make_config,
    read_episodes,
    read_points,
)
from torch import distributed as dist
from torch.distributed import HashStore

from trainer import run
from trainer.config.schema import RunConfig
from trainer.machine import ranks
from trainer.machine.ranks import ALONE, LostRankError, Ranks, Stream, seed_of
from trainer.models import checkpoint
from trainer.rollout.episodes import Episode
from trainer.rollout.finished import Ended, FinishedEpisodes
from trainer.session import files
from trainer.session.build import share_of
from trainer.session.training import run_training

KILLS = int(os.environ.get("MARIO_KILLS", "2"))
STEPS = 1_920  # 30 updates

# A checkpoint and a line after every update, so that kills meet them half-way.
OPTIONS = (
    "--device cpu --num-envs 8 --unroll 8 --unrolls-per-batch 8 --minibatch-size 32 "
    "--epochs 1 --noop-max 4 --max-episode-steps 40 --no-stop-when-solved --no-videos "
    f"--max-steps {STEPS} --log-seconds 0 --checkpoint-seconds 0 --dashboard off"
).split()


# -- two processes, without torchrun -------------------------------------------


def run_program(*arguments):
    """Runs ranks_program.py as two ranks; both must succeed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, ranks_program.__file__, *map(str, arguments)]
    processes = [
        subprocess.Popen(
            command,
            env=os.environ | where | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "".join(outputs)
    return outputs


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder of what two ranks have done."""
    folder = tmp_path_factory.mktemp("ranks")
    run_program(folder)
    return folder


@pytest.mark.slow
def test_what_ranks_tell_each_other(ran):
    files = [ran / f"exchange-{rank}.json" for rank in range(2)]
    one, other = (json.loads(file.read_text()) for file in files)
    same = {
        "first": 7,
        "total": 3,
        "sum": [1, 4],
        "mean": [[0.5] * 3] * 2,
        "bias": [0.5, 1.5],
        "copied": [5, 5],
    }
    assert one == same | {
        "gather": [0, 10],
        "scatter": "a",
        "failures": [["ValueError", "no such level"], ["SystemExit", "3"]],
    }
    assert other == same | {
        "gather": [],
        "scatter": "b",
        "failures": [["FirstRankError", "rank 0 has failed"], ["SystemExit", "3"]],
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ranks_program.KINDS)
def test_weights_are_equal_on_all_ranks_after_every_update(ran, kind):
    files = [ran / f"updates-{rank}.json" for rank in range(2)]
    one, other = (json.loads(file.read_text())[kind] for file in files)
    assert one == other
    assert len(set(one["hashes"])) == len(one["hashes"]) > 2


@pytest.mark.slow
def test_two_halves_of_a_batch_teach_what_the_whole_does(ran):
    files = [ran / f"halves-{rank}.pt" for rank in range(2)]
    (halves, whole), (others, _) = map(torch.load, files)
    assert torch.equal(halves, others)
    torch.testing.assert_close(halves, whole, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ranks_program.RESUMED)
def test_the_resumed_run_is_the_uninterrupted_one(ran, kind):
    whole, parts = (essence(ran / kind / name / "run") for name in ("whole", "parts"))
    assert whole["steps"] >= ranks_program.PARTS[-1]
    assert len(whole["others"]) == 1
    assert differences(whole, parts) == []
    # Those of both ranks.
    lines, again = (
        read_episodes(ran / kind / name / "run") for name in ("whole", "parts")
    )
    assert lines == again
    assert len(lines) == whole["episodes"]["count"] > 0


@pytest.mark.slow
def test_another_number_of_processes_goes_on(ran, tmp_path, pools, capsys):
    source, alone = ran / "turns" / "whole" / "run", tmp_path / "run"
    options = ranks_program.RESUMED["turns"]
    config = ranks_program.config_of(
        tmp_path, max_steps=ranks_program.ALONE, resume=source, **options
    )
    first = checkpoint.load(source, CPU)
    run_training(config)
    text = "new episodes begin: with another number of processes"
    assert text in capsys.readouterr().out
    second = checkpoint.load(alone, CPU)
    assert second["steps"] >= ranks_program.ALONE
    assert second["learner"]["updates"] > first["learner"]["updates"]
    assert second["episodes"]["count"] > first["episodes"]["count"]
    assert "others" not in second

    output, silent = run_program(tmp_path / "again", alone)
    assert text in output
    assert "steps" not in silent
    third = checkpoint.load(tmp_path / "again" / "run", CPU)
    assert third["steps"] >= ranks_program.AGAIN
    assert third["learner"]["updates"] > second["learner"]["updates"]
    assert len(third["others"]) == 1


# -- torchrun ------------------------------------------------------------------


@pytest.fixture
def start(tmp_path):
    """Starts runs of two processes in the test's folder; ends those that are left."""
    engine = f"{sys.executable} -m torch.distributed.run --nproc-per-node 2"
    started = []

    def start_run(arguments, restarts=0):
        command = [
            *engine.split(),
            "--max-restarts",
            str(restarts),
            "-m",
            "trainer.run",
        ]
        started.append(
            subprocess.Popen(
                [*command, *arguments],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return started[-1]

    yield start_run
    for process in started:
        with process:
            process.terminate()


def read_until(process, step):
    """What a run prints until it tells of a step."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        found = re.match(r" *([\d,]+) steps \|", line)
        if found and int(found[1].replace(",", "")) >= step:
            return "".join(lines)
    raise AssertionError(f"the run ended before step {step}: {''.join(lines)}")


def kill(process, rank):
    """Kills one of the two processes of a run."""
    for child in psutil.Process(process.pid).children():
        if child.environ().get("RANK") == str(rank):
            child.kill()


@pytest.mark.rom
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(240 + 60 * KILLS)
def test_kills_at_random_moments_change_nothing(tmp_path, start):
    whole = start([*OPTIONS, "--run-dir", "whole"])
    output, _ = whole.communicate()
    assert whole.returncode == 0, output

    rng = random.Random(5)
    process = start(OPTIONS, restarts=20)
    output = ""
    for number, moment in enumerate(sorted(rng.sample(range(STEPS * 3 // 4), KILLS))):
        output += read_until(process, moment)
        time.sleep(rng.uniform(0, 0.05))
        kill(process, number % 2)
    output += process.communicate()[0]
    assert process.returncode == 0, output
    assert output.count("resumed from") == KILLS
    assert "restarts all processes from the last checkpoint" in output
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert differences(essence(tmp_path / "whole"), essence(run_dir)) == []
    steps = [point["step"] for point in read_points(run_dir)]
    assert steps == sorted(set(steps))
    assert read_episodes(run_dir) == read_episodes(tmp_path / "whole")


@pytest.mark.rom
@pytest.mark.slow
def test_without_restarts_the_last_line_says_how_to_go_on(tmp_path, start):
    process = start([*OPTIONS, "--run-dir", "run"])
    read_until(process, 500)
    kill(process, 1)
    output, _ = process.communicate()
    assert process.returncode
    (line,) = [row for row in output.splitlines() if row.startswith("error: ")]
    assert "another rank has ended" in line
    assert "torchrun --max-restarts 20" in line
    assert "--resume run " in line


@pytest.mark.rom
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "to"),
    [
        (signal.SIGINT, "torchrun"),
        pytest.param(signal.SIGHUP, "torchrun", marks=pytest.mark.nightly),
        (signal.SIGUSR1, "torchrun"),  # which it kills
        pytest.param(signal.SIGUSR1, "1", marks=pytest.mark.nightly),
        (signal.SIGTERM, "all"),  # as from Slurm; torchrun passes it on once more
        pytest.param(signal.SIGUSR1, "all", marks=pytest.mark.nightly),
    ],
)
def test_a_signal_ends_all_ranks_with_one_checkpoint(number, to, tmp_path, start):
    # Half a second passes until the processes notice that torchrun is gone.
    endless = ["10000000" if word == str(STEPS) else word for word in OPTIONS]
    process = start([*endless, "--run-dir", "run"])
    read_until(process, 500)
    for child in psutil.Process(process.pid).children():
        if to in ("all", child.environ().get("RANK")):
            child.send_signal(number)
    if to in ("all", "torchrun"):
        process.send_signal(number)
    output, _ = process.communicate()  # until the last of the processes has ended
    assert process.returncode
    assert "; continue with --resume run" in output
    state = checkpoint.load(tmp_path / "run", CPU)
    assert state["steps"] >= 500
    assert len(state["others"]) == 1
    assert state["collecting"] is not None


@pytest.mark.slow
def test_what_cannot_be_divided_is_said_once(start):
    process = start(["--minibatch-size", "33", "--device", "cpu"])
    output, _ = process.communicate()
    assert process.returncode
    lines = [row for row in output.splitlines() if row.startswith("error: ")]
    assert lines == [
        "error: minibatch_size=33 counts for the whole run and cannot be divided among "
        "2 processes: choose a multiple of 2"
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_reach_the_others(rank, monkeypatch, capsys):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = str(closed.getsockname()[1])
    given = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    given |= {"MASTER_PORT": port, ranks.JOIN_VARIABLE: "1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert run.main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    (line,) = [row for row in lines if row.startswith("error: ")]
    assert line.startswith(f"error: rank {rank} of 2 on ")
    assert f"could not reach the others at 127.0.0.1:{port} within 1 s" in line
    assert ranks.JOIN_VARIABLE in line
    monkeypatch.setenv(ranks.JOIN_VARIABLE, "soon")
    assert run.main([]) == 2
    assert "must be a number of seconds, got 'soon'" in capsys.readouterr().err


# -- parts ---------------------------------------------------------------------

# As PyTorch 2.13 words them; the paths differ between versions.
LOST = [
    RuntimeError(
        "[/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection "
        "closed by peer [127.0.0.1]:6841"
    ),
    RuntimeError(
        "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out "
        "waiting 1800000ms for recv operation to complete"
    ),
    dist.DistNetworkError("failed to recv, got 0 bytes"),
    dist.DistStoreError("wait timeout after 300000ms, keys: /here/1"),
    dist.DistBackendError("NCCL error in: x.cpp:1\nncclRemoteError: A call failed"),
]
OTHERS = [
    RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
    RuntimeError("[enforce fail at ../gloo/transport/tcp/pair.cc:446] 8 vs 4"),
    torch.OutOfMemoryError("CUDA out of memory"),
    dist.DistBackendError("NCCL error in: x.cpp:1\nncclInvalidUsage: two of one GPU"),
    ValueError("no such rank"),
]


@pytest.mark.parametrize("error", [*LOST, *OTHERS], ids=lambda e: str(e)[-25:])
def test_only_errors_of_the_connection_are_lost_ranks(error, monkeypatch):
    """Others keep their message, and SIGTERM its handler."""

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(dist, "all_reduce", fail)
    before = signal.getsignal(signal.SIGTERM)
    is_lost = any(error is one for one in LOST)
    try:
        with pytest.raises(LostRankError if is_lost else type(error)) as caught:
            Ranks(0, 2, group=object()).total(1)
        assert (caught.value is error) == (not is_lost)
        ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        assert ignored == is_lost
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_share_is_of_environments_batches_and_replay():
    config = change(RunConfig(), replay_share=0.5, replay_capacity=100)
    share = config.share(2)
    assert (share.env.num_envs, share.learner.unrolls_per_batch) == (32, 32)
    assert (share.learner.minibatch_size, share.replay.replay_capacity) == (512, 50)
    assert config.share(1) == config


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_envs": 6}, "num_envs=6 counts for the whole run"),
        ({"unrolls_per_batch": 66}, "unrolls_per_batch=66"),
        ({"minibatch_size": 1023}, "minibatch_size=1023"),
        ({"replay_share": 0.5, "replay_capacity": 6}, "replay_capacity=6"),
        ({"num_envs": 4}, "choose a num_envs that is a multiple of 8"),
    ],
)
def test_what_cannot_be_divided_is_named(options, text):
    with pytest.raises(ValueError, match=text):
        change(RunConfig(), **options).share(4)


def test_ranks_of_a_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr("trainer.config.presets.available_cores", lambda: 16)
    config = RunConfig()
    share = share_of(config, Ranks(1, 4, local_rank=1, local_size=2))
    assert (share.env.num_threads, share.learner.learner_threads) == (8, 8)
    assert (share.videos, share_of(config, ALONE)) == (False, config)
    given = change(config, num_threads=3, learner_threads=2)
    share = share_of(given, Ranks(0, 2, local_size=2))
    assert (share.env.num_threads, share.learner.learner_threads) == (3, 2)
    assert share.videos


def test_each_rank_has_random_numbers_of_its_own():
    seeds = {seed_of(1, stream, rank) for stream in Stream for rank in range(3)}
    assert len(seeds) == 9
    assert seed_of(1, Stream.ACTIONS, 0) == seed_of(1, Stream.ACTIONS)


def test_episodes_are_taken_by_batches():
    own = FinishedEpisodes()
    first, second = (
        Ended(0, Episode(float(i), 1, 0, False), {"from_snapshot": i == 1})
        for i in range(2)
    )
    own.begin_batch()
    own._new[-1].append(first)
    own.begin_batch()  # another thread collects the next one
    own._new[-1].append(second)
    again, new = FinishedEpisodes(), FinishedEpisodes()
    for some in (again, new):
        some.restore(own.state())
    for some in (own, again):
        assert [some.take_new() for _ in range(3)] == [[first], [second], []]
    new.drop_new()
    assert new.take_new() == []
    new.add([first, second])
    assert list(new.recent) == [first.episode]  # not the one from a snapshot


def test_ranks_meet_whatever_those_before_them_have_left():
    store = HashStore()
    store.set("here/1", "of one that was killed")
    store.set("here/2", "of one that was killed")
    with pytest.raises(RuntimeError, match="missing: 1, 2"):
        ranks._meet(store, 0, 3, 0.1)
    with ThreadPoolExecutor(3) as pool:
        met = [pool.submit(ranks._meet, store, rank, 3, 60.0) for rank in range(3)]
        names = {future.result() for future in met}
    assert len(names) == 1


def test_the_first_to_say_something(tmp_path, monkeypatch):
    assert ranks.says_first("no GPU")  # without torchrun
    (tmp_path / "attempt_0" / "1").mkdir(parents=True)
    file = tmp_path / "attempt_0" / "1" / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    assert [ranks.says_first(text) for text in ("a", "a", "b")] == [True, False, True]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert ranks.says_first("a")


def test_a_restarted_run_goes_on_from_its_own_folder(tmp_path, pools, monkeypatch):
    agent = tmp_path / "agent"
    (agent / "attempt_0" / "0").mkdir(parents=True)
    file = agent / "attempt_0" / "0" / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    config = make_config(tmp_path, max_steps=200)
    other = make_config(tmp_path / "other")  # what the command line would say now

    def config_again():
        return files.config_after_restart(ALONE, lambda: other)

    assert config_again() is other
    files.note(config.run_dir, None, ALONE)
    # Before the first checkpoint it begins again, in the same folder.
    assert config_again().run_dir == config.run_dir.resolve()
    assert config_again().resume is None
    run_training(change(config, log_seconds=100.0))
    assert config_again() is None  # it has ended
    run_dir = Path(config.run_dir)
    state = checkpoint.load(run_dir, CPU)
    state["progress"]["ended"] = ""
    del state["version"]
    checkpoint.save(run_dir / "checkpoints" / f"step-{state['steps']:09}.pt", state)
    found = config_again()
    assert (found.resume.parents[1], found.max_steps) == (run_dir.resolve(), 200)
