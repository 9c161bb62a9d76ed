"""Episodes begin where the config says, and only those from a level's start count."""

import re
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_pools import CELL, Corridors, Followed
from small_runs import (
    CPU,
    change,
    differences,
    essence,
    make_config,
    read_points,
    run_in_parts,
    use_pools,
)

from trainer.config.schema import EnvConfig, ExploreConfig
from trainer.envs.pool import make_pool
from trainer.explore import frontier
from trainer.explore.explorer import (
    _TURN_STEPS,
    Explorer,
    Starts,
    level_weights,
)
from trainer.explore.saved import SavedStates, read_saves
from trainer.models import checkpoint
from trainer.rollout.episodes import Episode
from trainer.session import training
from trainer.session.resume import Saver
from trainer.session.training import open_run, run_training


class Two(Corridors):
    STAGES = ("1-1", "4-2")


# -- which level ---------------------------------------------------------------


def weights_of(kind, rates, best, turns=None):
    steps = (np.array(turns or [0] * len(rates)) * _TURN_STEPS).astype(np.int64)
    rates, best = np.array(rates), np.array(best)
    weights = level_weights(kind, rates, best, rates, steps)
    assert weights.sum() == pytest.approx(1.0)
    return (weights / weights.max()).tolist()


def test_levels_are_played_as_often_as_they_are_failed():
    weights = weights_of("success", [0.5, 1.0, 0.0], [1.0] * 3)
    assert weights == pytest.approx([0.5, 0.1, 1.0])


def test_levels_are_played_as_often_as_they_are_uncertain():
    rates = [0.5, 0.9, 1.0, 0.0]
    weights = weights_of("learnability", rates, rates)
    assert weights == pytest.approx([1.0, 0.36, 0.1, 0.1])
    # What was cleared before is played until it is again.
    weights = weights_of("learnability", rates, [0.5, 1.0, 1.0, 0.8])
    assert weights == pytest.approx([1.0, 0.36, 0.1, 0.8])
    # Before anything is cleared, all alike.
    assert weights_of("learnability", [0.0, 0.0], [0.0, 0.0]) == [1, 1]


def test_levels_that_are_all_solved_are_played_alike():
    assert weights_of("success", [1.0, 1.0], [1.0, 1.0]) == [1, 1]


def test_a_few_levels_are_learned_at_a_time():
    none = [0.0] * 7
    assert weights_of("curriculum", none, none, none) == [1, 1, 1, 1, 0, 0, 0]
    # What is learned, and who has had his turn, make room; what is lost comes back.
    best, turns = [0.95, 0.4, 0, 0, 0.9, 0, 0], [0.5, 1.1, 1.0, 0.9, 0.9, 0, 0]
    rates = [0.9, 0.4, 0, 0, 0.9, 0, 0]
    expected = [0.095, 1, 0, 1, 0.09, 1, 1]
    assert weights_of("curriculum", rates, best, turns) == pytest.approx(expected)
    rates = [0.3, 0.1, 0, 0, 0.9, 0, 0]
    assert weights_of("curriculum", rates, best, turns) == pytest.approx(
        [1, 0.3, 0, 1, 0.09, 1, 1]
    )


def test_levels_that_are_all_learned_are_rehearsed():
    assert weights_of("curriculum", [0.9, 1.0], [1.0, 1.0], [3, 1]) == pytest.approx(
        [1, 1]
    )


