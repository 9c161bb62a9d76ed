"""Equality with recordings of gym-super-mario-bros, through compat."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import RECORDINGS, load, ram_crc
from upstream_formulas import Formulas, Parts

from mario_envpool.codes import STATUS
from mario_envpool.compat import make
from mario_envpool.compat.tasks import keywords_of

pytestmark = [pytest.mark.rom, pytest.mark.verification]

INFO = "coins flag_get life score stage time world x_pos y_pos".split()
UPSTREAM_9 = (
    "SuperMarioBros-1-1-v0.simple.s11",
    "SuperMarioBros-2-2-v0.simple.s14",
    "SuperMarioBros-v0.complex.s16",
)
PARTS = "progress time score coins powerup completion death".split()


def check_step(
    trace: dict[str, Any], t: int, ram: np.ndarray, result: tuple[Any, ...]
) -> None:
    """Compares a step's 4-tuple, and work RAM, which is taken once for all resets."""
    _, reward, done, info = result
    assert reward == trace["reward"][t], t
    assert done == trace["done"][t], t
    assert info["status"] == STATUS[trace["status"][t]], t
    for key in INFO:
        assert info[key] == trace[key][t], (t, key)
    assert ram_crc(ram) == trace["ram_nostack_crc"][t], t


@pytest.mark.parametrize("kind", [None, Formulas, Parts])
@pytest.mark.parametrize("name", RECORDINGS)
def test_every_step_equals_upstream(name: str, kind: Any, verification: Path) -> None:
    """7.4.0 itself, without a shift: reward, end, info, RAM and picture.

    Subclasses that repeat its formulas equal it, too.
    """
    trace = load(verification / "traces-gsm" / f"{name}.npz")
    env_id = str(trace["env_id"])
    env = make(env_id) if kind is None else kind(**keywords_of(env_id))
    ram = env.ram
    for t in range(len(trace["done"])):
        if trace["reset_before"][t]:
            obs = env.reset()
            assert ram_crc(ram) == ram_crc(trace["reset_ram"])
            if t == 0:
                assert np.array_equal(obs, trace["reset_rgb"])
        result = env.step(trace["action_byte"][t])
        check_step(trace, t, ram, result)
        assert zlib.crc32(result[0].tobytes()) == trace["rgb_crc"][t], t


@pytest.mark.parametrize("name", UPSTREAM_9)
def test_every_step_equals_upstream_9(name: str, verification: Path) -> None:
    """9.1.0 itself, without a shift: the reward and its seven parts."""
    trace = load(verification / "traces-gsm9" / f"{name}.npz")
    env = make(str(trace["env_id"]), reward="v9", api="gymnasium")
    for t in range(len(trace["reward"])):
        if trace["reset_before"][t]:
            env.reset()
        _, reward, terminated, _, info = env.step(trace["action_byte"][t])
        assert reward == pytest.approx(trace["reward"][t], abs=1e-5), t
        assert info["reward_total_clipped"] == reward
        raw = info["reward_total_unclipped"]
        assert raw == pytest.approx(trace["raw"][t], abs=1e-5), t
        for part in PARTS:
            expected = pytest.approx(trace[f"p_{part}"][t], abs=1e-5)
            assert info["reward_components"][part] == expected, (t, part)
        assert info["x_pos_max"] == info["progress_max"] == trace["x_pos_max"][t], t
        assert terminated == trace["terminated"][t], t


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
            assert [env.unwrapped._world, env.unwrapped._stage] == [world, stage]
        # The same seed again, given to reset, and the stages to that reset only.
        env.unwrapped.stages = None
        env.reset(seed=int(seed), options={"stages": stages})
        assert [env.unwrapped._world, env.unwrapped._stage] == order[0]
