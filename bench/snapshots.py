"""Snapshots and restores per second, of pixels and of tiles.

    python bench/snapshots.py
    python bench/snapshots.py --num-envs 256 --repeats 20
    python bench/snapshots.py --json           the same, and JSON as the last line

A restore includes the rows that it results in: `restore` and then `recv`. "per step" is
the number of calls in the time of one step of the same pool. Runs take turns, so that
slow drifts of the machine affect all alike; the figures are medians, with minimum and
maximum. CPU time is that of all threads together, with those that look for work.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from runners import Spread

import mario_envpool

KINDS: dict[str, dict[str, Any]] = {
    "84x84x4 pixels": {},
    "tiles": {"obs_type": "tiles"},
}
GOAL = 100_000

Key = tuple[str, str]  # kind, call
Runs = dict[Key, list[tuple[float, float]]]  # per second, and per second of CPU time


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--num-envs", type=int, default=64, help="environments (default: %(default)s)")
    add("--num-threads", type=int, default=0, help="workers (default: all cores)")
    add("--repeats", type=int, default=9, help="runs per call (default: %(default)s)")
    add("--seconds", type=float, default=0.3, help="per run (default: %(default)s)")
    add("--json", action="store_true", help="print one JSON object as the last line")
    known = parser.parse_args(arguments)
    for name in ("num_envs", "repeats"):
        if getattr(known, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be 1 or more")
    return known


def calls(pool: Any, num_envs: int) -> dict[str, Callable[[], Any]]:
    """The calls to measure; each does its work once for every environment."""
    ids = np.arange(num_envs, dtype=np.int32)
    actions = np.arange(num_envs) % 7
    blobs = pool.snapshot(ids)

    def restore() -> None:
        pool.restore(ids, blobs)
        pool.recv()

    return {
        "snapshot": lambda: pool.snapshot(ids),
        "restore": restore,
        "step": lambda: pool.step(actions),
    }


def measure(
    call: Callable[[], Any], seconds: float, num_envs: int
) -> tuple[float, float]:
    """Returns environments per second, and per second of CPU time."""
    done = 0
    cpu, start = time.process_time(), time.perf_counter()
    while (taken := time.perf_counter() - start) < seconds:
        call()
        done += num_envs
    return done / taken, done / (time.process_time() - cpu)


def run_all(known: argparse.Namespace) -> tuple[Runs, dict[str, int]]:
    """Runs everything in turns; also returns the bytes of a snapshot of each kind."""
    every: dict[Key, Callable[[], Any]] = {}
    sizes = {}
    for kind, options in KINDS.items():
        pool = mario_envpool.make(
            "SuperMarioBros-1-1-v0",
            num_envs=known.num_envs,
            num_threads=known.num_threads,
            seed=1,
            **options,
        )
        pool.reset()
        for step in range(20):
            pool.step(np.full(known.num_envs, 3 + step % 2))
        sizes[kind] = pool.snapshot(np.zeros(1, np.int32)).shape[1]
        for name, call in calls(pool, known.num_envs).items():
            every[kind, name] = call
    runs: Runs = {key: [] for key in every}
    for _ in range(known.repeats):
        for key, call in every.items():
            measure(call, known.seconds / 10, known.num_envs)  # warms the caches
            runs[key].append(measure(call, known.seconds, known.num_envs))
    return runs, sizes


def main() -> int:
    """Measures, and prints a table."""
    known = parse_arguments()
    runs, sizes = run_all(known)
    table = Table(title=f"{known.num_envs} environments")
    table.add_column("")
    for column in ("bytes", "per second", "(range)", "per CPU s", f"of {GOAL:,}"):
        table.add_column(column, justify="right")
    table.add_column("per step", justify="right")
    report = []
    for (kind, name), results in runs.items():
        wall = Spread.of([run[0] for run in results])
        cpu = Spread.of([run[1] for run in results])
        pairs = zip(results, runs[kind, "step"], strict=True)
        steps = Spread.of([run[0] / step[0] for run, step in pairs])
        table.add_row(
            f"{kind}, {name}",
            f"{sizes[kind]:,}",
            f"{wall.median:,.0f}",
            f"{wall.low:,.0f} to {wall.high:,.0f}",
            f"{cpu.median:,.0f}",
            f"{wall.median / GOAL:.2f}",
            f"{steps.median:.1f}",
        )
        report.append(
            {
                "kind": kind,
                "call": name,
                "bytes": sizes[kind],
                "per_s": wall.median,
                "per_cpu_s": cpu.median,
                "per_step": steps.median,
            }
        )
    Console().print(table)
    if known.json:
        print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
