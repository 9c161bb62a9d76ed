"""The game as a film: an environment that shows every picture, and episodes in it.

A pool shows only the last picture of a step, about 10 a second; a film has all 60.
Game, observations and rewards equal the pool's bit for bit, because both run the same
native code. The only difference: a film does not call a `reward_fn`, but shows the
built-in reward.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mario_envpool import _core, nes, rom
from trainer.config.schema import EnvConfig
from trainer.config.tasks import check_level, is_native
from trainer.envs.pool import make_pool, packed_obs
from trainer.models.level_policies import PAUSED_FRAMES, POOL_OPTIONS, LevelPolicies
from trainer.models.policy import Policy
from trainer.rollout.collector import sample

Picture = npt.NDArray[np.uint8]

# Rows and columns of the game's picture.
HEIGHT, WIDTH = 240, 256
# Lengths after the end: the fall or the flag, then a still picture.
_AFTERMATH_FRAMES, _STILL_FRAMES = 100, 50

# Pictures of a pause that a film shows; a policy that pauses for random numbers does so
# for minutes.
_SHOWN_OF_PAUSE = 60
_PAUSE = _core.ram_addresses["PauseStatus"]

# Keys of a pool's configuration that configure the pool and not the game.
_OF_THE_POOL = {
    *("num_envs", "batch_size", "num_threads", "max_num_players", "base_path"),
    *("thread_affinity_offset", "seed", "env_seed", "gym_reset_return_info"),
    *("max_episode_steps", "reward_threshold"),
}
_SHOWN = ("left", "right", "up", "down", "select", "start", "A", "B")


def button_names(buttons: int) -> str:
    """The buttons of a pad byte, such as "right A B"; "none" for none."""
    held = [name for name in _SHOWN if buttons & nes.BUTTONS[name]]
    return " ".join(held) or "none"


class Step(NamedTuple):
    """The results of one step."""

    # (n, 240, 256, 3) RGB: every picture, without skipped waits unless asked for
    frames: npt.NDArray[np.uint8]
    obs: npt.NDArray[np.uint8]  # (C, H, W), as a pool returns it
    reward: float  # 0 at the start of an episode
    terminated: bool
    truncated: bool
    info: dict[str, Any]  # the fields of a pool's info, as Python numbers
    opening: bool = False  # the start of an episode, before its first action

    @property
    def level(self) -> str:
        """The level, such as 1-1."""
        return f"{self.info['world']}-{self.info['stage']}"

    @property
    def ending(self) -> str:
        """The ending of the episode: cleared, died or stopped; "" while it is open."""
        if self.info["flag_get"] and self.terminated:
            return "cleared"
        if self.terminated:
            return "died"
        return "stopped" if self.truncated else ""


def game_config(env: EnvConfig, *, level: str = "", **changes: Any) -> dict[str, Any]:
    """The options of the game in the environments of a run.

    Args:
        env: configuration of the run's environments.
        level: play this level, such as "4-2", instead of the task's levels.
        **changes: new values of other fields of `EnvConfig`.

    Raises:
        ValueError: the level does not exist, or the task is not Super Mario Bros.
    """
    if not is_native(env.task):
        raise ValueError(
            f"only Super Mario Bros. tasks can be filmed, got the task {env.task}"
        )
    if level:
        check_level(level, env.task)
    env = replace(env, num_envs=1, groups=1, num_threads=1, reward_fn="", **changes)
    pool = make_pool(env, seed=0)
    config = dict(pool.config)
    pool.close()
    if level:
        config |= {"stages": [level], "random_stages": False}
    return config


def whole_game_config(env: EnvConfig) -> dict[str, Any]:
    """The options of a whole game for `FilmedEnv`, as `LevelPolicies.env` has it.

    An episode is an attempt with three lives: a movie from power-on, which other
    emulators play, too.
    """
    changes: dict[str, Any] = {
        "noop_max": 0,
        "rng_frames_max": 0,
        "repeat_action_probability": 0.0,
        "stall_steps": PAUSED_FRAMES // env.frame_skip,
        "max_episode_steps": 2**31 - 1,
    }
    return game_config(env, **changes) | POOL_OPTIONS


class FilmedEnv:
    """One environment that is played step by step and shows every picture."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        number: int = 0,
        seed: int = 0,
        waits: bool = False,
    ):
        """Starts the game.

        Args:
            config: configuration of a pool (`pool.config`), or from `game_config`.
            number: number of the environment in its pool.
            seed: seed of its idle frames and sticky actions.
            waits: also show the waits that steps skip, for `whole_game_config`.

        Raises:
            RomError: the ROM is not installed.
            ValueError: `waits`, and the episode is not a movie from power-on.
        """
        game = {k: v for k, v in config.items() if k not in _OF_THE_POOL}
        image = rom.load(game["rom"], game["rom_path"])
        if waits and (game["cut_waits"] or game["timing"] != "console"):
            raise ValueError(
                "waits can be shown only with cut_waits=False and timing=console, got "
                f"cut_waits={game['cut_waits']} and timing={game['timing']}"
            )
        self.config = game
        """The options of the game."""
        self.rom_sha1 = hashlib.sha1(image).hexdigest()
        self._env = _core._MarioEnv(image, game, number, seed)
        # A second console, which plays all frames since power-on.
        self._twin = nes.Console(image) if waits else None
        self._shown = 0  # frames of the twin
        self._limit = int(config["max_episode_steps"])
        self._elapsed = 0
        self.buttons = self._env.buttons
        """The pad byte of each action."""
        self.level = ""
        """The level in which the episode began, such as 1-1."""
        self.ending = ""
        """The ending of the episode; "" while it is open."""
        self.played = bytearray()
        """The pad byte of every frame since the episode began, without idle frames."""

    @property
    def ram(self) -> npt.NDArray[np.uint8]:
        """Work RAM, (2048,) uint8, a copy."""
        return self._env.ram

    def reset(self, seed: int | None = None) -> Step:
        """Begins an episode; its picture is the one before the first step."""
        if self._twin is None:
            return self._opening(self._env.reset(seed))
        fields = self._env.reset_and_record()
        self._twin.power_on()
        self._shown = len(self._env.movie)
        self._twin.step_many(self._env.movie)
        return self._opening(fields)

    def _with_waits(self, frames: Picture) -> Picture:
        """The pictures of a step, with those of the waits that it skipped."""
        if self._twin is None:
            return frames
        buttons = self._env.movie[self._shown :]
        self._shown += len(buttons)
        shown, paused = [], 0
        for byte in buttons:
            # A button may end the pause.
            hidden = paused >= _SHOWN_OF_PAUSE and not byte
            self._twin.step(byte, draw=not hidden)
            paused = (paused + 1) * (int(self._twin.ram[_PAUSE]) & 1)
            if not hidden:
                shown.append(self._twin.screen())
        return np.array(shown)

    def snapshot(self) -> bytes:
        """The exact state, for `restore`."""
        return self._env.snapshot()

    def save_console(self) -> bytes:
        """The console's state, as `nes.Console.save` returns it."""
        return self._env.save_console()

    def restore(self, snapshot: bytes) -> Step:
        """Restores a snapshot; steps count from there.

        Args:
            snapshot: from `snapshot`, or one row of the `pool.snapshot` of a pool with
                the same options.

        Raises:
            ValueError: the options, the ROM or the version differ.
        """
        # The pool prepends a header.
        size = len(self._env.snapshot())
        return self._opening(self._env.restore(snapshot[-size:]))

    def _opening(self, fields: Mapping[str, Any]) -> Step:
        self._elapsed = 0
        self.played.clear()
        frames = self._env.render()[None]
        info = _info(fields)
        step = Step(frames, _seen(fields), 0.0, False, False, info, opening=True)
        self.level, self.ending = step.level, ""
        return step

    def step(self, action: int) -> Step:
        """Plays one action."""
        frames, reward, terminated, truncated, fields = self._env.film(action)
        self._elapsed += 1
        self.played += bytes([self.buttons[action]]) * len(frames)
        frames = self._with_waits(frames)
        truncated |= not terminated and self._elapsed >= self._limit
        info = _info(fields)
        step = Step(frames, _seen(fields), reward, terminated, truncated, info)
        self.ending = step.ending
        return step

    def aftermath(self, frames: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Yields pictures after a death or the flag: the fall, the slide down the pole.

        Args:
            frames: the most pictures; each is (240, 256, 3) uint8.
        """
        for _ in range(frames):
            # While the end lasts, every step is one frame and ends the episode again.
            pictures, _, terminated, *_ = self._env.film(0)
            if not terminated:
                return
            yield self._with_waits(pictures)[-1]


def _seen(fields: Mapping[str, Any]) -> npt.NDArray[np.uint8]:
    """The observation in the network's format."""
    if "obs" in fields:
        obs: npt.NDArray[np.uint8] = fields["obs"]
        return obs
    parts = {n.removeprefix("obs:"): fields[n] for n in fields if n.startswith("obs:")}
    return packed_obs(parts)


def _info(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.removeprefix("info:"): value.item()
        for name, value in fields.items()
        if name.startswith("info:")
    }


def whole_game(policies: LevelPolicies, seed: int) -> FilmedEnv:
    """A whole game on film, with its waits where it is a movie."""
    config = whole_game_config(policies.env) | policies.pool_options
    return FilmedEnv(config, seed=seed, waits=config["timing"] == "console")


# Episodes.


@dataclass(frozen=True)
class Reading:
    """The data that the panel shows for one step."""

    level: str
    caption: str
    buttons: int  # pad byte
    names: Sequence[str]  # of all actions
    action: int
    probabilities: npt.NDArray[np.float32] | None  # (A,) of the policy, None if unknown
    value: float | None  # of the critic, None if unknown
    total: float  # return so far
    step: int
    x: int  # pixels
    obs: Picture | None  # (C, H, W) that the network saw, None to leave it out
    ending: str = ""  # cleared, died, stopped; "" while the episode is open

    def __str__(self) -> str:
        """One line about the state of the episode."""
        return (
            f"{self.level}: {self.ending or 'not over'} after {self.step} steps at x "
            f"{self.x}, return {self.total:.2f}"
        )


class Decision(NamedTuple):
    """An action, with the policy's probabilities and value."""

    action: int
    probabilities: npt.NDArray[np.float32] | None  # (A,); None for a person
    value: float | None  # None for a person and for a level without a head


Decide = Callable[[Step], Decision]


class Player:
    """A policy that plays a game: chooses an action from the game's last step."""

    def __init__(self, policy: Policy, *, seed: int, argmax: bool) -> None:
        self._policy = policy
        self._generator = None
        if not argmax:
            self._generator = torch.Generator(policy.device).manual_seed(seed)
        #: The network's memory, (1, state size).
        self.memory = torch.zeros(1, policy.model.state_size, device=policy.device)

    @torch.no_grad()
    def __call__(self, step: Step) -> Decision:
        """Acts; clears the memory at the start of an episode."""
        policy, generator = self._policy, self._generator
        obs = torch.from_numpy(step.obs[None, None]).to(policy.device)
        first = torch.tensor([[step.opening]], device=policy.device)
        with torch.autocast(policy.device.type, policy.dtype, policy.dtype is not None):
            output, self.memory = policy.model(obs, self.memory, first)
        logits = output.logits[0]
        action = sample(logits, generator) if generator else logits.argmax(-1)
        odds = logits.softmax(-1)[0].cpu().numpy()
        return Decision(int(action), odds, self._value(step, output.values[0, 0].cpu()))

    def _value(self, step: Step, values: Tensor) -> float | None:
        """The value of a game; None if the network has no head for its level."""
        if not values.ndim:
            return float(values)
        levels = self._policy.env.levels
        if step.level not in levels:
            return None
        return float(values[levels.index(step.level)])


class GamePlayer:
    """Policies that play a whole game; each acts in its own levels."""

    def __init__(self, policies: LevelPolicies, *, seed: int, argmax: bool) -> None:
        self._policies = policies
        self._players = [
            Player(policy, seed=seed, argmax=argmax) for policy in policies.policies
        ]
        self._choice, self._waited = 0, False
        self._level, self._life = "", 0

    def __call__(self, step: Step) -> Decision:
        """Acts; clears the memory of a policy where its level begins."""
        game = self._policies
        new = step.level != self._level or step.info["life"] < self._life
        self._level, self._life = step.level, step.info["life"]
        # A level outside the game, such as the minus world, keeps the policy.
        if step.level in game.levels:
            self._choice = int(game.choice[game.levels.index(step.level)])
        restarts = bool(game.restarts[self._choice])
        begins, self._waited = self._waited, (new or step.opening) and restarts
        if self._waited:
            return Decision(game.idle, None, None)
        begins |= step.opening
        decision = self._players[self._choice](step._replace(opening=begins))
        numbers = game.actions[self._choice]
        odds = np.zeros(len(game.env.actions), np.float32)
        odds[numbers] = decision.probabilities
        return Decision(int(numbers[decision.action]), odds, decision.value)


class Shot(NamedTuple):
    """One step on film."""

    frames: Picture  # (n, 240, 256, 3)
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
            level=step.level,
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
