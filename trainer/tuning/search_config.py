"""Options of a search. This module does not need Optuna."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class SearchConfig:
    """Searches for better settings of a run."""

    space: str = "trainer.tuning.spaces:default"
    """Search space, MODULE:FUNCTION or FILE.py:FUNCTION: a function of an Optuna trial
    that returns values by option (docs/search.md has an example)."""

    trials: int = 20
    """Trials in all, those of earlier calls and of other processes included."""

    jobs: int = 1
    """Processes; they divide the cores."""

    seeds: int = 1
    """Runs per trial, each with a seed that no other trial has; their mean counts.
    Seeds differ by 30 % and more, so with 1 the best trial is partly luck."""

    name: str = "search"
    """Name of the search; a search of that name is resumed."""

    storage: str = ""
    """Where all trials are: journal:///FILE, sqlite:///FILE, or a database on a server
    (postgresql://USER:PASSWORD@HOST/NAME, mysql://...), which many machines can share;
    by default journal:///OUT/NAME/study.log. '$NAME', in single quotes, is an
    environment variable."""

    objective: Literal["time-to-clear", "clear-rate"] = "time-to-clear"
    """time-to-clear: seconds until the level is solved, a run that does not solve
    it counts max_seconds x (2 - its clear rate); clear-rate: of the last 100 training
    episodes when max_steps or max_seconds are over."""

    pruner: Literal["median", "hyperband", "none"] = "median"
    """What ends hopeless trials: median (below the median of the others at the same
    step), hyperband (Li et al. 2018), none."""

    max_steps: int = 400_000
    """Environment steps of a run, at most."""

    max_seconds: float = 300.0
    """Seconds of a run, at most."""

    out: Path = Path("runs/search")
    """Folder of all searches; a search writes to OUT/NAME."""

    def validate(self) -> None:
        """Raises ValueError for a value out of range."""
        for name in ("trials", "jobs", "seeds", "max_steps"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 1, got {getattr(self, name)}"
                )
        if self.max_seconds <= 0:
            raise ValueError(f"max_seconds must be above 0, got {self.max_seconds:g}")
        if not self.name or self.name in (".", "..") or "/" in self.name:
            raise ValueError(f"name is that of a folder, without /, got {self.name!r}")

    @property
    def folder(self) -> Path:
        """Where trials, plots and the default database are."""
        return self.out / self.name

    @property
    def minimise(self) -> bool:
        """Whether a lower value is better."""
        return self.objective == "time-to-clear"
