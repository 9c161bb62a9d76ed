"""Starts of levels as the whole game gives them."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_runs import make_config

import mario_envpool
from trainer.config.tasks import all_levels
from trainer.models.released import FOLDER
from trainer.session.training import open_run
from trainer.tuning import game_starts
from trainer.tuning.corrections import shares_of_time

INTERVAL, RANDOM = 0x77F, slice(0x7A7, 0x7AE)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The folder of starts, and how often levels were passed, with policies of 1-1."""
    folder = tmp_path_factory.mktemp("policies")
    for level in all_levels("SuperMarioBros-v0"):
        shutil.copy(FOLDER / "1-1.safetensors", folder / f"{level}.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(game_starts, "_ROUNDS", 1)
        passed = game_starts.collect(folder, folder / "starts", seed=3)
    return folder / "starts", passed


@pytest.mark.rom
def test_the_game_is_played_as_far_as_its_policies_come(played):
    folder, passed = played
    assert next(iter(passed)) == "1-1"
    assert passed["1-1"] > 0.5
    # The last level that was begun is the first one that nobody passes.
    assert [level for level, rate in passed.items() if not rate] == [list(passed)[-1]]
    for level in all_levels("SuperMarioBros-v0"):
        # One for each number of idle frames, 0 to 30.
        starts = game_starts.read(folder, level)
        assert len(set(starts)) == len(starts) == (31 if level in passed else 0)


@pytest.mark.rom
def test_a_start_has_the_random_numbers_of_the_levels_own_task(played):
    folder, _ = played
    pool = mario_envpool.make(
        "SuperMarioBros-1-2-v0", num_envs=8, obs_type="ram", stack_num=1
    )
    game_starts.begin_there(pool, game_starts.read(folder, "1-2"), 1.0)
    obs, info = pool.reset()
    assert (info["start"] > 0).all()
    # In the fall at the start of 1-2 the slow timers tell the frames since it began.
    seen = {ram.reshape(-1)[INTERVAL] for ram in obs}
    assert len(seen) > 1
    numbers = set()
    for idle_frames in range(6, 37):  # up to 30, and a step
        one = mario_envpool.make(
            "SuperMarioBros-1-2-v0",
            num_envs=1, obs_type="ram", stack_num=1, noops=[idle_frames],
        )  # fmt: skip
        ram = one.reset()[0].reshape(-1)
        numbers.add((int(ram[INTERVAL]), ram[RANDOM].tobytes()))
        one.close()
    for ram in obs.reshape(8, -1):
        assert (int(ram[INTERVAL]), ram[RANDOM].tobytes()) in numbers


@pytest.mark.rom
def test_a_policy_is_played_from_these_starts(played):
    folder, _ = played
    starts = game_starts.read(folder, "1-1")
    path = FOLDER / "1-1.safetensors"
    rate = game_starts.clear_rate(path, "1-1", starts, seed=1)
    assert rate > 0.5
    assert rate == game_starts.clear_rate(path, "1-1", starts, seed=1)
    assert game_starts.read(Path(folder), "8-4") == []


@pytest.mark.rom
def test_a_run_of_many_levels_begins_episodes_there(played, tmp_path):
    folder, _ = played
    shutil.copy(folder / "1-1.npy", tmp_path)
    shutil.copy(folder / "1-2.npy", tmp_path)
    config = make_config(tmp_path, levels=("1-1", "1-2"), device="cpu")

    def explorer(*names):
        starts = ",".join(str(tmp_path / name) for name in names)
        explore = replace(config.explore, starts=starts)
        return open_run(replace(config, explore=explore)).explorer

    counts = [len(game_starts.read(folder, level)) for level in ("1-1", "1-2")]
    saved = explorer("1-1.npy", "1-2.npy")._saved
    stages, weights, snapshots = saved.offer(np.array([0.1, 0.2]))
    assert np.bincount(stages).tolist() == counts
    assert weights.sum() == pytest.approx(0.3)
    assert len(snapshots) == sum(counts)
    shutil.copy(folder / "1-1.npy", tmp_path / "other.npy")
    with pytest.raises(ValueError, match=r"a state in other, but the run plays 1-1, "):
        explorer("1-1.npy", "other.npy")
    np.save(tmp_path / "1-2.npy", np.zeros((2, 9), np.uint8))
    with pytest.raises(ValueError, match="cannot load this console state"):
        explorer("1-2.npy")


def test_time_goes_to_what_is_not_cleared_in_either_game():
    chosen = {"1-1": 1.0, "1-2": 0.5, "1-3": 1.0}
    alone = shares_of_time(chosen, {})
    assert sum(alone.values()) == pytest.approx(1.0)
    assert alone["1-2"] == pytest.approx(0.52 / 0.56)
    both = shares_of_time(chosen, {"1-1": 1.0, "1-2": 0.5, "1-3": 0.0})
    assert both["1-3"] == pytest.approx(both["1-2"])
    assert np.all(np.array(list(both.values())) > 0.0)
