"""Runs an unmodified program for gym-super-mario-bros on this package.

    python -m mario_envpool.compat [--gymnasium] PROGRAM [ARGS]

``import gym_super_mario_bros`` and ``import nes_py`` find ``mario_envpool.compat`` in
the program and in the processes that it starts with ``multiprocessing``. Environments
are those of old Gym where it is installed; ``--gymnasium``: of Gymnasium, for programs
that use its wrappers.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from . import install


def main() -> None:
    """Runs the program as ``python PROGRAM [ARGS]`` would."""
    arguments = sys.argv[1:]
    library = "gym"
    if arguments[:1] == ["--gymnasium"]:
        library = arguments.pop(0).removeprefix("--")
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__, file=sys.stderr if not arguments else sys.stdout)
        raise SystemExit(0 if arguments else 2)
    program = Path(arguments[0])
    if not program.is_file():
        raise SystemExit(
            f"error: {str(program)!r} is not a file; give the program that "
            "`python` runs: python -m mario_envpool.compat PROGRAM [ARGS]"
        )
    sys.argv = arguments
    # `python -m` put the current folder first, `python PROGRAM` its folder.
    sys.path[0] = str(program.resolve().parent)
    install(library)
    runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    main()
