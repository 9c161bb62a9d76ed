"""Environment steps per second of the pool, of the parts of a step, and of the peers.

    python bench/sps.py                    the throughput table and the parts of a step
    python bench/sps.py --mixed            32 levels, uniform random actions
    python bench/sps.py --peers            also the peers, in turns with mario_envpool
    python bench/sps.py --obs tiles        tiles instead of grey pictures, in turns
    python bench/sps.py --engines          translated and interpreted programs, in turns
    python bench/sps.py --other ../before  this tree and another tree, in turns
    python bench/sps.py --json             the same, one JSON object as the last line

A *step* is one action, which the game plays for four *frames*. Rows that only deliver
the first observation of an episode do not count, but the time of a reset does.
bench/README.md describes what the bench controls for.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from parts import measure_parts
from peers import workload
from peers.workload import Request
from peers_figure import Bar, draw
from rich.console import Console
from rich.table import Table
from runners import (
    Run,
    Runner,
    RunnerError,
    Spread,
    cpu_rates,
    cpu_ratios,
    interleave,
    peer_python,
    pool_runner,
    rates,
    ratio_each,
    ratios,
)

PEERS = ("turbo", "gsm", "gsm-async", "pong")
# Names in the chart.
_PEER_NAMES = {
    "turbo": "env-supermariobrosnes-turbo-emu",
    "gsm": "gym-super-mario-bros",
    "gsm-async": "gym-super-mario-bros, AsyncVectorEnv",
    "pong": "EnvPool's Atari Pong",
}
OBS_TYPES = ("rgb", "ram", "tiles", "motion")
BUSY = 0.7  # the bench warns at this load average or above
GSM_PROCESSES = 4  # of AsyncVectorEnv, for each core
LEVELS = [f"{world}-{stage}" for world in range(1, 9) for stage in range(1, 5)]

_REPO = Path(__file__).resolve().parent.parent


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--task",
        default="SuperMarioBros-1-1-v0",
        help="environment id; ids of other games are EnvPool's (default: %(default)s)",
    )
    add(
        "--mixed",
        action="store_true",
        help="32 mixed levels (environment i plays"
        " level i mod 32 of v0), uniform SIMPLE actions",
    )
    add(
        "--actions",
        default="right-biased",
        choices=list(workload.ACTIONS),
        help="random actions: biased to the right, or uniform over an action set"
        " (default: %(default)s)",
    )
    add("--rom", default="", help="ROM by name, e.g. world (default: the task's ROM)")
    add("--num-envs", type=int, default=32, help="environments (default: %(default)s)")
    add(
        "--num-threads",
        type=int,
        default=0,
        help="worker threads of the last rows (default: one per core)",
    )
    add(
        "--batch-size",
        type=int,
        default=0,
        help="batch size of the asynchronous rows (default: num-envs / 4)",
    )
    add(
        "--seconds",
        type=float,
        default=2.0,
        help="duration of each run, after its warm-up (default: %(default)s)",
    )
    add("--warmup", type=float, default=0.5, help="in seconds (default: %(default)s)")
    add("--repeats", type=int, default=5, help="runs of each row (default: 5)")
    add(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another option of the task, with VALUE in JSON; may be repeated",
    )
    add(
        "--core",
        type=int,
        default=max(os.sched_getaffinity(0)),
        help="the core of all one-core runs (default: %(default)s)",
    )
    add(
        "--peers",
        nargs="*",
        choices=PEERS,
        metavar="PEER",
        help="also measure the peers, in"
        " turns with mario_envpool; all, or those named: " + ", ".join(PEERS),
    )
    add(
        "--chart",
        type=Path,
        metavar="FILE",
        help="with --peers: draw the results, as .svg, .png or .pdf",
    )
    add(
        "--obs",
        nargs="+",
        default=[],
        choices=OBS_TYPES,
        metavar="TYPE",
        help="measure only these kinds of observation, in turns with grey pictures: "
        + ", ".join(OBS_TYPES),
    )
    add(
        "--engines",
        action="store_true",
        help="measure only the CPU's two engines, in turns",
    )
    add(
        "--other",
        type=Path,
        metavar="TREE",
        help="measure only another tree, with its modules built, in turns with this"
        " tree",
    )
    add("--pairs", type=int, default=5, help="runs of each side (default: 5)")
    add(
        "--skip",
        nargs="*",
        default=[],
        choices=["throughput", "parts"],
        help="leave a table out",
    )
    add("--json", action="store_true", help="print one JSON object as the last line")
    known = parser.parse_args(arguments)
    if known.mixed:
        known.task, known.actions = "SuperMarioBros-v0", "simple"
    for name in ("num_envs", "repeats", "pairs"):
        if getattr(known, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be 1 or more")
    known.cores = len(os.sched_getaffinity(0))
    known.num_threads = known.num_threads or known.cores
    known.batch_size = known.batch_size or max(1, known.num_envs // 4)
    if known.batch_size > known.num_envs:
        parser.error("--batch-size must be at most --num-envs")
    try:
        known.options = dict(_option(text) for text in known.option)
    except ValueError as error:
        parser.error(str(error))
    if known.rom:
        known.options["rom"] = known.rom
    if known.mixed:
        known.options["stages"] = LEVELS
    if known.chart and known.peers is None:
        parser.error("--chart draws the peers: add --peers")
    if known.other and not (known.other / "mario_envpool").is_dir():
        parser.error(f"--other {known.other}: the folder must have mario_envpool")
    if known.obs or known.engines or known.other:
        known.skip = ["throughput", "parts"]
    return known


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--option must be KEY=VALUE, got {text}")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value  # a word that is not JSON is a string


def base_request(arguments: argparse.Namespace) -> Request:
    """The base run of every row and every comparison: one core, synchronous."""
    return Request(
        seconds=arguments.seconds,
        warmup=arguments.warmup,
        cores=[arguments.core],
        num_envs=arguments.num_envs,
        num_threads=1,
        batch_size=0,
        task=arguments.task,
        actions=arguments.actions,
        options=arguments.options,
    )


@dataclass(frozen=True)
class Row:
    """One row of the throughput table."""

    request: Request
    runs: list[Run]

    @property
    def mode(self) -> str:
        """With fewer rows in a batch than environments: async."""
        return mode_of(self.request)

    def as_json(self) -> dict[str, Any]:
        """The row for the JSON line."""
        steps, cpu = rates(self.runs), cpu_rates(self.runs)
        return {
            "mode": self.mode,
            "num_envs": self.request.num_envs,
            "num_threads": self.request.num_threads,
            "batch_size": self.request.batch_size or self.request.num_envs,
            "env_steps_per_s": steps.median,
            "env_steps_per_s_low": steps.low,
            "env_steps_per_s_high": steps.high,
            "env_steps_per_s_each": [run.steps_per_s for run in self.runs],
            "env_steps_per_cpu_s": cpu.median,
            "frames_per_s": steps.median * frames_per_step(self.request),
        }


def frames_per_step(request: Request) -> int:
    """The frame skip of a run."""
    return int(request.options.get("frame_skip", workload.FRAME_SKIP))


def requests_by_mode(arguments: argparse.Namespace) -> dict[str, Request]:
    """One thread on one core and all threads on all cores, sync and async."""
    one = base_request(arguments)
    requests = [one]
    if arguments.num_threads > 1:
        requests.append(replace(one, cores=[], num_threads=arguments.num_threads))
    if arguments.batch_size < arguments.num_envs:  # else there is no asynchronous mode
        requests += [replace(r, batch_size=arguments.batch_size) for r in requests]
    return {f"{mode_of(r)}, {threads_of(r)}": r for r in requests}


def mode_of(request: Request) -> str:
    """The column `mode` of a request."""
    return "async" if request.batch_size else "sync"


def threads_of(request: Request) -> str:
    """The number of threads in words."""
    return "1 thread" if request.num_threads == 1 else f"{request.num_threads} threads"


def measure_throughput(
    arguments: argparse.Namespace, ours: Runner, tell: Any
) -> list[Row]:
    """Measures all modes in turns."""
    requests = requests_by_mode(arguments)
    programs = {name: (ours, request) for name, request in requests.items()}
    runs = interleave(programs, arguments.repeats, tell)
    return [Row(request, runs[name]) for name, request in requests.items()]


def throughput_table(rows: list[Row]) -> Table:
    """Steps and frames per second."""
    table = Table(title="Throughput (median, minimum and maximum of the repeats)")
    for name in ("mode", "threads", "envs", "batch"):
        table.add_column(name, justify="left" if name == "mode" else "right")
    for name in ("env steps/s", "low", "high", "per CPU s", "frames/s"):
        table.add_column(name, justify="right")
    for name in ("resets", "construct"):
        table.add_column(name, justify="right")
    for row in rows:
        steps, cpu = rates(row.runs), cpu_rates(row.runs)
        construct = Spread.of([run.construct_s for run in row.runs]).median
        table.add_row(
            row.mode,
            str(row.request.num_threads),
            str(row.request.num_envs),
            str(row.request.batch_size or row.request.num_envs),
            f"{steps.median:,.0f}",
            f"{steps.low:,.0f}",
            f"{steps.high:,.0f}",
            f"{cpu.median:,.0f}",
            f"{steps.median * frames_per_step(row.request):,.0f}",
            f"{sum(run.resets for run in row.runs):,}",
            f"{construct * 1000:,.0f} ms",
        )
    return table


def scaling(rows: list[Row]) -> dict[str, Spread]:
    """Rates of all threads over one thread, round by round, for each mode."""
    one = {row.mode: row for row in rows if row.request.num_threads == 1}
    return {
        row.mode: ratios(row.runs, one[row.mode].runs)
        for row in rows
        if row.request.num_threads > 1
    }


@contextmanager
def world_rom() -> Iterator[str]:
    """The World ROM as a temporary file, readable only by this user, for a peer."""
    from mario_envpool import rom

    with tempfile.TemporaryDirectory(prefix="mario-bench-") as folder:
        path = Path(folder) / "world.nes"
        path.touch(mode=0o600)
        path.write_bytes(rom.load("world", ""))
        yield str(path)


@dataclass(frozen=True)
class Comparison:
    """Our runs and a peer's, in turns."""

    peer: str
    what: str
    ours: list[Run]
    theirs: list[Run]

    def as_json(self) -> dict[str, Any]:
        """The comparison for the JSON line."""
        return {
            "peer": self.peer,
            "what": self.what,
            "pairs": len(self.ours),
            "ours_env_steps_per_s": rates(self.ours).median,
            "theirs_env_steps_per_s": rates(self.theirs).median,
            "ratio": asdict(ratios(self.ours, self.theirs)),
            "ratio_each": ratio_each(self.ours, self.theirs),
            "ratio_of_cpu_time": asdict(cpu_ratios(self.ours, self.theirs)),
        }


