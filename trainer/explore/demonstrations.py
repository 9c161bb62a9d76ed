"""Demonstrations of a run's levels, found by search when the run begins or read.

Each search (trainer/planning/search.py) uses the run's actions and begins as the run's
episodes do, with idle frames. Environments with the run's options then replay the ways
that the searches find. So snapshots on a way can be starts of episodes, and its actions
are labels for the run's observations.

Files of recordings and plans have the buttons of every frame
(trainer/planning/demonstration.py), but a run takes one action per step of several
frames. A file fits a run if its buttons change only between the run's steps and each
combination is an action of the run. Recordings of policies with the same frame skip
fit, and so do the plans of `trainer.plan`. Idle frames at the beginning count as those
of the run's episodes. In a file that does not fit, such as a person's play at 60 frames
a second, each step holds the buttons of most of its frames, and the file is played
again: it is left out if it no longer reaches the flag. A file that was made with
another `turbo_swim` is played again, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainer.config.schema import EnvConfig
from trainer.config.tasks import game_of, level_number, level_numbers
from trainer.envs.pool import SEED_STRIDE, make_pool
from trainer.explore.cells import cell_keys
from trainer.planning import demonstration
from trainer.planning.demonstration import GAME_OPTIONS, Demonstration, byte_of, text_of
from trainer.planning.levels import TRIED
from trainer.planning.search import TooManyCellsError, plan
from trainer.rollout.arrays import IntArray
from trainer.rollout.episodes import OpenEpisodes

Bytes = npt.NDArray[np.uint8]

# One snapshot is kept per this many steps.
SPACING = 4
_NUM_ENVS = 256
# The most environment steps of a search without a result. 8-4 takes 600,000.
_MOST_STEPS = 2_000_000
# A search continues for this multiple of the steps until its first way, to find shorter
# ways. A first way through 8-4 waits and turns around for 68 of 379 steps; a run that
# learned from it lost the level's second pipe.
_SHORTEN = 3.0
# After this many search steps for one level, no further way is searched, because a run
# learns more by training. One way through 8-4 takes 2,100,000 steps.
_ENOUGH = 1_000_000
# Environments at the starts of episodes, which differ in their idle frames.
_SEARCHED_ENVS = 128
# A level has at most so many demonstrations. A way that leads to the end from this
# share of the starts is good enough to search for no other.
_MOST_WAYS, _ROBUST = 8, 0.9
# Resets that look for a given number of idle frames.
_RESETS_FOR_IDLE = 100
# Weight of actions that the planner's list does not have.
_SELDOM = 3


class Way(NamedTuple):
    """Actions from near a level's start to its end."""

    stage: int  # index of the level among the pool's stages
    start: Bytes  # snapshot from which the way begins
    actions: IntArray  # of the run's environments


@dataclass
class Demonstrations:
    """The demonstrations of a run."""

    found: list[Way] = field(default_factory=list)
    # Of each stage: the environment steps of every search that has ended.
    searches: list[list[int]] = field(default_factory=list)
    complete: bool = False  # all searches have ended

    def forget(self) -> None:
        """Drops all ways and searches."""
        self.found, self.searches, self.complete = [], [], False

    def state(self) -> Any:
        """What a resumed run needs, in plain types and tensors.

        A list of the ways once all searches have ended; before that, a dictionary that
        also has the searches; None before the first search has ended.
        """
        if not (self.complete or self.searches):
            return None
        found = [
            {name: torch.as_tensor(value) for name, value in way._asdict().items()}
            | {"stage": way.stage}
            for way in self.found
        ]
        return found if self.complete else {"found": found, "searches": self.searches}

    def restore(self, state: Any) -> None:
        """Continues from `state()`."""
        if state is None:
            return
        self.complete = isinstance(state, list)
        self.searches = [] if self.complete else state["searches"]
        self.found = [
            Way(
                way["stage"],
                *(way[name].cpu().numpy() for name in ("start", "actions")),
            )
            for way in (state if self.complete else state["found"])
        ]


