"""Seconds and steps until 1-1 is solved: this tree, also against another, in turns.

    python bench/solve.py                      ten seeds of this tree
    git worktree add ../before <commit>      and build it there
    python bench/solve.py --other ../before --seeds 1 2 3
    python bench/solve.py --other ../before -- --obs tiles     flags of trainer.run

Every seed is a run of each tree, one after the other without other load. A run ends
when it is solved. Its seconds include the evaluations; its speed is the median over the
run, without evaluations. A tree may count a run as solved whose second evaluation has
fewer than 90 clears: such runs are marked with *, because this tree would have
continued.
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

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent.parent
PASSED = 90


class Solved(NamedTuple):
    """One run.

    Attributes:
        seconds: time until it was solved, or ended.
        steps: environment steps.
        speed: median steps per second while training.
        ninety: steps when 90 of the last 100 training episodes were clears.
        passed: both evaluations had enough clears.
    """

    seconds: float
    steps: int
    speed: float
    ninety: int | None
    passed: bool


def run(tree: Path, seed: int, flags: Sequence[str]) -> Solved:
    """Trains with one seed until it is solved.

    Raises:
        RuntimeError: the run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "trainer.run", "--seed", str(seed)]
        command += ["--no-videos", "--run-dir", folder, *flags]
        variables = os.environ | {"PYTHONPATH": str(tree), "WANDB_MODE": "disabled"}
        done = subprocess.run(
            command, cwd=tree, env=variables, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{tree}: {done.stderr.strip()[-500:]}")
        return read(Path(folder), done.stdout)


def read(folder: Path, said: str) -> Solved:
    """Reads the results from a run folder and the run's output."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    metrics: list[dict[str, Any]] = [json.loads(line) for line in lines]
    rates = [m["time/sps"] for m in metrics if "time/sps" in m]
    ninety = re.search(r"last 100 training episodes cleared.* after ([\d,]+)", said)
    second = re.findall(r"second evaluation: (\d+) of 100", said)
    evaluations = (folder / "evaluations.jsonl").read_text().splitlines()
    last = json.loads(evaluations[-1]) if evaluations else {}
    return Solved(
        seconds=max(last.get("seconds", 0.0), metrics[-1]["time/seconds"]),
        steps=max(last.get("steps", 0), metrics[-1]["step"]),
        speed=statistics.median(rates),
        ninety=int(ninety[1].replace(",", "")) if ninety else None,
        passed=bool(second) and int(second[-1]) >= PASSED,
    )


def table(runs: dict[int, list[Solved]]) -> Table:
    """This tree, and the other tree if there is one, seed by seed, and medians."""
    both = len(next(iter(runs.values()))) == 2
    result = Table(title="this tree / the other" if both else None, box=SIMPLE)
    for column in ("seed", "seconds", "steps (k)", "90 % (k)", "steps/s"):
        result.add_column(column, justify="right")
    if both:
        result.add_column("ratio", justify="right")
    for seed, pair in runs.items():
        result.add_row(
            str(seed),
            " / ".join(f"{r.seconds:.1f}{'' if r.passed else '*'}" for r in pair),
            " / ".join(f"{r.steps / 1000:.0f}" for r in pair),
            " / ".join("-" if not r.ninety else f"{r.ninety / 1000:.0f}" for r in pair),
            " / ".join(f"{r.speed:,.0f}" for r in pair),
            *([f"{pair[0].speed / pair[1].speed:.2f}"] if both else []),
        )
    sides = list(zip(*runs.values(), strict=True))
    medians = [
        [statistics.median(getattr(r, name) or 10**9 for r in side) for side in sides]
        for name in ("seconds", "steps", "ninety", "speed")
    ]
    speed = statistics.median(r[0].speed / r[-1].speed for r in runs.values())
    result.add_section()
    result.add_row(
        "median",
        " / ".join(f"{x:.1f}" for x in medians[0]),
        *(" / ".join(f"{x / 1000:.0f}" for x in m) for m in medians[1:3]),
        " / ".join(f"{x:,.0f}" for x in medians[3]),
        *([f"{speed:.2f}"] if both else []),
    )
    return result


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--other", type=Path, help="another tree, with its modules built")
    add("--seeds", type=int, nargs="+", default=list(range(21, 31)))
    add("--json", action="store_true", help="JSON as the last line")
    add("flags", nargs="*", help="after --: flags of trainer.run")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    arguments = parse_arguments(argv)
    console = Console()
    trees = [HERE, *([arguments.other.resolve()] if arguments.other else [])]
    runs: dict[int, list[Solved]] = {}
    try:
        for seed in arguments.seeds:
            runs[seed] = [run(tree, seed, arguments.flags) for tree in trees]
            each = [f"{one.seconds:.1f} s, {one.steps:,} steps" for one in runs[seed]]
            console.print(f"seed {seed}: {' / '.join(each)}")
    except (OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console.print(table(runs))
    sides = list(zip(*runs.values(), strict=True))
    medians = [statistics.median(r.seconds for r in side) for side in sides]
    if arguments.other:
        ratio = medians[0] / medians[1]
        console.print(f"median seconds: {ratio:.2f} of the other tree's")
    if arguments.json:
        print(json.dumps({"seconds": [one.seconds for one in sides[0]]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
