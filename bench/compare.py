"""Options of the trainer against each other: steps to a first clear, to a solved level.

    python bench/compare.py
    python bench/compare.py --arm= --arm="--optimizer adam" -- --max-steps 600000

Each arm is a set of flags of `python -m trainer.run`; what follows `--` is given to
all. The first command compares starts at the frontier with starts of the level, in 1-3.
Every arm is run with every seed, some at a time with equal shares of the cores. A run
that came to its end is not run again.

It prints a table, and draws all clear rates in OUT/curves.svg.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter
from rich.console import Console
from rich.table import Table

from trainer.machine.cpu import available_cores
from trainer.show.run_files import RunFiles, read_run

ARMS = ["--starts level", "--starts frontier"]
# Of the options but the starts, those of 1-1: with those of a hard level, which have
# come since, it is solved sooner.
COMMON = (
    "--obs tiles --task SuperMarioBros-1-3-v0 --max-steps 700000 --gamma 0.93 "
    "--action-set right_only --stall-steps 100 --no-popart"
)
RATE = "rollout/clear_rate"


def folder_of(out: Path, arm: str, seed: int) -> Path:
    """Where the run of an arm is."""
    name = re.sub(r"[^\w.]+", "-", arm).strip("-") or "default"
    return out / f"{name}-seed-{seed}"


def train(folder: Path, arm: str, seed: int, common: list[str], cores: int) -> None:
    """Makes one run, unless it is there.

    Raises:
        RuntimeError: it failed.
        ValueError: the folder holds another run, or part of one.
    """
    command = [sys.executable, "-m", "trainer.run", "--seed", str(seed)]
    command += ["--run-dir", str(folder), "--no-videos", "--dashboard", "off"]
    command += ["--log-seconds", "2", "--end-episodes", "0"]
    command += ["--num-threads", str(cores), "--learner-threads", str(cores)]
    command += [*common, *shlex.split(arm)]
    ended = folder / "compared.txt"  # written last
    if folder.exists():
        if not ended.exists() or ended.read_text() != shlex.join(command):
            raise ValueError(
                f"{folder} has not come to its end, or was made with other flags: "
                "remove it, or choose another --out"
            )
        return
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}: {done.stderr.strip()}")
    ended.write_text(shlex.join(command))


def first_clear(run: RunFiles) -> str:
    """Steps to the first clear, as the run tells them."""
    found = re.search(r"first clear of \S+ after ([\d,]+) steps", run.messages)
    return found[1] if found else "-"


def rates(run: RunFiles) -> list[tuple[int, float]]:
    """Steps, and the share of clears in the last episodes; of levels the mean."""
    levels = run.config["env"]["levels"]
    if len(levels) < 2:
        return [(p["step"], p[RATE]) for p in run.points if RATE in p]
    return [
        (p["step"], fmean(p.get(f"levels/{level}", 0.0) for level in levels))
        for p in run.points
        if RATE in p
    ]


def reached(run: RunFiles, rate: float) -> str:
    """Steps until there were so many clears."""
    steps = (step for step, found in rates(run) if found >= rate)
    return next((f"{step:,}" for step in steps), "-")


def outcome(run: RunFiles) -> str:
    """How well and when it was solved, or the clear rate of its last episodes."""
    if run.solved:
        confirmed = run.evaluations[-1]
        return f"{confirmed['clear_rate']:.0%} at {confirmed['steps']:,}"
    found = rates(run)
    return f"no: {found[-1][1]:.0%}" if found else "no"


def draw(arms: dict[str, list[RunFiles]], path: Path) -> None:
    """A line for each run, a colour for each arm."""
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for number, (arm, runs) in enumerate(arms.items()):
        for seed, run in enumerate(runs):
            axes.plot(
                *zip(*rates(run), strict=True),
                color=f"C{number}",
                label=(arm or "default") if not seed else None,
            )
    axes.set_xlabel("environment steps")
    axes.set_ylabel("clear rate, last episodes")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "curves"}):
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Trains, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arm", action="append", help='flags, as --arm="--lr 0.01"')
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/compare"))
    parser.add_argument("common", nargs="*", help="flags of all runs, after --")
    given = parser.parse_args()
    common = given.common or shlex.split(COMMON)
    names = given.arm or ARMS
    if given.jobs < 1:
        parser.error("--jobs must be 1 or more")
    cores = max(1, available_cores() // given.jobs)
    given.out.mkdir(parents=True, exist_ok=True)
    plan = [
        (folder_of(given.out, arm, seed), arm, seed)
        for seed in given.seeds
        for arm in names
    ]
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = [pool.submit(train, *run, common, cores) for run in plan]
        try:
            for run in runs:
                run.result()
        except (ValueError, RuntimeError) as error:
            pool.shutdown(cancel_futures=True)
            parser.error(str(error))
    table = Table("arm", "seed", "first clear", "50 %", "90 %", "solved")
    arms: dict[str, list[RunFiles]] = {arm: [] for arm in names}
    for folder, arm, seed in sorted(plan, key=lambda p: names.index(p[1])):
        files = read_run(folder)
        arms[arm].append(files)
        steps = [reached(files, rate) for rate in (0.5, 0.9)]
        table.add_row(arm, str(seed), first_clear(files), *steps, outcome(files))
    Console().print(f"{shlex.join(common)}; columns are environment steps")
    Console().print(table)
    draw(arms, given.out / "curves.svg")
    print(f"wrote {given.out / 'curves.svg'}")


if __name__ == "__main__":
    main()
