"""Compares options of the trainer over several seeds: which of them help?

    python bench/compare.py
    python bench/compare.py --arm= --arm="--lag 2" -- --no-stop-when-solved

Each arm is a set of flags of `python -m trainer.run`, and of options without a flag as
name=value (`rho_bar=inf`); flags after `--` apply to all arms. The first command
compares starts at the frontier with starts of the level, in 1-3. Every arm runs with
every seed, several runs at a time with equal shares of the cores. Completed runs are
not repeated, and the tables also show earlier seeds of these arms.

It prints two tables. For each arm: the mean clear rate of the last steps (--last), its
difference from the first arm's, and 95 % intervals over the seeds (Student's t, and
Welch's for the difference). With few seeds the intervals are wide: "nothing" means that
no difference was shown, not that there is none; and of twenty arms without an effect,
one will appear to have one. For each run: the steps to its first clear, to clear rates
of 50 and 90 %, and to the two evaluations. OUT/curves.svg shows the clear rates, for
each arm the mean and the range of its runs.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, median, stdev

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter
from rich.console import Console
from rich.table import Table

from trainer.machine.cpu import available_cores
from trainer.show.run_files import RunFiles, read_run

ARMS = ["--starts level", "--starts frontier"]
# The options of 1-1, except the starts: with the newer options for hard levels, 1-3 is
# solved sooner.
COMMON = (
    "--obs tiles --task SuperMarioBros-1-3-v0 --max-steps 700000 --gamma 0.93 "
    "--action-set right_only --stall-steps 100 --no-popart"
)
RATE = "rollout/clear_rate"

# Starts a run; the first argument has the options that have no flag.
START = """
import json, sys
from trainer.cli import parse
from trainer.config.flags import change
from trainer.run import run_training
run_training(change(parse(sys.argv[2:]), **json.loads(sys.argv[1])))
"""

# File with the command of a run, written last into the run folder.
ENDED = "compared.txt"

# Distance in steps between two points of a curve.
GRID = 1000

# 97.5 % quantiles of Student's t for 1 to 10 degrees of freedom.
T_QUANTILES = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


def folder_of(out: Path, arm: str, seed: int | str) -> Path:
    """The folder of an arm's run; with the seed "*", a pattern for all its runs."""
    name = re.sub(r"[^\w.]+", "-", arm).strip("-") or "default"
    return out / f"{name}-seed-{seed}"


def split(arm: str) -> tuple[list[str], dict[str, float]]:
    """The flags of an arm, and its options without a flag."""
    words = shlex.split(arm)
    pairs = [word.split("=") for word in words if re.match(r"[a-z_]+=", word)]
    flags = [word for word in words if not re.match(r"[a-z_]+=", word)]
    return flags, {name: float(value) for name, value in pairs}


def train(folder: Path, arm: str, seed: int, common: list[str], cores: int) -> None:
    """Makes one run, unless it exists.

    Raises:
        RuntimeError: the run failed.
        ValueError: the folder has another run, or an incomplete one.
    """
    flags, settings = split(arm)
    command = [sys.executable, "-m", "trainer.run"]
    if settings:
        command = [sys.executable, "-c", START, json.dumps(settings)]
    command += ["--seed", str(seed)]
    command += ["--run-dir", str(folder), "--no-videos", "--dashboard", "off"]
    command += ["--log-seconds", "2"]
    command += ["--num-threads", str(cores), "--learner-threads", str(cores)]
    command += [*common, *flags]
    ended = folder / ENDED
    if folder.exists():
        if not ended.exists() or ended.read_text() != shlex.join(command):
            raise ValueError(
                f"the run in {folder} is incomplete or has other flags: remove it, or "
                "choose another --out"
            )
        return
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}: {done.stderr.strip()}")
    ended.write_text(shlex.join(command))


def ended_runs(out: Path, arm: str, common: list[str]) -> list[tuple[int, RunFiles]]:
    """Seeds and files of an arm's completed runs, with those of earlier calls."""
    found = []
    for folder in out.glob(folder_of(out, arm, "*").name):
        seed = folder.name.rpartition("-")[2]
        ended = folder / ENDED
        if not seed.isdigit() or not ended.exists():
            continue
        if ended.read_text().endswith(shlex.join([*common, *split(arm)[0]])):
            found.append((int(seed), read_run(folder)))
    return sorted(found, key=lambda run: run[0])


def first_clear(run: RunFiles) -> str:
    """Steps to the first clear, as the run printed them."""
    found = re.search(r"first clear of \S+ after ([\d,]+) steps", run.messages)
    return found[1] if found else "-"


def rates(run: RunFiles) -> list[tuple[int, float]]:
    """Steps, and clear rates of the last episodes (the mean over several levels)."""
    levels = run.config["env"]["levels"]
    if len(levels) < 2:
        return [(p["step"], p[RATE]) for p in run.points if RATE in p]
    return [
        (p["step"], fmean(p.get(f"levels/{level}", 0.0) for level in levels))
        for p in run.points
        if RATE in p
    ]


