"""Runs the trainer on the label GPU: `PYTHONPATH=tests/support python -m label_gpu`.

Reads lines of JSON, each with the arguments of `runs.run` or `counts.count` and the
name of a fault of plants.py, or with the name of a function of scenarios.py. Writes a
line with what was reported and counted for each. Each is a process of its own, which
begins with everything imported.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from label_gpu import build

_LIBRARY = build.load()  # before PyTorch

from label_gpu.cuda import Cuda, install  # noqa: E402


def main() -> int:
    """Serves runs until stdin ends."""
    cuda = install(_LIBRARY)
    importlib.import_module("torch._dynamo")  # which the first operator would import
    for part in ("counts", "plants", "runs", "scenarios"):
        importlib.import_module(f"label_gpu.{part}")

    answers = os.dup(1)
    os.dup2(2, 1)  # what runs print is not an answer
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _answer(answers, cuda, json.loads(line))
        _, status = os.waitpid(child, 0)
        if status:
            _write(answers, {"error": f"the run ended with status {status}"})
    return 0


def _answer(answers: int, cuda: Cuda, request: dict[str, Any]) -> None:
    """A run in this process, which ends with it."""
    from label_gpu.counts import count
    from label_gpu.plants import PLANTS
    from label_gpu.runs import run
    from label_gpu.scenarios import SCENARIOS

    result: dict[str, Any] = {"error": ""}
    if plant := request.pop("plant", ""):
        PLANTS[plant]()
    try:
        with tempfile.TemporaryDirectory() as folder, cuda.thread_mode():
            if name := request.get("scenario"):
                SCENARIOS[name]()
            else:
                function = count if request.pop("counts") else run
                result |= function(cuda, Path(folder), **request)
    except Exception:
        result["error"] = traceback.format_exc()
    result["reports"] = [report._asdict() for report in cuda.order.reports]
    result["counts"] = {name: dict(of) for name, of in cuda.order.counts.items()}
    _write(answers, result)
    os._exit(0)


def _write(answers: int, result: dict[str, Any]) -> None:
    with os.fdopen(os.dup(answers), "w") as file:
        file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    sys.exit(main())
