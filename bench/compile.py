"""The gain of --compile, and of compiling the network as well (runs take turns).

    python bench/compile.py                          pictures as by default
    python bench/compile.py --repeats 4 -- --obs tiles

There are three runs: without --compile, with it, and with the network's forward and
backward pass compiled in learning as well. They take turns of one second. The bench
prints steps per second of CPU time, which other processes on the machine hardly change,
and the ratios to the first run, turn by turn. Flags after `--` are those of
`python -m trainer.run`, for a CPU.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from turns import show_ratios

from trainer.cli import parse
from trainer.machine.cuda import compiled
from trainer.session.build import Session

RUNS = ("without", "--compile", "and the network")


def make_run(kind: str, flags: list[str], folder: Path) -> Session:
    """A started run after all its compilation."""
    config = parse(["--device", "cpu", "--no-videos", "--dashboard", "off", *flags])
    on = kind != RUNS[0]
    run = Session(replace(config, compile=on, run_dir=folder / kind.replace(" ", "-")))
    if kind == RUNS[2]:
        model: Any = run.model
        forward: Any = run.learner._parts.forward
        forward._model = compiled(lambda *rows: model(*rows), name="the network")
    run.start()
    for _ in range(4):
        run.updater.update()
    return run


def rate(run: Session, seconds: float) -> float:
    """Steps per second of CPU time, over some updates."""
    end, steps = time.monotonic() + seconds, run.progress.steps
    spent = time.process_time()
    while time.monotonic() < end:
        run.updater.update()
    return (run.progress.steps - steps) / (time.process_time() - spent)


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="per turn")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("flags", nargs="*", help="after --: flags of trainer.run")
    given = parser.parse_args()
    rates: dict[str, list[float]] = {kind: [] for kind in RUNS}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = {kind: make_run(kind, given.flags, folder) for kind in RUNS}
        for run in runs.values():
            stack.callback(run.close)
        for _ in range(given.repeats):
            for kind, run in runs.items():
                rates[kind].append(rate(run, given.seconds))
    show_ratios("compiled", "steps per CPU second", rates)


if __name__ == "__main__":
    main()
