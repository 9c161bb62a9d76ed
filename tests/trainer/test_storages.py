"""Searches that share a real PostgreSQL; skipped where there is none."""

import glob
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

optuna = pytest.importorskip("optuna", reason="needs the extra [search]")
pytest.importorskip("psycopg", reason="needs the extra [postgresql]")

from optuna.trial import TrialState  # noqa: E402
from stub_runs import SPACE, impatient_search  # noqa: E402

from trainer.config.schema import RunConfig  # noqa: E402
from trainer.tuning.search_config import SearchConfig  # noqa: E402
from trainer.tuning.study import counted, open_storage  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

BASE = RunConfig(device="cpu")
TRIALS = 9


def find(program):
    """A program of PostgreSQL's; Debian has them in no folder of PATH."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{program}"))
    return found[-1] if found else shutil.which(program)


@pytest.fixture(scope="module")
def postgresql():
    """The URL of a database on a server of our own."""
    initdb, server = find("initdb"), find("postgres")
    if not (initdb and server):
        pytest.skip("needs PostgreSQL (apt-get install postgresql)")
    # It refuses to run as root.
    user = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="mario-postgresql-"))
    if user:
        shutil.chown(folder, **user)
    command = [initdb, "-D", folder / "data", "-U", "mario", "--auth=trust", "-N"]
    options = {"cwd": folder, "capture_output": True, **user}
    subprocess.run(command, check=True, **options)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [server, "-D", folder / "data", "-p", str(port), "-k", folder]
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [*command, "-h", "127.0.0.1"], cwd=folder, stdout=log, stderr=log, **user
    )
    url = f"postgresql://mario:secret@127.0.0.1:{port}/postgres"
    try:
        wait_for_server(port, process, folder / "log")
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        log.close()
        shutil.rmtree(folder)


def wait_for_server(port, process, log):
    import psycopg

    end = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(
                host="127.0.0.1", port=port, user="mario", dbname="postgres"
            ).close()
            return
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)


@pytest.mark.slow
def test_three_processes_share_a_search_and_one_is_killed(postgresql, tmp_path):
    """All begin at once, on an empty database; no trial is lost or doubled."""
    space = tmp_path / "mine.py"
    space.write_text(SPACE)
    config = SearchConfig(
        space=f"{space}:space", trials=TRIALS, max_steps=2000, max_seconds=100.0,
        pruner="none", out=tmp_path / "out", storage=postgresql,
    )  # fmt: skip
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=impatient_search, args=(config, BASE)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    mark = config.folder / "hangs"
    end = time.monotonic() + 200
    while not (mark.exists() and mark.read_text()):
        assert time.monotonic() < end, "no trial has begun"
        time.sleep(0.05)
    killed = int(mark.read_text())
    assert killed in {process.pid for process in processes}
    time.sleep(1)  # it has given a sign of life
    os.kill(killed, signal.SIGKILL)
    for process in processes:
        process.join(200)
        expected = -signal.SIGKILL if process.pid == killed else 0
        assert process.exitcode == expected

    storage = open_storage(postgresql, config.folder)
    study = optuna.load_study(study_name=config.name, storage=storage)
    done = counted(study)
    assert [trial.state for trial in done] == [TrialState.COMPLETE] * TRIALS
    (lost,) = (t for t in study.trials if t.state == TrialState.FAIL)
    (again,) = (t for t in done if t.system_attrs.get("failed_trial") == lost.number)
    assert again.params == lost.params
    # Those of the base run come first; twice if two processes begin the search at once.
    assert sum(trial.params["lr"] == 2e-3 for trial in done) in (1, 2)
    who = {(config.folder / f"trial-{t.number:03}/pid").read_text() for t in done}
    assert len(who) == 2
    storage.remove_session()
    storage.engine.dispose()
