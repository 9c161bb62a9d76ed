"""Plays with an installed wheel: `python wheel_trial.py STEPS`, for tests/wheels.sh.

stdout is equal on all machines: per task a line every 100 steps, with the digest of all
results so far. stderr describes the machine. Fails where the interpreter runs. The
trainer needs torch, so only its compiled module is imported.
"""

from __future__ import annotations

import hashlib
import platform
import sys
import time

import gymnasium
import numpy as np

import mario_envpool
from mario_envpool import _core
from trainer import _native

ENVS = 4
# The default picture and timing; nes-py's timing with RAM, tiles and objects.
TASKS = {
    "SuperMarioBros-1-1-v0": {},
    "SuperMarioBrosRandomStages-v0": {"obs_type": "ram", "timing": "nes_py"},
    "SuperMarioBros2-v0": {"obs_type": ["tiles", "motion", "ram"], "frame_skip": 2},
}
# Indices of SIMPLE_MOVEMENT, mostly to the right.
ACTIONS = np.array([0, 1, 2, 3, 3, 3, 4, 4, 4, 5, 6])


def flat(value: object) -> list[np.ndarray]:
    """The arrays of a result, also of nested dictionaries, in a fixed order."""
    if isinstance(value, dict):
        return [array for key in sorted(value) for array in flat(value[key])]
    return [np.ascontiguousarray(value)]


def play(task: str, options: dict[str, object], steps: int) -> None:
    """Plays a task with random actions and prints digests."""
    pool = mario_envpool.make(task, num_envs=ENVS, seed=7, **options)
    random = np.random.RandomState(1)
    digest = hashlib.sha256()
    ids = np.arange(ENVS, dtype=np.int32)
    best = ends = 0
    result = pool.reset()
    for step in range(1, steps + 1):
        for part in result:
            for array in flat(part):
                digest.update(array.tobytes())
        result = pool.step(ACTIONS[random.randint(len(ACTIONS), size=ENVS)])
        best = max(best, int(result[-1]["x_pos"].max()))
        ends += int(result[2].sum())
        if step % 100 == 0 or step == steps:
            digest.update(pool.snapshot(ids).tobytes())
            print(task, step, f"x {best}, {ends} ends,", digest.hexdigest())
    pool.close()


def play_one(steps: int) -> None:
    """Plays Gymnasium's environment of one game, and draws its whole pictures."""
    env = gymnasium.make("mario_envpool/SuperMarioBros-1-1-v3", render_mode="rgb_array")
    random = np.random.RandomState(2)
    digest = hashlib.sha256()
    obs, _ = env.reset(seed=3)
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(
            int(ACTIONS[random.randint(len(ACTIONS))])
        )
        for value in (obs, env.render(), reward, terminated, truncated):
            digest.update(np.ascontiguousarray(value).tobytes())
        if terminated or truncated:
            env.reset()
    env.close()
    print("gymnasium.make", steps, digest.hexdigest())


def main(steps: int) -> int:
    """Plays all tasks; returns 1 where the engine is another."""
    engine, problem = _core.nes_engine()
    print(
        f"{platform.machine()}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, engine {engine}, CPU path "
        f"{_core.cpu_path()} (resizing), {_core.nes_cpu_path()} (drawing), "
        f"{_native.best_path()} (trainer)",
        file=sys.stderr,
    )
    if engine != "translated":
        print(f"not translated: {problem or 'MARIO_ENGINE is set'}", file=sys.stderr)
        return 1
    for task, options in TASKS.items():
        start = time.monotonic()
        play(task, options, steps)
        seconds = time.monotonic() - start
        print(f"{task}: {ENVS * steps / seconds:.0f} steps/s", file=sys.stderr)
    play_one(steps)
    print(f"{(len(TASKS) * ENVS + 1) * steps} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