def reached(run: RunFiles, rate: float) -> str:
    """Steps until the clear rate reached `rate`."""
    steps = (step for step, found in rates(run) if found >= rate)
    return next((f"{step:,}" for step in steps), "-")


def outcome(run: RunFiles) -> str:
    """When and with which clear rate it was solved, or its last clear rate."""
    if run.solved:
        confirmed = run.evaluations[-1]
        return f"{confirmed['clear_rate']:.0%} at {confirmed['steps']:,}"
    found = rates(run)
    return f"no: {found[-1][1]:.0%}" if found else "no"


def curve(run: RunFiles) -> npt.NDArray[np.float64]:
    """The clear rate every GRID steps, from 0 to the end of the run."""
    steps, values = zip(*rates(run), strict=True)
    found: npt.NDArray[np.float64] = np.interp(
        np.arange(0, steps[-1], GRID), [0, *steps], [0, *values]
    )
    return found


def final_rate(run: RunFiles, last: int) -> float:
    """Mean clear rate of a run's last steps."""
    return float(curve(run)[-max(1, last // GRID) :].mean())


def quantile(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, for whole degrees of freedom."""
    return T_QUANTILES[max(1, min(int(freedom), len(T_QUANTILES))) - 1]


def interval(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of a mean; NaN for one value."""
    if len(values) < 2:
        return math.nan
    return quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def difference(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """The first mean minus the other, and half its 95 % interval (Welch 1947)."""
    gap = fmean(one) - fmean(other)
    if min(len(one), len(other)) < 2:
        return gap, math.nan
    parts = [stdev(values) ** 2 / len(values) for values in (one, other)]
    if not sum(parts):
        return gap, 0.0
    weights = [len(values) - 1 for values in (one, other)]
    freedom = sum(parts) ** 2 / sum(
        part**2 / weight for part, weight in zip(parts, weights, strict=True)
    )
    return gap, quantile(freedom) * math.sqrt(sum(parts))


def verdict(gap: float, half: float) -> str:
    """One word for a difference and its interval."""
    if math.isnan(half):
        return "one seed"
    return "helps" if gap > half else "hurts" if gap < -half else "nothing"


def percent(value: float, half: float, sign: str = "") -> str:
    """A rate and half its interval."""
    spread = "" if math.isnan(half) else f" ± {100 * half:.0f}"
    return f"{100 * value:{sign}.0f}{spread}"


def steps_to(runs: list[RunFiles], rate: float) -> str:
    """Median steps to a rate, and how many runs reached it."""
    found = [next((step for step, r in rates(run) if r >= rate), 0) for run in runs]
    came = [step for step in found if step]
    of_all = "" if len(came) == len(runs) else f" ({len(came)} of {len(runs)})"
    return f"{median(came) / 1e3:.0f} k{of_all}" if came else "-"


def arms_table(arms: dict[str, list[RunFiles]], last: int) -> Table:
    """A row for each arm."""
    table = Table(
        "arm",
        "runs",
        f"clears of the last {last // 1000} k steps, %",
        "against the first arm",
        "it",
        "50 %",
        "90 %",
    )
    reference: list[float] = []
    for arm, runs in arms.items():
        finals = [final_rate(run, last) for run in runs]
        row = [arm or "none", str(len(runs)), percent(fmean(finals), interval(finals))]
        if reference:
            gap, half = difference(finals, reference)
            row += [percent(gap, half, "+"), verdict(gap, half)]
        else:
            reference, row = finals, [*row, "", ""]
        table.add_row(*row, steps_to(runs, 0.5), steps_to(runs, 0.9))
    return table


def draw(arms: dict[str, list[RunFiles]], path: Path) -> None:
    """Draws a line for each arm, and the range of its runs."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for number, (arm, runs) in enumerate(arms.items()):
        curves = [curve(run) for run in runs]
        both = np.stack([c[: min(map(len, curves))] for c in curves])
        steps = np.arange(both.shape[1]) * GRID
        color = f"C{number % 10}"
        line = "-" if number < 10 else "--"
        axes.plot(steps, both.mean(0), line, label=arm or "none", color=color)
        axes.fill_between(
            steps, both.min(0), both.max(0), alpha=0.12, lw=0, color=color
        )
    axes.set_xlabel("environment steps")
    axes.set_ylabel("clear rate, last episodes")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize="small", loc="outside right upper")
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
    parser.add_argument("--last", type=int, default=100_000, help="last steps to judge")
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
    arms: dict[str, list[RunFiles]] = {}
    for arm in names:
        ended = ended_runs(given.out, arm, common)
        arms[arm] = [files for _, files in ended]
        for seed, files in ended:
            steps = [reached(files, rate) for rate in (0.5, 0.9)]
            table.add_row(arm, str(seed), first_clear(files), *steps, outcome(files))
    console = Console()
    console.print(f"{shlex.join(common)}; columns are environment steps")
    console.print(table)
    console.print(arms_table(arms, given.last))
    draw(arms, given.out / "curves.svg")
    print(f"wrote {given.out / 'curves.svg'}")


if __name__ == "__main__":
    main()
