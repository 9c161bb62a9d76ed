"""Signals that end a command: which, how often, and that no file is cut."""

import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from small_runs import CPU, change, make_config

from trainer.cli import main_of
from trainer.machine import process, ranks
from trainer.machine.files import Lines, write_json, write_text
from trainer.models import checkpoint
from trainer.run import main
from trainer.session import resume, training
from trainer.session.files import Checkpoints
from trainer.session.training import run_training
from trainer.tuning.study import Objective

ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]
RUN = [sys.executable, "-m", "trainer.run", "--device", "cpu", "--no-videos"]


@pytest.fixture(autouse=True)
def pytest_survives():
    """Keeps a signal that nothing handles from ending pytest."""
    old = {number: signal.signal(number, lambda *_: None) for number in ENDING[1:]}
    yield
    for number, handler in old.items():
        signal.signal(number, handler)


@dataclass(frozen=True)
class NoOptions:
    """Has no options."""


@pytest.mark.parametrize("number", ENDING)
def test_every_command_ends_by_the_same_signals(number, capsys):
    def work(options):
        signal.raise_signal(number)
        time.sleep(60.0)  # it does not come to this

    status = main_of(NoOptions, work, "name", "", [], interrupted="continue with ...")
    assert status == 128 + number
    assert capsys.readouterr().err == "continue with ...\n"


def test_an_exception_of_a_library_does_not_hide_the_signal():
    def library():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None

    with pytest.raises(process.Interrupted) as caught, process.raise_on_signal():
        library()
    assert caught.value.signal == signal.SIGTERM


def test_a_trial_keeps_the_number_of_its_signal():
    def train(config, display):
        return {"signal": float(signal.SIGHUP)}

    class Trial:
        number = 0

    class Search:
        seeds, jobs, folder = 1, 1, Path()
        max_steps, minimise = 100, True

    objective = Objective(Search(), make_config(Path()), dict, train)
    with pytest.raises(process.Interrupted) as caught:
        objective._run(Trial(), make_config(Path()), 0)
    assert caught.value.signal == signal.SIGHUP


@pytest.mark.parametrize("number", ENDING)
def test_nohup_is_kept(number):
    old = signal.signal(number, signal.SIG_IGN)
    try:
        with training.stop_on_signal(print) as stopping, process.raise_on_signal():
            if number == signal.SIGHUP:
                signal.raise_signal(number)
                assert signal.getsignal(number) is signal.SIG_IGN
            else:
                assert signal.getsignal(number) is not signal.SIG_IGN
        assert not stopping.signal
    finally:
        signal.signal(number, old)


def test_a_request_that_comes_twice_at_once_is_one(monkeypatch):
    """As from a closed terminal, or from Slurm and from torchrun."""
    with training.stop_on_signal(lambda text: None) as stopping:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
    assert stopping.signal == signal.SIGHUP
    monkeypatch.setattr(process, "_SAME_REQUEST_S", 0.0)
    with training.stop_on_signal(lambda text: None) as stopping:
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_a_request_that_another_rank_told_of_first_is_one(monkeypatch):
    monkeypatch.setattr(process, "_SAME_REQUEST_S", 0.0)
    with training.stop_on_signal(lambda text: None) as stopping:
        stopping.signal = int(signal.SIGTERM)  # as by a decision of rank 0
        signal.raise_signal(signal.SIGUSR1)
        assert stopping.signal == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("ending", [False, True])
def test_the_end_of_torchrun_ends_only_ranks_that_are_not_ending(ending):
    received = []
    alone = ranks.Ranks()
    alone.ending = ending
    with process.on_signal(received.append):
        ranks._follow(alone, os.getpid())  # which is not this process's parent
    assert received == ([] if ending else [signal.SIGTERM])


# -- files ---------------------------------------------------------------------


def write_again_and_again(folder, lines, times):
    """Writes files of each kind until a signal comes."""
    for number in range(times):
        weights = torch.full((50_000,), float(number))
        checkpoint.save(folder / "step-1.pt", {"model": {"w": weights}})
        write_json(folder / "config.json", {"numbers": [number] * 5_000})
        write_text(folder / "README.md", f"{number}\n" * 5_000)
        lines.write({"step": number, "numbers": [number] * 1_000})


# A signal right after the opening of a file leaves it to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_a_signal_while_a_file_is_being_written_cannot_cut_it(tmp_path):
    rng, lines = random.Random(3), Lines(tmp_path / "lines.jsonl", print)
    write_again_and_again(tmp_path, lines, 1)
    for number in range(50):
        delay = rng.uniform(0.05, 0.15)
        which = ENDING[number % len(ENDING)]
        timer = threading.Timer(delay, os.kill, (os.getpid(), which))
        timer.start()
        with pytest.raises(process.Interrupted), process.raise_on_signal():
            write_again_and_again(tmp_path, lines, 10**9)
        timer.join()
        weights = checkpoint.load(tmp_path / "step-1.pt", CPU)["model"]["w"]
        assert len(set(weights.tolist())) == 1
        for name in ("config.json", "README.md"):
            content = re.findall(r"\d+", (tmp_path / name).read_text())
            assert (len(content), len(set(content))) == (5_000, 1)
        assert (tmp_path / "lines.jsonl").read_bytes().endswith(b"]}\n")
        assert not list(tmp_path.glob("*.tmp"))
    lines.close()


