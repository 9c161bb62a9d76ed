"""The phases of a campaign for the network that plays all levels.

merge         trains it to imitate the policies of the levels (learn/distil.py).
temperature   plays it with several temperatures and takes the best.
search        looks for corrections where it dies, in each level (corrections.py).
              For this it plays with a low temperature: it then dies in few places,
              so that what saves it there is a short table, which also holds in
              other episodes. Its file with the table of a level is a teacher.
learning      trains it further, to imitate itself with these tables. Corrections
              that are learned without its own new states, as those of a level's
              policy are, cost more than they bring (docs/lab-book.md).
comparison    plays it as before and as now, and keeps the better one.
"""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import torch

from trainer.config.schema import RunConfig
from trainer.config.tasks import game_levels
from trainer.machine.process import Interrupted
from trainer.models import checkpoint
from trainer.models.policy import with_temperature
from trainer.models.released import SUFFIX, read_policy, write_policy
from trainer.show.campaign import MERGED
from trainer.show.dashboard import make_display
from trainer.tuning import corrections, game_starts, specialists
from trainer.tuning.campaign_config import LEAST_SLICE
from trainer.tuning.progress import STARTS, Progress
from trainer.tuning.specialists import Slice
from trainer.tuning.workers import Failed

ONE = "one"
CORRECTED = "corrected"

# Time is limited, steps are not.
UNLIMITED: dict[str, Any] = {
    "max_steps": 2_000_000_000,
    "end_episodes": 0,
    "videos": False,
    "checkpoint_seconds": 30.0,
}
# Episodes per level for each temperature, and for the comparison; and seconds per
# level that are reserved for each of these.
_EPISODES, _CHOICE_SECONDS = 10, 1.0
# Bits of a number in large matrices. With 8 bits the one network cleared 5 % fewer
# starts with greedy actions.
_BITS = 16
# Share of the time of the merge before its schedules start to fall to 0. By then the
# teachers choose few actions, and the steps are as fast as they remain.
_MERGE_BEGINS = 0.4
# With more time the merge restarts with this share of its first rates, and after a
# search the network learns with that one.
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
        """With `corrected` it learns from itself with corrections."""