def test_steps_of_levels_are_counted():
    """Also where nothing else is told of rows, and by a run that goes on."""
    config = ExploreConfig(level_sampling="curriculum")
    pool = Two(4, 4)
    explorer = Explorer(pool, config, levels=Two.STAGES, rates=lambda: [0.0, 0.0])
    rows, no = np.arange(4, dtype=np.int32), np.zeros(4, bool)
    info = {"world": np.array([1, 4, 4, 8]), "stage": np.array([1, 2, 2, 1])}
    info |= {"start": rows * 0, "flag_get": no}
    episodes = Followed(4, levels=Two.STAGES, num_stages=2)
    for _ in range(3):
        columns = episodes.add(rows, np.zeros(4, np.float32), no, info)
        assert explorer.observe(columns, None, 0) is None
    again = Explorer(pool, config, levels=Two.STAGES, rates=lambda: [0.0, 0.0])
    again.restore(explorer.state(), going_on=True)
    assert again.state()["level_steps"] == [3, 6]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ("curriculum", [1.0, 1.0]),
        ("success", [0.2, 1.0]),
        ("learnability", [0.64, 0.1]),
        ("uniform", [1.0, 1.0]),
    ],
)
def test_the_pool_gets_the_weights_of_levels(sampling, expected):
    pool = Two(4, 4)
    config = ExploreConfig(level_sampling=sampling)
    starts = Starts(pool, config)
    starts.apply([0.8, 0.0])
    weights, snapshots = pool.sets[-1]
    assert weights == pytest.approx(np.array(expected) / sum(expected))
    assert not snapshots


class FakeArchive:
    """Two snapshots of the second level, which share what it is given."""

    def __init__(self, clear_rates=(0.0, 0.0)):
        self.clear_rates = np.array(clear_rates)

    def __len__(self):
        return 2

    def offer(self, shares):
        weights = shares[1] * np.array([0.25, 0.75])
        return np.array([1, 1]), weights, np.zeros((2, 8), np.uint8)


def test_the_frontier_has_its_share_of_levels_that_are_not_cleared():
    pool = Two(4, 4)
    config = ExploreConfig(snapshot_share=0.5, level_sampling="uniform")
    starts = Starts(pool, config, offers=FakeArchive())
    starts.apply([0.0, 0.0])
    # The first level has no snapshots.
    assert pool.sets[-1][0] == pytest.approx([0.5, 0.25, 0.0625, 0.1875])
    starts.apply([0.0, 0.8])
    assert pool.sets[-1][0] == pytest.approx([0.5, 0.45, 0.0125, 0.0375])
    starts.apply([1.0, 1.0])
    assert pool.sets[-1][0] == pytest.approx([0.5, 0.5])


def test_a_level_that_is_cleared_from_snapshots_is_worth_playing():
    pool = Two(4, 4)
    config = ExploreConfig(level_sampling="learnability")
    starts = Starts(pool, config, offers=FakeArchive([0.0, 0.5]))
    starts.apply([0.0, 0.0])
    # A quarter of all its episodes clear it: 4 p (1 - p) = .75, against the floor.
    first, second, *snapshots = pool.sets[-1][0] * 0.85
    assert first == pytest.approx(0.1)
    assert (second, sum(snapshots)) == pytest.approx((0.375, 0.375))


def test_a_forgotten_level_is_played_again():
    """Also by a run that goes on."""
    pool, now = Two(4, 4), [0.9, 0.0]
    config = ExploreConfig(level_sampling="learnability")
    explorers = [
        Explorer(pool, config, levels=Two.STAGES, rates=lambda: now) for _ in range(2)
    ]
    explorers[0].set_starts()
    explorers[1].restore(explorers[0].state(), going_on=True)
    now = [0.0, 0.0]
    for explorer in explorers:
        explorer.set_starts()
        assert pool.sets[-1][0] == pytest.approx([0.9, 0.1])


def test_statistics_are_of_the_last_episodes():
    starts = Starts(Two(4, 4), ExploreConfig(), offers=FakeArchive())
    start, yes = np.array([0, 1, 2, 5], np.int32), np.ones(4, bool)
    level = {"world": start * 0 + 1, "stage": start * 0 + 1}
    episodes, rows = Followed(4, num_stages=2), np.arange(4, dtype=np.int32)
    for done, flags in ((~yes, ~yes), (yes, np.array([True, True, True, False]))):
        info = {"start": start, "flag_get": flags} | level
        starts.observe(episodes.add(rows, np.zeros(4, np.float32), done, info))
    expected = {"snapshot_share": 0.5, "snapshot_clear_rate": 0.5}
    assert starts.statistics() == expected
    assert starts.statistics() == dict.fromkeys(expected, 0.0)


# -- which episodes count ------------------------------------------------------


