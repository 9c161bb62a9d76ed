"""Campaigns: who gets the time, what is kept, going on. Most runs take no time here."""

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from rich.console import Console

from trainer.campaign import main
from trainer.config.schema import RunConfig
from trainer.evaluation.tables import campaign_table
from trainer.learn.optim import learning_rate_factor
from trainer.models import checkpoint
from trainer.report import main as report
from trainer.show.board import Board, Standing, grid
from trainer.tuning import campaign as module
from trainer.tuning import specialists
from trainer.tuning.campaign import Campaign, CampaignConfig, Level
from trainer.tuning.specialists import Slice, ending
from trainer.tuning.workers import Workers

LEVELS = ("1-1", "1-2", "1-3")


class Clock:
    """Instead of time.monotonic."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Inline:
    """Instead of processes: one job, whose tasks end when they are waited for."""

    def __init__(self, jobs, clock, trained):
        self._clock, self._trained, self._tasks = clock, trained, []

    @property
    def free(self):
        return 1 - len(self._tasks)

    @property
    def running(self):
        return [name for name, *_ in self._tasks]

    def submit(self, name, function, *arguments):
        self._tasks.append((name, function, arguments))

    def wait(self, seconds=None):
        tasks, self._tasks = self._tasks, []
        return [(name, self._do(name, *rest)) for name, *rest in tasks]

    def _do(self, name, function, arguments):
        if function is not specialists.train:
            return function(*arguments)
        (work,) = arguments
        self._clock.now += work.seconds
        return self._trained(name, work)

    def close(self):
        self._tasks = []


class Trainer:
    """Writes down slices; a level is solved after so many."""

    def __init__(self, clock, **solved):
        self.clock, self.solved, self.slices = clock, solved, []
        self.fail = {}

    def __call__(self, name, work):
        self.slices.append((name, work.seconds, work.last))
        count = sum(n == name for n, *_ in self.slices)
        if isinstance(error := self.fail.get(name), BaseException):
            return error
        seconds = sum(s for n, s, _ in self.slices if n == name)
        solved = count >= self.solved.get(name.replace("-", "_"), 1000)
        return {
            "steps": 1000.0 * count,
            "seconds": seconds,
            "solved": float(solved),
            "signal": 0.0,
            "rollout/clear_rate": 0.95 if solved else 0.2,
        }

    def names(self):
        return [name for name, *_ in self.slices]


@pytest.fixture
def clock(monkeypatch):
    result = Clock()
    monkeypatch.setattr(module.time, "monotonic", result)
    return result


def make(tmp_path, monkeypatch, trainer, **options):
    monkeypatch.setattr(
        module, "Workers", lambda jobs: Inline(jobs, trainer.clock, trainer)
    )
    config = CampaignConfig(
        **({"max_seconds": 600, "merge_share": 0, "jobs": 1} | options)
    )
    runs = dict.fromkeys(LEVELS, RunConfig())
    board = Board(live=False, console=Console(file=io.StringIO()))
    return Campaign(config, tmp_path, runs, lambda *_: RunConfig(), board)


def test_a_solved_level_leaves_its_time_to_the_others(tmp_path, monkeypatch, clock):
    trainer = Trainer(clock, **{"1_1": 1, "1_3": 2})
    campaign = make(tmp_path, monkeypatch, trainer)
    campaign.run()
    names = trainer.names()
    assert names[:3] == list(LEVELS)
    assert names.count("1-1") == 1
    assert names.count("1-3") == 2
    spent = {n: sum(s for m, s, _ in trainer.slices if m == n) for n in LEVELS}
    assert sum(spent.values()) == pytest.approx(600)
    assert spent["1-2"] == pytest.approx(600 - 60 - 120)
    # Schedules end with the time, once, where a level is not solved.
    assert [last for n, _, last in trainer.slices if n == "1-2"].count(True) == 1
    assert trainer.slices[-1][2]
    assert campaign.levels["1-1"].solved
    assert not campaign.levels["1-2"].solved


def test_without_solved_levels_all_get_the_same(tmp_path, monkeypatch, clock):
    trainer = Trainer(clock)
    make(tmp_path, monkeypatch, trainer, max_seconds=900).run()
    for name in LEVELS:
        own = [(s, last) for n, s, last in trainer.slices if n == name]
        assert sum(s for s, _ in own) == pytest.approx(300, rel=0.35)
        assert [last for _, last in own] == [False] * (len(own) - 1) + [True]
    assert clock.now == pytest.approx(900)


def test_a_level_that_fails_twice_is_left(tmp_path, monkeypatch, clock):
    trainer = Trainer(clock, **{"1_1": 1, "1_3": 1})
    trainer.fail["1-2"] = RuntimeError("the loss is nan")
    campaign = make(tmp_path, monkeypatch, trainer)
    campaign.run()
    assert trainer.names().count("1-2") == 2
    assert campaign.levels["1-2"].failures == 2


def test_where_nothing_trains_it_says_so(tmp_path, monkeypatch, clock):
    trainer = Trainer(clock)
    trainer.fail = dict.fromkeys(LEVELS, ValueError("no ROM"))
    with pytest.raises(RuntimeError, match="no level could be trained"):
        make(tmp_path, monkeypatch, trainer).run()


def test_an_interrupted_campaign_goes_on_where_it_was(tmp_path, monkeypatch, clock):
    trainer = Trainer(clock, **{"1_1": 1})
    campaign = make(tmp_path, monkeypatch, trainer)

    class InterruptedTestError(Exception):
        pass

    calls = []

    def show(*_):
        calls.append(clock.now)
        if clock.now >= 180:
            raise InterruptedTestError

    monkeypatch.setattr(campaign, "_show", show)
    with pytest.raises(InterruptedTestError):
        campaign.run()
    before = list(trainer.slices)
    assert len(before) == 3
    clock.now += 10_000  # nobody trained meanwhile
    again = make(tmp_path, monkeypatch, trainer)
    assert again.elapsed() == pytest.approx(180)
    again.run()
    assert trainer.names().count("1-1") == 1
    assert sum(s for _, s, _ in trainer.slices) == pytest.approx(600)


def test_the_last_slice_ends_the_schedules():
    before = RunConfig()
    after = ending(before, 1_000_000, 200_000).learner
    assert (after.entropy, after.entropy_end) == (0.0, 0.0)

    def rates(learner, step):
        factor = learning_rate_factor(learner, step, 1000)
        return factor * learner.lr, factor * learner.optimizer.matrix_lr

    # From where they are to nothing.
    assert rates(after, 1_000_000) == pytest.approx(rates(before.learner, 1_000_000))
    assert rates(after, 1_100_000) == pytest.approx(
        [rate / 2 for rate in rates(before.learner, 1_000_000)]
    )
    assert rates(after, 1_200_000) == pytest.approx((0.0, 0.0))


def test_a_slice_goes_on_from_the_last_one(tmp_path, monkeypatch):
    seen = []

    def run(config, display):
        seen.append(config)
        return {"steps": 4000.0, "seconds": 50.0, "solved": 0.0, "signal": 0.0}

    monkeypatch.setattr(specialists, "run_training", run)
    config = replace(RunConfig(), run_dir=tmp_path)
    specialists.train(Slice(config, 40.0, False))
    folder = tmp_path / checkpoint.FOLDER
    folder.mkdir()
    state = {"steps": 4000, "progress": {"seconds": 50.0}}
    checkpoint.save(folder / "step-000004000.pt", state)
    specialists.train(Slice(config, 40.0, False))
    specialists.train(Slice(config, 25.0, True))
    assert [c.max_seconds for c in seen] == [40.0, 90.0, 75.0]
    assert [c.resume and c.resume.name for c in seen][:2] == [None, "step-000004000.pt"]
    assert seen[1].learner == config.learner
    # 80 steps a second for 25 seconds.
    assert seen[2].learner.lr_steps == 4000 + 2000


def test_the_best_checkpoint_is_chosen(tmp_path, monkeypatch):
    folder = tmp_path / checkpoint.FOLDER
    folder.mkdir()
    rates = {"step-000000001.pt": 0.4, "step-000000002.pt": 0.6, "best.pt": 0.6}
    for name in rates:
        (folder / name).touch()

    class Played:
        def __init__(self, rate):
            self.levels = [self]
            self.clear_rate = rate

    written = []
    monkeypatch.setattr(
        specialists, "save_policy", lambda *paths: written.append(paths)
    )
    monkeypatch.setattr(
        specialists, "evaluate_checkpoint", lambda path, **_: Played(rates[path.name])
    )
    to = tmp_path / "1-1.safetensors"
    found = specialists.choose(tmp_path, to, "1-1", 50, 1)
    assert found == {"clear_rate": 0.6, "checkpoint": "step-000000002.pt"}
    assert written == [(folder / "step-000000002.pt", to)]
    with pytest.raises(FileNotFoundError, match="no checkpoint of 1-2"):
        specialists.choose(tmp_path / "other", to, "1-2", 50, 1)


def result(level, rate, starts, argmax):
    return {
        "level": level,
        "argmax": argmax,
        "clear_rate": rate,
        "interval": (0.1, 0.9),
        "clears": len(starts),
        "episodes": 31,
        "cleared_starts": starts if argmax else None,
    }


def test_the_table_counts_what_others_count():
    single = [
        result("1-1", 1.0, [], False), result("1-1", 0.0, [0, 4], True),
        result("1-2", 0.5, [], False), result("1-2", 0.0, [3], True),
    ]  # fmt: skip
    console = Console(width=80, file=io.StringIO())
    with console.capture() as capture:
        console.print(campaign_table("mine", single))
    lines = [line.split() for line in capture.get().splitlines() if line.strip()]
    assert lines[0] == ["mine"]
    assert lines[3] == ["1-1", "100.0", "%", "10-90", "2/31", "cleared"]
    assert lines[4] == ["1-2", "50.0", "%", "10-90", "1/31", "-"]
    # Without idle frames one of two.
    assert lines[-1] == ["all", "75.0", "%", "1", "at", "90+", "3/62", "1/2"]
    assert max(map(len, capture.get().splitlines())) <= 80


def test_the_report_has_both_tables(tmp_path, capsys):
    full = {
        "repeat_action_probability": 0.0, "return_mean": 1.0, "best_x_median": 10.0,
        "steps_to_clear_median": None, "deaths": [], "stalled": 0, "timed_out": 0,
    }  # fmt: skip
    single = [
        result("1-1", 1.0, [], False) | full, result("1-1", 0.0, [0, 4], True) | full,
        result("2-2", 0.4, [], False) | full, result("2-2", 0.0, [3], True) | full,
    ]  # fmt: skip
    levels = {"1-1": vars(Level(50.0, 4000, 0.9, solved=True)), "2-2": vars(Level())}
    state = {"phase": "evaluation", "seconds": 600.0, "levels": levels}
    for name, content in (
        ("campaign.json", {}),
        ("state.json", state),
        ("table.json", {"single": single, "one": []}),
    ):
        (tmp_path / name).write_text(json.dumps(content))
    assert report([str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "2 levels in 10:00" in page
    assert "<b>70%</b><span>cleared by a policy for each level" in page
    assert "1 of 2 levels at 90 % or more" in page
    assert "Not there: one network for all levels, curves of the one network" in page
    assert report([str(tmp_path), str(tmp_path)]) == 2
    (tmp_path / "table.json").write_text("{")
    assert report([str(tmp_path)]) == 2
    assert "table.json is damaged" in capsys.readouterr().err


def test_the_board_has_a_column_for_each_world():
    levels = {
        "1-1": Standing(0.96, solved=True),
        "1-2": Standing(0.31, training=True),
        "2-1": Standing(),
    }
    first, one, two = grid(levels).plain.splitlines()
    assert first.split() == ["1", "2"]
    assert one.split() == ["-1", "96✓", "·"]
    assert two.split() == ["-2", "31▸"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--levels 9-1", "there is no level '9-1'"),
        ("--max-seconds 0", "max_seconds must be a number of seconds from 1"),
        ("--merge-share 1", "merge_share must be 0 to .9, got 1"),
        ("--jobs -1", "jobs must be at least 0"),
        ("--resume nowhere", "no folder of a campaign"),
        ("--levels 1-1 -- --lr 0", "lr must be above 0"),
        ("--levels 1-1 -- --seed 3", "give it before --"),
        ("--merge-flags='--lr 0'", "lr must be above 0"),
    ],
)
def test_bad_options_are_one_line(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(flags)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def _sleep(seconds):
    time.sleep(seconds)
    return os.getpid()


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_dead_process_costs_one_task():
    workers = Workers(1)
    try:
        workers.submit("a", _die)
        ((name, error),) = workers.wait()
        assert name == "a"
        assert isinstance(error, BaseException)
        workers.submit("b", _sleep, 0)
        ((name, pid),) = workers.wait()
        assert (name, pid > 0) == ("b", True)
    finally:
        workers.close()


def test_processes_end_with_their_parent(tmp_path):
    """Killed with -9, so that it can do nothing about it."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "from trainer.tuning.workers import Workers\n"
        "def work(path):\n"
        "    open(path, 'w').write(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    workers = Workers(1)\n"
        "    workers.submit('a', work, sys.argv[1])\n"
        "    while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():\n"
        "        time.sleep(0.05)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "pid"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, str(script), str(path)], env=environment, timeout=60
    )
    pid = int(path.read_text())
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the worker outlived its parent")


@pytest.mark.rom
def test_a_small_campaign(tmp_path, capsys):
    folder = tmp_path / "campaign"
    flags = (
        f"--levels 1-1,1-2 --max-seconds 24 --slice-seconds 5 --episodes 2 --jobs 2 "
        f"--run-dir {folder} --merge-share 0.4"
    )
    assert main(flags.split()) == 0
    assert "all" in capsys.readouterr().out
    state = json.loads((folder / "state.json").read_text())
    assert state["phase"] == "evaluation"
    table = json.loads((folder / "table.json").read_text())
    assert [r["level"] for r in table["single"]] == ["1-1", "1-1", "1-2", "1-2"]
    assert [r["level"] for r in table["one"]] == ["1-1", "1-2", "1-1", "1-2"]
    assert (folder / "report.html").exists()
    for name in ("1-1", "1-2", "one"):
        assert (folder / "policies" / f"{name}.safetensors").exists()
    # Nothing is left to do but the evaluation.
    assert main(["--resume", str(folder)]) == 0
    assert main(["--run-dir", str(folder)]) == 2
    assert "go on with it" in capsys.readouterr().err
