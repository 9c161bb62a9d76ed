"""A resumed run is the run that was never interrupted."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_runs import (
    CPU,
    ENVS,
    change,
    differences,
    essence,
    make_config,
    read_points,
    threads_of_runs,
)

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
