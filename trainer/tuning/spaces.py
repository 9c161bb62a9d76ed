"""The search space of `python -m trainer.search`, unless `--space` names another.

A search space is a function that takes an Optuna trial and returns values of options,
by their names on the command line (lr) or in the config (learner.lr).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna

Space = Callable[["optuna.Trial"], dict[str, Any]]


def default(trial: optuna.Trial) -> dict[str, Any]:
    """Ranges around the values of the CPU recipe."""
    return {
        "lr": trial.suggest_float("lr", 3e-4, 3e-3, log=True),
        "muon_lr": trial.suggest_float("muon_lr", 0.01, 0.1, log=True),
        "gamma": trial.suggest_float("gamma", 0.88, 0.99),
        "lam": trial.suggest_float("lam", 0.8, 1.0),
        "entropy": trial.suggest_float("entropy", 0.001, 0.03, log=True),
        "clip_range": trial.suggest_float("clip_range", 0.1, 0.3),
        "epochs": trial.suggest_int("epochs", 1, 4),
        "minibatch_size": trial.suggest_categorical("minibatch_size", [256, 512, 1024]),
    }
