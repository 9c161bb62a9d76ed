"""Population-based training: exploit, explore, interruptions, Ray and its machines.

Where Ray trains, runs take no time (stub_members), and a separate command starts them.
"""

import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from stub_members import Stub
from stub_runs import MUTATIONS

from trainer.config.schema import RunConfig
from trainer.machine.imports import load
from trainer.models import checkpoint
from trainer.population import main
from trainer.session.files import take
from trainer.tuning import mutations
from trainer.tuning import population as module
from trainer.tuning.population import Population, PopulationConfig

BASE = RunConfig(device="cpu", seed=5)
TESTS = Path(__file__).resolve().parents[1] / "support"


def config_in(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MUTATIONS)
    return PopulationConfig(
        members=4,
        generations=3,
        steps_per_generation=1000,
        mutations=f"{path}:MUTATIONS",
        out=tmp_path / "out",
    )


@pytest.fixture
def config(tmp_path):
    return config_in(tmp_path)


@pytest.fixture
def pbt():
    pytest.importorskip("ray")
    from trainer.tuning import pbt

    return pbt


def reached(rate, best_x=700.0):
    return {"rollout/clear_rate": rate, "rollout/best_x_50": best_x}


def train_all(population):
    """Notes results of a generation, and leaves checkpoints, without training."""
    for number, rate in enumerate((0.1, 0.7, 0.3, 0.5)):
        folder = module.folder_of(population.folder, number)
        run = replace(BASE, run_dir=folder, max_steps=1000)
        Stub().finish(run, number, number)
        population.note(number, reached(rate))


def origin(folder):
    """Whose weights a member has."""
    return int(checkpoint.load(folder, torch.device("cpu"))["model"]["origin"])


def events(folder):
    return [
        json.loads(line)
        for line in (folder / "population.jsonl").read_text().split("\n")[:-1]
    ]


# Scores and settings


def test_before_any_clears_the_distance_counts():
    ranked = [
        {"error": "the loss is nan"},
        {},
        reached(0.0, 700.0),
        reached(0.0, 900.0),
        reached(0.01, 300.0),
        reached(0.01, 400.0),
        reached(0.02, 0.0),
    ]
    scores = [module.score(metrics) for metrics in ranked]
    assert scores == sorted(set(scores))
    assert scores[0] == (-1, 0)


