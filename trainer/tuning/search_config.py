"""Options of a search, and its default space. This module works without Optuna."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainer.config.options import check_ranges, option
from trainer.tuning.mutations import DEFAULT, Range

if TYPE_CHECKING:
    import optuna

# Returns values of options, by their names on the command line (lr) or in the config
# (learner.lr).
Space = Callable[["optuna.Trial"], dict[str, Any]]


def default(trial: optuna.Trial) -> dict[str, Any]:
    """The ranges in which a population changes options."""
    values: dict[str, Any] = {}
    for name, some in DEFAULT.items():
        if isinstance(some, Range):
            values[name] = trial.suggest_float(name, some.low, some.high, log=some.log)
        elif name == "epochs":  # a number, of which neighbours are alike
            values[name] = trial.suggest_int(name, some[0], some[-1])
        else:
            values[name] = trial.suggest_categorical(name, some)
    return values


@dataclass(frozen=True)
class SearchConfig:
    """Searches for better settings of a run."""

    space: str = "trainer.tuning.search_config:default"
    """Search space, MODULE:FUNCTION or FILE.py:FUNCTION. The function takes an Optuna
    trial and returns values by option (see the example in docs/search.md)."""

    trials: int = option(20, least=1)
    """Total number of trials, including those of earlier calls and other processes."""

    jobs: int = option(1, least=1)
    """Number of processes; they divide the cores."""

    seeds: int = option(1, least=1)
    """Runs per trial, each with a unique seed; the value of the trial is their mean.
    Results of different seeds differ by 30 % and more, so with 1 the best trial is
    partly luck."""

    name: str = "search"
    """Name of the search; an existing search of this name is resumed."""

    storage: str = ""
    """Where to store all trials: journal:///FILE, sqlite:///FILE, or a database on a
    server that many machines can share (postgresql://USER:PASSWORD@HOST/NAME,
    mysql://...). The default is journal:///OUT/NAME/study.log. '$NAME', in single
    quotes, is an environment variable."""

    objective: Literal["time-to-clear", "clear-rate"] = "time-to-clear"
    """time-to-clear: seconds until the level is solved; a run that does not solve it
    counts as max_seconds x (2 - clear rate). clear-rate: clear rate of the last 100
    training episodes after max_steps or max_seconds."""

    pruner: Literal["median", "hyperband", "none"] = "median"
    """How to end hopeless trials early: median (below the median of other trials at the
    same step), hyperband (Li et al. 2018), or none."""

    max_steps: int = option(400_000, least=1)
    """Most environment steps of a run."""

    max_seconds: float = option(300.0, above=0)
    """Most seconds of a run."""

    out: Path = Path("runs/search")
    """Folder of all searches; a search writes to OUT/NAME."""

    def validate(self) -> None:
        """Raises ValueError if a value is out of range."""
        check_ranges(self)
        if not self.name or self.name in (".", "..") or "/" in self.name:
            raise ValueError(f"name must be a folder name without /, got {self.name!r}")

    @property
    def folder(self) -> Path:
        """The folder of trials, plots and the default database."""
        return self.out / self.name

    @property
    def minimise(self) -> bool:
        """Whether a lower value is better."""
        return self.objective == "time-to-clear"
