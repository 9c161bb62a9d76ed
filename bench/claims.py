"""README's figures, measured again with README's commands: which of them hold?

    python bench/claims.py                    those that take 15 minutes in all
    python bench/claims.py --all              also those that train: 80 minutes more
    python bench/claims.py --only gsm turbo   these
    python bench/claims.py --markdown         also print README's table of this machine
    python bench/claims.py --write            and replace README's table and figures

A ratio holds unless the 95 % interval of its median excludes README's figure: "no:
more" and "no: less" say on which side. Another processor may have other ratios. Rates,
seconds and clear rates depend on the machine: they are shown, and never fail. Beside
them is the rate of a plain Python loop, measured before and after each command. All
commands run on two cores.

Exit status: 0, 1 if a ratio does not hold or a command failed, 2 with one line
`error: ...` on stderr, or 130 after Ctrl-C, which prints what was measured before it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sps import cpu_name

from mario_envpool import _core, rom

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- claims -->\n", "<!-- /claims -->\n"
CORES = 2
PAIRS = 9
LEAST_PAIRS = 6  # of fewer values not even the range is a 95 % interval of the median
SECONDS = 4.0


class MissingPeerError(RuntimeError):
    """A peer is not installed; the message states what to install."""


@dataclass(frozen=True)
class Output:
    """What a command printed, the folder that it wrote to, and its seconds."""

    text: str
    folder: Path
    seconds: float

    def json(self) -> dict[str, Any]:
        """The last line."""
        found: dict[str, Any] = json.loads(self.text.splitlines()[-1])
        return found


Read = Callable[[Output], list[float]]


def steps(mode: str, threads: int) -> Read:
    """Reads the repeats of a row of sps.py's first table."""
    return lambda output: next(
        row["env_steps_per_s_each"]
        for row in output.json()["rows"]
        if (row["mode"], row["num_threads"]) == (mode, threads)
    )


def peer(output: Output) -> list[float]:
    """Reads the ratios to the only peer of sps.py.

    Raises:
        MissingPeerError: the peer is not installed.
    """
    found = output.json()
    if found["peers_missing"]:
        raise MissingPeerError(found["peers_missing"][0].partition("not measured, ")[2])
    each: list[float] = found["peers"][0]["ratio_each"]
    return each


def clear_rate(output: Output) -> list[float]:
    """Reads the mean clear rate of a campaign's policies, in percent."""
    rows = json.loads((output.folder / "campaign/table.json").read_text())["single"]
    rates = [row["clear_rate"] for row in rows if not row["argmax"]]
    return [100 * statistics.fmean(rates)]


@dataclass(frozen=True)
class Claim:
    """A figure of README.

    Attributes:
        name: its name for --only.
        what: what is measured; of a row of README's table the first column.
        unit: what follows the figure; "times" marks a ratio.
        command: README's command.
        flags: what is added to it; {folder} is a temporary folder.
        read: finds the measured values.
        minutes: the duration, roughly.
        words: other words of README with the figure, which is {} here.
        row: it is a row of README's table.
        default: it is measured without --all.
    """

    name: str
    what: str
    unit: str
    command: str
    flags: str
    read: Read
    minutes: float
    words: tuple[str, ...] = ()
    row: bool = True
    default: bool = True

    @property
    def is_ratio(self) -> bool:
        """Whether the figure can fail."""
        return self.unit == "times"

    def places(self) -> list[re.Pattern[str]]:
        """The places of README that have the figure, which is the group."""
        row = f"| {self.what} | {{}} {self.unit} | `{self.command}` |"
        texts = [row, *self.words] if self.row else self.words
        escaped = [r"\s+".join(map(re.escape, text.split())) for text in texts]
        return [re.compile(text.replace(r"\{\}", r"(\d[\d,.]*)")) for text in escaped]

    def shown(self, value: float) -> str:
        """A value as README writes it."""
        if self.unit.endswith("/s"):
            return f"{round(value, -2):,.0f}"
        return f"{value:.{int(self.is_ratio and value < 20)}f}"

    def argv(self, folder: Path, seconds: float, pairs: int) -> list[str]:
        """README's command with its flags; what it installs is left out."""
        words = shlex.split(self.command.rpartition("&& ")[2])
        if "sps.py" in self.command:
            words += ["--seconds", f"{seconds:g}", "--warmup", f"{seconds / 4:g}"]
        if "bench/solve.py" not in self.command and "bench/" in self.command:
            words += ["--pairs" if "--peers" in words else "--repeats", str(pairs)]
        words += self.flags.format(folder=folder).split()
        return [sys.executable, *words[1:]]


