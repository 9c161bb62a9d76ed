"""Rewards, actions and ROM of a run: every option, by the command line, on the game."""

import json
import re
import sys

import numpy as np
import pytest
from fake_pools import FakePool
from small_runs import CPU, make_config, read_points, use_pools

from mario_envpool import rom
from trainer import evaluate
from trainer.cli import parse
from trainer.config.schema import EnvConfig
from trainer.envs.pool import make_pool
from trainer.film.filmed_env import FilmedEnv, game_config
from trainer.film.record import BEST, INDEX
from trainer.learn.augment import mirrored
from trainer.models.policy import load_policy
from trainer.run import main
from trainer.session.training import run_training

WEIGHTS = {
    "score": 0.5, "coins": 20.0, "clock": -3.0, "step": -2.0, "death": -80.0,
    "flag": 70.0, "wrong_pass": -9.0, "progress": 2.0,
}  # fmt: skip


def env_of(*flags):
    return parse(["--device", "cpu", *flags]).resolved().env


def play(env, steps=60):
    """Parts of the reward and the reward itself of a few steps to the right."""
    pool = make_pool(env, seed=1)
    pool.reset()
    right = np.full(env.num_envs, 3, np.int32)
    rows = [pool.step(right) for _ in range(steps)]
    pool.close()
    rewards = np.array([reward for _, reward, *_ in rows])
    names = [name for name in rows[0][-1] if name.startswith("reward_")]
    parts = {name: np.array([row[-1][name] for row in rows]) for name in names}
    return rewards, parts


@pytest.mark.rom
def test_every_weight_of_the_reward_has_a_flag_and_reaches_the_game():
    flags = [f"--reward-{n.replace('_', '-')}={w}" for n, w in WEIGHTS.items()]
    env = env_of(*flags, "--reward-scale=0.5", "--num-envs=2")
    pool = make_pool(env, seed=1)
    config = dict(pool.config)
    pool.close()
    assert {n: config[f"reward_{n}"] for n in WEIGHTS} == WEIGHTS
    assert config["reward_scale"] == 0.5


@pytest.mark.rom
@pytest.mark.parametrize("kind", ["progress", "classic", "v9"])
def test_every_reward_is_on_the_same_scale(kind):
    """A pixel to the right pays .01, so that discounted returns are within +-15."""
    rewards, parts = play(env_of("--reward", kind, "--num-envs=2"))
    pixels = parts["reward_progress"].sum() / 0.01
    assert 500 < pixels < 2_000
    assert abs(rewards).max() < 1
    discount = 0.95 ** np.arange(len(rewards))
    assert abs((discount[:, None] * rewards).sum(0)).max() < 15


class Generous(FakePool):
    """Pays 100 where the other pays 1."""

    def recv(self):
        obs, reward, *rest = super().recv()
        return obs, 100 * reward, *rest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "popart", "told"),
    [(FakePool, False, 0), (Generous, False, 1), (Generous, True, 0)],
)
def test_returns_that_are_too_large_are_named_once(
    tmp_path, monkeypatch, capsys, kind, popart, told
):
    use_pools(monkeypatch, kind)
    metrics = run_training(make_config(tmp_path, popart=popart))
    assert (metrics["learn/largest_return"] > 45) == (kind is Generous)
    output = capsys.readouterr().out
    assert output.count("the losses are made for at most 15: choose --rew") == told


OWN = """
calls = []

def double(batch):
    calls.append(sorted(batch))
    return 2 * batch["reward"]

def wrong(batch):
    return [1.0]

number = 3
"""


