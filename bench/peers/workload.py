"""The work every program of the comparison is given, and how it is asked for it.

A *runner* (`run_*.py`) is a process that measures one program. It reads one JSON
request a line from stdin and answers each with one JSON line on stdout, so that the
bench can interleave runs of several programs in one call. Every request builds the
program afresh, warms it up, measures it and closes it.

Runners of peers are started with the peers' own interpreters, so this file must not
know mario_envpool: it needs Python >= 3.11 and NumPy 1 or 2, nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

# The settings all Mario programs share: four frames a step, gray, 84x84 by area, the
# last four pictures.
FRAME_SKIP = 4
STACK = 4
SIZE = 84

# gym-super-mario-bros' three action sets; an action is an index into one of them.
RIGHT_ONLY: tuple[tuple[str, ...], ...] = (
    (),
    ("right",),
    ("right", "A"),
    ("right", "B"),
    ("right", "A", "B"),
)
SIMPLE = (*RIGHT_ONLY, ("A",), ("left",))
COMPLEX = (
    *SIMPLE,
    ("left", "A"),
    ("left", "B"),
    ("left", "A", "B"),
    ("down",),
    ("up",),
)
ACTION_SETS = {"right_only": RIGHT_ONLY, "simple": SIMPLE, "complex": COMPLEX}

# "right-biased": each action of SIMPLE is chosen this often (to the right in 85 of 100,
# jumping in 55, running in 60) and held for 1 to RIGHT_HOLD steps. Holding gets Mario
# over pipes and into enemies: he moves in half of the steps and dies after about 200,
# so scrolling, deaths and resets are all in the measurement.
RIGHT_BIASED = (0.05, 0.10, 0.15, 0.25, 0.35, 0.05, 0.05)
RIGHT_HOLD = 4

# `actions` -> the action set it draws from.
ACTIONS = {"right-biased": "simple", **{name: name for name in ACTION_SETS}}

# Steps after which a tape starts again; long enough for several episodes.
TAPE_STEPS = 4096


def action_tape(actions: str, num_envs: int, seed: int) -> np.ndarray:
    """Draws the actions of one run, each environment's by themselves.

    Drawing costs time that is not the program's, so it happens before the clock runs.

    Args:
        actions: "right-biased" (see above), or the name of an action set, from which an
            action is drawn uniformly at every step.
        num_envs: environments, each with its own column.
        seed: equal seeds give equal tapes, in every program.

    Returns:
        `(TAPE_STEPS, num_envs)` int32, indices into the action set.

    Raises:
        ValueError: `actions` is none of ACTIONS.
    """
    if actions not in ACTIONS:
        raise ValueError(f"actions={actions!r}; choose one of {', '.join(ACTIONS)}")
    size = len(ACTION_SETS[ACTIONS[actions]])
    rng = np.random.default_rng(seed)
    if actions != "right-biased":
        return rng.integers(0, size, (TAPE_STEPS, num_envs), dtype=np.int32)
    tape = np.empty((TAPE_STEPS, num_envs), np.int32)
    for env in range(num_envs):
        chosen = rng.choice(size, TAPE_STEPS, p=RIGHT_BIASED)
        held = rng.integers(1, RIGHT_HOLD + 1, TAPE_STEPS)
        tape[:, env] = np.repeat(chosen, held)[:TAPE_STEPS]
    return tape


@dataclass
class Request:
    """What one run is.

    Attributes:
        seconds: wall clock of the measured part.
        warmup: seconds of the same work before it.
        cores: CPU cores the process may use; empty means all it was started with.
        num_envs: environments.
        num_threads: worker threads (or processes) of the program.
        batch_size: environments a `recv` waits for; 0 means all (synchronous).
        task: the environment's id, in the program's own words; "" for its default.
        actions: see `action_tape`.
        seed: of the actions and of the environments.
        rom: a ROM file, for programs that need one.
        options: further keyword arguments for the program's constructor.
    """

    seconds: float = 2.0
    warmup: float = 0.5
    cores: list[int] = field(default_factory=list)
    num_envs: int = 1
    num_threads: int = 1
    batch_size: int = 0
    task: str = ""
    actions: str = "right-biased"
    seed: int = 0
    rom: str = ""
    options: dict[str, Any] = field(default_factory=dict)


class Program(Protocol):
    """A vector of environments under measurement."""

    resets: int

    def step(self) -> int:
        """Does one batch of work.

        Returns:
            The number of environment steps in it. Rows that only deliver the first
            observation of an episode are no steps: they are counted in `resets`.
        """

    def close(self) -> None:
        """Frees everything."""


def _work(program: Program, seconds: float) -> tuple[int, float]:
    start = time.perf_counter()
    steps = 0
    while True:
        steps += program.step()
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return steps, elapsed


def _cpu_seconds() -> float:
    """CPU time so far of this process and of its child processes that still run."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:  # "pid (name) state parent ...": the name may hold spaces and brackets
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[1]) == os.getpid():
            ticks += int(fields[11]) + int(fields[12])  # user and system time
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def measure(make: Callable[[Request], Program], request: Request) -> dict[str, Any]:
    """Builds a program, warms it up, and measures it.

    Returns:
        `steps`, `resets`, `seconds` (wall), `cpu_seconds` (this process and its
        children), `construct_seconds` (to the first observation).
    """
    # Threads inherit the mask of the thread that makes them, so it is set first.
    os.sched_setaffinity(0, request.cores or _ALL_CORES)
    start = time.perf_counter()
    program = make(request)
    construct = time.perf_counter() - start
    try:
        if request.warmup > 0:
            _work(program, request.warmup)
        resets, cpu = program.resets, _cpu_seconds()
        steps, seconds = _work(program, request.seconds)
        return {
            "steps": steps,
            "resets": program.resets - resets,
            "seconds": seconds,
            "cpu_seconds": _cpu_seconds() - cpu,
            "construct_seconds": construct,
        }
    finally:
        program.close()


_ALL_CORES = os.sched_getaffinity(0)


def serve(make: Callable[[Request], Program]) -> None:
    """Answers requests until stdin closes. A request that fails is an answer, too."""
    # Whatever a library prints must not land between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"ready": sys.version.split()[0]}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = measure(make, Request(**json.loads(line)))
        except Exception as error:  # reported to the bench, which decides
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
