"""Old EnvPool's shapes, and CleanRL's script for them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gym
import numpy as np
import pytest
import torch
from material import verification_folder

import mario_envpool
from mario_envpool.compat import envpool

pytestmark = pytest.mark.rom
STAGE, GAME = "SuperMarioBros-1-1-v0", "SuperMarioBros-v0"
RIGHT = 1


def right(count: int) -> np.ndarray[Any, Any]:
    return np.full(count, RIGHT)


def test_four_values_and_observations_alone() -> None:
    envs = envpool.make(STAGE, env_type="gym", num_envs=3, seed=1)
    native = mario_envpool.make(STAGE, num_envs=3, seed=1)
    obs = envs.reset()
    np.testing.assert_array_equal(obs, native.reset()[0])
    for _ in range(200):
        obs, reward, done, info = envs.step(right(3))
        expected = native.step(right(3))
        np.testing.assert_array_equal(obs, expected[0])
        np.testing.assert_array_equal(reward, expected[1])
        np.testing.assert_array_equal(done, expected[2] | expected[3])
        assert done.dtype == np.bool_
        np.testing.assert_array_equal(info["elapsed_step"], expected[4]["elapsed_step"])


def test_five_values_for_gymnasium() -> None:
    for envs in (
        envpool.make(STAGE, "gymnasium", num_envs=2),
        envpool.make_gymnasium(STAGE, num_envs=2),
    ):
        obs, info = envs.reset()
        assert obs.shape == (2, 4, 84, 84)
        assert info["lives"].tolist() == [1, 1]
        assert len(envs.step(right(2))) == 5


def test_reset_with_info_when_asked() -> None:
    envs = envpool.make_gym(STAGE, num_envs=2, gym_reset_return_info=True)
    obs, info = envs.reset()
    assert obs.shape == (2, 4, 84, 84)
    assert info["env_id"].tolist() == [0, 1]
    assert envs.recv.__self__ is envs


def test_dm_pools_are_those_of_today() -> None:
    assert envpool.make(STAGE, "dm", num_envs=2).reset().observation.obs.shape[0] == 2
    with pytest.raises(ValueError, match="env_type='jax'"):
        envpool.make(STAGE, "jax")


def test_asynchronous() -> None:
    envs = envpool.make(STAGE, env_type="gym", num_envs=6, batch_size=2)
    envs.async_reset()
    for _ in range(20):
        obs, reward, _done, info = envs.recv()
        assert obs.shape == (2, 4, 84, 84)
        assert reward.shape == info["lives"].shape == (2,)
        envs.send(right(2), info["env_id"])


def test_some_environments_alone() -> None:
    envs = envpool.make(STAGE, env_type="gym", num_envs=4)
    envs.reset()
    ids = np.array([1, 3], np.int32)
    *_, info = envs.step(right(2), ids)
    assert info["env_id"].tolist() == [1, 3]
    assert envs.reset(ids).shape == (2, 4, 84, 84)


def test_a_seed_repeats_an_episode() -> None:
    envs = envpool.make(STAGE, env_type="gym", num_envs=2, noop_max=30)
    first, other, again = (envs.reset(seed=seed) for seed in (5, 6, 5))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    with pytest.raises(ValueError, match="reset has no options"):
        envs.reset(options={"stages": ["1-1"]})


def test_rewards_before_and_after_clipping() -> None:
    clipped = envpool.make(STAGE, env_type="gym", num_envs=1, reward_clip=True)
    plain = envpool.make(STAGE, env_type="gym", num_envs=1)
    for envs in (clipped, plain):
        envs.reset()
    seen = set()
    for _ in range(150):
        _, sign, _, info = clipped.step(right(1))
        _, reward, _, _ = plain.step(right(1))
        assert info["reward"] == reward
        assert sign == np.sign(reward)
        seen.add(float(sign[0]))
    assert seen == {-1.0, 0.0, 1.0}
    with pytest.raises(TypeError, match="reward_clip='yes'"):
        envpool.make(STAGE, env_type="gym", reward_clip="yes")


def test_lives_of_a_whole_game() -> None:
    envs = envpool.make(GAME, env_type="gym", num_envs=1)
    envs.reset()
    done, lives = [False], set()
    while not done[0]:
        _, _, done, info = envs.step(right(1))
        lives.add(int(info["lives"][0]))
    assert lives == {3, 2, 1, 0}
    assert (info["lives"], info["terminated"], info["life"]) == (0, 1, 255)


def test_lives_of_a_whole_game_a_life_at_a_time() -> None:
    """Right-biased play dies in pits, too; what is left is what comes next."""
    envs = envpool.make(GAME, env_type="gym", num_envs=8, episodic_life=True)
    envs.reset()
    rng = np.random.default_rng(3)
    ends = []
    left, over, done = np.full(8, 3), np.zeros(8, int), np.zeros(8, bool)
    for _ in range(900):
        before = left, over, done
        actions = rng.choice(7, size=8, p=[0.02, 0.1, 0.15, 0.25, 0.4, 0.04, 0.04])
        _, _, done, info = envs.step(actions)
        left, over = info["lives"], info["terminated"]
        np.testing.assert_array_equal(over, left == 0)
        assert not (over & ~done).any()
        first = before[2]
        expected = np.where(before[1][first], 3, before[0][first])
        np.testing.assert_array_equal(left[first], expected)
        ends += left[done].tolist()
    assert {0, 1, 2} == set(ends)


def test_one_life_in_a_stage_and_none_after_a_truncation() -> None:
    envs = envpool.make(STAGE, env_type="gym", num_envs=1, max_episode_steps=30)
    envs.reset()
    rows = [envs.step(right(1)) for _ in range(31)]
    assert [row[3]["lives"][0] for row in rows] == [1] * 29 + [0, 1]
    _, _, done, info = rows[29]
    assert done[0]
    assert info["TimeLimit.truncated"][0]
    assert info["terminated"][0] == 0
    envs = envpool.make(STAGE, env_type="gym", num_envs=1, episodic_life=True)
    envs.reset()
    for _ in range(200):
        _, _, done, info = envs.step(right(1))
        assert info["lives"][0] == info["terminated"][0] ^ 1 == 1 - done[0]
        if done[0]:
            return
    raise AssertionError("the episode did not end")


def test_attributes() -> None:
    envs = envpool.make(STAGE, env_type="gym", num_envs=3)
    envs.num_envs = 5
    envs.single_action_space = envs.action_space
    assert envs.num_envs == 5
    assert len(envs) == 3
    assert envs.all_env_ids.tolist() == [0, 1, 2]
    assert isinstance(envs, gym.Env)
    assert isinstance(envs.action_space, gym.spaces.Discrete)
    assert isinstance(envs.observation_space, gym.spaces.Box)
    assert envs.config["num_envs"] == 3
    with pytest.raises(AttributeError, match="_nothing"):
        _ = envs._nothing
    with pytest.raises(AttributeError, match="nothing"):
        _ = envs.nothing
    envs.close()
    envs.close()


def test_a_wrapper_passes_attributes_on() -> None:
    class Wrapped(gym.Wrapper):
        pass

    envs = Wrapped(envpool.make(STAGE, env_type="gym", num_envs=3))
    assert envs.single_action_space.n == 7
    assert envs.num_envs == 3
    assert envs.reset().shape == (3, 4, 84, 84)
    assert len(envs.step(right(3))) == 4
    with pytest.raises(AttributeError, match="private"):
        _ = envs._pool


class EpisodeReturns(gym.Wrapper):
    """What scripts for old EnvPool do: returns by ``info``, ended by ``lives``."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.count = getattr(env, "num_envs", 1)
        env.reset()
        self.has_lives = env.step(np.zeros(self.count, dtype=int))[-1]["lives"].any()

    def reset(self, **keywords: Any) -> Any:
        self.totals = np.zeros(self.count, np.float32)
        return super().reset(**keywords)

    def step(self, action: Any) -> Any:
        obs, reward, done, info = super().step(action)
        self.totals += info["reward"]
        info["r"] = self.totals.copy()
        self.totals *= 1 - (info["lives"] == 0)
        info["l"] = info["elapsed_step"]
        return obs, reward, done, info


