"""Episode statistics, the writer and the progress line."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from trainer.metrics import (
    EpisodeTracker,
    MetricsWriter,
    Timings,
    format_seconds,
    progress_legend,
    progress_line,
)


def add(tracker, env, reward, done, x=0, flag=False):
    tracker.add(
        np.array([env], np.int32),
        np.array([reward], np.float32),
        np.array([done]),
        {"x_pos": np.array([x]), "flag_get": np.array([flag])},
    )


def test_tracker_follows_autoreset():
    tracker = EpisodeTracker(2, window=2)
    add(tracker, 1, 0, False, x=40)
    add(tracker, 0, 0, False, x=40)
    add(tracker, 1, 2, False, x=300)
    add(tracker, 1, -1, True, x=200)  # the best counts, not the last
    add(tracker, 1, 0, False, x=40)  # the reset
    add(tracker, 1, 5, True, x=50, flag=True)
    add(tracker, 0, 1, False, x=9999)  # unfinished: not counted
    first, second = tracker.recent
    assert first == (1.0, 2, 300, False)
    assert second == (5.0, 1, 50, True)
    assert tracker.first_clear == 2
    assert tracker.clear_rate() == 0.5
    statistics = tracker.statistics()
    assert statistics["best_x_50"] == 175
    for _ in range(2):  # the 300 leaves the window and stays the run's
        add(tracker, 1, 0, False, x=40)
        add(tracker, 1, 0, True, x=60)
    later = tracker.statistics()
    assert (later["best_x_max"], later["best_x_run"]) == (60, 300)
    assert statistics["return"] == 3
    assert statistics["episodes"] == 2


def test_clear_rate_waits_for_a_full_window():
    tracker = EpisodeTracker(1, window=3)
    for _ in range(2):
        add(tracker, 0, 0, False)
        add(tracker, 0, 1, True, flag=True)
    assert tracker.clear_rate() == 0
    assert tracker.statistics()["clear_rate"] == 1


def test_tracker_without_positions():
    tracker = EpisodeTracker(1)
    one = np.array([0], np.int32)
    tracker.add(one, np.array([0.0]), np.array([False]), {})
    tracker.add(one, np.array([1.0]), np.array([True]), {})
    assert tracker.recent[0] == (1.0, 1, 0, False)


def test_writer_writes_jsonl_and_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import (
        EventAccumulator,
    )

    writer = MetricsWriter(tmp_path, {})
    writer.write(10, {"a/b": 1.5, "c": float("nan")})
    writer.write(20, {"a/b": 2.5})
    writer.close()
    lines = [
        json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert lines == [{"step": 10, "a/b": 1.5, "c": None}, {"step": 20, "a/b": 2.5}]
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("a/b")] == [(10, 1.5), (20, 2.5)]


@pytest.mark.parametrize(("key", "mode"), [(None, "offline"), ("k", "online")])
def test_wandb_is_offline_without_a_key(tmp_path, monkeypatch, key, mode):
    calls = []
    client = SimpleNamespace(
        api=SimpleNamespace(api_key=key),
        init=lambda **options: (
            calls.append(options)
            or SimpleNamespace(
                log=lambda values, step: calls.append((step, values)),
                finish=lambda: calls.append("finish"),
            )
        ),
    )
    monkeypatch.setitem(sys.modules, "wandb", client)
    writer = MetricsWriter(tmp_path, {"seed": 1}, wandb=True)
    writer.write(5, {"x": 1.0})
    writer.close()
    assert calls[0]["mode"] == mode
    assert calls[0]["config"] == {"seed": 1}
    assert calls[1:] == [(5, {"x": 1.0}), "finish"]


def test_progress_line():
    values = {
        "time/sps": 3210.4,
        "rollout/return": 1.5,
        "rollout/best_x_50": 812.3,
        "rollout/best_x_run": 3161.0,
        "rollout/clear_rate": 0.25,
    }
    line = progress_line(123456, values, eta_s=200)
    columns = ("123,456 steps", "3,210 SPS", "return    1.50", "x mean50   812")
    for text in (*columns, "max  3161", "clear  25%", "ETA 3:20"):
        assert text in line
    for column in ("SPS", "return", "x mean50", "max", "clear", "ETA"):
        assert f"{column}: " in progress_legend(4)
    assert "no episode" in progress_line(1, {}, 0)
    assert format_seconds(3725) == "1:02:05"


def test_timings_share_and_reset():
    timings = Timings()
    with timings("a"):
        pass
    assert 0 <= timings.shares()["a"] <= 1
    assert timings.shares() == {}
