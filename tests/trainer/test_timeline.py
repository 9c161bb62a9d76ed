"""The bench's timeline of all cores: sums, phases, and what it says of threads."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from material import ROOT
from PIL import Image
from rich.console import Console
from small_runs import make_config

from trainer.machine import monitor
from trainer.machine.monitor import mark
from trainer.session.training import open_run


@pytest.fixture
def timeline(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("timeline")


linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux has clocks of threads"
)


@linux
@pytest.mark.parametrize("lag", [0, 1])
def test_the_sums_of_a_run(timeline, tmp_path, pools, monkeypatch, lag):
    """All time is some phase's, and what is busy agrees with the process's clock."""
    spent = []
    enter, leave = timeline.Sampler.__enter__, timeline.Sampler.__exit__

    def first(sampler):
        entered = enter(sampler)
        spent.append(time.process_time())
        return entered

    def last(sampler, *error):
        spent.append(time.process_time())
        leave(sampler, *error)

    monkeypatch.setattr(timeline.Sampler, "__enter__", first)
    monkeypatch.setattr(timeline.Sampler, "__exit__", last)
    with closing(open_run(make_config(tmp_path, lag=lag))) as run:
        run.start()
        before = run.collector.steps
        recording = timeline.record(run, 6)
        assert 0 < recording.steps < run.collector.steps - before
    rows = timeline.rows_of(recording)
    whole = timeline.total(rows)
    # Phases cover the updates, each moment once.
    wall = recording.updates[-1] - recording.updates[0]
    assert len(recording.updates) == 7
    assert np.all(np.diff(recording.edges) >= 0)
    assert whole.wall == pytest.approx(wall)
    tops = {path[0] for path in rows if path}
    assert tops == {"collect", "learn"}
    outside = rows[()].wall
    parts = sum(timeline.total(rows, top).wall for top in tops)
    assert parts + outside == pytest.approx(wall)
    inside = {path[1] for path in rows if len(path) == 2}
    assert {"gradients", "optimizer"} <= inside
    assert ("wait_batch" if lag else "act") in inside
    # Two clocks: of the threads one by one, and of the process.
    busy, process = sum(whole.busy.values()), spent[1] - spent[0]
    assert busy == pytest.approx(process, rel=0.1, abs=0.02)
    assert busy + whole.idle(recording.cores) == pytest.approx(recording.cores * wall)
    causes = timeline.causes_of(rows, recording.cores)
    assert sum(causes.values()) == pytest.approx(whole.idle(recording.cores))
    assert 0 <= recording.taken <= recording.cores * wall + 0.1  # counted in ticks
    kinds = set(recording.kinds.values())
    assert {"main", "shards", "other"} <= kinds
    assert ("collector" in kinds) == bool(lag)
    assert whole.busy["main"] > 0
    assert whole.busy["shards"] > 0
    assert "sampler" in recording.names.values()


@linux
def test_a_thread_that_works_and_one_that_sleeps(timeline):
    """A thread's own word on its time is what was sampled of it."""
    stop, own, ids = threading.Event(), {}, {}

    def work() -> None:
        ids["work"] = threading.get_native_id()
        start = time.thread_time()
        while not stop.is_set():
            sum(range(1000))
        own["work"] = time.thread_time() - start

    def sleep() -> None:
        ids["sleep"] = threading.get_native_id()
        stop.wait()

    sampler = timeline.Sampler()
    with sampler:
        threads = [threading.Thread(target=target) for target in (work, sleep)]
        for thread in threads:
            thread.start()
        while not (
            set(ids.values()) <= (seen := sampler.curves()).keys()
            and len(ids) == 2
            and seen[ids["work"]][1][-1] > 0.05
        ):
            time.sleep(0.01)
        stop.set()
        for thread in threads:
            thread.join()
    curves = sampler.curves()
    assert curves[ids["work"]][1][-1] == pytest.approx(own["work"], rel=0.2, abs=0.01)
    assert curves[ids["sleep"]][1][-1] < 0.01
    for times, spent in curves.values():
        assert np.all(np.diff(times) > 0)
        assert np.all(np.diff(spent) >= 0)


@linux
def test_marks_of_other_threads_are_no_phases(timeline, monkeypatch):
    phases = timeline.Phases(timeline.Sampler())

    def elsewhere() -> None:
        with mark("elsewhere"):
            pass

    with monkeypatch.context() as patched:
        patched.setattr(monitor, "open_range", phases)
        with mark("outer"):
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            with pytest.raises(KeyError), mark("inner"):
                raise KeyError
    assert [path for _, path in phases.changes] == [
        ("outer",), ("outer", "inner"), ("outer",), (),
    ]  # fmt: skip
    with mark("later"):
        pass
    assert len(phases.changes) == 4


@pytest.mark.slow
@linux
def test_tables_and_a_picture(timeline, tmp_path, pools):
    console = Console(record=True, width=100)
    path = tmp_path / "pictures" / "timeline.png"
    timeline.run_timeline(make_config(tmp_path), path, 3, console)
    text = console.export_text()
    for word in ("collect", "optimizer", "update", "idle", "the sampler ran"):
        assert word in text
    assert "used by other processes" in text
    phases = text.partition("idle time of the cores")[0].strip().splitlines()
    last = phases[-1].split()
    assert last[0] == "update"
    shares = [float(share) for share in last[3:]]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    with Image.open(path) as picture:
        assert picture.width > 1000
        assert len(picture.convert("RGB").getcolors(2**24)) > 20


def test_elsewhere_it_says_so(timeline, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match="needs Linux"):
        timeline.run_timeline(
            make_config(tmp_path), tmp_path / "x.png", 1, Console(quiet=True)
        )
