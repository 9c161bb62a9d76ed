"""Evaluation: exactly N episodes, no favour to short ones, unseen seeds."""

import json
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from trainer import checkpoint, evaluate
from trainer.collector import SEED_STRIDE
from trainer.config import MAX_SEED, EnvConfig, ModelConfig, RunConfig, to_dict
from trainer.evaluate import (
    MAX_ENVS,
    EvaluateConfig,
    evaluate_policy,
    first_seed,
    main,
    play,
    summarise,
    wilson,
)
from trainer.metrics import Episode
from trainer.model import build_model

CPU = torch.device("cpu")
SHAPE = (1, 2, 2)


class SyncPool:
    """EnvPool's API in sync mode: requests are answered in their order.

    The right action is (env + step) % 3, and the picture shows the env only.
    Episodes of env i have 5 + i steps.
    """

    observation_space = SimpleNamespace(shape=SHAPE)
    action_space = SimpleNamespace(n=3)

    def __init__(self, num_envs):
        self.all_env_ids = np.arange(num_envs, dtype=np.int32)
        self.step_of = np.full(num_envs, -1)
        self.right = np.zeros(num_envs, int)
        self.sent = np.zeros(num_envs, int)
        self.requests = deque()
        self.most_requests = 0
        self.closed = False

    def async_reset(self):
        self.requests.append((self.all_env_ids, np.zeros(len(self.all_env_ids))))

    def send(self, action, env_id):
        assert action.dtype == np.int32
        assert action.shape == env_id.shape
        self.sent[env_id] += 1
        self.requests.append((env_id, action))
        self.most_requests = max(self.most_requests, len(self.requests))

    def recv(self):
        env_id, action = self.requests.popleft()
        over = self.step_of[env_id] == 4 + env_id + 1
        opening = over | (self.step_of[env_id] < 0)
        good = ~opening & (action == (env_id + self.step_of[env_id]) % 3)
        self.step_of[env_id] = np.where(opening, 0, self.step_of[env_id] + 1)
        self.right[env_id] = np.where(opening, 0, self.right[env_id] + good)
        step, right = self.step_of[env_id], self.right[env_id]
        done = step == 5 + env_id
        info = {
            "env_id": env_id,
            "x_pos": 10 * right,
            "flag_get": done & (right == step),
            "elapsed_step": step.astype(np.int32),
        }
        obs = np.broadcast_to(env_id[:, None, None, None], (len(env_id), *SHAPE))
        reward = good.astype(np.float32)
        return obs.astype(np.uint8), reward, done, np.zeros_like(done), info

    def close(self):
        self.closed = True


class Counter(nn.Module):
    """Counts the steps of an episode in its memory, and so knows the right action.

    `sharpness` 0 makes all actions alike.
    """

    state_size = 1

    def __init__(self, sharpness=30.0):
        super().__init__()
        self.sharpness = nn.Parameter(torch.tensor(sharpness))

    def forward(self, obs, state, first):
        assert not self.training
        assert not torch.is_grad_enabled()
        step = torch.where(first[0, :, None], 0.0, state)
        right = (obs[0, :, 0, 0, 0] + step[:, 0]).long() % 3
        logits = nn.functional.one_hot(right, 3) * self.sharpness
        output = SimpleNamespace(logits=logits[None], values=None)
        return output, step + 1


class Pixels(nn.Module):
    """A policy without memory that looks at the mean of the newest frame."""

    state_size = 0

    def __init__(self, num_actions):
        super().__init__()
        self.heads = nn.Linear(1, num_actions)

    def forward(self, obs, state, first):
        bright = obs[0, :, -1].float().mean((-1, -2))[:, None] / 255
        return SimpleNamespace(logits=self.heads(bright)[None]), state


