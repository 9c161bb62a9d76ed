"""Where the time of an environment step goes, from differences between whole runs.

The bench does not time anything inside the pool, because reading a clock for each part
would cost as much as the smaller parts. Instead it repeats the same work with one thing
changed, all on one core with one thread, in turns:

    emulate   (a step of 8 frames - a step of 4) / 4 * 4: three or seven frames of a
              step are not drawn, so the difference is four frames of game logic,
              with the reading of RAM, reward and done after each
    picture   the observation of 84x84 by area, stack of four - one of 1x1 by nearest,
              which needs only a single drawn line: drawing into the resize, the
              stack, and the row written for the reader
    pool      a pool of environments that only count: queues, threads, batches, the
              small fields, and EnvPool's Python around them; part of the rest unless
              `python tests/support/testing_module.py` has built that pool
    rest      the remainder of the whole: info, episode ends, resets

All times are CPU time, which equals wall clock on one core without other processes.
A difference has the noise of both its sides; the bench reports the medians of the
differences, round by round.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from peers import workload
from peers.workload import Request
from rich.table import Table
from runners import Run, Runner, interleave

TINY = {
    "img_height": 1,
    "img_width": 1,
    "stack_num": 1,
    "use_inter_area_resize": False,
}


@dataclass(frozen=True)
class Parts:
    """Microseconds of CPU time of one environment step, and of its parts."""

    step: float
    parts: dict[str, float]

    def as_json(self) -> dict[str, float]:
        """The parts for the JSON line."""
        return {"step": self.step, **self.parts}

    def table(self) -> Table:
        """Microseconds and shares."""
        table = Table(title="Parts of a step (one core, one thread, synchronous)")
        table.add_column("part")
        table.add_column("us/step", justify="right")
        table.add_column("share", justify="right")
        for name, value in {**self.parts, "whole step": self.step}.items():
            table.add_row(name, f"{value:.1f}", f"{value / self.step:.0%}")
        return table


def _microseconds(runs: Sequence[Run]) -> list[float]:
    return [1e6 / run.steps_per_cpu_s for run in runs]


def _difference(more: Sequence[Run], less: Sequence[Run]) -> float:
    pairs = zip(_microseconds(more), _microseconds(less), strict=True)
    return statistics.median(a - b for a, b in pairs)


def measure_parts(
    base: Request, ours: Runner, arguments: argparse.Namespace, tell: Any
) -> Parts:
    """Measures the whole step and its parts.

    Args:
        base: the run on one core to split into parts.
        ours: a runner of a mario_envpool pool.
        arguments: only `repeats` is used.
        tell: called with lines of progress.
    """
    options = {
        "whole": base.options,
        "eight frames": {**base.options, "frame_skip": 8},
        "tiny": {**base.options, **TINY},
    }
    programs = {
        name: (ours, replace(base, options=chosen)) for name, chosen in options.items()
    }
    with ExitStack() as stack:
        if importlib.util.find_spec("mario_envpool._testing"):
            counting = Runner("counting", "run_pool.py", sys.executable, "counting")
            stack.enter_context(counting)
            request = replace(base, task="Counting", options={})
            programs["counting"] = (counting, request)
        runs = interleave(programs, arguments.repeats, tell)
    skip = base.options.get("frame_skip", workload.FRAME_SKIP)
    step = statistics.median(_microseconds(runs["whole"]))
    parts = {
        "emulate": _difference(runs["eight frames"], runs["whole"]) / (8 - skip) * skip,
        "picture": _difference(runs["whole"], runs["tiny"]),
    }
    if "counting" in runs:
        parts["pool"] = statistics.median(_microseconds(runs["counting"]))
    parts["rest"] = step - sum(parts.values())
    return Parts(step, parts)
