"""What only a GPU can prove; skipped where there is none."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from learners import flat
from small_runs import differences, essence, run_in_parts

from trainer import run
from trainer.config.learning import Adam, Impala, Muon, Ppo, RMSprop
from trainer.config.network import GRU, LSTM, GTrXL
from trainer.config.schema import (
    AugmentConfig,
    EnvConfig,
    LearnerConfig,
    ModelConfig,
    ReplayConfig,
    RunConfig,
)
from trainer.learn import build_learner
from trainer.learn.vtrace import scan_for, vectorised_scan
from trainer.machine import cuda as cuda_module
from trainer.machine.cpu import Shards
from trainer.machine.cuda import (
    Copies,
    Graphed,
    HostToDevice,
    own_stream,
    set_copies,
    wait_for_device,
)
from trainer.machine.device import SelfCheck, check_gpu
from trainer.models import build_model
from trainer.rollout.collector import Actor
from trainer.rollout.store import Rollouts, decisions
from trainer.session import build
from trainer.session.build import set_up_arithmetic
from trainer.session.training import run_training

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device in this machine"
)

SHAPE, ACTIONS, T = (4, 84, 84), 5, 8
LOSSES = {"ppo": Ppo(), "impala": Impala()}
# Muon's usual steps are so long that rounding errors become a third of the way.
OPTIMIZERS = {"adam": Adam(), "rmsprop": RMSprop(), "muon": Muon(matrix_lr=1e-4)}
MEMORIES = {"none": None, "gru": GRU(), "lstm": LSTM(), "gtrxl": GTrXL()}


def cuda():
    return torch.device("cuda")


@pytest.fixture(autouse=True)
def exact_arithmetic():
    """Kernels of float32 that add in the same order each time, whatever ran before."""
    set_up_arithmetic(RunConfig(mode="sync", precision="fp32"), cuda())


def make_model(device, **options):
    torch.manual_seed(3)
    return build_model(ModelConfig(**options), SHAPE, ACTIONS).to(device)


def filled_store(device, num_envs=8, seed=0):
    """A store with one full unroll of every environment, of random rows."""
    rng = np.random.default_rng(seed)
    store = Rollouts(
        num_envs=num_envs, num_slots=3 * num_envs, unroll=T, obs_shape=SHAPE,
        num_actions=ACTIONS, device=device, stack_num=4,
    )  # fmt: skip
    ids = np.arange(num_envs, dtype=np.int32)
    for _ in range(T + 1):
        done = rng.random(num_envs) < 0.1
        rows = store.write_env(
            ids,
            rng.random(num_envs) < 0.1,
            torch.from_numpy(rng.integers(0, 256, (num_envs, *SHAPE), np.uint8)).to(
                device
            ),
            rng.normal(size=num_envs).astype(np.float32),
            done,
            np.zeros_like(done),
        )
        records = decisions(
            torch.from_numpy(rng.integers(0, ACTIONS, num_envs)),
            torch.from_numpy(rng.normal(size=(num_envs, ACTIONS))).float(),
            torch.from_numpy(rng.normal(size=num_envs)).float(),
            torch.zeros(1, dtype=torch.int64),
        )
        store.write_policy(rows, records.to(device))
    return store, store.take(num_envs)


def test_stores_of_both_devices_are_equal():
    (host, slots), (device, _) = filled_store(torch.device("cpu")), filled_store(cuda())
    for name, column in host.columns.items():
        assert torch.equal(column, device.columns[name].cpu()), name
    for name in ("stacks", "frames"):
        one, two = getattr(host._frames, name), getattr(device._frames, name)
        assert torch.equal(one, two.cpu()), name
    assert torch.equal(host.batch(slots).stacks, device.batch(slots).stacks.cpu())


@pytest.mark.parametrize("memory", ["none", "gru", "gtrxl"])
def test_a_recorded_actor_says_what_an_unrecorded_one_says(memory):
    model = make_model(cuda(), memory=MEMORIES[memory])
    actors = [
        Actor(
            model,
            num_actions=ACTIONS,
            dtype=None,
            generator=torch.Generator("cuda").manual_seed(1),
            graphs=graphs,
        )
        for graphs in (False, True)
    ]
    with own_stream(cuda()):
        for i in range(8):
            g = torch.Generator().manual_seed(i)
            pixels = torch.randint(0, 256, (16, *SHAPE), generator=g, dtype=torch.uint8)
            state = torch.randn(16, model.state_size, generator=g).cuda()
            first = torch.rand(16, generator=g).cuda() < 0.3
            levels = torch.zeros(16, dtype=torch.int64, device="cuda")
            plain, recorded = (
                actor(pixels.cuda(), state.clone(), first, levels) for actor in actors
            )
            for one, other in zip(plain[1:], recorded[1:], strict=True):
                torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    assert actors[1]._forward.recorded
    counts = torch.stack(
        [
            torch.bincount(
                actors[1](pixels.cuda(), state, first, levels).actions,
                minlength=ACTIONS,
            )
            for _ in range(50)
        ]
    )
    assert counts.float().std(0).sum() > 0, "every replay drew the same noise"
    actors[1].close()


def test_graphs_of_two_streams_may_run_at_the_same_time():
    """Long sums over few numbers: cuBLAS splits them up, in a workspace."""
    torch.manual_seed(1)
    graphs, inputs, expected, streams = [], [], [], []
    for _ in range(2):
        left, right = torch.randn(2, 8192, 64, device="cuda", dtype=torch.bfloat16)
        graph = Graphed(left.T.matmul, name="a product", device=cuda(), enabled=True)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(6):
                found = graph(right)
            expected.append(found.clone())  # alone
        torch.cuda.synchronize()
        graphs.append(graph)
        inputs.append(right)
        streams.append(stream)
    counts = torch.zeros(2, 1, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    for _ in range(1000):
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found = graphs[number](inputs[number])
                counts[number] += (found != expected[number]).sum()
    torch.cuda.synchronize()
    assert [graph.recorded for graph in graphs] == [1, 1]
    assert counts.flatten().tolist() == [0, 0]
    for graph in graphs:
        graph.close()


class Impatient(torch.nn.Module):
    """Waits for the device, which no graph can."""

    def forward(self, x):
        return x * float(x.sum().item() >= 0)


def test_what_waits_for_the_device_runs_without_a_graph(caplog):
    graphed = Graphed(Impatient(), name="waiting", device=cuda(), enabled=True)
    x = torch.ones(8, device="cuda")
    for _ in range(6):
        assert graphed(x).sum() == 8
    assert "no CUDA graph of waiting" in caplog.text
    # Nothing is left open: memory is given back, and others are recorded.
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(10):
        torch.empty(2**26, device="cuda")
        torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before
    other = Graphed(torch.neg, name="the next one", device=cuda(), enabled=True)
    for _ in range(6):
        assert other(x).sum() == -8
    assert other.recorded == 1
    other.close()


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_moments_of_a_cpu_run_go_on(kind):
    store, slots = filled_store(cuda())
    config = RunConfig(
        lag=1,
        learner=LearnerConfig(
            unroll=T, unrolls_per_batch=8, minibatch_size=16, optimizer=OPTIMIZERS[kind]
        ),
    )

    def learner(device, laid_out):
        torch.manual_seed(3)
        model = build_model(ModelConfig(name="impala"), SHAPE, ACTIONS).to(device)
        model = model.to(memory_format=laid_out)
        shards = Shards(1)
        return build_learner(
            model, config, obs_shape=SHAPE, device=device, dtype=None, shards=shards
        )

    cpu = torch.device("cpu")
    host, device = (
        learner(cpu, torch.contiguous_format),
        learner(cuda(), torch.channels_last),
    )
    own_store, own_slots = filled_store(cpu)
    host.update(own_store.batch(own_slots), 0)
    device.restore(host.state())
    device.update(store.batch(slots), 1000)
    assert np.isfinite(device.statistics()["loss/total"])
    device.close()


def assert_moved_alike(start, one, other):
    """Two runs from the same weights ended close together, measured by their way.

    Single weights are no measure: an optimiser's first step has the length of the
    learning rate also where rounding errors decide on its direction.
    """
    assert torch.linalg.norm(one - other) < 0.05 * torch.linalg.norm(one - start)


@pytest.mark.parametrize("loss", ["ppo", "impala"])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "muon"])
def test_recorded_updates_equal_unrecorded_ones(loss, optimizer):
    store, slots = filled_store(cuda())
    weights = []
    for graphs in (False, True):
        config = RunConfig(
            cuda_graphs=graphs,
            lag=1,
            learner=LearnerConfig(
                unroll=T, unrolls_per_batch=8, minibatch_size=16, loss=LOSSES[loss],
                epochs=2 if loss == "ppo" else 1, optimizer=OPTIMIZERS[optimizer],
            ),
        )  # fmt: skip
        model = make_model(cuda())
        start = flat(model)
        learner = build_learner(
            model, config, obs_shape=SHAPE, device=cuda(), dtype=None, shards=Shards(1)
        )
        with own_stream(cuda()):
            for step in range(6):
                learner.update(store.batch(slots), step * 1000)
        wait_for_device(cuda())
        statistics = learner.statistics()
        assert statistics["loss/entropy"] > 0
        weights.append(flat(model))
        assert {bool(graph.recorded) for graph in learner._graphs} == {graphs}
        learner.close()
    assert_moved_alike(start, *weights)


@pytest.mark.parametrize("loss", ["ppo", "impala"])
def test_levels_and_augmented_pictures_are_recorded(loss):
    store, slots = filled_store(cuda())
    weights = []
    for graphs in (False, True):
        config = RunConfig(
            cuda_graphs=graphs,
            env=EnvConfig(action_set="complex"),
            augmentation=AugmentConfig(augment=("shift", "brightness", "flip")),
            learner=LearnerConfig(
                unroll=T,
                unrolls_per_batch=8,
                minibatch_size=16,
                loss=LOSSES[loss],
                epochs=1,
                optimizer=OPTIMIZERS["muon"],
            ),
        )
        torch.manual_seed(3)
        options = ModelConfig(value_heads=2, popart=True)
        # As many actions as can be mirrored; the store knows fewer of them.
        model = build_model(options, SHAPE, 12).to(cuda())
        start = flat(model)
        learner = build_learner(
            model, config, obs_shape=SHAPE, device=cuda(), dtype=None, shards=Shards(1)
        )
        batch = store.batch(slots)
        logits = torch.zeros(*batch.logits.shape[:-1], 12, device="cuda")
        levels = torch.arange(8, device="cuda").remainder(2).expand_as(batch.levels)
        with own_stream(cuda()):
            for step in range(6):
                changed = batch._replace(logits=logits, levels=levels)
                learner.update(changed, step * 1000)
        wait_for_device(cuda())
        assert learner.statistics()["loss/augmented"] > 0
        weights.append(flat(model))
        assert {bool(graph.recorded) for graph in learner._graphs} == {graphs}
        learner.close()
    assert_moved_alike(start, *weights)


def test_the_kernel_scans_like_the_vectorised_one():
    decay, increment = torch.rand(2, 65, 300, device="cuda")
    assert scan_for(cuda()) is not vectorised_scan
    torch.testing.assert_close(
        scan_for(cuda())(decay, increment), vectorised_scan(decay, increment)
    )


def test_arrays_arrive_unchanged_while_the_pool_goes_on():
    to_device = HostToDevice(cuda(), pool=None)
    for i in range(20):
        array = np.full((64, *SHAPE), i, np.uint8)
        tensor = to_device(array)
        assert (tensor == i).all()
    to_device.close()


def test_the_self_check_of_this_gpu(caplog):
    """All that a run relies on works; the lines say what does not."""
    host, device = torch.get_rng_state(), torch.cuda.get_rng_state()
    for _ in range(2):
        checked = check_gpu(cuda(), graphs=True)
        assert (caplog.messages, checked) == ([], SelfCheck())
    assert torch.equal(torch.get_rng_state(), host)
    assert torch.equal(torch.cuda.get_rng_state(), device)


def test_the_self_check_finds_streams_that_take_turns():
    code = (
        "import torch; from trainer.machine.device import check_gpu; "
        "print(check_gpu(torch.device('cuda'), graphs=False).overlap)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"CUDA_LAUNCH_BLOCKING": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False"]
    assert "streams do not overlap" in done.stderr


@pytest.mark.parametrize("way", Copies)
def test_arrays_arrive_unchanged_in_each_way(monkeypatch, way):
    monkeypatch.setattr(cuda_module, "_copies", {})
    set_copies(cuda(), way)
    to_device = HostToDevice(cuda(), pool=None)
    for i in range(20):
        array = np.full((64, *SHAPE), i, np.uint8)
        tensor = to_device(array)
        assert (tensor == i).all()
    to_device.close()


def test_a_run_without_graphs_that_do_not_work(tmp_path, monkeypatch, pools):
    def nothing_works(device, *, graphs):
        assert graphs
        set_copies(device, Copies.PAGEABLE)
        return SelfCheck(overlap=False, graphs=False, copies=Copies.PAGEABLE)

    monkeypatch.setattr(cuda_module, "_copies", {})
    monkeypatch.setattr(build, "check_gpu", nothing_works)
    monkeypatch.setattr(Graphed, "_record", lambda *of: pytest.fail("recorded"))
    metrics = run_training(replace(BASE, lag=1, run_dir=tmp_path))
    assert metrics["steps"] >= 3_000
    assert np.isfinite(metrics["learn/loss/total"])


BASE = RunConfig(
    device="cuda", max_steps=3_000, log_seconds=1.0, stop_when_solved=False,
    videos=False,  # of fake games there are none
    env=EnvConfig(num_envs=6, groups=2),
    learner=LearnerConfig(unroll=8, unrolls_per_batch=6, minibatch_size=16, epochs=2),
)  # fmt: skip
RUNS = {
    "in turns": {},
    "sync, overlapped": {"lag": 1},
    "async, overlapped": {"lag": 1, "mode": "async"},
    "fp16": {"precision": "fp16"},
    "no graphs": {"cuda_graphs": False},
    "compiled": {"compile": True},
    "memory": {"lag": 1, "model": ModelConfig(memory=GRU())},
    "noisy": {"lag": 1, "model": ModelConfig(noisy=True)},
    "replay": {
        "lag": 1,
        "learner": replace(BASE.learner, unrolls_per_batch=12),
        "replay": ReplayConfig(replay_share=0.5, replay_capacity=16),
    },
}


# Compiling warns of much that is PyTorch's own.
COMPILED = pytest.param("compiled", marks=pytest.mark.filterwarnings("ignore"))


@pytest.mark.parametrize("name", [n if n != "compiled" else COMPILED for n in RUNS])
def test_whole_runs(tmp_path, monkeypatch, caplog, pools, name):
    config = replace(BASE, run_dir=tmp_path, **RUNS[name])

    recorded = {}

    def note(graphed):
        recorded[graphed._name] = recorded.get(graphed._name, 0) + graphed.recorded
        close(graphed)

    close = Graphed.close
    monkeypatch.setattr(Graphed, "close", note)
    metrics = run_training(config)
    assert metrics["steps"] >= 3_000
    assert np.isfinite(metrics["learn/loss/total"])
    told = [line for line in caplog.messages if "without" in line or "no CUDA" in line]
    assert len(told) == (name == "fp16"), told
    assert bool(recorded["acting"]) == config.cuda_graphs
    of_steps = config.cuda_graphs and name != "fp16"
    assert bool(recorded["the gradient step"]) == of_steps
    assert bool(recorded["the targets"]) == of_steps
    assert metrics["learn/policy_lag"] <= config.lag + 1
    assert name != "replay" or metrics["learn/replay/share"] > 0.4


@pytest.mark.parametrize("lag", [0, 1])
def test_resumed_runs_are_the_uninterrupted_one(tmp_path, pools, lag):
    """Graphs are recorded again, and streams wait for what was restored."""

    whole = replace(BASE, lag=lag, run_dir=tmp_path / "whole")
    run_training(whole)
    parts = run_in_parts(whole, tmp_path / "parts", 1_000)
    expected, got = essence(whole.run_dir), essence(parts.run_dir)
    for state in (expected, got):  # rates are looked at when a point is written
        del state["progress"]
    assert differences(expected, got) == []


@pytest.mark.rom
@pytest.mark.slow
def test_the_game_on_a_gpu(tmp_path):
    status = run.main(f"--preset gpu --max-steps 100000 --run-dir {tmp_path}".split())
    assert status == 0
