"""Episode statistics, the writer, time shares and the bottleneck."""

import json
import math
import os
import re
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_pools import Followed

from mario_envpool import END_REASONS
from trainer.config.plain import flat, to_dict
from trainer.config.schema import RunConfig
from trainer.config.tasks import all_levels
from trainer.machine import files
from trainer.machine.files import EPISODES, Lines
from trainer.machine.timings import Timings
from trainer.rollout.episodes import STAGNATION_STEPS, OpenEpisodes
from trainer.rollout.finished import FinishedEpisodes
from trainer.show import metrics, run_files, tracking
from trainer.show.metrics import bottleneck
from trainer.show.tracking import MetricsWriter


def add(tracker, env, reward, done, x=0, flag=False):
    tracker.add(
        np.array([env], np.int32),
        np.array([reward], np.float32),
        np.array([done]),
        {"x_pos": np.array([x]), "flag_get": np.array([flag])},
    )


def test_episodes_follow_autoreset():
    tracker = Followed(2, window=2)
    add(tracker, 1, 0, False, x=40)
    add(tracker, 0, 0, False, x=40)
    add(tracker, 1, 2, False, x=300)
    add(tracker, 1, 0, False, x=65531)  # he leans out of the room's left end
    add(tracker, 1, -1, True, x=200)  # the best counts, not the last
    add(tracker, 1, 0, False, x=40)  # the reset
    add(tracker, 1, 5, True, x=50, flag=True)
    add(tracker, 0, 1, False, x=9999)  # unfinished: not counted
    first, second = tracker.finished.recent
    assert first == (1.0, 3, 300, False, 0)
    assert second == (5.0, 1, 50, True, 0)
    assert tracker.finished.statistics()["first_clear_episode"] == 2
    assert tracker.finished.clear_rates() == [0.5]
    statistics = tracker.statistics()
    assert statistics["first_clear_episode"] == 2
    assert statistics["best_x_50"] == 175
    for _ in range(2):  # the 300 leaves the window and stays the run's
        add(tracker, 1, 0, False, x=40)
        add(tracker, 1, 0, True, x=60)
    later = tracker.statistics()
    assert (later["best_x_max"], later["best_x_run"]) == (60, 300)
    assert statistics["return"] == 3
    assert statistics["episodes"] == 2


def test_episodes_with_actions_of_a_teacher_do_not_count():
    tracker = Followed(2)
    for env in (0, 1):
        add(tracker, env, 0, False)
        add(tracker, env, 0, False)
    tracker.open.teach(np.array([1], np.int32))
    for env in (1, 0):
        add(tracker, env, 7 + env, True, flag=True)
    (only,) = tracker.finished.recent
    assert only.total_reward == 7
    add(tracker, 1, 0, False)
    add(tracker, 1, 3, True)  # of the student alone
    assert tracker.finished.recent[-1].total_reward == 3
    assert len(tracker.finished.recent) == 2


def test_a_few_lucky_episodes_are_no_rate():
    tracker = Followed(1, window=4)
    for _ in range(2):
        add(tracker, 0, 0, False)
        add(tracker, 0, 1, True, flag=True)
    assert tracker.finished.clear_rates() == [0.5]
    assert tracker.statistics()["clear_rate"] == 1


def test_episodes_without_positions():
    tracker = Followed(1)
    one = np.array([0], np.int32)
    tracker.add(one, np.array([0.0]), np.array([False]), {})
    tracker.add(one, np.array([1.0]), np.array([True]), {})
    assert tracker.finished.recent[0] == (1.0, 1, 0, False, 0)
    statistics = tracker.statistics()
    assert "env_progress_dx" not in statistics
    assert "stagnation_envs" not in statistics


