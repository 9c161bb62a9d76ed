"""Evaluation: exactly N episodes, no favour to short ones, unseen seeds."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from trainer import checkpoint, evaluate
from trainer.collector import SEED_STRIDE
from trainer.config import EnvConfig, ModelConfig, RunConfig, to_dict
from trainer.evaluate import EvaluateConfig, main, play, summarise, wilson
from trainer.metrics import Episode
from trainer.model import build_model

CPU = torch.device("cpu")


def save_policy(path, config, shape, num_actions):
    """A checkpoint of an untrained policy."""
    model = build_model(config.model, shape, num_actions)
    state = {"config": to_dict(config), "model": model.state_dict(), "steps": 7}
    checkpoint.save(path / "checkpoint.pt", state)
    return model


def play_fake(pool, num_episodes, seed=0):
    pool.all_env_ids = np.arange(pool.num_envs)
    torch.manual_seed(0)
    model = build_model(ModelConfig(), pool.observation_space.shape, 3)
    generator = torch.Generator().manual_seed(seed)
    return play(pool, model, num_episodes, device=CPU, dtype=None, generator=generator)


@pytest.mark.parametrize("num_episodes", [6, 20, 25])
def test_every_environment_plays_its_share(fake_pool, num_episodes):
    """Episodes of env i have 5 + i steps: each length comes as often as can be."""
    episodes, has_flag = play_fake(fake_pool(6, 6), num_episodes)
    assert has_flag
    assert len(episodes) == num_episodes
    counts = np.bincount([e.steps for e in episodes], minlength=11)[5:]
    share, more = divmod(num_episodes, 6)
    assert counts.tolist() == [share + (env < more) for env in range(6)]
    for episode in episodes:  # the pool pays 1 and moves 10 for each good answer
        assert episode.best_x == 10 * episode.total_reward


def test_the_seed_decides(fake_pool):
    first = play_fake(fake_pool(6, 6), 12, seed=1)
    assert play_fake(fake_pool(6, 6), 12, seed=1) == first
    assert play_fake(fake_pool(6, 6), 12, seed=2) != first


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


def test_the_run_decides_the_environments(tmp_path, monkeypatch, fake_pool, capsys):
    asked = []

    def make(env, seed):
        asked.append((env, seed))
        pool = fake_pool(env.num_envs, env.batch_size)
        pool.all_env_ids = np.arange(env.num_envs)
        return pool

    monkeypatch.setattr(evaluate, "make_pool", make)
    trained = EnvConfig(num_envs=8, batch_size=4, stall_steps=77)
    save_policy(tmp_path, RunConfig(env=trained), (4, 36, 36), 3)
    words = f"--checkpoint {tmp_path} --device cpu --episodes 5 --noops 9"
    assert main([*words.split(), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["episodes"] == 5
    assert result["trained_steps"] == 7
    assert main([*words.split(), "--argmax", "--seed", "3"]) == 0
    assert "5 episodes, likeliest actions, up to 9 idle" in capsys.readouterr().out
    expected = replace(trained, num_envs=5, batch_size=5, noop_max=9)
    assert [env for env, _ in asked] == [expected] * 2
    for seed in (seed + i for _, seed in asked for i in range(1024)):
        assert seed % SEED_STRIDE >= 4096  # runs have the first ones


def test_errors_are_one_line(tmp_path, capsys):
    assert main(["--checkpoint", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: no checkpoint at")
    (tmp_path / "checkpoint.pt").write_text("{}")
    assert main(["--checkpoint", str(tmp_path)]) == 2
    assert "is not a checkpoint" in capsys.readouterr().err
    assert main(["--checkpoint", str(tmp_path), "--episodes", "0"]) == 2
    assert capsys.readouterr().err == "error: episodes must be at least 1, got 0\n"


def test_a_seed_out_of_range_is_an_error(tmp_path, capsys):
    for seed in ("-1", "20001"):
        assert main(["--checkpoint", str(tmp_path), "--seed", seed]) == 2
        assert f"must be 0 to 20000, got {seed}" in capsys.readouterr().err


def test_on_envpool_atari(tmp_path, capsys):
    """A task without clears and positions."""
    env = EnvConfig(task="Pong-v5", num_envs=2, num_threads=1, max_episode_steps=40)
    save_policy(tmp_path, RunConfig(env=env, precision="fp32"), (4, 84, 84), 6)
    words = f"--checkpoint {tmp_path} --device cpu --episodes 3".split()
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["episodes"] == 3
    assert result["episode_steps_mean"] == 40
    assert result["clear_rate"] is result["best_x_mean"] is None
    assert main(words) == 0
    assert "clear" not in capsys.readouterr().out


@pytest.mark.rom
def test_on_the_game(tmp_path):
    """The same seed gives the same episodes, and another seed others."""
    env = EnvConfig(num_envs=4, num_threads=1, max_episode_steps=60)
    save_policy(tmp_path, RunConfig(env=env, precision="fp32"), (4, 84, 84), 5)
    config = EvaluateConfig(tmp_path, episodes=6, device="cpu")
    first = evaluate.evaluate(config)
    assert first["episodes"] == 6
    assert first["clear_rate"] == 0
    assert first["best_x_mean"] > 40
    assert evaluate.evaluate(config) == first
    other = evaluate.evaluate(replace(config, seed=2))
    assert other["return_mean"] != first["return_mean"]
