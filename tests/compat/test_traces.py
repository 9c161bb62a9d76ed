"""Equality with recordings of gym-super-mario-bros, through compat."""

from __future__ import annotations

import itertools
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mario_envpool.codes import STATUS
from mario_envpool.compat import make

pytestmark = [pytest.mark.rom, pytest.mark.verification]

INFO = "coins flag_get life score stage time world x_pos y_pos".split()
ALIGNED = (
    "SuperMarioBros-1-1-v0.simple.s11",
    "SuperMarioBros-1-1-v3.simple.s20",
    "SuperMarioBros-4-2-v0.simple.s12",
    "SuperMarioBros-v0.complex.s16",
    "SuperMarioBros-v0.simple.s15",
)
WITH_REWARD_OF_9 = (
    "SuperMarioBros-1-1-v0.simple.s11",
    "SuperMarioBros-2-2-v0.simple.s14",
)
PARTS = "progress time score coins powerup completion death".split()


def load(path: Path) -> dict[str, Any]:
    with np.load(path) as data:
        return {key: data[key] for key in data}


def ram_crc(ram: np.ndarray) -> int:
    """CRC32 of work RAM without the stack page."""
    copy = ram.copy()
    copy[0x100:0x200] = 0
    return zlib.crc32(copy.tobytes())


@pytest.mark.parametrize("name", ALIGNED)
def test_every_step_equals_the_aligned_trace(name: str, verification: Path) -> None:
    """Info before the skipped waits, RAM after them; several lives in two of them."""
    trace = load(verification / "traces-aligned" / "even" / f"{name}.npz")
    env = make(str(trace["env_id"]))
    ram = env.ram
    deaths = 0
    for t in range(len(trace["done"])):
        if trace["reset_before"][t]:
            env.reset()
        _, reward, done, info = env.step(trace["action_byte"][t])
        assert reward == trace["reward"][t], t
        assert done == trace["done"][t], t
        assert info["status"] == STATUS[trace["status"][t]], t
        for key in INFO:
            assert info[key] == trace[key][t], (t, key)
        assert ram_crc(ram) == trace["ram_nostack_crc"][t], t
        deaths += reward == -15 and not done
    if name.startswith("SuperMarioBros-v0"):
        assert deaths > 0


def align(env: Any, upstream_ram: np.ndarray) -> None:
    """Idle frames until the game's frame counter ($09) is where upstream's was.

    nes-py ends its start-up skip up to two frames later.
    """
    late = int(upstream_ram[0x09]) - int(env.unwrapped.ram[0x09])
    for _ in range((late + 1) // 2 * 2):
        env.step(0)


@pytest.mark.parametrize("name", WITH_REWARD_OF_9)
def test_rewards_of_9_are_equal_one_step_earlier(name: str, verification: Path) -> None:
    """In every episode: the reward, its seven parts, and its unclipped sum."""
    trace = load(verification / "traces-gsm9" / f"{name}.npz")
    upstream_ram = load(verification / "traces-gsm" / f"{name}.npz")["reset_ram"]
    env = make(str(trace["env_id"]), reward="v9", api="gymnasium")
    starts = [*np.nonzero(trace["reset_before"])[0].tolist(), len(trace["reward"])]
    for first, end in itertools.pairwise(starts):
        env.reset()
        align(env, upstream_ram)
        terminated = False
        for t in range(first, end - 1):
            _, reward, terminated, _, info = env.step(trace["action_byte"][t])
            assert reward == pytest.approx(trace["reward"][t + 1], abs=1e-5), t
            assert info["reward_total_clipped"] == reward
            raw = info["reward_total_unclipped"]
            assert raw == pytest.approx(trace["raw"][t + 1], abs=1e-5), t
            for part in PARTS:
                expected = pytest.approx(trace[f"p_{part}"][t + 1], abs=1e-5)
                assert info["reward_components"][part] == expected, (t, part)
            assert info["x_pos_max"] == trace["x_pos_max"][t + 1], t
            assert info["progress_max"] == info["x_pos_max"]
            assert terminated == trace["terminated"][t + 1], t
        assert terminated == trace["terminated"][end - 1]


def test_random_stages_have_upstreams_order(verification: Path) -> None:
    orders = json.loads((verification / "traces-gsm/random-stages.json").read_text())
    assert len(orders) == 6
    for key, order in orders.items():
        stages, seed = None, key
        if key.startswith("subset "):
            _, names, _, seed = key.split()
            stages = names.split(",")
        env = make("SuperMarioBrosRandomStages-v0", stages=stages)
        env.seed(int(seed))
        for world, stage in order:
            env.reset()
            assert [env._world, env._stage] == [world, stage]
        # The same seed again, given to reset, and the stages to that reset only.
        env.stages = None
        env.reset(seed=int(seed), options={"stages": stages})
        assert [env._world, env._stage] == order[0]