class OneNetwork:
    """Runs these phases."""

    def __init__(self, progress: Progress, merged: Merged) -> None:
        self._progress, self._merged = progress, merged
        self._config = progress.config
        self._run_dir = progress.folder / MERGED
        self._corrected = progress.folder / CORRECTED

    @property
    def model(self) -> str:
        """Name of the network."""
        return self._merged(self._progress.teachers()).model.name

    @property
    def _choice_seconds(self) -> float:
        """Seconds that a choice of the temperature takes."""
        return _CHOICE_SECONDS * len(self._progress.levels)

    def merge(self) -> None:
        """Trains one network for all levels to imitate the policies."""
        progress = self._progress
        if not self._config.merge_share or len(progress.levels) == 1:
            return
        shutil.rmtree(self._corrected, ignore_errors=True)  # of an earlier merge
        levels = progress.teachers()
        if missing := len(progress.levels) - len(levels):
            progress.board.log(f"{missing} levels have no policy to learn from")
        after = self._choice_seconds + self._config.seconds_to_correct_one
        again = _MERGE_AGAIN if progress.merge_restarts else 0.0
        self._train(self._merged(levels), after, again)

    def _train(self, config: RunConfig, after: float, restart: float) -> None:
        """Trains until some seconds before the end of the campaign's time."""
        progress = self._progress
        # After a kill or with more time, the run has trained for longer than it seems.
        trained = specialists.seconds_of(self._run_dir)
        progress.has_spent(progress.merge_began + trained)
        config = replace(
            config,
            run_dir=self._run_dir,
            stop_when_solved=False,
            dashboard="auto" if self._config.dashboard else "off",
            **UNLIMITED,
        )
        seconds = max(LEAST_SLICE, progress.left() - after)
        work = Slice(config, seconds, True, _MERGE_BEGINS, restart=restart)
        progress.workers.close()
        progress.board.close()  # the run has its own dashboard
        try:
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
        self._choose(self._progress.policy(ONE))

    def _choose(self, to: Path) -> bool:
        """Writes the network with the best temperature, if it has a checkpoint."""
        progress = self._progress
        if not checkpoint.list_files(self._run_dir):
            return False
        task = (
            ONE, specialists.choose, self._run_dir, to,
            ",".join(progress.teachers()), _EPISODES, self._config.seed, _BITS,
            self.model,
        )  # fmt: skip
        for _, result in progress.do([task], "choosing a temperature"):
            progress.board.log(
                f"one network: mean clear rate {result['clear_rate']:.0%} with "
                f"temperature {result['temperature']:g}"
            )
        return to.exists()

    # -- correction ----------------------------------------------------------------

    def search(self) -> None:
        """Searches for corrections in each level."""
        progress, config = self._progress, self._config
        path = progress.policy(ONE)
        if not config.seconds_to_correct_one or not path.exists():
            return
        levels, folder = progress.teachers(), self._corrected
        folder.mkdir(exist_ok=True)
        # What an interrupted search found remains.
        left = [n for n in levels if not (folder / f"{n}{SUFFIX}").exists()]
        seconds = 2 * _SEARCH * progress.left() * progress.jobs / len(levels)
        starts = progress.folder / STARTS
        tasks: list[tuple[Any, ...]] = [
            (n, search, path, folder / f"{n}{SUFFIX}", n, seconds, config.seed,
             self.model, starts)
            for n in left
        ]  # fmt: skip
        if set(game_levels(config.task)) <= set(levels):
            how = (path, folder / STARTS, config.seed, self.model)
            tasks.insert(0, ("whole game", game_starts.collect, *how))
        found = dict(progress.do(tasks, "searching where the one network dies"))
        found.pop("whole game", None)
        if None in found.values():
            progress.board.log("only a network on tiles without memory is corrected")
        elif found:
            progress.board.log(
                f"one network: {sum(found.values())} corrected actions in "
                f"{sum(count > 0 for count in found.values())} levels"
            )
        # The time of the run, before that of its further training.
        trained = specialists.seconds_of(self._run_dir)
        progress.merge_began = progress.elapsed() - trained

    def learn(self) -> None:
        """Trains the network to imitate itself with the corrections."""
        levels = self._progress.teachers()
        if all((self._corrected / f"{n}{SUFFIX}").exists() for n in levels):
            after = 2 * self._choice_seconds
            self._train(self._merged(levels, corrected=True), after, _LEARN)

    def compare(self) -> None:
        """Keeps the better one of the network before and after the corrections."""
        progress, new = self._progress, self._corrected / f"{ONE}{SUFFIX}"
        if not self._corrected.is_dir() or not self._choose(new):
            return
        old, starts = progress.policy(ONE), progress.folder / STARTS
        tasks = [
            (n, compare, old, new, n, _EPISODES, self._config.seed, self.model, starts)
            for n in progress.teachers()
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


# -- tasks of worker processes ---------------------------------------------------


def search(
    path: Path,
    to: Path,
    level: str,
    seconds: float,
    seed: int,
    model: str,
    starts: Path,
) -> int | None:
    """Writes a policy with a low temperature and its corrections of a level.

    `starts` is a folder of `game_starts.collect`: half of the episodes begin there.

    Returns:
        The number of corrected actions; None if the policy cannot be corrected
        (`corrections.correct`), and nothing is written.
    """
    stored = read_policy(path, torch.device("cpu"))
    cold = to.with_suffix(".part" + SUFFIX)
    try:
        weights = with_temperature(stored.weights, _COLD)
        write_policy(cold, stored._replace(weights=weights))
        in_game = game_starts.read(starts, level)
        found = corrections.open_policy(cold, seed, model, in_game)
        if found is None:
            return None
        found.search(level, time.monotonic() + seconds)
        return found.save_table(to)
    finally:
        cold.unlink(missing_ok=True)


def compare(
    old: Path,
    new: Path,
    level: str,
    episodes: int,
    seed: int,
    model: str,
    starts: Path,
) -> tuple[float, float]:
    """Clear rates of two policies in a level, to choose one by.

    Returns:
        For each the mean of that from the level's own starts (`specialists.rates_of`)
        and that from `starts`, if there are any.
    """
    in_game = game_starts.read(starts, level)

    def rate(path: Path) -> float:
        own, _ = specialists.rates_of(path, level, episodes, seed, model, argmax=True)
        if not in_game:
            return own
        return (own + game_starts.clear_rate(path, level, in_game, seed, model)) / 2

    return rate(old), rate(new)
