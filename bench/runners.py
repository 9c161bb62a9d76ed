"""Runs programs in separate processes, in turns, and summarizes their measurements.

This module locates the runners and the peers' interpreters; tables and flags are
elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from peers.workload import Request

_PEERS = Path(__file__).resolve().parent / "peers"


class RunnerError(RuntimeError):
    """A runner cannot be started, or a run failed."""


def peers_root() -> Path:
    """The folder of the peers' virtual environments, as in bench/peers.sh."""
    chosen = os.environ.get("MARIO_BENCH_PEERS")
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "mario-envpool" / "peers"


def peer_python(name: str) -> Path:
    """The interpreter of a peer.

    Raises:
        RunnerError: the peer's virtual environment does not exist.
    """
    python = peers_root() / name / "bin" / "python"
    if not python.exists():
        raise RunnerError(f"{python} does not exist; create it with bench/peers.sh")
    return python


@dataclass(frozen=True)
class Run:
    """One measured run; `cpu_s` counts all threads and child processes."""

    steps: int
    resets: int
    wall_s: float
    cpu_s: float
    construct_s: float

    @property
    def steps_per_s(self) -> float:
        """Environment steps per second of wall clock."""
        return self.steps / self.wall_s

    @property
    def steps_per_cpu_s(self) -> float:
        """Environment steps per second of CPU time, which other load affects least."""
        return self.steps / self.cpu_s


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of some repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarizes at least one value."""
        return cls(statistics.median(values), min(values), max(values))


class Runner:
    """A `bench/peers/run_*.py` process; each `run` builds its program again."""

    def __init__(
        self,
        name: str,
        script: str,
        python: str | Path,
        *arguments: str,
        tree: Path | None = None,
    ) -> None:
        """Starts the process.

        Args:
            name: name of the program, for messages.
            script: a script of bench/peers.
            python: the interpreter.
            arguments: arguments of the script.
            tree: first folder to import modules from; None: the installed modules.

        Raises:
            RunnerError: the process cannot start, or its program cannot be imported.
        """
        self.name = name
        command = [str(python), str(_PEERS / script), *arguments]
        # One thread in every numeric library, because the bench measures the pools.
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        if str(python) != sys.executable:
            env.pop("PYTHONPATH", None)  # its modules are not the peer's
        if tree is not None:
            env["PYTHONPATH"] = str(tree)
        # A file, because a library with many warnings would fill a pipe and block.
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in close)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=env,
        )
        try:
            self._answer()
        except RunnerError:
            self.close()
            raise

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._said.seek(0)
            said = self._said.read().strip().splitlines()
            raise RunnerError(said[-1] if said else "the process ended without output")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RunnerError(answer["error"])
        return answer

    def run(self, request: Request) -> Run:
        """Measures one run.

        Raises:
            RunnerError: the program failed; the message is the program's own.
        """
        assert self._process.stdin is not None
        # On a broken pipe the process has ended, and _answer raises its last output.
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(asdict(request)), file=self._process.stdin, flush=True)
        answer = self._answer()
        return Run(
            steps=answer["steps"],
            resets=answer["resets"],
            wall_s=answer["seconds"],
            cpu_s=answer["cpu_seconds"],
            construct_s=answer["construct_seconds"],
        )

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._said.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Runner:
        """Returns the runner, which has already started."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the process."""
        self.close()


def pool_runner(module: str, tree: Path | None = None) -> Runner:
    """A runner for a pool with EnvPool's interface, in this interpreter."""
    return Runner(module, "run_pool.py", sys.executable, module, tree=tree)


def interleave(
    programs: Mapping[str, tuple[Runner, Request]], rounds: int, tell: Any = None
) -> dict[str, list[Run]]:
    """Runs A B C A B C ..., so that slow drifts of the machine affect all alike.

    Args:
        programs: runner and request of each program, by name.
        rounds: number of rounds.
        tell: called with a line of progress before each run.

    Returns:
        The runs of each program, in order; entry i is from round i.

    Raises:
        RunnerError: a run failed; the message starts with the program's name.
    """
    runs: dict[str, list[Run]] = {name: [] for name in programs}
    for turn in range(rounds):
        for name, (runner, request) in programs.items():
            if tell is not None:
                tell(f"{name}, run {turn + 1} of {rounds}")
            try:
                runs[name].append(runner.run(request))
            except RunnerError as error:
                raise RunnerError(f"{name}: {error}") from error
    return runs


def rates(runs: Iterable[Run]) -> Spread:
    """Environment steps per second of wall clock."""
    return Spread.of([run.steps_per_s for run in runs])


def cpu_rates(runs: Iterable[Run]) -> Spread:
    """Environment steps per second of CPU time."""
    return Spread.of([run.steps_per_cpu_s for run in runs])


def ratios(ours: Sequence[Run], theirs: Sequence[Run]) -> Spread:
    """Ours over theirs, round by round, in steps per second of wall clock."""
    return Spread.of(ratio_each(ours, theirs))


def ratio_each(ours: Sequence[Run], theirs: Sequence[Run]) -> list[float]:
    """The ratio of each round, in steps per second of wall clock."""
    pairs = zip(ours, theirs, strict=True)
    return [a.steps_per_s / b.steps_per_s for a, b in pairs]


def cpu_ratios(ours: Sequence[Run], theirs: Sequence[Run]) -> Spread:
    """Ours over theirs, round by round, in steps per second of CPU time."""
    pairs = zip(ours, theirs, strict=True)
    return Spread.of([a.steps_per_cpu_s / b.steps_per_cpu_s for a, b in pairs])
