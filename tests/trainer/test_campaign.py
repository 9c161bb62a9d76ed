"""Campaigns: who gets the time, what is kept, going on. Most runs take no time here."""

import io
import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, replace
from typing import NamedTuple

import psutil
import pytest
from filelock import FileLock
from learners import change
from rich.console import Console

from trainer import campaign as program
from trainer.campaign import _missing, main
from trainer.config.learning import linear
from trainer.config.network import GRU
from trainer.config.plain import to_dict
from trainer.config.schema import RunConfig
from trainer.evaluation.tables import campaign_table
from trainer.learn.optim import learning_rate_factor
from trainer.models import checkpoint
from trainer.report import main as report
from trainer.show import campaign as pages
from trainer.show.campaign import Attempt, Board, Level, grid
from trainer.tuning import campaign as module
from trainer.tuning import one_network, progress, specialists
from trainer.tuning.campaign import Campaign
from trainer.tuning.campaign_config import CampaignConfig
from trainer.tuning.specialists import Slice, ending
from trainer.tuning.workers import Failed, Workers

LEVELS = ("1-1", "1-2", "1-3")


class Clock:
    """Instead of time.monotonic."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Inline:
    """Instead of processes: one job, whose tasks end when they are waited for."""

    def __init__(self, trainer, folder):
        self._trainer, self._folder, self._tasks = trainer, folder, []

    @property
    def free(self):
        return 1 - len(self._tasks)

    @property
    def running(self):
        return [name for name, *_ in self._tasks]

    do = Workers.do

    def submit(self, name, function, *arguments):
        self._tasks.append((name, function.__name__, arguments))

    def wait(self, seconds=None):
        tasks, self._tasks = self._tasks, []
        return [(name, getattr(self, kind)(name, *rest)) for name, kind, rest in tasks]

    def stop(self):
        return [(name, {**r, "signal": 15.0}) for name, r in self.wait()]

    def close(self):
        self._tasks = []

    def train(self, name, work):
        self._trainer.clock.now += work.seconds
        return self._trainer(name, work)

    def choose(self, name, run_dir, to, *_):
        assert checkpoint.list_files(run_dir)
        to.touch()
        return {"clear_rate": 0.5, "checkpoint": "best.pt", "temperature": 1.0}

    def correct(self, name, path, levels, seconds, *_):
        self._trainer.corrected.append((name, levels, seconds))
        self._trainer.clock.now += seconds
        return {"before": 0.5, "now": 0.75}

    def evaluate(self, name, path, levels, *_):
        played = [name] if levels else LEVELS
        rows = [result(n, 0.5, [0], argmax) for n in played for argmax in (False, True)]
        return {"results": rows}


class Trainer:
    """Writes down slices; a level is solved after so many."""

    def __init__(self, clock, **solved):
        self.clock, self.solved, self.slices = clock, solved, []
        self.fail, self.corrected = {}, []

    def __call__(self, name, work):
        self.slices.append((name, work.seconds, work.last))
        if failed := self.fail.get(name):
            return failed
        folder = work.config.run_dir / checkpoint.FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "step-000001000.pt").touch()
        count = sum(n == name for n, *_ in self.slices)
        solved = count >= self.solved.get(name.replace("-", "_"), 1000)
        return {
            "steps": 1000.0 * count,
            "seconds": sum(s for n, s, _ in self.slices if n == name),
            "solved": float(solved),
            "signal": 0.0,
            "rollout/clear_rate": 0.95 if solved else 0.2,
        }

    def names(self):
        return [name for name, *_ in self.slices]


@pytest.fixture
def clock(monkeypatch):
    result = Clock()
    monkeypatch.setattr(time, "monotonic", result)
    return result


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes campaigns of three levels whose runs take no time."""

    def campaign(trainer, **options):
        monkeypatch.setattr(progress, "Workers", lambda jobs: Inline(trainer, tmp_path))
        given = {"max_seconds": 600, "merge_share": 0, "correct_share": 0, "jobs": 1}
        given["correct_one_share"] = 0
        given |= options
        board = Board(live=False, console=Console(file=io.StringIO()))
        runs = dict.fromkeys(LEVELS, given.pop("run", RunConfig()))
        return Campaign(
            CampaignConfig(**given), tmp_path, runs, lambda *_: RunConfig(), board
        )

    return campaign


def test_a_solved_level_leaves_its_time_to_the_others(make, clock):
    trainer = Trainer(clock, **{"1_1": 1, "1_3": 2})
    campaign = make(trainer)
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
    assert campaign.levels["1-2"].ended


def test_without_solved_levels_all_get_the_same(make, clock):
    trainer = Trainer(clock)
    make(trainer, max_seconds=900).run()
    for name in LEVELS:
        own = [(s, last) for n, s, last in trainer.slices if n == name]
        assert sum(s for s, _ in own) == pytest.approx(300, rel=0.35)
        assert [last for _, last in own] == [False] * (len(own) - 1) + [True]
    assert clock.now == pytest.approx(900)


class Attempts(Trainer):
    """Notes the attempts of 1-2, whose clear rates after each slice are given."""

    def __init__(self, clock, *rates, steps=1_000_000):
        super().__init__(clock, **{"1_1": 1, "1_3": 1})
        self.rates, self.steps, self.attempts = rates, steps, []
        self.seeds, self.imitation = {}, {}

    def __call__(self, name, work):
        metrics = super().__call__(name, work)
        if name != "1-2":
            return metrics
        attempt = work.config.run_dir.name.removeprefix("1-2").removeprefix("-attempt-")
        rate = self.rates[len(self.attempts)]
        self.attempts.append(int(attempt or 1))
        self.seeds[self.attempts[-1]] = work.config.seed
        self.imitation[self.attempts[-1]] = work.config.learner.imitation
        slices = self.attempts.count(self.attempts[-1])
        return metrics | {
            "steps": float(self.steps * slices),
            "seconds": 60.0 * slices,
            "solved": float(rate >= 0.9),
            "rollout/clear_rate": rate,
        }


def test_a_level_that_does_not_improve_is_begun_again(make, clock):
    trainer = Attempts(clock, 0.3, 0.2, 0.25, 0.4, 0.5, 0.45, 0.1, 0.5)
    campaign = make(trainer)
    run = replace(RunConfig(), learner=replace(RunConfig().learner, imitation=0.1))
    campaign._runs["1-2"] = run
    campaign.run()
    # The second is worse; the third exceeds the first, and continues until it falls.
    assert trainer.attempts == [1, 2, 1, 3, 3, 3, 4, 3]
    assert trainer.slices[-1][2]  # the last slice is the best attempt's
    assert len(set(trainer.seeds.values())) == 4
    assert trainer.seeds[1] == RunConfig().seed
    assert trainer.imitation == pytest.approx({1: 0.1, 2: 0.3, 3: 0.1, 4: 0.3})
    level = campaign.levels["1-2"]
    assert [attempt.rate for attempt in level.attempts] == [0.3, 0.2, 0.5, 0.1]
    assert (level.seconds, level.steps) == (480, 8_000_000)
    # The policy is the best attempt's, and the state knows all.
    assert campaign.run_dir("1-2").name == "1-2-attempt-3"
    assert make(trainer).levels == campaign.levels


