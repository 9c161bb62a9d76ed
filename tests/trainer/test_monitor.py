"""Samples of host and GPU, the profiler and its ranges."""

import json
import logging
import mmap
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pynvml
import pytest
import torch

from trainer.machine import monitor
from trainer.machine.cpu import thread_ids
from trainer.machine.monitor import PROFILE_AFTER, Monitor, mark, memory_left, profiler

CPU, CUDA = torch.device("cpu"), torch.device("cuda:1")
# A run only records in earnest from here on.
RECORDED = 2


@pytest.fixture
def nvml(monkeypatch):
    """The real pynvml with answers for two cards; torch sees the second, as cuda:1."""
    card = SimpleNamespace(open=0, loads=[30, 50], mute=set())
    keys = {"GPU-bbbb": "second", "00000001:c4:0a.0": "second", "GPU-aaaa": "first"}

    def start():
        if "init" in card.mute:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        card.open += 1

    def stop():
        card.open -= 1

    def find(key):
        if key not in keys:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return keys[key]

    def load():
        return card.loads.pop(0) if len(card.loads) > 1 else card.loads[0]

    def answer(name, value):
        def read(handle):
            if name in card.mute or handle != "second":
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return value()

        return read

    memory = SimpleNamespace(used=3 * 2**30, total=8 * 2**30)
    functions = {
        "nvmlInit": start,
        "nvmlShutdown": stop,
        "nvmlDeviceGetHandleByUUID": find,
        "nvmlDeviceGetHandleByPciBusId": find,
        "nvmlDeviceGetUtilizationRates": answer(
            "load", lambda: SimpleNamespace(gpu=load())
        ),
        "nvmlDeviceGetMemoryInfo": answer("memory", lambda: memory),
        "nvmlDeviceGetPowerUsage": answer("power", lambda: 125_000),
    }
    for name, function in functions.items():
        monkeypatch.setattr(pynvml, name, function)
    see(monkeypatch, uuid="bbbb")
    return card


def see(monkeypatch, **properties):
    """What torch tells of its card 1."""

    def properties_of(device):
        assert device == CUDA
        return SimpleNamespace(**properties)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties_of)


HOST = {
    "host_memory_gb", "host_memory_left_gb", "host_memory_total_gb", "cpu_percent"
}  # fmt: skip


def sample_once(device=CUDA):
    watch = Monitor(device, interval=1000)
    values = watch.statistics()
    watch.close()
    return values


def test_the_card_is_found_and_read(nvml):
    values = sample_once()
    assert values["gpu_utilisation"] == 0.3
    assert values["gpu_memory_gb"] == 3
    assert values["gpu_memory_total_gb"] == 8
    assert values["gpu_power_w"] == 125
    assert values["host_memory_gb"] > 0.05
    assert nvml.open == 0


def test_a_card_is_found_by_its_address(nvml, monkeypatch):
    """Where NVML does not know the UUID (a slice of a card)."""
    address = {"pci_domain_id": 1, "pci_bus_id": 0xC4, "pci_device_id": 10}
    see(monkeypatch, uuid="cccc", **address)
    assert sample_once()["gpu_memory_gb"] == 3


def test_figures_that_the_card_does_not_tell_are_missing(nvml):
    nvml.mute = {"load", "power"}
    values = sample_once()
    assert "gpu_utilisation" not in values
    assert "gpu_power_w" not in values
    assert values["gpu_memory_gb"] == 3


def test_statistics_are_means_since_the_last_call(nvml):
    nvml.loads = [30, 50, 70]
    watch = Monitor(CUDA, interval=1000)
    watch._sample()
    assert watch.statistics()["gpu_utilisation"] == pytest.approx(0.4)
    assert watch.statistics()["gpu_utilisation"] == pytest.approx(0.4)  # nothing new
    watch._sample()
    assert watch.statistics()["gpu_utilisation"] == pytest.approx(0.7)
    watch.close()


