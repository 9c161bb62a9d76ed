"""Runner of gym-super-mario-bros 7.4.0: one environment, or gym's AsyncVectorEnv.

The wrappers are lean (no checkers, no gym.make around the environment, one resize for
four frames), which flatters it. `num_threads` above 1 asks for AsyncVectorEnv with
`num_envs` processes; otherwise `num_envs` must be 1.
"""

from __future__ import annotations

import cv2
import gym
import gym_super_mario_bros
import numpy as np
import workload
from nes_py.wrappers import JoypadSpace

cv2.setNumThreads(1)


class Preprocessed(gym.Env):
    """Frame skip, gray, resize and stack in the shape of gym 0.26."""

    def __init__(self, task: str, actions: str) -> None:
        """Builds one environment of the registered id `task`."""
        table = workload.ACTION_SETS[workload.ACTIONS[actions]]
        env = gym.make(task, disable_env_checker=True).unwrapped
        self._env = JoypadSpace(env, [list(action) or ["NOOP"] for action in table])
        shape = (workload.STACK, workload.SIZE, workload.SIZE)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gym.spaces.Discrete(len(table))
        self._stack = np.zeros(shape, np.uint8)

    def _shrunk(self, rgb: np.ndarray) -> np.ndarray:
        gray = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
        size = (workload.SIZE, workload.SIZE)
        return cv2.resize(gray, size, interpolation=cv2.INTER_AREA)

    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        """The first observation, four times the same picture."""
        self._stack[:] = self._shrunk(self._env.reset())
        return self._stack.copy(), {}

    def step(self, action):  # type: ignore[no-untyped-def]
        """Up to four frames with the same buttons."""
        total = 0.0
        for _ in range(workload.FRAME_SKIP):
            rgb, reward, done, info = self._env.step(int(action))
            total += reward
            if done:
                break
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._shrunk(rgb)
        return self._stack.copy(), total, done, False, info

    def close(self) -> None:
        """Frees the emulator."""
        self._env.close()


class One:
    """One environment, stepped by this process."""

    def __init__(self, request: workload.Request) -> None:
        """Builds and resets the environment."""
        if request.num_envs != 1:
            raise ValueError(
                f"num_envs={request.num_envs} needs num_threads > 1 (AsyncVectorEnv)"
            )
        self.resets = 0
        self._tape = workload.action_tape(request.actions, 1, request.seed)[:, 0]
        self._env = Preprocessed(request.task, request.actions)
        self._env.reset()
        self._at = 0

    def step(self) -> int:
        """One step, and a reset where the episode ended."""
        action = self._tape[self._at]
        self._at = (self._at + 1) % workload.TAPE_STEPS
        done = self._env.step(action)[2]
        if done:
            self._env.reset()
            self.resets += 1
        return 1

    def close(self) -> None:
        """Frees the environment."""
        self._env.close()


class Many:
    """gym's AsyncVectorEnv: a process for each environment, shared memory."""

    def __init__(self, request: workload.Request) -> None:
        """Starts the processes and resets every environment."""
        self.resets = 0
        self._tape = workload.action_tape(
            request.actions, request.num_envs, request.seed
        )

        def make() -> Preprocessed:
            return Preprocessed(request.task, request.actions)

        self._env = gym.vector.AsyncVectorEnv([make] * request.num_envs)
        self._env.reset()
        self._at = 0

    def step(self) -> int:
        """One step of every environment; it resets them within the step."""
        actions = self._tape[self._at]
        self._at = (self._at + 1) % workload.TAPE_STEPS
        _, _, terminated, truncated, _ = self._env.step(actions)
        self.resets += int((terminated | truncated).sum())
        return len(actions)

    def close(self) -> None:
        """Stops the processes."""
        self._env.close()


def make(request: workload.Request) -> workload.Program:
    """One environment or many, with level 1-1 of the World program as default."""
    assert gym_super_mario_bros.make is not None  # imported for its registrations
    request.task = request.task or "SuperMarioBros-1-1-v3"
    return One(request) if request.num_threads <= 1 else Many(request)


if __name__ == "__main__":
    workload.serve(make)