def test_a_good_attempt_has_no_other(make, clock):
    trainer = Attempts(clock, 0.3, 0.72, 0.71, 0.65, 0.72, 0.8, 0.79, 0.6)
    make(trainer).run()
    assert trainer.attempts == [1] + [2] * 7


def test_a_solved_attempt_is_the_last(make, clock):
    trainer = Attempts(clock, 0.3, 0.95)
    campaign = make(trainer)
    campaign.run()
    assert trainer.attempts == [1, 2]
    assert campaign.run_dir("1-2").name == "1-2-attempt-2"


@pytest.mark.parametrize(
    ("slices", "minutes", "attempts"),
    [(3, 5, [1] * 5), (2, 6, [1, 1, 2, 2, 1, 1]), (1, 3, [1, 2, 1]), (1, 2.9, [1, 1])],
)
def test_an_attempt_ends_its_schedules_first(make, clock, slices, minutes, attempts):
    """A new one begins if there is time for both to have what this one had."""
    steps = -(-RunConfig().learner.lr_steps // slices)
    trainer = Attempts(clock, *[0.3] * 8, steps=steps)
    make(trainer, max_seconds=120 + 60 * minutes).run()
    assert trainer.attempts == attempts


def test_no_more_jobs_than_levels(make, clock):
    assert make(Trainer(clock), jobs=16).jobs == len(LEVELS)


def test_a_level_that_fails_twice_is_left_until_it_is_resumed(make, clock, tmp_path):
    trainer = Trainer(clock, **{"1_1": 1, "1_3": 1})
    trainer.fail["1-2"] = Failed("ValueError: the loss is nan", "in line 7")
    make(trainer).run()
    assert trainer.names().count("1-2") == 2
    assert (tmp_path / "errors.txt").read_text().count("in line 7") == 2
    trainer.fail = {}
    state = json.loads((tmp_path / "state.json").read_text())
    (tmp_path / "state.json").write_text(json.dumps(state | {"phase": "specialists"}))
    make(trainer).run()
    assert trainer.names().count("1-2") > 2


def test_where_nothing_trains_it_says_so(make, clock):
    trainer = Trainer(clock)
    trainer.fail = dict.fromkeys(LEVELS, Failed("no ROM"))
    with pytest.raises(RuntimeError, match=r"no level could be trained; .*errors.txt"):
        make(trainer).run()


def test_without_time_and_errors_it_says_so(make, clock):
    """As after a kill in the first slice."""
    campaign = make(Trainer(clock))
    campaign.seconds = 600.0
    with pytest.raises(RuntimeError, match="the 600 s of the campaign were over"):
        campaign.run()


def test_an_interrupted_campaign_goes_on_where_it_was(make, clock, monkeypatch):
    trainer = Trainer(clock, **{"1_1": 1})
    campaign = make(trainer)

    def show(*_):
        if clock.now >= 180:
            raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "show", show)
    with pytest.raises(KeyboardInterrupt):
        campaign.run()
    assert len(trainer.slices) == 3
    clock.now += 10_000  # nobody trained meanwhile
    again = make(trainer)
    assert again.elapsed() == pytest.approx(180)
    assert again.levels == campaign.levels
    again.run()
    assert trainer.names().count("1-1") == 1
    assert sum(s for _, s, _ in trainer.slices) == pytest.approx(600)


def test_an_interrupted_last_slice_is_not_the_last(make, clock, monkeypatch):
    trainer = Trainer(clock)
    campaign = make(trainer, max_seconds=270)
    submit = Inline.submit

    def interrupted(self, name, function, *arguments):
        submit(self, name, function, *arguments)
        if arguments[0].last:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Inline, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            campaign.run()
    assert not any(level.ended for level in make(trainer).levels.values())


def test_a_merge_that_fails_leaves_the_policies(make, clock, monkeypatch, tmp_path):
    def train(work, display):
        raise RuntimeError("the loss is nan")

    monkeypatch.setattr(specialists, "train", train)
    train.__name__ = "train"
    campaign = make(Trainer(clock), merge_share=0.5)
    campaign.run()
    table = campaign.evaluate()
    assert len(table["single"]) == 2 * len(LEVELS)
    assert table["one"] == []
    assert "the loss is nan" in (tmp_path / "errors.txt").read_text()


def test_a_killed_merge_has_the_time_that_is_left(make, clock, monkeypatch):
    seen = []

    def train(work, display):
        seen.append((work.seconds, work.last))
        raise KeyboardInterrupt

    monkeypatch.setattr(specialists, "train", train)
    with pytest.raises(KeyboardInterrupt):
        make(Trainer(clock), merge_share=0.5).run()
    # By its checkpoints it had trained for 250 seconds before it was killed.
    monkeypatch.setattr(specialists, "seconds_of", lambda run_dir: 250.0)
    with pytest.raises(KeyboardInterrupt):
        make(Trainer(clock), merge_share=0.5).run()
    # A second for each level is kept for the choice of a temperature.
    assert seen == [(pytest.approx(297), True), (pytest.approx(47), True)]


def test_more_seconds_go_to_unsolved_levels(make, clock, tmp_path):
    trainer = Trainer(clock, **{"1_1": 1})
    first = make(trainer, max_seconds=300)
    first.run()
    first.evaluate()
    assert all(first.levels[name].ended for name in ("1-2", "1-3"))
    trainer.slices.clear()
    more = make(trainer, max_seconds=540, more_seconds=240)
    assert more.levels["1-1"].solved
    more.run()
    assert set(trainer.names()) == {"1-2", "1-3"}
    assert sum(s for _, s, _ in trainer.slices) == pytest.approx(240)
    assert [level.chosen for level in more.levels.values()] == [0.5] * 3
    # The results were those of the policies before.
    assert not (tmp_path / "table.json").exists()
    trainer.slices.clear()
    make(trainer, max_seconds=540).run()
    assert not trainer.slices


@pytest.mark.parametrize("old", [False, True])
def test_more_seconds_outlast_a_kill(make, clock, tmp_path, old):
    """campaign.json has them before state.json does."""
    trainer = Trainer(clock)
    make(trainer, max_seconds=300).run()
    path = tmp_path / "state.json"
    if old:
        state = json.loads(path.read_text())
        del state["max_seconds"]  # as version 0.2.0 wrote it
        path.write_text(json.dumps(state))
    trainer.slices.clear()
    make(trainer, max_seconds=400, more_seconds=100 * old).run()
    assert sum(s for _, s, _ in trainer.slices) == pytest.approx(100)