def play_fake(num_episodes, *, sharpness=30.0, seed=0, groups=2, argmax=False):
    pool = SyncPool(6)
    model = Counter(sharpness).eval()
    generator = None if argmax else torch.Generator().manual_seed(seed)
    episodes, has_flag = play(
        pool,
        model,
        num_episodes,
        device=CPU,
        dtype=None,
        generator=generator,
        groups=groups,
    )
    assert has_flag
    return episodes, pool


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("num_episodes", [6, 20, 25])
def test_every_environment_plays_its_share(num_episodes, groups):
    """Each length comes as often as can be, and nobody plays for nothing."""
    episodes, pool = play_fake(num_episodes, groups=groups, sharpness=0.0)
    share, more = divmod(num_episodes, 6)
    shares = np.array([share + (env < more) for env in range(6)])
    counts = np.bincount([e.steps for e in episodes], minlength=11)[5:]
    assert counts.tolist() == shares.tolist()
    steps_and_resets = shares * (np.arange(6) + 6) - 1
    assert pool.sent.tolist() == steps_and_resets.tolist()
    for episode in episodes:
        assert episode.best_x == 10 * episode.total_reward


@pytest.mark.parametrize("groups", [1, 2])
def test_one_group_emulates_while_another_is_acted_for(groups):
    _, pool = play_fake(12, groups=groups)
    assert pool.most_requests == groups


@pytest.mark.parametrize("argmax", [True, False])
def test_memory_belongs_to_its_environment_and_episode(argmax):
    """Only a policy that counts the steps of each episode clears all."""
    episodes, _ = play_fake(20, argmax=argmax)
    assert all(episode.cleared for episode in episodes)


def test_the_seed_decides():
    first, _ = play_fake(12, seed=1, sharpness=0.0)
    assert play_fake(12, seed=1, sharpness=0.0)[0] == first
    assert play_fake(12, seed=2, sharpness=0.0)[0] != first
    assert not all(episode.cleared for episode in first)
    # The likeliest action needs no luck, however little it is ahead.
    assert all(e.cleared for e in play_fake(12, sharpness=0.01, argmax=True)[0])


def test_no_evaluation_has_a_seed_of_training():
    last_of_training = MAX_SEED * SEED_STRIDE + SEED_STRIDE - 1
    seeds = [first_seed(seed, k) for seed in (0, 1, MAX_SEED) for k in range(57)]
    assert min(seeds) > last_of_training
    assert max(seeds) + MAX_ENVS <= 2**31
    ordered = np.sort(seeds)
    assert np.diff(ordered).min() >= MAX_ENVS
    long_run = {first_seed(7, k) for k in range(100_000)}
    assert len(long_run) == 100_000
    with pytest.raises(ValueError, match="seed must be 0 to 20000, got 20001"):
        first_seed(20_001)
    with pytest.raises(ValueError, match="stream must be 0 to 1149999, got -1"):
        first_seed(0, -1)


def test_wilson():
    low, high = wilson(90, 100)
    assert (round(low, 4), round(high, 4)) == (0.8256, 0.9448)
    assert wilson(0, 10)[0] == 0
    assert round(wilson(0, 10)[1], 4) == 0.2775
    assert wilson(10, 10)[1] == pytest.approx(1)


def test_summary():
    episodes = [Episode(1.0, 300, 3161, True), Episode(-1.0, 20, 300, False)]
    result = summarise([*episodes, Episode(3.0, 280, 3161, True)], True)
    assert result["clears"] == 2
    assert result["clear_rate"] == pytest.approx(2 / 3)
    assert result["best_x_mean"] == pytest.approx(2207.33, abs=0.01)
    assert result["best_x_median"] == 3161
    assert result["return_mean"] == 1
    assert result["steps_to_clear_mean"] == result["steps_to_clear_median"] == 290
    assert summarise(episodes[1:], True)["steps_to_clear_mean"] is None
    assert summarise(episodes, False)["clear_rate"] is None


@pytest.fixture
def pools(monkeypatch):
    """The fake pools that evaluations open, and what they asked for."""
    opened = []

    def make(env, seed):
        pool = SyncPool(env.num_envs)
        opened.append((env, seed, pool))
        return pool

    monkeypatch.setattr(evaluate, "make_pool", make)
    return opened


