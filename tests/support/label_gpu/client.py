"""Calls functions on the label GPU, in a process of their own; `on_label_gpu` tests."""

import functools
import logging
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from label_gpu import build

_SUPPORT = Path(__file__).parents[1]


@functools.cache
def _server():
    """The process, with its errors; it ends when its stdin is closed, with this one."""
    paths = [str(_SUPPORT.parents[1]), str(_SUPPORT), os.environ.get("PYTHONPATH", "")]
    log = tempfile.TemporaryFile("w+")  # not a pipe, which would fill  # noqa: SIM115
    environment = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "label_gpu"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=os.environ | environment,
    )
    return process, log


def call(function, **arguments):
    """Calls a function of a file: its result, the traceback of an error, the faults."""
    process, log = _server()
    try:
        request = function.__code__.co_filename, function.__name__, arguments
        process.stdin.write(pickle.dumps(request))
        process.stdin.flush()
        return pickle.load(process.stdout)
    except BaseException as error:  # also a test's time limit
        process.kill()
        _server.cache_clear()
        log.seek(0)
        raise RuntimeError(f"the label GPU failed:\n{log.read()[-3000:]}") from error


def text(error, reports):
    """An error and faults, for people."""
    lines = [error] * bool(error)
    for kind, what, where in reports:
        lines += [f"[{kind}] {what}", *[f"    {line}" for line in where]]
    return "\n".join(lines)


def on_label_gpu(*kinds):
    """A test that runs on the label GPU, and of which these kinds are reported."""

    def decorate(function):
        @functools.wraps(function)
        def test(**arguments):
            _, error, reports = call(function, **arguments)
            assert not error, text(error, reports)
            assert {report[0] for report in reports} == set(kinds), text("", reports)

        skip = pytest.mark.skipif(bool(build.missing()), reason=build.missing())
        return pytest.mark.slow(skip(test))

    return decorate


def warnings():
    """The warnings of this process from now on; for what runs on the label GPU."""
    messages, handler = [], logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    return messages