def test_the_one_network_has_its_share_of_more_seconds(make, clock, monkeypatch):
    """Its earlier training is a part of its share."""
    seen, trained = [], []

    def train(work, display):
        seen.append((work.seconds, work.restart))
        folder = work.config.run_dir / checkpoint.FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "step-000001000.pt").touch()
        trained.append(work.seconds)
        clock.now += work.seconds
        return {"signal": 0.0}

    monkeypatch.setattr(specialists, "train", train)
    monkeypatch.setattr(specialists, "seconds_of", lambda run_dir: sum(trained))
    train.__name__ = "train"
    for seconds in (600, 1000):
        campaign = make(Trainer(clock), max_seconds=seconds, merge_share=0.5)
        campaign.run()
    assert seen == [(pytest.approx(297), 0.0), (pytest.approx(200), 0.15)]
    assert campaign.elapsed() == pytest.approx(997)
    # Its schedules restart after a kill, too.
    assert make(Trainer(clock), max_seconds=1000).merge_restarts


def test_the_temperature_of_the_one_network_is_chosen(make, clock, monkeypatch):
    """Once it is trained, which an interrupted choice does not begin again."""
    trained, chosen = [], []

    def train(work, display):
        trained.append(work.config.run_dir)
        clock.now += work.seconds
        folder = work.config.run_dir / checkpoint.FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "step-000000001.pt").touch()
        return {"signal": 0.0}

    def choose(self, name, run_dir, to, levels, episodes, seed, bits, _):
        if name == "one":
            chosen.append((run_dir, levels))
            if len(chosen) == 1:
                raise KeyboardInterrupt
        to.touch()
        return {"clear_rate": 0.5, "checkpoint": "x.pt", "temperature": 0.5}

    trainer = Trainer(clock)
    with monkeypatch.context() as patch:
        patch.setattr(specialists, "train", train)
        patch.setattr(Inline, "choose", choose)
        campaign = make(trainer, merge_share=0.5)
        # `Inline` finds functions by their names: levels' slices are the trainer's.
        train.__name__ = "train"
        with pytest.raises(KeyboardInterrupt):
            campaign.run()
        assert not campaign.policy("one").exists()
        again = make(trainer, merge_share=0.5)
        again.run()
    assert again.policy("one").exists()
    assert trained == [campaign.folder / "merged"]
    assert chosen == [(trained[0], ",".join(LEVELS))] * 2


@pytest.mark.parametrize("merge_share", [0, 0.5])
def test_policies_are_corrected_in_their_share(make, clock, monkeypatch, merge_share):
    merges = []

    def train(work, display):
        merges.append(work.seconds)
        return {"signal": 0.0}

    train.__name__ = "train"
    monkeypatch.setattr(specialists, "train", train)
    trainer = Trainer(clock)
    seconds = 1000 / (1 - merge_share)
    options = {"max_seconds": seconds, "merge_share": merge_share}
    make(trainer, correct_share=0.1, **options).run()
    assert sum(s for _, s, _ in trainer.slices) == pytest.approx(900)
    own = [(name, name, pytest.approx(100 / 3)) for name in LEVELS]
    assert trainer.corrected == own
    choice = 3 * one_network._CHOICE_SECONDS
    assert merges == ([pytest.approx(1000 - choice)] if merge_share else [])


def test_good_policies_leave_the_time_for_corrections(make, clock, monkeypatch):
    def choose(self, name, run_dir, to, *_):
        to.touch()
        return {"clear_rate": 1.0 if name == "1-1" else 0.5}

    monkeypatch.setattr(Inline, "choose", choose)
    trainer = Trainer(clock)
    make(trainer, correct_share=0.1).run()
    good, *others = [seconds for *_, seconds in trainer.corrected]
    assert good + sum(others) == pytest.approx(60)
    assert good < others[0] / 10
    assert others[0] == others[1]


def test_a_campaign_of_all_levels_plays_the_game_within_this_time(
    make, clock, monkeypatch, tmp_path
):
    played = []

    def collect(self, name, policies, starts, seed, model):
        played.append((name, policies, starts))
        clock.now += 20
        return {"1-1": 1.0, "1-2": 0.0}

    def correct(self, name, path, levels, seconds, *rest):
        trainer.corrected.append((levels, seconds, rest[-1]))

    monkeypatch.setattr(Inline, "collect", collect, raising=False)
    monkeypatch.setattr(Inline, "correct", correct)
    monkeypatch.setattr(progress, "game_levels", lambda task: tuple(LEVELS[:2]))
    trainer = Trainer(clock)
    make(trainer, correct_share=0.1).run()
    starts = tmp_path / "starts"
    assert played == [("whole game", tmp_path / "policies", starts)]
    assert sum(seconds for _, seconds, _ in trainer.corrected) == pytest.approx(40)
    assert {folder for *_, folder in trainer.corrected} == {starts}
    by_level = {level: seconds for level, seconds, _ in trainer.corrected}
    assert by_level["1-1"] < by_level[LEVELS[2]] < by_level["1-2"]


@pytest.fixture
def one(make, clock, monkeypatch, tmp_path):
    """Makes campaigns that correct their one network; notes what trains it."""
    merges, made = [], []

    def train(work, display):
        merges.append(work)
        folder = work.config.run_dir / checkpoint.FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "step-000000001.pt"
        before = float(path.read_text()) if path.exists() else 0.0
        path.write_text(str(before + work.seconds))
        clock.now += work.seconds
        return {"signal": 0.0}

    def seconds_of(run_dir):
        return sum(float(path.read_text()) for path in checkpoint.list_files(run_dir))

    def merged(levels, *, corrected=False):
        made.append(corrected)
        return replace(RunConfig(), env=replace(RunConfig().env, obs="tiles"))

    def choose(self, name, run_dir, to, *_):
        to.write_text(str(len(merges)))
        return {"clear_rate": 0.5, "checkpoint": "best.pt", "temperature": 1.0}

    def search(self, name, path, to, level, seconds, *_):
        searched.append((level, seconds))
        clock.now += 10
        if found is None:
            return Failed("its process ended with status -9")
        to.write_text(str(found))
        return None

    def compare(self, name, old, new, *_):
        return rates

    def campaign(**options):
        given = {"merge_share": 0.5, "correct_one_share": 0.4, "max_seconds": 1000}
        result = make(Trainer(clock), **given | options)
        result._one._merged = merged
        return result

    searched, found, rates = [], 3, (0.8, 0.9)

    def says(actions, now):
        nonlocal found, rates
        found, rates = actions, (0.8, now)

    train.__name__ = "train"
    monkeypatch.setattr(specialists, "train", train)
    monkeypatch.setattr(specialists, "seconds_of", seconds_of)
    monkeypatch.setattr(one_network, "_write_cold", lambda path, to: to.write_text("0"))
    monkeypatch.setattr(one_network, "_corrections", lambda path: int(path.read_text()))
    for function in (choose, search, compare):
        monkeypatch.setattr(Inline, function.__name__, function, raising=False)
    campaign.merges, campaign.made, campaign.searched = merges, made, searched
    campaign.says = says
    return campaign


