"""Whole runs on a GPU of labels (tests/support/label_gpu) have no race.

Each run is the trainer as it is, on a fake pool or with the game. What its operators,
streams, events, threads and locks leave unordered is reported. So is each fault that is
planted here, in the process of its run only.

The labels find what they were made for: in commit b24f324, with lag 1, they report that
the collecting thread drops rows (`Rows.acting` of batch 0) that its stream may still
read, and the environments of these rows with a memory; today's runs have neither.
"""

import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import fake_pools
import pytest
import small_runs
import torch
from label_gpu import build
from label_gpu.client import on_label_gpu
from label_gpu.table import counts, table

from trainer.learn import losses, ppo
from trainer.machine import cuda
from trainer.machine.cuda import Graphed
from trainer.models import checkpoint
from trainer.rollout import collector, pipeline
from trainer.session import training

REPLAY = {"replay_share": 0.25, "replay_capacity": 16}
ASYNC = {"mode": "async"}
NO_GRAPHS = {"cuda_graphs": False}
RUNS = {
    "in turns": {"lag": 0},
    "lag 1": {"lag": 1},
    "lag 2": {"lag": 2},
    "async, in turns": {"lag": 0} | ASYNC,
    "async, lag 1": {"lag": 1} | ASYNC,
    "async, lag 2": {"lag": 2} | ASYNC,
    "no graphs": {"lag": 1} | NO_GRAPHS,
    "async, no graphs": {"lag": 2} | ASYNC | NO_GRAPHS,
    "gru": {"lag": 1, "memory": "gru"},
    "gtrxl": {"lag": 1, "memory": "gtrxl"},
    "async, gru, impala": {"lag": 1, "memory": "gru", "loss": "impala"} | ASYNC,
    "impala": {"lag": 1, "loss": "impala"},
    "impala's network": {"lag": 1, "loss": "impala", "model": "impala"},
    "replay": {"lag": 1} | REPLAY,
    "async, replay, impala": {"lag": 2, "loss": "impala"} | ASYNC | REPLAY,
    "burn-in": {"lag": 1, "memory": "gru", "burn_in": 3} | REPLAY,
    "popart": {"lag": 1, "popart": True},
    "noise": {"lag": 1, "noisy": True},
    "augmentation": {"lag": 1, "augment": ("shift", "brightness")},
    "bf16": {"lag": 1, "precision": "bf16"},
    "fp16": {"lag": 1, "precision": "fp16"},
    "muon, average": {"lag": 2, "optimizer": "muon", "ema": 0.99},
    "everything": {
        "lag": 2, "loss": "impala", "memory": "gru", "popart": True, "noisy": True,
        "precision": "bf16", "augment": ("shift",),
    } | ASYNC | REPLAY,
}  # fmt: skip


# A run for these tests, which options change. Its only report is the last: a report
# waits for the device, and locks pass this on to the other threads.
SMALL = {
    "device": "cuda", "learner_threads": 0, "max_steps": 108, "unroll": 3,
    "minibatch_size": 9, "epochs": 1, "log_seconds": 1000.0,
}  # fmt: skip
OF_THE_GAME = {"videos": True, "max_episode_steps": 16, "img_height": 36}


class Ran(NamedTuple):
    """What a run leaves."""

    steps: int
    recorded: set[str]  # names of functions that became graphs
    weights: dict[str, torch.Tensor]
    videos: int


def run(*, resumed_after=0, game=False, **options):
    """A run with options of the trainer, on a fake pool, or on the game with videos.

    After some steps it may end, and another one resume it.
    """
    recorded, close = Counter(), Graphed.close

    def noted(graphed):
        recorded[graphed._name] += graphed.recorded
        close(graphed)

    Graphed.close = noted
    if game:
        options = OF_THE_GAME | options
    else:
        small_runs.use_pools(pytest.MonkeyPatch(), fake_pools.FakePool)
    with tempfile.TemporaryDirectory() as folder:
        config = small_runs.make_config(Path(folder), **(SMALL | options))
        if resumed_after:
            training.run_training(small_runs.change(config, max_steps=resumed_after))
            config = small_runs.change(config, resume=config.run_dir)
            recorded.clear()
        steps = training.run_training(config)["steps"]
        videos = len(list(Path(folder).glob("run/videos/*.mp4")))
        weights = checkpoint.load(config.run_dir, torch.device("cpu"))["model"]
    return Ran(steps, set(+recorded), weights, videos)