def _peer(
    name: str, arguments: argparse.Namespace, stack: ExitStack
) -> tuple[str, Runner, Request, Request]:
    """A description, the peer's runner, its request, and our request."""
    ours = replace(
        base_request(arguments),
        task="SuperMarioBros-1-1-v0",
        actions="right-biased",
        options={"rom": "world"},
    )
    theirs = replace(ours, task="", options={})
    envs, cores = ours.num_envs, arguments.cores
    if name == "turbo":
        theirs = replace(theirs, rom=stack.enter_context(world_rom()))
        runner = Runner(name, "run_turbo.py", peer_python("turbo"))
        return f"1-1, {envs} envs, 1 thread, 1 core", runner, theirs, ours
    if name == "gsm":
        theirs = replace(theirs, num_envs=1)
        runner = Runner(name, "run_gsm.py", peer_python("gsm"))
        return f"1-1, theirs 1 env, ours {envs}, 1 core", runner, theirs, ours
    if name == "gsm-async":
        lanes = GSM_PROCESSES * cores
        theirs = replace(theirs, cores=[], num_envs=lanes, num_threads=lanes)
        ours = replace(ours, cores=[], num_threads=cores)
        runner = Runner(name, "run_gsm.py", peer_python("gsm"))
        what = f"1-1, theirs {lanes} processes, ours {envs} envs, {cores} cores"
        return what, runner, theirs, ours
    theirs = replace(theirs, task="Pong-v5")
    what = f"theirs Atari Pong, ours 1-1, {envs} envs, 1 thread, 1 core"
    return what, pool_runner("envpool"), theirs, ours


