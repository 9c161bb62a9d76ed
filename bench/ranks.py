"""One rank against two: speed, time in all-reduce, steps until solved.

    python bench/ranks.py                             pictures, as by default
    python bench/ranks.py -- --obs tiles              flags of trainer.run
    python bench/ranks.py --solve 21 22 23 -- --obs tiles     seeds of two processes
    python bench/ranks.py --model                     an estimate for 8 GPUs

The runs take turns. `all-reduce` is the share of rank 0's time for averaging gradients
over Gloo, `waits` the share of all other communication between ranks; both include
waiting for a slower rank. `--solve` trains its seeds with two processes and those of
`--single` with one, until each is solved, and prints the steps.

`--model` is a calculation, not a measurement: it was not checked on several GPUs. It
assumes that a single GPU trains `--gpu-steps` steps per second with the batch of the
preset gpu-impala, which grows with the number of GPUs. A gradient step then waits for
one all-reduce, whose time is a latency plus the ring's 2 (n - 1) / n transfers of all
gradients.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from turns import show_ratios

from trainer.config.presets import preset

HERE = Path(__file__).resolve().parent.parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
# Assumptions about networks: seconds of an empty all-reduce, and bytes per second of
# one GPU.
NETWORKS = {
    "NVLink, one machine": (30e-6, 200e9),
    "PCIe 4, one machine": (40e-6, 20e9),
    "100 Gbit/s Ethernet": (100e-6, 10e9),
    "10 Gbit/s Ethernet": (200e-6, 1e9),
}
# Of the preset's network.
PARAMETERS = 1_090_000


class Ran(NamedTuple):
    """One run.

    Attributes:
        said: the output of the run.
        points: points of its curves.
    """

    said: str
    points: list[dict[str, Any]]

    def median(self, name: str) -> float:
        """Median of a curve, without the first point, in which everything is slow."""
        found = [point[name] for point in self.points if name in point]
        return statistics.median(found[1:] or found or [0.0])


def train(processes: int, flags: Sequence[str]) -> Ran:
    """Trains with one process or several.

    Raises:
        RuntimeError: the run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        engine = [*TORCHRUN, str(processes)] if processes > 1 else [sys.executable]
        command = [*engine, "-m", "trainer.run", "--run-dir", folder, *flags]
        command += ["--dashboard", "off", "--no-videos", "--log-seconds", "1"]
        variables = os.environ | {"PYTHONPATH": str(HERE), "WANDB_MODE": "disabled"}
        done = subprocess.run(
            command, cwd=HERE, env=variables, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-1_000:])
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
        return Ran(done.stdout, [json.loads(line) for line in lines])


def measure(seconds: float, repeats: int, flags: Sequence[str]) -> None:
    """Prints the speeds of one and two processes, and the time shares of two."""
    limits = ["--no-stop-when-solved", "--max-seconds", str(seconds)]
    rates: dict[str, list[float]] = {"one process": [], "two": []}
    shares: dict[str, list[float]] = {"allreduce": [], "ranks": []}
    for _ in range(repeats):
        for number, found in enumerate(rates.values(), 1):
            ran = train(number, [*limits, *flags])
            found.append(ran.median("time/sps"))
        for name, some in shares.items():
            some.append(ran.median(f"time/share_{name}"))
    show_ratios("", "steps/s", rates)
    all_reduce, waits = (statistics.median(some) for some in shares.values())
    print(
        f"two processes: all-reduce takes {all_reduce:.1%} of the time, waits "
        f"{waits:.1%}"
    )


def solve(doubles: Sequence[int], singles: Sequence[int], flags: Sequence[str]) -> None:
    """Trains until solved, and prints the steps of each seed."""
    steps: dict[int, list[int]] = {1: [], 2: []}
    for processes, seeds in ((1, singles), (2, doubles)):
        for seed in seeds:
            ran = train(processes, ["--seed", str(seed), *flags])
            found = re.search(r"^solved: .* after ([\d,]+) steps", ran.said, re.M)
            count = int(found[1].replace(",", "")) if found else 0
            print(f"{processes} processes, seed {seed}: {count:,} steps", flush=True)
            steps[processes].append(count)
    if steps[1] and steps[2]:
        least, most = min(steps[1]), 1.25 * max(steps[1])
        good = all(least <= count <= most for count in steps[2])
        print(f"two processes within {least:,} to {most:,.0f} steps: {good}")


def show_model(gpu_steps: float, gpus: int) -> None:
    """Prints an estimate for several GPUs."""
    learner = preset("gpu-impala").learner
    batch = learner.unrolls_per_batch * learner.unroll
    gradient_steps = learner.epochs * batch / learner.minibatch_size
    alone_s, size = batch / gpu_steps, 4 * PARAMETERS
    table = Table("network", "all-reduce", "of the time", f"{gpus} GPUs, steps/s")
    for name, (latency_s, bytes_per_s) in NETWORKS.items():
        reduce_s = latency_s + 2 * (gpus - 1) / gpus * size / bytes_per_s
        update_s = alone_s + gradient_steps * reduce_s
        table.add_row(
            name,
            f"{reduce_s * 1e6:,.0f} us",
            f"{gradient_steps * reduce_s / update_s:.1%}",
            f"{gpus * batch / update_s:,.0f}",
        )
    Console().print(table)
    print(
        f"a model, not a measurement: assumes {gpu_steps:,.0f} steps/s on one GPU with "
        f"batches of {batch:,} steps in {gradient_steps:g} gradient steps, and "
        f"{size / 1e6:.1f} MB of gradients"
    )


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="duration of each run"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--solve", nargs="+", type=int, metavar="SEED")
    parser.add_argument("--single", nargs="*", type=int, default=[*range(21, 31)])
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--gpu-steps", type=float, default=50_000.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("flags", nargs="*", help="after --: flags of trainer.run")
    given = parser.parse_args()
    if given.model:
        show_model(given.gpu_steps, given.gpus)
    elif given.solve:
        solve(given.solve, given.single, given.flags)
    else:
        measure(given.seconds, given.repeats, given.flags)


if __name__ == "__main__":
    main()
