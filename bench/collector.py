"""Rows per second that the collecting thread can process, without game and network.

    python bench/collector.py                        256 rows a batch, as with a GPU
    python bench/collector.py --rows 32              as on a CPU
    python bench/collector.py --mode async --json    async, and JSON as the last line
    python bench/collector.py --cases plain --profile    functions by time

With a GPU the bottleneck of a run is neither emulation nor the network, but the one
thread that receives, sends and stores. In this bench the trainer's own collector,
store, record of episodes and explorer work with a pool and a policy that cost nothing:
batches and decisions are made before the clock starts. The rows are from episodes that
a mario_envpool pool has played, with their levels, positions, deaths and snapshots.
They are recombined at random, so environments are in all parts of their episodes. The
game clocks are shifted a little, so that an archive always finds better snapshots, as
in a run.

    plain      one level from its start
    frontier   several levels, --starts frontier: cells, snapshots, the archive
    replay     half of each training batch is from replay, which keeps slots
    memory     a network with a GRU of 256
    films      every decision is recorded, as with --videos

Cases take turns, each --repeats times for --seconds. One thread does all the work, and
the bench measures its CPU time, so other programs have little effect. The work of
learning between two batches of unrolls (taking slots, replay) is not timed.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mario_envpool
from trainer.config.schema import ExploreConfig
from trainer.explore.explorer import Explorer
from trainer.film.record import Recorder
from trainer.machine.timings import Timings
from trainer.rollout.collector import ActorOutput, Collector
from trainer.rollout.episodes import OpenEpisodes
from trainer.rollout.finished import FinishedEpisodes
from trainer.rollout.replay import PrioritizedReplay
from trainer.rollout.store import Rollouts, decisions

CASES = ("plain", "frontier", "replay", "memory", "films")
LEVELS = tuple(f"{world}-{stage}" for world in (1, 2) for stage in (1, 2, 3, 4))
OBS_SHAPE = (4, 84, 84)
NUM_ACTIONS, GRU, UNROLL = 7, 256, 32
# Groups of environments, as in the presets for CPUs and GPUs.
GROUPS = {"sync": 2, "async": 4}
# Size of the pool that plays in advance.
_PLAYERS, _STEPS, _FEWEST_STEPS, _MOST_STEPS = 48, 500, 16, 400
_BIASED = np.array([5, 10, 15, 25, 35, 5, 5]) / 100  # of SIMPLE_MOVEMENT
# Batches before they repeat, and how many of these have separate pixels.
_PERIOD, _PICTURES = 512, 8
_CLOCK_JITTER = 20

Columns = dict[str, npt.NDArray[Any]]
Ids = npt.NDArray[np.int32]


class Played:
    """Episodes that a pool has played: rows, positions of episodes, and snapshots."""

    def __init__(self, levels: Sequence[str], seed: int) -> None:
        """Plays the episodes.

        Args:
            levels: levels to play, each equally often.
            seed: seed of the pool and of the actions.
        """
        rng = np.random.default_rng(seed)
        pool: Any = mario_envpool.make(
            "SuperMarioBrosRandomStages-v0",
            env_type="gymnasium",
            num_envs=_PLAYERS,
            stages=list(levels),
            max_episode_steps=_MOST_STEPS,
            seed=seed,
        )
        self.ids = np.asarray(pool.all_env_ids, np.int32)
        pool.send(np.zeros(_PLAYERS, np.int32), self.ids)
        rows: list[Columns] = []
        for step in range(_STEPS):
            _, reward, terminated, truncated, info = pool.recv()
            row = {name: x for name, x in info.items() if isinstance(x, np.ndarray)}
            results = {"reward": reward, "terminated": terminated}
            rows.append(row | results | {"truncated": truncated})
            if step == _STEPS // 3:
                alive = self.ids[~(terminated | truncated)]
                self.snapshots = pool.snapshot(alive)
                # From now on, half of the episodes begin from these snapshots.
                weights = np.full(len(levels), len(alive) / len(levels))
                pool.set_starts(np.r_[weights, np.ones(len(alive))], self.snapshots)
            pool.send(rng.choice(7, _PLAYERS, p=_BIASED).astype(np.int32), self.ids)
        pool.recv()
        self.num_stages = len(levels)
        pool.close()
        # All rows of the first environment, then those of the next one.
        self.columns = {
            name: np.stack([row[name] for row in rows], 1).reshape(-1, *x.shape[1:])
            for name, x in rows[0].items()
        }
        first = np.flatnonzero(self.columns["elapsed_step"] == 0)
        ends = self.columns["terminated"] | self.columns["truncated"]
        last = np.flatnonzero(ends)
        #: First and last rows of whole episodes; few are shorter in a run.
        self.episodes = [
            (begin, int(last[np.searchsorted(last, begin)]))
            for begin, after in zip(
                first[:-1].tolist(), first[1:].tolist(), strict=True
            )
            if ends[begin + _FEWEST_STEPS : after].any()
        ]


class Prepared:
    """A pool that returns batches made in advance, again and again."""

    def __init__(self, played: Played, num_envs: int, rows: int, mode: str) -> None:
        """Makes the batches.

        Args:
            played: the source of the episodes.
            num_envs: environments.
            rows: rows of a batch.
            mode: sync: fixed groups in turn; async: environments in order of readiness.
        """
        self.all_env_ids = np.arange(num_envs, dtype=np.int32)
        self.num_stages = played.num_stages
        self.config = {"max_episode_steps": _MOST_STEPS}
        self.action_space = argparse.Namespace(n=NUM_ACTIONS)
        self._snapshots = played.snapshots
        rng = np.random.default_rng(1)
        order = _in_turn if mode == "sync" else _when_ready
        schedule = order(num_envs, rows, rng)
        picked = self._episodes(played, schedule, num_envs, rng)
        self._batches = deque(
            self._batch(played.columns, ids, *about)
            for ids, *about in zip(schedule, *picked, strict=True)
        )
        obs = rng.integers(0, 256, (_PICTURES, rows, *OBS_SHAPE), np.uint8)
        self._pictures = deque(obs)

    @staticmethod
    def _episodes(
        played: Played,
        schedule: npt.NDArray[np.int32],
        num_envs: int,
        rng: np.random.Generator,
    ) -> tuple[npt.NDArray[Any], ...]:
        """For each row of a schedule: the played row, its clock, whether truncated."""
        source, clock = np.zeros((2, *schedule.shape), np.int64)
        cut = np.zeros(schedule.shape, bool)
        for env in range(num_envs):
            where = np.nonzero(schedule == env)
            count = len(where[0])
            rows: list[npt.NDArray[np.int64]] = []
            jitter: list[int] = []
            while len(jitter) < count:
                begin, end = played.episodes[rng.integers(len(played.episodes))]
                rows.append(np.arange(begin, end + 1)[: count - len(jitter)])
                jitter += [int(rng.integers(_CLOCK_JITTER))] * len(rows[-1])
            ended = np.zeros(count, bool)
            ended[-1] = True
            turn = int(rng.integers(count))
            parts = (np.concatenate(rows), np.array(jitter), ended)
            for to, part in zip((source, clock, cut), parts, strict=True):
                to[where] = np.roll(part, turn)
        return source, clock, cut

    @staticmethod
    def _batch(
        columns: Columns,
        ids: Ids,
        source: npt.NDArray[np.int64],
        clock: npt.NDArray[np.int64],
        cut: npt.NDArray[np.bool_],
    ) -> tuple[Any, ...]:
        """The results of recv after the observations."""
        info = {name: column[source] for name, column in columns.items()}
        reward, terminated = info.pop("reward"), info.pop("terminated")
        truncated = info.pop("truncated") | (cut & ~terminated)
        info["time"] += clock.astype(info["time"].dtype)
        return reward, terminated, truncated, info | {"env_id": ids}

    def send(self, action: Ids, env_id: Ids) -> None:
        """Does nothing."""

    def async_reset(self) -> None:
        """Does nothing."""

    def recv(self) -> tuple[Any, ...]:
        """The next batch."""
        self._batches.rotate(-1)
        self._pictures.rotate(-1)
        return self._pictures[0], *self._batches[0]

    def snapshot(self, env_id: Ids) -> npt.NDArray[np.uint8]:
        """Played snapshots, one for each environment."""
        chosen: npt.NDArray[np.uint8] = self._snapshots[env_id % len(self._snapshots)]
        return chosen

    def set_starts(self, weights: Any, snapshots: Any = None) -> None:
        """Does nothing."""


def _in_turn(
    num_envs: int, rows: int, rng: np.random.Generator
) -> npt.NDArray[np.int32]:
    """(batches, rows) environments of fixed groups."""
    groups = np.arange(num_envs, dtype=np.int32).reshape(-1, rows)
    return np.tile(groups, (_PERIOD // len(groups), 1))


def _when_ready(
    num_envs: int, rows: int, rng: np.random.Generator
) -> npt.NDArray[np.int32]:
    """(batches, rows) environments in the order in which they would be ready.

    Step times are random, so some environments fall behind others.
    """
    ready = rng.gamma(4.0, size=num_envs)
    batches = []
    for _ in range(_PERIOD):
        first = np.argpartition(ready, rows)[:rows]
        batches.append(rng.permutation(first))
        ready[first] = ready[first].max() + rng.gamma(4.0, size=rows)
    return np.array(batches, np.int32)


class Decided:
    """A policy whose decisions were made in advance."""

    version = 0

    def __init__(self, rows: int, state_size: int) -> None:
        """Makes decisions for batches of some rows."""
        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(rows, NUM_ACTIONS, generator=generator)
        actions = torch.randint(NUM_ACTIONS, (rows,), generator=generator)
        state = torch.randn(rows, state_size, generator=generator)
        values = torch.randn(rows, generator=generator)
        records = decisions(actions, logits, values, torch.zeros(1, dtype=torch.int64))
        self._output = ActorOutput(actions, logits, values, state, records)

    def __call__(self, *inputs: Tensor) -> ActorOutput:
        """The decisions."""
        return self._output

    def values(self, *inputs: Tensor) -> Tensor:
        """The critic's values."""
        return self._output.values


