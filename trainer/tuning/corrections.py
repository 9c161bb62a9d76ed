"""Corrections by search: a policy learns other actions where it dies.

At the end of its training a policy is so certain of its actions that from the same
starts it dies at the same places. It never tries anything else there, so no gradient
leads it away. Here it plays, as in expert iteration (Anthony et al. 2017) and DAgger
(Ross et al. 2011). From snapshots before its deaths, random actions and then the policy
itself look for a way to the end of the level. The observations under the random actions
of such a way get its actions: these are *corrections*, with which the policy plays on.
Then it learns them, and what it does where it clears the level.

A network can hardly act differently where observations look alike to it. So a
correction holds for all observations that look like its own, and it must not look like
an observation of a cleared episode. If no way keeps to this, one that does not is
tried, and is kept if more episodes clear the level with it.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.envs.pool import SEED_STRIDE, make_pool
from trainer.models import corrected
from trainer.models.actor_critic import ActorCritic
from trainer.models.policy import (
    LAST_LAYER,
    Policy,
    load_policy,
    playing_device,
    with_temperature,
)
from trainer.models.released import PolicyFile, read_policy, write_policy
from trainer.rollout.arrays import IntArray
from trainer.rollout.collector import sample
from trainer.tuning import game_starts
from trainer.tuning.specialists import TEMPERATURES, rates_of

# Environments, and episodes of a level before each search.
_ENVS, _EPISODES = 64, 128
# Deaths after the same observations in this many last steps are one death.
_SAME = 40
# A try begins this many steps before a death.
_BEFORE = (4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80)
# It has random actions for at most _RANDOM steps, each held for at most _HELD steps.
# It is given up after _LONG steps.
_RANDOM, _HELD, _LONG = 16, 8, 500
# Rounds of tries, one in each environment, after a play; plays before the policy
# learns.
_TRIES, _PLAYS = 6, 10
# Added to the share of episodes that a policy does not clear: its need of corrections.
_NEED = 0.02
# Observations look alike if their features differ by less than this share of the mean
# norm. Where they differed by 0.02 or less, networks did not learn two actions.
_ALIKE = 0.03
# A policy that clears less from its own starts by more than this is not kept, however
# much it gains from those of the whole game. The first one was chosen by the same
# episodes, so its rate is a little too high.
_LOSS = 0.05
# Most gradient steps after a search, and fewest, if the time is short. In 7-2 policies
# that cleared 30 % from the game's starts, 99 % from the level's own, cleared 91 and
# 98 % after 5,000 steps, and 88 % of the own ones after 1,500.
_STEPS, _LEAST_STEPS = 5000, 1500
# Rows of a step, how many of them are corrections, and the first learning rate, which
# falls to 0.
_ROWS, _CORRECTED, _RATE = 256, 32, 1e-3

_Images = npt.NDArray[np.uint8]


class _Episode(NamedTuple):
    """An episode of T steps."""

    obs: _Images  # (T, C, H, W)
    probs: npt.NDArray[np.float32]  # (T, A) of the policy and its corrections
    snapshots: list[_Images]  # before the last steps
    cleared: bool


# An observation (C, H, W), and the probabilities (A,) of the actions.
_Choice = tuple[_Images, npt.NDArray[np.float32]]


def _choices(episodes: Sequence[_Episode]) -> dict[bytes, _Choice]:
    """What a policy did in the distinct observations of its cleared episodes."""
    return {
        image.tobytes(): (image, odds)
        for episode in episodes
        if episode.cleared
        for image, odds in zip(episode.obs, episode.probs, strict=True)
    }


class _Rows(NamedTuple):
    """Observations and what to do there."""

    obs: _Images  # (N, C, H, W)
    features: Tensor  # (N, F)
    actions: Tensor  # (N,) int64

    def joined(self, other: _Rows) -> _Rows:
        """These rows, then the others."""
        return _Rows(
            np.concatenate([self.obs, other.obs]),
            torch.cat([self.features, other.features]),
            torch.cat([self.actions, other.actions]),
        )

    def differs(self, other: _Rows) -> float:
        """The least distance to a row with another action."""
        distance = torch.cdist(self.features, other.features)
        distance[self.actions[:, None] == other.actions] = torch.inf
        return float(distance.min())


def shares_of_time(
    chosen: Mapping[str, float], passed: Mapping[str, float]
) -> dict[str, float]:
    """Shares of levels in the time for corrections, by what they do not clear.

    Args:
        chosen: for each level, the clear rate of its policy.
        passed: for levels of the whole game, how often they are passed there.
    """
    needs = {
        level: 1.0 - (rate + passed.get(level, rate)) / 2 + _NEED
        for level, rate in chosen.items()
    }
    return {level: need / sum(needs.values()) for level, need in needs.items()}


def correct(
    path: Path,
    level: str,
    seconds: float,
    episodes: int,
    seed: int,
    bits: int,
    model: str = "",
    starts: Path | None = None,
) -> dict[str, Any]:
    """Corrects the policy of a level; its file changes only if it plays better.

    `episodes` and `seed` are those of the plays that decide. `starts` is a folder of
    `game_starts.collect`: half of the episodes begin there, and count, but the level's
    own starts must be cleared nearly as often as before.

    Returns:
        Means of the clear rates of sampled and greedy actions, `before` and `now`, with
        `starts` the mean of these and of the clear rate from there; {} if the policy
        sees pictures, or its network has a memory, or is no `ActorCritic`: it is not
        corrected.
    """
    until = time.monotonic() + seconds
    in_game = game_starts.read(starts, level) if starts else []
    corrections = open_policy(path, seed, model, in_game)
    if corrections is None:
        return {}

    play = partial(
        play_both,
        level=level, episodes=episodes, seed=seed, model=model, in_game=in_game,
    )  # fmt: skip
    best = first = play(path)
    least = first[2] - _LOSS
    # Half of the time that is left to search, then half to learn; the rest to play.
    while 0.0 < best[0] < 1.0 and (now := time.monotonic()) < until:
        if not corrections.search(level, now + (until - now) / 2):
            break
        now = time.monotonic()
        corrections.learn(now + (until - now) / 2)
        with tempfile.TemporaryDirectory() as folder:
            for temperature in TEMPERATURES:
                new = Path(folder) / path.name
                corrections.save(new, temperature, bits)
                rates = play(new, least=least)
                if rates > best:
                    best = rates
                    corrections.save(path, temperature, bits)
    return {"before": first[0], "now": best[0]}


def play_both(
    path: Path,
    level: str,
    episodes: int,
    seed: int,
    model: str,
    in_game: Sequence[bytes],
    least: float = 0.0,
) -> tuple[float, float, float]:
    """Plays a level from its own starts, and from those of the whole game, if any.

    Returns:
        Two rates to compare policies by, means of both, and that from the own starts
        (`specialists.rates_of`). 0 where the last one is below `least`.
    """
    own, sampled = rates_of(path, level, episodes, seed, model, argmax=True)
    if not in_game:
        return own, sampled, own
    if own < least:
        return 0.0, 0.0, own
    rate = game_starts.clear_rate(path, level, in_game, seed, model)
    return (own + rate) / 2, (sampled + rate) / 2, own


def open_policy(
    path: Path, seed: int, model: str, starts: Sequence[bytes] = ()
) -> Corrections | None:
    """The policy of a file, to be corrected; None as `correct` returns {}."""
    policy = load_policy(path, playing_device("cpu"), model=model)
    stored = read_policy(path, torch.device("cpu"))
    network = policy.model
    if (
        policy.env.sees_tiles  # pictures would need gigabytes
        and isinstance(network, ActorCritic)
        and not network.state_size
        and stored.weights.keys() >= set(LAST_LAYER)
    ):
        return Corrections(policy, stored, seed, starts)
    return None


class Corrections:
    """A policy that is corrected."""

    def __init__(
        self,
        policy: Policy,
        stored: PolicyFile,
        seed: int,
        starts: Sequence[bytes] = (),
    ) -> None:
        """Takes a policy on a CPU, its file's content, and starts of its level."""
        assert isinstance(policy.model, ActorCritic)
        self._policy, self._stored, self._starts = policy, stored, starts
        # The encoder that says what looks alike does not learn.
        self._encoder = copy.deepcopy(policy.model.encoder)
        self._first_seed = seed * SEED_STRIDE
        self._rng = np.random.default_rng(seed)
        self._learned = 0
        self._table: _Rows | None = None
        self._alike = 0.0
        # What it does in observations of cleared episodes, to be learned.
        self._known: dict[bytes, _Choice] = {}

    def search(self, level: str, until: float) -> bool:
        """Corrects a level; returns whether there are new corrections.

        It ends when all episodes clear the level, at `until` (`time.monotonic`), or
        after some plays.
        """
        before, table, unproven = self._table, self._table, False
        fewest = _EPISODES
        last: list[_Episode] = []
        known: dict[bytes, _Choice] = {}
        for _ in range(_PLAYS):
            env = replace(
                self._policy.env,
                levels=(level,), num_envs=_ENVS, groups=1, num_threads=1,
            )  # fmt: skip
            # Seeds of training, not of evaluations (`evaluation.play.first_seed`); the
            # same ones in each play, to compare.
            seed = self._first_seed + self._learned * _ENVS
            with closing(make_pool(env, seed=seed)) as pool:
                game_starts.begin_there(pool, self._starts, 0.5)
                episodes = self._play(pool, seed)
                died = sum(not episode.cleared for episode in episodes)
                if died + unproven > fewest:
                    self._table = table
                else:
                    fewest, table, last = died, self._table, episodes
                    known = _choices(episodes) | ({} if unproven else known)
                if not died or time.monotonic() > until:
                    break
                unproven = not self._correct(pool, last, known, until)
                if unproven and self._table is table:
                    break  # there is no way
        self._table = table
        self._known |= known
        return table is not before and bool(self._known)

    def _rows(self, obs: _Images, actions: npt.NDArray[Any]) -> _Rows:
        return _Rows(obs, self._features(obs), torch.from_numpy(actions))

    def _features(self, obs: _Images) -> Tensor:
        """What the policy sees of observations, (N, F)."""
        with torch.no_grad():
            parts = torch.split(torch.from_numpy(obs), _ROWS)
            return torch.cat([self._encoder(part.float()) for part in parts])

    def _act(
        self, obs: _Images, generator: torch.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float32]]:
        """Sampled actions (N,) and the probabilities (N, A), with the corrections."""
        logits = self._logits(torch.from_numpy(obs)).detach()
        if self._table is not None:
            _, table, actions = self._table
            features = self._features(obs)
            logits = corrected.apply(logits, features, table, actions, self._alike)
        return sample(logits, generator).numpy(), logits.softmax(-1).numpy()

    def _logits(self, obs: Tensor) -> Tensor:
        """The logits of observations (N, C, H, W): (N, A) float32."""
        count, dtype = len(obs), self._policy.dtype
        with torch.autocast("cpu", dtype, dtype is not None):
            output, _ = self._policy.model(
                obs[None], torch.zeros(count, 0), torch.zeros(1, count).bool()
            )
        logits: Tensor = output.logits[0]
        return logits.float()

    def _play(self, pool: Any, seed: int) -> list[_Episode]:
        """Plays the same number of episodes in each environment."""
        self._policy.model.eval()
        generator = torch.Generator().manual_seed(seed)
        ids = pool.all_env_ids
        left = np.full(_ENVS, _EPISODES // _ENVS)
        steps: list[list[Any]] = [[] for _ in ids]
        snapshots: list[deque[_Images]] = [deque(maxlen=_BEFORE[-1]) for _ in ids]
        episodes = []
        obs, _ = pool.reset()
        while left.any():
            actions, probs = self._act(obs, generator)
            for env, saved in enumerate(pool.snapshot(ids)):
                steps[env].append((obs[env], probs[env]))
                snapshots[env].append(saved)
            obs, _, terminated, truncated, info = pool.step(actions.astype(np.int32))
            for env in np.flatnonzero(terminated | truncated).tolist():
                if left[env]:
                    left[env] -= 1
                    images, odds = zip(*steps[env], strict=True)
                    episodes.append(
                        _Episode(
                            np.stack(images),
                            np.stack(odds),
                            list(snapshots[env]),
                            bool(info["flag_get"][env]),
                        )
                    )
                steps[env] = []
                snapshots[env].clear()
        return episodes

    def _correct(
        self,
        pool: Any,
        episodes: Sequence[_Episode],
        known: Mapping[bytes, _Choice],
        until: float,
    ) -> bool:
        """Adds a short way from each death to the corrections.

        It ends at `until` (`time.monotonic`), or after some tries.

        Returns:
            Whether they look like no observation of a cleared episode. If not, there
            is one way, which has to be proven, or none.
        """
        died = [episode for episode in episodes if not episode.cleared]
        same = Counter(episode.obs[-_SAME:].tobytes() for episode in died)
        by_end = {episode.obs[-_SAME:].tobytes(): episode for episode in died}
        deaths = [by_end[end] for end, _ in same.most_common()]
        fixed = self._table
        if known:
            images, odds = zip(*known.values(), strict=True)
            rows = self._rows(np.stack(images), np.stack(odds).argmax(1))
            self._alike = self._alike or _ALIKE * float(
                rows.features.norm(dim=1).mean()
            )
            fixed = rows if fixed is None else rows.joined(fixed)
        open_, found = dict(enumerate(deaths)), False
        unproven: dict[int, _Rows] = {}
        for _ in range(_TRIES):
            numbers = np.resize(list(open_), _ENVS).tolist()
            ways = self._try(pool, [deaths[number] for number in numbers])
            for env in sorted(ways, key=lambda env: len(ways[env].obs)):
                way, number = ways[env], numbers[env]
                if number not in open_ or way.differs(way) < self._alike:
                    continue
                if fixed is not None and way.differs(fixed) < self._alike:
                    unproven.setdefault(number, way)
                    continue
                fixed = way if fixed is None else fixed.joined(way)
                self._add(way)
                found = True
                del open_[number]
            if not open_ or time.monotonic() > until:
                break
        if not found and unproven:
            self._add(unproven[int(self._rng.choice(list(unproven)))])
        return found

    def _add(self, way: _Rows) -> None:
        self._table = way if self._table is None else self._table.joined(way)

    def _try(self, pool: Any, deaths: Sequence[_Episode]) -> dict[int, _Rows]:
        """Tries a way from each death, one in each environment.

        Returns:
            The rows with random actions of those that cleared the level.
        """
        ids, rng = pool.all_env_ids, self._rng
        generator = torch.Generator().manual_seed(int(rng.integers(1 << 30)))
        begins = [
            death.snapshots[-min(step, len(death.snapshots))]
            for death, step in zip(deaths, rng.choice(_BEFORE, _ENVS), strict=True)
        ]
        pool.restore(ids, np.stack(begins), rng="keep")
        obs, *_ = pool.recv()
        lengths = rng.integers(1, _RANDOM + 1, _ENVS)
        held, left = np.zeros(_ENVS, np.int64), np.zeros(_ENVS, np.int64)
        ways: list[list[tuple[_Images, int]]] = [[] for _ in ids]
        running, cleared = np.ones(_ENVS, bool), np.zeros(_ENVS, bool)
        for step in range(_LONG):
            actions, _ = self._act(obs, generator)
            new = left == 0
            held[new] = rng.integers(pool.action_space.n, size=new.sum())
            left[new] = rng.integers(1, _HELD + 1, new.sum())
            left -= 1
            random = running & (step < lengths)
            actions[random] = held[random]
            for env in np.flatnonzero(random).tolist():
                ways[env].append((obs[env].copy(), int(actions[env])))
            obs, _, terminated, truncated, info = pool.step(actions.astype(np.int32))
            ended = running & (terminated | truncated)
            cleared |= ended & (info["flag_get"] != 0)
            running &= ~ended
            if not running.any():
                break
        rows = {}
        for env in np.flatnonzero(cleared).tolist():
            images, chosen = zip(*ways[env], strict=True)
            rows[env] = self._rows(np.stack(images), np.array(chosen))
        return rows

    def learn(self, until: float) -> None:
        """Teaches the policy its corrections, and what it does where it clears.

        It ends at `until` (`time.monotonic`), or after some steps.
        """
        assert self._table is not None
        model, table = self._policy.model, self._table
        images, odds = (
            torch.from_numpy(np.stack(column))
            for column in zip(*self._known.values(), strict=True)
        )
        others = torch.from_numpy(table.obs)
        right = F.one_hot(table.actions, odds.shape[1]).float()
        model.train()
        weights = [w for name, w in model.named_parameters() if "value" not in name]
        optimizer = torch.optim.Adam(weights, lr=_RATE)
        generator = torch.Generator().manual_seed(self._first_seed)
        begin = time.monotonic()
        for step in range(_STEPS):
            late = (time.monotonic() - begin) / max(until - begin, 1e-6)
            done = max(step / _STEPS, min(late, step / _LEAST_STEPS))
            if done >= 1.0:
                break
            optimizer.param_groups[0]["lr"] = _RATE * (1.0 - done)
            own = torch.randint(len(images), (_ROWS - _CORRECTED,), generator=generator)
            new = torch.randint(len(others), (_CORRECTED,), generator=generator)
            logits = self._logits(torch.cat([images[own], others[new]]))
            loss = F.cross_entropy(logits, torch.cat([odds[own], right[new]]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        self._learned += 1

    def save(self, path: Path, temperature: float, bits: int) -> None:
        """Writes the policy, with its logits divided by a temperature."""
        now = self._policy.model.state_dict()
        weights = {name: now[name].clone() for name in self._stored.weights}
        weights = with_temperature(weights, temperature)
        write_policy(path, self._stored._replace(weights=weights), bits=bits)

    def save_table(self, path: Path) -> None:
        """Writes the policy as it was, with its corrections."""
        weights = dict(self._stored.weights)
        if self._table is not None:
            obs, _, actions = self._table
            alike = torch.tensor(self._alike)
            weights |= corrected.Table(torch.from_numpy(obs), actions, alike).weights()
        write_policy(path, self._stored._replace(weights=weights))