def test_every_episode_has_a_line():
    episodes = OpenEpisodes(3, levels=("1-1", "1-2"), num_stages=2)
    ended = FinishedEpisodes()

    def rows(step, done, reason, x, start=0):
        info = {
            "env_id": np.arange(3, dtype=np.int32),
            "elapsed_step": np.array(step, np.int32),
            "world": np.array([1, 1, 1]),
            "stage": np.array([1, 2, 1]),
            "x_pos": np.array(x),
            "y_pos": np.array([79, 250, 100]),
            "area_pointer": np.array([37, 40, 37]),
            "time": np.array([300, 200, 0]),
            "end_reason": np.array([END_REASONS.index(name) for name in reason]),
            "flag_get": np.array([name == "flag" for name in reason]),
            "start": np.array([0, 1, 2]),
        }
        done = np.array(done)
        ended.observe(
            episodes.observe(np.ones(3, np.float32), done, done & False, info)
        )

    rows([0, 0, 0], [False] * 3, ["none"] * 3, [40, 40, 40])
    rows([1, 1, 1], [True, True, False], ["flag", "death", "none"], [99, 70, 60])
    rows([0, 0, 2], [False, False, True], ["none", "none", "death"], [40, 40, 65])
    # He leans out of the room's left end.
    rows([1, 0, 0], [True, False, False], ["stall", "none", "none"], [65_533, 40, 40])
    lines = [new.line for new in ended.take_new()]
    assert [line["end"] for line in lines] == [
        "cleared", "died", "timed out", "stalled"
    ]  # fmt: skip
    assert [line["from_snapshot"] for line in lines] == [False, False, True, False]
    assert lines[-1] == {
        "from_snapshot": False, "steps": 1, "return": 2.0, "level": "1-1",
        "best_x": 40, "end": "stalled", "end_level": "1-1", "area": 37, "x": 0,
        "y": 79,
    }  # fmt: skip
    assert lines[1]["y"] == 0  # out of the screen
    assert ended.count == 3


def test_a_full_file_of_episodes_is_renamed(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MOST_BYTES", 20)
    lines, others = (Lines(tmp_path / n, pytest.fail) for n in (EPISODES[0], "x.jsonl"))
    for number in range(8):
        for some in (lines, others):
            some.write({"step": number})
    lines.close()
    others.close()
    steps = [re.findall(r"\d", (tmp_path / name).read_text()) for name in EPISODES]
    assert steps == [["6", "7"], ["4", "5"]]
    # Where that cannot be, lines are lost and the run continues.
    (tmp_path / EPISODES[1]).unlink()
    (tmp_path / EPISODES[1]).mkdir()
    said = []
    lines = Lines(tmp_path / EPISODES[0], said.append)
    assert not any(lines.write({"step": number}) for number in (8, 9))
    lines.close()
    assert len(said) == 1
    assert "could not write to" in said[0]
    with pytest.raises(OSError, match=r"1\.jsonl \(Is a directory\); move it away"):
        Lines(tmp_path / EPISODES[1], pytest.fail)
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 8


def last_episodes(folder):
    """What a report of a run reads of its episodes."""
    (folder / "config.json").write_text("{}")
    return run_files.read_run(folder).episodes


EPISODE = {
    "step": 9, "level": "1-2", "end": "died", "end_level": "1-2", "area": 64,
    "x": 70, "y": 79, "steps": 3,
}  # fmt: skip


def test_ends_of_training_episodes_by_level(tmp_path):
    ends = [{}, {"x": 95}, {"end": "cleared", "x": 9}, {"end": "a later version's"}]
    rows = run_files.ends_by_level([EPISODE | end for end in ends])
    heads = ("level", "episodes", "cleared", "died", "stalled", "timed out")
    assert run_files.ENDS_HEADS[:-1] == heads
    assert rows == [("1-2", 4, "25%", "50%", "0%", "0%", "1-2 x 64: 3")]


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"level": "1-', b"\xff\x00{}\n\n", b"[" * 100_000, b"5", b"1" * 5_000,
        *(
            json.dumps(EPISODE | wrong).encode()
            for wrong in (
                {"x": "<b>"}, {"x": 1.5}, {"x": math.nan}, {"x": True}, {"x": -1},
                {"x": 10**400}, {"y": math.inf}, {"area": None}, {"area": 256},
                {"level": ["1-2"]}, {"end": {}}, {"end_level": 3}, {"step": None},
            )
        ),
        json.dumps({"step": 9, "from_snapshot": False, "steps": 3}).encode(),
    ],
    ids=lambda line: line[:12],
)  # fmt: skip
def test_episodes_that_cannot_be_read_are_left_out(tmp_path, damaged):
    later = EPISODE | {"new": [1, {"deep": None}]}
    good = [json.dumps(line).encode() for line in (EPISODE, later)]
    (tmp_path / EPISODES[0]).write_bytes(b"\n".join([good[0], damaged, good[1]]))
    assert last_episodes(tmp_path) == [EPISODE, later]


