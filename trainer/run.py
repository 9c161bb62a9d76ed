"""Trains a policy: `python -m trainer.run` (level 1-1, no flags needed).

A run repeats one loop: collect unrolls, learn from them, report. It writes everything
to its run folder: config.json, metrics.jsonl, TensorBoard curves and checkpoints.

    python -m trainer.run --max-seconds 600
    python -m trainer.run --task SuperMarioBros-1-2-v0 --model cnn-345k --gamma 0.99
    python -m trainer.run --resume auto
    tensorboard --logdir runs
    torchrun --nproc-per-node 2 --max-restarts 20 -m trainer.run

Ctrl-C, SIGTERM, SIGHUP (a closed terminal) and SIGUSR1 (Slurm's --signal) end a run
after the current update, with a checkpoint.

Exit status: 0 if the run is done (solved, or out of steps or time); 128 plus the number
of the signal that ended it (130 after Ctrl-C) if its checkpoint is written; 2 if it
could not start; 1 if it failed later. With 1 and 2, stderr has the reason in one line,
`error: ...`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from trainer.cli import code_in, parse
from trainer.config.schema import RunConfig
from trainer.machine.process import (
    checked_stdout,
    complain,
    open_streams,
    say,
    signal_of,
)
from trainer.machine.ranks import (
    FirstRankError,
    LostRankError,
    join,
    says_first,
)
from trainer.session import files
from trainer.session.build import out_of_memory_advice
from trainer.session.training import open_run, run_training, train
from trainer.show import page

__all__ = ["main", "run_training"]


def _write_report(folder: Path) -> None:
    """Writes the report of a run; a failure here does not fail the run."""
    try:
        written = page.write([folder])
    except Exception as error:
        complain(f"no report.html: {error}")
    else:
        say(f"wrote {written}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    open_streams()
    with checked_stdout() as stdout:
        status = _main(argv)
    if stdout.lost:
        complain(f"some lines are not in stdout ({stdout.lost})")
    return status


def _main(argv: Sequence[str] | None) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    arguments = sys.argv[1:] if argv is None else argv
    config, run = RunConfig(), None
    try:
        ranks = join()
        if not ranks.is_first:
            logging.getLogger().setLevel(logging.ERROR)
        description = __doc__ or ""
        parsed = files.config_after_restart(
            ranks, lambda: parse(arguments, description), code_in(arguments)
        )
        if parsed is None:
            ranks.close()
            return 0
        config = parsed
        run = open_run(config, ranks=ranks)
        files.note(run.run_dir, config.resume, ranks)
        ended_by = int(train(run)["signal"])
        # All wait for it: torchrun ends the others when one has ended by a signal.
        ranks.first(lambda: _write_report(run.run_dir))
        ranks.close()
        return 128 + ended_by if ended_by else 0
    except FirstRankError:
        pass  # rank 0 reports the reason
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        text = str(error)
        if isinstance(error, LostRankError):
            where = run.run_dir if run else "RUN_DIR"
            text += (
                "; torchrun --max-restarts 20 restarts all processes from the last "
                f"checkpoint, and --resume {where} continues from it"
            )
        # An error in a thread arrives as the cause of another error.
        if torch.OutOfMemoryError in (type(error), type(error.__cause__)):
            text = out_of_memory_advice(config, error)
        if says_first(text):
            complain(f"error: {text}")
    except KeyboardInterrupt as error:
        return 128 + signal_of(error)
    return 1 if run else 2


if __name__ == "__main__":
    sys.exit(main())
