"""What each of the two ranks of test_ranks.py does, on fake pools and random batches.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python ranks_program.py FOLDER

One program, as most of its time goes into starting it. With a checkpoint as another
argument it continues from there, and does nothing else.
"""

import dataclasses
import hashlib
import sys
from pathlib import Path

import pytest
import torch
from fake_pools import FakePool
from learners import SHAPE, B, T, flat, make_batch, make_model
from learners import change as change_learner
from small_runs import CPU, change, make_config, use_pools

from trainer.learn import build_learner
from trainer.machine.cpu import Shards
from trainer.machine.files import write_json
from trainer.machine.ranks import FirstRankError, join
from trainer.session import training
from trainer.session.training import open_run, train

REPLAY = {"replay_share": 0.5, "replay_capacity": 12, "checkpoint_replay": True}
# Runs whose weights are compared after every update.
KINDS = {
    "fused": {"precision": "bf16", "optimizer": "muon", "ema": 0.9},
    "popart": {"popart": True},
    "impala-memory": {"loss": "impala", "memory": "gru", "epochs": 1, "popart": True},
    "replay-lag": REPLAY | {"lag": 1, "unrolls_per_batch": 16},
    "async": {"mode": "async", "lag": 1},
}
# Runs that are taken apart, into as many steps.
RESUMED = {"turns": {"noisy": True}, "lag": {"lag": 1, "popart": True}}
PARTS = 128, 256, 384
ALONE, AGAIN = 512, 640  # and these end at, gone on with one process and then two
# A batch that two ranks have halves of, and one process all of.
HALVED = {"epochs": 1, "normalise_advantages": False, "minibatch_size": T * B}


def config_of(folder, **options):
    """A run of eight environments in all."""
    options = {"num_envs": 8, "unrolls_per_batch": 8, "minibatch_size": 32} | options
    return change(make_config(folder, log_seconds=100.0, **options))


def exchange(folder, ranks):
    """Writes what each kind of exchange gives."""
    rank = ranks.rank
    mean, copied = torch.full((2, 3), float(rank)), torch.full((2,), rank + 5)
    bias = torch.arange(2.0) + rank
    ranks.average([mean, bias])
    ranks.copy_first([copied])

    def fail():
        raise ValueError("no such level")

    def leave():
        raise SystemExit(3)

    failures = []
    for function in (fail, leave):
        try:
            ranks.first(function)
        except (ValueError, FirstRankError, SystemExit) as error:
            failures.append([type(error).__name__, str(error)])
    found = {
        "first": ranks.first(lambda: rank + 7),
        "gather": ranks.gather(10 * rank),
        "scatter": ranks.scatter(["a", "b"] if ranks.is_first else []),
        "total": ranks.total(rank + 1),
        "sum": ranks.sum(torch.tensor([rank, 2])).tolist(),
        "mean": mean.tolist(),
        "bias": bias.tolist(),
        "copied": copied.tolist(),
        "failures": failures,
    }
    write_json(folder / f"exchange-{rank}.json", found)


def compare_updates(folder, ranks):
    """Writes hashes of the weights after each update of some runs, for each rank."""
    update = training.update
    hashes = []

    def hashed(run):
        batch = update(run)
        model = run.model
        tensors = dict(model.named_parameters())
        # Each rank has noise of its own.
        tensors |= {n: b for n, b in model.named_buffers() if "noise" not in n}
        digest = hashlib.sha256()
        for tensor in tensors.values():
            digest.update(tensor.detach().numpy().tobytes())
        hashes.append(digest.hexdigest())
        return batch

    found = {}
    training.update = hashed
    for kind, options in KINDS.items():
        hashes.clear()
        config = config_of(folder / kind, max_steps=300, **options)
        metrics = train(open_run(config, ranks=ranks))
        found[kind] = {"hashes": list(hashes), "steps": metrics["steps"]}
    training.update = update
    write_json(folder / f"updates-{ranks.rank}.json", found)


def take_apart(folder, ranks):
    """Makes runs whole, and resumed twice."""
    for kind, options in RESUMED.items():
        whole = config_of(folder / kind / "whole", max_steps=PARTS[-1], **options)
        train(open_run(whole, ranks=ranks))
        parts = dataclasses.replace(whole, run_dir=folder / kind / "parts" / "run")
        for steps in PARTS:
            start = None if steps == PARTS[0] else parts.run_dir
            config = dataclasses.replace(parts, max_steps=steps, resume=start)
            train(open_run(config, ranks=ranks))


def learn_halves(folder, ranks):
    """One update from half a batch each, and from all of it alone."""
    config = change_learner(popart=True, **HALVED)
    share = change_learner(config, minibatch_size=T * B // ranks.size)
    batch, half = make_batch(config), B // ranks.size
    own = batch.at(slice(ranks.rank * half, (ranks.rank + 1) * half))
    results = []
    for given, about, more in ((own, share, {"ranks": ranks}), (batch, config, {})):
        learner = build_learner(
            make_model(config), about, obs_shape=SHAPE, device=CPU, dtype=None,
            shards=Shards(1), **more,
        )  # fmt: skip
        learner.update(given, 50)
        popart = learner.model.popart
        results.append(torch.cat([flat(learner.model), popart.mean, popart.std]))
    torch.save(results, folder / f"halves-{ranks.rank}.pt")


def main():
    folder = Path(sys.argv[1])
    use_pools(pytest.MonkeyPatch(), FakePool)
    ranks = join()
    if len(sys.argv) > 2:
        options = RESUMED["turns"] | {"resume": Path(sys.argv[2])}
        config = config_of(folder, max_steps=AGAIN, **options)
        train(open_run(config, ranks=ranks))
    else:
        exchange(folder, ranks)
        learn_halves(folder, ranks)
        compare_updates(folder, ranks)
        take_apart(folder, ranks)
    ranks.close()


if __name__ == "__main__":
    main()
