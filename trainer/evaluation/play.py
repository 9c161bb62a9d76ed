"""Plays an exact number of episodes, and computes the interval of a rate.

Every environment plays a number of episodes that is fixed in advance. The first N
episodes to end would be the short ones, which are the early deaths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from trainer.config.options import MAX_SEED, check_seed
from trainer.config.tasks import LevelPlaces
from trainer.envs.pool import SEED_STRIDE
from trainer.machine.cuda import HostToDevice
from trainer.models.level_policies import LevelPolicies
from trainer.rollout.arrays import IntArray
from trainer.rollout.collector import sample
from trainer.rollout.episodes import (
    END_FIELDS,
    BoolArray,
    Episode,
    OpenEpisodes,
    StepColumns,
)

# Number of seeds of an evaluation, and so the most environments with different seeds.
MAX_SEEDS = 128

# Evaluations use the seeds from here to 2^31, above the seeds of all runs, in blocks of
# MAX_SEEDS. The number of blocks is as large as fits without a common factor with
# MAX_SEED + 1.
_FIRST_SEED = (MAX_SEED + 1) * SEED_STRIDE
_BLOCKS = 1_150_000

# Rows of one forward pass on a CPU. The activations of more rows exceed its caches.
_CPU_ROWS = 128

# In the place of a network's index: the row waits.
_IDLE = -1

# A network, and its autocast type.
_Network = tuple[nn.Module, torch.dtype | None]


class Played(NamedTuple):
    """One episode of an evaluation."""

    env: int
    episode: Episode
    last: dict[str, int]  # values of `info` at the episode's end


def first_seed(seed: int, stream: int = 0) -> int:
    """The seed of environment 0 of an evaluation; environment i adds i.

    A run with seed s trains with the seeds s * SEED_STRIDE + i, which are all lower, so
    no evaluation uses a seed of a run. The streams of one seed differ from each other,
    and up to the 57th also from the streams of other seeds.
    """
    check_seed(seed)
    if not 0 <= stream < _BLOCKS:
        raise ValueError(f"stream must be 0 to {_BLOCKS - 1}, got {stream}")
    return _FIRST_SEED + (stream * (MAX_SEED + 1) + seed) % _BLOCKS * MAX_SEEDS


def wilson(successes: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """The confidence interval of a rate (Wilson 1927), 95 % by default."""
    rate, square = successes / count, z * z / count
    centre = (rate + square / 2) / (1 + square)
    spread = math.sqrt(rate * (1 - rate) * square + square * square / 4) / (1 + square)
    return max(0.0, centre - spread), min(1.0, centre + spread)


def play(
    pool: Any,
    model: nn.Module | LevelPolicies,
    num_episodes: int,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    generator: torch.Generator | None,
    groups: int = 1,
    game: Sequence[str] = (),
    tell: Callable[[list[dict[str, Any]]], None] | None = None,
    on_rows: Callable[[StepColumns], None] | None = None,
) -> list[Played]:
    """Plays `num_episodes` episodes, divided evenly among the environments.

    An environment stops when it has played its share. The weights must not change
    meanwhile. `tell` is called with the lines of episodes that have just ended
    (`StepColumns.line`), `on_rows` with the rows of each recv.
    """
    num_envs = len(pool.all_env_ids)
    left = np.full(num_envs, num_episodes // num_envs)
    left[: num_episodes % num_envs] += 1
    episodes = OpenEpisodes(num_envs, game=game)
    played: list[Played] = []
    choose: Callable[[StepColumns], tuple[IntArray, BoolArray]]
    if isinstance(model, LevelPolicies):
        choose = _ByLevel(model, num_envs)
        networks: list[_Network] = [(p.model, p.dtype) for p in model.policies]
        actions, idle = model.actions, model.idle
    else:
        choose, networks, actions = _only_network, [(model, dtype)], []
        idle = 0  # no row waits
    pool.async_reset()
    # The first recv returns all environments, later ones return groups.
    waiting, parts = 1, groups
    with _acting(pool, networks, actions, idle, device, generator) as send:
        while waiting:
            obs, reward, terminated, truncated, info = pool.recv()
            columns = episodes.observe(reward, terminated, truncated, info)
            env_id = columns.env_id
            choice, begins = choose(columns)
            if on_rows is not None:
                on_rows(columns)
            for row, episode in columns.finished:
                last = {
                    name: int(info[name][row]) for name in END_FIELDS if name in info
                }
                played.append(Played(int(env_id[row]), episode, last))
            if columns.finished and tell is not None:
                tell([columns.line(*ended) for ended in columns.finished])
            left[env_id[columns.done]] -= 1
            going = np.flatnonzero(left[env_id] > 0)
            for rows in np.array_split(going, parts):
                if rows.size:
                    # A slice is a view of the pool's memory, without a copy.
                    pick = rows if rows.size < len(env_id) else slice(None)
                    send(obs[pick], env_id[pick], begins[pick], choice[pick])
                    waiting += 1
            waiting, parts = waiting - 1, 1
    return played


def _only_network(columns: StepColumns) -> tuple[IntArray, BoolArray]:
    """Network 0 for all rows; a memory is cleared where an episode begins."""
    return np.zeros(len(columns.env_id), np.int64), columns.is_first


class _ByLevel:
    """Chooses the network of each row by its level, as RAM says."""

    def __init__(self, policies: LevelPolicies, num_envs: int) -> None:
        self._policies = policies
        self._places = LevelPlaces(policies.levels)
        self._level = np.full(num_envs, -1, np.int64)
        self._choice = np.zeros(num_envs, np.int64)
        self._waited = np.zeros(num_envs, bool)  # in the row before

    def __call__(self, columns: StepColumns) -> tuple[IntArray, BoolArray]:
        """The network of each row, or `_IDLE`, and whether its memory is cleared.

        A policy of single levels waits for a step where a level or a life begins.
        """
        env, place = columns.env_id, self._places(columns.level)
        new = columns.is_first | columns.lost_life
        new |= columns.level != self._level[env]
        self._level[env] = columns.level
        # A level outside the game, such as the minus world, keeps the policy.
        known = place >= 0
        self._choice[env[known]] = self._policies.choice[place[known]]
        choice = self._choice[env]
        restarts = self._policies.restarts[choice]
        begins = columns.is_first & ~restarts | self._waited[env]
        self._waited[env] = waits = new & restarts
        return np.where(waits, _IDLE, choice), begins


@contextmanager
def _acting(
    pool: Any,
    networks: Sequence[_Network],
    actions: Sequence[IntArray],
    idle: int,
    device: torch.device,
    generator: torch.Generator | None,
) -> Iterator[Callable[..., None]]:
    """A function that acts for some environments, in evaluation mode.

    It has the memory state of every environment. Networks come with their autocast
    type. `actions` has the numbers of their actions in the pool; (): they are the same.
    `idle` is the number of the action of rows that wait.
    """
    num_envs = len(pool.all_env_ids)
    most = _CPU_ROWS if device.type == "cpu" else num_envs
    models = [model for model, _ in networks]
    states = [
        torch.zeros(num_envs, cast(int, model.state_size), device=device)
        for model in models
    ]
    numbers = [torch.from_numpy(table).to(device) for table in actions]
    stage = HostToDevice(device, pool)

    def act(k: int, env: Tensor, pixels: Tensor, is_first: Tensor) -> Tensor:
        (model, dtype), state = networks[k], states[k]
        with torch.autocast(device.type, dtype, dtype is not None):
            output, state[env] = model(pixels[None], state[env], is_first[None])
        logits: Tensor = output.logits[0]
        action = sample(logits, generator) if generator else logits.argmax(-1)
        return numbers[k][action] if numbers else action

    def send(
        obs: npt.NDArray[np.uint8],
        env_id: npt.NDArray[np.int32],
        is_first: npt.NDArray[np.bool_],
        choice: IntArray,
    ) -> None:
        inputs = (stage(env_id.astype(np.int64)), stage(obs), stage(is_first))
        result = torch.empty(len(env_id), dtype=torch.int64, device=device)
        chosen = np.unique(choice)
        for k in chosen:
            if k == _IDLE:
                result[torch.from_numpy(choice == k).to(device)] = idle
                continue
            count = np.count_nonzero(choice == k)
            parts: list[Any] = [slice(at, at + most) for at in range(0, count, most)]
            if len(chosen) > 1:  # else views, without a copy
                rows = torch.from_numpy(np.flatnonzero(choice == k)).to(device)
                parts = [rows[part] for part in parts]
            for part in parts:
                result[part] = act(k, *(column[part] for column in inputs))
        pool.send(result.to("cpu", torch.int32).numpy(), env_id)

    training, search = [m.training for m in models], torch.backends.cudnn.benchmark
    for model in models:
        model.eval()
    # Batches shrink at the end; a search for the fastest convolution for each size
    # would cost more than it saves.
    torch.backends.cudnn.benchmark = False
    try:
        # Weights are cast only once for all autocasts within the outermost.
        _, dtype = networks[0]
        autocast = torch.autocast(device.type, dtype, dtype is not None)
        with closing(stage), torch.no_grad(), autocast:
            yield send
    finally:
        for model, mode in zip(models, training, strict=True):
            model.train(mode)
        torch.backends.cudnn.benchmark = search
