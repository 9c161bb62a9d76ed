"""Trains a policy: `python -m trainer.run` (level 1-1, no flags needed).

A run repeats one loop: collect unrolls, learn from them, report. It writes everything
to its run folder: config.json, metrics.jsonl, TensorBoard curves and checkpoints.

    python -m trainer.run --max-seconds 600
    python -m trainer.run --task SuperMarioBros-1-2-v0 --model cnn-345k --gamma 0.99
    python -m trainer.run --resume auto
    tensorboard --logdir runs
    torchrun --nproc-per-node 2 --max-restarts 20 -m trainer.run

Ctrl-C and SIGTERM end a run after the current update, with a checkpoint.

Exit status: 0 if the run is done (solved, or out of steps or time); 130 or 143 if
Ctrl-C or SIGTERM ended it and its checkpoint is written; 2 if it could not start; 1 if
it failed later. With 1 and 2, stderr has the reason in one line, `error: ...`.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from trainer.cli import parse
from trainer.config.schema import RunConfig
from trainer.machine.ranks import (
    ALONE,
    FirstRankError,
    LostRankError,
    join,
    restarts_left,
    says_first,
)
from trainer.session import restart
from trainer.session.build import Session
from trainer.session.loop import Interrupted
from trainer.session.sizes import out_of_memory_advice
from trainer.session.training import run_training, train
from trainer.show import page

__all__ = ["main", "run_training"]


def _write_report(folder: Path) -> None:
    """Writes the report of a run; a failure here does not fail the run."""
    try:
        print(f"wrote {page.write([folder])}", flush=True)
    except Exception as error:
        print(f"no report.html: {error}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    arguments = sys.argv[1:] if argv is None else argv
    process = _Process()
    try:
        return process.run(arguments)
    except FirstRankError:
        return process.status  # rank 0 reports the reason
    except torch.OutOfMemoryError as error:
        return process.failed(out_of_memory_advice(process.config, error))
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        # An error in a thread arrives as the cause of another error.
        memory = isinstance(error.__cause__, torch.OutOfMemoryError)
        if memory:
            return process.failed(out_of_memory_advice(process.config, error))
        return process.failed(f"{error}{process.advice(error)}")
    except Interrupted as error:
        return 128 + error.signal
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


class _Process:
    """This process of a run, which may be one of several.

    Attributes:
        status: exit status after a failure.
        config: of the run; the defaults until the command line is read.
    """

    def __init__(self) -> None:
        self.status, self.config = 2, RunConfig()
        self._ranks = ALONE
        self._run_dir: Path | None = None

    def run(self, arguments: Sequence[str]) -> int:
        """Trains; returns the exit status."""
        ranks = self._ranks = join()
        if not ranks.is_first:
            logging.getLogger().setLevel(logging.ERROR)
        description = __doc__ or ""
        config = restart.config_of(ranks, lambda: parse(arguments, description))
        if config is None:
            ranks.close()
            return 0
        self.config = config
        session = Session(config, ranks=ranks)
        self.status, self._run_dir = 1, session.run_dir
        restart.note(session.run_dir, config.resume, ranks)
        ended_by = int(train(session)["signal"])
        if ranks.is_first:
            _write_report(session.run_dir)
        ranks.close()
        return 128 + ended_by if ended_by else 0

    def failed(self, text: str) -> int:
        """Prints a reason on stderr, unless another process did; the exit status."""
        if says_first(text):
            print(f"error: {text}", file=sys.stderr)
        return self.status

    def advice(self, error: Exception) -> str:
        """How to continue after the loss of a process; "" after other errors."""
        if not isinstance(error, LostRankError):
            return ""
        if restarts_left():
            return "; torchrun restarts all processes from the last checkpoint"
        now = f", --resume {self._run_dir} continues now" if self._run_dir else ""
        return f"; torchrun --max-restarts 20 restarts all processes automatically{now}"


if __name__ == "__main__":
    sys.exit(main())
