"""Bonuses pay for new cells, and only the learner sees them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_pools import Corridors
from small_runs import change, make_config, read_points, weights_in

from trainer.config.schema import ExploreConfig
from trainer.explore import explorer
from trainer.explore.cells import CellCounts
from trainer.explore.explorer import Bonuses
from trainer.session import build
from trainer.session.training import open_run, run_training, update


class Paid:
    """Environments in cells, and what they are paid."""

    def __init__(self, **options):
        self.counts = CellCounts(4)
        self.bonuses = Bonuses(ExploreConfig(**options), self.counts)

    def __call__(self, *keys, first=False, steps=0):
        ids = np.arange(len(keys), dtype=np.int32)
        opening = np.full(len(keys), first)
        columns = SimpleNamespace(env_id=ids, is_first=opening, progress=0 * ids)
        entered = self.counts.enter(columns, np.array(keys, np.int64))
        return self.bonuses.pay(opening, None, entered, steps).tolist()


def test_novelty_is_paid_once_for_each_cell_of_an_episode():
    paid = Paid(novelty=0.5)
    assert paid(1, 1, first=True) == [0.0, 0.0]
    assert paid(1, 2) == [0.0, 0.5]
    assert paid(2, 1) == [0.5, 0.0]
    assert paid(1, 3, first=True) == [0.0, 0.0]
    assert paid(2, 2) == [0.5, 0.5]


def test_novelty_by_count_falls_with_the_episodes_that_were_there():
    paid = Paid(novelty=1.0, novelty_by_count=True)
    paid(1, first=True)
    assert paid(2) == [1.0]
    for count in (2, 3, 4):
        paid(1, first=True)
        assert paid(2) == pytest.approx([count**-0.5])


def test_the_count_bonus_is_ucbs():
    paid = Paid(count_bonus=0.1)
    paid(1, first=True)
    for n in range(1, 6):
        # The n-th entry of cell 2, and the 2 n-th of any.
        expected = 0.1 * np.sqrt(2 * np.log(2 * n) / n)
        assert paid(2) == pytest.approx([expected])
        paid(1)  # and back, in the same episode
    assert paid(1) == [0.0]  # who stays enters nothing


@pytest.mark.parametrize("name", ["novelty", "count_bonus"])
def test_weights_follow_their_schedule(name):
    steps = [0, 250, 500, 1000, 5000]
    # Each of them is in a new cell.
    paid = [Paid(**{name: 1.0}, bonus_steps=1000) for _ in steps]
    for one in paid:
        one(1, first=True)
    found = [one(2, steps=at)[0] for one, at in zip(paid, steps, strict=True)]
    assert np.array(found) / found[0] == pytest.approx([1.0, 0.75, 0.5, 0.0, 0.0])


def test_means_are_of_the_steps_since_the_last_report():
    paid = Paid(novelty=0.5, count_bonus=1.0)
    paid(1, 1, first=True)
    paid(2, 1)
    means = paid.bonuses.statistics()
    assert means["novelty"] == 0.5 / 4
    assert means["count_bonus"] == pytest.approx(np.sqrt(2 * np.log(3)) / 4)
    assert paid.bonuses.statistics() == {"novelty": 0.0, "count_bonus": 0.0}


@pytest.fixture
def corridors(monkeypatch):
    def make(config, seed, *, asynchronous=False, **options):
        return Corridors(config.num_envs, config.num_envs, seed)

    monkeypatch.setattr(build, "make_pool", make)


@pytest.mark.parametrize("name", ["novelty", "count_bonus"])
def test_the_learner_sees_what_reports_do_not(tmp_path, corridors, name):
    plain = open_run(make_config(tmp_path / "plain"))
    paid = open_run(make_config(tmp_path / "paid", **{name: 1.0}))
    plain.start(), paid.start()
    one, two = update(plain), update(paid)
    # The first batch is of equal weights, so of equal episodes.
    assert torch.equal(one.actions, two.actions)
    extra = two.rewards - one.rewards
    assert extra[~one.is_first].max() > 0
    assert extra.min() >= 0
    assert not extra[one.is_first].any()
    assert list(plain.episodes.recent) == list(paid.episodes.recent)
    assert plain.episodes.count > 0
    plain.close(), paid.close()


class Distilled(Bonuses):
    """Pays the error of a predictor of a fixed network (Burda et al. 2018, RND)."""

    def __init__(self, *args):
        super().__init__(*args)
        self.errors = []

    def pay(self, is_first, obs, entered, run_steps):
        rows = obs[:, -1, ::4, ::4].flatten(1) / 255
        if not self.errors:
            sizes = (rows.shape[1], 16)
            self.target = torch.nn.Linear(*sizes, device=obs.device)
            self.predictor = torch.nn.Linear(*sizes, device=obs.device)
            self.optimizer = torch.optim.Adam(self.predictor.parameters(), 1e-2)
        error = (self.predictor(rows) - self.target(rows).detach()).square().mean(1)
        self.optimizer.zero_grad()
        error.mean().backward()
        self.optimizer.step()
        self.errors.append(error.detach().mean().item())
        return np.where(is_first, 0, error.detach().cpu().numpy()).astype(np.float32)


def test_a_bonus_may_run_a_network_on_observations(tmp_path, corridors, monkeypatch):
    monkeypatch.setattr(explorer, "Bonuses", Distilled)
    plain = open_run(make_config(tmp_path / "plain"))
    paid = open_run(make_config(tmp_path / "paid", novelty=1.0))
    plain.start(), paid.start()
    one, two = update(plain), update(paid)
    extra = two.rewards - one.rewards
    assert (extra[1:][~one.is_first[1:]] > 0).all()
    errors = paid.explorer._bonuses.errors
    assert errors[-1] < errors[0] / 2  # what was seen is no longer new
    plain.close(), paid.close()


@pytest.mark.slow
def test_a_bonus_changes_what_is_learned_and_is_reported(tmp_path, corridors):
    config = make_config(tmp_path / "plain", max_steps=200)
    run_training(config)
    novel = change(config, run_dir=tmp_path / "novel", novelty=1.0)
    run_training(novel)
    assert not torch.equal(weights_in(config.run_dir), weights_in(novel.run_dir))
    points = read_points(tmp_path / "novel")
    assert points[0]["explore/novelty"] > 0
    assert points[0]["explore/cells"] > 0
    assert "explore/frontier_x" not in points[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"snapshot_share": 1.5}, "snapshot_share must be 0 to 1, got 1.5"),
        (
            {"starts": "frontier", "snapshot_share": 1.0},
            "snapshot_share must be below 1, got 1: no episode would begin at the",
        ),
        ({"cell_size": 0}, "cell_size must be at least 1, got 0"),
        ({"novelty": -1.0}, "novelty must be at least 0, got -1"),
        ({"count_bonus": -1.0}, "count_bonus must be at least 0"),
    ],
)
def test_bad_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        make_config(tmp_path, **options).validate()
