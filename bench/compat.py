"""Frames per second of mario_envpool.compat and of gym-super-mario-bros 7.4.0.

Both run the loop of upstream's README without its render(): SIMPLE_MOVEMENT, uniform
actions, one frame per step. They take turns, each in a separate process and interpreter
(bench/peers.sh makes upstream's); the ratio is the median of the pairs.

    python bench/compat.py --frames 20000 --pairs 5
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from typing import Any

PEER = "gsm"


def modules(program: str) -> tuple[Any, Any, Any]:
    """(package, SIMPLE_MOVEMENT, JoypadSpace) of "compat" or "upstream"."""
    if program == "compat":
        import mario_envpool.compat as package
        from mario_envpool.compat.actions import SIMPLE_MOVEMENT
        from mario_envpool.compat.wrappers import JoypadSpace
    else:
        import gym_super_mario_bros as package
        from gym_super_mario_bros.actions import SIMPLE_MOVEMENT
        from nes_py.wrappers import JoypadSpace
    return package, SIMPLE_MOVEMENT, JoypadSpace


def measure(program: str, frames: int) -> float:
    """Frames per second of CPU time, with resets, after 500 frames of warm-up."""
    package, movement, joypad_space = modules(program)
    # Without the wrappers of gym.make: its checker takes half of a step, and gym
    # 0.26's time limit fails on 4-tuples.
    env = joypad_space(package.SuperMarioBrosEnv(), movement)
    env.reset()
    for i in range(500 + frames):
        if i == 500:
            start = time.process_time()
        if env.step(env.action_space.sample())[2]:
            env.reset()
    return frames / (time.process_time() - start)


def measured_apart(python: str, program: str, frames: int) -> float:
    """Runs `measure` in a separate process."""
    command = [python, __file__, "--program", program, "--frames", str(frames)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--program", choices=("compat", "upstream"))
    args = parser.parse_args()
    if args.program:
        print(measure(args.program, args.frames))
        return
    from runners import peer_python

    ours, theirs = [], []
    for _ in range(args.pairs):
        ours.append(measured_apart(sys.executable, "compat", args.frames))
        upstream = str(peer_python(PEER))
        theirs.append(measured_apart(upstream, "upstream", args.frames // 10))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    print(f"mario_envpool.compat         {statistics.median(ours):10,.0f} frames/s")
    print(f"gym-super-mario-bros 7.4.0   {statistics.median(theirs):10,.0f} frames/s")
    print(f"ratio (median of {args.pairs} pairs)   {ratio:8.1f}")


if __name__ == "__main__":
    main()
