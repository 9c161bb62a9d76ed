"""Measurements of GPU, memory and CPU during a run, and the profiler.

`Monitor` samples in a separate thread, so that the loop never waits for a driver.
`profiler` records some updates, and `mark` names their parts.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil
import pynvml
import torch
from torch.profiler import _ExperimentalConfig  # type: ignore[attr-defined]

from mario_envpool._core import control_groups
from trainer.machine.cuda import recording_lock

_logger = logging.getLogger(__name__)

# Updates before the profiler records; by then graphs are recorded and memory is stable.
PROFILE_AFTER = 10


class Monitor:
    """Samples the hardware once a second.

    For the host: `host_memory_gb` (resident memory of this process),
    `host_memory_left_gb` and `host_memory_total_gb` (of the machine, or of the limit of
    a container or a batch system; last values instead of means), `cpu_percent` (CPU
    time of this process, 100 is one core) and, with workers, `emulate` (mean share of
    time that a worker computes). For a GPU, through NVML and for all processes that use
    it: `gpu_utilisation` (share of time that a kernel ran, 0 to 1), `gpu_memory_gb`,
    `gpu_memory_total_gb` and `gpu_power_w`, each only if the driver reports it. A GB is
    2^30 bytes.

    Attributes:
        workers: ids of the threads that emulate.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        interval: float = 1.0,
        workers: frozenset[int] = frozenset(),
    ) -> None:
        self._process = psutil.Process()
        self.workers = workers
        self._gpu = _open_gpu(device)
        self._lock = threading.Lock()
        self._samples: list[dict[str, float]] = []
        self._last: dict[str, float] = {}
        self._since = self._clocks()
        self._sample()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(interval,), name="monitor", daemon=True
        )
        self._thread.start()

    def _run(self, interval: float) -> None:
        while not self._stop.wait(interval):
            self._sample()

    def _sample(self) -> None:
        values = {"host_memory_gb": self._process.memory_info().rss / 2**30}
        if self._gpu is not None:
            values |= _read_gpu(self._gpu)
        with self._lock:
            self._samples.append(values)

    def _clocks(self) -> tuple[float, float, float]:
        """Seconds of wall-clock time, and CPU time of the process and the workers."""
        threads = self._process.threads() if self.workers else []
        emulated = sum(
            thread.user_time + thread.system_time
            for thread in threads
            if thread.id in self.workers
        )
        return time.perf_counter(), time.process_time(), emulated

    def statistics(self) -> dict[str, float]:
        """Means since the last call; earlier values if nothing was sampled since."""
        with self._lock:
            samples, self._samples = self._samples, []
        # The driver may not report each value each time.
        means = {
            name: fmean(sample[name] for sample in samples if name in sample)
            for name in dict.fromkeys(name for sample in samples for name in sample)
        }
        now = self._clocks()
        wall, spent, emulated = (
            new - old for new, old in zip(now, self._since, strict=True)
        )
        left, total = memory_left()
        means["host_memory_left_gb"] = left / 2**30
        means["host_memory_total_gb"] = total / 2**30
        means["cpu_percent"] = 100.0 * spent / max(wall, 1e-9)
        if self.workers:
            means["emulate"] = emulated / max(wall, 1e-9) / len(self.workers)
        self._since = now
        self._last |= means
        return dict(self._last)

    def close(self) -> None:
        """Stops sampling; may be called again."""
        self._stop.set()
        self._thread.join()
        if self._gpu is not None:
            pynvml.nvmlShutdown()
            self._gpu = None


# Names in a control group of version 2, then of version 1: the limit, the memory in
# use, and the cached files of it, which the kernel frees on demand.
_GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def memory_left(root: str = "/") -> tuple[int, int]:
    """Bytes of memory that this process may still take, and bytes in total."""
    memory = psutil.virtual_memory()
    # A process that exceeds the limit of its control group, or of a parent of it, is
    # killed, even if the machine has more memory.
    least = memory.available, memory.total
    for group in map(Path, control_groups("memory", root)):
        for limit, used, cached in _GROUP_FILES:
            # Without a limit, version 2 has "max", and version 1 a huge number.
            with suppress(OSError, ValueError):
                most = int((group / limit).read_text())
                lines = (group / "memory.stat").read_text().splitlines()
                free = int(dict(line.split() for line in lines)[cached])
                left = most - int((group / used).read_text()) + free
                least = min(least, (left, most))
    return least