def play(tracker, start, cleared):
    """An episode of two rows."""
    ids = np.zeros(1, np.int32)
    info = {"x_pos": 100, "world": 1, "stage": 1, "start": start, "flag_get": False}
    for done in (False, True):
        info["flag_get"] = done and cleared
        rows = {name: np.array([value]) for name, value in info.items()}
        columns = tracker.add(ids, np.ones(1, np.float32), np.array([done]), rows)
    return columns.finished


def test_only_episodes_from_a_levels_start_count():
    tracker = Followed(1, window=2, num_stages=1, levels=["1-1"])
    assert len(play(tracker, 0, cleared=False)) == 1
    for _ in range(3):
        assert play(tracker, 1, cleared=True) == []
    assert "first_clear_episode" not in tracker.finished.statistics()
    assert tracker.finished.clear_rates() == [0.0]
    assert tracker.statistics()["episodes"] == 1
    play(tracker, 0, cleared=True)
    assert tracker.finished.clear_rates() == [0.5]


def test_all_episodes_count_where_none_begins_elsewhere():
    assert len(play(Followed(1), 7, cleared=True)) == 1
    assert len(play(Followed(1, num_stages=1), -1, cleared=True)) == 1


# -- save states of other emulators --------------------------------------------


def with_starts(tmp_path, files, **options):
    """A config for the World program, of which the states are."""
    starts = ",".join(map(str, files))
    return make_config(
        tmp_path, **{"task": "SuperMarioBros-1-1-v3", "starts": starts} | options
    )


@pytest.mark.rom
@pytest.mark.verification
def test_a_run_begins_episodes_at_save_states(tmp_path, verification):
    folder = verification / "states"
    names = ("Level1-1", "Level1-4", "Level2-1-clouds-easy")
    one, castle, clouds = (folder / f"{name}.state" for name in names)
    levels = {"levels": ("1-1", "1-4", "4-1"), "end_episodes": 0}
    config = with_starts(tmp_path, [one, castle, castle], max_steps=60, **levels)
    made = open_run(config)
    offers = made.explorer._saved
    stages, weights, snapshots = offers.offer(np.array([0.2, 0.4, 0.3]))
    assert stages.tolist() == [0, 1, 1]
    assert weights.tolist() == [0.2, 0.2, 0.2]
    assert len(snapshots) == len(offers) == 3
    assert (snapshots[1] == snapshots[2]).all()
    offers.clear_rates[1] = 0.5
    state = made.explorer.state()
    made.explorer.restore(state, going_on=True)
    assert offers.clear_rates.tolist() == [0.0, 0.5, 0.0]
    training.train(made)
    points = read_points(config.run_dir)
    assert 0 < points[0]["explore/snapshot_share"] < 1
    with pytest.raises(ValueError, match=r"a state in 2-1, but the run plays 1-1: "):
        open_run(with_starts(tmp_path / "other", [clouds]))
    vanilla = with_starts(tmp_path / "other", [one], task="SuperMarioBros-1-1-v0")
    with pytest.raises(ValueError, match=r"cannot be loaded into rom='vanilla'"):
        open_run(vanilla)


def test_the_files_of_starts_are_found_from_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    config = with_starts(tmp_path, ["a.state", "~/b.state"]).resolved()
    files = tmp_path / "a.state", tmp_path / "home" / "b.state"
    assert config.explore.state_files == tuple(map(str, files))
    assert with_starts(tmp_path, ["level"]).resolved().explore.state_files == ()
    names = with_starts(tmp_path, ["a,b.npy", "c,.state", "1-1.npy"]).explore
    assert names.state_files == ("a,b.npy", "c,.state", "1-1.npy")
    message = r"starts must be level, .* or files .state or .npy, "
    with pytest.raises(ValueError, match=message):
        with_starts(tmp_path, ["a.state", "b.json"]).validate()


def saved(count):
    """Some states of the second of two levels."""
    return SavedStates(np.zeros((count, 8), np.uint8), np.ones(count, np.int64), 2)


def ended(start, *, cleared):
    """Columns of two episodes; the first one began at this start and ended."""
    done = np.array([True, False])
    return SimpleNamespace(
        done=done,
        from_snapshot=np.array([True, True]),
        first_place=np.array([1, 1]),
        start=np.array([start, 2]),
        cleared=np.array([cleared, False]),
    )


