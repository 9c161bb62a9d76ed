"""Runner of a pool behind EnvPool's interface: ours, or one of EnvPool's own games.

    python run_pool.py mario_envpool | envpool

Both go through the same Python classes (EnvPool's gymnasium ones), so they are asked
for exactly the same work: `recv` a batch, `send` actions for the environments in it.
"""

from __future__ import annotations

import importlib
import sys
from functools import partial

import numpy as np
import workload


class Pool:
    """Keeps all environments of a pool busy; asynchronous if batch_size < num_envs."""

    def __init__(self, module: str, request: workload.Request) -> None:
        """Builds the pool and waits for the first batch."""
        self.resets = 0
        make = importlib.import_module(module).make
        self._env = make(
            request.task,
            env_type="gymnasium",
            num_envs=request.num_envs,
            batch_size=request.batch_size or request.num_envs,
            num_threads=request.num_threads,
            seed=request.seed,
            **request.options,
        )
        self._env.async_reset()
        self._ids = self._env.recv()[4]["env_id"]
        actions = int(self._env.action_space.n)
        if actions == len(workload.ACTION_SETS[workload.ACTIONS[request.actions]]):
            tape = workload.action_tape(request.actions, request.num_envs, request.seed)
        else:  # a game that is not Mario: uniform over its own actions
            rng = np.random.default_rng(request.seed)
            shape = (workload.TAPE_STEPS, request.num_envs)
            tape = rng.integers(0, actions, shape, dtype=np.int32)
        self._tape = tape
        self._at = 0

    def step(self) -> int:
        """Sends actions for the last batch and receives the next one."""
        ids = self._ids
        self._env.send(self._tape[self._at].take(ids), ids)
        self._at = (self._at + 1) % workload.TAPE_STEPS
        _, _, _, _, info = self._env.recv()
        self._ids = info["env_id"]
        rows = len(self._ids)
        steps = int(np.count_nonzero(info["elapsed_step"]))
        self.resets += rows - steps  # a reset's row has elapsed_step 0
        return steps

    def close(self) -> None:
        """Stops the workers (EnvPool's pools have no close; theirs end with them)."""
        self._env.close()
        del self._env


if __name__ == "__main__":
    workload.serve(partial(Pool, sys.argv[1]))