@pytest.fixture
def own_rewards(tmp_path, monkeypatch):
    (tmp_path / "own_rewards.py").write_text(OWN)
    (tmp_path / "broken_rewards.py").write_text("x")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_rewards", None)


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.usefixtures("own_rewards")
@pytest.mark.parametrize("obs", ["pixels", "tiles"])
def test_a_reward_of_ones_own(tmp_path, obs):
    name = "own_rewards:double"
    twice, _ = play(env_of("--reward-fn", name, "--num-envs=2", "--obs", obs))
    once, _ = play(env_of("--num-envs=2", "--obs", obs))
    np.testing.assert_allclose(twice, 2 * once)
    # A run with it, its films included.
    flags = f"--reward-fn {name} --obs {obs} --device cpu --max-steps 2500"
    flags += " --num-envs 8 --unrolls-per-batch 8 --minibatch-size 64 --stall-steps 15"
    flags += f" --dashboard off --run-dir {tmp_path / 'run'}"
    assert main(flags.split()) == 0
    points = read_points(tmp_path / "run")
    assert points[-1]["rollout/episodes"] > 0
    messages = (tmp_path / "run" / "messages.txt").read_text()
    assert "not the same" not in messages
    index = json.loads((tmp_path / "run" / "videos" / INDEX).read_text())
    assert BEST in index


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.usefixtures("own_rewards")
def test_a_run_with_a_reward_of_ones_own_is_filmed_without_it(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    flags = "--reward-fn own_rewards:double --device cpu --max-steps 600 --num-envs 4"
    flags += " --unrolls-per-batch 4 --minibatch-size 64 --dashboard off --no-videos"
    assert main([*flags.split(), "--run-dir", str(folder)]) == 0
    sys.modules.pop("own_rewards")
    (tmp_path / "own_rewards.py").unlink()
    policy = load_policy(folder, CPU)
    game = FilmedEnv(game_config(policy.env), seed=1)
    assert game.reset().info["x_pos"] == 40


def test_options_beside_a_reward_or_actions_of_ones_own_are_refused():
    for flags in (
        "--reward-fn m:f --reward v9", "--reward-fn m:f --reward-death -10",
        "--reward-fn m:f --reward-scale 0.1",
        "--custom-actions right --action-set simple",
    ):  # fmt: skip
        with pytest.raises(ValueError, match="is for a run without --"):
            env_of(*flags.split())


@pytest.mark.usefixtures("own_rewards")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("own_rewards:none", "has no 'none'; the name must be module:function"),
        ("own_rewards", "the name must be module:function"),
        ("no_such_module:f", "'no_such_module' cannot be imported.*PYTHONPATH"),
        ("own_rewards:number", "is a int; it must be a function"),
        ("broken_rewards:f", "cannot be imported .NameError: name 'x' is not"),
        (".own_rewards:f", "cannot be imported .TypeError"),
    ],
)
def test_wrong_reward_functions_are_one_line(tmp_path, capsys, name, says):
    flags = ["--device", "cpu", "--reward-fn", name, "--run-dir", str(tmp_path / "r")]
    assert main(flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert re.search(says, line)


@pytest.mark.rom
def test_actions_of_ones_own():
    env = env_of("--custom-actions", "NOOP,right+B, right+A+B,down", "--num-envs=2")
    assert env.actions == ("NOOP", "right+B", "right+A+B", "down")
    pool = make_pool(env, seed=1)
    assert pool.action_space.n == 4
    pool.close()


def test_actions_may_be_written_in_other_ways():
    """The same names as in the action sets, which mirrors of pictures go by."""
    env = EnvConfig(custom_actions=("Right + a,LEFT a", "noop"))
    assert env.actions == ("right+A", "left+A", "NOOP")
    assert mirrored(env.actions) == [1, 0, 2]


@pytest.mark.parametrize("action", ["right+C", "", "NOOP+A", "+"])
def test_wrong_actions_are_one_line(tmp_path, capsys, action):
    flags = ["--device", "cpu", f"--custom-actions=right,{action}"]
    assert main([*flags, "--run-dir", str(tmp_path / "r")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"has the action {action!r}; give buttons" in line


@pytest.mark.slow
@pytest.mark.rom
def test_a_rom_of_ones_own(tmp_path, monkeypatch, capsys):
    own = tmp_path / "own.nes"
    own.write_bytes(rom.load("vanilla"))
    monkeypatch.setattr(rom, "_package_files", list)  # nothing is installed
    flags = f"--rom-path {own} --device cpu --max-steps 600 --num-envs 4 --no-videos"
    flags += " --unrolls-per-batch 4 --minibatch-size 64 --dashboard off"
    folder = tmp_path / "run"
    assert main([*flags.split(), "--run-dir", str(folder)]) == 0
    words = f"--checkpoint {folder} --episodes 2 --stall-steps 20 --device cpu"
    assert evaluate.main(words.split()) == 0
    assert list((folder / "evaluation").glob("deaths-1-1.png"))
    # Where the ROM has gone, another one is played.
    monkeypatch.undo()
    own.unlink()
    assert load_policy(folder, CPU).env.rom_path == ""
    capsys.readouterr()
    missing = ["--rom-path", str(tmp_path / "nothing.nes"), "--device", "cpu"]
    assert main([*missing, "--run-dir", str(tmp_path / "r")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search("error: rom_path=.*nothing.nes' does not exist", line)
