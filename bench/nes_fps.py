"""Frames per second of the bare NES core on one CPU core.

    python bench/nes_fps.py [--rom world] [--frames 20000] [--repeats 5] [--json]
    python bench/nes_fps.py --engines      translated and interpreted, in turns

The script of buttons is the one used by other published figures: Start at the title
screen, then Right+B held and A for 20 of every 40 frames. Rates are frames per second
of CPU time of a process pinned to one core, as median, minimum and maximum of the
repeats. The rows take turns, so that a drift of the machine affects all rows alike.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import time

from rich.console import Console as Terminal
from rich.table import Table
from turns import show_ratios

from mario_envpool import nes, rom

# name, draw every n-th frame (0: none), idle skip
SKIPPING = (
    ("no picture", 0, True),
    ("1 frame in 4 drawn", 4, True),
    ("every frame drawn", 1, True),
)
ROWS = (
    *SKIPPING,
    ("no picture, idle loops executed", 0, False),
    ("every frame drawn, idle loops executed", 1, False),
)


def started_console(image: bytes, engine: str = "") -> nes.Console:
    """A console past the title screen."""
    console = nes.Console(image, engine=engine)
    for frame in range(200):
        console.step(nes.START if frame % 16 >= 8 else 0, draw=False)
    return console


def play_script(frames: int) -> bytes:
    """The pad bytes of the run."""
    run = nes.RIGHT | nes.B
    return bytes(run | (nes.A if frame % 40 < 20 else 0) for frame in range(frames))


def measure(
    image: bytes, movie: bytes, draw_every: int, idle_skip: bool, engine: str = ""
) -> float:
    """Frames per second of CPU time, on a fresh console."""
    console = started_console(image, engine)
    console.set_idle_skip(idle_skip)
    console.step_many(movie[:500], draw_every)
    begin = time.process_time()
    console.step_many(movie, draw_every)
    return len(movie) / (time.process_time() - begin)


def compare_engines(image: bytes, movie: bytes, repeats: int) -> dict[str, list[float]]:
    """Prints both engines' rates; returns their ratios, pair by pair."""
    ratios = {}
    for name, draw_every, idle_skip in SKIPPING:
        rates: dict[str, list[float]] = {"interpreter": [], "translated": []}
        for _ in range(repeats):
            for engine, found in rates.items():
                found.append(measure(image, movie, draw_every, idle_skip, engine))
        show_ratios(name, "frames/s", rates)
        pairs = zip(rates["translated"], rates["interpreter"], strict=True)
        ratios[name] = [one / other for one, other in pairs]
    return ratios


def show_translation(image: bytes, movie: bytes) -> None:
    """Prints how much ran translated, and the translation's size."""
    from native_testing import module

    console = module.CheckedConsole(image, checks=False)
    console.step_many(movie)
    size = console.translation_size
    print(
        f"{console.translated_share:.2%} of the cycles of {len(movie):,} frames ran "
        f"translated; {console.translated_runs / len(movie):.1f} runs per frame"
    )
    print(
        f"{size['blocks']:,} blocks in {size['batches']} batches: "
        f"{size['code_bytes'] / 1024:,.0f} KiB of code, "
        f"{size['memory_bytes'] / 1024:,.0f} KiB of memory, "
        f"{size['seconds'] * 1000:.1f} ms to translate"
    )


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rom", default="vanilla", choices=rom.ROMS)
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--engines", action="store_true", help="compare the CPU's two engines"
    )
    parser.add_argument("--json", action="store_true", help="JSON as the last line")
    return parser.parse_args(arguments)


def main() -> None:
    """Prints the table."""
    arguments = parse_arguments()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    image = rom.load(arguments.rom)
    movie = play_script(arguments.frames)
    if arguments.engines:
        found = compare_engines(image, movie, arguments.repeats)
        if importlib.util.find_spec("mario_envpool._testing"):
            show_translation(image, movie)
        else:
            print(
                "the translation's size is not shown: "
                "'python tests/support/testing_module.py' builds what counts it"
            )
        if arguments.json:
            medians = {name: statistics.median(each) for name, each in found.items()}
            result = {"translated_over_interpreter": medians, "ratio_each": found}
            print(json.dumps(result))
        return
    rates: dict[str, list[float]] = {name: [] for name, _, _ in ROWS}
    for _ in range(arguments.repeats):
        for name, draw_every, idle_skip in ROWS:
            rates[name].append(measure(image, movie, draw_every, idle_skip))

    table = Table(title=f"NES core, {arguments.rom} ROM, one core")
    for column in ("", "frames/s", "min", "max", "x NTSC console"):
        table.add_column(column, justify="left" if not column else "right")
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, values in rates.items():
        table.add_row(
            name,
            f"{medians[name]:,.0f}",
            f"{min(values):,.0f}",
            f"{max(values):,.0f}",
            f"{medians[name] / 60.0988:,.0f}",
        )
    Terminal().print(table)
    if arguments.json:
        result = {"frames_per_s": medians, "frames_per_s_each": rates}
        print(json.dumps({**result, "rom": arguments.rom}))


if __name__ == "__main__":
    main()
