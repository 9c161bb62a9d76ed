"""Soak test of the pool: does it stay correct, with constant memory, for a long time?

    python bench/soak.py                   10 minutes on all cores
    python bench/soak.py --minutes 0.1     the short version for continuous integration
    python bench/soak.py --frames 1e8      until this many frames have been played
    python bench/soak.py --frames 1e8 --rerun-engine interpreter
                                           translated against interpreted programs

An asynchronous pool with a thread for each core plays random levels with random
buttons. The action of an environment's n-th step depends only on the environment and n,
so its stream of results must not depend on threads, batches or timing. Afterwards a
synchronous pool with one thread gives each environment the same actions, and every
stream must be equal, with either engine. The test fails (exit status 1) if a stream
differs, a step is lost, memory grows, or a `recv` takes longer than a minute.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
import zlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from peers import workload

import mario_envpool

# A stream's hash is recorded every NOTE_EVERY results of an environment.
NOTE_EVERY = 64
# The default of the option frame_skip; frames that the task skips are extra.
FRAMES_PER_STEP = 4
# Resident memory may grow this much after the first tenth of the run.
GROWTH_BYTES = 16 * 2**20


@dataclass
class Stream:
    """All results of one environment so far, as a chain of hashes."""

    results: int = 0
    crc: int = 0
    # Four bytes each, so that the hashes of several days need little memory.
    notes: array[int] = field(default_factory=lambda: array("I"))

    def add(self, obs: np.ndarray, row: bytes) -> None:
        """Appends one result: all frames of `obs` if a hash is due, else the newest."""
        self.results += 1
        whole = self.results % NOTE_EVERY == 0
        self.crc = zlib.crc32(obs if whole else obs[-1], zlib.crc32(row, self.crc))
        if whole:
            self.notes.append(self.crc)


class Player:
    """Plays a pool with fixed actions and keeps the stream of each environment."""

    def __init__(self, arguments: argparse.Namespace, engine: str, **pool: int) -> None:
        """Builds the pool and requests the first observations."""
        count = arguments.num_envs
        self.pool: Any = mario_envpool.make(
            arguments.task, num_envs=count, seed=arguments.seed, engine=engine, **pool
        )
        self.streams = [Stream() for _ in range(count)]
        self._results = np.zeros(count, np.int64)
        self.steps = 0  # of all environments
        self._tape = workload.action_tape("right-biased", count, arguments.seed)
        self.pool.async_reset()

    def receive(self) -> np.ndarray:
        """Adds one batch to the streams.

        Returns:
            The ids of its environments.

        Raises:
            RuntimeError: an environment occurs twice in a batch.
        """
        faulthandler.dump_traceback_later(60, exit=True)
        obs, reward, terminated, truncated, info = self.pool.recv()
        faulthandler.cancel_dump_traceback_later()
        ids = info["env_id"]
        if len(set(ids.tolist())) != len(ids):
            raise RuntimeError(f"an environment occurs twice in a batch: {ids}")
        small = np.stack(
            [
                reward.astype(np.float32).view(np.uint32),
                terminated.astype(np.uint32),
                truncated.astype(np.uint32),
                info["elapsed_step"].astype(np.uint32),
                info["x_pos"].astype(np.uint32),
            ],
            axis=1,
        )
        for row, env in enumerate(ids.tolist()):
            self.streams[env].add(obs[row], small[row].tobytes())
        self._results[ids] += 1
        self.steps += len(ids)
        return np.asarray(ids)

    def send(self, ids: np.ndarray) -> None:
        """Sends each environment the action of its next step."""
        if len(ids) > 0:
            at = (self._results[ids] - 1) % workload.TAPE_STEPS
            self.pool.send(self._tape[at, ids], ids)


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def soak(arguments: argparse.Namespace) -> tuple[list[Stream], list[str]]:
    """The long run on all threads.

    Returns:
        The streams, and a line for each error.
    """
    batch = max(1, arguments.num_envs // 4)
    player = Player(
        arguments,
        arguments.engine,
        batch_size=batch,
        num_threads=arguments.num_threads,
    )
    start = time.monotonic()
    settled, most, told, done = 0, 0, 0.0, 0.0
    while done < 1:
        player.send(player.receive())
        elapsed = time.monotonic() - start
        steps = player.steps
        done = (
            FRAMES_PER_STEP * steps / arguments.frames
            if arguments.frames
            else elapsed / (arguments.minutes * 60)
        )
        if elapsed - told > min(10.0, arguments.minutes * 3) or done >= 1:
            told, now = elapsed, resident_bytes()
            if done > 0.1:
                settled = settled or now
                most = max(most, now)
            print(
                f"{elapsed:7.0f} s  {steps * FRAMES_PER_STEP:13,} frames  "
                f"{steps / elapsed:9,.0f} results/s  {now / 2**20:8.1f} MiB",
                flush=True,
            )
    player.pool.close()
    print(f"memory grew by {(most - settled) / 2**20:.1f} MiB after the first tenth")
    wrong = []
    if most - settled > GROWTH_BYTES:
        wrong.append(f"memory grew by {(most - settled) / 2**20:.1f} MiB")
    return player.streams, wrong


def compare(arguments: argparse.Namespace, streams: list[Stream]) -> list[str]:
    """Plays the same steps on one thread.

    Returns:
        A line for each environment whose stream differs, or that fell behind.
    """
    # One thread needs longer; at the time limit, compare the hashes so far.
    player = Player(
        arguments,
        arguments.rerun_engine,
        batch_size=arguments.num_envs,
        num_threads=1,
    )
    until = time.monotonic() + arguments.rerun_minutes * 60
    want = np.array([stream.results for stream in streams])
    ids = player.receive()
    while len(ids) > 0 and time.monotonic() < until:
        have = np.array([stream.results for stream in player.streams])
        ids = np.flatnonzero(have < want).astype(np.int32)
        player.send(ids)
        if len(ids) > 0:
            player.receive()
    player.pool.close()
    wrong, compared, total = [], 0, 0
    for env, (first, again) in enumerate(zip(streams, player.streams, strict=True)):
        notes = min(len(first.notes), len(again.notes))
        compared += again.results
        total += first.results
        if first.notes[:notes] != again.notes[:notes]:
            wrong.append(f"environment {env}: the stream differs on one thread")
        elif first.results == again.results and first.crc != again.crc:
            wrong.append(f"environment {env}: the end of the stream differs")
    print(
        f"compared {compared:,} of {total:,} results with one thread "
        f"({arguments.engine}, then {arguments.rerun_engine})"
    )
    if min(len(stream.notes) for stream in player.streams) == 0:
        wrong.append(
            f"too short: every environment needs at least {NOTE_EVERY} results; raise "
            "--minutes"
        )
    return wrong


def main() -> int:
    """Runs the test, compares, and prints the errors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, help="of the long run (default: 10)")
    add("--frames", type=float, default=0.0, help="of the long run, not --minutes")
    add(
        "--rerun-minutes",
        type=float,
        default=0.0,
        help="time limit of the run on one thread (default: three times --minutes)",
    )
    for name, run in (
        ("--engine", "long run"),
        ("--rerun-engine", "run on one thread"),
    ):
        add(
            name,
            default="translated",
            choices=["translated", "interpreter"],
            help=f"engine of the {run} (default: %(default)s)",
        )
    add("--task", default="SuperMarioBrosRandomStages-v0", help="default: %(default)s")
    add("--num-envs", type=int, default=64, help="default: %(default)s")
    add(
        "--num-threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="threads of the long run (default: one per core)",
    )
    add("--seed", type=int, default=0, help="default: %(default)s")
    arguments = parser.parse_args()
    arguments.rerun_minutes = arguments.rerun_minutes or 3 * arguments.minutes
    streams, wrong = soak(arguments)
    wrong += compare(arguments, streams)
    for line in wrong:
        print("WRONG:", line)
    if not wrong:
        print("passed: every stream is equal, memory does not grow")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
