"""Storage of the trials of a study: a file, or a shared database."""

from __future__ import annotations

import os
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
from optuna.trial import TrialState
from sqlalchemy import NullPool
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from trainer.config import shown

# Seconds between heartbeats of a process, and after which a process without one counts
# as dead.
HEARTBEAT_S = 10
GRACE_S = 60

# Retries of a trial whose process was killed, possibly because the trial needs too much
# memory.
_RETRIES = 2

_JOURNAL = "journal:///"

# Seconds that a process waits for the write of another. Connections are closed after
# use, because Python 3.13 warns of open ones.
_SQLITE = {"connect_args": {"timeout": 60}, "poolclass": NullPool}

# Databases that need an extra, by the scheme of the URL: the driver, and the extra.
_DRIVERS = {
    "postgresql": ("postgresql+psycopg", "postgresql"),
    "postgres": ("postgresql+psycopg", "postgresql"),
    "mysql": ("mysql+pymysql", "mysql"),
    "mariadb": ("mariadb+pymysql", "mysql"),
}

# Attempts to open a database whose tables another process may be making.
_ATTEMPTS = 5


class Journal(JournalStorage, BaseHeartbeat):
    """Optuna's journal file, with the heartbeats that Optuna has only in databases."""

    def __init__(self, path: Path) -> None:
        super().__init__(JournalFileBackend(str(path)))

    def record_heartbeat(self, trial_id: int) -> None:
        """See `BaseHeartbeat`."""
        # Another process may have considered this one dead and restarted the trial.
        with suppress(UpdateFinishedTrialError):
            self.set_trial_system_attr(trial_id, "heartbeat", time.time())

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        stale = []
        running = (TrialState.RUNNING,)
        for trial in self.get_all_trials(study_id, deepcopy=False, states=running):
            # A restarted trial inherits the heartbeat of the one before it, so its
            # start counts too.
            assert trial.datetime_start is not None
            heartbeat = float(trial.system_attrs.get("heartbeat", 0.0))
            last_sign = max(heartbeat, trial.datetime_start.timestamp())
            if last_sign < time.time() - GRACE_S:
                stale.append(trial._trial_id)
        return stale

    def get_heartbeat_interval(self) -> int:
        """See `BaseHeartbeat`."""
        return HEARTBEAT_S

    def get_heartbeat_stale_trial_callback(self) -> RetryHeartbeatStaleTrialCallback:
        """See `BaseHeartbeat`."""
        return RetryHeartbeatStaleTrialCallback(_RETRIES)


def open_storage(url: str, folder: Path) -> BaseStorage:
    """Opens the storage of a search."""
    url = os.path.expandvars(url)
    old = folder / "study.db"
    if not url:
        url = f"sqlite:///{old}" if old.exists() else f"{_JOURNAL}{folder}/study.log"
    if url.startswith(_JOURNAL):
        try:
            return Journal(Path(url.removeprefix(_JOURNAL)))
        except OSError as error:
            raise ValueError(
                f"cannot open --storage {url} ({error.strerror}); give "
                "journal:///FILE in an existing folder"
            ) from error
    short = shown.value("secret", url)
    scheme, colon, rest = url.partition(":")
    driver, extra = _DRIVERS.get(scheme, (scheme, ""))
    try:
        return _open_database(driver + colon + rest)
    except ImportError as error:
        install = f"pip install 'mario-envpool[search,{extra}]'" if extra else error
        raise ValueError(
            f"--storage {short} needs a driver that is not installed: {install}"
        ) from error
    except Exception as error:  # from SQLAlchemy, or from the driver of a database
        reason = shown.without(str(error).split("\n")[0], [url])
        raise ValueError(
            f"cannot open --storage {short} ({reason}); give journal:///FILE, "
            "sqlite:///FILE or DATABASE://USER:PASSWORD@HOST/NAME"
        ) from error


def _open_database(url: str, attempt: int = 1) -> RDBStorage:
    """Opens a database, whose tables another process may be making."""
    try:
        return RDBStorage(
            url,
            # A server may have closed an idle connection.
            _SQLITE if url.startswith("sqlite") else {"pool_pre_ping": True},
            heartbeat_interval=HEARTBEAT_S,
            grace_period=GRACE_S,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(_RETRIES),
        )
    except (IntegrityError, ProgrammingError, OperationalError) as error:
        made = "already exists" in str(error) or "duplicate key" in str(error)
        if not made or attempt == _ATTEMPTS:
            raise
    time.sleep(0.5)
    return _open_database(url, attempt + 1)
