"""Plays episodes for videos: the players, the shots and the camera."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mario_envpool.env import FRAMES_PER_SECOND
from trainer.film.draw import PANEL_WIDTH, Panel, Picture, Reading, enlarge
from trainer.film.filmed_env import HEIGHT, WIDTH, FilmedEnv, Step, button_names
from trainer.models.policy import Policy
from trainer.rollout.actor import sample

# Lengths after the end: the fall or the flag, then a still picture.
_AFTERMATH_FRAMES, _STILL_FRAMES = 100, 50


class Decision(NamedTuple):
    """An action, with the policy's probabilities and value.

    Attributes:
        action: index of the action.
        probabilities: (A,) float32; None for a person.
        value: value of the critic; None for a person and for a level without a head.
    """

    action: int
    probabilities: npt.NDArray[np.float32] | None
    value: float | None


Decide = Callable[[Step], Decision]


class Player:
    """A policy that plays n games side by side."""

    def __init__(self, policy: Policy, games: int, *, seed: int, argmax: bool) -> None:
        """Prepares to act."""
        self._policy = policy
        self._generator = None
        if not argmax:
            self._generator = torch.Generator(policy.device).manual_seed(seed)
        size = policy.model.state_size
        self._state = torch.zeros(games, size, device=policy.device)
        self._first = torch.ones(games, dtype=torch.bool, device=policy.device)

    @property
    def memory(self) -> Tensor:
        """The network's memory, (n, state size); for `recall`."""
        return self._state

    def recall(self, memory: Tensor) -> None:
        """Restores the `memory` of an earlier moment of the games."""
        self._state = memory
        self._first[:] = False

    @torch.no_grad()
    def decide(self, steps: Sequence[Step]) -> list[Decision]:
        """Chooses an action in each game, from the game's last step."""
        policy = self._policy
        obs = torch.from_numpy(np.stack([step.obs for step in steps]))
        obs = obs.to(policy.device)
        kind = policy.device.type
        with torch.autocast(kind, policy.dtype, policy.dtype is not None):
            output, self._state = policy.model(
                obs[None], self._state, self._first[None]
            )
        self._first[:] = False
        logits = output.logits[0]
        actions = (
            logits.argmax(-1)
            if self._generator is None
            else sample(logits, self._generator)
        )
        odds = logits.softmax(-1).cpu().numpy()
        values = map(self._value, steps, output.values[0].cpu())
        return list(map(Decision, actions.tolist(), odds, values))

    def _value(self, step: Step, values: Tensor) -> float | None:
        """The value of a game; None if the network has no head for its level."""
        if not values.ndim:
            return float(values)
        level = f"{step.info['world']}-{step.info['stage']}"
        levels = self._policy.env.levels
        return float(values[levels.index(level)]) if level in levels else None

    def alone(self, step: Step) -> Decision:
        """Acts in the only game; clears the memory at the start of an episode."""
        self._first[:] |= step.opening
        return self.decide([step])[0]


class Shot(NamedTuple):
    """One step on film.

    Attributes:
        frames: (n, 240, 256, 3) uint8.
        reading: data for the panel.
    """

    frames: Picture
    reading: Reading


def film_episode(
    game: FilmedEnv, start: Step, decide: Decide, caption: str
) -> Iterator[Shot]:
    """Plays an episode to its end, and yields some pictures after it."""
    names = [button_names(buttons) for buttons in game.buttons]
    step, total, count = start, 0.0, 0
    while not step.ending:
        decision, seen = decide(step), step.obs
        step = game.step(decision.action)
        total, count = total + step.reward, count + 1
        reading = Reading(
            level=f"{step.info['world']}-{step.info['stage']}",
            caption=caption,
            buttons=game.buttons[decision.action],
            names=names,
            action=decision.action,
            probabilities=decision.probabilities,
            value=decision.value,
            total=total,
            step=count,
            x=step.info["x_pos"],
            obs=seen,
            ending=step.ending,
        )
        yield Shot(step.frames, reading)
    for frame in after_the_end(game, step):
        yield Shot(frame[None], reading)


def after_the_end(game: FilmedEnv, step: Step) -> Iterator[Picture]:
    """Pictures after an episode's last step: the fall or the flag, then a still."""
    last = step.frames[-1]
    if step.terminated:
        for frame in game.aftermath(_AFTERMATH_FRAMES):
            last = frame
            yield last
    for _ in range(_STILL_FRAMES):
        yield last


def trained(steps: int) -> str:
    """The caption of a policy."""
    return f"trained {steps:,} steps"


class Camera:
    """Turns shots into the pictures of a video, at a lower rate if requested."""

    def __init__(self, *, scale: int, every: int = 1, overlay: bool = True) -> None:
        """Sets the size and the rate."""
        self._scale, self._every = scale, every
        self._panel = Panel(scale) if overlay else None
        self._count = 0
        self._drawn: tuple[Reading, Picture] | None = None
        self.fps = FRAMES_PER_SECOND / every
        width = WIDTH + (PANEL_WIDTH if overlay else 0)
        self.size = (width * scale, HEIGHT * scale)
        """Width and height of the pictures."""

    def develop(self, shot: Shot) -> Iterator[Picture]:
        """The pictures of one shot, (height, width, 3) uint8."""
        for frame in shot.frames:
            self._count += 1
            if (self._count - 1) % self._every == 0:
                yield self._picture(frame, shot.reading)

    def _picture(self, frame: Picture, reading: Reading) -> Picture:
        large = enlarge(frame, self._scale)
        if self._panel is None:
            return large
        if self._drawn is None or self._drawn[0] is not reading:
            self._drawn = reading, self._panel.draw(reading)
        return np.concatenate((large, self._drawn[1]), axis=1)
