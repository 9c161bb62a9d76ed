"""Corrections by search, in a game of one row of cells, and in the real one."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from trainer.config.schema import EnvConfig, ModelConfig
from trainer.models.actor_critic import ActorCritic
from trainer.models.corrected import Corrected, split
from trainer.models.policy import Policy, load_policy
from trainer.models.released import FOLDER, PolicyFile, read_policy, write_policy
from trainer.tuning import corrections as module
from trainer.tuning import one_network
from trainer.tuning.corrections import Corrections, correct

ENVS, EPISODES = module._ENVS, module._EPISODES
LENGTH, PIT = 30, 15
WALK, JUMP = 0, 1


class Row:
    """Mario walks along cells; a pit in the middle kills him unless he jumps.

    In every second environment there is no pit. He sees it from `seen` cells before it
    on, 0: never. With `ceiling`, a jump where no pit is kills him, too.
    """

    all_env_ids = np.arange(ENVS)
    action_space = SimpleNamespace(n=2)
    seen, ceiling, always = 4, False, False

    def __init__(self):
        self._at, self._pit = np.zeros((2, ENVS), np.int64)

    def close(self):
        pass

    def _obs(self):
        obs = np.zeros((ENVS, 1, 2, LENGTH), np.uint8)
        obs[self.all_env_ids, 0, 0, self._at] = 1
        near = (PIT - self._at <= self.seen) & (self._at < PIT) & (self._pit == 1)
        obs[near, 0, 1, :5] = 1
        return obs

    def reset(self):
        self._at[:], self._pit[:] = 0, self.all_env_ids % 2
        return self._obs(), {}

    def snapshot(self, ids):
        return np.stack([self._at, self._pit], 1).astype(np.uint8)

    def restore(self, ids, saved, rng):
        self._at[:], self._pit[:] = saved.T

    def recv(self):
        return (self._obs(),)

    def step(self, actions):
        edge, jumps = self._at == PIT - 1, actions == JUMP
        died = edge & (
            (self._pit == 1) & ~jumps | (self._pit == 0) & jumps & self.ceiling
        )
        died |= edge & self.always
        self._at += 1
        cleared = ~died & (self._at == LENGTH - 1)
        self._at[died | cleared] = 0
        return self._obs(), None, died | cleared, died & False, {"flag_get": cleared}


class Net(ActorCritic):
    """Sees all cells; is certain that one has to walk."""

    def __init__(self, config, shape, actions):
        super().__init__(config, shape, actions)
        with torch.no_grad():
            self.head.policy.weight.zero_()
            self.head.policy.bias.copy_(torch.tensor([4.0, -4.0]))

    def make_encoder(self, config, shape):
        return nn.Sequential(nn.Flatten(), nn.Linear(2 * LENGTH, 64), nn.ReLU()), 64


@pytest.fixture
def row(tmp_path, monkeypatch):
    """A game of one row, and the file of a policy for it."""
    torch.manual_seed(1)
    game = type("Game", (Row,), {})
    env, config = EnvConfig(obs="tiles"), ModelConfig(name="test_corrections:Net")
    net = Net(config, (1, 2, LENGTH), 2).eval()
    policy = Policy(net, env, torch.device("cpu"), None, 1, False)
    path = tmp_path / "1-1.safetensors"
    write_policy(
        path,
        PolicyFile(
            env={}, model={}, precision="fp32", steps=1, rom_sha1="", averaged=False,
            weights=net.state_dict(),
        ),
    )  # fmt: skip
    monkeypatch.setattr(module, "load_policy", lambda path, device, model: policy)
    monkeypatch.setattr(module, "make_pool", lambda env, seed: game())
    monkeypatch.setattr(module, "_STEPS", 300)

    def corrections(seed):
        return Corrections(policy, read_policy(path, torch.device("cpu")), seed)

    return SimpleNamespace(game=game, path=path, policy=policy, corrections=corrections)


def deaths(corrections, game):
    return sum(not e.cleared for e in corrections._play(game(), 1))


def test_a_policy_jumps_where_it_died(row):
    corrections = row.corrections(1)
    assert deaths(corrections, row.game) == EPISODES / 2
    assert corrections.search("1-1", np.inf)
    assert deaths(corrections, row.game) == 0
    corrections.learn(np.inf)
    corrections._table = None
    assert deaths(corrections, row.game) <= EPISODES / 20


def test_the_table_is_written_with_the_policy(row, tmp_path):
    """It then plays as in the search, and what it has learned is not written."""
    corrections, path = row.corrections(1), tmp_path / "with.safetensors"
    corrections.save_table(path)
    weights, table = split(read_policy(path, torch.device("cpu")).weights)
    assert table is None
    assert corrections.search("1-1", np.inf)
    corrections.learn(np.inf)
    corrections.save_table(path)
    again, table = split(read_policy(path, torch.device("cpu")).weights)
    assert len(table.obs) == len(table.actions) > 0
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    row.policy.model.load_state_dict(weights)
    network = Corrected(row.policy.model, table, (1, 2, LENGTH), 2)
    played = row.corrections(1)
    played._logits = lambda obs: network(
        obs[None], torch.zeros(len(obs), 0), torch.zeros(1, len(obs)).bool()
    )[0].logits[0]
    assert deaths(played, row.game) == 0


def test_the_same_seed_gives_the_same_policy(row):
    first, again = row.corrections(3), row.corrections(3)
    first.search("1-1", np.inf)
    again.search("1-1", np.inf)
    assert (first._table.obs == again._table.obs).all()
    assert torch.equal(first._table.actions, again._table.actions)


def test_what_looks_alike_is_corrected_if_more_is_cleared(row):
    """Mario does not see the pit, but may jump everywhere."""
    row.game.seen = 0
    corrections = row.corrections(1)
    assert corrections.search("1-1", np.inf)
    assert deaths(corrections, row.game) == 0


def test_what_looks_alike_is_not_corrected_if_no_more_is_cleared(row):
    row.game.seen, row.game.ceiling = 0, True
    corrections = row.corrections(1)
    assert not corrections.search("1-1", np.inf)
    assert deaths(corrections, row.game) == EPISODES / 2


def test_where_there_is_no_way_nothing_changes(row, monkeypatch):
    row.game.always = True
    monkeypatch.setattr(module, "rates_of", lambda *_, **__: (0.2, 0.1))
    before = row.path.read_bytes()
    assert correct(row.path, "1-1", 60, 40, 1, 8) == {"before": 0.2, "now": 0.2}
    assert row.path.read_bytes() == before


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_nothing_and_everything_cleared_is_left(row, monkeypatch, rate):
    monkeypatch.setattr(module, "rates_of", lambda *_, **__: (rate, rate))
    monkeypatch.delattr(Corrections, "search")
    assert correct(row.path, "1-1", 60, 40, 1, 8) == {"before": rate, "now": rate}


@pytest.mark.parametrize("better", [False, True])
def test_only_a_better_policy_replaces_the_file(row, monkeypatch, better):
    """With the best of three temperatures."""
    new = [(0.4, 0.9), (0.8, 0.6) if better else (0.5, 0.4), (0.7, 0.5)]
    rates = iter([(0.5, 0.4), *(new if better else new[:2]), *[(0.0, 0.0)] * 9])
    monkeypatch.setattr(module, "rates_of", lambda *_, **__: next(rates))
    before = read_policy(row.path, torch.device("cpu")).weights
    result = correct(row.path, "1-1", 60, 40, 1, 16)
    after = read_policy(row.path, torch.device("cpu")).weights
    assert result == {"before": 0.5, "now": 0.8 if better else 0.5}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert bool(changed) == better
    if better:
        assert not any("value" in name for name in changed)


@pytest.mark.parametrize(("until", "steps"), [(np.inf, 30), (-1.0, 10)])
def test_time_ends_what_is_learned_but_not_at_once(row, monkeypatch, until, steps):
    corrections, losses = row.corrections(1), []
    assert corrections.search("1-1", np.inf)
    monkeypatch.setattr(module, "_STEPS", 30)
    monkeypatch.setattr(module, "_LEAST_STEPS", 10)
    entropy = module.F.cross_entropy
    monkeypatch.setattr(
        module.F, "cross_entropy", lambda *rows: losses.append(1) or entropy(*rows)
    )
    corrections.learn(until)
    assert len(losses) == steps


@pytest.mark.parametrize(("own", "kept"), [(0.74, False), (0.76, True)])
def test_starts_of_the_game_do_not_cost_the_levels_own(
    row, tmp_path, monkeypatch, own, kept
):
    """However much they gain."""
    monkeypatch.setattr(module.game_starts, "read", lambda *_: [b"start"])
    monkeypatch.setattr(module.game_starts, "begin_there", lambda *_: None)
    before = row.path.read_bytes()

    def changed(path):
        return path.read_bytes() != before

    monkeypatch.setattr(
        module, "rates_of", lambda path, *_, **__: (own if changed(path) else 0.8,) * 2
    )
    monkeypatch.setattr(
        module.game_starts, "clear_rate", lambda path, *_: 1.0 if changed(path) else 0.2
    )
    rates = correct(row.path, "1-1", 1.0, 40, 1, 8, starts=tmp_path)
    assert rates["before"] == pytest.approx(0.5)
    assert rates["now"] == pytest.approx((own + 1.0) / 2 if kept else 0.5)
    assert changed(row.path) == kept


def test_time_ends_a_search(row, monkeypatch):
    monkeypatch.setattr(module.time, "monotonic", iter(range(1000)).__next__)
    plays = []
    play = Corrections._play
    monkeypatch.setattr(
        Corrections, "_play", lambda *words: plays.append(1) or play(*words)
    )
    row.game.always = True
    assert not row.corrections(1).search("1-1", -1.0)
    assert plays == [1]


@pytest.mark.parametrize("why", ["memory", "pictures"])
def test_what_is_not_corrected(row, monkeypatch, why):
    if why == "memory":
        row.policy.model.state_size = 4
    else:
        policy = row.policy._replace(env=EnvConfig(obs="pixels"))
        monkeypatch.setattr(module, "load_policy", lambda path, device, model: policy)
    assert correct(row.path, "1-1", 60, 40, 1, 8) == {}


@pytest.mark.slow
@pytest.mark.rom
def test_the_one_network_is_searched_and_compared(tmp_path):
    """As a campaign does it in its worker processes, with a table of the real game."""
    one, starts = FOLDER / "one.safetensors", tmp_path / "none"
    cold, path = tmp_path / "cold.safetensors", tmp_path / "2-2.safetensors"
    one_network._write_cold(one, cold)
    one_network.search(cold, path, "2-2", 5.0, 17, "", starts)
    assert one_network._corrections(path) > 0 == one_network._corrections(cold)
    assert isinstance(load_policy(path).model, Corrected)
    before, now = one_network.compare(cold, path, "2-2", 40, 17, "", starts)
    assert 0.5 < before < now <= 1.0


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.rom
def test_a_released_policy_gets_better(tmp_path):
    """The real game: two minutes."""
    released = Path(module.__file__).parents[1] / "released" / "7-1.safetensors"
    path = tmp_path / "7-1.safetensors"
    path.write_bytes(released.read_bytes())
    result = correct(path, "7-1", 120, 40, 1, 8)
    assert result["now"] > result["before"]
    assert path.read_bytes() != released.read_bytes()
