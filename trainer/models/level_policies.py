"""Policies for a whole game: one network for all levels, or a policy for each level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainer.config.schema import EnvConfig
from trainer.config.tasks import all_levels, game_levels, game_of, is_native
from trainer.models import hub, released
from trainer.models.policy import Policy, load_policy

# What all policies of a game must see alike, and when they act.
_ALIKE = (
    "obs", "frame_skip", "stack_num", "img_height", "img_width", "hud", "timing",
    "rom_path",
)  # fmt: skip

#: Options of a pool or an environment that plays a whole game: nothing is written to
#: the game's RAM, so that an attempt is a movie from power-on.
POOL_OPTIONS = {"cut_waits": False, "step_ends_at_waits": True}


class LevelPolicies(NamedTuple):
    """Policies that play a whole game, each its own levels.

    Attributes:
        policies: the policies.
        levels: the levels of the game, in order.
        choice: for each of `levels`, the index of its policy.
        env: environments of the whole game, with the actions of all policies.
        actions: for each policy, the numbers of its actions among those of `env`.
        restarts: whether a level begins like an episode: a memory is cleared. False for
            a policy that was trained on the whole game.
    """

    policies: list[Policy]
    levels: tuple[str, ...]
    choice: npt.NDArray[np.int64]
    env: EnvConfig
    actions: list[npt.NDArray[np.int64]]
    restarts: bool

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
) -> LevelPolicies:
    """Loads what plays a whole game.

    Args:
        path: what `load_policy` takes: one network then plays all levels. Or a folder
            with policies that are named after their levels (1-1.safetensors): a
            release, released:all, or the folder `policies` of a campaign.
        device: device of the networks, or PyTorch's name of it.
        ema: use the averaged weights of a checkpoint that has them.
        model: a network of your own, module:Class, that a file may name.

    Raises:
        FileNotFoundError: there is no policy.
        ValueError: the folder lacks the policy of a level, the policies do not see the
            same observations, the game is not Super Mario Bros., or as `load_policy`.
    """
    files = _files(Path(path))
    loaded = {
        name: load_policy(file, device, ema=ema, model=model)
        for name, file in files.items()
    }
    first = next(iter(loaded.values()))
    if not is_native(first.env.task):
        raise ValueError(
            f"a whole game needs a policy for Super Mario Bros.; {path} plays "
            f"{first.env.task}"
        )
    game = game_of(first.env.task)
    levels = all_levels(game)
    if "" in loaded:
        choice = dict.fromkeys(levels, 0)
    else:
        loaded = {level: loaded[level] for level in levels if level in loaded}
        if missing := [level for level in levels if level not in loaded]:
            raise ValueError(
                f"{path} has no policy for {', '.join(missing)}: a whole game needs a "
                "policy for each level, or one network for all of them"
            )
        choice = dict(zip(levels, range(len(levels)), strict=True))
    _check_alike(loaded)
    names = _actions(policy.env for policy in loaded.values())
    return LevelPolicies(
        policies=list(loaded.values()),
        levels=levels,
        choice=np.array([choice[level] for level in levels]),
        env=replace(
            first.env,
            task=game,
            levels=(),
            test_levels=(),
            custom_actions=names,
            reward_fn="",
        ),
        actions=[
            np.array([names.index(action) for action in policy.env.actions])
            for policy in loaded.values()
        ],
        restarts=not game_levels(first.env.task) or bool(first.env.levels),
    )


def _files(path: Path) -> Mapping[str, Path]:
    """The files of policies by level; {"": path} for one network."""
    if released.is_release(path):
        folder = released.folder_of(path)
        names = released.read_card(folder).policies
        return {
            name: released.policy_of(folder, name) for name in names if _is_level(name)
        } or {"": path}
    if path.is_dir() and not hub.is_address(path):
        found = {p.stem: p for p in sorted(path.glob(f"*{released.SUFFIX}"))}
        levels = {name: file for name, file in found.items() if _is_level(name)}
        if levels:
            return levels
    return {"": path}


def _is_level(name: str) -> bool:
    world, dash, stage = name.partition("-")
    return bool(dash) and world.isdecimal() and stage.isdecimal()


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
    """The actions of all policies, each once."""
    return tuple(dict.fromkeys(action for env in envs for action in env.actions))
