"""Commands whose standard streams are closed or full."""

import json
import os
import subprocess
import sys

import pytest

from trainer.machine import process

RUN = (
    "trainer.run --device cpu --num-envs 8 --unroll 8 --unrolls-per-batch 8 "
    "--max-steps 300 --no-videos --run-dir run"
)


def run(folder, words, streams, status, unbuffered=""):
    """Runs a command with redirections of a shell; returns stdout and stderr."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m {words} {streams}', sys.executable],
        cwd=folder,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def is_whole(folder):
    """Whether a run has written its files, and nothing but them."""
    for line in (folder / "run/metrics.jsonl").read_text().splitlines():
        json.loads(line)
    json.loads((folder / "run/config.json").read_text())
    names = {path.name for path in (folder / "run").iterdir()}
    return {"report.html", "checkpoints", "messages.txt"} <= names


@pytest.mark.rom
@pytest.mark.slow
@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_run_without_standard_streams(tmp_path, streams):
    _, err = run(tmp_path, RUN, streams, 0)
    assert err == ""
    assert is_whole(tmp_path)


@pytest.mark.rom
@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("streams", [">/dev/full", ">/dev/full 2>/dev/full"])
def test_a_run_whose_stdout_is_full(tmp_path, streams, unbuffered):
    _, err = run(tmp_path, RUN, streams, 0, unbuffered)
    if "2>" not in streams:
        assert err == "some lines are not in stdout (No space left on device)\n"
    assert is_whole(tmp_path)


@pytest.mark.rom
@pytest.mark.slow
@pytest.mark.nightly
def test_other_commands_say_that_stdout_is_full(tmp_path):
    run(tmp_path, RUN, "", 0)
    text = "cannot write to stdout (No space left on device)"
    for words in (
        "trainer.report run",
        "trainer.evaluate --checkpoint run --episodes 1",
        "trainer.video --checkpoint run --max-seconds 1",
        "mario_envpool --options",
    ):
        for unbuffered in ("", "1"):
            _, err = run(tmp_path, words, ">/dev/full", 2, unbuffered)
            assert err == f"error: {text}\n", words
        assert run(tmp_path, words, ">&- 2>&-", 0) == ("", "")
    # An error of the command stays what it is, and a full stderr does not change it.
    _, err = run(tmp_path, "trainer.report nowhere", ">/dev/full", 2)
    assert err.startswith("error: ")
    assert "stdout" not in err
    run(tmp_path, "trainer.report nowhere", "2>/dev/full", 2)


def test_a_reader_that_has_gone_is_no_loss(capsys):
    class Gone:
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            raise BrokenPipeError

        def fileno(self):
            raise OSError

    stdout = process.Stdout(Gone())
    with pytest.raises(process.StdoutError, match="cannot write to stdout"):
        stdout.write("text")
    stdout.finish()
    assert stdout.lost == ""


def test_a_closed_stream_is_opened(monkeypatch):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    process.open_streams()
    opened = [sys.stdin, sys.stdout, sys.stderr]
    assert sys.stdin.read() == ""
    print("nothing")
    process.complain("nothing")
    for stream in opened:
        assert stream.name == os.devnull
        stream.close()
