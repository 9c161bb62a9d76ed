"""A resumed run is the run that was never interrupted."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_runs import CPU, ENVS, change, make_config, read_points, threads_of_runs

from trainer import checkpoint, resume, run
from trainer.run import main, run_training

REPLAY = {
    "replay_share": 0.5, "unrolls_per_batch": 12, "replay_capacity": 10,
    "checkpoint_replay": True,
}  # fmt: skip
EXACT = [
    {},
    {"lag": 1},
    {"lag": 2},
    REPLAY,
    REPLAY | {"lag": 1},
    {"memory": "gru"},
    {"memory": "gru", "burn_in": 4, "lag": 1},
    REPLAY | {"memory": "lstm", "burn_in": 8},
    {"memory": "gtrxl", "loss": "impala", "passes": 1},
    {"optimizer": "muon", "ema": 0.9, "noisy": True},
    {"target_updates": 3, "noisy": True, "lag": 1},
    {"unrolls_per_batch": 12, "optimizer": "rmsprop", "warmup_updates": 30},
]


def differences(one, two, path=""):
    """Where two checkpoints differ, as a list of names."""
    if isinstance(one, torch.Tensor):
        same = one.dtype == two.dtype and torch.equal(one, two)
        return [] if same else [path]
    if isinstance(one, dict):
        if set(one) != set(two):
            return [f"{path}: {set(one) ^ set(two)}"]
        return [d for k in one for d in differences(one[k], two[k], f"{path}/{k}")]
    if isinstance(one, (list, tuple)) and len(one) == len(two):
        pairs = enumerate(zip(one, two, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{path}/{i}")]
    return [] if one == two else [f"{path}: {one} != {two}"]


def essence(run_dir, device=CPU):
    """All of a checkpoint but the time it took and where it lies."""
    state = checkpoint.load(run_dir, device)
    del state["config"], state["progress"]["seconds"]
    # Rows beyond the cursors are what earlier unrolls left there.
    rollouts = state["collecting"]["rollouts"]
    written = int(rollouts["cursor"].max())
    whole = bool(rollouts["full"]) or len(rollouts["used"]) > len(rollouts["cursor"])
    if not whole:
        rollouts["rows"] = {k: v[:written] for k, v in rollouts["rows"].items()}
    else:
        count = len(rollouts["cursor"])
        for rows in rollouts["rows"].values():
            rows[written:, :count] = 0
    for number, used in enumerate(rollouts["frames_used"].tolist()):
        rollouts["frames"][number, used:] = 0
    return state


@pytest.mark.parametrize("options", EXACT, ids=lambda o: "-".join(o) or "default")
def test_the_resumed_run_is_the_uninterrupted_one(tmp_path, pools, options, capsys):
    whole = make_config(tmp_path / "whole", max_steps=1_200, **options)
    run_training(replace(whole, log_seconds=100.0))
    parts = replace(whole, run_dir=tmp_path / "parts" / "run", log_seconds=100.0)
    # Twice, so that a resumed run is resumed as well.
    for steps in (300, 700, 1_200):
        start = None if steps == 300 else parts.run_dir
        run_training(replace(parts, max_steps=steps, resume=start))
    expected = essence(whole.run_dir)
    assert expected["steps"] >= 1_200
    assert differences(expected, essence(parts.run_dir)) == []
    assert "new episodes" not in capsys.readouterr().out
    assert threads_of_runs() == []