class ReplayedWay(NamedTuple):
    """The observations, snapshots and cells along a way."""

    stage: int  # index of the level among the pool's stages
    actions: IntArray  # (steps,)
    obs: Bytes  # (steps, ...) before each action; (0,) if no longer needed
    snapshots: Bytes  # (n, bytes) before the first step and every `SPACING` steps
    cells: IntArray  # (steps + 1,) before each step, and at the end


def find_ways(
    env: EnvConfig,
    levels: Sequence[str],
    seed: int,
    *,
    per_level: int,
    log: Callable[[str], None],
    ways: Demonstrations | None = None,
) -> list[Way]:
    """Searches for ways through the levels of a run.

    If one way leads to the end from nearly all starts of a level, it is the only one,
    from several of the starts: it does not depend on luck, such as where Bowser turns
    around, and contradicts no other. Four of four seeds solved 7-4 with it in 0.65 M
    steps; before, three of eleven. Other levels have the shortest way of each search.
    """
    ways = Demonstrations() if ways is None else ways
    for stage, level in enumerate(levels):
        if stage < len(ways.searches) - 1:
            continue  # its searches had ended
        if stage == len(ways.searches):
            ways.searches.append([])
        _find_ways_of(env, stage, level, seed, per_level, log, ways)
    ways.complete = True
    return ways.found


def _find_ways_of(
    env: EnvConfig,
    stage: int,
    level: str,
    seed: int,
    per_level: int,
    log: Callable[[str], None],
    ways: Demonstrations,
) -> None:
    """Searches for ways through a level."""
    steps, began, said = ways.searches[stage], time.monotonic(), ""
    before = len(steps)
    random = np.random.default_rng((seed, stage))
    idle = random.integers(env.noop_max + 1, size=per_level).tolist()
    with closing(pool_like(env, seed, _SEARCHED_ENVS)) as pool:
        starts = _different(pool, next(_starts_of(pool, stage, 1)))
        for number in range(before, per_level):
            if sum(steps) >= _ENOUGH:
                break
            found, searched = _search(env, level, seed + number, idle[number], log)
            mine, count = _robust_or_shortest(pool, stage, starts, found)
            if count:
                said = f"{len(mine[0].actions)} steps, {count} of {len(starts)} starts"
                ways.found = [way for way in ways.found if way.stage != stage]
            ways.found += mine
            steps.append(searched)
            if count or not found:  # another search would take equally long
                break
    if len(steps) > before:
        counts = [str(len(way.actions)) for way in ways.found if way.stage == stage]
        said = said or (f"{', '.join(counts)} steps" if counts else "none found")
        log(
            f"demonstrations of {level}: {said} ({sum(steps):,} search steps, "
            f"{time.monotonic() - began:.1f} s)"
        )