def test_a_live_model_is_played_and_left_as_it_was(pools):
    trained = EnvConfig(
        num_envs=512, groups=4, num_threads=64, repeat_action_probability=0.2
    )
    model = Counter(1.0).train()
    options = {"episodes": 12, "seed": 3, "device": CPU, "dtype": None}
    result = evaluate_policy(model, trained, **options, noops=9, sticky=0.1)
    assert model.training
    assert result["episodes"] == 12
    assert (result["noops"], result["sticky"], result["argmax"]) == (9, 0.1, False)
    env, seed, pool = pools[0]
    assert env == replace(
        trained,
        num_envs=12,
        groups=1,
        num_threads=12,
        noop_max=9,
        repeat_action_probability=0.1,
    )
    assert seed == first_seed(3, 0)
    assert pool.most_requests == 2
    assert pool.closed
    plain = evaluate_policy(model, trained, **options)
    assert pools[1][0].repeat_action_probability == 0  # not the run's
    assert plain == evaluate_policy(model, trained, **options)
    second = evaluate_policy(model, trained, **options, stream=1)
    assert pools[-1][1] == first_seed(3, 1)
    assert second["return_mean"] != plain["return_mean"]  # other samples too
    assert evaluate_policy(model, trained, **options, argmax=True)["clears"] == 12


def test_the_model_is_left_as_it_was_after_an_error(pools):
    class Broken(Counter):
        def forward(self, obs, state, first):
            raise RuntimeError("out of luck")

    model = Broken().train()
    with pytest.raises(RuntimeError, match="out of luck"):
        evaluate_policy(model, EnvConfig(), episodes=2, seed=1, device=CPU, dtype=None)
    assert model.training
    assert pools[0][2].closed


def test_wrong_arguments_are_named():
    options = {"seed": 1, "device": CPU, "dtype": None}
    with pytest.raises(ValueError, match="episodes must be at least 1, got 0"):
        evaluate_policy(Counter(), EnvConfig(), episodes=0, **options)
    with pytest.raises(ValueError, match="sticky must be 0 to below 1, got 1"):
        evaluate_policy(Counter(), EnvConfig(), episodes=1, sticky=1.0, **options)
    pong = EnvConfig(task="Pong-v5")
    with pytest.raises(ValueError, match=r"Pong-v5 has no sticky actions, got 0\.1"):
        evaluate_policy(Counter(), pong, episodes=1, sticky=0.1, **options)


def save_checkpoint(path, config, model, **more):
    state = {"config": to_dict(config), "model": model.state_dict(), "steps": 7}
    checkpoint.save(path / "checkpoint.pt", state | more)


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """A checkpoint whose averaged weights know the answers; the latest do not."""
    monkeypatch.setattr(evaluate, "build_model", lambda *_: Counter())
    ema = Counter(30.0).state_dict()
    env = EnvConfig(num_envs=8, groups=2, stall_steps=77)
    config = RunConfig(env=env, precision="fp32")
    save_checkpoint(tmp_path, config, Counter(-30.0), ema=ema)
    return tmp_path


def command(*words):
    return main(["--device", "cpu", *map(str, words)])


def test_the_command_plays_the_averaged_weights(pools, run_dir, capsys):
    words = ("--checkpoint", run_dir, "--episodes", 5, "--json")
    assert command(*words) == 0
    averaged = json.loads(capsys.readouterr().out)
    assert (averaged["weights"], averaged["clear_rate"]) == ("ema", 1.0)
    assert averaged["trained_steps"] == 7
    assert averaged["episodes"] == 5
    assert pools[-1][0].stall_steps == 77
    assert command(*words, "--no-ema") == 0
    latest = json.loads(capsys.readouterr().out)
    assert (latest["weights"], latest["clear_rate"]) == ("latest", 0.0)
    save_checkpoint(run_dir, RunConfig(precision="fp32"), Counter(-30.0), ema=None)
    assert command(*words) == 0
    assert json.loads(capsys.readouterr().out)["weights"] == "latest"