def measure_peers(
    arguments: argparse.Namespace, tell: Any
) -> tuple[list[Comparison], list[str]]:
    """Compares mario_envpool with each peer in turn, whatever `--task` is.

    Returns:
        The comparisons, and a line for each missing peer.
    """
    found, missing = [], []
    for name in arguments.peers or PEERS:
        with pool_runner("mario_envpool") as ours, ExitStack() as stack:
            try:
                what, runner, theirs, mine = _peer(name, arguments, stack)
            except RunnerError as error:
                missing.append(f"{name}: not measured, {error}")
                continue
            stack.enter_context(runner)
            # Named "ours" and not by the module, because Pong's runner is a pool too.
            programs = {"ours": (ours, mine), name: (runner, theirs)}
            runs = interleave(programs, arguments.pairs, tell)
            found.append(Comparison(name, what, runs["ours"], runs[name]))
    return found, missing


def measure_observations(
    arguments: argparse.Namespace, ours: Runner, tell: Any
) -> list[Comparison]:
    """Compares other kinds of observation with grey pictures, one core, in turns."""
    gray = base_request(arguments)
    requests = {"gray": gray} | {
        kind: replace(gray, options={**gray.options, "obs_type": kind})
        for kind in arguments.obs
    }
    programs = {kind: (ours, request) for kind, request in requests.items()}
    runs = interleave(programs, arguments.pairs, tell)
    what = f"{arguments.task}, {gray.num_envs} envs, 1 thread, 1 core"
    return [
        Comparison("gray", f"{kind} against gray, {what}", runs[kind], runs["gray"])
        for kind in arguments.obs
    ]


