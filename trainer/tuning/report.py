"""Results of a search: a table, plots, and a command line."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import optuna
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter, NullLocator
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import matplotlib as plots
from rich.console import Console
from rich.table import Table

from trainer.config import shown
from trainer.config.plain import from_dict
from trainer.config.schema import RunConfig
from trainer.machine.files import replacing, write_json
from trainer.machine.timings import format_seconds
from trainer.tuning import options

# The attribute that marks a surplus trial.
SURPLUS = "surplus"


def counted(study: optuna.Study) -> list[FrozenTrial]:
    """The trials, without restarted trials and surplus ones."""
    trials = study.get_trials(deepcopy=False)
    history = RetryHeartbeatStaleTrialCallback.retry_history
    again = {number for trial in trials for number in history(trial)}
    return [
        trial
        for trial in trials
        if trial.number not in again and SURPLUS not in trial.user_attrs
    ]


def best_command(study: optuna.Study, flags: Sequence[str]) -> str:
    """The command line with the settings of the best trial.

    Settings without effect are left out, because a run refuses them.
    """
    base = from_dict(RunConfig, study.user_attrs["setup"]["trainer flags"])
    best = options.that_matter(base, study.best_trial.user_attrs["options"])
    given = "".join(f" {shlex.quote(flag)}" for flag in flags)
    return f"python -m trainer.run{given} {options.flags(best)}"


def trials_table(study: optuna.Study, title: str) -> Table:
    """All trials, best first."""
    table = Table(title=title, title_justify="left")
    for name in ("trial", "value", "clear", "steps", "time"):
        table.add_column(name, justify="right")
    table.add_column("settings", ratio=1)
    for trial in sorted(counted(study), key=lambda trial: _rank(study, trial)):
        known = trial.user_attrs
        complete = trial.state == TrialState.COMPLETE
        values = [f"{k} {options.show(v)}" for k, v in trial.params.items()]
        if "error" in known:
            values.append(f"({known['error']})")
        table.add_row(
            str(trial.number),
            f"{trial.value:.4g}" if complete else trial.state.name.lower(),
            f"{known['clear_rate']:.0%}" if "clear_rate" in known else "",
            f"{known['steps']:,}" if "steps" in known else "",
            format_seconds(known["seconds"]) if "seconds" in known else "",
            ", ".join(values),
        )
    return table


def _rank(study: optuna.Study, trial: FrozenTrial) -> tuple[bool, float]:
    """A sort key: the best trial first, unfinished trials last, by number."""
    # The value of a pruned trial is its last report, which is a different quantity.
    if trial.state != TrialState.COMPLETE or trial.value is None:
        return (True, trial.number)
    return (False, trial.value * (-1 if _maximises(study) else 1))


def _maximises(study: optuna.Study) -> bool:
    return study.direction == StudyDirection.MAXIMIZE


def write_plots(study: optuna.Study, folder: Path, value: str) -> list[str]:
    """Draws the study as PNGs."""
    matplotlib.use("Agg")
    names = list(study.best_trial.params)
    wide = max(8.0, 1.6 * len(names))
    drawings: dict[str, tuple[Callable[..., Any], float, dict[str, Any]]] = {
        "history": (plots.plot_optimization_history, 8, {"target_name": value}),
        "importances": (plots.plot_param_importances, 8, {"target_name": value}),
        "parallel": (plots.plot_parallel_coordinate, wide, {"target_name": value}),
        "slice": (plots.plot_slice, 2.4 * len(names), {"target_name": value}),
    }
    lines = []
    for name, (draw, width, keywords) in drawings.items():
        path = folder / f"{name}.png"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            warnings.simplefilter("ignore", ExperimentalWarning)
            try:
                draw(study, **keywords)
            except (ValueError, RuntimeError, ImportError) as error:
                lines.append(f"no {path}: {error}")
            else:
                figure = pyplot.gcf()
                _tidy(figure, name)
                figure.set_size_inches(width, 5)
                with replacing(path) as file:
                    figure.savefig(file, dpi=120, bbox_inches="tight")
                remarks = "".join(f" ({warning.message})" for warning in caught)
                lines.append(f"{path}{remarks}")
        pyplot.close("all")
    return lines


def _tidy(figure: Figure, name: str) -> None:
    """Makes axes readable: few numbers on logarithmic axes, no overlaid grids."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
                axis.set_major_formatter(FormatStrFormatter("%g"))
                axis.set_minor_formatter(NullFormatter())
        if name == "slice" and axes.get_xscale() == "log":
            # The axes are narrow: two numbers fit, whatever the range.
            axes.set_xticks(np.geomspace(*axes.get_xlim(), 7)[[1, 5]])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FormatStrFormatter("%.2g"))
        if name == "parallel":
            axes.grid(False)


def finish(study: optuna.Study, folder: Path, value: str, flags: Sequence[str]) -> None:
    """Prints the trials and the best settings, draws plots, writes best.json."""
    title = f"{study.study_name}: value is {value}"
    Console().print(trials_table(study, title))
    if not any(trial.state == TrialState.COMPLETE for trial in counted(study)):
        raise RuntimeError(
            "no trial was completed, see the table; raise --trials, or narrow the "
            "ranges of --space"
        )
    for line in write_plots(study, folder, value):
        print(line)
    best, command = study.best_trial, best_command(study, flags)
    result = {
        "trial": best.number,
        value: best.value,
        "params": best.params,
        "options": best.user_attrs["options"],
    }
    result["command"] = shown.command_text(command)
    write_json(folder / "best.json", result)
    print(f"best: trial {best.number}, {value} {best.value:.4g}\n{command}")
    if not (_maximises(study) or best.user_attrs["solved"]):
        print(
            "The best trial did not solve the level, so its value is max_seconds x "
            "(2 - clear rate): raise --max-seconds and --max-steps"
        )
