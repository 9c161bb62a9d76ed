"""Results of a search: a table, plots, and a command line."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import optuna
from matplotlib import pyplot
from matplotlib.ticker import NullFormatter
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
from trainer.tuning.study import counted


def best_command(study: optuna.Study, flags: Sequence[str]) -> str:
    """The command line with the settings of the best trial.

    Settings without effect are left out, because a run refuses them.
    """
    base = from_dict(RunConfig, study.user_attrs["setup"]["trainer flags"])
    best = options.that_matter(base, study.best_trial.user_attrs["options"])
    words = ["python", "-m", "trainer.run", *flags]
    return f"{shlex.join(words)} {options.flags(best)}"


def trials_table(study: optuna.Study, title: str) -> Table:
    """All trials, best first; those without a value last, by number."""

    def rank(trial: FrozenTrial) -> tuple[bool, float]:
        # The value of a pruned trial is its last report, which is another quantity.
        if trial.state != TrialState.COMPLETE or trial.value is None:
            return (True, trial.number)
        return (False, -trial.value if _maximises(study) else trial.value)

    table = Table(title=title, title_justify="left")
    for name in ("trial", "value", "clear", "steps", "time"):
        table.add_column(name, justify="right")
    table.add_column("settings", ratio=1)
    for trial in sorted(counted(study), key=rank):
        attributes = trial.user_attrs
        complete = trial.state == TrialState.COMPLETE
        values = [f"{k} {options.show(v)}" for k, v in trial.params.items()]
        if "error" in attributes:
            values.append(f"({attributes['error']})")
        table.add_row(
            str(trial.number),
            f"{trial.value:.4g}" if complete else trial.state.name.lower(),
            f"{attributes['clear_rate']:.0%}" if "clear_rate" in attributes else "",
            f"{attributes['steps']:,}" if "steps" in attributes else "",
            format_seconds(attributes["seconds"]) if "seconds" in attributes else "",
            ", ".join(values),
        )
    return table


def _maximises(study: optuna.Study) -> bool:
    return study.direction == StudyDirection.MAXIMIZE


def write_plots(study: optuna.Study, folder: Path, value: str) -> list[str]:
    """Draws the study as PNGs; returns a line for each."""
    matplotlib.use("Agg")
    count = len(study.best_trial.params)
    figures = (
        ("history", plots.plot_optimization_history, 8.0),
        ("importances", plots.plot_param_importances, 8.0),
        ("parallel", plots.plot_parallel_coordinate, max(8.0, 1.6 * count)),
        ("slice", plots.plot_slice, 2.4 * count),
    )
    lines = []
    for name, draw, width_in_inches in figures:
        path = folder / f"{name}.png"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            try:
                draw(study, target_name=value)
            except (ValueError, RuntimeError, ImportError) as error:
                lines.append(f"no {path}: {error}")
                continue
        figure = pyplot.gcf()
        for axes in figure.axes:
            # Between powers of ten, numbers of a narrow plot would overlap.
            axes.xaxis.set_minor_formatter(NullFormatter())
            if name == "parallel":
                axes.grid(False)  # those of all options would lie over each other
        figure.set_size_inches(width_in_inches, 5)
        with replacing(path) as file:
            figure.savefig(file, dpi=120, bbox_inches="tight")
        lines.append(str(path) + "".join(f" ({some.message})" for some in caught))
    pyplot.close("all")
    return lines


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
        "command": shown.command_text(command),
    }
    write_json(folder / "best.json", result)
    print(f"best: trial {best.number}, {value} {best.value:.4g}\n{command}")
    if not (_maximises(study) or best.user_attrs["solved"]):
        print(
            "The best trial did not solve the level, so its value is max_seconds x "
            "(2 - clear rate): raise --max-seconds and --max-steps"
        )
