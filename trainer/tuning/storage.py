"""Where the trials of a study are: a file, or a database that many machines share."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import (
    BaseStorage,
    JournalStorage,
    RDBStorage,
    RetryHeartbeatStaleTrialCallback,
)
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import NullPool
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

# A process that was killed is noticed this long after its last sign of life.
HEARTBEAT_S = 10
GRACE_S = 60

# How often a trial whose process was killed is tried again: it may be its memory.
_RETRIES = 2

_JOURNAL = "journal:///"

# How long one process waits for another one's write. Connections are closed after use:
# Python 3.13 warns of those that nobody has closed.
_SQLITE = {"connect_args": {"timeout": 60}, "poolclass": NullPool}

# Databases whose drivers are an extra, by the beginning of the URL: that with the
# driver, and the extra.
_DRIVERS = {
    "postgresql": ("postgresql+psycopg", "postgresql"),
    "postgres": ("postgresql+psycopg", "postgresql"),
    "mysql": ("mysql+pymysql", "mysql"),
    "mariadb": ("mariadb+pymysql", "mysql"),
}

# The first processes of a study may make its tables at the same time.
_ATTEMPTS = 5


class Journal(JournalStorage, BaseHeartbeat):
    """Optuna's journal file, with a sign of life of each trial that is under way.

    Optuna has these in databases alone. The clocks of all machines that share a journal
    must agree to within half a minute.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(JournalFileBackend(str(path)))

    def record_heartbeat(self, trial_id: int) -> None:
        """See `BaseHeartbeat`."""
        # Another process may have taken this one for dead: then it goes on elsewhere.
        with suppress(UpdateFinishedTrialError):
            self.set_trial_system_attr(trial_id, "heartbeat", time.time())

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        running = self.get_all_trials(
            study_id, deepcopy=False, states=(TrialState.RUNNING,)
        )
        dead = time.time() - GRACE_S
        return [trial._trial_id for trial in running if _last_sign(trial) < dead]

    def get_heartbeat_interval(self) -> int:
        """See `BaseHeartbeat`."""
        return HEARTBEAT_S

    def get_heartbeat_stale_trial_callback(self) -> RetryHeartbeatStaleTrialCallback:
        """See `BaseHeartbeat`."""
        return RetryHeartbeatStaleTrialCallback(_RETRIES)


def _last_sign(trial: FrozenTrial) -> float:
    """When a trial that is under way was known to be, in seconds since the epoch.

    One that is begun again has the sign of life of the one before, too.
    """
    assert trial.datetime_start is not None
    sign = float(trial.system_attrs.get("heartbeat", 0.0))
    return max(sign, trial.datetime_start.timestamp())


def open_storage(url: str, folder: Path) -> BaseStorage:
    """Opens what holds the trials of a search.

    Args:
        url: journal:///FILE, sqlite:///FILE, or any URL of SQLAlchemy; `$NAME` is an
            environment variable. "": a journal in the folder, or the database that an
            earlier version made there.
        folder: of the search; it exists.

    Raises:
        ValueError: there is no such database, or its driver is not installed.
    """
    url = os.path.expandvars(url)
    old = folder / "study.db"
    if not url:
        url = f"sqlite:///{old}" if old.exists() else f"{_JOURNAL}{folder}/study.log"
    if url.startswith(_JOURNAL):
        path = Path(url.removeprefix(_JOURNAL))
        try:
            return Journal(path)
        except OSError as error:
            raise ValueError(
                f"cannot open --storage {url} ({error.strerror}); it is "
                "journal:///FILE in a folder that exists"
            ) from error
    return _open_database(url)


def _open_database(url: str) -> RDBStorage:
    """See `open_storage`."""
    shown = re.sub(r":[^:@/]*@", ":***@", url)
    name, colon, rest = url.partition(":")
    with_driver, extra = _DRIVERS.get(name, (name, ""))
    try:
        return _connect(with_driver + colon + rest)
    except ImportError as error:
        install = f"pip install 'mario-envpool[search,{extra}]'" if extra else error
        raise ValueError(
            f"--storage {shown} needs a driver that is not installed: {install}"
        ) from error
    except Exception as error:  # any of SQLAlchemy's, or of a database's driver
        reason = str(error).split("\n")[0]
        raise ValueError(
            f"cannot open --storage {shown} ({reason}); a URL is journal:///FILE, "
            "sqlite:///FILE or DATABASE://USER:PASSWORD@HOST/NAME"
        ) from error


def _connect(url: str) -> RDBStorage:
    """Opens a database, whose tables another process may be making."""
    # A server may have closed a connection since it was used.
    kwargs = _SQLITE if url.startswith("sqlite") else {"pool_pre_ping": True}
    attempt = 0
    while True:
        attempt += 1
        try:
            return RDBStorage(
                url,
                engine_kwargs=kwargs,
                heartbeat_interval=HEARTBEAT_S,
                grace_period=GRACE_S,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(
                    _RETRIES
                ),
            )
        except (IntegrityError, ProgrammingError, OperationalError) as error:
            made = "already exists" in str(error) or "duplicate key" in str(error)
            if not made or attempt == _ATTEMPTS:
                raise
            time.sleep(0.5)
