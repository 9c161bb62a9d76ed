"""Stands in for gym_super_mario_bros._app.cli."""

from __future__ import annotations

import argparse

from mario_envpool.compat import actions, make
from mario_envpool.compat.stand_ins.nes_py.app.play_human import play_human
from mario_envpool.compat.stand_ins.nes_py.app.play_random import play_random
from mario_envpool.compat.wrappers import JoypadSpace


def main() -> None:
    """Plays a game by keyboard or with random actions."""
    lists = {
        "right": actions.RIGHT_ONLY,
        "simple": actions.SIMPLE_MOVEMENT,
        "complex": actions.COMPLEX_MOVEMENT,
    }
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--env", "-e", default="SuperMarioBros-v0", help="its id")
    parser.add_argument("--mode", "-m", default="human", choices=["human", "random"])
    parser.add_argument("--actionspace", "-a", default="nes", choices=["nes", *lists])
    parser.add_argument("--steps", "-s", type=int, default=500, help="random steps")
    parser.add_argument("--stages", "-S", nargs="+", help="of a RandomStages id")
    options = parser.parse_args()
    stages = {} if options.stages is None else {"stages": options.stages}
    env = make(options.env, **stages)
    if options.actionspace in lists:
        env = JoypadSpace(env, lists[options.actionspace])
    if options.mode == "human":
        play_human(env)
    else:
        play_random(env, options.steps)
