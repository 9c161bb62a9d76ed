"""Every example runs for a few hundred steps without a warning."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.py"))
# Those that load EnvPool's own environments.
LOADING = {n for n in EXAMPLES if "\nimport envpool\n" in (FOLDER / n).read_text()}
# What an example needs beyond this package.
NEEDS = {
    "jax_rollout.py": "jax mario_envpool._xla",
    "onnx_play.py": "onnx onnxscript onnxruntime",
    "sb3_ppo.py": "stable_baselines3",
    "tianshou_ppo.py": "tianshou",
    "torchrl_ppo.py": "torchrl",
}
OPTIONS = {
    "cleanrl_ppo.py": "--num-envs 4 --num-steps 32",
    "jax_rollout.py": "--num-envs 2",
    "onnx_play.py": "--num-envs 2",
    "sb3_ppo.py": "--num-envs 2",
    "tianshou_ppo.py": "--num-envs 2",
    "torchrl_ppo.py": "--num-envs 2",
}
# What makes the files that an example reads.
BEFORE = {"onnx_play.py": "-m trainer.export released:1-1 --onnx policy.onnx"}
# Warnings of other packages about themselves. Tianshou's comes with EnvPool's own
# environments, too, when a single one is reset.
FOREIGN = (
    "ignore:Creating :DeprecationWarning",
    "ignore:You are using tensors with different shape:UserWarning",
)


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.families] * (name in LOADING))
        for name in EXAMPLES
    ],
)
def test_example_runs_without_a_warning(name: str, tmp_path: Path) -> None:
    for package in NEEDS.get(name, "").split():
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if name in BEFORE:
        command = [sys.executable, *BEFORE[name].split()]
        subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error"),
            *(word for rule in FOREIGN for word in ("-W", rule)),
            str(FOLDER / name),
            *("--steps", "300"),
            *OPTIONS.get(name, "").split(),
        ],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr


def test_each_is_in_the_table() -> None:
    table = (FOLDER / "README.md").read_text()
    assert sorted(re.findall(r"^\| \[(\w+\.py)\]\(\1\)", table, re.M)) == EXAMPLES
    assert NEEDS.keys() | OPTIONS.keys() <= set(EXAMPLES)


def test_they_stay_short() -> None:
    for name in EXAMPLES:
        assert len((FOLDER / name).read_text().splitlines()) <= 250, name
