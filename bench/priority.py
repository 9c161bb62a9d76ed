"""The effect of the priority of a pool's threads, in runs that take turns (Linux).

    python bench/priority.py                        0, 5 and 10, pictures as by default
    python bench/priority.py --busy 1 -- --obs tiles  with one busy process

There is one run for each value of nice(2); the runs take turns of one second. The bench
prints their steps per second and the ratios to the first run, turn by turn. Flags after
`--` are those of `python -m trainer.run`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from turns import show_ratios

from trainer.cli import parse
from trainer.machine.cpu import thread_ids
from trainer.session.build import Session

BUSY = "while True: pass"


def make_run(flags: list[str], nice: int, folder: Path) -> Session:
    """A started run whose pool has threads of this priority."""
    config = parse(["--device", "cpu", "--no-videos", "--dashboard", "off", *flags])

    def set_priority(threads: frozenset[int]) -> None:
        for thread in threads & thread_ids():
            os.setpriority(os.PRIO_PROCESS, thread, nice)

    with patch("trainer.envs.pool.step_aside", set_priority):
        run = Session(replace(config, run_dir=folder / str(nice)))
    run.start()
    for _ in range(3):
        run.updater.update()
    return run


def rate(run: Session, seconds: float) -> float:
    """Steps per second over some updates."""
    start, steps = time.perf_counter(), run.progress.steps
    while time.perf_counter() - start < seconds:
        run.updater.update()
    return (run.progress.steps - steps) / (time.perf_counter() - start)


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nice", nargs="+", type=int, default=[0, 5, 10])
    parser.add_argument("--busy", type=int, default=0, help="busy processes")
    parser.add_argument("--seconds", type=float, default=1.0, help="per turn")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("flags", nargs="*", help="after --: flags of trainer.run")
    given = parser.parse_args()
    rates: dict[int, list[float]] = {nice: [] for nice in given.nice}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = {nice: make_run(given.flags, nice, folder) for nice in given.nice}
        for run in runs.values():
            stack.callback(run.close)
        for _ in range(given.busy):
            process = subprocess.Popen([sys.executable, "-c", BUSY])
            stack.callback(process.kill)
        for _ in range(given.repeats):
            for nice, run in runs.items():
                rates[nice].append(rate(run, given.seconds))
    show_ratios("nice", "steps/s", rates)


if __name__ == "__main__":
    main()
