"""What the phases of a campaign share: its state, clock, files, processes and board."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trainer.config.schema import RunConfig
from trainer.config.tasks import game_levels
from trainer.machine.cpu import available_cores
from trainer.machine.files import write_json
from trainer.machine.timings import format_seconds
from trainer.models.released import SUFFIX
from trainer.show.campaign import STATE, TABLE, Board, Level
from trainer.show.run_files import clear_rate_now
from trainer.tuning.campaign_config import CampaignConfig
from trainer.tuning.workers import Failed, Workers

POLICIES, STARTS = "policies", "starts"
ERRORS = "errors.txt"
FIRST = "specialists"


class Progress:
    """The progress of a campaign, as in its folder's state.json.

    Attributes:
        levels: the progress of each level.
        phase: name of the current phase.
        seconds: of the campaign when it was saved.
        merge_began: seconds of the campaign when the merge began.
        merge_restarts: whether the one network trains again, because its campaign has
            more time than it had.
        jobs: number of worker processes.
        searching: whether levels search for demonstrations before they train.
    """

    def __init__(
        self,
        config: CampaignConfig,
        folder: Path,
        runs: Mapping[str, RunConfig],
        board: Board,
    ) -> None:
        """Reads the state, if there is one; ValueError if it is damaged."""
        self.config, self.folder, self.board = config, folder, board
        self.levels = {name: Level() for name in runs}
        self.phase, self.seconds = FIRST, 0.0
        self.merge_began, self.merge_restarts = 0.0, False
        before = config.max_seconds - config.more_seconds
        path = folder / STATE
        if path.exists():
            try:
                state = json.loads(path.read_text())
                self.seconds, self.phase = state["seconds"], state["phase"]
                self.merge_began = state["merge_began"]
                self.levels = {n: Level.of(state["levels"][n]) for n in runs}
                # Not in files of version 0.2.0.
                before = float(state.get("max_seconds", before))
                self.merge_restarts = bool(state.get("merge_restarts"))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path} is damaged: {error!r}") from error
        self._began = time.monotonic()
        self.jobs = min(config.jobs or available_cores(), len(runs))
        self.workers = Workers(self.jobs)
        self.searching = any(run.learns_from_demonstrations for run in runs.values())
        if config.max_seconds > before:
            self._train_longer_than(before)

    def _train_longer_than(self, seconds: float) -> None:
        """Returns to the unsolved levels of a campaign that had fewer seconds before.

        What the one network trained counts as its time, not as that of the levels.
        """
        before = replace(self.config, max_seconds=seconds)
        of_levels = before.seconds_of_levels(len(self.levels))
        self.seconds, self.phase = min(self.seconds, of_levels), FIRST
        for level in self.levels.values():
            if not level.solved:  # the run of a solved one remains as it is
                level.ended, level.chosen = False, None
        (self.folder / TABLE).unlink(missing_ok=True)

    # -- the clock ---------------------------------------------------------------

    def elapsed(self) -> float:
        """Seconds of the campaign so far, including those before an interruption."""
        return self.seconds + time.monotonic() - self._began

    def left(self) -> float:
        """Seconds that remain for the training."""
        return self.config.max_seconds - self.elapsed()

    def has_spent(self, seconds: float) -> None:
        """Sets the clock forward, after a kill, if it shows less."""
        self.seconds += max(0.0, seconds - self.elapsed())

    def save(self, phase: str = "") -> None:
        """Writes the state, in the given phase from now on."""
        self.phase = phase or self.phase
        now = time.monotonic()
        self.seconds, self._began = self.seconds + now - self._began, now
        write_json(
            self.folder / STATE,
            {
                "phase": self.phase,
                "seconds": self.seconds,
                "max_seconds": self.config.max_seconds,
                "merge_began": self.merge_began,
                "merge_restarts": self.merge_restarts,
                "levels": {name: asdict(level) for name, level in self.levels.items()},
            },
        )

    # -- files -------------------------------------------------------------------

    def run_dir(self, level: str, attempt: int | None = None) -> Path:
        """Folder of the run of a level's attempt; None: the best one."""
        number = self.levels[level].best if attempt is None else attempt
        name = f"{level}-attempt-{number + 1}" if number else level
        return self.folder / "levels" / name

    def policy(self, level: str) -> Path:
        """File of the policy of a level, or of the network for all levels."""
        return self.folder / POLICIES / f"{level}{SUFFIX}"

    def teachers(self) -> list[str]:
        """The levels that have a policy."""
        return [name for name in self.levels if self.policy(name).exists()]

    def has_whole_game(self) -> bool:
        """Whether all levels of the game have a policy."""
        return set(game_levels(self.config.task)) <= set(self.teachers())

    # -- processes and the board -------------------------------------------------

    def do(
        self, tasks: Sequence[tuple[Any, ...]], what: str
    ) -> Iterator[tuple[str, Any]]:
        """Runs tasks in the worker processes; logs those that fail."""

        def show() -> None:
            self.show(what, self.config.max_seconds)

        for name, result in self.workers.do(tasks, show):
            if isinstance(result, Failed):
                self.log_failure(name, result)
            else:
                yield name, result

    def log_failure(self, name: str, failed: Failed) -> None:
        """Shows a failure in one line, and writes its traceback to errors.txt."""
        self.board.log(f"{name}: {failed.reason}")
        with suppress(OSError), (self.folder / ERRORS).open("a") as file:
            file.write(f"{name}: {failed.reason}\n{failed.details}\n")

    def show(self, what: str, until: float) -> None:
        """Draws the board."""
        rates = {
            name: clear_rate_now(self.run_dir(name, self.levels[name].attempt))
            for name in self.workers.running
            if name in self.levels
        }
        solved = sum(level.solved for level in self.levels.values())
        self.board.show(
            f"{what}, {format_seconds(self.elapsed())} of {format_seconds(until)}, "
            f"{solved} of {len(self.levels)} levels solved",
            self.levels,
            rates,
            self.searching and self.phase == FIRST,
        )
