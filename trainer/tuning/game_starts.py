"""Starts of levels as the whole game gives them, for policies of single levels.

A level does not begin in the whole game as in its own task, even with the same random
numbers (the option pause_for_rng): Mario may be tall, 1-2, 2-2, 4-2 and 7-2 begin one
frame earlier in his fall, and the frame counter differs. Here all policies play the
game level after level, without deaths: those that lose a life in a level continue from
where others left it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainer.config.tasks import level_number, level_numbers
from trainer.envs.pool import SEED_STRIDE, make_pool
from trainer.evaluation.play import first_seed, play
from trainer.explore.saved import read_saves
from trainer.film.filmed_env import FilmedEnv
from trainer.machine.files import replacing
from trainer.models.level_policies import LevelPolicies, load_level_policies
from trainer.models.policy import load_policy, playing_device
from trainer.rollout.arrays import IntArray
from trainer.rollout.collector import sample

# Environments, and so starts of a level, each with as many idle frames as in training;
# rounds until half as many pass a level.
_ENVS, _ROUNDS = 31, 4
# Steps of a level, and steps without progress, after which an environment has lost.
_LONG, _STALL_STEPS = 2500, 250
# Episodes of `clear_rate`, and the number of its evaluation, which no run or command
# plays (`evaluation.play.first_seed`).
_EPISODES, _STREAM = 64, 1_000_001

_Bytes = npt.NDArray[np.uint8]
# Snapshot of an environment, and the action that then passes its level.
_End = tuple[_Bytes, int]


@torch.no_grad()
def collect(path: Path, to: Path, seed: int, model: str = "") -> dict[str, float]:
    """Plays the game, and writes the levels' starts.

    Args:
        path: what `load_level_policies` takes.
        to: folder for the starts, states of the console: 1-1.npy and so on.
        seed: of the campaign.
        model: network of the user that the policies' files may name.

    Returns:
        For each level, the share of its plays that passed it. The last one may be a
        level that none passed; later ones have no starts. {} if the policies see
        pictures: they are not corrected.
    """
    device = playing_device("cpu")
    policies = load_level_policies(path, device, model=model, pause_for_rng=True)
    if not policies.env.sees_tiles:
        return {}
    env = replace(
        policies.env,
        num_envs=_ENVS, groups=1, num_threads=1,
        stall_steps=_STALL_STEPS, max_episode_steps=2**31 - 1,
    )  # fmt: skip
    first = seed * SEED_STRIDE
    passed: dict[str, float] = {}
    to.mkdir(exist_ok=True)
    options = policies.pool_options | {"noops": list(range(_ENVS))}
    with closing(make_pool(env, seed=first, **options)) as pool:
        pool.reset()
        film = FilmedEnv(pool.config)
        game = _Game(pool, policies, first)
        begins = pool.snapshot(pool.all_env_ids)
        for number, level in enumerate(policies.levels):
            starts, ends, share = game.play(begins, number)
            passed[level] = share
            saves = {_save(film, start) for start in starts}
            states = [np.frombuffer(save, np.uint8) for save in sorted(saves)]
            with replacing(to / f"{level}.npy") as file:
                np.save(file, states)
            if not ends:
                break
            begins = game.end(ends)
    return passed


def read(folder: Path, level: str) -> list[bytes]:
    """The starts of a level; [] if `collect` did not reach it."""
    path = folder / f"{level}.npy"
    return read_saves(path) if path.exists() else []


def files(folder: Path, levels: Sequence[str]) -> list[Path]:
    """The files of these levels that `collect` wrote to a folder."""
    paths = (folder / f"{level}.npy" for level in levels)
    return [path for path in paths if path.exists()]


def begin_there(pool: Any, starts: Sequence[bytes], share: float) -> None:
    """Lets a share of the episodes of a level's pool begin at starts of the game."""
    if starts:
        pool.set_starts([1.0 - share] + [share / len(starts)] * len(starts), starts)


