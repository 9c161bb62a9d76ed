"""Policies trained on gym-super-mario-bros, played greedily through compat."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mario_envpool.compat import make
from mario_envpool.compat.actions import COMPLEX_MOVEMENT, SIMPLE_MOVEMENT
from mario_envpool.compat.wrappers import JoypadSpace

pytestmark = [pytest.mark.rom, pytest.mark.verification, pytest.mark.slow]


@pytest.mark.slow
def test_each_clears_its_level_in_as_many_decisions_as_upstream(
    verification: Path,
) -> None:
    """A greedy policy is a clockwork: one frame of difference breaks it."""
    pytest.importorskip("cv2", reason="their author resizes pictures with OpenCV")
    pytest.importorskip("torch", reason="the policies are PyTorch's")
    path = verification / "tools" / "policies.py"
    spec = importlib.util.spec_from_file_location("policies", path)
    assert spec is not None
    assert spec.loader is not None
    policies: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(policies)

    def make_env(level: str, actions: int) -> Any:
        movement = {7: SIMPLE_MOVEMENT, 12: COMPLEX_MOVEMENT}[actions]
        return JoypadSpace(make(f"SuperMarioBros-{level}-v0"), movement)

    rows = policies.check(make_env, verification / "policies")
    assert len(rows) == 6
    for level, flag, decisions, expected in rows:
        assert flag, level
        assert decisions == expected, level


@pytest.mark.parametrize("level", ["1-1", "2-2", "3-4", "4-3", "7-1", "7-2", "8-4"])
def test_policies_of_another_author_play_every_picture_as_upstream(
    verification: Path, level: str
) -> None:
    """Their actions, and the pictures of all frames, have the expected checksums."""
    pytest.importorskip("cv2", reason="their author resizes pictures with OpenCV")
    pytest.importorskip("torch", reason="the policies are PyTorch's")
    tool, folder = (
        verification / "tools" / "policies84.py",
        verification / "policies-84",
    )
    done = subprocess.run(
        [sys.executable, str(tool), str(folder), level],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    assert "flag True" in line
    assert line.endswith("equal")
