"""Runs functions on the label GPU, for client.py.

Reads pickled requests from stdin: the file and the name of a function, and arguments.
Each runs in a fork of this process, in which everything is imported. Writes what it
returned or raised, and what was reported.
"""

import importlib
import os
import pickle
import runpy
import sys
import traceback
from pathlib import Path

from label_gpu import build

_LIBRARY = build.load()  # before PyTorch

from label_gpu import cuda, order  # noqa: E402

# What runs would import; the first operator would import _dynamo.
_IMPORTED = (
    "torch._dynamo", "torch.utils.tensorboard", "label_gpu.table", "small_runs",
    "trainer.session.build", "trainer.machine.device",
)  # fmt: skip


def main():
    """Serves calls until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what runs print is not an answer
    cuda.install(_LIBRARY)
    *_, small_runs, session, device = map(importlib.import_module, _IMPORTED)
    small_runs.make_config(Path())  # reads the options of all parts
    # It has tests of its own, and would take a third of a short run.
    session.check_gpu = lambda *of, **options: device.SelfCheck()
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            pickle.dump(_call(*request), answers)
            answers.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            pickle.dump((None, f"the call ended with status {status}", []), answers)
            answers.flush()


def _call(path, name, arguments):
    """A call in this process, which ends with it."""
    value, error = None, ""
    try:
        function = runpy.run_path(path)[name]
        with cuda.thread_mode():
            value = getattr(function, "__wrapped__", function)(**arguments)
    except Exception:
        error = traceback.format_exc()
    return value, error, order.reports


if __name__ == "__main__":
    main()
