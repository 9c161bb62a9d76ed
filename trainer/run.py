"""Trains a policy: `python -m trainer.run` (level 1-1, no flags needed).

One loop: collect unrolls, learn from them, report. Everything a run leaves
behind is in its folder: config.json, metrics.jsonl, TensorBoard curves and
checkpoints.

    python -m trainer.run --max-seconds 600
    python -m trainer.run --task SuperMarioBros-1-2-v0 --model cnn-345k --gamma 0.99
    python -m trainer.run --resume auto
    tensorboard --logdir runs

Ctrl-C and SIGTERM end a run after the update it is in, with a checkpoint. Exit
status: 0 the run is done (solved, or out of steps or time), 130 or 143 it was
ended by Ctrl-C or SIGTERM and its checkpoint is written, 2 it could not start, 1
it failed later. The reason of 1 and 2 is one line on stderr, `error: ...`.
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
from trainer.session.build import Session
from trainer.session.sizes import out_of_memory_advice
from trainer.session.training import run_training, train
from trainer.show import page

__all__ = ["main", "run_training"]


def _write_report(folder: Path) -> None:
    """Writes the page about a run; without one it is still a finished run."""
    try:
        print(f"wrote {page.write([folder])}", flush=True)
    except Exception as error:
        print(f"no report.html: {error}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    status = 2
    config = RunConfig()
    try:
        config = parse(sys.argv[1:] if argv is None else argv, __doc__ or "")
        session = Session(config)
        status = 1
        ended_by = int(train(session)["signal"])
        _write_report(session.run_dir)
    except torch.OutOfMemoryError as error:
        print(f"error: {out_of_memory_advice(config, error)}", file=sys.stderr)
        return status
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        # A thread's error arrives as the cause of another one.
        memory = isinstance(error.__cause__, torch.OutOfMemoryError)
        text = out_of_memory_advice(config, error) if memory else error
        print(f"error: {text}", file=sys.stderr)
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 128 + ended_by if ended_by else 0


if __name__ == "__main__":
    sys.exit(main())
