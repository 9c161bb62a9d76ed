"""The speed of the trainer: only environments, only acting, only learning, and a run.

    python bench/learner.py                          cnn-157k, cnn-345k and nature
    python bench/learner.py --replay-shares 0 0.5    also with half of a batch replayed
    python bench/learner.py --models impala --preset gpu-impala
    python bench/learner.py -- --precision fp32      any flag of the trainer after --
    python bench/learner.py --timeline timeline.png  a timeline of the cores instead

A step has four frames, and each batch is used for one epoch, so a row is the work of
one environment step. The parts of a row take turns with the whole run, in one process;
every figure is the median of --repeats. *serial* is the rate of the parts one after the
other, 1 / (1/env + 1/act + 1/learn): a CPU that is never idle cannot be much faster, a
CPU that waits is slower. If collecting and learning overlap (--lag 1 and above), the
bound is the slower of the two instead, *min*.

    env    steps/s of only the pool, with random actions
    act    steps/s of only the network, on groups, with sampling
    learn  fresh steps/s of only updates, which include replayed rows
    end    environment steps/s of a run, collecting, learning and storing; the columns
           after it are its ratios to *serial* and *min*
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from timeline import run_timeline

from trainer.cli import parse
from trainer.config.schema import RunConfig
from trainer.envs.pool import make_pool
from trainer.machine.cuda import own_stream, wait_for_device
from trainer.machine.device import choose_device, describe
from trainer.rollout.collector import Actor
from trainer.session.training import open_run, update

BUSY = 0.7  # the bench warns at this load average or above
PARTS = ("env", "act", "learn", "end")


@dataclass(frozen=True)
class Row:
    """The results of one network: rates in steps/s, one entry for each repeat."""

    model: str
    replay_share: float
    overlapped: bool
    rates: dict[str, list[float]]

    def median(self, part: str) -> float:
        """Median rate of a part."""
        return statistics.median(self.rates[part])

    def bounds(self) -> tuple[list[float], list[float]]:
        """The ratios end / serial and end / min, repeat by repeat."""
        serial, least = [], []
        for env, act, learn, end in zip(*(self.rates[p] for p in PARTS), strict=True):
            collect = 1 / env + 1 / act
            serial.append(end * (collect + 1 / learn))
            least.append(end / min(env, learn))
        return serial, least

    def as_dict(self) -> dict[str, Any]:
        """The row for --json."""
        serial, least = self.bounds()
        return {
            "model": self.model,
            "replay_share": self.replay_share,
            "overlapped": self.overlapped,
            **{part: self.median(part) for part in PARTS},
            "end_over_serial": statistics.median(serial),
            "end_over_min": statistics.median(least),
        }


class Bench:
    """The run of one network, and its parts."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """Builds a run and warms it up."""
        self._run = open_run(replace(config, run_dir=folder))
        run = self._run
        asynchronous = config.mode == "async"
        self._pool = make_pool(run.config.env, seed=7, asynchronous=asynchronous)
        self._group = config.env.num_envs // config.env.groups
        self._start_pool(asynchronous)
        self._actor = Actor(
            run.model,
            num_actions=run.num_actions,
            dtype=run.dtype,
            generator=run.action_generator,
            graphs=run.graphs,
        )
        shape = (self._group, *run.obs_shape)
        self._pixels = torch.randint(0, 256, shape, dtype=torch.uint8)
        self._pixels = self._pixels.to(run.device)
        self._state = torch.zeros(self._group, run.model.state_size, device=run.device)
        self._first = torch.zeros(self._group, dtype=torch.bool, device=run.device)
        self._levels = torch.zeros(self._group, dtype=torch.int64, device=run.device)
        run.start()
        self._batch = update(run)
        for _ in range(3):
            self._batch = update(run)

    def _start_pool(self, asynchronous: bool) -> None:
        if asynchronous:
            self._pool.async_reset()
            return
        groups = len(self._pool.all_env_ids) // self._group
        for ids in np.split(np.asarray(self._pool.all_env_ids, np.int32), groups):
            self._pool.send(np.zeros(len(ids), np.int32), ids)

    def measure(self, part: str, seconds: float) -> float:
        """Steps per second of a part."""
        work: Callable[[], int] = getattr(self, f"_{part}")
        self._synchronise()
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            steps += work()
        self._synchronise()
        return steps / (time.perf_counter() - start)

    def _synchronise(self) -> None:
        wait_for_device(self._run.device)

    def _env(self) -> int:
        env_id = self._pool.recv()[-1]["env_id"]
        actions = np.random.randint(0, 5, len(env_id)).astype(np.int32)
        self._pool.send(actions, env_id)
        return len(env_id)

    def _act(self) -> int:
        answer = self._actor(self._pixels, self._state, self._first, self._levels)
        answer.actions.to("cpu", torch.int32)
        return self._group

    def _learn(self) -> int:
        self._run.learner.update(self._batch, self._run.collector.steps)
        learner = self._run.config.learner
        return learner.unrolls_per_batch * learner.unroll

    def _end(self) -> int:
        before = self._run.collector.steps
        update(self._run)
        return self._run.collector.steps - before

    def close(self) -> None:
        """Ends both pools."""
        self._actor.close()
        self._run.close()
        self._pool.close()


def measure_row(config: RunConfig, seconds: float, repeats: int) -> Row:
    """All parts of one network, in turns."""
    rates: dict[str, list[float]] = {part: [] for part in PARTS}
    with tempfile.TemporaryDirectory() as folder:
        device = choose_device(config.device)
        with own_stream(device), closing(Bench(config, Path(folder))) as bench:
            for _ in range(repeats):
                for part in PARTS:
                    rates[part].append(bench.measure(part, seconds))
    return Row(config.model.name, config.replay.replay_share, config.lag > 0, rates)


def table(rows: Sequence[Row]) -> Table:
    """Medians, and the ratios of the whole run to its bounds."""
    result = Table(title="steps per second (medians)", box=SIMPLE)
    for column in ("network", "replay", *PARTS, "/serial", "/min", "end (k)"):
        result.add_column(column, justify="left" if column == "network" else "right")
    for row in rows:
        serial, least = row.bounds()
        ends = row.rates["end"]
        result.add_row(
            row.model,
            f"{row.replay_share:.0%}",
            *(f"{row.median(part):,.0f}" for part in PARTS),
            f"{statistics.median(serial):.2f}",
            f"{statistics.median(least):.2f}",
            f"{min(ends) / 1000:.1f}-{max(ends) / 1000:.1f}",
        )
    return result


def configurations(arguments: argparse.Namespace) -> list[RunConfig]:
    """The rows that the command line asks for."""
    chosen = ["--device", arguments.device, "--preset", arguments.preset]
    base = parse([*chosen, "--frame-skip", "4", *arguments.flags])
    given = " ".join(arguments.flags)
    if "--epochs" not in given:
        base = replace(base, learner=replace(base.learner, epochs=1))
    result = []
    for name in arguments.models:
        for share in arguments.replay_shares:
            replay = replace(base.replay, replay_share=share)
            model = replace(base.model, name=name)
            result.append(replace(base, model=model, replay=replay))
    return result


def measure_timeline(arguments: argparse.Namespace, console: Console) -> None:
    """A timeline of the trainer's default configuration, with the flags after --."""
    if arguments.updates < 1:
        raise ValueError(f"--updates must be at least 1, got {arguments.updates}")
    chosen = ["--device", arguments.device, "--preset", arguments.preset]
    config = parse([*chosen, *arguments.flags])
    config.validate()
    run_timeline(config, arguments.timeline, arguments.updates, console)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", nargs="+", default=["cnn-157k", "cnn-345k", "nature"])
    add("--replay-shares", nargs="+", type=float, default=[0.0])
    add("--device", default="auto")
    add("--preset", default="auto")
    add("--seconds", type=float, default=5.0, help="duration of each turn of a part")
    add("--repeats", type=int, default=5)
    add("--json", action="store_true", help="print one JSON object as the last line")
    add("--timeline", type=Path, metavar="FILE.png", help="see bench/README.md")
    add("--updates", type=int, default=5, help="updates in a timeline")
    add("flags", nargs="*", help="after --: flags of trainer.run")
    return parser.parse_args(arguments)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    arguments = parse_arguments(argv)
    console = Console()
    load = os.getloadavg()[0]
    if load > BUSY:
        console.print(
            f"[yellow]load average {load:.1f}: the machine is busy, so the rates are "
            "too low; ratios are less affected[/]"
        )
    rows = []
    try:
        if arguments.timeline is not None:
            measure_timeline(arguments, console)
            return 0
        for config in configurations(arguments):
            config.validate()
            rows.append(measure_row(config, arguments.seconds, arguments.repeats))
            rates = rows[-1].rates["end"]
            console.print(
                f"{config.model.name}, {config.replay.replay_share:.0%} replayed: "
                f"{statistics.median(rates):,.0f} steps/s"
            )
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    device = choose_device(arguments.device)
    console.print(table(rows))
    if arguments.json:
        print(
            json.dumps(
                {
                    "rows": [row.as_dict() for row in rows],
                    "device": describe(device, None),
                    "torch": torch.__version__,
                    "load": load,
                    "flags": arguments.flags,
                }
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
