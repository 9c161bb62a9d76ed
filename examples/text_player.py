"""A player that reads nothing but `obs_type="text"`; a line for each episode.

python examples/text_player.py --steps 2000
"""

from __future__ import annotations

import re
import warnings

import gymnasium
import tyro

from mario_envpool import SIMPLE_MOVEMENT

# Gymnasium mistakes -v3, another revision of the ROM, for a newer version of -v0.
warnings.filterwarnings("ignore", ".*SuperMarioBros.* is out of date")
# "pit 3 ahead, 2 wide; pipe 6 ahead, 2 wide, 2 up": name, distance, height, side.
THING = re.compile(r"([a-z ]+) (\d+) ahead(?:, \d+ wide)?(?:, (\d+) (up|down))?")
NEAR = 3  # tiles


def choose(text: str) -> str:
    """Returns the buttons for a moment: jumps over all that is near."""
    lines = dict(line.split(": ") for line in text.splitlines()[1:])
    mario = lines["Mario"]
    if "rising" in mario:
        return "right+A+B"  # the longer A is held, the higher is the jump
    if "in the air" in mario:
        lands_before_pit = "above ground" in mario and "pit 1 ahead" in lines["Ahead"]
        return "left" if lands_before_pit else "right+B"
    if "A is held" in mario:
        return "right+B"  # A must be released before the next jump
    for name, ahead, _, side in THING.findall(lines["Ahead"]):
        if int(ahead) <= NEAR and (name.endswith("pit") or side == "up"):
            return "right+A+B"
    for _, ahead, height, _ in THING.findall(lines["Enemies"]):
        if int(ahead) <= NEAR and int(height or 0) <= 1:
            return "right+A+B"
    return "right+B"


def main(steps: int = 2000, level: str = "1-1", seed: int = 1) -> None:
    """Plays `steps` steps of a level."""
    env = gymnasium.make(f"mario_envpool:SuperMarioBros-{level}-v0", obs_type="text")
    text, info = env.reset(seed=seed)
    print(text)
    for _ in range(steps):
        action = SIMPLE_MOVEMENT.index(choose(text))
        text, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            end = "clear" if info["flag_get"] else "death"
            print(f"{end}  x_pos {info['x_pos']:5d}  time {info['time']}")
            text, info = env.reset()
    env.close()


if __name__ == "__main__":
    tyro.cli(main)
