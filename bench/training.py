"""Speed of the trainer: this tree against another tree, in turns of a second.

    python bench/training.py --other ../before
    python bench/training.py --other ../before --seconds 60 -- --obs tiles

Both trees train with the same flags of `python -m trainer.run`, after `--`. While one
run works, the other is stopped (SIGSTOP), so that both meet the same load and the same
speed of the machine. The command prints steps per second of a tree's own turns, steps
per second of processor time, and the ratios of this tree to the other.

`--env NAME=VALUE` sets a variable for both trees, such as MARIO_CPU=avx2.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent.parent
FLAGS = "--no-videos --no-stop-when-solved --dashboard off --log-seconds 1"
# Imports, the first translation and the first updates do not count.
WARM_UP_STEPS = 20_000


@dataclass
class Training:
    """A run of one tree, which is stopped except in its turns."""

    name: str
    process: subprocess.Popen[bytes]
    folder: Path
    seconds: float = 0.0

    def steps(self) -> int:
        """Environment steps of the last line that the run has written."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        for line in reversed(lines):
            try:
                return int(json.loads(line)["step"])
            except ValueError:  # not written to its end
                continue
        return 0

    def cpu_seconds(self) -> float:
        """Processor time of the process so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def work(self, seconds: float) -> None:
        """Lets the run work for some seconds.

        Raises:
            SystemExit: the run has ended.
        """
        os.kill(self.process.pid, signal.SIGCONT)
        start = time.monotonic()
        time.sleep(seconds)
        self.seconds += time.monotonic() - start
        if self.process.poll() is not None:
            raise SystemExit(f"error: the run of {self.name} has ended early")
        os.kill(self.process.pid, signal.SIGSTOP)


def start(
    name: str, tree: Path, out: Path, flags: list[str], variables: list[str]
) -> Training:
    """Starts a run of a tree, and stops it at once."""
    folder = out / name
    command = [sys.executable, "-m", "trainer.run", "--run-dir", str(folder)]
    environment = os.environ | dict(pair.split("=", 1) for pair in variables)
    process = subprocess.Popen(
        [*command, *FLAGS.split(), *flags],
        cwd=tree,
        env=environment | {"PYTHONPATH": str(tree)},
        stdout=subprocess.DEVNULL,
    )
    os.kill(process.pid, signal.SIGSTOP)
    return Training(name, process, folder)


def main() -> None:
    """Trains both trees in turns, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", type=Path, required=True, help="an older tree")
    parser.add_argument("--seconds", type=float, default=40, help="for each tree")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE")
    parser.add_argument("flags", nargs="*", help="flags of trainer.run, after --")
    given = parser.parse_args()
    trees = {"this": HERE, "other": given.other.resolve()}
    with tempfile.TemporaryDirectory() as out:
        runs = [
            start(name, tree, Path(out), given.flags, given.env)
            for name, tree in trees.items()
        ]
        try:
            while min(run.steps() for run in runs) < WARM_UP_STEPS:
                for run in runs:
                    run.work(1.0)
            begun = [(run.steps(), run.cpu_seconds(), run.seconds) for run in runs]
            for turn in range(int(given.seconds)):
                for run in runs if turn % 2 else reversed(runs):
                    run.work(1.0)
            ended = [(run.steps(), run.cpu_seconds(), run.seconds) for run in runs]
        finally:
            for run in runs:
                run.process.kill()
                run.process.wait()
    table = Table("tree", "steps/s", "steps per second of processor time")
    rates = []
    for run, before, after in zip(runs, begun, ended, strict=True):
        steps, cpu, seconds = (b - a for a, b in zip(before, after, strict=True))
        rates.append((steps / seconds, steps / cpu))
        table.add_row(run.name, *(f"{rate:,.0f}" for rate in rates[-1]))
    ratios = (f"{mine / theirs:.2f}" for mine, theirs in zip(*rates, strict=True))
    table.add_row("ratio", *ratios)
    Console().print(table)


if __name__ == "__main__":
    main()