@pytest.mark.parametrize(("now", "kept"), [(0.9, "2"), (0.8, "1"), (0.7, "1")])
def test_the_one_network_is_corrected_in_its_share(one, now, kept):
    """It learns what is left of the time; the better one is kept."""
    one.says(3, now)
    campaign = one()
    campaign.run()
    # 500 s, of these 200 for the corrections; each choice is given 3 s.
    merge, learning = one.merges
    assert (merge.seconds, merge.restart) == (pytest.approx(500 - 200 - 3), 0.0)
    assert [level for level, _ in one.searched] == list(LEVELS)
    # Twice what each would have of three tenths of 203 s.
    assert [s for _, s in one.searched] == pytest.approx([2 * 0.3 * 203 / 3] * 3)
    assert (learning.seconds, learning.restart) == (pytest.approx(203 - 30 - 6), 0.5)
    assert merge.config.run_dir == campaign.folder / "merged"
    assert learning.config.run_dir == campaign.folder / "corrected" / "run"
    assert True in one.made
    assert campaign.policy("one").read_text() == kept
    said = campaign.board._console.file.getvalue()
    assert "9 corrections in 3 levels" in said
    assert ("it stays as it was" in said) == (kept == "1")
    assert campaign.elapsed() <= 1000


@pytest.mark.parametrize("found", [0, None])
def test_without_corrections_the_one_network_stays(one, found):
    """None: the searches fail."""
    one.says(found, 0.9)
    campaign = one()
    campaign.run()
    assert len(one.merges) == 1
    assert campaign.policy("one").read_text() == "1"
    assert "0 corrections in 0 levels" in campaign.board._console.file.getvalue()
    assert (campaign.folder / "errors.txt").exists() == (found is None)


def test_a_level_whose_search_fails_has_no_corrections(one, monkeypatch):
    def fails(self, name, path, to, level, *rest):
        if level == LEVELS[1]:
            return Failed("OSError: no space left on device")
        return search(self, name, path, to, level, *rest)

    search, fails.__name__ = Inline.search, "search"
    monkeypatch.setattr(Inline, "search", fails)
    campaign = one()
    campaign.run()
    assert "6 corrections in 2 levels" in campaign.board._console.file.getvalue()
    assert len(one.merges) == 2


@pytest.mark.parametrize("why", ["memory", "pictures", "a layer", "time"])
def test_a_one_network_that_is_not_corrected(one, monkeypatch, why):
    """All of its time is the merge's, unless only its file shows why."""
    campaign = one(max_seconds=1000 if why != "time" else 70)
    run = campaign._one._merged(LEVELS)
    if why == "memory":
        run = replace(run, model=replace(run.model, memory=GRU()))
    elif why == "pictures":
        run = RunConfig()
    elif why == "a layer":

        def cold(path, to):
            raise ValueError("its last layer is unknown")

        monkeypatch.setattr(one_network, "_write_cold", cold)
    campaign._one._merged = lambda *_, **__: run
    campaign.run()
    (merge,) = one.merges
    seconds = {"a layer": 500 - 200 - 3, "time": 35 - 3}.get(why, 500 - 3)
    assert merge.seconds == pytest.approx(seconds)
    assert one.searched == []
    said = "not corrected: its last layer is unknown"
    assert (said in campaign.board._console.file.getvalue()) == (why == "a layer")


def test_without_its_share_the_one_network_stays(one):
    campaign = one(correct_one_share=0)
    campaign.run()
    assert len(one.merges) == 1
    assert one.searched == []
    assert not (campaign.folder / "corrected").exists()


