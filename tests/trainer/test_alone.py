"""Each feature by its own flag, with all else default, on the game."""

import json
import sys

import pytest
import torch

from trainer.models import checkpoint
from trainer.run import main

pytestmark = pytest.mark.rom

STEPS = 4096
REPLAY = ["--replay-share 0.25", "--replay-share 0.5", "--replay-share 0.75"]
TILES = [*REPLAY, "--noisy", "--augment shift", "--novelty 1"]
FLAGS = [
    "--loss impala",
    "--lag 1",
    "--mode async",
    "--memory gru",
    "--memory lstm",
    "--memory gtrxl",
    "--starts backward",
    "--imitation 0.1",
    "--guide 0.15",
    *TILES,
    *(f"--obs tiles {flag}" for flag in TILES),
]


def train(folder, flags, steps=STEPS):
    """Runs the command; gives its last metrics."""
    options = f"{flags} --max-steps {steps} --no-videos --dashboard off --device cpu"
    assert main([*options.split(), "--run-dir", str(folder)]) == 0
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("flags", FLAGS)
def test_a_feature_switches_on_by_its_own_flag(tmp_path, flags):
    metrics = train(tmp_path / "run", flags)
    assert metrics["step"] >= STEPS
    assert metrics["learn/updates"] >= 2
    state = checkpoint.load(tmp_path / "run", torch.device("cpu"))
    assert all(weights.isfinite().all() for weights in state["model"].values())
    learner, env = state["config"]["learner"], state["config"]["env"]
    # It is there, and the rest is the default.
    size = 32 if flags == "--lag 1" else 64
    assert (env["num_envs"], learner["unrolls_per_batch"]) == (size, size)
    if "replay" in flags:
        share = float(flags.split()[-1])
        # The mean over updates, of which the first has nothing to replay.
        assert share / 2 < metrics["learn/replay/share"] <= share + 0.01
        assert 0 < metrics["learn/replay/weight"] <= 1
    if "lag" in flags:
        assert 0 < metrics["learn/policy_lag"] <= 1  # the first batch has none


@pytest.mark.slow
def test_a_network_of_ones_own_trains_with_default_options(tmp_path, monkeypatch):
    """The one of docs/algorithms.md, by the command line."""
    (tmp_path / "my_network.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "from trainer.models import ActorCritic\n"
        "from trainer.models.encoders import CentredConv2d\n"
        "class Small(ActorCritic):\n"
        "    def make_encoder(self, config, shape):\n"
        "        body = nn.Sequential(\n"
        "            CentredConv2d(shape[0], 8, 8, 8), nn.ReLU(), nn.Flatten())\n"
        "        return body, body(torch.zeros(1, *shape)).shape[1]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    metrics = train(tmp_path / "run", "--model my_network:Small", steps=2048)
    assert metrics["step"] >= 2048
    sys.modules.pop("my_network")


@pytest.mark.slow
def test_a_whole_game_says_how_many_levels_were_passed(tmp_path):
    flags = "--task SuperMarioBros-v0 --stall-steps 20"
    metrics = train(tmp_path / "run", flags, steps=8192)
    assert metrics["rollout/episodes"] > 0
    assert metrics["rollout/levels_passed"] == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["env"]["action_set"] == "complex"  # with DOWN, for 8-4
    assert config["env"]["max_episode_steps"] == 20_000
