"""The cost of the live dashboard: drawing, and the speed of a run with and without it.

    python bench/dashboard.py                           level 1-1, a minute, 200x50
    python bench/dashboard.py --width 80 --height 24 -- --lag 1

One run draws its dashboard to a file, during every other pair of updates. *drawing* is
the CPU time of the drawing thread as a share of one core over the time of the run.
*time* and *work* are the mean wall-clock and CPU time of an update with the dashboard,
divided by those without it, with standard errors, which grow with other load on the
machine.
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

from trainer.cli import parse
from trainer.rollout.batch import Batch
from trainer.session.build import Session
from trainer.session.training import train
from trainer.session.updater import Updater
from trainer.show.dashboard import LiveDisplay

SETTLING = 4  # first updates, which are not counted
Times = dict[bool, list[float]]  # of updates, by whether the dashboard was drawn


class Switched(LiveDisplay):
    """A dashboard that is drawn only while it is on."""

    on = True

    def _refresh(self) -> None:
        if self.on:
            super()._refresh()


class Measured:
    """Times the updates of a run, and switches its dashboard on and off."""

    def __init__(self, updater: Updater, display: Switched) -> None:
        self._updater, self._display = updater, display
        self.count = 0
        self.wall: Times = {True: [], False: []}
        self.work: Times = {True: [], False: []}

    def update(self) -> Batch:
        """Times one update."""
        self._display.on = on = self.count // 2 % 2 == 0
        wall, work = time.perf_counter(), time.process_time()
        batch = self._updater.update()
        self.count += 1
        if self.count > SETTLING:
            self.wall[on].append(time.perf_counter() - wall)
            self.work[on].append(time.process_time() - work)
        return batch


class MeasuredSession(Session):
    """A session whose updates are timed."""

    def start(self) -> None:
        """See `Session.start`."""
        super().start()
        self.updater = self.measured = Measured(self.updater, self.display)


def ratio(times: Times) -> str:
    """Mean with the dashboard over mean without, and its standard error."""
    means = {on: statistics.mean(values) for on, values in times.items()}
    errors = [
        statistics.stdev(values) / len(values) ** 0.5 / means[on]
        for on, values in times.items()
    ]
    result = means[True] / means[False]
    return f"{result:.3f} +- {result * (errors[0] ** 2 + errors[1] ** 2) ** 0.5:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=200, help="columns")
    parser.add_argument("--height", type=int, default=50, help="lines")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="duration of the run"
    )
    parser.add_argument("flags", nargs="*", help="after --: flags of trainer.run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as file:
        config = replace(
            parse(options.flags),
            run_dir=Path(folder) / "run",
            max_seconds=options.seconds,
            max_steps=10**9,
            stop_when_solved=False,
        )
        size = {"width": options.width, "height": options.height}
        display = Switched(Console(file=file, force_terminal=True, **size))
        with redirect_stdout(file):
            session = MeasuredSession(config, display)
            seconds = train(session)["seconds"]
    run = session.measured
    # The dashboard is drawn half of the time.
    share = 2 * display.drawing_s / seconds
    print(
        f"{options.width}x{options.height}, {run.count} updates: drawing {share:.2%} "
        f"of a core, time {ratio(run.wall)}, work {ratio(run.work)}"
    )


if __name__ == "__main__":
    main()