class Case:
    """A collector of one case, with the learner's handling of its slots."""

    def __init__(self, name: str, rows: int, mode: str) -> None:
        """Builds it and warms it up.

        Args:
            name: one of CASES.
            rows: rows of a batch.
            mode: sync or async.
        """
        levels = LEVELS if name == "frontier" else LEVELS[:1]
        num_envs = rows * GROUPS[mode]
        pool = Prepared(Played(levels, seed=1), num_envs, rows, mode)
        self.unrolls = num_envs if mode == "sync" else rows
        slots = num_envs + rows + 2 * self.unrolls
        self._replay: PrioritizedReplay | None = None
        if name == "replay":
            self._replay = PrioritizedReplay(
                2 * self.unrolls,
                slots + 2 * self.unrolls,
                alpha=0.6,
                device=torch.device("cpu"),
                generator=torch.Generator(),
            )
            slots += 2 * self.unrolls
        state_size = GRU if name == "memory" else 0
        self.store = Rollouts(
            num_envs=num_envs,
            num_slots=slots,
            unroll=UNROLL,
            obs_shape=OBS_SHAPE,
            num_actions=NUM_ACTIONS,
            device=torch.device("cpu"),
            stack_num=OBS_SHAPE[0],
            state_size=state_size,
        )
        finished = FinishedEpisodes(levels=levels)
        explorer = recorder = None
        if name == "frontier":
            explore = ExploreConfig(starts="frontier")
            explorer = Explorer(
                pool, explore, levels=levels, rates=finished.clear_rates
            )
        if name == "films":
            recorder = Recorder(pool, lambda recording: None, lambda episode: False)
        self._collector = Collector(
            pool,
            self.store,
            groups=GROUPS[mode],
            asynchronous=mode == "async",
            episodes=OpenEpisodes(num_envs, levels=levels, num_stages=pool.num_stages),
            finished=finished,
            timings=Timings(),
            recorder=recorder,
            explorer=explorer,
        )
        self._actor: Any = Decided(rows, state_size)
        self._rows = rows * -(-self.unrolls * UNROLL // rows)
        self._collector.start()
        # Two periods: after them the archive is full and all memory has been touched.
        for _ in range(2 * _PERIOD * rows // self._rows):
            self.collect()

    def collect(self) -> tuple[int, float]:
        """Collects unrolls; returns the number of the pool's batches, and seconds."""
        batches = 0

        def more() -> bool:
            nonlocal batches
            batches += 1  # in async mode the number varies
            return True

        missing = self.unrolls - self.store.num_full
        start = time.thread_time()
        self._collector.collect(missing, lambda: self._actor, more)
        seconds = time.thread_time() - start
        self._learn(self.store.take(self.unrolls))
        return batches, seconds

    def _learn(self, slots: list[int]) -> None:
        """Handles slots as the learner does, without learning."""
        if self._replay is not None:
            if len(self._replay):
                drawn = self._replay.sample(len(slots), 0.4)
                self._replay.update(drawn.slots, torch.rand(len(slots)))
            slots = self._replay.add(slots, torch.rand(len(slots)))
        self.store.release(slots)

    def measure(self, seconds: float) -> float:
        """Mean microseconds of a batch, over some seconds of collecting."""
        total, spent = 0, 0.0
        while spent < seconds:
            batches, took = self.collect()
            total, spent = total + batches, spent + took
        return 1e6 * spent / total


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--cases", nargs="+", choices=CASES, default=CASES)
    add("--mode", choices=tuple(GROUPS), default="sync", help="mode of the pool")
    add("--rows", type=int, default=256, help="rows per batch (default: %(default)s)")
    add("--seconds", type=float, default=1.0, help="duration of each turn")
    add("--repeats", type=int, default=5, help="turns of each case")
    add("--profile", action="store_true", help="list functions by time, without table")
    add("--json", action="store_true", help="print one JSON object as the last line")
    known = parser.parse_args(arguments)
    for name in ("rows", "repeats"):
        if getattr(known, name) < 1:
            parser.error(f"--{name} must be 1 or more")
    return known


def profile(case: Case, seconds: float) -> None:
    """Prints the functions that take the most time, without their callees."""
    profiler = cProfile.Profile()
    profiler.runcall(case.measure, seconds)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def table(times: dict[str, list[float]], rows: int) -> Table:
    """Rows per second of each case, and microseconds of a row and of a batch."""
    result = Table(title=f"collecting, {rows} rows a batch", box=SIMPLE)
    result.add_column("case")
    for column in ("rows/s", "best", "us/row", "us/batch", "best"):
        result.add_column(column, justify="right")
    for name, found in times.items():
        median, best = statistics.median(found), min(found)
        rates = (f"{1e6 * rows / us:,.0f}" for us in (median, best))
        result.add_row(
            name, *rates, f"{median / rows:.2f}", f"{median:,.0f}", f"{best:,.0f}"
        )
    return result


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(1)
    cases = {
        name: Case(name, arguments.rows, arguments.mode) for name in arguments.cases
    }
    if arguments.profile:
        for case in cases.values():
            profile(case, arguments.seconds)
        return
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(arguments.repeats):
        for name, case in cases.items():
            times[name].append(case.measure(arguments.seconds))
    Console().print(table(times, arguments.rows))
    if arguments.json:
        about = vars(arguments) | {"us_per_batch": times, "load": os.getloadavg()[0]}
        print(json.dumps(about))


if __name__ == "__main__":
    main()
