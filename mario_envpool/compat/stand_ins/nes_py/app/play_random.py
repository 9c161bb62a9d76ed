"""Stands in for nes_py.app.play_random."""

from __future__ import annotations

from typing import Any


def play_random(env: Any, steps: int) -> None:
    """Shows random actions in an environment with 4-tuples, and closes it."""
    done = True
    for _ in range(steps):
        if done:
            env.reset()
        _, _, done, _ = env.step(env.action_space.sample())
        env.render()
    env.close()