def test_the_last_episodes_of_long_runs(tmp_path, monkeypatch):
    assert last_episodes(tmp_path) == []  # an old run
    (tmp_path / EPISODES[0]).touch()
    assert last_episodes(tmp_path) == []
    for name, numbers in zip(EPISODES, ([5_000], range(5_000)), strict=True):
        lines = [json.dumps(EPISODE | {"step": number}) for number in numbers]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    steps = [line["step"] for line in last_episodes(tmp_path)]
    assert steps == list(range(3_001, 5_001))
    (tmp_path / EPISODES[0]).unlink()
    (tmp_path / EPISODES[0]).mkdir()  # cannot be read
    assert len(last_episodes(tmp_path)) == 2_000


def test_progress_is_the_growth_of_the_best_position():
    tracker = Followed(2)
    add(tracker, 0, 0, False, x=40)  # where an episode opens is no progress
    add(tracker, 1, 0, False, x=40)
    assert tracker.statistics()["env_progress_dx"] == 0
    add(tracker, 0, 0, False, x=50)
    add(tracker, 1, 0, False, x=46)
    add(tracker, 0, 0, False, x=45)  # back: nothing
    add(tracker, 0, 0, True, x=60)
    assert tracker.statistics()["env_progress_dx"] == (10 + 6 + 0 + 10) / 4
    add(tracker, 0, 0, False, x=40)  # a new episode
    add(tracker, 0, 0, False, x=43)
    assert tracker.statistics()["env_progress_dx"] == 3


def test_environments_without_progress_are_counted():
    tracker = Followed(2)
    for env in (0, 1):
        add(tracker, env, 0, False, x=40)
    for step in range(STAGNATION_STEPS - 1):
        add(tracker, 0, 0, False, x=40)
        add(tracker, 1, 0, False, x=41 + step)
    assert tracker.statistics()["stagnation_envs"] == 0
    add(tracker, 0, 0, False, x=30)
    assert tracker.statistics()["stagnation_envs"] == 1
    add(tracker, 0, 0, False, x=41)  # it goes on
    assert tracker.statistics()["stagnation_envs"] == 0
    for _ in range(STAGNATION_STEPS):
        add(tracker, 0, 0, False, x=41)
    assert tracker.statistics()["stagnation_envs"] == 1
    add(tracker, 0, 0, True, x=41)  # a finished episode does not stagnate
    assert tracker.statistics()["stagnation_envs"] == 0
    for _ in range(STAGNATION_STEPS):
        assert tracker.statistics()["stagnation_envs"] == 0
        add(tracker, 0, 0, False, x=0)
    add(tracker, 0, 0, False, x=0)
    assert tracker.statistics()["stagnation_envs"] == 1


def test_episodes_from_snapshots_are_left_out_of_progress():
    tracker = Followed(2, num_stages=1)

    def see(env, x, start):
        info = {"x_pos": np.array([x]), "start": np.array([start])}
        one = np.array([env], np.int32)
        tracker.add(one, np.zeros(1, np.float32), np.array([False]), info)

    see(0, 40, 0)  # from the level's start
    see(1, 40, 1)  # from a snapshot
    see(0, 45, 0)
    see(1, 140, 1)
    assert tracker.statistics()["env_progress_dx"] == 5
    for _ in range(STAGNATION_STEPS):
        see(1, 140, 1)
    assert tracker.statistics()["stagnation_envs"] == 0
    for _ in range(STAGNATION_STEPS):
        see(0, 45, 0)
    assert tracker.statistics()["stagnation_envs"] == 1