def _robust_or_shortest(
    pool: Any, stage: int, starts: Bytes, found: Sequence[IntArray]
) -> tuple[list[Way], int]:
    """The best of the ways of a search, the shortest first.

    That is the first one that leads to the end from nearly all starts, from several of
    them, and the number of these starts; or the first one, from one start, and 0.
    """
    first: list[Way] = []
    for actions in found:
        # Without the first way all starts count, then only those of a robust one do.
        most = round((1.0 - _ROBUST) * len(starts)) if first else len(starts)
        lengths = _lengths(pool, starts, actions, most)
        (places,) = lengths.nonzero()
        mine = [Way(stage, starts[n].copy(), actions[: lengths[n]]) for n in places]
        if len(mine) >= _ROBUST * len(starts):
            return mine[:: -(-len(mine) // _MOST_WAYS)], len(mine)
        first = first or mine[:1]
    return first, 0


def _different(pool: Any, starts: Bytes) -> Bytes:
    """The starts whose games differ."""
    one, found = np.zeros(1, np.int32), dict[bytes, Bytes]()
    for start in starts:
        # A snapshot also has the random numbers of its environment.
        pool.restore(one, start[None], "keep")
        pool.recv()
        found.setdefault(pool.snapshot(one).tobytes(), start)
    return np.stack(list(found.values()))


def _lengths(pool: Any, starts: Bytes, actions: IntArray, most: int) -> IntArray:
    """Steps from starts to the level's end; 0: lost, or more than `most` starts are."""
    envs = np.arange(len(starts), dtype=np.int32)
    lengths, ended = np.zeros(len(starts), np.int64), np.zeros(len(starts), bool)
    pool.restore(envs, starts, "keep")
    pool.recv()
    for step, action in enumerate(actions, 1):
        pool.send(np.full(len(starts), action, np.int32), envs)
        *_, terminated, truncated, info = pool.recv()
        ids, there = np.asarray(info["env_id"]), np.zeros_like(ended)
        there[ids] = terminated & info["flag_get"]
        lengths[there & ~ended] = step
        ended[ids] |= terminated | truncated
        if ended.all() or (ended & (lengths == 0)).sum() > most:
            break
    return lengths


def pool_like(env: EnvConfig, seed: int, num_envs: int, **more: Any) -> Any:
    """A pool like the run's, with another size; it accepts the run's snapshots."""
    config = replace(env, num_envs=num_envs, groups=1, reward_fn="", rng_frames_max=0)
    return make_pool(config, seed * SEED_STRIDE, **more)


def _search(
    env: EnvConfig, level: str, seed: int, noops: int, log: Callable[[str], None]
) -> tuple[list[IntArray], int]:
    """Searches for ways from a level's start to its end; also returns its steps.

    The search observes RAM, which costs nothing and tells standing from jumping.
    """
    pool = pool_like(
        replace(env, task=game_of(env.task), obs="pixels", noop_max=0, levels=(level,)),
        seed,
        _NUM_ENVS,
        obs_type="ram",
        stack_num=1,
        noops=[noops],
    )
    with closing(pool), suppress(TooManyCellsError):
        pool.reset()
        found = plan(
            pool,
            # A warp zone leads to another level.
            lost=lambda rows: level_numbers(rows.info) != level_number(level),
            weights=[float(TRIED.get(action, _SELDOM)) for action in env.actions],
            start=pool.snapshot(np.zeros(1, np.int32))[0],
            max_steps=_MOST_STEPS,
            shorten=_SHORTEN,
            seed=seed,
            report=lambda line: log(f"demonstrations of {level}: {line}"),
        )
        if found is not None:
            return found.ways, found.searched
    return [], _MOST_STEPS


def _starts_of(pool: Any, stage: int, resets: int) -> Iterator[Bytes]:
    """Snapshots of all environments of a pool after each of some resets."""
    pool.set_starts(np.eye(pool.num_stages)[stage])
    for _ in range(resets):
        pool.reset()
        yield pool.snapshot(np.arange(len(pool.all_env_ids), dtype=np.int32))


def read_ways(
    env: EnvConfig,
    levels: Sequence[str],
    seed: int,
    paths: Sequence[Path],
    log: Callable[[str], None],
) -> list[Way]:
    """Reads demonstrations as ways of a run."""
    files = {path: demonstration.load(path) for path in paths}
    made = {path: one for path, one in files.items() if one.ending == "cleared"}
    for path, one in list(made.items()):
        if one.level in levels:
            made[path] = _held(path, one, env, log)
        if made[path].ending != "cleared":
            del made[path]
    if not made:
        raise ValueError(
            f"none of the {len(files)} demonstrations of --demos reaches the end of "
            f"its level with --frame-skip {env.frame_skip}; give at least one that does"
        )
    with closing(pool_like(env, seed, _SEARCHED_ENVS)) as pool:
        ways: list[Way] = []
        starts: dict[tuple[int, int], Bytes] = {}
        for path, one in made.items():
            _check_game(path, one, pool, levels)
            stage, (idle, buttons) = levels.index(one.level), _steps(path, one, env)
            actions = _numbers(path, buttons, made.values(), env)
            if (stage, idle) not in starts:
                starts[stage, idle] = _start_with_idle(pool, stage, idle, one)
            ways.append(Way(stage, starts[stage, idle], actions))
    left_out = len(files) - len(made)
    more = f"; {left_out} that end earlier are left out" * bool(left_out)
    steps = sum(len(way.actions) for way in ways)
    log(f"demonstrations: {len(made)} files, {steps:,} steps to the flag{more}")
    return ways


def _held(
    path: Path, made: Demonstration, env: EnvConfig, log: Callable[[str], None]
) -> Demonstration:
    """A demonstration under the run's turbo_swim, with buttons that a step holds."""
    frames, skip = np.frombuffer(made.buttons, np.uint8), env.frame_skip
    tries = []
    for idle in range(_most_idle(frames, env) + 1):
        # The last step may be shorter, because the flag ends it.
        steps = frames[idle:]
        steps = np.pad(steps, (0, -len(steps) % skip), "edge").reshape(-1, skip)
        votes = (steps[:, :, None] == steps[:, None, :]).sum(2)
        held = np.take_along_axis(steps, votes.argmax(1)[:, None], 1)
        tries.append((int((steps != held).any(1).sum()), -idle, held))
    wrong, idle, held = min(tries, key=lambda each: each[:2])
    if not wrong and made.options["turbo_swim"] == env.turbo_swim:
        return made
    options = made.options | {"turbo_swim": env.turbo_swim}
    buttons = bytes(-idle) + held.repeat(skip).tobytes()
    made = replace(made, buttons=buttons, options=options)
    reward, count, ending = demonstration.play(made)
    end = "reaches the flag" if ending == "cleared" else f"{ending}: left out"
    if wrong:
        log(
            f"{path}: buttons change within {wrong:,} of {len(held):,} steps; with the "
            f"buttons of most frames of each step it {end}"
        )
    elif ending != "cleared":
        log(f"{path}: with --turbo-swim {env.turbo_swim} it {end}")
    return replace(made, buttons=buttons[:count], reward=reward, ending=ending)


def _check_game(
    path: Path, made: Demonstration, pool: Any, levels: Sequence[str]
) -> None:
    """Raises ValueError for a demonstration of another game or level."""
    if made.level not in levels:
        what = made.level or "the whole game"
        raise ValueError(
            f"{path} is a demonstration of {what}, but the run plays "
            f"{', '.join(levels)}: leave the file out, or change --levels"
        )
    for name in GAME_OPTIONS:
        here = pool.config[name]
        if made.options[name] != here:
            raise ValueError(
                f"{path} was made with {name}={made.options[name]}, but the run has "
                f"{here}: a demonstration needs the same value"
            )


def _steps(path: Path, made: Demonstration, env: EnvConfig) -> tuple[int, IntArray]:
    """Idle frames at the beginning, and the buttons of the run's steps after them."""
    frames = np.frombuffer(made.buttons, np.uint8)
    # Take as many idle frames as possible, because no policy decided on them.
    cuts = {
        idle: _first_change(frames[idle:], env.frame_skip)
        for idle in range(_most_idle(frames, env) + 1)
    }
    idle = max(cuts, key=lambda idle: (cuts[idle] is None, cuts[idle] or 0, idle))
    change = cuts[idle]
    if change is not None:
        raise ValueError(
            f"{path} changes buttons within a step of the run, in frame "
            f"{idle + change:,}: a recording needs the run's --frame-skip "
            f"{env.frame_skip} and at most --noop-max {env.noop_max} idle frames; "
            "record it with these options"
        )
    return idle, frames[idle :: env.frame_skip].astype(np.int64)


def _numbers(
    path: Path, buttons: IntArray, made: Iterable[Demonstration], env: EnvConfig
) -> IntArray:
    """The indices of the run's actions of the bytes of a file's steps."""
    numbers = {byte_of(action): n for n, action in enumerate(env.actions)}
    for step, byte in enumerate(buttons.tolist()):
        if byte not in numbers:
            used = sorted(set(b"".join(one.buttons for one in made)))
            texts = [text_of(b).replace("none", "NOOP") for b in used]
            raise ValueError(
                f"{path} has {text_of(byte)} in step {step:,}, but the run's actions "
                f"are {', '.join(env.actions)}; for all actions of the files, give "
                f"--custom-actions {','.join(texts)}"
            )
    return np.array([numbers[byte] for byte in buttons.tolist()], np.int64)


def _most_idle(frames: Bytes, env: EnvConfig) -> int:
    """The most frames at the beginning that may be idle frames of an episode."""
    held = np.flatnonzero(frames)
    return min(int(held[0]) if len(held) else 0, env.noop_max)


def _first_change(frames: Bytes, frame_skip: int) -> int | None:
    """The first frame whose buttons differ from the frame before in the same step."""
    (changes,) = (np.diff(frames.astype(np.int64)) != 0).nonzero()
    within = changes[(changes + 1) % frame_skip != 0]
    return int(within[0]) + 1 if len(within) else None


def _start_with_idle(pool: Any, stage: int, idle: int, made: Demonstration) -> Bytes:
    """A start of the run's episodes with a given number of idle frames.

    The number is random, so this tries many resets. Work RAM has the game's counters of
    frames, so it differs between numbers of idle frames.
    """
    console = demonstration.environment(made)
    console.reset()
    for _ in range(idle):
        console.step(0)
    ram = console.ram.tobytes()
    for starts in _starts_of(pool, stage, _RESETS_FOR_IDLE):
        for blob in starts:
            if ram in blob.tobytes():
                start: Bytes = blob.copy()
                return start
    raise ValueError(
        f"no episode of the run begins like the demonstrations of {made.level} with "
        f"{idle} idle frames: record them with the run's options"
    )


def walk(
    env: EnvConfig, ways: Sequence[Way], seed: int, cell_size: int
) -> list[ReplayedWay]:
    """Replays ways and keeps their observations, snapshots and cells."""
    if not ways:
        return []
    with closing(pool_like(env, seed, len(ways))) as pool:
        envs = np.arange(len(ways), dtype=np.int32)
        lengths = np.array([len(way.actions) for way in ways])
        actions = np.zeros((lengths.max(), len(ways)), np.int32)
        for row, way in enumerate(ways):
            actions[: len(way.actions), row] = way.actions
        pool.reset()
        pool.restore(envs, np.stack([way.start for way in ways]), "keep")
        record = OpenEpisodes(len(ways), num_stages=pool.num_stages)

        def cells_of(rows: Sequence[Any]) -> IntArray:
            """The cells that all environments are in, from the results of recv."""
            return cell_keys(record.observe(*rows[1:]), cell_size)

        rows = pool.recv()
        obs, cells = rows[0], [cells_of(rows)]
        seen: list[list[Bytes]] = [[] for _ in ways]
        kept: list[list[Bytes]] = [[] for _ in ways]
        for step, chosen in enumerate(actions):
            (going,) = (lengths > step).nonzero()
            for row in going.tolist():
                seen[row].append(obs[row].copy())
            if step % SPACING == 0:
                blobs = pool.snapshot(envs[going])
                for row, blob in zip(going.tolist(), blobs, strict=True):
                    kept[row].append(blob.copy())
            pool.send(chosen, envs)
            rows = pool.recv()
            obs, _, terminated, _, info = rows
            cells.append(cells_of(rows))
            ended = lengths == step + 1
            if not (terminated & info["flag_get"])[ended].all():
                raise ValueError("a demonstration does not reach the end of its level")
    return [
        ReplayedWay(
            way.stage,
            way.actions,
            np.stack(seen[row]),
            np.stack(kept[row]),
            np.stack(cells)[: lengths[row] + 1, row],
        )
        for row, way in enumerate(ways)
    ]
