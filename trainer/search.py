"""Searches for better settings with Optuna: `python -m trainer.search`.

Every trial is a whole run with values from the search space, in its own folder. Trials
that clear less than other trials did at the same step are ended early. A file or a
database (--storage) holds all trials. The same command resumes a search after Ctrl-C or
a crash, and several processes with the same --name share the work, on one machine or on
many.

    python -m trainer.search --trials 20 --jobs 2
    python -m trainer.search --name mine --space mine.py:space --seeds 2
    python -m trainer.search --name pipes -- --task SuperMarioBros-1-2-v0 --lag 1

Flags after `--` are flags of `python -m trainer.run` and apply to all trials. The
command needs Optuna: pip install 'mario-envpool[search]'.

Exit status: 0, 128 plus the number of a signal that ended it (130 after Ctrl-C), or 2
with one line `error: ...` on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer.cli import main_of_runs, parse
from trainer.machine.imports import extra
from trainer.tuning.search_config import SearchConfig


def _search(config: SearchConfig, flags: list[str]) -> None:
    # Imported here, because --help works without Optuna.
    with extra("search", "trainer.search needs Optuna"):
        from optuna.exceptions import OptunaError
    from trainer.tuning.report import finish
    from trainer.tuning.study import search

    value = "seconds to clear" if config.minimise else "clear rate"
    try:
        finish(search(config, parse(flags)), config.folder, value, flags)
    except (OptunaError, MemoryError) as error:
        raise RuntimeError(str(error)) from error


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    return main_of_runs(
        SearchConfig,
        _search,
        "search",
        __doc__,
        argv,
        instead={name: name for name in ("--max-steps", "--max-seconds")},
        interrupted="interrupted; the same command resumes the search",
    )


if __name__ == "__main__":
    sys.exit(main())
