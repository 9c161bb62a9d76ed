"""The self-check of a GPU, on a fake one: each failure has its line and its way out."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda
from small_runs import make_config

from trainer.machine import cuda, device
from trainer.machine.cuda import Copies, HostToDevice
from trainer.machine.device import SelfCheck, check_gpu
from trainer.session import build
from trainer.session.training import open_run

CPU = torch.device("cpu")
GPU = torch.device("cuda")


class FakeGraphed:
    """Calls the function, as a good graph does; or does what `fault` says."""

    fault = ""
    made = 0

    def __init__(self, function, *, name, device, enabled, quiet):
        assert quiet
        type(self).made += 1
        self.function = function
        self.fault = self.fault if enabled else ""
        self.calls, self.recorded, self.failure = 0, 0, ""

    def __call__(self, x):
        self.calls += 1
        if self.calls <= 3:
            return self.function(x)
        if self.fault == "raises":
            raise RuntimeError("illegal instruction\nand where")
        if self.fault == "is not recorded":
            self.failure = "operation not permitted"
            return self.function(x)
        self.recorded = 1
        if self.calls == 4:
            self.x, self.output = x, self.function(x)
            return self.output
        if self.fault == "does nothing":
            return self.output
        if self.fault == "keeps its inputs":
            return self.function(self.x)
        return self.function(x)

    def close(self):
        pass


class HostAdam(torch.optim.Adam):
    """Without what a CPU refuses."""

    def __init__(self, params, lr, *, eps, capturable, fused):
        assert capturable
        assert fused
        super().__init__(params, lr.item(), eps=eps)


class TimedCuda(FakeCuda):
    """Kernels of 3 ms that share their time if two streams overlap."""

    def __init__(self):
        super().__init__()
        self.overlapping = True
        self.spins = []  # the stream of each kernel that was not timed yet

    def _sleep(self, cycles):
        self.spins.append(self.current)

    def Event(self, enable_timing=False):
        event = super().Event(enable_timing)
        event.elapsed_time = self._elapsed_time
        return event

    def _elapsed_time(self, end):
        spins, self.spins = self.spins, []
        return 3.0 * (len(set(spins)) == 1 or not self.overlapping or 0.5) * len(spins)


@pytest.fixture
def fake(monkeypatch):
    """A GPU that works, whose tensors are on the CPU."""
    result = TimedCuda()
    for module in (cuda, device):
        monkeypatch.setattr(module, "_cuda", result)
    monkeypatch.setattr(cuda, "_free_streams", defaultdict(list))
    monkeypatch.setattr(cuda, "_copies", {})
    monkeypatch.setattr(cuda, "_forget_error", lambda device: None)
    to = torch.Tensor.to
    result.spoil = lambda tensor: tensor
    result.pin = lambda tensor: tensor

    def move(tensor, *where, **options):
        if where == (GPU,):
            return result.spoil(tensor.clone())
        return to(tensor, *where, **options)

    monkeypatch.setattr(torch.Tensor, "to", move)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: result.pin(tensor))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    monkeypatch.setattr(torch.optim, "Adam", HostAdam)
    monkeypatch.setattr(FakeGraphed, "made", 0)
    monkeypatch.setattr(device, "Graphed", FakeGraphed)
    return result


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


def test_what_works_changes_nothing(fake, caplog):
    state = torch.get_rng_state()
    assert check_gpu(GPU, graphs=True) == SelfCheck()
    assert lines(caplog) == []
    assert torch.equal(torch.get_rng_state(), state)
    assert FakeGraphed.made == 2
    assert fake.current == "main"
    locked = [call for call in fake.calls if call[0] in ("lock", "unlock")]
    assert [call[0] for call in locked] == ["lock", "unlock"]
    assert locked[0][1] == locked[1][1]
    assert locked[0][1] % 4096 == 0
    # All streams are given back.
    made = fake.streams
    check_gpu(GPU, graphs=True)
    assert fake.streams == made


def test_a_run_without_graphs_does_not_try_them(fake):
    assert check_gpu(GPU, graphs=False).graphs
    assert FakeGraphed.made == 0


def test_streams_that_take_turns(fake, caplog):
    fake.overlapping = False
    assert check_gpu(GPU, graphs=True) == SelfCheck(overlap=False)
    (line,) = lines(caplog)
    assert "do not overlap" in line
    assert "6.0 ms on two streams, 6.0 ms on one" in line
    assert "--lag" in line


def test_streams_of_which_nothing_is_known(fake, caplog, monkeypatch):
    def fails(self, cycles):
        raise AttributeError("no such kernel\nat all")

    monkeypatch.setattr(TimedCuda, "_sleep", fails)
    assert check_gpu(GPU, graphs=True) == SelfCheck(overlap=False)
    (line,) = lines(caplog)
    assert "could not check whether streams overlap (no such kernel)" in line


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raises", "illegal instruction"),
        ("is not recorded", "operation not permitted"),
        ("does nothing", "a recorded gradient step differs"),
        ("keeps its inputs", "a recorded gradient step differs"),
    ],
)
def test_graphs_that_do_something_else(fake, caplog, monkeypatch, fault, said):
    monkeypatch.setattr(FakeGraphed, "fault", fault)
    assert check_gpu(GPU, graphs=True) == SelfCheck(graphs=False)
    (line,) = lines(caplog)
    assert line.startswith("this run is slower, without CUDA graphs: ")
    assert said in line
    assert "\n" not in line


def spoilt(tensor):
    if tensor.dtype is torch.uint8:
        tensor.flatten()[-1] += 1
    return tensor


def test_slabs_that_arrive_changed(fake, caplog):
    """Not where a copy of them is locked."""
    pinned = []

    def pin(tensor):
        pinned.append(True)
        return tensor

    # Slabs are not pinned before they are sent; after that many all is well.
    fake.pin = pin
    fake.spoil = lambda t: t if len(pinned) > 1 else spoilt(t)
    assert check_gpu(GPU, graphs=True) == SelfCheck(copies=Copies.PAGE_LOCKED)
    (line,) = lines(caplog)
    assert "from page-locked slabs do not work here (the data arrives changed)" in line
    to_device = HostToDevice(GPU, locked_pool())
    count = len(fake.calls)
    to_device(np.zeros(8, np.uint8))
    assert "lock" not in {call[0] for call in fake.calls[count:]}


def locked_pool():
    array = np.zeros(4096, np.uint8)
    return type(
        "Pool", (), {"_buffers": [(array.ctypes.data, 4096)], "slab_growth": 0}
    )()


def test_slabs_that_cannot_be_locked_are_said_once(fake, caplog):
    fake.register_error = 2
    assert check_gpu(GPU, graphs=True) == SelfCheck(copies=Copies.PAGE_LOCKED)
    HostToDevice(GPU, locked_pool())(np.zeros(8, np.uint8))
    (line,) = lines(caplog)
    assert "page-locking the observation slabs failed" in line


@pytest.mark.parametrize("raises", [False, True])
def test_nothing_page_locked_arrives(fake, caplog, raises):
    def fails(tensor):
        if tensor.dtype is torch.uint8 and raises:
            raise RuntimeError("invalid argument\nand more")
        return spoilt(tensor)

    fake.spoil = fails
    assert check_gpu(GPU, graphs=True) == SelfCheck(copies=Copies.PAGEABLE)
    assert [line.partition(" do not work")[0] for line in lines(caplog)] == [
        "copies to the GPU from page-locked slabs",
        "copies to the GPU through page-locked memory",
    ]
    reason = "invalid argument" if raises else "the data arrives changed"
    assert all(f"({reason})" in line for line in lines(caplog))
    # And so those of the run: on the current stream, nothing locked.
    fake.spoil = lambda tensor: tensor
    count = len(fake.calls)
    array = np.arange(8, dtype=np.uint8)
    to_device = HostToDevice(GPU, locked_pool())
    tensor = to_device(array)
    to_device.close()
    assert tensor.tolist() == array.tolist()
    assert tensor.data_ptr() != array.ctypes.data
    assert fake.calls[count:] == []


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