_SPS, _SOLVE = "python bench/sps.py", "python bench/solve.py"
_PEER = "--skip throughput parts --json"


def _peer_claim(name: str, what: str, words: str = "") -> Claim:
    first = "" if name == "pong" else "bench/peers.sh && "
    command = f"{first}{_SPS} --peers {name}"
    return Claim(name, what, "times", command, _PEER, peer, 2, (words,) * bool(words))


CLAIMS = (
    Claim(
        "one-core", "32 levels, random actions, one core", "steps/s",
        f"{_SPS} --mixed --num-threads 1", "--skip parts --json", steps("sync", 1), 1.5,
        ("One core plays {} steps a second",),
    ),
    Claim(
        "two-cores", "the same, two cores, asynchronous", "steps/s",
        f"{_SPS} --mixed", "--skip parts --json", steps("async", CORES), 3,
    ),
    _peer_claim(
        "gsm", "level 1-1, one core, against gym-super-mario-bros",
        "level 1-1 {} times as fast as gym-super-mario-bros",
    ),
    _peer_claim(
        "gsm-async", "two cores, against gym-super-mario-bros in `AsyncVectorEnv`"
    ),
    _peer_claim("turbo", "against env-supermariobrosnes-turbo-emu, one core"),
    _peer_claim("pong", "against EnvPool's Atari Pong"),
    Claim(
        "emulator", "the emulator alone, without pictures", "frames/s",
        "python bench/nes_fps.py", "--json",
        lambda output: output.json()["frames_per_s_each"]["no picture"], 0.5,
    ),
    Claim(
        "engine", "translated programs against our interpreter", "times",
        "python bench/nes_fps.py --engines", "--json",
        lambda output: output.json()["ratio_each"]["no picture"], 0.5,
        ("runs {} times as fast as our interpreter (`python bench/nes_fps.py "
         "--engines`)",), row=False,
    ),
    Claim(
        "planner", "a way to the flag in all 32 levels", "s",
        "python -m trainer.plan --levels all", "--shorten 0 --out {folder}",
        lambda output: [output.seconds], 1.5,
        ("in about {} s for all 32 levels",), row=False,
    ),
    Claim(
        "tiles", "level 1-1 solved from tiles", "s", _SOLVE, "--json -- --obs tiles",
        lambda output: output.json()["seconds"], 5,
        ("in {} s from *tiles*",), row=False, default=False,
    ),
    Claim(
        "pictures", "level 1-1 solved from pictures", "s", _SOLVE, "--json",
        lambda output: output.json()["seconds"], 8,
        ("solves level 1-1 in {} s from pictures",), row=False, default=False,
    ),
    Claim(
        "campaign", "episodes cleared after an hour of training", "%",
        "python -m trainer.campaign",
        "--levels all --max-seconds 3600 --seed 5 --run-dir {folder}/campaign",
        clear_rate, 65, ("these clear {} % of 3,200 episodes",), row=False,
        default=False,
    ),
)  # fmt: skip


def claimed(claim: Claim, text: str) -> str:
    """README's figure.

    Raises:
        ValueError: README lacks one of the places, or its figures differ.
    """
    found = [match[1] for place in claim.places() for match in place.finditer(text)]
    if len(found) != len(claim.places()) or len(set(found)) != 1:
        raise ValueError(f"README.md and bench/claims.py differ in {claim.name}")
    return found[0]


