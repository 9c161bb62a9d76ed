"""Asks for runs on the label GPU, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

_SUPPORT = Path(__file__).parents[1]
_TREE = _SUPPORT.parents[1]


class Result(NamedTuple):
    """What a run left."""

    error: str  # a traceback
    reports: list[dict[str, Any]]
    counts: dict[str, dict[str, int]]  # by thread: launches, copies, waits
    values: dict[str, Any]  # what else `runs.run` returned

    @property
    def kinds(self) -> set[str]:
        """The kinds of the reported faults."""
        return {report["kind"] for report in self.reports}

    @property
    def text(self) -> str:
        """The error and the faults, for people."""
        lines = [self.error] * bool(self.error)
        for report in self.reports:
            lines += [f"[{report['kind']}] {report['text']}"]
            lines += [f"    {line}" for line in report["where"]]
        return "\n".join(lines)


class LabelGpu:
    """A process that makes runs, one after the other."""

    def __init__(self) -> None:
        paths = [str(_TREE), str(_SUPPORT), os.environ.get("PYTHONPATH", "")]
        # Not a pipe, which would fill. `close` closes it.
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "label_gpu"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def run(self, plant: str = "", how: Any = (), **options: Any) -> Result:
        """A run with options of the trainer, and a fault of plants.py.

        `how` are more arguments of `runs.run`.
        """
        return self._ask(options=options, plant=plant, counts=False, **dict(how))

    def count(self, preset: str, options: dict[str, Any]) -> Result:
        """The counts of `counts.count`, as values."""
        return self._ask(name=preset, options=options, plant="", counts=True)

    def play(self, scenario: str, plant: str = "") -> Result:
        """A function of scenarios.py, and a fault of plants.py."""
        return self._ask(scenario=scenario, plant=plant)

    def _ask(self, **request: Any) -> Result:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._log.seek(0)
            raise RuntimeError(f"the label GPU has ended:\n{self._log.read()[-3000:]}")
        values = json.loads(answer)
        error, counts = values.pop("error"), values.pop("counts", {})
        return Result(error, values.pop("reports", []), counts, values)