def whole_game_info(world, stage, flag):
    return {
        "world": np.array([world]),
        "stage": np.array([stage]),
        "flag_get": np.array([flag]),
        "x_pos": np.array([50]),
    }


def test_levels_passed_in_a_whole_game():
    game = all_levels("SuperMarioBros-v0")
    tracker = Followed(1, window=4, game=game)
    one = np.array([0], np.int32)

    def play(*rows):
        """Rows (world, stage, flag), of which the last one ends the episode."""
        for number, row in enumerate(rows):
            done = np.array([number == len(rows) - 1])
            info = whole_game_info(*row)
            tracker.add(one, np.zeros(1, np.float32), done, info)

    play((1, 1, False), (1, 1, True), (1, 2, False))
    play((1, 1, False), (1, 1, True), (1, 2, False), (4, 1, False))  # by a warp zone
    play((1, 1, False), (8, 4, False), (8, 4, True))
    passed = [episode.levels_passed for episode in tracker.finished.recent]
    assert passed == [1, 12, 32]
    assert [episode.cleared for episode in tracker.finished.recent] == [0, 0, 1]
    assert tracker.finished.score() == (1 + 12 + 32) / 4  # the fourth is missing
    assert tracker.statistics()["levels_passed"] == 15
    assert tracker.finished.clear_rates() == [0.25]
    play((1, 1, False), (1, 1, True), (1, 1, False))  # a level's flag is not the end
    assert tracker.finished.clear_rates() == [0.25]
    assert tracker.finished.recent[-1].levels_passed == 0
    assert tracker.finished.cleared_levels() == [""]  # the game has no level's name
    assert tracker.finished.level_statistics() == {}


def test_clear_rates_by_level():
    tracker = Followed(2, window=2)

    def rates():
        statistics = tracker.finished.level_statistics()
        return {k[7:]: v for k, v in statistics.items() if k.startswith("levels/")}

    def play(env, world, stage, clears):
        for flag in clears:
            for done in (False, True):
                info = {
                    "flag_get": np.array([flag and done]),
                    # What the last row says is not where the episode began.
                    "world": np.array([8 if done else world]),
                    "stage": np.array([stage]),
                }
                ids, zero = np.array([env], np.int32), np.zeros(1, np.float32)
                tracker.add(ids, zero, np.array([done]), info)

    assert rates() == {}
    play(0, 4, 2, [True])
    assert rates() == {}  # one level is what clear_rate tells
    play(1, 1, 3, [True, True, False])
    play(0, 4, 2, [True])
    assert rates() == {"1-3": 0.5, "4-2": 1.0}
    assert list(rates()) == ["1-3", "4-2"]
    assert tracker.statistics()["clear_rate"] == 0.5
    assert tracker.finished.cleared_levels() == [
        "4-2",
        "1-3",
    ]  # in the order of first clears
    play(0, 1, 1, [False])
    again = FinishedEpisodes(window=2)
    again.restore(tracker.finished.state())
    play(0, 8, 1, [True])
    assert tracker.finished.cleared_levels() == ["4-2", "1-3", "8-1"]
    assert again.cleared_levels() == ["4-2", "1-3"]
    assert again.statistics()["first_clear_episode"] == 1


def test_episodes_are_read_while_another_thread_adds():
    tracker, stop = Followed(1, window=500), threading.Event()

    def collect():
        while not stop.is_set():
            add(tracker, 0, 1, True)

    thread = threading.Thread(target=collect)
    thread.start()
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        tracker.finished.clear_rates()
        tracker.statistics()
    stop.set()
    thread.join()
    assert tracker.statistics()["episodes"] == tracker.finished.count > 0


def test_writer_writes_jsonl_and_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

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


def test_tensorboard_has_no_video_where_there_is_no_room(tmp_path, monkeypatch):
    """Its writer does not survive a full disk."""
    gif = b"GIF89a" + bytes(100)
    writer = tracking.MetricsWriter(tmp_path, {})
    writer.write_video(1, "first", tmp_path / "x.mp4", gif)
    monkeypatch.setattr(tracking, "_BOARD_NEEDS_BYTES", 2**60)
    writer.write_video(2, "second", tmp_path / "x.mp4", gif)
    writer.close()
    (events,) = tmp_path.glob("events*")
    assert b"videos/first" in events.read_bytes()
    assert b"videos/second" not in events.read_bytes()


