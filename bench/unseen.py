"""Does one network clear levels of a world that it has never seen?

    python bench/unseen.py
    python bench/unseen.py --steps 2000000 --worlds 1 6 -- --seed 12

For each world of Super Mario Bros., a run trains one network on the 28 levels of the
other worlds, from rewards and demonstrations: one that imitated the released policies,
which know their levels by heart, cleared less of world 1 (docs/lab-book.md).
`trainer.evaluate` plays the four levels that are left out. Flags after `--` are flags
of `trainer.run`. Runs take turns, each on all cores. If the command is interrupted, the
same command continues; completed worlds are not repeated.

It prints for each level that was left out: the clears of the sampled episodes with a
95 % interval (Wilson), the greedy clears, and the 64 pixels in which most of the other
sampled episodes ended.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

RECIPE = (
    "--obs tiles --action-set complex --guide 0.15 --imitation 0.1 --end-episodes 0"
)
# File with the command of a training, written when it has ended.
TRAINED = "trained.txt"
# Width of the places where episodes ended, in pixels.
_WIDTH = 64


def call(words: Sequence[str]) -> int:
    """Runs a module of the trainer; returns its exit status."""
    with subprocess.Popen([sys.executable, "-m", *words]) as process:
        # Ctrl-C also reaches the trainer, which then writes a checkpoint.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return process.wait()
        finally:
            signal.signal(signal.SIGINT, before)


def train(folder: Path, world: int, steps: int, flags: Sequence[str]) -> int:
    """Trains on all other worlds, or continues; returns the exit status.

    Raises:
        ValueError: the folder has a run with other flags.
    """
    held_out = ",".join(levels_of(world))
    words = ["--levels", "all", "--test-levels", held_out, *shlex.split(RECIPE), *flags]
    words += ["--max-steps", str(steps), "--lr-steps", str(steps)]
    words += ["--entropy-steps", str(steps * 6 // 10)]
    command, ended = shlex.join(words), folder / TRAINED
    begun = folder / "unseen.txt"
    if begun.exists() and begun.read_text() != command:
        raise ValueError(
            f"{folder} has a run with other flags, {begun.read_text()}: give the same "
            "ones, or choose another --out"
        )
    if ended.exists():
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    begun.write_text(command)
    if list(folder.glob("checkpoints/*.pt")):
        words = ["--resume", str(folder)]
    else:
        words += ["--run-dir", str(folder)]
    status = call(["trainer.run", *words, "--no-videos"])
    if not status:
        ended.write_text(command)
    return status


def levels_of(world: int) -> list[str]:
    """The names of a world's levels."""
    return [f"{world}-{stage}" for stage in range(1, 5)]


def evaluate(folder: Path, world: int, episodes: int) -> int:
    """Plays the levels that were left out; returns the exit status."""
    if (folder / "evaluation" / "table.json").exists():
        return 0
    words = ["trainer.evaluate", "--checkpoint", str(folder), "--episodes"]
    return call([*words, str(episodes), "--levels", ",".join(levels_of(world))])


def most_ends(result: dict[str, Any]) -> str:
    """Where most episodes ended that did not clear the level, and their number."""
    ends = Counter(
        (area, x - x % _WIDTH) for area, x, _ in result["deaths"] + result["stalls"]
    )
    if not ends:
        return ""
    (_, x), count = ends.most_common(1)[0]
    return f"{x:,} to {x + _WIDTH - 1:,}: {count} of {ends.total()}"


def show(out: Path, worlds: Sequence[int]) -> None:
    """Prints the table of the worlds that are complete."""
    table = Table(box=SIMPLE)
    for column in ("level", "sampled", "95 % interval", "greedy", "others ended at x"):
        table.add_column(column, justify="right")
    sampled: list[float] = []
    for world in worlds:
        file = out / f"without-{world}" / "evaluation" / "table.json"
        if not file.exists():
            continue
        results: list[dict[str, Any]] = json.loads(file.read_text())["results"]
        for level in levels_of(world):
            mine = [one for one in results if one["level"] == level]
            free = next(one for one in mine if not one["argmax"])
            greedy = next(one for one in mine if one["argmax"])
            sampled.append(free["clear_rate"])
            low, high = free["interval"]
            table.add_row(
                level,
                f"{free['clear_rate']:.0%}",
                f"{low:.0%} to {high:.0%}",
                f"{greedy['clears']} of {greedy['episodes']}",
                most_ends(free),
            )
    if sampled:
        Console().print(table)
        print(f"mean of {len(sampled)} levels: {sum(sampled) / len(sampled):.1%}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--steps", type=int, default=5_000_000, help="of training for each world")
    add("--worlds", type=int, nargs="+", choices=range(1, 9), default=range(1, 9))
    add("--episodes", type=int, default=100, help="sampled episodes of each level")
    add("--out", type=Path, default=Path("runs/unseen"), help="folder of the runs")
    add("flags", nargs="*", help="after --: flags of trainer.run")
    arguments = parser.parse_args(argv)
    for world in arguments.worlds:
        folder = arguments.out / f"without-{world}"
        try:
            status = train(folder, world, arguments.steps, arguments.flags)
        except ValueError as error:
            parser.error(str(error))
        status = status or evaluate(folder, world, arguments.episodes)
        if status:
            return status
    show(arguments.out, arguments.worlds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
