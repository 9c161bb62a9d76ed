"""The protocol of all evaluations: seeds, idle frames and limits of episodes.

Runs and commands share the function `evaluate`: it plays levels one at a time
(`evaluate_levels`) or a task without levels (`evaluate_policy`). `evaluate_checkpoint`
does the work of `python -m trainer.evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer.config.environment import MAX_RNG_FRAMES
from trainer.config.options import check_ranges, option
from trainer.config.schema import EnvConfig
from trainer.config.tasks import (
    game_levels,
    game_of,
    is_native,
    levels_of,
    parse_levels,
)
from trainer.envs.pool import make_pool
from trainer.evaluation.play import MAX_SEEDS, Played, first_seed, play
from trainer.evaluation.results import (
    STALL_STEPS,
    Evaluation,
    LevelResult,
    level_result,
    summarise,
)
from trainer.evaluation.whole_game import (
    Attempts,
    GameEvaluation,
    GameResult,
    game_result,
)
from trainer.models.level_policies import (
    PAUSED_FRAMES,
    LevelPolicies,
    load_level_policies,
)
from trainer.models.policy import Policy, load_policy, playing_device
from trainer.rollout.episodes import StepColumns

# Most environments that play at the same time, unless there are more levels.
_MAX_ENVS = 512

# No limit; the game's clock ends an episode.
_NO_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Protocol:
    """How an evaluation plays.

    Attributes:
        device: of the model.
        dtype: autocast type of the network, None for float32.
        episodes: exact number, of each level if there are levels. Ignored for levels
            with argmax, which plays each start after 0 to `noop_max` idle frames once.
        seed: of environments and actions, 0 to MAX_SEED.
        noop_max: each episode begins with 0 to this many idle frames.
        repeat_action_probability: probability per frame that the buttons stay as they
            were.
        argmax: greedy instead of sampled actions.
        stall_steps: steps without a new best position that end an episode; 0: no limit.
        stream: number of the evaluation with this seed (`first_seed`).
        on_episodes: called with lines of episodes.jsonl for those that have just ended.
    """

    device: torch.device
    dtype: torch.dtype | None
    episodes: int = option(100, least=1)
    seed: int = 1
    noop_max: int = option(30, between=(0, MAX_SEEDS - 1))
    repeat_action_probability: float = 0.0
    argmax: bool = False
    stall_steps: int = option(STALL_STEPS, between=(0, _NO_LIMIT))
    stream: int = 0
    on_episodes: Callable[[list[dict[str, Any]]], None] | None = None

    def check(self, env: EnvConfig) -> None:
        """Raises ValueError if a field is out of range or does not fit the task."""
        check_ranges(self)
        chance = self.repeat_action_probability
        if not 0 <= chance < 1:
            raise ValueError(
                "repeat_action_probability must be at least 0 and below 1, got "
                f"{chance:g}"
            )
        if chance and not is_native(env.task):
            raise ValueError(f"task {env.task} has no sticky actions, got {chance:g}")

    def copies(self, levels: int) -> int:
        """The number of environments per level."""
        if self.argmax:
            return self.noop_max + 1
        return max(1, min(self.episodes, MAX_SEEDS, _MAX_ENVS // levels))

    def share(self, levels: int) -> int:
        """The number of episodes per level, or of a task without levels."""
        return self.noop_max + 1 if self.argmax and levels else self.episodes


def evaluate(
    model: nn.Module, env: EnvConfig, levels: Sequence[str], protocol: Protocol
) -> list[LevelResult] | dict[str, Any]:
    """Plays levels one at a time, or a task without levels."""
    if levels:
        return _play_levels(model, env, levels, protocol)
    return _play_task(model, env, protocol)


def evaluate_levels(
    model: nn.Module,
    env: EnvConfig,
    *,
    levels: Sequence[str],
    **options: Any,
) -> list[LevelResult]:
    """Plays levels, all at once. The same arguments give the same episodes.

    The result does not depend on the number of emulation threads. The game's clock and
    `stall_steps` are the only limits of an episode.

    Args:
        model: the policy, on the device; its noise is off while it plays.
        env: environment options of its run; counts, idle frames and limits are
            replaced.
        levels: such as "1-1", distinct.
        options: fields of `Protocol`.

    Returns:
        One result per level, in the order of `levels`.

    Raises:
        ValueError: an argument is out of range, or the task has no levels.
    """
    if not levels:
        raise ValueError("levels must name at least one level, got none")
    parse_levels(",".join(levels), env.task)
    return _play_levels(model, env, levels, Protocol(**options))


def _play_levels(
    model: nn.Module, env: EnvConfig, levels: Sequence[str], protocol: Protocol
) -> list[LevelResult]:
    protocol.check(env)
    # Environment i plays level i % n. The seeds of a level do not depend on other
    # levels.
    copies = protocol.copies(len(levels))
    copy_of = np.repeat(np.arange(copies), len(levels))
    seeds = first_seed(protocol.seed, protocol.stream) + copy_of
    options: dict[str, Any] = {"stages": list(levels), "env_seed": seeds.tolist()}
    starts = None
    if protocol.argmax:
        options["noops"] = starts = copy_of.tolist()
    played = _play(
        model,
        replace(env, task=game_of(env.task), levels=()),
        protocol,
        copies * len(levels),
        protocol.share(len(levels)) * len(levels),
        **options,
    )
    return [
        level_result(
            level,
            [p for p in played if p.env % len(levels) == number],
            repeat_action_probability=protocol.repeat_action_probability,
            starts=starts,
            unseen=bool(env.levels) and level not in env.levels,
        )
        for number, level in enumerate(levels)
    ]


def evaluate_policy(model: nn.Module, env: EnvConfig, **options: Any) -> dict[str, Any]:
    """Plays a policy in the task of its run. The same arguments give the same episodes.

    The result does not depend on the number of emulation threads. The weights must not
    change meanwhile.

    Args:
        model: the policy, on the device; its noise is off while it plays.
        env: environment options of its run; counts, idle frames, sticky actions and
            limits are replaced.
        options: fields of `Protocol`. A run numbers its evaluations (`stream`) from 1
            on. Only the Super Mario Bros. tasks have the limit `stall_steps`; EnvPool's
            tasks keep their `max_episode_steps`.

    Returns:
        The result of `summarise`, and the options noop_max, repeat_action_probability,
        argmax, seed and stream.

    Raises:
        ValueError: an option is out of range, or the task has no sticky actions.
    """
    return _play_task(model, env, Protocol(**options))


def _play_task(model: nn.Module, env: EnvConfig, protocol: Protocol) -> dict[str, Any]:
    protocol.check(env)
    episodes = protocol.episodes
    played = _play(model, env, protocol, min(episodes, MAX_SEEDS), episodes)
    names = "noop_max repeat_action_probability argmax seed stream".split()
    options = {name: getattr(protocol, name) for name in names}
    return options | summarise(played, whole_game=bool(game_levels(env.task)))


def _play(
    model: nn.Module | LevelPolicies,
    env: EnvConfig,
    protocol: Protocol,
    num_envs: int,
    episodes: int,
    on_rows: Callable[[StepColumns], None] | None = None,
    **options: Any,
) -> list[Played]:
    """Opens a pool, plays in it, and closes it."""
    limits: dict[str, Any] = {}
    if is_native(env.task):
        limits = {
            "stall_steps": protocol.stall_steps,
            "max_episode_steps": _NO_LIMIT,
        }
    env = replace(
        env,
        num_envs=num_envs,
        groups=1,
        num_threads=min(env.num_threads, num_envs),
        noop_max=protocol.noop_max,
        repeat_action_probability=protocol.repeat_action_probability,
        **limits,
    )
    tell = protocol.on_episodes
    how = {
        "argmax": protocol.argmax,
        "repeat_action_probability": protocol.repeat_action_probability,
    }
    seed, device = first_seed(protocol.seed, protocol.stream), protocol.device
    generator = torch.Generator(device).manual_seed(seed)
    with closing(make_pool(env, seed, **options)) as pool:
        return play(
            pool,
            model,
            episodes,
            device=device,
            dtype=protocol.dtype,
            generator=None if protocol.argmax else generator,
            groups=2 if is_native(env.task) else 1,
            game=() if "stages" in options else game_levels(env.task),
            tell=tell and (lambda lines: tell([how | line for line in lines])),
            on_rows=on_rows,
        )


def _rng_frames(value: int) -> int:
    """Checks a value of the option rng_frames_max."""
    if not 0 <= value <= MAX_RNG_FRAMES:
        raise ValueError(f"rng_frames_max must be 0 to {MAX_RNG_FRAMES}, got {value}")
    return value


def _elsewhere(env: EnvConfig, task: str) -> EnvConfig:
    """The environments of a run, for another game; its ROM is the installed one."""
    if not is_native(env.task) or not is_native(task) or not game_levels(task):
        raise ValueError(
            "--task takes another game of a Super Mario Bros. policy, such as "
            f"SuperMarioBros2-v0, got {task} for a policy of {env.task}; --levels "
            "chooses its levels"
        )
    return replace(env, task=task, levels=(), test_levels=(), rom_path="")


def evaluate_game(policies: LevelPolicies, protocol: Protocol) -> GameResult:
    """Plays attempts at the whole game, each with three lives from power-on."""
    protocol.check(policies.env)
    count = protocol.share(len(policies.levels))
    num_envs = min(count, MAX_SEEDS)
    attempts = Attempts(num_envs, policies.levels)
    noops = {"noops": list(range(num_envs))} if protocol.argmax else {}
    _play(
        policies,
        policies.env,
        protocol,
        num_envs,
        count,
        attempts.observe,
        **policies.pool_options,
        **noops,
    )
    return game_result(
        attempts.ended,
        policies.levels,
        argmax=protocol.argmax,
        repeat_action_probability=protocol.repeat_action_probability,
    )


def _protocols(
    policy: Policy, chances: Sequence[float], argmax: bool, **options: Any
) -> list[Protocol]:
    """Sampled, then greedy actions, for each probability of sticky actions."""
    if not chances:
        raise ValueError("repeat_action_probability needs at least one value, got none")
    return [
        Protocol(
            policy.device,
            policy.dtype,
            repeat_action_probability=chance,
            argmax=greedy,
            **options,
        )
        for chance in dict.fromkeys(chances)
        for greedy in (False, True)[: 1 + argmax]
    ]


def _about(
    path: Path, env: EnvConfig, protocol: Protocol, steps: int, averaged: bool
) -> dict[str, Any]:
    """What was played, and how."""
    about: dict[str, Any] = {
        "checkpoint": str(path),
        "task": env.task,
        "trained_steps": steps,
        "weights": "ema" if averaged else "latest",
        "frame_skip": env.frame_skip,
        "device": str(protocol.device),
        "seed": protocol.seed,
        "stream": protocol.stream,
        "noop_max": protocol.noop_max,
        "episodes": protocol.episodes,
    }
    if is_native(env.task):
        about |= {"stall_steps": protocol.stall_steps, "timing": env.timing}
        about["rng_frames_max"] = env.rng_frames_max
    if env.rom_path:
        about["rom_path"] = env.rom_path
    return about


class _Ended:
    """Keeps the lines of episodes that have ended; counts them for a progress bar."""

    def __init__(self, steps: int, tell: Callable[[int, int], None] | None) -> None:
        self._steps, self._tell, self.total = steps, tell, 0
        self.lines: list[dict[str, Any]] = []

    def __call__(self, lines: list[dict[str, Any]]) -> None:
        self.lines += [{"step": self._steps} | line for line in lines]
        if self._tell is not None:
            self._tell(len(self.lines), self.total)


def evaluate_checkpoint(
    path: Path,
    *,
    task: str = "",
    levels: str = "",
    repeat_action_probability: Sequence[float] = (0.0,),
    rng_frames_max: int | None = None,
    argmax: bool = True,
    ema: bool = True,
    model: str = "",
    reward_fn: str = "",
    device: str = "auto",
    on_progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Evaluation:
    """Plays a checkpoint with sampled actions, then with greedy actions.

    Args:
        path: the checkpoint, or a run folder.
        task: another game of Super Mario Bros., such as SuperMarioBros2-v0; "": that of
            the run.
        levels: such as "1-1,4-2", or "all"; "": the training and test levels of the
            run, or all levels of another `task`. A task without levels is played as a
            whole.
        repeat_action_probability: probabilities of sticky actions, each evaluated once.
        rng_frames_max: the option of the environments; None: that of the run.
        argmax: also play greedy actions.
        ema: play the averaged weights if the checkpoint has them.
        model: network of the user, module:Class, that the file may name.
        reward_fn: reward of the user, module:function, that the file may name.
        device: auto, cpu, cuda or cuda:N.
        on_progress: called with the number of episodes that have ended, and their total
            number.
        options: other fields of `Protocol`: episodes (with sampled actions), seed,
            noop_max, stall_steps and stream. No run plays stream 0; a run with this
            seed plays 1, 2, ... (`stream` in its evaluations.jsonl).

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: an argument is out of range, or as of `load_policy`; raised before
            any play.
    """
    policy = load_policy(
        path, playing_device(device), ema=ema, model=model, reward_fn=reward_fn
    )
    env = policy.env
    if task:
        env = _elsewhere(env, task)
        levels = levels or "all"
    if rng_frames_max is not None:
        if not is_native(env.task):
            raise ValueError(
                f"task {env.task} has no rng_frames_max, got {rng_frames_max}"
            )
        env = replace(env, rng_frames_max=_rng_frames(rng_frames_max))
    played = (
        parse_levels(levels, env.task)
        if levels
        else levels_of(env.levels, env.test_levels, env.task)
    )
    ended = _Ended(policy.steps, on_progress)
    protocols = _protocols(
        policy, repeat_action_probability, argmax, on_episodes=ended, **options
    )
    for protocol in protocols:
        protocol.check(env)
    shares = sum(protocol.share(len(played)) for protocol in protocols)
    ended.total = max(1, len(played)) * shares
    about = _about(path, env, protocols[0], policy.steps, policy.averaged)
    if played:
        about["levels"] = list(played)
    results: list[LevelResult] = []
    rows: list[dict[str, Any]] = []
    for protocol in protocols:
        result = evaluate(policy.model, env, played, protocol)
        if isinstance(result, dict):
            rows.append(result)
        else:
            results += result
    return Evaluation(about, results, rows, ended.lines)


def evaluate_whole_game(
    path: Path,
    *,
    repeat_action_probability: Sequence[float] = (0.0,),
    rng_frames_max: int | None = None,
    pause_for_rng: bool = False,
    argmax: bool = True,
    ema: bool = True,
    model: str = "",
    device: str = "auto",
    on_progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> GameEvaluation:
    """Plays attempts at the whole game with sampled actions, then with greedy actions.

    Args:
        path: what `load_level_policies` takes: one network, or a policy for each level.
        repeat_action_probability: probabilities of sticky actions, each evaluated once.
        rng_frames_max: the option of the environments; None: 0, a game as it begins.
        pause_for_rng: as in `load_level_policies`.
        argmax: also play greedy actions.
        ema: play the averaged weights of a checkpoint that has them.
        model: network of the user, module:Class, that the file may name.
        device: auto, cpu, cuda or cuda:N.
        on_progress: called with the number of attempts that have ended, and their total
            number.
        options: other fields of `Protocol`; `episodes` is the number of attempts with
            sampled actions. By default `stall_steps` only ends an attempt that pauses
            the game without end.

    Raises:
        FileNotFoundError: there is no policy.
        ValueError: an argument is out of range, or as of `load_level_policies`; raised
            before any play.
    """
    policies = load_level_policies(
        path, playing_device(device), ema=ema, model=model, pause_for_rng=pause_for_rng
    )
    env = replace(policies.env, rng_frames_max=_rng_frames(rng_frames_max or 0))
    policies = policies._replace(env=env)
    ended = _Ended(policies.steps, on_progress)
    one = policies.policies[0]
    steps = PAUSED_FRAMES // policies.env.frame_skip
    how = {"on_episodes": ended, "stall_steps": steps} | options
    protocols = _protocols(one, repeat_action_probability, argmax, **how)
    for protocol in protocols:
        protocol.check(policies.env)
    ended.total = sum(protocol.share(len(policies.levels)) for protocol in protocols)
    about = _about(path, policies.env, protocols[0], policies.steps, one.averaged)
    about |= {"policies": len(policies.policies)} | policies.pool_options
    results = [evaluate_game(policies, protocol) for protocol in protocols]
    return GameEvaluation(about, results, ended.lines)