@pytest.fixture
def wandb_at_home(tmp_path, monkeypatch):
    """The real client without credentials or settings; it reads both once."""
    import wandb

    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    warnings = []
    monkeypatch.setattr(wandb, "termwarn", lambda text, **_: warnings.append(text))
    wandb.teardown()
    yield warnings
    wandb.teardown()


def open_wandb(run_dir, **options):
    import wandb

    run_dir.mkdir(exist_ok=True)
    writer = MetricsWriter(run_dir, {"seed": 1}, wandb=True, **options)
    return writer, wandb.run


@pytest.mark.slow
@pytest.mark.filterwarnings("error::DeprecationWarning:wandb")
def test_wandb_without_a_key_is_offline_and_warns_of_nothing(wandb_at_home, tmp_path):
    writer, run = open_wandb(tmp_path / "mine")
    assert (run.offline, run.project, run.name) == (True, "mario-envpool", "mine")
    assert Path(run.dir).is_relative_to(tmp_path / "mine")
    assert run.config["seed"] == 1
    writer.write(5, {"x": 1.0})
    (tmp_path / "a.mp4").write_bytes(b"no film")
    writer.write_video(5, "first", tmp_path / "a.mp4", b"GIF89a" + bytes(100))
    writer.close()
    assert wandb_at_home == []


@pytest.mark.slow
def test_wandb_goes_by_its_own_environment(wandb_at_home, tmp_path, monkeypatch):
    given = {
        "MODE": "offline", "PROJECT": "plumbing", "ENTITY": "us", "NAME": "pipe",
        "RUN_GROUP": "pipes", "TAGS": "green,long", "DIR": str(tmp_path / "elsewhere"),
        "RUN_ID": "abc123",
    }  # fmt: skip
    (tmp_path / "elsewhere").mkdir()
    for name, value in given.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    writer, run = open_wandb(tmp_path / "mine")
    found = (run.offline, run.project, run.entity, run.name, run.group, run.tags)
    assert found == (True, "plumbing", "us", "pipe", "pipes", ("green", "long"))
    assert run.id == "abc123"
    assert Path(run.dir).is_relative_to(tmp_path / "elsewhere")
    writer.close()


def test_wandb_is_off_where_its_environment_says_so(
    wandb_at_home, tmp_path, monkeypatch
):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    writer, run = open_wandb(tmp_path / "mine")
    assert run.disabled
    writer.write(5, {"x": 1.0})
    writer.close()
    assert not list((tmp_path / "mine").glob("*wandb*"))


@pytest.mark.slow
def test_a_resumed_run_is_the_same_one_on_wandb(wandb_at_home, tmp_path):
    ids = []
    for folder, resumed_at in [("a", 0), ("a", 100), ("b", 100), ("a", 0)]:
        writer, run = open_wandb(tmp_path / folder, resumed_at=resumed_at)
        ids.append(run.id)
        writer.close()
    assert ids[0] == ids[1]
    # Another folder, or another run in this one, is another run there.
    assert len(set(ids)) == 3


class FakeWandb:
    """Weights & Biases with credentials or without, and a run that it knows."""

    Video = Settings = SimpleNamespace

    def __init__(self, *, key, step=0):
        self.key, self.calls = key, []
        self.run = SimpleNamespace(
            id="known", disabled=False, resumed=step > 0, step=step,
            log=lambda values, step: self.calls.append((step, values)),
            finish=lambda: self.calls.append("finish"),
        )  # fmt: skip

    def setup(self):
        nothing = dict.fromkeys(("project", "run_name", "run_id", "resume"))
        return SimpleNamespace(settings=SimpleNamespace(mode="online", **nothing))

    def login(self, *, prompt, verify):
        assert (prompt, verify) == (False, False)  # neither waits for anybody
        return self.key

    def init(self, **options):
        self.calls.append(options)
        return self.run


