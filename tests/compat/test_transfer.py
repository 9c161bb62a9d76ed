"""Pictures of nes-py through our preprocessing are the observations of a pool."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np
import pytest
from material import ROOT

import mario_envpool
from trainer.config.schema import EnvConfig, RunConfig


def load_bench() -> Any:
    """bench/transfer.py as a module."""
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        spec = importlib.util.spec_from_file_location(
            "transfer", ROOT / "bench" / "transfer.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "bench"))
    return module


@pytest.mark.rom
@pytest.mark.parametrize("timing", ["console", "nes_py"])
@pytest.mark.parametrize("options", [{}, {"hud": "keep", "img_height": 84}])
def test_a_picture_gives_the_observation_of_a_pool(
    timing: str, options: dict[str, Any]
) -> None:
    """RGB of the last frame of every step, over an episode that scrolls and ends."""
    env = RunConfig(env=EnvConfig(timing=timing, **options)).resolved().env
    eyes = load_bench().Eyes(env)
    shown = ("frame_skip", "stack_num", "img_height", "img_width", "hud", "timing")
    pool = mario_envpool.make(
        env.task,
        num_envs=1,
        action_set="right_only",
        **{name: getattr(env, name) for name in shown},
    )
    obs, _ = pool.reset()
    expected = eyes.begin(pool._render(np.zeros(1, np.int32), 0, 0, -1)[0])
    assert np.array_equal(obs[0], expected)
    rng = np.random.default_rng(3)
    for _ in range(120):
        action = np.array([rng.choice([1, 3, 4, 4])], np.int32)
        obs, _, terminated, truncated, _ = pool.step(action)
        expected = eyes.see(pool._render(np.zeros(1, np.int32), 0, 0, -1)[0])
        assert np.array_equal(obs[0], expected)
        if terminated[0] or truncated[0]:
            break
    pool.close()