def test_starts_of_the_user_keep_their_share():
    """Also where the level is cleared; those at the frontier do not."""
    pool = Two(4, 4)
    config = ExploreConfig(snapshot_share=0.25, level_sampling="uniform")
    starts = Starts(pool, config, offers=saved(1))
    for rates in [0.0, 0.0], [1.0, 1.0]:
        starts.apply(rates)
        assert pool.sets[-1][0] == pytest.approx([0.5, 0.375, 0.125])


def test_a_level_is_played_more_if_it_is_not_cleared_from_the_users_starts():
    """Where the user has no starts, only the level's own one counts."""
    pool = Two(4, 4)
    config = ExploreConfig(snapshot_share=0.25, level_sampling="success")
    offers = saved(1)
    offers.clear_rates[:] = 0.0, 0.2
    starts = Starts(pool, config, offers=offers)
    starts.apply([0.6, 0.6])  # the mean of 0.6 and, in a quarter of episodes, 0.2: 0.5
    assert pool.sets[-1][0] == pytest.approx([0.4 / 0.9, 0.375 / 0.9, 0.125 / 0.9])


def test_a_state_is_played_more_if_it_is_not_cleared():
    """Also in a resumed run; never less than a tenth of one that is not cleared."""
    offers = saved(3)
    assert offers.offer(np.array([0.0, 0.3]))[1] == pytest.approx([0.1, 0.1, 0.1])
    offers.observe(ended(3, cleared=False))
    assert offers.offer(np.array([0.0, 0.3]))[1] == pytest.approx([0.1, 0.1, 0.1])
    for _ in range(50):
        offers.observe(ended(3, cleared=True))
    shares = pytest.approx([0.3 / 2.1, 0.03 / 2.1, 0.3 / 2.1])
    assert offers.offer(np.array([0.0, 0.3]))[1] == shares
    resumed = saved(3)
    resumed.restore(offers.state(), going_on=True)
    assert resumed.offer(np.array([0.0, 0.3]))[1] == shares
    others = saved(2)  # a run with other files
    others.restore(offers.state(), going_on=True)
    assert others.offer(np.array([0.0, 0.3]))[1] == pytest.approx([0.15, 0.15])
    others.observe(ended(4, cleared=True))  # began before the run was resumed
    assert others.offer(np.array([0.0, 0.3]))[1] == pytest.approx([0.15, 0.15])
    others.restore({"clear_rates": [0.0, 0.0]}, going_on=True)  # of version 0.2.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros((2, 8)), r"holds float64 with shape \(2, 8\), must hold"),
        (np.zeros((0, 8), np.uint8), r"holds uint8 with shape \(0, 8\)"),
        (np.zeros(8, np.uint8), r"holds uint8 with shape \(8,\)"),
        (np.array([{}]), "is damaged, or no array: Object arrays cannot be loaded"),
        (b"", "is damaged, or no array"),
        (b"PK\x03\x04 of an archive", "is damaged, or no array"),
    ],
)
def test_a_file_of_starts_that_holds_something_else(tmp_path, content, message):
    path = tmp_path / "1-1.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    with pytest.raises(ValueError, match=message):
        read_saves(path)


@pytest.mark.rom
def test_a_file_of_starts_that_holds_no_states_is_named(tmp_path):
    path = tmp_path / "1-1.npy"
    np.save(path, np.zeros((2, 64), np.uint8))
    with closing(make_pool(EnvConfig(num_envs=1, groups=1), 0)) as pool:
        expected = re.escape(f"{path}: cannot load this console state: ")
        with pytest.raises(ValueError, match=expected):
            SavedStates.read(pool, [str(path)], ["1-1"])


# -- whole runs ----------------------------------------------------------------


@pytest.fixture
def corridors(monkeypatch):
    """Makes runs use corridors; gives the list of them."""
    monkeypatch.setattr(frontier, "_CONFIRM_STEPS", 4)
    return use_pools(monkeypatch, Corridors)


def exploring(tmp_path, **options):
    options = {"starts": "frontier", "log_seconds": 100.0} | options
    return make_config(tmp_path, **options)


