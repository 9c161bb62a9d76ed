"""The phases of a campaign for the network that plays all levels.

Its phases, which follow those of the levels (campaign.py):

    merge         trains it to imitate the policies of the levels (learn/distil.py).
    temperature   plays it with several temperatures and takes the best.
    search        looks for corrections where it dies, in each level (corrections.py).
                  For this it plays with a low temperature: it then dies in few places,
                  so that a short table saves it there, also in other episodes. The
                  network with the table of a level is the teacher of that level.
    learning      a copy of its run trains further, to imitate these teachers. Without
                  new states of its own, as levels' policies learn their corrections,
                  they cost it more than they bring (docs/lab-book.md).
    comparison    plays the network of both runs, and keeps the better one.
"""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import torch

from trainer.config.schema import RunConfig
from trainer.machine.files import copy
from trainer.machine.process import Interrupted
from trainer.models import checkpoint
from trainer.models.corrected import split
from trainer.models.policy import with_temperature
from trainer.models.released import SUFFIX, read_policy, write_policy
from trainer.show.campaign import CORRECTED, LEARNED, MERGED
from trainer.show.dashboard import make_display
from trainer.tuning import corrections, game_starts, specialists
from trainer.tuning.campaign_config import LEAST_SLICE
from trainer.tuning.progress import STARTS, Progress
from trainer.tuning.specialists import Slice
from trainer.tuning.workers import Failed

ONE = "one"

# Time is limited, steps are not.
UNLIMITED: dict[str, Any] = {
    "max_steps": 2_000_000_000,
    "end_episodes": 0,
    "videos": False,
    "checkpoint_seconds": 30.0,
}
# Episodes per level for each temperature, and for the comparison. Seconds per level
# that are reserved for each of these; more if the first one needs more.
_EPISODES, _CHOICE_SECONDS = 10, 1.0
# Bits of a number in large matrices. With 8 bits the one network cleared 5 % fewer
# starts with greedy actions.
_BITS = 16
# Share of the time of the merge before its schedules start to fall to 0. By then the
# teachers choose few actions, and the steps are as fast as they remain.
_MERGE_BEGINS = 0.4
# Shares of the first rates: with which the merge restarts if it has more time, and the
# learning begins.
_MERGE_AGAIN, _LEARN = 0.15, 0.5
# In a search the network plays with this share of its temperature.
_COLD = 0.2
# Share of the time for the search; most levels need less than their part.
_SEARCH = 0.3


class Merged(Protocol):
    """Makes the run of the network, see `trainer.campaign`."""

    def __call__(
        self, teachers: Sequence[str], *, corrected: bool = False
    ) -> RunConfig:
        """The run with these levels; with `corrected` its teachers are itself."""