def interval(values: Iterable[float]) -> tuple[float, float]:
    """A 95 % interval of the median by order statistics; of few values the range."""
    ordered = sorted(values)
    count, left_out = len(ordered), 0
    outside = 2 / 2**count  # the probability that the median is outside
    while outside + 2 * math.comb(count, left_out + 1) / 2**count <= 0.05:
        left_out += 1
        outside += 2 * math.comb(count, left_out) / 2**count
    return ordered[left_out], ordered[-1 - left_out]


@dataclass(frozen=True)
class Result:
    """A measured claim, or why it has no values; `loop` is in million rounds/s."""

    claim: Claim
    figure: str
    values: Sequence[float] = ()
    loop: float = 0.0
    problem: str = ""

    def verdict(self) -> str:
        """Whether the claim holds; README's figure stands for all that it rounds."""
        if self.problem or not self.claim.is_ratio:
            return self.problem.partition(":")[0] or "shown"
        half = 0.5 / 10 ** len(self.figure.partition(".")[2])
        low, high = interval(self.values)
        figure = float(self.figure.replace(",", ""))
        if high < figure - half:
            return "no: less"
        return "no: more" if low > figure + half else "holds"

    def measured(self) -> str:
        """Median and interval."""
        if not self.values:
            return "-"
        text = self.claim.shown(statistics.median(self.values))
        low, high = (self.claim.shown(end) for end in interval(self.values))
        return f"{text} ({low} to {high})" if len(self.values) > 1 else text


def loop_rate() -> float:
    """Million rounds per second of a Python loop; the median of five times 0.2 M."""
    rates = []
    for _ in range(5):
        total, begin = 0, time.perf_counter()
        for number in range(200_000):
            total = (total * 5 + number) & 0xFFFF
        rates.append(0.2 / (time.perf_counter() - begin))
    return statistics.median(rates)


