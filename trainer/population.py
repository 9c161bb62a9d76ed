"""Population-based training (Jaderberg et al. 2017): `python -m trainer.population`.

Members train with settings of their own, a generation at a time. Then those of the
lowest quarter take the weights of one of the highest (exploit) and change its settings
a little (explore), so that settings become schedules. Every such step is a line here
and in population.jsonl. After an interruption the same command resumes.

    python -m trainer.population --members 4 --generations 10
    python -m trainer.population --jobs 2 -- --task SuperMarioBros-1-2-v0

Flags behind `--` are those of `python -m trainer.run` and hold for all members. Exit
status: 0, 130 after Ctrl-C, or 2 with one line `error: ...` on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer.cli import main_of, parse
from trainer.tuning import command
from trainer.tuning.population import PopulationConfig, evolve


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    own, flags = command.split(sys.argv[1:] if argv is None else argv)

    def work(config: PopulationConfig) -> None:
        instead = "--generations and --steps-per-generation"
        command.check_flags(flags, {"--max-steps": instead, "--max-seconds": instead})
        evolve(config, parse(flags))

    return main_of(
        PopulationConfig,
        work,
        "population",
        __doc__,
        own,
        {"--space": "--mutations"},
        "interrupted; the same command resumes the population",
    )


if __name__ == "__main__":
    sys.exit(main())