def measure_engines(
    arguments: argparse.Namespace, ours: Runner, tell: Any
) -> Comparison:
    """Compares translated programs with interpreted ones, one core, in turns."""
    base = base_request(arguments)
    programs = {
        engine: (ours, replace(base, options={**base.options, "engine": engine}))
        for engine in ("translated", "interpreter")
    }
    runs = interleave(programs, arguments.pairs, tell)
    what = f"translated against it, {arguments.task}, {base.num_envs} envs, 1 core"
    return Comparison("interpreter", what, runs["translated"], runs["interpreter"])


def measure_other_tree(
    arguments: argparse.Namespace, ours: Runner, tell: Any
) -> list[Comparison]:
    """Compares this tree with another tree in all modes, in turns."""
    requests = requests_by_mode(arguments)
    programs: dict[str, tuple[Runner, Request]] = {}
    with pool_runner("mario_envpool", arguments.other.resolve()) as other:
        for mode, request in requests.items():
            programs[f"this tree, {mode}"] = ours, request
            programs[f"the other tree, {mode}"] = other, request
        runs = interleave(programs, arguments.pairs, tell)
    return [
        Comparison(
            str(arguments.other),
            f"{arguments.task}, {request.num_envs} envs, {mode}",
            runs[f"this tree, {mode}"],
            runs[f"the other tree, {mode}"],
        )
        for mode, request in requests.items()
    ]


def peers_table(comparisons: list[Comparison]) -> Table:
    """Both sides and their ratio."""
    table = Table(
        title="Ours and others (medians; ratio of each pair: median, minimum-maximum)"
    )
    table.add_column("peer")
    table.add_column("what")
    for name in ("ours, steps/s", "theirs", "ratio", "ratio of CPU time"):
        table.add_column(name, justify="right")
    for entry in comparisons:
        table.add_row(
            entry.peer,
            entry.what,
            f"{rates(entry.ours).median:,.0f}",
            f"{rates(entry.theirs).median:,.0f}",
            _times(ratios(entry.ours, entry.theirs)),
            _times(cpu_ratios(entry.ours, entry.theirs)),
        )
    return table


def peers_chart(comparisons: list[Comparison], path: Path) -> None:
    """Draws both sides of each comparison; ours appears once in each panel."""
    groups: dict[str, list[Bar]] = {}
    for title, all_cores in (("one core", False), ("all cores", True)):
        entries = [e for e in comparisons if (e.peer == "gsm-async") == all_cores]
        if not entries:
            continue
        peers = [
            Bar(
                _PEER_NAMES[entry.peer],
                rates(entry.theirs).median,
                ratios(entry.ours, entry.theirs).median,
            )
            for entry in entries
        ]
        ours = statistics.median(rates(entry.ours).median for entry in entries)
        peers.sort(key=lambda bar: -bar.rate)
        groups[title] = [Bar("mario-envpool", ours), *peers]
    draw(groups, path)


def _times(spread: Spread) -> str:
    return f"{spread.median:.2f}x ({spread.low:.2f}-{spread.high:.2f})"