def execute(argv: Sequence[str], folder: Path) -> Output:
    """Runs a command, and ends all its processes if this one is interrupted.

    Raises:
        RuntimeError: it failed; the message is its last line.
    """
    begin = time.monotonic()
    process = subprocess.Popen(
        argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"WANDB_MODE": "disabled"},
    )  # fmt: skip
    try:
        said, errors = process.communicate()
    except BaseException:
        for wanted in (signal.SIGINT, signal.SIGKILL):
            try:
                os.killpg(process.pid, wanted)
                process.wait(timeout=10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        raise
    if process.returncode:
        lines = (errors.strip() or said.strip() or "no output").splitlines()
        raise RuntimeError(lines[-1])
    return Output(said, folder, time.monotonic() - begin)


def measure(claim: Claim, figure: str, seconds: float, pairs: int) -> Result:
    """Runs a claim's command."""
    with tempfile.TemporaryDirectory(prefix="mario-claims-") as name:
        before = loop_rate()
        try:
            values = claim.read(
                execute(claim.argv(Path(name), seconds, pairs), Path(name))
            )
        except MissingPeerError as missing:
            return Result(claim, figure, problem=f"skipped: {missing}")
        except (RuntimeError, OSError, ValueError, LookupError) as error:
            return Result(claim, figure, problem=f"failed: {error}")
        return Result(claim, figure, values, (before + loop_rate()) / 2)


def report(results: Sequence[Result]) -> Table:
    """Claims, measurements and verdicts."""
    table = Table("claim", "README", "measured (95 %)", "Python loop", "holds?")
    for result in results:
        claim = result.claim
        loop = f"{result.loop:.1f} M/s" * bool(result.loop)
        table.add_row(
            f"{claim.name}: {claim.what}", f"{result.figure} {claim.unit}",
            result.measured(), loop, result.verdict(),
        )  # fmt: skip
    return table


def machine(loop: float) -> str:
    """The sentence about this machine and its vector instructions."""
    paths = dict.fromkeys((_core.cpu_path(), _core.nes_cpu_path()))
    return (
        f"{_core.usable_cpus()} cores of {cpu_name()} ({', '.join(paths)}); "
        f"Python loop: {loop:.0f} M rounds/s."
    )


def markdown(about: str, figures: Mapping[str, str]) -> str:
    """README's table, with a sentence about the machine before it."""
    lines = [about, "", "| What | Measured | Command |", "|---|---|---|"]
    for claim in CLAIMS:
        if claim.row:
            figure = figures.get(claim.name)
            measured = f"{figure} {claim.unit}" if figure else "not measured"
            lines.append(f"| {claim.what} | {measured} | `{claim.command}` |")
    return "\n".join(lines) + "\n"


def rewritten(text: str, about: str, figures: Mapping[str, str]) -> str:
    """README with other figures, wherever they are, and another sentence.

    Raises:
        ValueError: the table lacks a figure, or README a mark.
    """
    if missing := [c.name for c in CLAIMS if c.row and c.name not in figures]:
        raise ValueError(f"--write changed nothing; not measured: {', '.join(missing)}")
    for claim in CLAIMS:
        for place in claim.places() if claim.name in figures else ():
            match = place.search(text)
            assert match is not None  # claimed() has found it
            text = text[: match.start(1)] + figures[claim.name] + text[match.end(1) :]
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise ValueError(f"README.md lacks {BEGIN.strip()} or {END.strip()}")
    return before + BEGIN + markdown(about, figures) + END + after


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    names = ", ".join(claim.name for claim in CLAIMS)
    add("--all", action="store_true", help="also the claims that take long")
    add("--only", nargs="+", metavar="NAME", help=f"measure these: {names}")
    add("--markdown", action="store_true", help="also print README's table")
    add("--write", action="store_true", help="replace README's table and figures")
    text = "of each run of sps.py (default: %(default)s)"
    add("--seconds", type=float, default=SECONDS, help=text)
    text = f"pairs or repeats, {LEAST_PAIRS} or more (default: %(default)s)"
    add("--pairs", type=int, default=PAIRS, help=text)
    return parser.parse_args(argv)


def chosen(arguments: argparse.Namespace) -> list[Claim]:
    """The claims to measure.

    Raises:
        ValueError: an option is wrong.
    """
    names = [claim.name for claim in CLAIMS]
    if unknown := set(arguments.only or ()) - set(names):
        raise ValueError(
            f"unknown claims: {', '.join(sorted(unknown))}; known: {', '.join(names)}"
        )
    if arguments.pairs < LEAST_PAIRS or not 0 < arguments.seconds < math.inf:
        raise ValueError(
            f"--pairs must be {LEAST_PAIRS} or more and --seconds positive, got "
            f"{arguments.pairs} and {arguments.seconds:g}"
        )
    if arguments.only:
        return [claim for claim in CLAIMS if claim.name in arguments.only]
    return [claim for claim in CLAIMS if claim.default or arguments.all]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    arguments = parse_arguments(argv)
    results: list[Result] = []
    status = 0
    try:
        claims, text = chosen(arguments), README.read_text(encoding="utf-8")
        figures = {claim.name: claimed(claim, text) for claim in CLAIMS}
        rom.load()
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        for claim in claims:
            print(
                f"{claim.name}: {claim.command}, about {claim.minutes:g} minutes",
                file=sys.stderr,
            )
            figure = figures[claim.name]
            results.append(measure(claim, figure, arguments.seconds, arguments.pairs))
    except KeyboardInterrupt:
        status = 130
        text = f"interrupted after {len(results)} of {len(claims)} claims"
        print(text, file=sys.stderr)
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    if results:
        console.print(report(results))
    for result in results:
        if result.problem:
            print(f"{result.claim.name}: {result.problem}")
    found = {
        result.claim.name: result.claim.shown(statistics.median(result.values))
        for result in results
        if result.values
    }
    loops = [result.loop for result in results if result.loop]
    about = machine(statistics.median(loops)) if loops else ""
    if arguments.markdown:
        print(markdown(about, found), end="")
    if arguments.write and not status:
        try:
            README.write_text(rewritten(text, about, found), encoding="utf-8")
        except (ValueError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    bad = ("no", "failed")
    return status or int(any(one.verdict().startswith(bad) for one in results))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    sys.exit(main())
