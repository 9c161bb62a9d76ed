"""One game that several people watch and steer; a policy or one of them plays.

The game advances frame by frame, so a person's buttons act on every frame. The policy
decides as in its run, every `frame_skip` frames. While a person plays, the policy
continues to decide, but its decisions are only shown. Every viewer may pause, step,
rewind, and choose the level and the speed; one viewer at a time holds the pad.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from mario_envpool.env import FRAMES_PER_SECOND
from trainer.config.tasks import all_levels
from trainer.film.filmed_env import (
    Decision,
    FilmedEnv,
    Picture,
    Player,
    Reading,
    Shot,
    Step,
    after_the_end,
    button_names,
    game_config,
    trained,
)
from trainer.film.live import HUMAN, Episodes, Pace, PlayOptions, QuitError
from trainer.machine.device import prepare
from trainer.models.policy import playing_device

# Frames between two snapshots, and how many snapshots are kept (two minutes).
_FRAMES_BETWEEN, _MOST_MOMENTS = 30, 240


class Command(NamedTuple):
    """A viewer's request."""

    viewer: int
    name: str  # a case of `SharedGame._do`
    # a pad byte, a bool (pause), seconds, a level ("": the run's levels) or a factor
    value: Any = None


@dataclass
class _Progress:
    """The progress of an episode that the console's state does not have."""

    stack: tuple[Picture, ...]  # what the network sees, (1, H, W) each, the newest last
    best: tuple[int, ...]  # level, area and best position
    frame: int = 0
    total: float = 0.0  # return
    alone: int = 0  # frames since a person last played
    stalled: int = 0  # frames without a new best position while no person played


class _Moment(NamedTuple):
    """The state at a decision of the policy, for `rewind`."""

    clock: int  # frames since the level was chosen, over all episodes
    snapshot: bytes
    progress: _Progress
    memory: Tensor | None