@pytest.mark.slow
def test_a_run_begins_half_of_its_episodes_at_the_frontier(
    tmp_path, corridors, monkeypatch
):
    monkeypatch.setattr(Corridors, "GOAL", 100)  # out of reach
    run_training(exploring(tmp_path, max_steps=3_000, log_seconds=0.0))
    points = read_points(tmp_path / "run")
    assert points[0]["explore/snapshot_share"] == 0.0
    later = points[len(points) // 2 :]
    assert 0.3 < np.mean([p["explore/snapshot_share"] for p in later]) < 0.7
    for name in ("cells", "snapshots", "frontier_x"):
        values = [point[f"explore/{name}"] for point in points]
        assert values[-1] > values[0], name
    # All episodes, less those that count, began at the frontier.
    episodes = int(corridors[0].episode.sum() + len(corridors[0].over))
    assert points[-1]["rollout/episodes"] < 0.8 * episodes


def test_the_frontier_of_the_whole_game_is_given_up_too(tmp_path, corridors):
    """Where a task has no levels of its own, all its episodes are what is cleared."""
    made = open_run(exploring(tmp_path, task="SuperMarioBros-v0"))
    assert made.explorer._rates() == [0.0]
    made.episodes.recent.extend([Episode(0.0, 9, 99, True)] * 100)
    assert made.explorer._rates() == [1.0]
    made.close()


def test_a_run_from_levels_sets_no_starts(tmp_path, corridors):
    run_training(exploring(tmp_path, starts="level"))
    assert corridors[0].sets == []
    names = read_points(tmp_path / "run")[-1]
    assert not [name for name in names if name.startswith("explore/")]


@pytest.mark.slow
def test_starts_are_set_while_all_environments_wait(tmp_path, corridors, monkeypatch):
    def set_starts(self, *args):
        assert not self.requests
        original(self, *args)

    original = Corridors.set_starts
    monkeypatch.setattr(Corridors, "set_starts", set_starts)
    run_training(exploring(tmp_path))
    run_training(exploring(tmp_path / "lag", lag=1))
    for pool in corridors:
        assert len(pool.sets) > 5


@pytest.mark.slow
def test_an_async_run_begins_at_the_frontier(tmp_path, corridors):
    config = exploring(tmp_path, mode="async", lag=1, max_steps=2_000)
    run_training(config)
    assert read_points(tmp_path / "run")[-1]["explore/snapshot_share"] > 0.2
    found = checkpoint.load(config.run_dir, CPU)["explore"]["frontier"]
    entries = found["entries"].numpy().view(frontier._ENTRY).ravel()
    fake = Corridors(1, 1)
    for progress, blob in zip(
        entries["progress"].tolist(), found["snapshots"].numpy(), strict=True
    ):
        fake.restore(np.zeros(1, np.int32), blob[None])
        assert progress == CELL * fake.cell[0]


def test_evaluations_begin_at_the_level(tmp_path, corridors, monkeypatch):
    monkeypatch.setattr(Corridors, "PIT", -1)
    monkeypatch.setattr(Corridors, "GOAL", 2)
    config = exploring(tmp_path, stop_when_solved=True, solve_episodes=6, epochs=1)
    run_training(change(config, solve_rate=0.01, max_steps=4_000))
    assert len(corridors) == 3
    assert all(pool.starts is None for pool in corridors[1:])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"lag": 1}, {"novelty": 0.1, "memory": "gru"}])