def commit() -> str:
    """The measured commit, with a + if the tree differs from it."""
    command = ["git", "-C", str(_REPO), "describe", "--always", "--exclude=*"]
    try:
        said = subprocess.run(
            [*command, "--dirty=+"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.stdout.strip()


def cpu_name() -> str:
    """The CPU's name, as the system reports it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    lines = [line for line in text.splitlines() if line.startswith("model name")]
    return lines[0].partition(":")[2].strip() if lines else platform.processor()


def headline(
    arguments: argparse.Namespace, rows: list[Row], comparisons: list[Comparison]
) -> dict[str, Any]:
    """The main figures for a script: the last row, or ours and the first peer.

    Raises:
        RunnerError: nothing was measured.
    """
    if rows:
        chosen = rows[-1].as_json()
        names = ("env_steps_per_s", "frames_per_s", "num_envs", "num_threads")
        return {name: chosen[name] for name in (*names, "batch_size", "mode")}
    if not comparisons:
        raise RunnerError(
            "nothing was measured: --json needs the throughput, --obs or a peer"
        )
    steps = rates(comparisons[0].ours).median
    return {
        "env_steps_per_s": steps,
        "frames_per_s": steps * workload.FRAME_SKIP,
        "num_envs": arguments.num_envs,
        "num_threads": 1 if comparisons[0].peer != "gsm-async" else arguments.cores,
    }


def measure(
    arguments: argparse.Namespace, console: Console, tell: Any
) -> dict[str, Any]:
    """Measures and prints the requested tables.

    Returns:
        The JSON object.

    Raises:
        RunnerError: the mario_envpool pool failed.
    """
    rows: list[Row] = []
    comparisons: list[Comparison] = []
    result: dict[str, Any] = {"task": arguments.task, "actions": arguments.actions}
    module = "mario_envpool" if "SuperMario" in arguments.task else "envpool"
    with pool_runner(module) as ours:
        if "throughput" not in arguments.skip:
            rows = measure_throughput(arguments, ours, tell)
            console.print(f"{arguments.task}, {arguments.actions} actions")
            console.print(throughput_table(rows))
            for mode, spread in scaling(rows).items():
                over = f"{arguments.num_threads} threads over 1, {mode}"
                console.print(f"{over}: {_times(spread)}")
        if "parts" not in arguments.skip and module == "mario_envpool":
            parts = measure_parts(base_request(arguments), ours, arguments, tell)
            console.print(parts.table())
            result["parts_us"] = parts.as_json()
        if arguments.obs:
            comparisons = measure_observations(arguments, ours, tell)
            console.print(peers_table(comparisons))
            result["observations"] = [entry.as_json() for entry in comparisons]
        if arguments.engines:
            comparisons.append(measure_engines(arguments, ours, tell))
            console.print(peers_table(comparisons[-1:]))
            result["engines"] = comparisons[-1].as_json()
        if arguments.other:
            comparisons = measure_other_tree(arguments, ours, tell)
            console.print(peers_table(comparisons))
            result["other"] = [entry.as_json() for entry in comparisons]
    if arguments.peers is not None:
        peers, missing = measure_peers(arguments, tell)
        console.print(peers_table(peers))
        for text in missing:
            console.print(text)
        result["peers"] = [entry.as_json() for entry in peers]
        result["peers_missing"] = missing
        comparisons += peers
        if arguments.chart and peers:
            peers_chart(peers, arguments.chart)
            console.print(f"wrote {arguments.chart}")
    if arguments.json:
        if rows or comparisons or not result.get("peers_missing"):
            result |= headline(arguments, rows, comparisons)
        result["rows"] = [row.as_json() for row in rows]
        result["scaling"] = {k: asdict(v) for k, v in scaling(rows).items()}
        result |= {"commit": commit(), "cpu": cpu_name(), "cores": arguments.cores}
        result["flags"] = sys.argv[1:]
    return result


def main() -> int:
    """Runs the bench; returns 1 if the mario_envpool pool failed."""
    arguments = parse_arguments()
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    status = Console(stderr=True)
    load = os.getloadavg()[0]
    if load > BUSY:
        console.print(
            f"This machine is busy (load {load:.1f}): wall-clock rates are too low and "
            "vary; rates of CPU time are less affected."
        )
    try:
        with status.status("starting") as line:
            result = measure(arguments, console, line.update)
    except RunnerError as error:
        status.print(f"bench/sps.py: {error}", highlight=False)
        return 1
    if arguments.json:
        print(json.dumps({**result, "load": load}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
