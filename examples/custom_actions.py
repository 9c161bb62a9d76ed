"""Custom actions: an action set of three combinations of buttons.

python examples/custom_actions.py --steps 20000
"""

from __future__ import annotations

import numpy as np
import tyro

import mario_envpool

# Lists of buttons in the format of gym-super-mario-bros; "right+A+B" is equivalent.
ACTIONS = [["right", "B"], ["right", "A", "B"], ["NOOP"]]


def main(steps: int = 20_000, num_envs: int = 8) -> None:
    """Plays random actions, each held for five steps, and prints how far they lead."""
    pool = mario_envpool.make(
        "SuperMarioBros-1-1-v0", num_envs=num_envs, custom_actions=ACTIONS
    )
    rng = np.random.default_rng(1)
    actions = np.zeros(num_envs, np.int64)
    ends = []
    pool.reset()
    for step in range(steps // num_envs):
        if step % 5 == 0:
            actions = rng.choice(len(ACTIONS), size=num_envs, p=[0.35, 0.6, 0.05])
        _, _, terminated, _, info = pool.step(actions)
        ends += info["x_pos"][terminated].tolist()
    if ends:
        print(f"{len(ends)} episodes, x_pos {np.mean(ends):.0f}, best {max(ends)}")
    else:
        print("no episode has ended yet; raise --steps")
    pool.close()


if __name__ == "__main__":
    tyro.cli(main)
