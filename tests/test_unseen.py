"""bench/unseen.py: what it runs, how it goes on, and its table."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench"
RESULT = {"clear_rate": 0.5, "interval": [0.4, 0.6], "clears": 50, "episodes": 100}
ENDS = {"deaths": [[1, 1090, 79], [1, 1100, 85], [2, 1100, 79]], "stalls": [[1, 90, 0]]}


@pytest.fixture
def unseen(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("unseen")


@pytest.fixture
def calls(unseen, monkeypatch):
    """Commands of the trainer, which are not run; the second run is interrupted."""
    made = []

    def call(words):
        made.append(words)
        if words[0] == "trainer.run":
            flag = "--resume" if "--resume" in words else "--run-dir"
            folder = Path(words[words.index(flag) + 1])
            (folder / "checkpoints").mkdir(exist_ok=True)
            (folder / "checkpoints" / "step-000000001.pt").touch()
            return 130 if len(made) == 3 else 0
        folder = Path(words[words.index("--checkpoint") + 1]) / "evaluation"
        folder.mkdir()
        results = [
            RESULT | ENDS | {"level": level, "argmax": argmax}
            for level in words[-1].split(",")
            for argmax in (False, True)
        ]
        (folder / "table.json").write_text(json.dumps({"results": results}))
        return 0

    monkeypatch.setattr(unseen, "call", call)
    return made


def test_it_goes_on_where_it_was_interrupted(unseen, calls, tmp_path, capsys):
    words = ["--worlds", "2", "6", "--out", str(tmp_path), "--", "--seed", "12"]
    assert unseen.main(words) == 130
    assert unseen.main(words) == 0
    trained, played, broken, resumed, _ = calls
    assert trained[trained.index("--test-levels") + 1] == "2-1,2-2,2-3,2-4"
    assert trained[trained.index("--max-steps") + 1] == "5000000"
    assert played[-1] == "2-1,2-2,2-3,2-4"
    assert broken[broken.index("--test-levels") + 1] == "6-1,6-2,6-3,6-4"
    assert resumed[:3] == ["trainer.run", "--resume", str(tmp_path / "without-6")]
    shown = capsys.readouterr().out
    assert "50 of 100" in shown
    assert "1,088 to 1,151: 2 of 4" in shown
    assert "mean of 8 levels: 50.0%" in shown
    assert unseen.main(words) == 0
    assert len(calls) == 5  # nothing is done twice
    with pytest.raises(SystemExit):
        unseen.main([*words[:-1], "13"])
    assert "--seed 12" in capsys.readouterr().err


def test_ctrl_c_waits_for_the_trainer(tmp_path):
    """The trainer gets the signal from the terminal, and needs a while to save."""
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import signal, sys, time\n"
        "def end(*_):\n"
        "    time.sleep(1)\n"
        "    open('saved', 'w').close()\n"
        "    sys.exit(130)\n"
        "signal.signal(signal.SIGINT, end)\n"
        "time.sleep(0.5)\n"
        "open('ready', 'w').close()\n"
        "time.sleep(60)\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(BENCH)!r}); import unseen; "
        "sys.exit(unseen.call(['slow']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, start_new_session=True
    )
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)  # until the test's own time limit
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    assert (tmp_path / "saved").exists()
