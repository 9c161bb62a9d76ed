"""Policies without training: random, right, jumper."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.config.schema import EnvConfig
from trainer.models import PolicyModel, PolicyOutput

# A logit that makes an action practically certain beside zeros.
_SURE = 100.0

# The jumper's rhythm. The height of a jump depends on how long the button is held. The
# game ignores the button until it is released.
_RUN_FRAMES = 36
_JUMP_FRAMES = 30

# Mean difference of two pictures, in grey levels. Against a pipe it was below 0.7 in 95
# of 100 steps of 6 frames; while the picture scrolls, it is above 1.2 in 95 of 100.
_STILL = 1.0


class Constant(PolicyModel):
    """The same logits for every observation."""

    logits: Tensor

    def __init__(self, logits: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("logits", torch.tensor(logits))

    def forward(
        self, obs: Tensor, state: Tensor, first: Tensor
    ) -> tuple[PolicyOutput, Tensor]:
        """See `PolicyModel.forward`; the values are 0."""
        logits = self.logits.expand(*first.shape, -1)
        return PolicyOutput(logits, torch.zeros(first.shape, device=obs.device)), state


class Jumper(PolicyModel):
    """Runs, and jumps in a fixed rhythm or when the picture stands still.

    The state (B, 1) counts the steps since the run began.
    """

    state_size = 1
    run: Tensor
    jump: Tensor

    def __init__(
        self, run: Sequence[float], jump: Sequence[float], frame_skip: int
    ) -> None:
        super().__init__()
        self.register_buffer("run", torch.tensor(run))
        self.register_buffer("jump", torch.tensor(jump))
        self._run_steps = max(1, round(_RUN_FRAMES / frame_skip))
        self._jump_steps = max(1, round(_JUMP_FRAMES / frame_skip))

    def forward(
        self, obs: Tensor, state: Tensor, first: Tensor
    ) -> tuple[PolicyOutput, Tensor]:
        """See `PolicyModel.forward`; the values are 0."""
        change = (obs[:, :, -1].float() - obs[:, :, -2].float()).abs().mean((-2, -1))
        still = change < _STILL
        steps, jumps = state[:, 0], []
        for row in range(len(first)):
            steps = steps.masked_fill(first[row], 0)
            # The button was up for one step, so that a jump may begin.
            stuck = still[row] & (steps >= 1) & (steps < self._run_steps)
            steps = steps.masked_fill(stuck, self._run_steps)
            jumps.append(steps >= self._run_steps)
            steps = (steps + 1) % (self._run_steps + self._jump_steps)
        logits = torch.where(torch.stack(jumps)[..., None], self.jump, self.run)
        values = torch.zeros(first.shape, device=obs.device)
        return PolicyOutput(logits, values), steps[:, None]


def scripted(env: EnvConfig) -> dict[str, PolicyModel]:
    """The policies without training, by name.

    Args:
        env: environment options, for the actions.
    """
    actions = env.actions

    def only(name: str) -> list[float]:
        return [_SURE * (action == name) for action in actions]

    return {
        "random": Constant([0.0] * len(actions)),
        "right": Constant(only("right+B")),
        "jumper": Jumper(only("right+B"), only("right+A+B"), env.frame_skip),
    }