def test_settings_are_drawn_by_the_seed(config):
    table = load(config.mutations, "--mutations", "it")
    values = {"lr": 1e-3, "lam": 0.9, "epochs": 2}
    drawn = [mutations.explore(table, values, random.Random(3)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    first, second = (Population(replace(config, name=n), BASE) for n in "ab")
    assert first.state == second.state


def test_member_0_begins_with_the_settings_of_the_base(config):
    base = replace(BASE, learner=replace(BASE.learner, lr=5e-4, lam=0.5))
    members = Population(config, base).state["members"]
    values = members[0]["values"]
    assert values["lr"] == 5e-4
    assert values["epochs"] == base.learner.epochs
    assert values["lam"] != 0.5, "outside of its range"
    assert len({member["values"]["lr"] for member in members}) == 4


# The state on disk, and lines


def test_every_step_is_a_line_and_an_event(config, capsys):
    population = Population(config, BASE)
    train_all(population)
    old = dict(population.state["members"][1]["values"])
    capsys.readouterr()
    population.begin_generation()
    exploit, begins = capsys.readouterr().out.splitlines()
    assert exploit.startswith(
        "generation 0: member 0 (clear 10 %, x 700) takes the weights of member 1 "
        "(clear 70 %, x 700); "
    )
    assert begins == ("generation 1: begins; the best was member 1 (clear 70 %, x 700)")
    assert [origin(population.folder / f"member-{i}") for i in range(4)] == [1, 1, 2, 3]
    values = population.state["members"][0]["values"]
    assert population.state["members"][1]["values"] == old != values
    assert all(v in population.mutations[k] for k, v in values.items())
    *trained, exploit, begins = events(population.folder)
    assert [event["score"] for event in trained] == [
        [r, 700] for r in (0.1, 0.7, 0.3, 0.5)
    ]
    assert trained[2]["values"] == population.state["members"][2]["values"]
    assert exploit == {"generation": 0, "member": 0, "source": 1, "values": values}
    assert begins == {"generation": 1, "best": 1}
    assert population.result() == (
        f"best: {config.out}/population/member-1 (clear 70 %, x 700)"
    )


def test_an_exploit_that_was_not_finished_is_repeated(config, monkeypatch):
    """The process ends when the weights are there and the state is not."""
    population = Population(config, BASE)
    train_all(population)

    def end(path, content):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_json", end)
        with pytest.raises(KeyboardInterrupt):
            population.begin_generation()
    again = Population(config, BASE)
    assert again.state["generation"] == 0
    again.begin_generation()
    assert again.state == population.state
    assert origin(population.folder / "member-0") == 1


def test_a_population_continues_only_as_it_was_begun(config):
    train_all(Population(config, BASE))
    Population(replace(config, generations=9, jobs=2), BASE)
    with pytest.raises(ValueError, match="another members"):
        Population(replace(config, members=5), BASE)
    with pytest.raises(ValueError, match="another trainer flags"):
        Population(config, replace(BASE, seed=6))


def test_when_all_fail_it_is_an_error(config):
    population = Population(config, BASE)
    for number in range(4):
        population.note(number, {"error": f"no such thing as {number}"})
    message = r"all members failed; member 0: no such thing as 0"
    for end in (population.begin_generation, population.result):
        with pytest.raises(RuntimeError, match=message):
            end()


def test_a_process_that_is_killed_again_and_again_is_an_error(
    config, pbt, capsys, monkeypatch
):
    def killed(task):
        raise pbt.RayError

    task = SimpleNamespace(remote=lambda *arguments: object())
    fake = SimpleNamespace(
        remote=lambda **resources: lambda function: task,
        wait=lambda tasks: (tasks[-1:], tasks[:-1]),
        get=killed,
    )
    monkeypatch.setattr(pbt, "ray", fake)
    with pytest.raises(RuntimeError, match="member 3: its process was killed, 4 times"):
        pbt._train_generation(Population(config, BASE), None, {"num_cpus": 1})
    line = "generation 0: member 3: its process was killed; it starts again\n"
    assert capsys.readouterr().out == line * pbt.MOST_CRASHES


# What a member runs


@pytest.fixture
def population(config):
    return Population(config, BASE)


VALUES = {"lr": 2e-3, "lam": 0.85, "epochs": 3}
STUB = Stub()


def train(population, number, values=VALUES, stub=STUB):
    return module.train_member(population.run_of(number), values, stub)


def test_what_a_member_runs(population):
    seen = []

    def stub(config, display):
        seen.append(config)
        return Stub()(config, display)

    for generation, number in itertools.product(range(2), range(3)):
        population.state["generation"] = generation
        train(population, number, stub=stub)
        run = seen[-1]
        assert run.seed == 5 + number
        assert run.run_dir == population.folder / f"member-{number}"
        assert run.max_steps == 1000 * (generation + 1)
        assert (run.resume is None) == (generation == 0)
        assert run.learner.lr == 2e-3
        assert not run.stop_when_solved
        run.validate()


def test_a_run_that_was_not_reported_is_not_trained_again(population):
    first = train(population, 1)
    again = train(population, 1)
    assert module.score(first) == module.score(again) > (0, 0)
    assert len((population.folder / "calls.jsonl").read_text().splitlines()) == 1


def test_settings_that_fail_are_a_result(population):
    failing = Stub(fails=("2-0",))
    assert train(population, 2, stub=failing)["error"] == "the loss is nan"
    # Each is allowed without the other.
    metrics = train(population, 2, {"unroll": 8, "burn_in": 16})
    assert "burn_in must be at most unroll=8" in metrics["error"]
    assert metrics["signal"] == 0


def test_two_processes_do_not_train_one_member(population, monkeypatch):
    monkeypatch.setattr(module, "_TAKEN_S", 0.3)
    (population.folder / "member-1").mkdir()
    lock = take(population.folder / "member-1")
    with pytest.raises(OSError, match="another process writes to"):
        train(population, 1)
    lock.release()
    assert "error" not in train(population, 1)


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


# Errors, a line each


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": 1}, "members must be at least 2, got 1"),
        ({"generations": 0}, "generations must be at least 1"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"steps_per_generation": 0}, "steps_per_generation must be at least 1"),
        ({"gpus_per_member": -1.0}, "gpus_per_member must be at least 0"),
        ({"out": Path("s3://bucket/x")}, "--out is a folder that all machines share"),
    ],
)
def test_wrong_options_are_named(config, options, message):
    with pytest.raises(ValueError, match=message):
        replace(config, **options).validate()


@pytest.mark.parametrize(
    "text",
    [
        "{'memory_size': [8, 9]}",
        "{'env.frame_skip': [2, 3, 4]}",
        "{'optimizer': ['adam', 'muon']}",
    ],
)
def test_settings_that_do_not_fit_the_weights_are_refused(config, text):
    path = Path(config.mutations.rpartition(":")[0])
    path.write_text(f"MUTATIONS = {text}")
    with pytest.raises(ValueError, match=r"--mutations: .*cannot change when weights"):
        Population(config, BASE)


