"""Random play with the API of gym-super-mario-bros: raw pictures, 4-tuples.

    python examples/gym_super_mario_bros_readme.py --render

In a program for gym-super-mario-bros 7.4.0, only the three imports change.
"""

import argparse

import mario_envpool.compat as gym_super_mario_bros
from mario_envpool.compat.actions import SIMPLE_MOVEMENT
from mario_envpool.compat.wrappers import JoypadSpace


def main() -> None:
    """Plays and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000, help="frames to play")
    parser.add_argument("--render", action="store_true", help="in a window (pygame)")
    args = parser.parse_args()

    env = gym_super_mario_bros.make("SuperMarioBros-1-1-v0")
    env = JoypadSpace(env, SIMPLE_MOVEMENT)

    done = True
    best, total, episodes = 0, 0.0, 0
    for _ in range(args.steps):
        if done:
            state = env.reset()  # (240, 256, 3) uint8
            episodes += 1
        state, reward, done, info = env.step(env.action_space.sample())
        best = max(best, info["x_pos"])
        total += reward
        if args.render:
            env.render()
    env.close()
    print(f"{args.steps} frames of {state.shape}, {episodes} episodes")
    print(f"best position {best}, reward {total:.0f}")


if __name__ == "__main__":
    main()
