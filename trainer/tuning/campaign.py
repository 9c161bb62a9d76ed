"""A campaign: a policy for each level, and one network for all, in a given time.

    specialists   one run per level, one per core at a time. The levels take turns with
                  slices of equal length; a solved level leaves its time to the other
                  levels. A level whose clear rate no longer rises is begun again with
                  another seed. The learning rates and the entropy bonus of the best
                  attempt fall to 0 at the end of the level's time.
    choice        plays the checkpoints of each level; the best becomes its policy.
    correction    plays the whole game, for starts of its levels (game_starts.py), then
                  searches where a policy dies, which learns from it (corrections.py).
    merge ...     one run over all levels, which learns from these policies, and what
                  follows (one_network.py).
    evaluation    plays all policies, after the time is over.

`state.json` records the progress after every slice (progress.py), and each level is a
run with checkpoints, so a campaign can resume after any interruption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from trainer.config.options import MAX_SEED
from trainer.config.presets import share_cores
from trainer.config.schema import RunConfig
from trainer.machine.files import write_json
from trainer.machine.timings import format_seconds
from trainer.models import checkpoint
from trainer.show.campaign import (
    MERGED,
    STATE,
    TABLE,
    Attempt,
    Board,
    Level,
    results_of,
)
from trainer.tuning import corrections, game_starts, specialists
from trainer.tuning.campaign_config import LEAST_SLICE, CampaignConfig
from trainer.tuning.one_network import ONE, UNLIMITED, Merged, OneNetwork
from trainer.tuning.progress import ERRORS, FIRST, POLICIES, STARTS, Progress
from trainer.tuning.specialists import Slice
from trainer.tuning.workers import Failed

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
# Bits of a number in large matrices: with 16 the clear rates are the same.
_BITS = 8


class Campaign(Progress):
    """Runs the phases of a campaign, from the state in its folder."""

    def __init__(
        self,
        config: CampaignConfig,
        folder: Path,
        runs: Mapping[str, RunConfig],
        merged: Merged,
        board: Board,
    ) -> None:
        super().__init__(config, folder, runs, board)
        self._runs = runs
        self._one = OneNetwork(self, merged)
        # Counted per process, because the cause may be fixed before a campaign is
        # resumed.
        self._failures = dict.fromkeys(runs, 0)
        # Levels whose last slice is running.
        self._ending: set[str] = set()

    # -- phases ----------------------------------------------------------------

    def run(self) -> None:
        """Runs what is left of the campaign."""
        phases = {
            FIRST: self._train_levels,
            "choice": self._choose,
            "correction": self._correct,
            "merge": self._one.merge,
            "temperature": self._one.choose,
            "search": self._one.search,
            "learning": self._one.learn,
            "comparison": self._one.compare,
        }
        names = [*phases, "evaluation"]
        if self.phase not in names:
            raise ValueError(
                f"{self.folder / STATE} is damaged, or of a newer version: there is no "
                f"phase {self.phase!r}"
            )
        try:
            while self.phase in phases:
                phases[self.phase]()
                self.save(names[names.index(self.phase) + 1])
        except KeyboardInterrupt:
            self.board.log("interrupted: waiting for checkpoints")
            for name, result in self.workers.stop():
                if self.phase == FIRST and not isinstance(result, Failed):
                    self._take(name, result)
            raise
        finally:
            self.workers.close()
            self.save()

    def _train_levels(self) -> None:
        """Trains levels in slices until all are solved or the time is over."""
        seconds = self.config.seconds_of_levels(len(self.levels))
        while True:
            while self.workers.free and self._begin_next(seconds):
                pass
            if not self.workers.running:
                break
            for name, result in self.workers.wait(1.0):
                self._take(name, result)
            self.show("a policy for each level", seconds)
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
        running = self.workers.running
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
        share = left * min(1.0, self.jobs / (len(open_) + len(running)))
        last = share < 1.5 * self.config.slice_seconds
        seconds = min(left, max(share, LEAST_SLICE))
        level, config = self.levels[name], self._runs[name]
        level.attempt = level.best if last else self._next_attempt(level, config, share)
        if level.attempt == len(level.attempts):
            level.attempts.append(Attempt())
        run = replace(
            share_cores(_attempt_of(config, level.attempt), self.jobs),
            run_dir=self.run_dir(name, level.attempt),
            resume=None,
            **UNLIMITED,
            keep_checkpoints=specialists.CANDIDATES,
            log_seconds=2.0,
        )
        work = Slice(
            run,
            seconds if last else self.config.slice_seconds,
            last,
            finish=_FINISH * self.config.slice_seconds,
        )
        self.workers.submit(name, specialists.train, work)
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
            self.log_failure(name, result)
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
            self.board.log(
                f"{name}{number}: {how} after {attempt.steps:,} steps, "
                f"{format_seconds(attempt.seconds)} of training"
            )
        self._ending.discard(name)
        self.save()

    def _choose(self) -> None:
        """Chooses the policy of each level."""
        (self.folder / POLICIES).mkdir(exist_ok=True)
        tasks = [
            (name, specialists.choose, self.run_dir(name), self.policy(name),
             name, _CHOICE_EPISODES, self.config.seed, _BITS,
             self._runs[name].model.name)
            for name, level in self.levels.items()
            if level.chosen is None and checkpoint.list_files(self.run_dir(name))
        ]  # fmt: skip
        for name, result in self.do(tasks, "choosing policies"):
            self.levels[name].chosen = result["clear_rate"]
            self.save()
        rates = [level.chosen or 0.0 for level in self.levels.values()]
        if not self.teachers():
            raise RuntimeError(f"no level has a policy; see {self.folder / ERRORS}")
        self.board.log(
            f"policies of {len(self.levels)} levels: mean clear rate "
            f"{sum(rates) / len(rates):.0%}, "
            f"{sum(rate >= 0.9 for rate in rates)} levels at 90 % or more"
        )

    def _correct(self) -> None:
        """Corrects the policy of each level, within the time of the levels."""
        config, starts = self.config, self.folder / STARTS
        chosen = {name: self.levels[name].chosen or 0.0 for name in self.teachers()}
        until = self.elapsed() + config.seconds_to_correct(len(self.levels))
        passed: dict[str, float] = {}
        if config.correct_share and self.has_whole_game():
            how = (
                self.folder / POLICIES,
                starts,
                config.seed,
                self._runs["1-1"].model.name,
            )
            task = ("whole game", game_starts.collect, *how)
            for _, passed in self.do([task], "playing the whole game"):
                rate = sum(passed.values()) / len(chosen)
                self.board.log(f"the levels in the whole game: {rate:.0%} passed")
        shares = corrections.shares_of_time(chosen, passed)
        seconds = (until - self.elapsed()) * self.jobs
        tasks = [
            (n, corrections.correct, self.policy(n), n, share * seconds,
             _CHOICE_EPISODES, config.seed, _BITS, self._runs[n].model.name,
             starts if passed else None)
            for n, share in shares.items() if config.correct_share
        ]  # fmt: skip
        done = [found for _, found in self.do(tasks, "correcting policies") if found]
        if done:
            before, now = (fmean(rates[k] for rates in done) for k in ("before", "now"))
            self.board.log(
                f"corrected policies: mean clear rate from {before:.0%} to {now:.0%}"
            )
        self.merge_began = self.elapsed()
        self.merge_restarts = bool(checkpoint.list_files(self.folder / MERGED))

    def evaluate(self) -> dict[str, Any]:
        """Plays all policies, unless table.json has their results."""
        names = [n for n in (ONE, *self.levels) if self.policy(n).exists()]
        if table := results_of(self.folder, names):
            path = self.folder / TABLE
            self.board.log(f"all policies were played before, see {path}")
            return table
        tasks = [
            (name, specialists.evaluate, self.policy(name),
             "" if name == ONE else name, self.config.episodes, self.config.seed,
             self._one.model if name == ONE else self._runs[name].model.name)
            for name in names
        ]  # fmt: skip
        try:
            played = self.do(tasks, "playing")
            results = {name: result["results"] for name, result in played}
        finally:
            self.workers.close()
        table = {
            "episodes": self.config.episodes,
            "seed": self.config.seed,
            "seconds": self.seconds,
            "levels": list(self.levels),
            "single": [r for name in self.levels for r in results.get(name, [])],
            "one": results.get(ONE, []),
        }
        write_json(self.folder / TABLE, table)
        return table


def _attempt_of(config: RunConfig, attempt: int) -> RunConfig:
    """The run of an attempt at a level, from that of the first one."""
    learner, seed = config.learner, config.seed + attempt * _SEED_STRIDE
    if attempt % 2:
        learner = replace(learner, imitation=_MORE_IMITATION * learner.imitation)
    return replace(config, seed=seed % (MAX_SEED + 1), learner=learner)