def test_sampling_goes_on_by_itself_until_closed(nvml):
    nvml.loads = list(range(1000))
    watch = Monitor(CUDA, interval=0.001)
    deadline = time.monotonic() + 20
    while len(nvml.loads) > 995 and time.monotonic() < deadline:
        time.sleep(0.001)
    watch.close()
    left = len(nvml.loads)
    assert left <= 995
    time.sleep(0.02)
    assert len(nvml.loads) == left
    watch.close()  # harmless


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("init", "cuda:1: Driver Not Loaded"),
        ("unknown", "cuda:1: Not Found"),
    ],
)
def test_without_nvml_the_reason_is_said_once(
    nvml, monkeypatch, caplog, problem, reason
):
    nvml.mute = {problem}
    if problem == "unknown":
        see(monkeypatch, uuid="x", pci_domain_id=0, pci_bus_id=0, pci_device_id=0)
    values = sample_once()
    assert values.keys() == HOST
    (record,) = caplog.records
    assert reason in record.getMessage()


def test_a_cpu_asks_for_no_gpu(nvml, caplog):
    nvml.mute = {"init"}
    assert sample_once(CPU).keys() == HOST
    assert not caplog.records


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux alone has control groups"
)
@pytest.mark.parametrize("place", ["", "job/step"])
@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_container_is_what_memory_there_is(tmp_path, version, place):
    """Set to the process's own control group, or to one that it is in."""
    machine = memory_left(str(tmp_path))
    assert 0 < machine[0] <= machine[1] == psutil.virtual_memory().total
    proc, groups = tmp_path / "proc/self", tmp_path / "sys/fs/cgroup"
    proc.mkdir(parents=True)
    (groups / "job/step").mkdir(parents=True)
    kind, name = ("cgroup2", "") if version == 2 else ("cgroup", "memory")
    (proc / "mountinfo").write_text(f"1 2 0:3 / /sys/fs/cgroup rw - {kind} x rw,memory")
    (proc / "cgroup").write_text(f"{0 if version == 2 else 7}:{name}:/job/step\n")
    limit, used, stat = {
        1: ("limit_in_bytes", "usage_in_bytes", "inactive_file 1\ntotal_inactive_file"),
        2: ("max", "current", "inactive_file"),
    }[version]
    group = groups / place
    none = "max\n" if version == 2 else f"{2**63 - 4096}\n"
    (groups / f"job/memory.{limit}").write_text(none)
    (group / f"memory.{limit}").write_text("1000000\n")
    (group / f"memory.{used}").write_text("800000\n")
    (group / "memory.stat").write_text(f"anon 1\n{stat} 300000\n")
    assert memory_left(str(tmp_path)) == (500_000, 1_000_000)


def test_host_memory_is_this_process():
    watch = Monitor(CPU, interval=1000)
    before = watch.statistics()["host_memory_gb"]
    # 256 MB of the kernel's: the heap may have as much left from other tests.
    block = mmap.mmap(-1, 2**28)
    np.frombuffer(block, np.uint8)[:] = 1
    watch._sample()
    assert watch.statistics()["host_memory_gb"] - before > 0.2
    watch.close()
    del block


def test_cpu_time_is_since_the_last_call(monkeypatch):
    wall, spent = iter([0.0, 2.0, 6.0]), iter([1.0, 4.0, 5.0])
    clock = SimpleNamespace(
        perf_counter=lambda: next(wall), process_time=lambda: next(spent)
    )
    monkeypatch.setattr(monitor, "time", clock)
    watch = Monitor(CPU, interval=1000)
    assert watch.statistics()["cpu_percent"] == 150
    assert watch.statistics()["cpu_percent"] == 25
    watch.close()


def names_in(path):
    events = json.loads(path.read_text())["traceEvents"]
    return [event["name"] for event in events if event.get("ph") == "X"]


def run_updates(run_dir, updates, device=CPU, recorded=RECORDED):
    with profiler(recorded, run_dir, device) as step:
        for number in range(updates):
            with mark(f"update {number}"):
                torch.ones(8) @ torch.ones(8)
            step()


def test_the_trace_has_the_recorded_updates_and_no_others(tmp_path, capfd):
    run_updates(tmp_path, PROFILE_AFTER + RECORDED + 2)
    names = names_in(tmp_path / "trace.json")
    found = {name for name in names if name.startswith("update")}
    assert found == {f"update {PROFILE_AFTER + i}" for i in range(RECORDED)}
    assert "aten::dot" in names
    assert f"wrote {tmp_path}/trace.json" in capfd.readouterr().out


