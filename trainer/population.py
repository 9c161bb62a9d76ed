"""Population-based training (Jaderberg et al. 2017): `python -m trainer.population`.

Members train with different settings, one generation at a time. Then each member of
the lowest quarter takes the weights of a member of the highest quarter (exploit) and
changes its settings a little (explore), so that settings become schedules. The command
prints a line for every such step, and writes it to population.jsonl. Ray trains
the members, on this machine or on a Ray cluster. After an interruption the same command
resumes.

    python -m trainer.population --members 4 --generations 10
    python -m trainer.population --jobs 2 -- --task SuperMarioBros-1-2-v0
    python -m trainer.population --ray-address auto --out /shared/population

Flags behind `--` are those of `python -m trainer.run` and hold for all members. Needs
Ray: pip install 'mario-envpool[ray]'.

Exit status: 0, 128 plus the number of a signal that ended it (130 after Ctrl-C), or 2
with one line `error: ...` on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer.cli import main_of_runs, parse
from trainer.machine.imports import extra
from trainer.tuning.population import PopulationConfig


def _evolve(config: PopulationConfig, flags: list[str]) -> None:
    # Here, so that --help needs no Ray.
    with extra("ray", "trainer.population needs Ray"):
        from trainer.tuning.pbt import evolve
    evolve(config, parse(flags))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    limits = "--generations and --steps-per-generation"
    return main_of_runs(
        PopulationConfig,
        _evolve,
        "population",
        __doc__,
        argv,
        instead={"--max-steps": limits, "--max-seconds": limits},
        interrupted="interrupted; the same command resumes the population",
    )


if __name__ == "__main__":
    sys.exit(main())