def test_every_file_is_written_whole():
    """All of them by machine/files.py, but for what is appended to."""
    cuts = re.compile(
        r"\.write_text\(|\.write_bytes\(|copyfile\(|savefig\(path|[^.]torch\.save\((?!state)|"
        r'open\("wb?"'
    )
    exempt = {
        "machine/files.py",
        "film/draw.py",  # the log of ffmpeg, in a temporary folder
    }
    folder = Path(process.__file__).parents[1]
    for path in folder.rglob("*.py"):
        if str(path.relative_to(folder)) not in exempt:
            found = [row for row in path.read_text().splitlines() if cuts.search(row)]
            assert not found, path


# -- the first checkpoint ------------------------------------------------------


@pytest.fixture
def saved(monkeypatch):
    """The steps of the checkpoints of the run so far."""
    steps, save = [], Checkpoints.save

    def noted(self, state, step):
        steps.append(step)
        return save(self, state, step)

    monkeypatch.setattr(Checkpoints, "save", noted)
    # The first best.pt comes with a checkpoint.
    monkeypatch.setattr(resume.Saver, "improved", lambda self: False)
    return steps


def test_the_first_checkpoint_is_due_after_the_first_update(
    tmp_path, pools, monkeypatch, saved
):
    assert resume._FIRST_S == 5.0
    monkeypatch.setattr(resume, "_FIRST_S", 0.0)
    config = make_config(tmp_path, checkpoint_seconds=1e9)
    end = run_training(config)["steps"]
    assert saved == [saved[0], end]
    assert 0 < saved[0] <= 6 * 9  # one update
    # A resumed run has one.
    saved.clear()
    more = make_config(tmp_path, checkpoint_seconds=1e9, max_steps=900)
    end = run_training(change(more, resume=config.run_dir))["steps"]
    assert saved == [end]


def test_and_not_before_five_seconds(tmp_path, pools, monkeypatch, saved):
    monkeypatch.setattr(resume, "_FIRST_S", 1e9)  # not reached, as by a short run
    end = run_training(make_config(tmp_path, checkpoint_seconds=1e9))["steps"]
    assert saved == [end]


@pytest.mark.rom
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_kill_9_a_second_after_the_first_checkpoint(tmp_path):
    # A first clear would come with a checkpoint; this level is not cleared so soon.
    run = [*RUN, "--task", "SuperMarioBros-8-1-v0", "--max-steps", "10000000"]
    run += ["--no-stop-when-solved", "--run-dir", "run"]
    began = time.monotonic()
    with subprocess.Popen(run, cwd=tmp_path, stdout=subprocess.DEVNULL) as started:
        while not list(tmp_path.glob("run/checkpoints/step-*.pt")):
            assert started.poll() is None
            assert time.monotonic() - began < 50, "no checkpoint; the period is 60 s"
            time.sleep(0.05)
        time.sleep(1.0)
        started.kill()
    steps = checkpoint.load(tmp_path / "run", CPU)["steps"]
    assert steps > 0
    again = [*RUN[:3], "--resume", "run", "--max-steps", str(steps + 4_000)]
    done = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"at {steps:,} steps" in done.stdout
    assert "new episodes" not in done.stdout


# -- processes -----------------------------------------------------------------


@pytest.mark.rom
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_closed_terminal_ends_a_run_with_a_checkpoint(tmp_path):
    """Also where the dashboard can no longer draw."""
    child, terminal = pty.fork()
    if not child:
        os.environ["TERM"] = "xterm"
        os.chdir(tmp_path)
        run = [*RUN, "--max-steps", "10000000", "--no-stop-when-solved"]
        os.execv(sys.executable, [*run, "--run-dir", "run"])
    metrics = tmp_path / "run/metrics.jsonl"
    while not (metrics.exists() and metrics.read_text()):
        if select.select([terminal], [], [], 0.2)[0]:
            os.read(terminal, 65536)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert checkpoint.load(tmp_path / "run", CPU)["collecting"] is not None
    assert (
        "SIGHUP: ending after this update"
        in (tmp_path / "run/messages.txt").read_text()
    )


@pytest.mark.slow
def test_who_names_one_limit_means_that_one(tmp_path, pools):
    """`--max-seconds` alone is not cut short by the default of a million steps."""
    from trainer.cli import parse

    assert parse([]).max_steps == 1_000_000
    config = parse(["--max-steps", "7"])
    assert (config.max_steps, config.max_seconds) == (7, 0)
    assert parse(["--max-seconds=480"]).max_steps == 0
    assert parse(["--max-seconds", "0"]).max_steps == 1_000_000
    assert parse(["--max-seconds", "9", "--max-steps", "7"]).max_steps == 7
    assert parse(["--preset", "gpu-impala", "--max-seconds", "9"]).max_steps == 0
    options = "--device cpu --num-envs 6 --unroll 8 --unrolls-per-batch 6 --no-videos "
    options += f"--no-stop-when-solved --log-seconds 0 --run-dir {tmp_path / 'run'}"
    assert main([*options.split(), "--max-seconds", "1"]) == 0
    state = checkpoint.load(tmp_path / "run", CPU)
    assert state["progress"]["ended"] == "max_seconds reached"
    # A resumed run keeps its options.
    assert parse(["--resume", str(tmp_path / "run")]).max_steps == 0
    resumed = ["--resume", str(tmp_path / "run"), "--max-steps", "9000000"]
    assert parse([*resumed, "--max-seconds", "5"]).max_steps == 9_000_000