@pytest.mark.slow
def test_a_profile_on_a_cpu_prints_no_errors(tmp_path):
    """In a process of its own: the profiler's library starts once in each."""
    code = (
        "import sys; from pathlib import Path; import torch\n"
        "from trainer.machine.monitor import PROFILE_AFTER, profiler\n"
        "with profiler(1, Path(sys.argv[1]), torch.device('cpu')) as step:\n"
        "    for _ in range(PROFILE_AFTER + 2):\n"
        "        step()\n"
    )
    environ = {k: v for k, v in os.environ.items() if k != "KINETO_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True, text=True, env=environ,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith(f"wrote {tmp_path}/trace.json")


def test_the_trace_has_other_threads(tmp_path):
    go, done = threading.Event(), threading.Event()

    def collect():
        go.wait(30)
        with mark("collecting"):
            torch.ones(8) @ torch.ones(8)
        done.set()

    thread = threading.Thread(target=collect)
    thread.start()
    with profiler(1, tmp_path, CPU) as step:
        for _ in range(PROFILE_AFTER):
            step()
        go.set()
        assert done.wait(30)
        step()
    thread.join()
    assert "collecting" in names_in(tmp_path / "trace.json")


def test_a_run_that_ends_while_recording_has_a_trace(tmp_path):
    run_updates(tmp_path, PROFILE_AFTER + 1, recorded=5)
    assert f"update {PROFILE_AFTER}" in names_in(tmp_path / "trace.json")


def test_a_run_that_ends_too_early_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        run_updates(tmp_path, PROFILE_AFTER - 1)
    assert "no profile was recorded" in caplog.text
    assert not (tmp_path / "trace.json").exists()


def test_a_recording_that_cannot_start_ends_no_run(tmp_path, caplog, monkeypatch):
    def fail(self):
        raise RuntimeError("CUPTI is missing")

    monkeypatch.setattr(torch.autograd.profiler.profile, "_prepare_trace", fail)
    with caplog.at_level(logging.WARNING):
        run_updates(tmp_path, PROFILE_AFTER + RECORDED + 2)
    assert caplog.text.count("PyTorch could not record (CUPTI is missing)") == 1
    assert caplog.text.count("no profile") == 1
    assert mark("a") is mark("b")


def test_a_run_on_a_cpu_records_no_gpu(tmp_path, monkeypatch):
    made = []

    class Recording:
        def __init__(self, **options):
            made.append(options["activities"])

        def start(self):
            pass

        stop = start

    monkeypatch.setattr(torch.profiler, "profile", Recording)
    for device in ("cpu", "cuda"):
        run_updates(tmp_path, 0, device=torch.device(device))
    activity = torch.profiler.ProfilerActivity
    assert made == [[activity.CPU], [activity.CPU, activity.CUDA]]


def test_marks_are_free_when_nothing_is_recorded(tmp_path):
    run_updates(tmp_path, 20, recorded=0)
    assert not list(tmp_path.iterdir())
    with profiler(RECORDED, tmp_path, CPU) as step:
        assert mark("a") is mark("b")  # nothing is made
        for _ in range(PROFILE_AFTER):
            step()
        assert mark("a") is not mark("b")
    assert mark("a") is mark("b")


def test_marks_on_cuda_are_nvtx_ranges_too(monkeypatch):
    opened = []
    monkeypatch.setattr(
        torch.cuda.nvtx, "range", lambda name: opened.append(name) or mark(name)
    )
    monkeypatch.setattr(
        torch.profiler, "record_function", lambda name: opened.append(name) or mark("")
    )
    with monitor._range_with_nvtx("learn"):
        pass
    assert opened == ["learn", "learn"]


@pytest.mark.slow
def test_the_time_of_workers_is_theirs_alone():
    """One thread computes, another one sleeps; this one does both."""
    before, stop = thread_ids(), threading.Event()

    def compute():
        while not stop.is_set():
            sum(range(1000))

    busy = threading.Thread(target=compute)
    busy.start()
    workers = thread_ids() - before
    assert len(workers) == 1
    idle = threading.Thread(target=stop.wait)
    idle.start()
    watches = [
        Monitor(CPU, interval=1000, workers=w)
        for w in (workers, thread_ids() - before - workers, frozenset())
    ]
    time.sleep(1.0)
    shares = [watch.statistics().get("emulate") for watch in watches]
    stop.set()
    for thread in (busy, idle):
        thread.join()
    for watch in watches:
        watch.close()
    assert shares[0] > 0.02
    assert shares[1] < shares[0] / 2
    assert shares[2] is None
