"""Runs that take no time, for tests of what is built on `run_training`.

In a module of their own, so that other processes find them.
"""

import os
import signal
import time

# A search space of every kind, and mutations of either kind.
SPACE = """
def space(trial):
    return {
        "lr": trial.suggest_float("lr", 1e-4, 1e-2, log=True),
        "epochs": trial.suggest_int("epochs", 1, 4),
        "optimizer": trial.suggest_categorical("optimizer", ["adam", "muon"]),
    }
"""
MUTATIONS = """
from trainer.tuning.mutations import Range

MUTATIONS = {
    "lr": Range(1e-4, 1e-2, log=True),
    "lam": Range(0.8, 1.0),
    "epochs": [1, 2, 3, 4],
}
"""


def metrics(**options):
    """What a run returns."""
    result = {"steps": 2000.0, "seconds": 50.0, "solved": 1.0, "signal": 0.0}
    return result | {"rollout/clear_rate": 0.95} | options


def quick(config, display):
    """Takes a time that depends on its settings only."""
    config.run_dir.mkdir(parents=True)
    display.report(1000, {"rollout/clear_rate": 0.5}, 0.0)
    return metrics(seconds=10 * config.learner.epochs)


def slow(config, display):
    """Lets other processes have a share, and says who it was."""
    time.sleep(0.2)
    config.run_dir.mkdir(parents=True)
    (config.run_dir / "pid").write_text(str(os.getpid()))
    return metrics()


def shared(config, display):
    """Ends once two processes have begun a run."""
    result = slow(config, display)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        pids = {path.read_text() for path in config.run_dir.parent.glob("*/pid")}
        if len(pids) > 1:
            break
        time.sleep(0.05)
    return result


def hanging(config, display):
    """The first of all hangs until its process is killed; others are `slow`."""
    mark = config.run_dir.parent / "hangs"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return slow(config, display)
    mark.write_text(str(os.getpid()))
    time.sleep(300)
    raise AssertionError("nobody has killed it")


def impatient_search(config, base):
    """A search with `hanging` that soon notices the death of another process."""
    from trainer.tuning import study

    study.HEARTBEAT_S, study.GRACE_S, study._POLL_S = 1, 4, 0.1
    study.search(config, base, hanging)


def dying(config, display):
    """Its process is killed, the first time."""
    mark = config.run_dir.parent / "killed"
    if not mark.exists():
        mark.touch()
        # Optuna's thread has noted that the trial is alive.
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return metrics()
