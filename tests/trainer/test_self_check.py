"""The self-check of a GPU: each failure has its line and its way out."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from label_gpu.client import on_label_gpu, warnings
from small_runs import make_config

from trainer.machine import cuda, device
from trainer.machine.cuda import Copies, HostToDevice
from trainer.machine.device import SelfCheck, check_gpu
from trainer.session import build
from trainer.session.training import open_run

GPU = torch.device("cuda")


def slabs(error=0):
    """The slabs that are page-locked now; locking the next ones may fail."""
    locked, cudart = {}, torch.cuda.cudart()

    def register(start, size, flags):
        locked[start] = size
        return error or cudart.cudaHostRegister(start, size, flags)

    def unregister(start):
        del locked[start]
        return cudart.cudaHostUnregister(start)

    torch.cuda.cudart = lambda: SimpleNamespace(
        cudaHostRegister=register, cudaHostUnregister=unregister
    )
    return locked


def copied_by_the_run():
    """Copies an array as the run will; returns the slabs that this locked."""
    locked, array = slabs(), np.arange(4096, dtype=np.uint8)
    to_device = HostToDevice(
        GPU, SimpleNamespace(_buffers=[(array.ctypes.data, 4096)], slab_growth=0)
    )
    assert to_device(array).tolist() == array.tolist()
    found = dict(locked)
    to_device.close()
    return found


@on_label_gpu()
def test_what_works_changes_nothing():
    from label_gpu import order

    said, locked, state = warnings(), slabs(), torch.get_rng_state()
    assert check_gpu(GPU, graphs=True) == SelfCheck()
    assert (said, locked) == ([], {})
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.cuda.current_stream() is torch.cuda.default_stream()
    # All streams are given back.
    made = len(order.streams)
    check_gpu(GPU, graphs=True)
    assert len(order.streams) == made
    assert copied_by_the_run()


@on_label_gpu()
def test_a_run_without_graphs_does_not_try_them():
    device.Graphed = None
    assert check_gpu(GPU, graphs=False) == SelfCheck()


@on_label_gpu()
def test_streams_that_take_turns():
    from label_gpu import order

    def sleep(cycles):
        torch.cuda.current_stream().ms = max(s.ms for s in order.streams) + 3.0

    said, torch.cuda._sleep = warnings(), sleep
    assert check_gpu(GPU, graphs=True) == SelfCheck(overlap=False)
    (line,) = said
    assert "do not overlap" in line
    assert "6.0 ms on two streams, 6.0 ms on one" in line
    assert "--lag" in line


@on_label_gpu()
def test_streams_of_which_nothing_is_known():
    def fails(cycles):
        raise AttributeError("no such kernel\nat all")

    said, torch.cuda._sleep = warnings(), fails
    assert check_gpu(GPU, graphs=True) == SelfCheck(overlap=False)
    (line,) = said
    assert "could not check whether streams overlap (no such kernel)" in line


def raises(*arguments, **options):
    raise RuntimeError("illegal instruction\nand where")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("replay", "illegal instruction"),
        ("capture_begin", "illegal instruction"),
        ("nothing", "a recorded gradient step differs"),
        ("inputs", "a recorded gradient step differs"),
    ],
)
@on_label_gpu()
def test_graphs_that_do_something_else(place, said):
    lines = warnings()
    if place == "inputs":
        cuda.copy_all = lambda targets, sources: None
    elif place == "nothing":
        torch.cuda.CUDAGraph.replay = lambda graph: None
    else:
        setattr(torch.cuda.CUDAGraph, place, raises)
    assert check_gpu(GPU, graphs=True) == SelfCheck(graphs=False)
    (line,) = lines
    assert line.startswith("this run is slower, without CUDA graphs: ")
    assert said in line
    assert "\n" not in line


def spoil(when, how):
    """Does something else with copies of bytes to the GPU, where `when` is true."""
    to = torch.Tensor.to

    def move(tensor, *where, **options):
        result = to(tensor, *where, **options)
        if where == (GPU,) and tensor.dtype is torch.uint8 and when(tensor):
            how(result)
        return result

    torch.Tensor.to = move


def change(tensor):
    tensor.flatten()[-1] += 1


@on_label_gpu()
def test_slabs_that_arrive_changed():
    """Not where a copy of them is locked."""
    said, locked = warnings(), slabs()

    def in_slab(tensor):
        at = tensor.data_ptr()
        return any(start <= at < start + size for start, size in locked.items())

    spoil(in_slab, change)
    assert check_gpu(GPU, graphs=True) == SelfCheck(copies=Copies.PAGE_LOCKED)
    (line,) = said
    assert "from page-locked slabs do not work here (the data arrives changed)" in line
    assert not copied_by_the_run()


@on_label_gpu()
def test_slabs_that_cannot_be_locked_are_said_once():
    said, _ = warnings(), slabs(error=2)
    assert check_gpu(GPU, graphs=True) == SelfCheck(copies=Copies.PAGE_LOCKED)
    assert not copied_by_the_run()
    (line,) = said
    assert "page-locking the observation slabs failed" in line


@pytest.mark.parametrize("fails", [False, True])
@on_label_gpu()
def test_nothing_page_locked_arrives(fails):
    """And so the run copies on the current stream, and locks nothing."""
    said, broken = warnings(), [True]
    spoil(lambda tensor: broken, raises if fails else change)
    assert check_gpu(GPU, graphs=True) == SelfCheck(copies=Copies.PAGEABLE)
    assert [line.partition(" do not work")[0] for line in said] == [
        "copies to the GPU from page-locked slabs",
        "copies to the GPU through page-locked memory",
    ]
    reason = "illegal instruction" if fails else "the data arrives changed"
    assert all(f"({reason})" in line for line in said)
    broken.clear()
    assert not copied_by_the_run()


def test_a_run_on_a_cpu_is_not_checked(tmp_path, pools, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("called")

    monkeypatch.setattr(build, "check_gpu", never)
    run = open_run(make_config(tmp_path))
    assert run.checked == SelfCheck()
    assert not run.graphs
    run.close()


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("works", [True, False])
def test_a_run_takes_what_works(tmp_path, pools, monkeypatch, asked, works):
    """Graphs are switched off for the parts of the run, not in its config."""
    told, seen = [], {}

    class Gpu:
        """A device that says it is a GPU until the check is made."""

        type = "cuda"

    class BuiltError(Exception):
        pass

    def check(device, *, graphs):
        told.append(graphs)
        return SelfCheck(graphs=works)

    def learner(model, config, **options):
        seen["learner"] = config.cuda_graphs
        raise BuiltError

    monkeypatch.setattr(build, "device_of", lambda name, ranks: Gpu())
    monkeypatch.setattr(build, "autocast_dtype", lambda *_, **__: None)
    monkeypatch.setattr(build, "to_device", lambda model, name, device: model)
    monkeypatch.setattr(build, "check_gpu", check)
    monkeypatch.setattr(build, "build_learner", learner)
    sessions = []
    build_parts = build.Run.build

    def keep(session):
        sessions.append(session)
        build_parts(session)

    monkeypatch.setattr(build.Run, "build", keep)
    monkeypatch.setattr(build, "set_up_arithmetic", lambda *of: cuda_free_shards())
    with pytest.raises(BuiltError):
        open_run(replace(make_config(tmp_path), cuda_graphs=asked))
    assert told == [asked]
    assert seen["learner"] == (asked and works)
    assert sessions[0].graphs == (asked and works)
    assert sessions[0].config.cuda_graphs == asked


def cuda_free_shards():
    from trainer.machine.cpu import Shards

    return Shards(1)