@pytest.mark.parametrize(("key", "mode"), [(False, "offline"), (True, None)])
def test_wandb_is_offline_without_a_key(tmp_path, monkeypatch, key, mode):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    client = FakeWandb(key=key)
    monkeypatch.setitem(sys.modules, "wandb", client)
    writer = MetricsWriter(tmp_path, {"seed": 1}, wandb=True)
    writer.write(5, {"x": 1.0})
    writer.close()
    assert client.calls[0]["mode"] == mode
    assert client.calls[0]["config"] == {"seed": 1}
    assert client.calls[1:] == [(5, {"x": 1.0}), "finish"]


def test_wandb_takes_no_point_twice(tmp_path, monkeypatch):
    """A killed run has logged more than its checkpoint knows, and steps only rise."""
    monkeypatch.delenv("WANDB_MODE", raising=False)
    client = FakeWandb(key=True, step=31)
    monkeypatch.setitem(sys.modules, "wandb", client)
    (tmp_path / "wandb-id.txt").write_text("known\n")
    writer = MetricsWriter(tmp_path, {}, wandb=True, resumed_at=20)
    assert (client.calls[0]["id"], client.calls[0]["resume"]) == ("known", "allow")
    for step in (30, 31, 40):
        writer.write(step, {"x": 1.0})
    assert [step for step, _ in client.calls[1:]] == [31, 40]
    writer.close()


