"""Policies for a whole game: one network for all levels, or a policy for each level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainer.config.environment import POLICY_OPTIONS
from trainer.config.schema import EnvConfig
from trainer.config.tasks import all_levels, game_levels, game_of, is_native
from trainer.models import hub, released
from trainer.models.policy import Policy, load_policy

# What all policies of a game must see alike, and when they act.
_ALIKE = ("obs", *POLICY_OPTIONS, "rom_path")

# The levels of all games.
_LEVELS = all_levels("SuperMarioBros-v0")

#: A policy that pauses the game stops its clock, too. Without pauses, three lives end
#: 29,000 frames after the last progress, so that this limit ends nothing else.
PAUSED_FRAMES = 40_000

#: Options of a pool or an environment that plays a whole game: nothing is written to
#: the game's RAM, so that an attempt is a movie from power-on.
POOL_OPTIONS: dict[str, Any] = {"cut_waits": False, "step_ends_at_waits": True}


class LevelPolicies(NamedTuple):
    """Policies that play a whole game, each its own levels.

    Attributes:
        policies: the policies.
        levels: the levels of the game, in order.
        choice: for each of `levels`, the index of its policy.
        env: environments of the whole game, with the actions of all policies.
        actions: for each policy, the numbers of its actions among those of `env`.
        restarts: for each policy, whether a level begins like an episode: a memory is
            cleared. False for a policy that was trained on the whole game.
        pool_options: options of the pool or environment beside `env`: `POOL_OPTIONS`
            and pause_for_rng.
    """

    policies: list[Policy]
    levels: tuple[str, ...]
    choice: npt.NDArray[np.int64]
    env: EnvConfig
    actions: list[npt.NDArray[np.int64]]
    restarts: npt.NDArray[np.bool_]
    pool_options: dict[str, Any]

    @property
    def idle(self) -> int:
        """The number of the action without buttons among those of `env`.

        A policy of single levels waits for a step where a level or a life begins: in
        training its episodes began after some idle frames.
        """
        return self.env.actions.index("NOOP")

    @property
    def steps(self) -> int:
        """The environment steps of all trainings together."""
        return sum(policy.steps for policy in self.policies)


def load_level_policies(
    path: Path | str,
    device: torch.device | str = "cpu",
    *,
    ema: bool = True,
    model: str = "",
    pause_for_rng: bool = False,
) -> LevelPolicies:
    """Loads what plays a whole game.

    Args:
        path: what `load_policy` takes: one network then plays all levels. Or a folder
            with policies that are named after their levels (1-1.safetensors): a
            release, released:all, or the folder `policies` of a campaign.
        device: device of the networks, or PyTorch's name of it.
        ema: use the averaged weights of a checkpoint that has them.
        model: a network of your own, module:Class, that a file may name.
        pause_for_rng: pause before each level and life until the game's random numbers
            are those of the level's own task.

    Raises:
        FileNotFoundError: there is no policy.
        ValueError: the folder lacks the policy of a level, the policies do not see the
            same observations, the game is not Super Mario Bros., or as `load_policy`.
    """

    def load(file: Path) -> Policy:
        return load_policy(file, device, ema=ema, model=model)

    files = _files(Path(path))
    name, file = next(iter(files.items()))
    loaded = {name: load(file)}
    task = loaded[name].env.task
    levels = _levels_of_game(path, task)
    if name:
        if missing := [level for level in levels if level not in files]:
            raise ValueError(
                f"{path} has no policy for {', '.join(missing)}: a whole game needs a "
                "policy for each level, or one network for all of them"
            )
        loaded |= {level: load(files[level]) for level in levels[1:]}
        _check_alike(loaded)
    policies = list(loaded.values())
    names = _actions(policy.env for policy in policies)
    return LevelPolicies(
        policies=policies,
        levels=levels,
        choice=np.arange(len(levels)) if name else np.zeros(len(levels), np.int64),
        env=replace(
            policies[0].env,
            task=game_of(task),
            levels=(),
            test_levels=(),
            custom_actions=names,
            reward_fn="",
        ),
        actions=[
            np.array([names.index(action) for action in policy.env.actions])
            for policy in policies
        ],
        restarts=np.array([_plays_levels(policy.env) for policy in policies]),
        pool_options=POOL_OPTIONS | {"pause_for_rng": pause_for_rng},
    )


def _levels_of_game(path: Path | str, task: str) -> tuple[str, ...]:
    """The levels of the game of a task."""
    try:
        if is_native(task):
            return all_levels(task)
    except ValueError:  # The Lost Levels beyond its fourth world
        pass
    raise ValueError(
        f"{path} is a policy for {task}, which is no level of a whole game: "
        "--whole-game plays SuperMarioBros and, to its fourth world, SuperMarioBros2"
    )


def _plays_levels(env: EnvConfig) -> bool:
    """Whether the episodes of a run are single levels."""
    return not game_levels(env.task) or bool(env.levels)


def _files(path: Path) -> Mapping[str, Path]:
    """The files of policies by level, in order; {"": path} for one network."""
    found: Mapping[str, Path] = {}
    if released.is_release(path):
        folder = released.folder_of(path)
        names = released.read_card(folder).policies
        found = {
            name: released.policy_of(folder, name) for name in names if name in _LEVELS
        }
    elif path.is_dir() and not hub.is_address(path):
        found = {file.stem: file for file in path.glob(f"*{released.SUFFIX}")}
    return {name: found[name] for name in _LEVELS if name in found} or {"": path}


def _check_alike(loaded: Mapping[str, Policy]) -> None:
    """Raises ValueError unless one pool can serve all policies."""
    (name, first), *others = loaded.items()
    for other, policy in others:
        for field in (*_ALIKE, "task"):
            one, two = getattr(first.env, field), getattr(policy.env, field)
            if field == "task":
                one, two = game_of(one), game_of(two)
            if one != two:
                raise ValueError(
                    f"the policies for {name} and {other} cannot play in one game: "
                    f"{field} is {one!r} and {two!r}"
                )


def _actions(envs: Iterable[EnvConfig]) -> tuple[str, ...]:
    """The actions of all policies, and that without buttons, each once."""
    every = dict.fromkeys(action for env in envs for action in env.actions)
    return tuple(every | {"NOOP": None})