class SharedGame:
    """Plays episodes for `show_episodes`; see the top of this file."""

    def __init__(self, options: PlayOptions, pace: Pace) -> None:
        self._options, self._pace, self._seed = options, pace, options.seed
        self._policy = options.load() if options.checkpoint else None
        self._env = self._policy.env if self._policy else HUMAN
        self.frame_skip = self._env.frame_skip
        """Frames from one decision of the policy to the next; 1 without a policy."""
        self._order = all_levels(self._env.task)
        self.levels = self._order if self._policy is None else ("", *self._order)
        """The levels that viewers may choose; "" stands for the run's levels."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a viewer has changed the game's status."""
        self._action_bytes: list[int] = []
        if self._policy:
            self._action_bytes = FilmedEnv(game_config(self._env)).buttons
        self._names = [button_names(byte) for byte in self._action_bytes]
        #: The server puts the viewers' commands here, from any thread.
        self.commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._viewers: set[int] = set()
        self._holder: int | None = None
        self._pad, self._pressed = 0, 0
        self._paused, self._frames_to_step = False, 0
        self._leaves, self._turned_back = False, False
        self._moments: deque[_Moment] = deque(maxlen=_MOST_MOMENTS)
        self._choose(options.level or self.levels[0])
        self._begin()

    @property
    def status(self) -> dict[str, Any]:
        """What is not part of a `Reading`; for the thread that plays."""
        history = self._clock - self._moments[0].clock if self._moments else 0
        return {
            "viewers": len(self._viewers),
            "player": self._holder,  # who holds the pad; None: the policy plays
            "paused": self._paused,
            "speed": self._pace.speed,  # 1 is the console's
            "chosen": self._chosen,  # level, "" for the run's levels
            # Seconds that `rewind` can go back.
            "history": round(history / FRAMES_PER_SECOND, 1),
        }

    def episodes(self) -> Episodes:
        """Yields episodes without end; raises QuitError after "quit"."""
        # The thread that plays has its own current GPU.
        prepare(playing_device(self._options.device))
        while True:
            yield self._episode()
            self._seed += 1
            if self._options.is_run:
                self._policy = self._options.load()
            self._begin()

    def _choose(self, level: str) -> None:
        """Makes the game of a level; the first episode has yet to begin."""
        env, skip = self._env, self._env.frame_skip
        # One frame per step; the rewards of the frames sum to those of the run's steps.
        # `_limit` applies the run's limits, because they do not apply to people.
        options = game_config(
            env,
            level=level,
            frame_skip=1,
            stack_num=1,
            custom_actions=(),
            repeat_action_probability=0.0,
            rng_frames_max=0,
            reward_step=env.reward_step / skip,
            stall_steps=0,
            max_episode_steps=HUMAN.max_episode_steps,
        )
        # The action set "raw" has every combination of buttons.
        self._game = FilmedEnv(options | {"action_set": "raw"}, seed=self._seed)
        self._chosen = level
        self._clock = 0
        self._moments.clear()

    def _begin(self) -> None:
        """Begins an episode."""
        self._step = self._game.reset()
        self._pilot: Player | None = None
        if self._policy is not None:
            argmax = self._options.argmax
            self._pilot = Player(self._policy, seed=self._seed, argmax=argmax)
        stack = (self._step.obs,) * self._env.stack_num
        self._progress = _Progress(stack, _best(self._step))
        self._ending = ""
        self._tail: Iterator[Picture] | None = None
        self._decide()

    def _episode(self) -> Iterator[Shot]:
        """Yields every frame until the episode ends or a viewer wants another one."""
        yield self._shot(self._step.frames)
        while self._attend():
            frames = self._advance()
            if frames is None:
                if self._ending == "cleared" and self._holder is not None:
                    following = self._order.index(self._step.level) + 1
                    self._choose(self._order[following % len(self._order)])
                return
            yield self._shot(frames)

    def _shot(self, frames: Picture) -> Shot:
        """The shot of a frame; keeps every picture if the game may stop there."""
        if self._paused or not self._progress.frame:
            self._pace.restart()
        return Shot(frames, self._reading())

    def _advance(self) -> Picture | None:
        """The next pictures; None after the last."""
        self._frames_to_step = max(0, self._frames_to_step - 1)
        if self._turned_back:
            self._turned_back = False
            return self._step.frames
        if not self._ending:
            return self._play()
        if self._tail is None:
            self._tail = after_the_end(self._game, self._step)
        frame = next(self._tail, None)
        return None if frame is None else frame[None]

    def _play(self) -> Picture:
        """Plays one frame."""
        progress, skip = self._progress, self._env.frame_skip
        if self._holder is not None:
            self._pressed = self._pad
        elif self._decision is not None:
            self._pressed = self._action_bytes[self._decision.action]
        # In the action set "raw" an action is its pad byte.
        self._step = step = self._game.step(self._pressed)
        self._clock += 1
        progress.frame += 1
        progress.total += step.reward
        if progress.frame % skip == 0:
            progress.stack = (*progress.stack[1:], step.obs)
        self._ending = step.ending or self._limit()
        if progress.frame % skip == 0 and not self._ending:
            self._decide()
        return step.frames

    def _limit(self) -> str:
        """Whether a limit of the run ends the episode: "stopped", else ""."""
        progress, env = self._progress, self._env
        moved = _best(self._step) != progress.best
        progress.best = _best(self._step)
        if self._holder is not None:
            progress.alone = progress.stalled = 0
            return ""
        progress.alone += 1
        progress.stalled = 0 if moved else progress.stalled + 1
        most = env.stall_steps * env.frame_skip
        stalled = most and progress.stalled >= most
        too_long = progress.alone >= env.max_episode_steps * env.frame_skip
        return "stopped" if stalled or too_long else ""

    def _decide(self) -> None:
        """Takes a snapshot, then lets the policy decide on the current observation."""
        moments, memory = self._moments, self._pilot.memory if self._pilot else None
        if not moments or self._clock - moments[-1].clock >= _FRAMES_BETWEEN:
            snapshot, progress = self._game.snapshot(), replace(self._progress)
            moments.append(_Moment(self._clock, snapshot, progress, memory))
        self._decision: Decision | None = None
        if self._pilot is not None:
            seen = np.concatenate(self._progress.stack)
            self._decision = self._pilot(self._step._replace(obs=seen))

    def _rewind(self, seconds: float) -> None:
        """Goes back to the newest snapshot that is old enough, or to the oldest."""
        until = self._clock - seconds * FRAMES_PER_SECOND
        while len(self._moments) > 1 and self._moments[-1].clock > until:
            self._moments.pop()
        moment = self._moments[-1]
        self._clock, self._progress = moment.clock, replace(moment.progress)
        self._step = self._game.restore(moment.snapshot)._replace(opening=False)
        if self._pilot is not None and moment.memory is not None:
            self._pilot.memory = moment.memory
        self._pressed = self._frames_to_step = 0
        self._ending, self._tail, self._turned_back = "", None, True
        self._decide()

    def _reading(self) -> Reading:
        """The data to show beside the picture."""
        decision, policy = self._decision, self._policy
        return Reading(
            level=self._step.level,
            caption="no policy" if policy is None else trained(policy.steps),
            buttons=self._pressed,
            names=self._names or [button_names(self._pressed)],
            action=decision.action if decision else 0,
            probabilities=decision.probabilities if decision else None,
            value=decision.value if decision else None,
            total=self._progress.total,
            step=self._progress.frame // self.frame_skip,
            x=self._step.info["x_pos"],
            obs=np.concatenate(self._progress.stack) if decision else None,
            ending=self._ending,
        )

    def _stands_still(self) -> bool:
        """Whether the game waits for the next command."""
        if not self._viewers or (self._policy is None and self._holder is None):
            return True
        return self._paused and not (self._frames_to_step or self._turned_back)

    def _attend(self) -> bool:
        """Executes the viewers' commands; False: another episode must begin."""
        waited = False
        while not self._leaves and (self._stands_still() or not self.commands.empty()):
            waited |= self.commands.empty()
            command = self.commands.get()
            self._do(command)
            if command.name != "buttons":
                self.on_change()
        if waited:
            self._pace.restart()
        leaves, self._leaves = self._leaves, False
        return not leaves

    def _do(self, command: Command) -> None:
        """Executes one viewer's command; ignores it if the viewer may not give it."""
        viewer, name, value = command
        match name:
            case "quit":
                raise QuitError
            case "join":
                self._viewers.add(viewer)
            case "take" if self._holder is None:
                self._holder, self._pad = viewer, 0
            case "leave" | "give":
                if name == "leave":
                    self._viewers.discard(viewer)
                if self._holder == viewer:
                    self._holder, self._pad = None, 0
            case "buttons" if self._holder == viewer:
                self._pad = value
            case "pause":
                self._paused, self._frames_to_step = value, 0
            case "step":
                # Until the policy decides again; one frame while a person plays.
                self._paused, self._frames_to_step = True, 1
                if self._holder is None and not self._ending:
                    played = self._progress.frame % self.frame_skip
                    self._frames_to_step = self.frame_skip - played
            case "speed":
                self._pace.speed = value
            case "rewind":
                self._rewind(value)
            case "level":
                self._choose(value)
                self._leaves = True
            case "restart":
                self._leaves = True


def _best(step: Step) -> tuple[int, ...]:
    """Level, area and best position; changes when an episode makes progress."""
    return tuple(step.info[name] for name in ("world", "stage", "area", "best_x"))
