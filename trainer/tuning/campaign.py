"""A campaign: a policy for each level, and one network for all, in a given time.

    specialists   one run per level, one per core at a time. The levels take turns with
                  slices of equal length; a solved level leaves its time to the other
                  levels. A level whose clear rate no longer rises is begun again with
                  another seed. The learning rates and the entropy bonus of the best
                  attempt fall to 0 at the end of the level's time.
    choice        plays the checkpoints of each level; the best becomes its policy.
    correction    plays the whole game, for starts of its levels (game_starts.py), then
                  searches where a policy dies, which learns from it (corrections.py).
    merge         one run over all levels, which learns from these policies
                  (learn/distil.py).
    temperature   plays the one network with several temperatures and takes the best.
    evaluation    plays all policies, after the time is over.

`state.json` records the progress after every slice, and each level is a run with
checkpoints, so a campaign can resume after any interruption.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from trainer.config.options import MAX_SEED
from trainer.config.presets import share_cores
from trainer.config.schema import RunConfig
from trainer.config.tasks import game_levels
from trainer.machine.cpu import available_cores
from trainer.machine.files import write_json
from trainer.machine.process import Interrupted
from trainer.machine.timings import format_seconds
from trainer.models import checkpoint
from trainer.models.released import SUFFIX
from trainer.show.campaign import (
    MERGED,
    STATE,
    TABLE,
    Attempt,
    Board,
    Level,
    results_of,
)
from trainer.show.dashboard import make_display
from trainer.show.run_files import clear_rate_now
from trainer.tuning import corrections, game_starts, specialists
from trainer.tuning.campaign_config import LEAST_SLICE, CampaignConfig
from trainer.tuning.specialists import Slice
from trainer.tuning.workers import Failed, Workers

POLICIES, STARTS = "policies", "starts"
ONE = "one"
ERRORS = "errors.txt"

# Time is limited, steps are not.
_RUN: dict[str, Any] = {
    "max_steps": 2_000_000_000,
    "end_episodes": 0,
    "videos": False,
    "checkpoint_seconds": 30.0,
}
# A level whose processes died or failed this often is not trained further.
_FAILURES = 2
# Between the seeds of the attempts of a level. Campaigns have small seeds.
_SEED_STRIDE = 1_000_003
# A level whose best attempt clears this share has no further attempt: a new one solves
# a level with a probability of a quarter, four more slices with a higher one.
_GOOD = 0.7
# Share of a slice for which a solved level trains further, see `specialists.train`.
_FINISH = 1 / 3
# Every second attempt imitates demonstrations more: the same seeds clear 7-4 more often
# with it, and levels in water less often.
_MORE_IMITATION = 3.0
# Episodes per checkpoint for the choice of a level's policy.
_CHOICE_EPISODES = 40
# Episodes per level for each temperature of the one network, and seconds per level that
# are reserved for them.
_ONE_EPISODES = 10
_ONE_CHOICE_SECONDS = 1.0
# Bits of a number in large matrices. With 8 bits the clear rates of the levels'
# policies did not change, and the one network cleared 5 % fewer starts with greedy
# actions.
_LEVEL_BITS, _ONE_BITS = 8, 16
# Share of the time of the merge before its schedules start to fall to 0. By then the
# teachers choose few actions, and the steps are as fast as they remain.
_MERGE_BEGINS = 0.4


class Campaign:
    """Runs the phases of a campaign, from the state in its folder."""

    def __init__(
        self,
        config: CampaignConfig,
        folder: Path,
        runs: Mapping[str, RunConfig],
        merged: Callable[[Sequence[str]], RunConfig],
        board: Board,
    ) -> None:
        self.config, self.folder, self._board = config, folder, board
        self._runs, self._merged = runs, merged
        self.levels = {name: Level() for name in runs}
        self._seconds, self._phase = 0.0, "specialists"
        # Seconds of the campaign when the merge began.
        self._merge_began = 0.0
        # The one network trains again, because its campaign has more time than it had.
        self._merge_restarts = False
        before = config.max_seconds - config.more_seconds
        path = folder / STATE
        if path.exists():
            try:
                state = json.loads(path.read_text())
                self._seconds, self._phase = state["seconds"], state["phase"]
                self._merge_began = state["merge_began"]
                self.levels = {n: Level.of(state["levels"][n]) for n in runs}
                # Not in files of version 0.2.0.
                before = float(state.get("max_seconds", before))
                self._merge_restarts = bool(state.get("merge_restarts"))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path} is damaged: {error!r}") from error
        self._began = time.monotonic()
        self._jobs = min(config.jobs or available_cores(), len(runs))
        self._workers = Workers(self._jobs)
        # Counted per process, because the cause may be fixed before a campaign is
        # resumed.
        self._failures = dict.fromkeys(runs, 0)
        # Levels whose last slice is running.
        self._ending: set[str] = set()
        if config.max_seconds > before:
            self._train_longer_than(before)

    # -- state -----------------------------------------------------------------

    def elapsed(self) -> float:
        """Seconds of the campaign so far, including those before an interruption."""
        return self._seconds + time.monotonic() - self._began

    def _save(self, phase: str = "") -> None:
        self._phase = phase or self._phase
        now = time.monotonic()
        self._seconds, self._began = self._seconds + now - self._began, now
        write_json(
            self.folder / STATE,
            {
                "phase": self._phase,
                "seconds": self._seconds,
                "max_seconds": self.config.max_seconds,
                "merge_began": self._merge_began,
                "merge_restarts": self._merge_restarts,
                "levels": {name: asdict(level) for name, level in self.levels.items()},
            },
        )

    def run_dir(self, level: str, attempt: int | None = None) -> Path:
        """Folder of the run of a level's attempt; None: the best one."""
        number = self.levels[level].best if attempt is None else attempt
        name = f"{level}-attempt-{number + 1}" if number else level
        return self.folder / "levels" / name

    def policy(self, level: str) -> Path:
        """File of the policy of a level, or of the network for all levels."""
        return self.folder / POLICIES / f"{level}{SUFFIX}"

    def _teachers(self) -> list[str]:
        """The levels that have a policy."""
        return [name for name in self.levels if self.policy(name).exists()]

    def _model(self, name: str) -> str:
        """The network of a level's policy, or of the one network."""
        merged = name == ONE
        run = self._merged(self._teachers()) if merged else self._runs[name]
        return run.model.name

    def _train_longer_than(self, seconds: float) -> None:
        """Returns to the unsolved levels of a campaign that had fewer seconds before.

        What the one network trained counts as its time, not as that of the levels.
        """
        before = replace(self.config, max_seconds=seconds)
        of_levels = before.seconds_of_levels(len(self.levels))
        self._seconds, self._phase = min(self._seconds, of_levels), "specialists"
        for level in self.levels.values():
            if not level.solved:  # the run of a solved one remains as it is
                level.ended, level.chosen = False, None
        (self.folder / TABLE).unlink(missing_ok=True)

    # -- phases ----------------------------------------------------------------

    def run(self) -> None:
        """Runs what is left of the campaign."""
        phases = {
            "specialists": self._train_levels,
            "choice": self._choose,
            "correction": self._correct,
            "merge": self._merge,
            "temperature": self._choose_one,
        }
        names = [*phases, "evaluation"]
        try:
            while self._phase in phases:
                phases[self._phase]()
                self._save(names[names.index(self._phase) + 1])
        except KeyboardInterrupt:
            self._board.log("interrupted: waiting for checkpoints")
            for name, result in self._workers.stop():
                if self._phase == "specialists" and not isinstance(result, Failed):
                    self._take(name, result)
            raise
        finally:
            self._workers.close()
            self._save()

    def _train_levels(self) -> None:
        """Trains levels in slices until all are solved or the time is over."""
        seconds = self.config.seconds_of_levels(len(self.levels))
        while True:
            while self._workers.free and self._begin_next(seconds):
                pass
            if not self._workers.running:
                break
            for name, result in self._workers.wait(1.0):
                self._take(name, result)
            self._show("a policy for each level", seconds)
        if not any(checkpoint.list_files(self.run_dir(n)) for n in self.levels):
            errors = self.folder / ERRORS
            raise RuntimeError(
                f"no level could be trained; see {errors}"
                if errors.exists()
                else f"the {self.config.max_seconds:g} s of the campaign were over "
                "before a level was trained: begin another with a higher --max-seconds"
            )

    def _begin_next(self, until: float) -> bool:
        """Starts a slice of the unsolved level with the least time so far, if any."""
        left = until - self.elapsed()
        running = self._workers.running
        open_ = [
            name
            for name, level in self.levels.items()
            if not (level.solved or level.ended or name in running)
            and self._failures[name] < _FAILURES
        ]
        if not open_ or left < LEAST_SLICE:
            return False
        name = min(open_, key=lambda name: self.levels[name].seconds)
        # The remaining time of each unsolved level.
        share = left * min(1.0, self._jobs / (len(open_) + len(running)))
        last = share < 1.5 * self.config.slice_seconds
        seconds = min(left, max(share, LEAST_SLICE))
        level, config = self.levels[name], self._runs[name]
        level.attempt = level.best if last else self._next_attempt(level, config, share)
        if level.attempt == len(level.attempts):
            level.attempts.append(Attempt())
        run = replace(
            share_cores(_attempt_of(config, level.attempt), self._jobs),
            run_dir=self.run_dir(name, level.attempt),
            resume=None,
            **_RUN,
            keep_checkpoints=specialists.CANDIDATES,
            log_seconds=2.0,
        )
        work = Slice(
            run,
            seconds if last else self.config.slice_seconds,
            last,
            finish=_FINISH * self.config.slice_seconds,
        )
        self._workers.submit(name, specialists.train, work)
        if last:
            self._ending.add(name)
        return True

    @staticmethod
    def _next_attempt(level: Level, config: RunConfig, share: float) -> int:
        """Index of the attempt that a level's next slice goes to.

        An attempt goes on while its schedules last, or while it exceeds the other
        attempts and itself. Then the best attempt and a new one take turns, unless the
        best is good, as long as `share`, the level's remaining seconds, is twice what a
        new one needs.
        """
        now, best = level.attempts[level.attempt], level.attempts[level.best]
        if now.steps < config.learner.lr_steps or level.improved:
            return level.attempt
        needed = now.seconds / now.steps * config.learner.lr_steps
        if now is best and best.rate < _GOOD and share >= 2 * needed:
            return len(level.attempts)
        return level.best

    def _take(self, name: str, result: Any) -> None:
        """Takes the result of a slice."""
        level = self.levels[name]
        if isinstance(result, Failed):
            self._failures[name] += 1
            self._log_failure(name, result)
        else:
            rate = result.get(specialists.RATE, 0.0)
            level.improved = 0.0 < level.rate < rate
            attempt = level.attempts[level.attempt]
            attempt.seconds, attempt.steps = result["seconds"], int(result["steps"])
            attempt.rate = max(attempt.rate, rate)
            level.solved = bool(result["solved"])
            level.ended = name in self._ending and not result["signal"]
            how = "solved" if level.solved else f"{rate:.0%} cleared"
            how = how if attempt.steps else "still searching for demonstrations"
            number = f", attempt {level.attempt + 1}" if level.attempt else ""
            self._board.log(
                f"{name}{number}: {how} after {attempt.steps:,} steps, "
                f"{format_seconds(attempt.seconds)} of training"
            )
        self._ending.discard(name)
        self._save()

    def _log_failure(self, name: str, failed: Failed) -> None:
        """Shows a failure in one line, and writes its traceback to errors.txt."""
        self._board.log(f"{name}: {failed.reason}")
        with suppress(OSError), (self.folder / ERRORS).open("a") as file:
            file.write(f"{name}: {failed.reason}\n{failed.details}\n")

    def _do(
        self, tasks: Sequence[tuple[Any, ...]], what: str
    ) -> Iterator[tuple[str, Any]]:
        """Runs tasks in the worker processes."""

        def show() -> None:
            self._show(what, self.config.max_seconds)

        for name, result in self._workers.do(tasks, show):
            if isinstance(result, Failed):
                self._log_failure(name, result)
            else:
                yield name, result

    def _choose(self) -> None:
        """Chooses the policy of each level."""
        (self.folder / POLICIES).mkdir(exist_ok=True)
        tasks = [
            (name, specialists.choose, self.run_dir(name), self.policy(name),
             name, _CHOICE_EPISODES, self.config.seed, _LEVEL_BITS,
             self._model(name))
            for name, level in self.levels.items()
            if level.chosen is None and checkpoint.list_files(self.run_dir(name))
        ]  # fmt: skip
        for name, result in self._do(tasks, "choosing policies"):
            self.levels[name].chosen = result["clear_rate"]
            self._save()
        rates = [level.chosen or 0.0 for level in self.levels.values()]
        if not self._teachers():
            raise RuntimeError(f"no level has a policy; see {self.folder / ERRORS}")
        self._board.log(
            f"policies of {len(self.levels)} levels: mean clear rate "
            f"{sum(rates) / len(rates):.0%}, "
            f"{sum(rate >= 0.9 for rate in rates)} levels at 90 % or more"
        )

    def _correct(self) -> None:
        """Corrects the policy of each level, within the time of the levels."""
        config, starts = self.config, self.folder / STARTS
        chosen = {name: self.levels[name].chosen or 0.0 for name in self._teachers()}
        until = self.elapsed() + config.seconds_to_correct(len(self.levels))
        passed: dict[str, float] = {}
        if config.correct_share and set(game_levels(config.task)) <= set(chosen):
            how = (self.folder / POLICIES, starts, config.seed, self._model("1-1"))
            task = ("whole game", game_starts.collect, *how)
            for _, passed in self._do([task], "playing the whole game"):
                rate = sum(passed.values()) / len(chosen)
                self._board.log(f"the levels in the whole game: {rate:.0%} passed")
        shares = corrections.shares_of_time(chosen, passed)
        seconds = (until - self.elapsed()) * self._jobs
        tasks = [
            (n, corrections.correct, self.policy(n), n, share * seconds,
             _CHOICE_EPISODES, config.seed, _LEVEL_BITS, self._model(n),
             starts if passed else None)
            for n, share in shares.items() if config.correct_share
        ]  # fmt: skip
        done = [found for _, found in self._do(tasks, "correcting policies") if found]
        if done:
            before, now = (fmean(rates[k] for rates in done) for k in ("before", "now"))
            self._board.log(
                f"corrected policies: mean clear rate from {before:.0%} to {now:.0%}"
            )
        self._merge_began = self.elapsed()
        self._merge_restarts = bool(checkpoint.list_files(self.folder / MERGED))

    def _merge(self) -> None:
        """Trains one network for all levels to imitate the policies."""
        if not self.config.merge_share or len(self.levels) == 1:
            return
        levels = self._teachers()
        if missing := len(self.levels) - len(levels):
            self._board.log(f"{missing} levels have no policy to learn from")
        run_dir = self.folder / MERGED
        # After a kill or with more time, the run has trained for longer than it seems.
        spent = self._merge_began + specialists.seconds_of(run_dir)
        self._seconds += max(0.0, spent - self.elapsed())
        left = self.config.max_seconds - self.elapsed()
        left -= _ONE_CHOICE_SECONDS * len(levels)
        config = replace(
            self._merged(levels),
            run_dir=run_dir,
            stop_when_solved=False,
            dashboard="auto" if self.config.dashboard else "off",
            **_RUN,
        )
        seconds = max(LEAST_SLICE, left)
        work = Slice(
            config, seconds, True, _MERGE_BEGINS, restarts=self._merge_restarts
        )
        self._workers.close()
        self._board.close()  # the run has its own dashboard
        try:
            ended_by = specialists.train(work, lambda: make_display(config.dashboard))
        except (ValueError, RuntimeError, OSError) as error:
            # The policies of the levels do not depend on this run.
            failed = Failed(f"{type(error).__name__}: {error}", traceback.format_exc())
            self._log_failure("one network", failed)
            return
        finally:
            self._board.open()
        if ended_by["signal"]:
            raise Interrupted(int(ended_by["signal"]))

    def _choose_one(self) -> None:
        """Chooses the temperature of the one network, at the end of its training."""
        if not checkpoint.list_files(self.folder / MERGED):
            return
        task = (
            ONE, specialists.choose, self.folder / MERGED, self.policy(ONE),
            ",".join(self._teachers()), _ONE_EPISODES, self.config.seed, _ONE_BITS,
            self._model(ONE),
        )  # fmt: skip
        for _, result in self._do([task], "choosing a temperature"):
            self._board.log(
                f"one network: mean clear rate {result['clear_rate']:.0%} with "
                f"temperature {result['temperature']:g}"
            )

    def evaluate(self) -> dict[str, Any]:
        """Plays all policies, unless table.json has their results."""
        names = [n for n in (ONE, *self.levels) if self.policy(n).exists()]
        if table := results_of(self.folder, names):
            path = self.folder / TABLE
            self._board.log(f"all policies were played before, see {path}")
            return table
        tasks = [
            (name, specialists.evaluate, self.policy(name),
             "" if name == ONE else name, self.config.episodes, self.config.seed,
             self._model(name))
            for name in names
        ]  # fmt: skip
        try:
            played = self._do(tasks, "playing")
            results = {name: result["results"] for name, result in played}
        finally:
            self._workers.close()
        table = {
            "episodes": self.config.episodes,
            "seed": self.config.seed,
            "seconds": self._seconds,
            "levels": list(self.levels),
            "single": [r for name in self.levels for r in results.get(name, [])],
            "one": results.get(ONE, []),
        }
        write_json(self.folder / TABLE, table)
        return table

    def _show(self, what: str, until: float) -> None:
        """Draws the board."""
        running = [name for name in self._workers.running if name in self.levels]
        rates = {
            name: clear_rate_now(self.run_dir(name, self.levels[name].attempt))
            for name in running
        }
        searching = self._phase == "specialists" and any(
            run.learns_from_demonstrations for run in self._runs.values()
        )
        solved = sum(level.solved for level in self.levels.values())
        self._board.show(
            f"{what}, {format_seconds(self.elapsed())} of {format_seconds(until)}, "
            f"{solved} of {len(self.levels)} levels solved",
            self.levels,
            rates,
            searching,
        )


def _attempt_of(config: RunConfig, attempt: int) -> RunConfig:
    """The run of an attempt at a level, from that of the first one."""
    learner, seed = config.learner, config.seed + attempt * _SEED_STRIDE
    if attempt % 2:
        learner = replace(learner, imitation=_MORE_IMITATION * learner.imitation)
    return replace(config, seed=seed % (MAX_SEED + 1), learner=learner)
