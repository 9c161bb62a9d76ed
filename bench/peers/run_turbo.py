"""Runner of env-supermariobrosnes-turbo-emu (PyPI, Rust): one synchronous vector.

Its defaults are ours (skip 4, gray, 84x84 by area, stack 4); its info arrays are
switched off, which flatters it. It wants the World ROM as a file.
"""

from __future__ import annotations

import workload
from env_supermariobrosnes_turbo_emu import EnvSuperMarioBrosNesTurboEmuVecEnv


class Turbo:
    """Steps all lanes; lanes that are done are reset by mask, as it asks for."""

    def __init__(self, request: workload.Request) -> None:
        """Builds the vector and resets every lane."""
        self.resets = 0
        self._tape = workload.action_tape(
            request.actions, request.num_envs, request.seed
        )
        table = workload.ACTION_SETS[workload.ACTIONS[request.actions]]
        self._env = EnvSuperMarioBrosNesTurboEmuVecEnv(
            "SuperMarioBros-Nes-v0",
            state=request.task or "Level1-1",
            # Its button names are upper case.
            use_restricted_actions=[[b.upper() for b in action] for action in table],
            num_envs=request.num_envs,
            num_threads=request.num_threads,
            rom_path=request.rom,
            obs_resize=(workload.SIZE, workload.SIZE),
            frame_skip=workload.FRAME_SKIP,
            frame_stack=workload.STACK,
            **{"info_filter": "none", **request.options},
        )
        self._env.reset(seed=request.seed)
        self._at = 0

    def step(self) -> int:
        """One step of every lane."""
        actions = self._tape[self._at]
        self._at = (self._at + 1) % workload.TAPE_STEPS
        _, _, terminated, truncated, _ = self._env.step(actions)
        done = terminated | truncated
        if done.any():
            self._env.reset(options={"reset_mask": done})
            self.resets += int(done.sum())
        return len(actions)

    def close(self) -> None:
        """Frees the vector."""
        self._env.close()


if __name__ == "__main__":
    workload.serve(Turbo)