def test_all_that_such_scripts_do() -> None:
    envs = envpool.make(
        STAGE, env_type="gym", num_envs=4, episodic_life=True, reward_clip=True, seed=1
    )
    envs.num_envs = 4
    torch.manual_seed(1)
    envs.single_action_space = envs.action_space
    envs.single_observation_space = envs.observation_space
    envs = EpisodeReturns(envs)
    assert isinstance(envs.action_space, gym.spaces.Discrete)
    assert envs.has_lives
    policy = torch.nn.Linear(7056, envs.single_action_space.n)
    storage = torch.zeros((8, 4, *envs.single_observation_space.shape))
    obs = torch.Tensor(envs.reset())
    returns: list[float] = []
    for step in range(400):
        storage[step % 8] = obs
        logits = policy(obs[:, -1].flatten(1) / 255)
        logits[:, RIGHT] += 3
        action = torch.distributions.Categorical(logits=logits).sample()
        next_obs, reward, done, info = envs.step(action.cpu().numpy())
        assert torch.tensor(reward).view(-1).abs().max() <= 1
        obs, next_done = torch.Tensor(next_obs), torch.Tensor(done)
        assert next_done.sum() == done.sum()
        returns += [
            info["r"][i] for i, d in enumerate(done) if d and info["lives"][i] == 0
        ]
    assert len(returns) >= 4
    assert max(returns) > 100
    envs.close()


def cleanrl_script() -> Path:
    """CleanRL's ppo_atari_envpool.py: CLEANRL_SCRIPT, or in the verification folder."""
    given = os.environ.get("CLEANRL_SCRIPT", "")
    path = Path(given) if given else verification_folder() / "ppo_atari_envpool.py"
    if not path.is_file():
        pytest.skip(f"no CleanRL script at {path}; set CLEANRL_SCRIPT to its path")
    return path


def patched(script: str, task_id: str) -> str:
    """The script with other imports and another id, and else as it is."""
    script, imports = re.subn(
        r"^import envpool$",
        "from mario_envpool.compat import envpool",
        script,
        flags=re.MULTILINE,
    )
    script, ids = re.subn(r'"\w+-v5"', f'"{task_id}"', script)
    assert (imports, ids) == (1, 1)
    return script


@pytest.mark.slow
def test_the_script_of_cleanrl(tmp_path: Path) -> None:
    path = tmp_path / "ppo_atari_envpool.py"
    path.write_text(patched(cleanrl_script().read_text(), STAGE))
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error::UserWarning", str(path)),
            *"--num-envs 8 --num-steps 32 --total-timesteps 1024".split(),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "SPS:" in done.stdout