def test_without_ray_there_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.delitem(sys.modules, "trainer.tuning.pbt", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["--out", str(tmp_path), "--", "--device", "cpu"]) == 2
    assert capsys.readouterr() == (
        "",
        "error: trainer.population needs Ray: pip install 'mario-envpool[ray]'\n",
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--members", "1"], "members must be at least 2, got 1"),
        (["--", "--max-steps", "9"], "give --generations and --steps-per-generation"),
        (["--", "--run-dir", "x"], "--run-dir cannot"),
        (["--ray-address", "nonsense"], "--ray-address is auto or HOST:PORT, got"),
        (["--ray-address", "ray://x:1"], "--ray-address is auto or HOST:PORT, got"),
        (["--ray-address", "x:99999"], "--ray-address is auto or HOST:PORT, got"),
        (
            ["--ray-address", "nowhere.invalid:6379"],
            "no Ray cluster at nowhere.invalid",
        ),
    ],
)
def test_wrong_flags_are_one_line(pbt, tmp_path, capsys, flags, message):
    own = ["--out", str(tmp_path / "out")]
    behind = [] if "--" in flags else ["--", "--device", "cpu"]
    assert main([*own, *flags, *behind]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_where_nothing_listens_there_is_one_line(pbt, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    flags = ["--out", str(tmp_path), "--ray-address", address, "--", "--device", "cpu"]
    assert main(flags) == 2
    error = f"error: --ray-address: no Ray cluster at {address} (Connection refused)\n"
    assert capsys.readouterr().err == error


def test_a_server_that_is_not_ray_is_one_line(pbt, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pbt, "_ANSWER_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert main(["--out", str(tmp_path), "--ray-address", address]) == 2
    error = (
        f"error: --ray-address: no Ray cluster at {address} (no answer within 1 s)\n"
    )
    assert capsys.readouterr().err == error


def test_two_commands_do_not_train_one_population(pbt, config):
    config.out.joinpath("population").mkdir(parents=True)
    lock = take(config.out / "population")
    with pytest.raises(ValueError, match=r"another process is writing to .*--name"):
        pbt.evolve(config, BASE)
    lock.release()


# With Ray


ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(TESTS),
    # Of the clusters that the tests start.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "of-the-tests-of-trainer-population",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's 15 would let members wait for the other tests.
    "RAY_worker_niceness": "0",
}


class Command:
    """`python -m trainer.population` whose runs are a stub's."""

    def __init__(self, config, **stub):
        self.folder = config.out / config.name
        flags = {
            "members": config.members,
            "generations": config.generations,
            "steps-per-generation": config.steps_per_generation,
            "jobs": config.jobs,
            "mutations": config.mutations,
            "name": config.name,
            "out": config.out,
            "ray-address": config.ray_address,
        }
        words = [f"--{name}={value}" for name, value in flags.items() if value]
        python = [sys.executable, "-m", "stub_members", json.dumps(stub)]
        self.words = [*python, *words, "--", "--device", "cpu", "--seed", "5"]

    def start(self):
        return subprocess.Popen(
            self.words,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, status=0):
        with self.start() as process:
            out, err = process.communicate()
        assert process.returncode == status, err
        return SimpleNamespace(out=out, err=err)

    def calls(self):
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def exploits(self):
        return [event for event in events(self.folder) if "source" in event]

    def origins(self):
        """Whose weights the members have at the end."""
        return [origin(folder) for folder in sorted(self.folder.glob("member-*"))]

    def wait_for(self, process, name):
        """Waits until a member hangs, and returns the id of its process."""
        mark = self.folder / f"hangs-{name}"
        while not mark.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        return int(mark.read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A population that nothing interrupted."""
    pytest.importorskip("ray")
    result = Command(config_in(tmp_path_factory.mktemp("whole")))
    result.printed = result.run()
    return result


def same(one, other):
    """Whether two populations have the same weights, settings and exploit steps."""
    by_name = [
        {call["name"]: call for call in command.calls()} for command in (one, other)
    ]
    return (
        by_name[0] == by_name[1]
        and one.exploits() == other.exploits()
        and one.origins() == other.origins()
    )


@pytest.mark.slow
def test_the_worst_take_the_weights_of_the_best(config, whole):
    out = whole.printed.out
    assert whole.printed.err == ""
    assert [
        line for line in out.splitlines() if not line.startswith("generation ")
    ] == [f"best: {whole.folder}/member-1 (clear 70 %, x 700)"]
    assert out.count("takes the weights of member 1 (clear 70 %, x 700)") == 2
    assert whole.origins() == [1, 1, 2, 3]
    steps = [(e["generation"], e["member"], e["source"]) for e in whole.exploits()]
    assert steps == [(0, 0, 1), (1, 0, 1)]
    calls = {call["name"]: call for call in whole.calls()}
    assert len(calls) == len(whole.calls()) == 12
    assert [calls[f"0-{g}"]["origin"] for g in range(3)] == [0, 1, 1]
    # Only a member that takes weights changes its settings.
    values = [{calls[f"{i}-{g}"]["lam"] for g in range(3)} for i in range(4)]
    assert [len(some) for some in values] == [3, 1, 1, 1]
    assert [calls[f"{i}-0"]["seed"] for i in range(4)] == [5, 6, 7, 8]


def interrupt(number, name, config):
    """Sends a signal to a command while one of its members hangs."""
    cut = Command(config, hangs=[name])
    with cut.start() as process:
        cut.wait_for(process, name)
        process.send_signal(number)
        _, err = process.communicate()
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number, err
        assert err == "interrupted; the same command resumes the population\n"


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_an_interrupted_population_continues(config, whole):
    interrupt(signal.SIGINT, "2-0", config)
    interrupt(signal.SIGUSR1, "0-1", config)
    cut = Command(config)
    cut.run()
    assert same(cut, whole)
    # All but what hung are trained once.
    assert len(cut.calls()) == 12 + 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_more_generations_two_at_a_time_after_a_kill(config, whole):
    interrupt(signal.SIGKILL, "0-1", replace(config, generations=2))
    cut = Command(replace(config, jobs=2))
    cut.run()
    assert same(cut, whole)
    assert len(cut.calls()) == 12 + 1


@pytest.fixture
def two_nodes():
    """The address of a Ray cluster of two nodes with one CPU each."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    common = ["--node-ip-address=127.0.0.1", "--num-cpus=1"]
    port = address.rpartition(":")[2]
    head = ["--head", f"--port={port}", "--include-dashboard=false"]
    nodes = []
    try:
        for own in (head, [f"--address={address}"]):
            nodes.append(
                subprocess.Popen(
                    [*ray, *common, *own],
                    env=ENVIRONMENT,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            status = [*ray[:-2], "status", f"--address={address}"]
            expected = len(nodes)
            while True:
                done = subprocess.run(
                    status, env=ENVIRONMENT, capture_output=True, text=True, check=False
                )
                if done.stdout.count(" node_") == expected:
                    break
                assert nodes[-1].poll() is None
        yield address
    finally:
        for node in reversed(nodes):
            node.terminate()
            node.wait()


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_two_nodes_and_a_worker_that_is_killed(config, whole, two_nodes):
    config = replace(config, ray_address=two_nodes)
    shared = Command(config, hangs=["0-1"])
    with shared.start() as process:
        os.kill(shared.wait_for(process, "0-1"), signal.SIGKILL)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "generation 1: member 0: its process was killed; it starts again\n" in out
    assert err == ""
    assert same(shared, whole)
    assert len(shared.calls()) == 13
    lost = Command(replace(config, name="gpus"))
    lost.words.insert(4, "--gpus-per-member=1")
    err = lost.run(status=2).err
    assert err == "error: --gpus-per-member 1: no machine has more than 0\n"
    # Settings that fail take the weights of another.
    two = replace(config, name="failing", generations=2)
    failing = Command(two, fails=["2-0", "3-0"])
    out = failing.run().out
    assert "generation 0: member 3: failed: the loss is nan; --lr" in out
    assert "member 2 (failed: the loss is nan) takes the weights of member 1" in out
    # One exploits; the other tries again, with nothing to begin from.
    assert failing.origins() == [0, 1, 1, 3]
    once = replace(config, name="none", generations=1)
    none = Command(once, fails=[f"{i}-0" for i in range(4)])
    err = none.run(status=2).err
    assert err == "error: all members failed; member 0: the loss is nan\n"


@pytest.mark.slow
@pytest.mark.rom
def test_a_population_on_the_game(config, pbt):
    words = Command(replace(config, generations=2, jobs=2)).words
    flags = ["--num-envs", "8", "--unrolls-per-batch", "8", "--learner-threads", "1"]
    words = [sys.executable, "-m", "trainer.population", *words[4:], *flags]
    done = subprocess.run(
        words, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "generation 1: member 3: clear" in done.stdout
    assert done.stdout.count("takes the weights of member") == 1
    for member in range(4):
        folder = config.out / "population" / f"member-{member}"
        state = checkpoint.load(folder, torch.device("cpu"))
        assert 2000 <= state["steps"] < 2512