def test_each_sticky_chance_has_a_row(pools, run_dir, capsys):
    words = ("--checkpoint", run_dir, "--episodes", 4, "--sticky", 0, 0.1)
    assert command(*words, "--argmax", "--noops", 9, "--seed", 3) == 0
    head, what, titles, plain, sticky = capsys.readouterr().out.splitlines()
    assert head.endswith("SuperMarioBros-1-1-v0, 7 steps, averaged weights")
    assert what.startswith("4 episodes, likeliest actions, up to 9 idle frames, seed 3")
    assert titles.split()[:2] == ["sticky", "cleared"]
    assert plain.split()[:2] == ["0", "100.0%"]
    assert sticky.split()[:2] == ["0.1", "100.0%"]
    assert titles.index("cleared") + len("cleared") == plain.index("%") + 1
    chances = [env.repeat_action_probability for env, _, _ in pools[-2:]]
    assert chances == [0, 0.1]
    assert {(env.noop_max, seed) for env, seed, _ in pools[-2:]} == {(9, first_seed(3))}
    assert command(*words, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["sticky"] for row in rows] == [0, 0.1]


def test_errors_are_one_line(tmp_path, pools, run_dir, capsys):
    assert command("--checkpoint", tmp_path / "none") == 2
    assert capsys.readouterr().err.startswith("error: no checkpoint at")
    assert command("--checkpoint", run_dir, "--episodes", 0) == 2
    assert capsys.readouterr().err == "error: episodes must be at least 1, got 0\n"
    for seed in ("-1", "20001"):
        assert command("--checkpoint", run_dir, "--seed", seed) == 2
        assert f"must be 0 to 20000, got {seed}" in capsys.readouterr().err
    (tmp_path / "checkpoint.pt").write_text("{}")
    assert command("--checkpoint", tmp_path) == 2
    assert "is not a checkpoint" in capsys.readouterr().err


def test_on_envpool_atari(tmp_path, monkeypatch, capsys):
    """A task without clears and positions."""
    monkeypatch.setattr(evaluate, "build_model", lambda *_: Pixels(6))
    env = EnvConfig(task="Pong-v5", num_envs=2, num_threads=1, max_episode_steps=40)
    save_checkpoint(tmp_path, RunConfig(env=env, precision="fp32"), Pixels(6))
    words = ("--checkpoint", tmp_path, "--episodes", 3)
    assert command(*words, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["episodes"] == 3
    assert result["episode_steps_mean"] == 40
    assert result["clear_rate"] is result["best_x_mean"] is None
    assert command(*words) == 0
    assert "clear" not in capsys.readouterr().out


def play_game(**options):
    torch.manual_seed(0)
    env = EnvConfig(num_threads=options.pop("num_threads", 1), max_episode_steps=60)
    given = {"episodes": 6, "seed": 1, "device": CPU, "dtype": None} | options
    return evaluate_policy(Pixels(5), env, **given)


@pytest.mark.rom
def test_on_the_game():
    """The arguments decide the episodes, the number of threads does not."""
    first = play_game()
    assert first["episodes"] == 6
    assert first["clear_rate"] == 0
    assert first["best_x_mean"] > 40
    assert play_game(num_threads=2) == first
    for other in ({"seed": 2}, {"stream": 1}, {"sticky": 0.9}):
        assert play_game(**other)["return_mean"] != first["return_mean"], other
    still = {"noops": 0, "argmax": True}  # no chance is left
    alike = [play_game(**still, seed=seed)["return_mean"] for seed in (1, 2)]
    assert alike[0] == alike[1]


@pytest.mark.rom
def test_the_command_on_the_game(tmp_path):
    env = EnvConfig(num_envs=4, num_threads=1, max_episode_steps=60)
    model = build_model(ModelConfig(), (4, 84, 84), 5)
    save_checkpoint(tmp_path, RunConfig(env=env, precision="fp32"), model)
    (result,) = evaluate.evaluate(EvaluateConfig(tmp_path, episodes=3, device="cpu"))
    assert result["episodes"] == 3
    assert result["best_x_mean"] > 40
