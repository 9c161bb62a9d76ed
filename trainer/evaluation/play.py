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
from trainer.envs.pool import SEED_STRIDE
from trainer.machine.cuda import HostToDevice
from trainer.rollout.collector import sample
from trainer.rollout.episodes import Episode, OpenEpisodes

# Number of seeds of an evaluation, and so the most environments with different seeds.
MAX_SEEDS = 128

# Evaluations use the seeds from here to 2^31, above the seeds of all runs, in blocks of
# MAX_SEEDS. The number of blocks is as large as fits without a common factor with
# MAX_SEED + 1.
_FIRST_SEED = (MAX_SEED + 1) * SEED_STRIDE
_BLOCKS = 1_150_000

# Rows of one forward pass on a CPU. The activations of more rows exceed its caches.
_CPU_ROWS = 128

# Fields of `info` to keep from the row that ends an episode, if the task has them.
_LAST = ("x_pos", "y_pos", "area_pointer", "time", "end_reason", "flag_get")


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
    model: nn.Module,
    num_episodes: int,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    generator: torch.Generator | None,
    groups: int = 1,
    game: Sequence[str] = (),
    tell: Callable[[int], None] | None = None,
) -> list[Played]:
    """Plays `num_episodes` episodes, divided evenly among the environments.

    An environment stops when it has played its share. The weights must not change
    meanwhile.
    """
    num_envs = len(pool.all_env_ids)
    left = np.full(num_envs, num_episodes // num_envs)
    left[: num_episodes % num_envs] += 1
    episodes = OpenEpisodes(num_envs, game=game)
    played: list[Played] = []
    pool.async_reset()
    # The first recv returns all environments, later ones return groups.
    waiting, parts = 1, groups
    with _acting(pool, model, device, dtype, generator) as send:
        while waiting:
            obs, reward, terminated, truncated, info = pool.recv()
            columns = episodes.observe(reward, terminated, truncated, info)
            env_id, opening = columns.env_id, columns.is_first
            for row, episode in columns.finished:
                last = {name: int(info[name][row]) for name in _LAST if name in info}
                played.append(Played(int(env_id[row]), episode, last))
            if columns.finished and tell is not None:
                tell(len(columns.finished))
            left[env_id[columns.done]] -= 1
            going = np.flatnonzero(left[env_id] > 0)
            for rows in np.array_split(going, parts):
                if rows.size:
                    # A slice is a view of the pool's memory, without a copy.
                    pick = rows if rows.size < len(env_id) else slice(None)
                    send(obs[pick], env_id[pick], opening[pick])
                    waiting += 1
            waiting, parts = waiting - 1, 1
    return played


@contextmanager
def _acting(
    pool: Any,
    model: nn.Module,
    device: torch.device,
    dtype: torch.dtype | None,
    generator: torch.Generator | None,
) -> Iterator[Callable[..., None]]:
    """A function that acts for some environments, in evaluation mode.

    It has the memory state of every environment.
    """
    num_envs = len(pool.all_env_ids)
    most = _CPU_ROWS if device.type == "cpu" else num_envs
    state = torch.zeros(num_envs, cast(int, model.state_size), device=device)
    stage = HostToDevice(device, pool)

    def act(env: Tensor, pixels: Tensor, is_first: Tensor) -> Tensor:
        output, state[env] = model(pixels[None], state[env], is_first[None])
        logits: Tensor = output.logits[0]
        return sample(logits, generator) if generator else logits.argmax(-1)

    def send(
        obs: npt.NDArray[np.uint8],
        env_id: npt.NDArray[np.int32],
        is_first: npt.NDArray[np.bool_],
    ) -> None:
        inputs = (stage(env_id.astype(np.int64)), stage(obs), stage(is_first))
        parts = range(0, len(env_id), most)
        actions = [act(*(column[at : at + most] for column in inputs)) for at in parts]
        pool.send(torch.cat(actions).to("cpu", torch.int32).numpy(), env_id)

    training, search = model.training, torch.backends.cudnn.benchmark
    model.eval()
    # Batches shrink at the end; a search for the fastest convolution for each size
    # would cost more than it saves.
    torch.backends.cudnn.benchmark = False
    try:
        # A single autocast casts the weights only once.
        autocast = torch.autocast(device.type, dtype, dtype is not None)
        with closing(stage), torch.no_grad(), autocast:
            yield send
    finally:
        model.train(training)
        torch.backends.cudnn.benchmark = search
