"""Alarms of an unattended run: early warnings of what would end it.

Each alarm has a name and is reported when it begins and when it ends: in the dashboard,
in messages.txt, and through `--notify`.
"""

from __future__ import annotations

import faulthandler
import math
import shutil
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

import numpy as np

from trainer.machine.files import replacing
from trainer.machine.timings import format_seconds
from trainer.models import checkpoint
from trainer.show.display import Display
from trainer.show.tracking import Notifier

# Window over which the growth of memory is measured, and the alarm limit: memory must
# last longer than this at the rate of the last window.
_WINDOW_S, _LASTS_S = 1800.0, 48 * 3600.0
# Random values rise over all parts of a window once in 40,000 times.
_PARTS = 8
_SAMPLES = 360  # at most, per window
# An alarm is due if less than this share of the memory is left.
_LEAST_LEFT = 0.05

# Free bytes that the disk needs in addition to two more checkpoints.
_DISK_BYTES = 1 << 30

# A step of a group of environments takes milliseconds; after this long the pool, or the
# collector, is stalled.
_STALL_S = 120.0
#: File in the run folder: the stacks of all threads when a pool or collector stalled.
STACKS = "stacks.txt"


class Growth:
    """Whether memory grows without pause, and how long the rest of it will last."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        self._lasts = math.inf

    def lasts(self, now: float, used: float, left: float) -> float:
        """Takes a sample.

        Memory that leaks has a higher minimum in each part of the window than in the
        part before; peaks carry no information.
        """
        samples = self._samples
        # Points of the curves may be as frequent as updates are.
        if not samples or now - samples[-1][0] >= _WINDOW_S / _SAMPLES:
            samples.append((now, used))
            self._lasts = self._extrapolate(now, left)
        return self._lasts

    def _extrapolate(self, now: float, left: float) -> float:
        """The result of `lasts`, from the samples of the window."""
        samples = self._samples
        begin = now - _WINDOW_S
        if samples[0][0] > begin:
            return math.inf
        while samples[1][0] <= begin:
            samples.popleft()
        if len(samples) < _PARTS:
            return math.inf
        parts = np.array_split(np.array(samples), _PARTS)
        floors = np.array([part[:, 1].min() for part in parts])
        if not (np.diff(floors) > 0).all():
            return math.inf
        seconds = parts[-1][0, 0] - parts[0][0, 0]
        return float(left / (floors[-1] - floors[0]) * seconds)


class Alarms:
    """Checks the points of a run and its pool, and reports alarms."""

    def __init__(
        self,
        run_dir: Path,
        display: Display,
        *,
        busy_s: Callable[[], tuple[str, float]],
        busy: Callable[[], Sequence[int]] = tuple,
        replaced: Callable[[], Sequence[str]] = tuple,
        notifier: Notifier | None = None,
    ) -> None:
        self._run_dir, self._display, self._notifier = run_dir, display, notifier
        self._busy_s, self._busy, self._replaced = busy_s, busy, replaced
        self._lock = threading.Lock()
        self._active: dict[str, str] = {}
        self._growth = {"host": Growth(), "gpu": Growth()}
        self._replay, self._num_replaced = 0.0, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="alarms", daemon=True)
        self._thread.start()

    def set(self, name: str, text: str) -> None:
        """Begins an alarm, or ends it."""
        with self._lock:
            was = self._active.pop(name, "")
            if text:
                self._active[name] = text
        if not (text or was):
            return
        self._display.alarm(name, text)
        if text and not was:
            self._tell(f"ALARM: {name}", text)
        elif was and not text:
            self._tell(f"alarm is over: {name}", "")

    def _tell(self, title: str, text: str) -> None:
        """Logs, and notifies."""
        self._display.log(f"{title}: {text}" if text else title)
        self.notify(title, text)

    def notify(self, title: str, text: str = "") -> None:
        """Sends a message of the run if it has `--notify`."""
        if self._notifier is not None:
            self._notifier.send(f"{self._run_dir.name}: {title}", text or title)

    def check(self, values: Mapping[str, float]) -> None:
        """Checks a point of the curves, the disk and the replaced environments."""
        self._check_loss(values)
        self._check_memory(values)
        self._check_disk()
        self._check_replaced()

    def _check_loss(self, values: Mapping[str, float]) -> None:
        parts = {n: v for n, v in values.items() if n.startswith("learn/loss/")}
        wrong = [f"{n} is {v}" for n, v in parts.items() if not math.isfinite(v)]
        text = f"{', '.join(wrong)}: this run cannot continue" if wrong else ""
        self.set("NaN", text)

    def _check_memory(self, values: Mapping[str, float]) -> None:
        unrolls = values.get("replay/unrolls", 0.0)
        if unrolls != self._replay:  # memory grows while replay fills
            self._replay = unrolls
            self._growth = {"host": Growth(), "gpu": Growth()}
        for where, growth in self._growth.items():
            used = values.get(f"system/{where}_memory_gb")
            total = values.get(f"system/{where}_memory_total_gb")
            if used is None or total is None:
                continue
            # For a GPU, `used` counts all processes.
            left = values.get(f"system/{where}_memory_left_gb", total - used)
            lasts = growth.lasts(monotonic(), used, left)
            text = ""
            if where == "host" and left < _LEAST_LEFT * total:
                text = f"{left:.2f} of {total:.1f} GB are left; this run has "
                text += f"{used:.1f} GB"
            elif lasts < _LASTS_S:
                text = f"it grows without pause, is {used:.1f} GB, and {left:.1f} GB "
                text += f"are left, which last {format_seconds(lasts)} at this rate"
            if text:
                text += "; --resume continues from the last checkpoint with as little "
                text += "memory as a new run"
            self.set(f"memory of the {where}", text)

    def _check_disk(self) -> None:
        try:
            files = checkpoint.list_files(self._run_dir)
            needed = 2 * max((path.stat().st_size for path in files), default=0)
            free = shutil.disk_usage(self._run_dir).free
        except OSError:  # a file was just replaced, or the disk is briefly unavailable
            return
        text = ""
        if free < _DISK_BYTES + needed:
            text = f"{free / 2**30:.2f} GB are left where {self._run_dir} is; make "
            text += "room, or the run cannot write more checkpoints"
        self.set("disk", text)

    def _check_replaced(self) -> None:
        errors = self._replaced()
        for text in errors[self._num_replaced :]:
            self._tell("an environment was replaced", text)
        self._num_replaced = len(errors)

    def _watch(self) -> None:
        """The thread, which runs even while the training loop is stalled."""
        was = ""
        while not self._stop.wait(min(1.0, _STALL_S / 4)):
            part, seconds = self._busy_s()
            name, text = f"stalled {part}", ""
            if seconds > _STALL_S:
                text = f"no batch for {format_seconds(seconds)}"
                if busy := self._busy():
                    text += f", environments {', '.join(map(str, busy))} are in a step"
                text += f"; {STACKS} has what each thread does; if this lasts, end the "
                text += "run and continue with --resume"
                if name != was:
                    self._write_stacks()
                self.set(name, text)
            if was and not (text and name == was):
                self.set(was, "")
            was = name if text else ""

    def _write_stacks(self) -> None:
        """Writes the stacks of all threads to the run folder."""
        with suppress(OSError), replacing(self._run_dir / STACKS) as file:
            faulthandler.dump_traceback(file)

    def close(self) -> None:
        """Stops watching, and waits for notifications; may be called again."""
        self._stop.set()
        self._thread.join()
        if self._notifier is not None:
            self._notifier.close()