def test_an_exploring_run_goes_on_exactly(tmp_path, corridors, options, capsys):
    whole = exploring(tmp_path / "whole", max_steps=1_200, **options)
    run_training(whole)
    assert checkpoint.load(whole.run_dir, CPU)["explore"]["frontier"]["entries"].numel()
    parts = run_in_parts(whole, tmp_path / "parts" / "run", 400)
    assert differences(essence(whole.run_dir), essence(parts.run_dir)) == []
    assert "starts again" not in capsys.readouterr().out
    same = zip(corridors[0].sets[-3:], corridors[-1].sets[-3:], strict=True)
    assert all(np.array_equal(one[0], two[0]) for one, two in same)


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.parametrize("lag", [0, 1])
def test_the_game_goes_on_exactly_from_the_frontier(tmp_path, monkeypatch, lag):
    monkeypatch.setattr(frontier, "_CONFIRM_STEPS", 2)
    options = {"obs": "tiles", "stack_num": 1, "lag": lag}
    options |= {"max_episode_steps": 12, "noop_max": 4, "num_threads": 1}
    whole = exploring(tmp_path / "whole", max_steps=960, **options)
    whole = replace(whole, model=replace(whole.model, name="tiles"))
    run_training(whole)
    found = checkpoint.load(whole.run_dir, CPU)["explore"]
    assert found["frontier"]["entries"].numel()
    assert found["counts"]["counts"]["passed"].sum() > 0
    parts = run_in_parts(whole, tmp_path / "parts" / "run", 240)
    assert differences(essence(whole.run_dir), essence(parts.run_dir)) == []


@pytest.mark.slow
def test_a_frontier_of_other_cells_begins_anew(tmp_path, corridors, capsys):
    config = exploring(tmp_path)
    run_training(config)
    again = change(config, resume=config.run_dir, max_steps=1_200, cell_size=16)
    run_training(again)
    output = capsys.readouterr().out
    assert "exploration starts again: its cells are of another size" in output


def test_a_frontier_of_other_levels_begins_anew(tmp_path, corridors, capsys):
    config = exploring(tmp_path)
    run_training(config)
    state = checkpoint.load(config.run_dir, CPU)["explore"]
    made = open_run(exploring(tmp_path / "other"))
    made.explorer._levels = ["1-2", "1-1"]  # snapshots are of stages, by number
    with pytest.raises(ValueError, match="its levels are others"):
        made.explorer.restore(state, going_on=False)
    assert not len(made.explorer._frontier.archive)
    made.close()


@pytest.mark.slow
def test_a_frontier_that_is_refused_begins_anew(tmp_path, corridors, capsys):
    config = exploring(tmp_path, max_steps=1_500)
    run_training(config)
    capsys.readouterr()

    again = change(config, resume=config.run_dir, max_steps=2_100)
    corridors[0].__class__.refuses = True
    try:
        with pytest.raises(ValueError, match="refused"):
            run_training(again)  # the fake refuses its own ones, too
    finally:
        corridors[0].__class__.refuses = False
    output = capsys.readouterr().out
    assert "exploration starts again: blob 0 is refused" in output


@pytest.mark.families
def test_runs_without_places_cannot_explore(tmp_path):
    config = make_config(tmp_path, task="Pong-v5", starts="frontier")
    with pytest.raises(ValueError, match="Pong-v5 reports no positions"):
        open_run(config)


@pytest.mark.slow
def test_first_clears_are_filmed_from_the_start_only(tmp_path, corridors, monkeypatch):
    """The recorder receives no other episode that ended."""
    heard = []

    class Recorder:
        def observe(self, columns, run_steps):
            heard.extend(episode for _, episode in columns.finished)

        def record(self, *args):
            pass

    config = exploring(tmp_path, max_steps=2_000)
    made = open_run(config)
    made.collector._recorder = Recorder()
    training.train(made)
    assert len(heard) == made.episodes.count
    steps = [episode.steps for episode in heard if episode.cleared]
    assert all(count >= Corridors.GOAL for count in steps)
    assert steps


@pytest.mark.slow
def test_the_best_weights_are_without_the_archive(tmp_path, corridors, capsys):
    config = exploring(tmp_path, max_steps=900)
    trained = open_run(config)
    trained.start()
    for _ in range(12):
        training.update(trained)
    assert Saver(trained).save()
    assert Saver(trained).save(best=True)
    trained.close()
    folder = config.run_dir / checkpoint.FOLDER
    states = [
        checkpoint.load(path, torch.device("cpu"))
        for path in (checkpoint.find(config.run_dir), folder / checkpoint.BEST)
    ]
    assert [state["explore"] is None for state in states] == [False, True]
    again = replace(config, resume=folder / checkpoint.BEST, run_dir=tmp_path / "new")
    run_training(again)
    assert (
        "exploration starts again: the checkpoint has no st" in capsys.readouterr().out
    )