def test_an_interrupted_correction_goes_on(one, monkeypatch, clock):
    """What was found remains, and so does the time that the network learned."""

    def interrupted(self, name, path, to, level, seconds, *_):
        if level == LEVELS[1]:
            raise KeyboardInterrupt
        return search(self, name, path, to, level, seconds)

    search = Inline.search
    interrupted.__name__ = "search"
    with monkeypatch.context() as patch:
        patch.setattr(Inline, "search", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one().run()
    assert [level for level, _ in one.searched] == [LEVELS[0]]
    train = specialists.train
    with monkeypatch.context() as patch:

        def killed(work, display):
            patch.setattr(progress.Progress, "save", lambda *_: None)
            assert work.restart == 0.5
            train(replace(work, seconds=50.0), display)  # of its last checkpoint
            raise KeyboardInterrupt

        killed.__name__ = "train"
        patch.setattr(specialists, "train", killed)
        clock.now += 10_000  # nobody trained meanwhile
        with pytest.raises(KeyboardInterrupt):
            one().run()
    clock.now += 10_000
    campaign = one()
    campaign.run()
    assert [level for level, _ in one.searched] == list(LEVELS)
    seconds = [work.seconds for work in one.merges]
    assert seconds[1:] == pytest.approx([50, 203 - 30 - 50 - 6])
    assert campaign.elapsed() == pytest.approx(1000 - 6)
    assert one.merges[-1].restart == 0.0  # its rates fall further


def test_a_merge_again_begins_its_corrections_anew(one, tmp_path):
    one().run()
    (tmp_path / "corrected" / "old").touch()
    one(max_seconds=1400, more_seconds=400).run()
    assert [work.restart for work in one.merges] == [0.0, 0.5, 0.15, 0.5]
    assert len(one.searched) == 2 * len(LEVELS)
    assert not (tmp_path / "corrected" / "old").exists()


def test_a_damaged_state_is_one_line(make, clock, tmp_path):
    for content in ("{", "{}", '{"seconds": 1, "phase": "merge"}'):
        (tmp_path / "state.json").write_text(content)
        with pytest.raises(ValueError, match=r"state.json is damaged"):
            make(Trainer(clock))
    (tmp_path / "state.json").unlink()
    campaign = make(Trainer(clock))
    campaign.save("tomorrow")
    with pytest.raises(ValueError, match=r"of a newer version.*no phase 'tomorrow'"):
        campaign.run()


def write_run(folder, config, steps=1_000_000, seconds=100.0, updates=500):
    """What is on the disk of a run at 2,000 steps a second."""
    (folder / checkpoint.FOLDER).mkdir(parents=True, exist_ok=True)
    state = {
        "config": to_dict(config),
        "learner": {"updates": updates},
        "progress": {"seconds": seconds},
        "steps": steps,
    }
    checkpoint.save(folder / checkpoint.FOLDER / f"step-{steps:09}.pt", state)
    points = [{"step": 1}, {"step": steps, "time/sps": 2000.0}]
    lines = "".join(json.dumps(point) + "\n" for point in points)
    (folder / "metrics.jsonl").write_text(lines)
    return state


def rates(learner, step):
    factor = learning_rate_factor(learner, step, 500)
    return factor * learner.lr, factor * learner.optimizer.matrix_lr


def entropy(learner, step):
    return linear(learner.entropy, learner.entropy_end, learner.entropy_steps, step)


@pytest.mark.parametrize("warmup", [0, 50])
def test_the_last_slice_ends_the_schedules(tmp_path, warmup):
    """From where they are to nothing, again where that was interrupted."""
    config = change(RunConfig(run_dir=tmp_path), warmup_updates=warmup)
    step = 300_000
    state = write_run(tmp_path, config, step)
    after = ending(config, state, 200_000).learner
    assert rates(after, step) == pytest.approx(rates(config.learner, step))
    assert entropy(after, step) == pytest.approx(entropy(config.learner, step))
    half = pytest.approx([rate / 2 for rate in rates(config.learner, step)])
    assert rates(after, step + 100_000) == half
    assert rates(after, step + 200_000) == pytest.approx((0.0, 0.0), abs=1e-9)
    assert entropy(after, step + 200_000) == 0.0
    ending_run = replace(config, learner=after)
    state = write_run(tmp_path, ending_run, step + 100_000)
    again = ending(config, state, 100_000).learner
    assert rates(again, step + 100_000) == half
    assert rates(again, step + 200_000) == pytest.approx((0.0, 0.0), abs=1e-9)
    # At its end there is nothing to come from.
    state = write_run(tmp_path, ending_run, step + 200_000)
    assert ending(config, state, 100_000) == config


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Trains a slice; returns the configs of its runs, which leave 4,000 steps."""

    def slice_of(seconds, last=False):
        seen = []

        def run(config, display):
            seen.append(config)
            write_run(tmp_path, config, 4000, 50.0)
            return {"steps": 4000.0, "seconds": 50.0, "solved": 0.0, "signal": 0.0}

        monkeypatch.setattr(specialists, "run_training", run)
        config = replace(RunConfig(), run_dir=tmp_path)
        specialists.train(Slice(config, seconds, last))
        return seen

    return slice_of


def test_a_slice_goes_on_from_the_last_one(train, tmp_path):
    (first,) = train(40.0)
    assert (first.max_seconds, first.resume) == (40.0, None)
    (second,) = train(40.0)
    assert (second.max_seconds, second.resume.name) == (90.0, "step-000004000.pt")
    assert second.learner == first.learner
    (last,) = train(25.0, last=True)
    assert last.max_seconds == 75.0
    assert last.learner.lr_steps == 4000 + 50_000
    assert specialists.seconds_of(tmp_path) == 50.0


@pytest.mark.parametrize("last", [False, True])
def test_an_interrupted_search_is_no_training(train, tmp_path, last):
    """Its schedules end in the time of a run that is new."""
    write_run(tmp_path, RunConfig(), 0, 30.0)
    seen = train(100.0, last)
    assert [c.max_seconds for c in seen] == ([70.0, 110.0] if last else [130.0])
    names = [c.resume.name for c in seen]
    assert names == ["step-000000000.pt", "step-000004000.pt"][: 1 + last]
    assert seen[0].learner == RunConfig().learner


def test_a_first_slice_may_be_the_last(train):
    first, second = train(100.0, last=True)
    assert (first.max_seconds, second.max_seconds) == (40.0, 110.0)
    assert first.learner.lr_steps != second.learner.lr_steps == 4000 + 120_000


@pytest.mark.parametrize(
    ("last", "seconds", "ends"),
    [(False, 60.0, 70.0), (True, 60.0, 60.0), (True, 100.0, 70.0), (True, 50.0, None)],
)
def test_a_solved_level_is_finished(tmp_path, monkeypatch, last, seconds, ends):
    """With rates that fall to 0, within the time of a last slice."""
    seen, signals = [], [0.0, 2.0]

    def run(config, display):
        seen.append(config)
        write_run(tmp_path, config, 4000, 50.0)
        solved = config.stop_when_solved
        signal = 0.0 if solved else signals.pop(0)
        ended = {"seconds": 50.0, "solved": float(solved), "signal": signal}
        return ended | {"rollout/clear_rate": 0.9 if solved else 0.8}

    monkeypatch.setattr(specialists, "run_training", run)
    config = replace(RunConfig(), run_dir=tmp_path)
    work = Slice(config, seconds, last, 1.0, finish=20.0)
    result = specialists.train(work)
    assert (result["solved"], result["rollout/clear_rate"]) == (True, 0.9)
    *_, end = seen
    assert len(seen) == (1 if ends is None else 2)
    if ends is not None:
        assert (end.stop_when_solved, end.max_seconds) == (False, ends)
        assert end.learner.lr_end == end.learner.entropy_end == 0.0
        assert end.learner.lr_steps == 4000 + 2000 * (ends - 50.0)
        # What was interrupted is not finished: a resumed campaign repeats it.
        work = replace(work, seconds=seconds - 10.0 if last else seconds)
        monkeypatch.setattr(specialists, "seconds_of", lambda _: 10.0)
        assert not specialists.train(work)["solved"]


def test_after_its_schedules_each_slice_is_a_cycle(tmp_path):
    """A line to 0 from half of the first rates, as long as the schedules at least.

    Later lines begin at 15 % of them.
    """
    config = change(
        RunConfig(run_dir=tmp_path), lr_steps=300_000, entropy_steps=200_000,
        imitation=0.1, guide=0.15,
    )  # fmt: skip
    own = config.learner

    def scheduled(now, steps, seconds=60.0, last=False, restart=0.0):
        state = write_run(tmp_path, now, steps)
        work = Slice(config, seconds, last, restart=restart)
        return specialists._scheduled(work, state)

    assert scheduled(config, 200_000) == config
    cycle = scheduled(config, 400_000)  # 2,000 steps a second: 120,000 in a slice
    learner = cycle.learner
    half = (own.lr / 2, own.optimizer.matrix_lr / 2)
    later = pytest.approx([rate * 0.15 for rate in (own.lr, own.optimizer.matrix_lr)])
    assert rates(learner, 400_000) == pytest.approx(half)
    assert entropy(learner, 400_000) == pytest.approx(own.entropy / 2)
    imitation = linear(learner.imitation, 0.0, learner.entropy_steps, 400_000)
    assert imitation == pytest.approx(0.05)
    assert rates(learner, 700_000) == pytest.approx((0.0, 0.0), abs=1e-9)
    longer = scheduled(config, 400_000, seconds=400.0).learner
    quarter = (own.lr / 4, own.optimizer.matrix_lr / 4)
    assert rates(longer, 800_000) == pytest.approx(quarter)
    # It goes on in the next slice, until nearly all of it is over.
    assert scheduled(cycle, 520_000).learner == learner
    second = scheduled(cycle, 640_000).learner
    assert rates(second, 640_000) == later
    assert entropy(second, 640_000) == pytest.approx(own.entropy * 0.15)
    # A last slice ends it, or is a cycle if there is time for one.
    end = scheduled(cycle, 520_000, last=True).learner
    assert rates(end, 520_000) == pytest.approx(rates(learner, 520_000))
    assert rates(end, 640_000) == pytest.approx((0.0, 0.0), abs=1e-9)
    short = scheduled(config, 400_000, last=True).learner
    assert rates(short, 400_000) == pytest.approx(rates(own, 400_000))
    assert entropy(short, 400_000) == pytest.approx(own.entropy_end)
    assert short.imitation == 0.0
    last = scheduled(cycle, 690_000, seconds=150.0, last=True).learner
    assert rates(last, 690_000) == later
    assert rates(last, 990_000) == pytest.approx((0.0, 0.0), abs=1e-9)
    # The one network of a campaign with more time, however short.
    over = replace(config, learner=last)
    again = scheduled(over, 990_000, last=True, restart=0.15).learner
    assert rates(again, 990_000) == later
    assert rates(again, 1_110_000) == pytest.approx((0.0, 0.0), abs=1e-9)


class Result(NamedTuple):
    clear_rate: float
    cleared_starts: list[int] | None = None
    episodes: int = 31

    @property
    def argmax(self):
        return self.cleared_starts is not None


class Played(NamedTuple):
    levels: list[Result]


def test_the_best_checkpoint_and_temperature_are_chosen(tmp_path, monkeypatch):
    folder = tmp_path / checkpoint.FOLDER
    folder.mkdir()
    steps = [f"step-{number:09}.pt" for number in range(5, 0, -1)]
    newest, older, *_, oldest = steps
    for name in (*steps, checkpoint.BEST):
        (folder / name).touch()
    # Sampled and greedy: clear rates of both levels, and starts that are cleared.
    sampled = {(name, 0.5): [0.6, 0.8] for name in (*steps, checkpoint.BEST)}
    sampled |= {(name, 1.0): [0.6, 0.7] for name in steps}
    sampled |= {(name, 0.25): [0.9, 0.7] for name in steps}
    starts = {name: [0, 1, 2] for name in (*steps, checkpoint.BEST)}
    written = []

    def save(source, path, *, temperature, bits):
        assert bits == 8
        written.append((source.name, temperature))

    def play(path, *, levels, argmax, **_):
        assert levels == "1-1,1-2"
        played = [Result(rate) for rate in sampled[written[-1]]]
        if argmax:
            cleared = starts[written[-1][0]]
            played += [Result(len(cleared) / 31, cleared)] * 2
        return Played(played)

    monkeypatch.setattr(specialists, "save_policy", save)
    monkeypatch.setattr(specialists, "evaluate_checkpoint", play)
    to = tmp_path / "1-1.safetensors"

    def choose():
        return specialists.choose(tmp_path, to, "1-1,1-2", 50, 1, 8)

    # Of equals the newest.
    best = {"clear_rate": 0.8, "checkpoint": newest, "temperature": 0.25}
    assert choose() == pytest.approx(best)
    assert written[-1] == (newest, 0.25)
    assert (oldest, 0.5) not in written
    assert (checkpoint.BEST, 0.5) in written
    sampled[newest, 0.25] = [0.0, 0.0]
    assert choose()["temperature"] == 0.5
    # More starts with greedy actions count, but not the one without idle frames.
    starts[newest] = [1, 2]
    assert choose()["checkpoint"] == newest
    starts[older] = [1, 2, 3]
    assert choose()["checkpoint"] == older
    sampled[checkpoint.BEST, 0.5] = [1.0, 1.0]
    sampled |= {(checkpoint.BEST, 1.0): [0.0, 0.0], (checkpoint.BEST, 0.25): [0, 0]}
    best = {"clear_rate": 1.0, "checkpoint": checkpoint.BEST, "temperature": 0.5}
    assert choose() == best
    with pytest.raises(FileNotFoundError, match="no checkpoint of 1-2"):
        specialists.choose(tmp_path / "other", to, "1-2", 50, 1, 8)


def test_a_policy_without_a_temperature_is_chosen_too(tmp_path, monkeypatch):
    (tmp_path / checkpoint.FOLDER).mkdir()
    (tmp_path / checkpoint.FOLDER / checkpoint.BEST).touch()

    def save(source, path, *, temperature, bits):
        if temperature != 1.0:
            raise ValueError("no temperature")

    monkeypatch.setattr(specialists, "save_policy", save)
    played = Played([Result(0.25), Result(0.5, [0, 1, 2])])
    monkeypatch.setattr(specialists, "evaluate_checkpoint", lambda *_, **__: played)
    found = specialists.choose(tmp_path, tmp_path / "x.safetensors", "1-1", 5, 1, 8)
    assert found["temperature"] == 1.0
    assert found["clear_rate"] == 0.25


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


def table_of(results, levels):
    """The words of the lines of a table on a terminal."""
    console = Console(width=80, file=io.StringIO())
    with console.capture() as capture:
        console.print(campaign_table("mine", results, levels))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 80
    return [line.split() for line in lines if line.strip()]


def test_the_table_counts_what_others_count():
    single = [
        result("1-1", 1.0, [], False), result("1-1", 0.0, [0, 4], True),
        result("1-2", 0.5, [], False), result("1-2", 0.0, [3], True),
    ]  # fmt: skip
    lines = table_of(single, ("1-1", "1-2"))
    assert lines[0] == ["mine"]
    assert lines[3] == ["1-1", "100.0", "%", "10-90", "2/31", "cleared"]
    assert lines[4] == ["1-2", "50.0", "%", "10-90", "1/31", "-"]
    # Without idle frames one of two.
    assert lines[-1] == "all 75.0 % 1 at 90 or more 3/62 1 of 2".split()
    # A level without a policy counts as never cleared.
    lines = table_of(single[:2], ("1-1", "1-2"))
    assert lines[4] == ["1-2", "no", "policy", "-"]
    assert lines[-1] == "all 50.0 % 1 at 90 or more 2/31 1 of 2".split()


def test_why_levels_have_no_policy(tmp_path):
    table = {"single": [result("1-1", 1.0, [], False)], "levels": ["1-1", "1-2"]}
    assert _missing(table, tmp_path) == (
        "1 of 2 levels have no policy: the time was too short: raise --max-seconds"
    )
    (tmp_path / "errors.txt").touch()
    assert f"failed, see {tmp_path}/errors.txt" in _missing(table, tmp_path)
    assert _missing(table | {"levels": ["1-1"]}, tmp_path) == ""


def test_the_report_has_both_tables(tmp_path, capsys):
    full = {
        "repeat_action_probability": 0.0, "return_mean": 1.0, "best_x_median": 10.0,
        "steps_to_clear_median": None, "deaths": [], "stalled": 0, "timed_out": 0,
    }  # fmt: skip
    single = [
        result("1-1", 1.0, [], False) | full, result("1-1", 0.0, [0, 4], True) | full,
        result("2-2", 0.4, [], False) | full, result("2-2", 0.0, [3], True) | full,
    ]  # fmt: skip
    had = {"seconds": 50.0, "steps": 4000, "rate": 0.9}  # before there were attempts
    levels = {
        "1-1": had | {"solved": True, "ended": False, "chosen": None},
        "2-2": asdict(Level(attempts=[Attempt(9.0, 5, 0.1), Attempt(6.0, 2, 0.3)])),
    }
    options = to_dict(CampaignConfig(levels="1-1,2-2", max_seconds=600.0))
    about = {"command": "python -m trainer.campaign <words>", "options": options}
    about["flags"] = ["--lr", "0.002"]
    state = {"phase": "evaluation", "seconds": 600.0, "levels": levels}
    for name, content in (
        ("campaign.json", about),
        ("state.json", state),
        ("table.json", {"single": single, "one": []}),
    ):
        (tmp_path / name).write_text(json.dumps(content))
    assert report([str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    for said in (
        "<dt>command</dt><dd>python -m trainer.campaign &#x27;&lt;words&gt;&#x27;</dd>",
        "<td>levels</td><td>1-1,2-2</td>",
        "<td>max-seconds</td><td>600</td>",
        "<td>flags of the levels&#x27; runs</td><td>--lr 0.002</td>",
        "<td>1-1</td><td>1</td><td>4,000</td><td>0:50</td>",
        "<td>2-2</td><td>2</td>",
    ):
        assert said in page
    assert "run-dir" not in page
    # Of a campaign before there was a command.
    (tmp_path / "campaign.json").write_text("{}")
    assert report([str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "2 levels in 10:00" in page
    assert "<b>70%</b><span>cleared by a policy for each level" in page
    assert "1 of 2 levels at 90 % or more" in page
    assert "No data for: one network for all levels, curves of the one network" in page
    assert report([str(tmp_path), str(tmp_path)]) == 2
    (tmp_path / "table.json").write_text("{")
    assert report([str(tmp_path)]) == 2
    assert "table.json is damaged" in capsys.readouterr().err


def test_the_report_has_the_curves_of_the_run_that_went_on(tmp_path, monkeypatch):
    """The run that learned corrections is a copy of the merge."""
    shown = []
    monkeypatch.setattr(pages, "read_run", lambda folder: folder)
    monkeypatch.setattr(pages.page, "curves", lambda runs: shown.extend(runs) or "")
    for name in ("merged", "corrected/run"):
        (tmp_path / name).mkdir(parents=True)
        pages.write(tmp_path)
        assert shown.pop() == tmp_path / name
    assert shown == []


def test_the_board_has_a_column_for_each_world():
    levels = {
        "1-1": Level(solved=True, attempts=[Attempt(rate=0.96, steps=9)]),
        "1-2": Level(attempts=[Attempt(rate=0.2, steps=9)]),
        "2-1": Level(),
        "2-2": Level(),
        "3-2": Level(),
    }
    running = {"1-2": 0.31, "2-2": None, "3-2": 0.0}
    console = Console(file=io.StringIO(), width=80)
    for searching in (True, False):
        console.print(grid(levels, running, searching))
    first, one, two, *_, still = console.file.getvalue().splitlines()
    assert first.split() == ["1", "2", "3"]
    assert one.split() == ["-1", "96✓", "·"]
    assert two.split() == ["-2", "31▸", "search▸", "0▸"]
    assert still.split() == ["-2", "31▸", "·▸", "0▸"]


def test_a_level_without_a_point_is_searching(make, clock, monkeypatch, tmp_path):
    """Where it learns from demonstrations, and once it has begun."""
    seen = []
    campaign = make(Trainer(clock))
    monkeypatch.setattr(Inline, "running", LEVELS)
    monkeypatch.setattr(campaign.board, "show", lambda *some: seen.append(some[2:]))
    for name, line in (("1-1", '{"step": 9}'), ("1-3", "")):
        folder = campaign.run_dir(name)
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(line)
    campaign.show("", 1.0)
    learns = change(RunConfig(), guide=0.15)
    campaign.searching = make(Trainer(clock), run=learns).searching
    campaign.show("", 1.0)
    campaign.phase = "choice"  # where levels that are running play
    campaign.show("", 1.0)
    rates = {"1-1": 0.0, "1-2": None, "1-3": None}
    assert seen == [(rates, False), (rates, True), (rates, False)]


def test_a_live_board_shows_messages_at_once():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    board = Board(live=True, console=console)
    board.show("a policy for each level", {"1-1": Level()}, {"1-1": 0.5}, False)
    board.log("interrupted: waiting for checkpoints")
    board.close()
    assert "interrupted: waiting" in console.file.getvalue()
    board.log("a line, as the board is closed")
    assert console.file.getvalue().endswith("a line, as the board is closed\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--levels 9-1", "there is no level '9-1'"),
        ("--max-seconds 0", "max_seconds must be 1 to 1e+09, got 0"),
        ("--max-seconds 5", "max_seconds=5 leaves 3.15 s for single levels"),
        ("--levels 1-1 --max-seconds 4.5", "leaves 4.05 s for single levels, which"),
        ("--merge-share 1", "merge_share must be 0 to 0.9, got 1"),
        ("--jobs -1", "jobs must be at least 0"),
        ("--resume nowhere", "is not the folder of a campaign"),
        ("--resume nowhere --seed 2", "leave out all other options, except --more"),
        ("--resume nowhere --more-seconds -1", "more_seconds must be 0 to 1e+09"),
        ("--more-seconds 60", "--more-seconds needs --resume: give --max-seconds"),
        ("--levels 1-1 -- --lr 0", "lr must be above 0"),
        ("--levels 1-1 -- --seed 3", "give it before --"),
        ("--merge-flags='--lr 0'", "lr must be above 0"),
        ("--merge-flags=--teachers=here", "--teachers in --merge-flags has no effect"),
        ("-- --frame-skip 4", "has frame_skip=4, but this run has frame_skip=6"),
        ("-- --log-seconds=5", "--log-seconds after -- has no effect, because this"),
        ("-- --no-videos", "--no-videos after -- has no effect, because this"),
        ("-- --memory gru --imitation 0", "--memory cannot be merged"),
        ("-- --run-dir there", "each run has its own folder"),
        ("--task SuperMarioBros-1-1-v0", "give --task SuperMarioBros-v0"),
        ("--task SuperMarioBros2-v0 --levels 5-1", "there is no level '5-1'"),
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


def test_the_one_network_begins_episodes_where_the_game_begins_levels(
    tmp_path, monkeypatch
):
    made = []
    monkeypatch.setattr(program, "_run", lambda *args: made.append(args[-1]))
    folder = tmp_path / "a,b"
    words = ["--levels", "1-1,1-2", "--run-dir", str(folder)]
    assert main(words) == 0
    (merged,) = made
    levels = ["1-1", "1-2"]
    assert merged(levels).explore.starts == "frontier"  # none are known
    starts = folder / "starts"
    starts.mkdir()
    for level in ("1-2", "1-3"):
        (starts / f"{level}.npy").touch()
    known = merged(levels).explore
    assert (known.starts, known.snapshot_share) == (str(starts / "1-2.npy"), 0.5)
    # With corrections it also begins where its own games did, and learns from itself.
    own = folder / "corrected" / "starts"
    own.mkdir(parents=True)
    (own / "1-1.npy").touch()
    run = merged(levels, corrected=True)
    assert run.explore.starts == f"{starts / '1-2.npy'},{own / '1-1.npy'}"
    loss = run.learner.loss
    assert (loss.teachers, loss.temperature) == (str(folder / "corrected"), 1.0)
    assert merged(levels).learner.loss.teachers == str(folder / "policies")
    flags = "--merge-flags=--model mine:Net"
    assert main(["--levels", "1-1,1-2", "--run-dir", f"{folder}-1", flags]) == 0
    assert made[-1](levels, corrected=True).learner.loss.model == "mine:Net"
    assert made[-1](levels).learner.loss.model == ""
    flags = "--merge-flags=--starts level"
    assert main(["--levels", "1-1,1-2", "--run-dir", f"{folder}-2", flags]) == 0
    (tmp_path / "a,b-2" / "starts").mkdir()
    (tmp_path / "a,b-2" / "starts" / "1-2.npy").touch()
    assert made[-1](levels).explore.starts == "level"


# What these processes do is of the standard library: they cannot import tests.


def test_a_dead_process_costs_one_task():
    workers = Workers(2)
    try:
        workers.submit("sleeps", time.sleep, 1.0)
        workers.submit("dies", os._exit, 3)
        ((name, failed),) = workers.wait()
        assert name == "dies"
        assert failed == Failed("its process ended with status 3")
        workers.submit("another", os.getpid)
        results = {}
        while workers.running:
            results |= dict(workers.wait())
        assert results.keys() == {"sleeps", "another"}
        assert results["sleeps"] is None
        assert results["another"] not in (0, os.getpid())
    finally:
        workers.close()


def test_an_error_says_what_and_where():
    workers = Workers(1)
    try:
        workers.submit("raises", json.loads, "{\n")
        ((_, failed),) = workers.wait()
        assert failed.reason.startswith("JSONDecodeError: Expecting property name")
        assert "\n" not in failed.reason
        assert "in raw_decode" in failed.details
    finally:
        workers.close()


def test_what_is_being_done_is_ended():
    workers = Workers(2)
    workers.submit("sleeps", time.sleep, 600)
    workers.submit("idle", os.getpid)
    while len(workers.running) == 2:
        workers.wait()
    ((name, failed),) = workers.stop()
    assert (name, failed) == ("sleeps", Failed("its process ended with status -15"))
    workers.close()
    assert multiprocessing.active_children() == []


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
    # A process that nobody waits for is a zombie in some containers.
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie":
        time.sleep(0.05)  # until the test's own time limit


def test_what_was_evaluated_is_not_played_again(make, clock, monkeypatch, tmp_path):
    """Unless a result of a policy is missing, or the file is damaged."""
    played = []

    def evaluate(self, name, *rest):
        played.append(name)
        return plays(self, name, *rest)

    plays = Inline.evaluate
    monkeypatch.setattr(Inline, "evaluate", evaluate)
    evaluate.__name__ = "evaluate"
    campaign = make(Trainer(clock))
    campaign.run()
    table = campaign.evaluate()
    assert len(played) == len(LEVELS)
    again = make(Trainer(clock))
    again.run()
    assert again.evaluate() == json.loads((tmp_path / "table.json").read_text())
    assert len(played) == len(LEVELS)
    assert f"played before, see {tmp_path / 'table.json'}" in (
        again.board._console.file.getvalue().replace("\n", "")
    )
    single = [row for row in table["single"] if row["level"] != "1-2"]
    for content in (json.dumps(table | {"single": single}), "{", "[]", "{}"):
        (tmp_path / "table.json").write_text(content)
        played.clear()
        make(Trainer(clock)).evaluate()
        assert sorted(played) == list(LEVELS)
    again.policy("one").touch()  # and another policy than before
    played.clear()
    assert len(make(Trainer(clock)).evaluate()["one"]) == 2 * len(LEVELS)
    assert len(played) == len(LEVELS) + 1


SMALL = (
    "--levels 1-1,1-2 --max-seconds 24 --slice-seconds 5 --episodes 2 --jobs 2 "
    "--merge-share 0.4"
)


@pytest.mark.slow
@pytest.mark.rom
def test_a_small_campaign(tmp_path, capsys, monkeypatch):
    # Policies of a few seconds play long episodes.
    monkeypatch.setattr(module, "_CHOICE_EPISODES", 4)
    monkeypatch.setattr(one_network, "_EPISODES", 2)
    folder = tmp_path / "campaign"
    assert main([*SMALL.split(), "--run-dir", str(folder)]) == 0
    assert "all" in capsys.readouterr().out
    state = json.loads((folder / "state.json").read_text())
    assert state["phase"] == "evaluation"
    table = json.loads((folder / "table.json").read_text())
    assert [r["level"] for r in table["single"]] == ["1-1", "1-1", "1-2", "1-2"]
    assert [r["level"] for r in table["one"]] == ["1-1", "1-2", "1-1", "1-2"]
    assert (folder / "report.html").exists()
    for name in ("1-1", "1-2", "one"):
        assert (folder / "policies" / f"{name}.safetensors").exists()
    # Nothing is left to do.
    assert main(["--resume", str(folder)]) == 0
    assert "all policies were played before, see " in capsys.readouterr().out
    assert main(["--run-dir", str(folder)]) == 2
    assert "resume it" in capsys.readouterr().err
    with FileLock(folder / ".lock"):
        assert main(["--resume", str(folder)]) == 2
    assert "another process is writing" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.rom
def test_a_small_campaign_has_more_time(tmp_path, capsys):
    """With a correction of its one network, which clears little after some seconds."""
    folder = tmp_path / "campaign"
    words = SMALL.replace("24", "44") + " --correct-one-share 0.6"
    assert main([*words.split(), "--run-dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "corrections in " in out
    assert ("one network corrected: mean" in out) == (folder / "corrected").exists()
    state = json.loads((folder / "state.json").read_text())
    steps = {name: level["attempts"] for name, level in state["levels"].items()}
    assert main(["--resume", str(folder), "--more-seconds", "10"]) == 0
    assert "played before" not in capsys.readouterr().out
    more = json.loads((folder / "state.json").read_text())
    assert (more["phase"], more["max_seconds"]) == ("evaluation", 54)
    assert {name: level["attempts"] for name, level in more["levels"].items()} != steps
    options = json.loads((folder / "campaign.json").read_text())
    assert "--max-seconds=54" in options["command"]