def _read_gpu(handle: Any) -> dict[str, float]:
    """One sample, without values that the driver or the GPU does not report."""
    values: dict[str, float] = {}
    # Each value separately: a MIG slice, for example, has memory but no utilisation.
    with suppress(pynvml.NVMLError):
        rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
        values["gpu_utilisation"] = rates.gpu / 100
    with suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        values["gpu_memory_gb"] = memory.used / 2**30
        values["gpu_memory_total_gb"] = memory.total / 2**30
    with suppress(pynvml.NVMLError):
        values["gpu_power_w"] = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
    return values


def _open_gpu(device: torch.device) -> Any:
    """NVML's handle of a device; None if that fails, which is logged."""
    if device.type != "cuda":
        return None
    try:
        pynvml.nvmlInit()
        return _find_handle(device)
    except pynvml.NVMLError as error:
        _logger.warning("no GPU measurements of %s: %s", device, error)
        return None


def _find_handle(device: torch.device) -> Any:
    """The handle of the same GPU in NVML.

    torch numbers the GPUs of CUDA_VISIBLE_DEVICES in its own order, and NVML numbers
    all GPUs. The UUID and the PCI address are the same in torch and NVML.
    """
    gpu: Any = torch.cuda.get_device_properties(device)
    # A MIG slice has another kind of UUID, but its GPU has an address.
    with suppress(pynvml.NVMLError):
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{gpu.uuid}")
    domain, bus, slot = gpu.pci_domain_id, gpu.pci_bus_id, gpu.pci_device_id
    return pynvml.nvmlDeviceGetHandleByPciBusId(f"{domain:08x}:{bus:02x}:{slot:02x}.0")


OpenRange = Callable[[str], AbstractContextManager[Any]]
# What `mark` opens; set while the profiler or bench/timeline.py records.
_NOTHING: AbstractContextManager[Any] = nullcontext()
open_range: OpenRange | None = None


def mark(name: str) -> AbstractContextManager[Any]:
    """Names a `with` block in the profile; costs nothing without a recording."""
    return _NOTHING if open_range is None else open_range(name)


@contextmanager
def _range_with_nvtx(name: str) -> Iterator[None]:
    with torch.cuda.nvtx.range(name), torch.profiler.record_function(name):
        yield


@contextmanager
def profiler(
    updates: int, run_dir: Path, device: torch.device
) -> Iterator[Callable[[], None]]:
    """Records some updates of a run to RUN_DIR/trace.json."""
    global open_range
    if not updates:
        yield lambda: None
        return
    path, gpu = run_dir / "trace.json", device.type == "cuda"

    def export(recording: torch.profiler.profile) -> None:
        recording.export_chrome_trace(str(path))
        print(f"wrote {path} (chrome://tracing, ui.perfetto.dev)", flush=True)

    if not gpu:
        # PyTorch's profiling library reads this at its first use. Otherwise it writes
        # its progress to stderr and, in a CUDA build, that there is no GPU. 6 is above
        # its highest level.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    # By default PyTorch also records a GPU that the run does not use.
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CPU, activity.CUDA] if gpu else [activity.CPU]
    recording = torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(
            wait=PROFILE_AFTER - 1, warmup=1, active=updates, repeat=1
        ),
        on_trace_ready=export,
        experimental_config=_ExperimentalConfig(profile_all_threads=True),
    )
    ranges: OpenRange = _range_with_nvtx if gpu else torch.profiler.record_function
    action = torch.profiler.ProfilerAction
    failed = False

    def step() -> None:
        """Ends an update; marks are active only while the profiler records."""
        global open_range
        nonlocal failed
        if failed:
            return
        try:
            with recording_lock:
                recording.step()
        except Exception as error:
            failed, open_range = True, None
            _logger.warning("no profile: PyTorch could not record (%s)", error)
            return
        on = recording.current_action in (action.RECORD, action.RECORD_AND_SAVE)
        open_range = ranges if on else None

    recording.start()
    try:
        yield step
    finally:
        if not failed:  # to stop a recording that could not start is a crash
            with recording_lock:  # the end of the profile waits for the device
                recording.stop()
        open_range = None
    if not failed and not path.is_file():
        _logger.warning(
            "no profile was recorded: the run ended within its first %d updates",
            PROFILE_AFTER,
        )
