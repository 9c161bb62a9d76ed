"""TorchRL, sheeprl, DI-engine and Stoix, where they are installed.

Each runs in a process of its own: their imports warn, and JAX stays out of this one.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.rom, pytest.mark.slow]

TORCHRL = """
import mario_envpool.compat
from torchrl.envs import GymEnv, check_env_specs
for name, options in [
    ("mario_envpool/SuperMarioBros-1-1-v3", {}),
    ("mario_envpool/SuperMarioBros-1-1-v3", {"frame_skip": 2}),
    ("mario_envpool/SuperMarioBros-1-1-v3", {"from_pixels": True}),
    ("mario_envpool_compat/SuperMarioBros-1-1-v0", {}),
]:
    env = GymEnv(name, **options)
    check_env_specs(env)
    print(*env.rollout(50, break_when_any_done=False).batch_size)
    env.close()
"""

# The wrappers of DI-engine's dizoo/mario.
DI_ENGINE = """
import mario_envpool.compat
mario_envpool.compat.install()
import gym_super_mario_bros
import numpy as np
from ding.envs import DingEnvWrapper, env_wrappers
from nes_py.wrappers import JoypadSpace

game = gym_super_mario_bros.make("SuperMarioBros-1-1-v0")
wrappers = [
    lambda env: env_wrappers.MaxAndSkipWrapper(env, skip=4),
    lambda env: env_wrappers.WarpFrameWrapper(env, size=84),
    lambda env: env_wrappers.FrameStackWrapper(env, n_frames=4),
    lambda env: env_wrappers.EvalEpisodeReturnWrapper(env),
]
env = DingEnvWrapper(JoypadSpace(game, [["right"]]), cfg={"env_wrapper": wrappers})
env.seed(0, dynamic_seed=False)
print(*env.reset().shape)
done = False
while not done:
    obs, reward, done, info = env.step(np.array([0]))
print(info["eval_episode_return"])
"""

STOIX = """
import mario_envpool
import numpy as np
from stoix.wrappers.envpool import EnvPoolToStoa

def cut_actions(env):
    step = env.env.step
    env.env.step = lambda action, ids=None: step(
        action if ids is None else action[: len(ids)], ids
    )
    return env

pool = mario_envpool.make(
    "SuperMarioBros-1-1-v3", env_type="gymnasium", num_envs=3, seed=1,
    max_episode_steps=300, gym_reset_return_info=True,
)
env = cut_actions(EnvPoolToStoa(pool))
env.reset()
random = np.random.default_rng(0)
ends = [env.step(random.integers(0, 7, 3)).extras["metrics"]["is_terminal_step"]
        for _ in range(600)]
print("apart:", any(0 < end.sum() < 3 for end in ends))  # one ends before the others
"""


def run(module: str, *arguments: str, cwd: Path | None = None) -> str:
    """Runs Python with the arguments, if the module is installed; returns its text."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torchrl_makes_environments_by_their_ids() -> None:
    lines = run("torchrl", "-c", TORCHRL).splitlines()
    assert lines.count("50") == 4  # others are TorchRL's log


def test_sheeprl_trains_dreamer(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("sheeprl")
    options = (
        "exp=dreamer_v3_super_mario_bros algo=dreamer_v3_5_1M dry_run=True "
        "env.num_envs=1 env.capture_video=False algo.run_test=False "
        "fabric.accelerator=cpu fabric.precision=32-true metric.log_level=0"
    )
    command = ["-m", "mario_envpool.compat", str(program), *options.split()]
    assert "SuperMarioBros-v0" in run("sheeprl", *command, cwd=tmp_path)
    assert list(tmp_path.rglob("*.ckpt"))


def test_di_engine_plays_an_episode() -> None:
    shape, score = run("ding", "-c", DI_ENGINE).splitlines()[-2:]
    assert shape == "4 84 84"
    assert float(score.strip("[]")) > 100


def test_stoix_plays_with_cut_actions() -> None:
    assert run("stoix", "-c", STOIX) == "apart: True\n"
