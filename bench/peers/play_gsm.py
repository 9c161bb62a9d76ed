"""Plays gym-super-mario-bros 7.4.0 for a policy in another process (bench/transfer.py).

    python play_gsm.py SuperMarioBros-1-1-v0 '["NOOP", "right", "right+A"]'

A line of JSON on stdin, {"noops": n} to begin an episode behind n idle frames or
{"action": i, "frames": k} to hold an action for up to k frames, is answered on stdout
by a line of JSON and the picture, 240 x 256 x 3 bytes of RGB. It runs with the peer's
own interpreter, so it knows neither mario_envpool nor the trainer.
"""

from __future__ import annotations

import json
import os
import sys
import warnings


def main() -> None:
    """Serves requests until stdin ends."""
    # What imports and games print must not get between the answers.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    import gym
    import gym_super_mario_bros
    from nes_py.wrappers import JoypadSpace

    assert gym_super_mario_bros.make is not None  # imported for its registrations
    task, actions = sys.argv[1], json.loads(sys.argv[2])
    game = gym.make(task, disable_env_checker=True).unwrapped
    env = JoypadSpace(game, [action.split("+") for action in actions])
    for line in sys.stdin:
        request = json.loads(line)
        done, info = False, {}
        if "noops" in request:
            picture = env.reset()
            for _ in range(request["noops"]):
                picture, _, done, info = game.step(0)
        else:
            for _ in range(request["frames"]):
                picture, _, done, info = env.step(request["action"])
                if done:
                    break
        answer = {
            "done": bool(done),
            "flag_get": bool(info.get("flag_get", False)),
            "x_pos": int(info.get("x_pos", 0)),
        }
        out.write(json.dumps(answer).encode() + b"\n" + picture.tobytes())
        out.flush()


if __name__ == "__main__":
    main()