def test_tensorboard_has_the_hyper_parameters_and_the_command(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    config = to_dict(RunConfig(run_dir=Path("x"), max_steps=77))
    writer = MetricsWriter(tmp_path, config, command="python -m trainer.run --seed 3")
    writer.write(10, {"rollout/return": 1.5})
    writer.close()
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]  # one run
    events = EventAccumulator(str(tmp_path)).Reload()

    def known(tag):
        content = events.SummaryMetadata(f"_hparams_/{tag}").plugin_data.content
        return HParamsPluginData.FromString(content)

    shown = known("session_start_info").session_start_info.hparams
    assert set(shown) == set(flat(config))
    assert shown["max_steps"].number_value == 77
    assert shown["learner.optimizer"].string_value == "muon"
    assert shown["stop_when_solved"].number_value == 1
    assert (shown["run_dir"].string_value, shown["env.levels"].string_value) == (
        "x",
        "[]",
    )
    columns = {m.name.tag for m in known("experiment").experiment.metric_infos}
    assert {"rollout/clear_rate", "rollout/return"} <= columns
    # The columns are curves of the run; none is made up for them.
    assert events.Tags()["scalars"] == ["rollout/return"]
    (text,) = events.Tensors("command/text_summary")
    assert b"python -m trainer.run --seed 3" in text.tensor_proto.string_val[0]


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is told to go on."""
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def go_on(seconds):
        now[0] += seconds

    return go_on


def test_timings_are_shares_since_the_last_call(clock):
    timings = Timings()
    with timings("act"):
        clock(1)
    clock(2)
    with timings("act"):
        clock(1)
    assert timings.shares() == {"act": 0.5}
    with timings("learn"):
        clock(3)
    clock(1)
    assert timings.shares() == {"act": 0, "learn": 0.75}
    with timings("learn"):
        clock(10)
        timings.shares()  # in the middle of it
    clock(5)
    assert timings.shares() == {"act": 0, "learn": 1}


def test_timings_of_two_threads_lose_nothing(monkeypatch):
    """Each block of a worker takes one tick of its own clock."""
    local, rounds, long = threading.local(), 20_000, 10**9

    def now():
        main = threading.current_thread() is threading.main_thread()
        local.ticks = getattr(local, "ticks", 0) + (long if main else 1)
        return local.ticks

    monkeypatch.setattr("time.perf_counter", now)
    timings, totals = Timings(), {"act": 0.0, "learn": 0.0}

    def loop(name):
        for _ in range(rounds):
            with timings(name):
                pass

    threads = [threading.Thread(target=loop, args=(name,)) for name in totals]
    for thread in threads:
        thread.start()
    working = True
    while working:
        working = any(thread.is_alive() for thread in threads)
        for name, share in timings.shares().items():
            totals[name] += share * long
    # Shares are rounded; a lost block would be a whole tick.
    assert totals == pytest.approx({"act": rounds, "learn": rounds}, abs=0.01)


WAITING = {"wait": 0.45, "act": 0.2, "store": 0.1, "learn": 0.25}
LEARNING = {"wait": 0.2, "act": 0.1, "store": 0.1, "learn": 0.6}
ACTING = {"wait": 0.1, "copy": 0.1, "act": 0.2, "send": 0.1, "store": 0.2, "learn": 0.3}
EXPLORING = {"wait": 0.1, "act": 0.2, "explore": 0.3, "learn": 0.4}
MIXED = {"wait": 0.33, "act": 0.33, "learn": 0.33}
# Collector and learner in two threads; each one's shares add up to 1.
STARVED = {"wait": 0.7, "act": 0.3, "learn": 0.5, "wait_batch": 0.5}
STARVED_BY_ACTING = {"wait": 0.2, "act": 0.5, "store": 0.3} | {
    "learn": 0.5,
    "wait_batch": 0.5,
}
HELD_UP = {"wait": 0.45, "act": 0.2, "wait_learner": 0.35, "learn": 1.0}
EVEN = {"wait": 0.6, "act": 0.36, "wait_learner": 0.04, "learn": 0.95} | {
    "wait_batch": 0.05
}


def test_a_row_of_the_table_is_a_metric_of_runs():
    """The code that measures it names it, perhaps without a prefix."""
    folder = Path(metrics.__file__).parent.parent
    files = [path for path in folder.rglob("*.py") if path.parent.name != "show"]
    code = "".join(path.read_text() for path in files)
    for key in metrics.METRICS:
        name = key.rpartition("/")[2].removeprefix("share_")
        assert re.search(rf"\b{name}\b", code), key


@pytest.mark.parametrize(
    ("shares", "gpu", "overlapped", "expected", "remedy"),
    [
        (WAITING, None, False, "emulation-bound", "waits 45%"),
        (WAITING, 0.3, False, "emulation-bound", "--num-threads"),
        (LEARNING, None, False, "learning-bound (CPU)", "--epochs"),
        (LEARNING, 0.95, False, "GPU-bound", "kernels run 95%"),
        (LEARNING, 0.4, False, "learning-bound (CPU)", "--lag 1"),
        (ACTING, None, False, "acting-bound (CPU)", "take 50%"),
        (ACTING, 0.3, False, "acting-bound (CPU)", "fewer --groups"),
        (EXPLORING, None, False, "acting-bound (CPU)", "take 50%"),
        (ACTING, 0.9, False, "GPU-bound", "--model"),
        (MIXED, None, False, "balanced", "no part"),
        (MIXED, 0.9, False, "GPU-bound", "--model"),
        ({}, None, False, "balanced", "no part"),
        (STARVED, 0.5, True, "emulation-bound", "waits 70%"),
        (STARVED_BY_ACTING, 0.5, True, "acting-bound (CPU)", "take 80%"),
        (STARVED_BY_ACTING, 0.9, True, "GPU-bound", "kernels run 90%"),
        (HELD_UP, 0.9, True, "GPU-bound", "kernels run 90%"),
        (HELD_UP, 0.5, True, "learning-bound (CPU)", "--minibatch-size"),
        (HELD_UP, None, True, "learning-bound (CPU)", "--epochs"),
        (EVEN, 0.5, True, "balanced", "no part"),
        (EVEN, 0.9, True, "GPU-bound", "kernels"),
    ],
)
def test_the_bottleneck(shares, gpu, overlapped, expected, remedy):
    values = {f"time/share_{name}": share for name, share in shares.items()}
    if gpu is not None:
        values["system/gpu_utilisation"] = gpu
    text = bottleneck(values, overlapped)
    assert text.partition(":")[0] == expected
    assert remedy in text
    assert "\n" not in text
    assert not overlapped or "--lag" not in text  # only for threads in turns


def test_skipped_time_counts_for_no_share(clock):
    timings = Timings()
    with timings("learn"):
        clock(1.0)
    clock(8.0)
    timings.skip(8.0)
    assert timings.shares() == {"learn": 1.0}