def checked(**options):
    """A run, in which all is recorded as graphs that should be."""
    ran = run(**options)
    expected = {"acting", "the gradient step", "the targets"}
    if options.get("loss") == "impala":
        expected = {"acting", "the gradient step"}
    if options.get("precision") == "fp16":  # its scaler asks the host
        expected = {"acting"}
    if not options.get("cuda_graphs", True):
        expected = set()
    assert ran.recorded == expected
    return ran


@pytest.mark.parametrize("name", RUNS)
@on_label_gpu()
def test_a_run(name):
    checked(**RUNS[name])


@pytest.mark.parametrize("lag", [0, 1])
@on_label_gpu()
def test_a_resumed_run(lag):
    assert checked(resumed_after=36, lag=lag).steps >= 108


@pytest.mark.rom
@pytest.mark.parametrize("mode", ["sync", "async"])
@on_label_gpu()
def test_the_game_with_videos(mode):
    """Its pool has slabs, which are page-locked and copied in place."""
    assert checked(game=True, lag=1, mode=mode, max_steps=200).videos


@pytest.mark.parametrize("model", [{}, {"popart": True, "memory": "gru"}])
@on_label_gpu()
def test_a_recorded_run_is_an_unrecorded_one(model):
    """As many steps, and weights, as far as a learning rate on the device allows."""
    weights = []
    for graphs in (True, False):
        ran = checked(lag=1, cuda_graphs=graphs, **model)
        weights.append(ran.weights)
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name], rtol=1e-4, atol=1e-5)


def run_with_fault(**options):
    """A run that may fail, as its fault was planted before."""
    with suppress(RuntimeError):
        run(**{"lag": 1} | options)


@on_label_gpu("use after free")
def test_no_stream_says_that_it_uses_the_memory_of_another():
    torch.Tensor.record_stream = lambda self, stream: None
    run_with_fault()


def forget_rows():
    """The collecting thread does not say that it uses rows of another thread."""
    collector.use_here = lambda device, *tensors: None


@on_label_gpu("use after free")
def test_rows_are_not_announced():
    forget_rows()
    run_with_fault()


@pytest.mark.parametrize("memory", ["none", "gru"])
@on_label_gpu("use after free")
def test_rows_of_a_resumed_run_are_not_announced(memory):
    """They are restored in the default stream, before there is any other."""
    forget_rows()
    run_with_fault(resumed_after=36, lag=0, memory=memory)


@on_label_gpu("race")
def test_learner_and_collector_do_not_wait_for_unrolls():
    cuda.Fence.wait = lambda self: self._events.clear()
    run_with_fault()


@on_label_gpu("race")
def test_acting_does_not_wait_for_weights():
    advance = pipeline.Weights.advance

    def without(self):
        for written in self._written.values():
            written.wait = lambda: None
        return advance(self)

    pipeline.Weights.advance = without
    run_with_fault()


@on_label_gpu("race")
def test_acting_does_not_wait_for_copies():
    torch.cuda.Stream.wait_event = lambda self, event: None
    run_with_fault()


@on_label_gpu("capture")
def test_a_gradient_step_asks_the_host_for_a_number():
    def asks(logits, *args, **options):
        assert float(logits.sum()) < 1e9
        return losses.ppo_loss(logits, *args, **options)

    ppo.PPO.loss = staticmethod(asks)
    run_with_fault()


@on_label_gpu("device")
def test_targets_have_a_cpu_tensor():
    log_prob = ppo.log_prob
    ppo.log_prob = lambda logits, actions: (
        log_prob(logits, actions) + torch.zeros(actions.shape)
    )
    run_with_fault()


# Copies and launches of a recv in which no unroll closes; copies, launches and waits
# of an update. They may only fall.
MOST = {
    "gpu, async, lag 1": [3, 10, 1, 60, 1],
    "gpu-impala, no replay": [3, 10, 1, 51, 1],
    "gpu-impala": [3, 10, 3, 99, 1],
}


@pytest.mark.slow
@pytest.mark.skipif(bool(build.missing()), reason=build.missing())
def test_counts():
    """`python -m label_gpu.table --details` prints which lines launch what."""
    found = counts()
    for name, (recv, update, _) in found.items():
        pairs = zip([*recv[:2], *update], MOST[name], strict=True)
        assert all(a <= b for a, b in pairs), f"at most {MOST[name]} in\n{table(found)}"
