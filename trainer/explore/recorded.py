"""Demonstrations of a run's levels from files: recordings and plans.

Files have the buttons of every frame (trainer/planning/demonstration.py), but a run
takes one action per step of several frames. A file fits a run if its buttons change
only between the run's steps and each combination is an action of the run. Recordings of
policies with the same frame skip fit, and so do the plans of `trainer.plan`. Idle
frames at the beginning count as those of the run's episodes. A file that does not fit
raises an error that names the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config.schema import EnvConfig
from trainer.explore.demonstrations import (
    SEARCHED_ENVS,
    Bytes,
    Way,
    pool_like,
    starts_of,
)
from trainer.planning import demonstration
from trainer.planning.demonstration import GAME_OPTIONS, Demonstration, byte_of, text_of
from trainer.rollout.arrays import IntArray

# Resets that look for a given number of idle frames.
_RESETS = 100


def read_ways(
    env: EnvConfig,
    levels: Sequence[str],
    seed: int,
    paths: Sequence[Path],
    log: Callable[[str], None],
) -> list[Way]:
    """Reads demonstrations as ways of a run."""
    files = {path: demonstration.load(path) for path in paths}
    made = {path: one for path, one in files.items() if one.ending == "cleared"}
    if not made:
        raise ValueError(
            f"none of the {len(files)} demonstrations of --demos reaches the end of "
            "its level; give at least one that does"
        )
    pool = pool_like(env, seed, SEARCHED_ENVS)
    try:
        for path, one in made.items():
            _check_game(path, one, pool, levels)
        cut = {path: _steps(path, one, env) for path, one in made.items()}
        actions = _numbers({path: some for path, (_, some) in cut.items()}, env)
        # The stage and the idle frames of each file, which tell its start.
        keys = {p: (levels.index(one.level), cut[p][0]) for p, one in made.items()}
        wanted = {keys[path]: one for path, one in made.items()}
        starts = {key: _start(pool, *key, one) for key, one in wanted.items()}
    finally:
        pool.close()
    left_out = len(files) - len(made)
    more = f"; {left_out} that end earlier are left out" * bool(left_out)
    steps = sum(map(len, actions.values()))
    log(f"demonstrations: {len(made)} files, {steps:,} steps to the flag{more}")
    return [Way(keys[path][0], starts[keys[path]], actions[path]) for path in made]


def _check_game(
    path: Path, made: Demonstration, pool: Any, levels: Sequence[str]
) -> None:
    """Raises ValueError for a demonstration of another game or level."""
    if made.level not in levels:
        what = made.level or "the whole game"
        raise ValueError(
            f"{path} is a demonstration of {what}, but the run plays "
            f"{', '.join(levels)}: leave the file out, or change --levels"
        )
    for name in GAME_OPTIONS:
        here = pool.config[name]
        if made.options[name] != here:
            raise ValueError(
                f"{path} was made with {name}={made.options[name]}, but the run has "
                f"{here}: a demonstration needs the same value"
            )


def _steps(path: Path, made: Demonstration, env: EnvConfig) -> tuple[int, IntArray]:
    """Idle frames at the beginning, and the buttons of the run's steps after them."""
    frames = np.frombuffer(made.buttons, np.uint8)
    held = np.flatnonzero(frames)
    most = min(int(held[0]) if len(held) else 0, env.noop_max)
    # Take as many idle frames as possible, because no policy decided on them.
    cuts = {
        idle: _first_change(frames[idle:], env.frame_skip) for idle in range(most + 1)
    }
    idle = max(cuts, key=lambda idle: (cuts[idle] is None, cuts[idle] or 0, idle))
    change = cuts[idle]
    if change is not None:
        raise ValueError(
            f"{path} changes buttons within a step of the run, in frame "
            f"{idle + change:,}: a recording needs the run's --frame-skip "
            f"{env.frame_skip} and at most --noop-max {env.noop_max} idle frames; "
            "record it with these options"
        )
    return idle, frames[idle :: env.frame_skip].astype(np.int64)


def _numbers(bytes_: Mapping[Path, IntArray], env: EnvConfig) -> dict[Path, IntArray]:
    """Converts bytes of buttons to the indices of the run's actions."""
    numbers = {byte_of(action): n for n, action in enumerate(env.actions)}
    used = set(np.concatenate(list(bytes_.values())).tolist())
    for path, some in bytes_.items():
        for step, byte in enumerate(some.tolist()):
            if byte not in numbers:
                texts = [text_of(b).replace("none", "NOOP") for b in sorted(used)]
                raise ValueError(
                    f"{path} has {text_of(byte)} in step {step:,}, but the run's "
                    f"actions are {', '.join(env.actions)}; for all actions of the "
                    f"files, give --custom-actions {','.join(texts)}"
                )
    table = np.zeros(256, np.int64)
    table[list(numbers)] = list(numbers.values())
    return {path: table[some] for path, some in bytes_.items()}


def _first_change(frames: Bytes, frame_skip: int) -> int | None:
    """The first frame whose buttons differ from the frame before in the same step."""
    (changes,) = (np.diff(frames.astype(np.int64)) != 0).nonzero()
    within = changes[(changes + 1) % frame_skip != 0]
    return int(within[0]) + 1 if len(within) else None


def _start(pool: Any, stage: int, idle: int, made: Demonstration) -> Bytes:
    """A start of the run's episodes with a given number of idle frames.

    The number is random, so this tries many resets. Work RAM has the game's counters of
    frames, so it differs between numbers of idle frames.
    """
    console = demonstration.environment(made)
    console.reset()
    for _ in range(idle):
        console.step(0)
    ram = console.ram.tobytes()
    for starts in starts_of(pool, stage, _RESETS):
        for blob in starts:
            if ram in blob.tobytes():
                start: Bytes = blob.copy()
                return start
    raise ValueError(
        f"no episode of the run begins like the demonstrations of {made.level} with "
        f"{idle} idle frames: record them with the run's options"
    )
