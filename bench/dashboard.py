"""What the live dashboard costs: drawing, and the speed of runs with it and without.

    python bench/dashboard.py                      level 1-1, three pairs of 20 s
    python bench/dashboard.py --width 80 --height 24 --pairs 5

Runs take turns, one with lines in a file and one with the dashboard, which draws as in
a terminal of that size, to a file. *drawing* is the processor time of the thread that
draws, as a share of one core over the time of the run; *speed* is steps/s with the
dashboard over steps/s without, the median of the pairs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from trainer.dashboard import Display, LiveDisplay, PlainDisplay
from trainer.run import parse, run_training


def steps_per_second(flags: list[str], seconds: float, display: Display) -> float:
    with tempfile.TemporaryDirectory() as folder:
        config = replace(
            parse(flags),
            run_dir=Path(folder) / "run",
            max_seconds=seconds,
            max_steps=10**9,
            stop_when_solved=False,
        )
        metrics = run_training(config, display)
    return metrics["steps"] / metrics["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=200, help="columns")
    parser.add_argument("--height", type=int, default=50, help="lines")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    parser.add_argument("flags", nargs="*", help="of the trainer, behind --")
    options = parser.parse_args()
    drawing, ratios = [], []
    for pair in range(options.pairs):
        rates = {}
        # Whoever comes first in a pair comes second in the next.
        for live in (False, True) if pair % 2 == 0 else (True, False):
            with open(os.devnull, "w") as file, redirect_stdout(file):
                size = {"width": options.width, "height": options.height}
                console = Console(file=file, force_terminal=True, **size)
                display = LiveDisplay(console) if live else PlainDisplay()
                began = time.perf_counter()
                rates[live] = steps_per_second(options.flags, options.seconds, display)
                wall = time.perf_counter() - began
            if isinstance(display, LiveDisplay):
                drawing.append(display.drawing_s / wall)
        ratios.append(rates[True] / rates[False])
        print(f"{rates[False]:8,.0f} steps/s with lines, {rates[True]:8,.0f} live")
    print(
        f"{options.width}x{options.height}: drawing {statistics.median(drawing):.2%} "
        f"of a core, speed {statistics.median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