class OneNetwork:
    """Runs these phases."""

    def __init__(self, progress: Progress, merged: Merged) -> None:
        self._progress, self._merged = progress, merged
        self._config = progress.config
        self._run_dir = progress.folder / MERGED
        self._corrected = progress.folder / CORRECTED
        self._learned = progress.folder / LEARNED
        # Seconds that a choice of the temperature takes.
        self._choice_seconds = _CHOICE_SECONDS * len(progress.levels)

    @property
    def model(self) -> str:
        """Name of the network."""
        return self._merged(self._progress.teachers()).model.name

    def _seconds_to_correct(self) -> float:
        """Seconds for the correction; 0: there is none."""
        run = self._merged(self._progress.teachers())
        if run.model.memory is not None or not run.env.sees_tiles:
            return 0.0
        return self._config.seconds_to_correct_one(len(self._progress.levels))

    def merge(self) -> None:
        """Trains one network for all levels to imitate the policies."""
        progress = self._progress
        if not self._config.merge_share or len(progress.levels) == 1:
            return
        if self._corrected.exists():  # of an earlier merge
            shutil.rmtree(self._corrected)
        levels = progress.teachers()
        if missing := len(progress.levels) - len(levels):
            progress.board.log(f"{missing} levels have no policy to learn from")
        after = self._choice_seconds + self._seconds_to_correct()
        again = _MERGE_AGAIN if progress.merge_restarts else 0.0
        self._train(self._run_dir, partial(self._merged, levels), after, again)

    def _train(
        self,
        run_dir: Path,
        make: Callable[[], RunConfig],
        after: float,
        restart: float,
    ) -> None:
        """Trains until some seconds before the end of the campaign's time."""
        progress = self._progress
        # After a kill or with more time, the run has trained for longer than it seems.
        progress.has_spent(progress.merge_began + specialists.seconds_of(run_dir))
        seconds = max(LEAST_SLICE, progress.left() - after)
        progress.workers.close()
        progress.board.close()  # the run has its own dashboard
        try:
            config = replace(
                make(),
                run_dir=run_dir,
                stop_when_solved=False,
                dashboard="auto" if self._config.dashboard else "off",
                **UNLIMITED,
            )
            work = Slice(config, seconds, True, _MERGE_BEGINS, restart=restart)
            ended_by = specialists.train(work, lambda: make_display(config.dashboard))
        except (ValueError, RuntimeError, OSError) as error:
            # The policies of the levels do not depend on this run.
            failed = Failed(f"{type(error).__name__}: {error}", traceback.format_exc())
            progress.log_failure("one network", failed)
            return
        finally:
            progress.board.open()
        if ended_by["signal"]:
            raise Interrupted(int(ended_by["signal"]))

    def choose(self) -> None:
        """Chooses the temperature of the network, at the end of its training."""
        began = time.monotonic()
        self._choose(self._run_dir, self._progress.policy(ONE))
        took = time.monotonic() - began
        self._choice_seconds = max(self._choice_seconds, took)

    def _choose(self, run_dir: Path, to: Path) -> bool:
        """Writes the network of a run with the best temperature, if it has one."""
        progress = self._progress
        if not checkpoint.list_files(run_dir):
            return False
        task = (
            ONE, specialists.choose, run_dir, to,
            ",".join(progress.teachers()), _EPISODES, self._config.seed, _BITS,
            self.model,
        )  # fmt: skip
        for _, result in progress.do([task], "choosing a temperature"):
            progress.board.log(
                f"one network: mean clear rate {result['clear_rate']:.0%} with "
                f"temperature {result['temperature']:g}"
            )
            return True
        return False

    # -- correction ----------------------------------------------------------------

    def _teacher(self, name: str) -> Path:
        """File of the network with the corrections of a level."""
        return self._corrected / f"{name}{SUFFIX}"

    def search(self) -> None:
        """Searches for corrections in each level."""
        progress, config = self._progress, self._config
        one, starts = progress.policy(ONE), progress.folder / STARTS
        if not one.exists() or not self._seconds_to_correct():
            return
        self._corrected.mkdir(exist_ok=True)
        cold = self._teacher("cold")
        try:
            _write_cold(one, cold)
        except ValueError as error:
            progress.board.log(f"the one network is not corrected: {error}")
            return
        levels, model = progress.teachers(), self.model
        # What an interrupted search found remains.
        left = [name for name in levels if not self._teacher(name).exists()]
        seconds = 2 * _SEARCH * progress.left() * progress.jobs / len(levels)
        tasks: list[tuple[Any, ...]] = [
            (name, search, cold, self._teacher(name), name, seconds, config.seed,
             model, starts)
            for name in left
        ]  # fmt: skip
        if left and progress.has_whole_game():
            own = (one, self._corrected / STARTS, config.seed, model)
            tasks.insert(0, ("whole game", game_starts.collect, *own))
        for _ in progress.do(tasks, "searching where the one network dies"):
            progress.save()
        for name in left:
            if not self._teacher(name).exists():  # its search failed
                copy(cold, self._teacher(name))
        counts = [_corrections(self._teacher(name)) for name in levels]
        progress.board.log(
            f"one network: {sum(counts)} corrections in {sum(map(bool, counts))} levels"
        )
        if not any(counts):
            shutil.rmtree(self._corrected)
        # As if the run had trained without a pause, for the clock of its learning.
        trained = specialists.seconds_of(self._run_dir)
        progress.merge_began = progress.elapsed() - trained

    def learn(self) -> None:
        """Trains the network to imitate itself with the corrections."""
        if not self._teacher("cold").exists():
            return
        if not self._learned.exists():
            part = self._corrected / "part"
            shutil.rmtree(part, ignore_errors=True)  # of an interruption
            shutil.copytree(self._run_dir, part).rename(self._learned)
        make = partial(self._merged, self._progress.teachers(), corrected=True)
        restart = 0.0 if self._has_learned() else _LEARN
        self._train(self._learned, make, 2 * self._choice_seconds, restart)

    def _has_learned(self) -> bool:
        """Whether there is a checkpoint of the learning."""
        if not self._learned.is_dir():
            return False
        before, now = map(specialists.seconds_of, (self._run_dir, self._learned))
        return now > before

    def compare(self) -> None:
        """Keeps the better one of the network before and after the corrections."""
        progress, new = self._progress, self._teacher(ONE)
        if not self._has_learned() or not self._choose(self._learned, new):
            return
        old, starts = progress.policy(ONE), progress.folder / STARTS
        seed, model = self._config.seed, self.model
        tasks = [
            (name, compare, old, new, name, _EPISODES, seed, model, starts)
            for name in progress.teachers()
        ]
        rates = dict(progress.do(tasks, "comparing the one network")).values()
        if not rates:
            return
        before, now = (fmean(column) for column in zip(*rates, strict=True))
        better = now > before
        progress.board.log(
            f"one network corrected: mean clear rate from {before:.1%} to {now:.1%}"
            f"{'' if better else '; it stays as it was'}"
        )
        if better:
            new.replace(old)


def _write_cold(path: Path, to: Path) -> None:
    """Writes a policy with a lower temperature; ValueError if it can have none."""
    stored = read_policy(path, torch.device("cpu"))
    weights = with_temperature(stored.weights, _COLD)
    write_policy(to, stored._replace(weights=weights), bits=_BITS)


def _corrections(path: Path) -> int:
    """Number of observations in the table of a policy's file."""
    _, table = split(read_policy(path, torch.device("cpu")).weights)
    return 0 if table is None else len(table.obs)


# -- tasks of worker processes ---------------------------------------------------


def search(
    path: Path,
    to: Path,
    level: str,
    seconds: float,
    seed: int,
    model: str,
    starts: Path,
) -> None:
    """Writes a policy with its corrections of a level; nothing if it can have none.

    `starts` is a folder of `game_starts.collect`: half of the episodes begin there.
    """
    in_game = game_starts.read(starts, level)
    found = corrections.open_policy(path, seed, model, in_game)
    if found is not None:
        found.search(level, time.monotonic() + seconds)
        found.save_table(to)


def compare(
    old: Path,
    new: Path,
    level: str,
    episodes: int,
    seed: int,
    model: str,
    starts: Path,
) -> tuple[float, float]:
    """Rates of two policies in a level, to choose one by, see `play_both`."""
    how = (level, episodes, seed, model, game_starts.read(starts, level))
    return corrections.play_both(old, *how)[0], corrections.play_both(new, *how)[0]
