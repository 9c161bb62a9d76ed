"""One environment without a pool, by the id it has upstream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mario_envpool import _core

ROM_OF_VERSION = {
    "v0": "vanilla",
    "v1": "downsample",
    "v2": "pixel",
    "v3": "rectangle",
}
# As upstream: every frame a step, any button byte an action.
UPSTREAM = {"frame_skip": 1, "stack_num": 1, "action_set": "raw"}

MakeEnv = Callable[..., Any]


@pytest.fixture(scope="session")
def make_env(load_rom: Callable[[str], bytes]) -> MakeEnv:
    """``make_env("SuperMarioBros-1-1-v0", seed=3, noop_max=30)``."""

    def make(
        env_id: str = "SuperMarioBros-1-1-v0",
        *,
        rom: str = "",
        number: int = 0,
        seed: int = 0,
        **options: Any,
    ) -> Any:
        parts = env_id.split("-")
        lost_levels = parts[0] == "SuperMarioBros2"
        if not rom:
            rom = "lost-levels" if lost_levels else ROM_OF_VERSION[parts[-1]]
        if lost_levels:
            options.setdefault("lost_levels", True)
        if len(parts) == 4:
            options.setdefault("stages", [f"{parts[1]}-{parts[2]}"])
        return _core._MarioEnv(load_rom(rom), options, number, seed)

    return make


@pytest.fixture(scope="session")
def make_upstream(make_env: MakeEnv) -> MakeEnv:
    """Like ``make_env``, with one frame a step and raw buttons."""

    def make(env_id: str, **options: Any) -> Any:
        return make_env(env_id, **{**UPSTREAM, **options})

    return make


@pytest.fixture(scope="session")
def make_late(make_upstream: MakeEnv) -> MakeEnv:
    """``make_late(env_id, reset_ram)`` is ``make_upstream`` in the phase of nes-py.

    nes-py ends its start-up skip up to two frames later than an accurate core, and so
    its clock ticks earlier. The game's frame counter in its RAM at a reset says how
    many idle frames make up for that.
    """

    def make(env_id: str, reset_ram: Any, **options: Any) -> Any:
        env = make_upstream(env_id, **options)
        env.reset()
        late = int(reset_ram[0x09]) - int(env.ram[0x09])
        return make_upstream(env_id, noops=[(late + 1) // 2 * 2], **options)

    return make