def clear_rate(
    path: Path, level: str, starts: Sequence[bytes], seed: int, model: str = ""
) -> float:
    """Clear rate of a policy with sampled actions from these starts of a level."""
    policy = load_policy(path, playing_device("cpu"), model=model)
    env = replace(policy.env, levels=(level,), num_envs=_ENVS, groups=1, num_threads=1)
    first = first_seed(seed, _STREAM)
    with closing(make_pool(env, seed=first)) as pool:
        begin_there(pool, starts, 1.0)
        played = play(
            pool, policy.model, _EPISODES,
            device=policy.device, dtype=policy.dtype,
            generator=torch.Generator().manual_seed(first),
        )  # fmt: skip
    return fmean(episode.episode.cleared for episode in played)


def _save(film: FilmedEnv, snapshot: _Bytes) -> bytes:
    """The console's state in a snapshot, without what differs by chance."""
    film.restore(snapshot.tobytes())
    return film.save_console()


class _Game:
    """A pool of whole games, and the policies that play it."""

    def __init__(self, pool: Any, policies: LevelPolicies, seed: int) -> None:
        self._pool, self._policies = pool, policies
        self._generator = torch.Generator().manual_seed(seed)

    def play(self, begins: _Bytes, number: int) -> tuple[_Bytes, list[_End], float]:
        """Plays a level in all environments, again if few pass it.

        Args:
            begins: snapshots where it begins, one for each environment.
            number: place of the level in the game.

        Returns:
            Snapshots one idle step later, the ends of the plays that passed the level,
            and their share.
        """
        pool, ids = self._pool, self._pool.all_env_ids
        idle = np.full(_ENVS, self._policies.idle, np.int32)
        ends: list[_End] = []
        plays = 0
        while len(ends) < _ENVS // 2 and plays < _ROUNDS * _ENVS:
            pool.restore(ids, begins, rng="keep")
            pool.recv()
            obs, _, _, _, info = pool.step(idle)
            starts = pool.snapshot(ids)
            ends += self._play(obs, info["life"], number)
            plays += _ENVS
        return starts, ends, len(ends) / plays

    def end(self, ends: Sequence[_End]) -> _Bytes:
        """Passes a level in all environments; returns where the next one begins.

        Each begins it with its own number of idle frames.
        """
        pool = self._pool
        snapshots, actions = zip(
            *(ends[i % len(ends)] for i in range(_ENVS)), strict=True
        )
        pool.restore(pool.all_env_ids, np.stack(snapshots), rng="keep")
        pool.recv()
        pool.step(np.array(actions, np.int32))
        begins: _Bytes = pool.snapshot(pool.all_env_ids)
        return begins

    def _play(self, obs: _Bytes, lives: IntArray, number: int) -> list[_End]:
        """Acts until each environment passes the level, or loses a life."""
        policies, pool, ids = self._policies, self._pool, self._pool.all_env_ids
        k = int(policies.choice[number])
        policy, numbers = policies.policies[k], policies.actions[k]
        last = number == len(policies.levels) - 1
        here, to = (level_number(n) for n in (policies.levels * 2)[number : number + 2])
        state = torch.zeros(_ENVS, int(policy.model.state_size))
        first, ends = True, list[_End]()
        for _ in range(_LONG):
            begins = torch.full((1, len(ids)), first)
            with torch.autocast("cpu", policy.dtype, policy.dtype is not None):
                images = torch.from_numpy(obs)[None]
                output, state = policy.model(images, state, begins)
            actions = sample(output.logits[0].float(), self._generator).numpy()
            actions = numbers[actions].astype(np.int32)
            snapshots = pool.snapshot(ids)
            pool.send(actions, ids)
            obs, _, terminated, truncated, info = pool.recv()
            level, ended = level_numbers(info), terminated | truncated
            same = ~ended & (info["life"] >= lives)  # 100 coins give one
            passed = same & (level == to)
            if last:
                passed = terminated & (info["flag_get"] != 0)
            for i in np.flatnonzero(passed).tolist():
                ends.append((snapshots[i], int(actions[i])))
            going = same & (level == here)
            if not going.any():
                break
            lives = np.maximum(lives, info["life"])
            obs, ids, lives, state = obs[going], ids[going], lives[going], state[going]
            first = False
        return ends
