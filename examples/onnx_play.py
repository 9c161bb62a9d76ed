"""Plays a policy in an ONNX file with onnxruntime, without PyTorch.

    python -m trainer.export released:1-1 --onnx policy.onnx
    python examples/onnx_play.py policy.onnx

The metadata of the file says which environments the policy plays.
"""

import argparse
import json

import numpy as np
import onnxruntime

import mario_envpool

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("file", nargs="?", default="policy.onnx")
parser.add_argument("--num-envs", type=int, default=8)
parser.add_argument("--steps", type=int, default=500)
args = parser.parse_args()

session = onnxruntime.InferenceSession(args.file)
about = json.loads(session.get_modelmeta().custom_metadata_map["mario_envpool"])
pool = mario_envpool.make(
    about["task"], env_type="gymnasium", num_envs=args.num_envs, **about["options"]
)


def image(obs):
    """Pictures as they are; tiles and motion as one frame of 16 rows."""
    if not isinstance(obs, dict):
        return obs
    (motion,) = (part for name, part in obs.items() if name != "tiles")
    motion = motion.view(np.uint8).reshape(len(motion), 1, -1, 16)
    return np.concatenate((obs["tiles"], motion), axis=2)


obs, info = pool.reset()
state = np.zeros((args.num_envs, about["state_size"]), np.float32)
first = np.ones(args.num_envs, bool)
rng, episodes, clears = np.random.default_rng(1), 0, 0
for _ in range(args.steps):
    inputs = {"obs": image(obs), "state": state, "first": first}
    names = [wanted.name for wanted in session.get_inputs()]
    logits, _, *after = session.run(None, {name: inputs[name] for name in names})
    state = after[0] if after else state
    action = (logits + rng.gumbel(size=logits.shape)).argmax(1)  # a sample
    obs, reward, terminated, truncated, info = pool.step(action.astype(np.int32))
    first = info["elapsed_step"] == 0
    done = terminated | truncated
    episodes, clears = episodes + done.sum(), clears + (done & info["flag_get"]).sum()
print(f"{clears} of {episodes} episodes cleared")
