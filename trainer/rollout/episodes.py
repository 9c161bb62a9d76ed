"""The record of open episodes: what a run knows of each environment's episode.

`OpenEpisodes` decodes the rows of one recv once, into `StepColumns`. Statistics,
explorer and recorder read these columns: no other code decodes levels and positions
or keeps the totals of open episodes.

With next-step autoreset the row after a `done` row is the reset: it opens the next
episode, and its reward is 0.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mario_envpool import END_REASONS
from trainer.config.tasks import LevelPlaces, level_name, level_numbers, x_in_room
from trainer.rollout.arrays import IntArray, span

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]

# Steps without a new best position after which an environment stagnates.
STAGNATION_STEPS = 50
# The low bits of a room's number hold its area, the bits above its level's number.
_AREA_BITS = 8
_NO_ROOM = -1
# From this value on, info's y_pos at a death means a fall out of the screen: y is a
# byte that has wrapped around.
_FELL = 248
# Fields of info that say how and where an episode of a level ended.
END_FIELDS = ("x_pos", "y_pos", "area_pointer", "time", "end_reason", "flag_get")


class Episode(NamedTuple):
    """One finished episode."""

    total_reward: float
    steps: int
    best_x: int  # largest x in pixels
    cleared: bool  # reached the flag; in a whole game, the axe of the last castle
    # In a whole game, the levels before the last one that was reached (all after a
    # clear), with those that a warp zone skipped; 0 in other tasks.
    levels_passed: int = 0


class Place(NamedTuple):
    """Where an episode ended."""

    area: int  # info's area_pointer, the room
    x: int  # pixels from the left end of the room
    y: int  # info's y_pos, pixels from below; 0 for a fall out of the screen


def end_of(last: Mapping[str, int]) -> str:
    """How an episode of a level ended, by fields of its last info."""
    if last["flag_get"]:
        return "cleared"
    if END_REASONS[last["end_reason"]] == "stall":
        return "stalled"
    return "timed out" if last["time"] == 0 else "died"


def place_of(last: Mapping[str, int]) -> Place:
    """Where an episode ended, by fields of its last info."""
    x, y = x_in_room(last["x_pos"]), last["y_pos"]
    fell = _FELL <= y <= 255  # above 255 is over the top of the screen
    return Place(last["area_pointer"], x, 0 if fell else y)


class StepColumns(NamedTuple):
    """The n rows of one recv: a column (n,) for each quantity, and finished episodes.

    A quantity that the task does not report is 0 in its column (`place`: -1); EnvPool's
    Atari games, for example, report no positions. Columns may be views of the pool's or
    the record's memory: they are valid until actions are sent.
    """

    env_id: npt.NDArray[np.int32]  # distinct environments, all at rest
    reward: FloatArray
    is_first: BoolArray  # the row begins an episode
    done: BoolArray  # terminated or truncated
    truncated: BoolArray
    cleared: BoolArray  # see `Episode`
    step: npt.NDArray[np.int32]  # of the episode so far
    level: IntArray  # number of the level that Mario is in (`level_number`)
    place: IntArray  # index of the level among the run's levels; -1: not among them
    room: IntArray  # number of the level and its area
    x: IntArray  # pixels from the left end of the room
    x_pos: npt.NDArray[np.integer]  # as the game counts; 65,535 left of the left end
    y_pos: npt.NDArray[np.integer]  # pixels as the game counts
    clock: npt.NDArray[np.integer]  # time left, in the game's units
    loop: npt.NDArray[np.integer]  # the game's own record of the way through a maze
    start: npt.NDArray[np.integer]  # which of the pool's starts the episode began from
    lost_life: BoolArray  # the episode has fewer lives than in its row before
    first_level: IntArray  # number of the level that the episode began in
    first_place: IntArray  # `place` of that level; 0 if it is not among them
    from_snapshot: BoolArray  # the episode did not begin at a level's start
    taught: BoolArray  # a teacher chose actions of the episode
    progress: IntArray  # pixels of new best positions, each within its room
    room_best_x: IntArray  # best position of the episode in this room
    growth: IntArray  # pixels by which the step raised the episode's best position
    ended: Sequence[tuple[int, Episode]]  # rows that ended an episode, and that episode
    info: Mapping[str, Any]  # what the pool returned

    def line(self, row: int, episode: Episode) -> dict[str, Any]:
        """What episodes.jsonl says of an episode that a row ended.

        In all tasks whether it began `from_snapshot`, its `steps` and `return`, and
        `taught` if a teacher chose some of its actions. In tasks of Mario the `level`
        in which it began, its `best_x`, how it ended (`end_of`), and where:
        `end_level`, `area`, `x`, `y` (`Place`).
        """
        line: dict[str, Any] = {
            "from_snapshot": bool(self.from_snapshot[row]),
            **({"taught": True} if self.taught[row] else {}),
            "steps": episode.steps,
            "return": round(episode.total_reward, 4),
        }
        if "end_reason" in self.info:
            last = {name: int(self.info[name][row]) for name in END_FIELDS}
            line |= {
                "level": level_name(int(self.first_level[row])),
                "best_x": episode.best_x,
                "end": end_of(last),
                "end_level": level_name(int(self.level[row])),
                **place_of(last)._asdict(),
            }
        return line

    @property
    def finished(self) -> Sequence[tuple[int, Episode]]:
        """Those of `ended` that began at a level's start, without a teacher's actions.

        A clear may take an episode from a snapshot a few steps.
        """
        helped = self.from_snapshot | self.taught
        return [(row, e) for row, e in self.ended if not helped[row]]


class OpenEpisodes:
    """One entry per environment about its open episode, as arrays.

    One thread may observe while another reads statistics.
    """

    # The arrays of the record: what later rows need from earlier ones.
    _ARRAYS = (
        "_is_open", "_return", "_step", "_best_x", "_best_step", "_level", "_place",
        "_from_snapshot", "_taught", "_room", "_room_best_x", "_progress", "_life",
        "_passed",
    )  # fmt: skip

    def __init__(
        self,
        num_envs: int,
        *,
        levels: Sequence[str] = (),  # of the run, in order; () for other tasks
        game: Sequence[str] = (),  # those of a whole game, in order; () for other tasks
        num_stages: int | None = None,  # a `start` from here on is a snapshot
    ) -> None:
        self._num_stages = num_stages
        self._places = LevelPlaces(levels) if levels else None
        self._game = LevelPlaces(game) if game else None
        self._game_levels = len(game)
        self._zeros = np.zeros(num_envs, np.int64)
        self._nowhere = np.full(num_envs, -1, np.int64)
        self._never = np.zeros(num_envs, bool)

        self._is_open = np.zeros(num_envs, bool)
        self._return = np.zeros(num_envs)
        self._step = np.zeros(num_envs, np.int64)
        self._best_x = np.zeros(num_envs, np.int64)
        self._best_step = np.zeros(num_envs, np.int64)
        # Where the episode began.
        self._level = np.zeros(num_envs, np.int64)
        self._place = np.zeros(num_envs, np.int64)
        self._from_snapshot = np.zeros(num_envs, bool)
        self._taught = np.zeros(num_envs, bool)
        # Where the episode is now, and how far it has come.
        self._room = np.full(num_envs, _NO_ROOM, np.int64)
        self._room_best_x = np.zeros(num_envs, np.int64)
        self._progress = np.zeros(num_envs, np.int64)
        self._life = np.zeros(num_envs, np.int64)
        self._passed = np.zeros(num_envs, np.int64)

        self._lock = threading.Lock()
        # Growth of the best positions, and steps, since the last statistics().
        self._grown, self._grown_in = 0, 0
        self._has_x = False

    def observe(
        self,
        reward: FloatArray,  # (n,), like the next two
        terminated: BoolArray,
        truncated: BoolArray,
        info: Mapping[str, Any],
    ) -> StepColumns:
        """Takes the rows of one recv.

        `info` has `env_id` and `elapsed_step`, and `start` if there are stages; all
        other fields are optional.
        """
        env_id, step = info["env_id"], info["elapsed_step"]
        count, at = len(env_id), span(env_id)
        zeros, never = self._zeros[:count], self._never[:count]
        is_first, done = np.asarray(step == 0), terminated | truncated
        truncated = np.asarray(truncated, dtype=bool)
        told = "world" in info and "stage" in info
        level = level_numbers(info) if told else zeros
        place = self._nowhere[:count] if self._places is None else self._places(level)
        room = level << _AREA_BITS | info.get("area_pointer", zeros)
        x = x_in_room(info["x_pos"].astype(np.int64)) if "x_pos" in info else zeros
        cleared = info.get("flag_get", never)
        if self._game is not None:
            cleared = cleared & terminated  # not the flag of a level before the last
        with self._lock:
            if np.count_nonzero(is_first):  # rare; any() takes six times as long
                self._begin(env_id[is_first], is_first, level, place, info)
            self._has_x = "x_pos" in info
            self._is_open[at] = ~done
            self._return[at] += reward
            self._step[at] = step
            from_snapshot = self._from_snapshot[at]
            growth = self._add_best_x(at, step, is_first | from_snapshot, is_first, x)
            room_best_x, progress = self._add_progress(
                at, room, np.maximum(info["best_x"], x) if "best_x" in info else x
            )
            if self._game is not None:
                passed = np.maximum(self._passed[at], self._game(level))
                self._passed[at] = np.where(cleared, self._game_levels, passed)
            life = info.get("life", zeros)
            lost_life = life < self._life[at]
            self._life[at] = life
            return StepColumns(
                env_id=env_id,
                reward=reward,
                is_first=is_first,
                done=done,
                truncated=truncated,
                cleared=cleared,
                step=step,
                level=level,
                place=place,
                room=room,
                x=x,
                x_pos=info.get("x_pos", zeros),
                y_pos=info.get("y_pos", zeros),
                clock=info.get("time", zeros),
                loop=info.get("loop", zeros),
                start=info.get("start", zeros),
                lost_life=lost_life,
                first_level=self._level[at],
                first_place=self._place[at],
                from_snapshot=from_snapshot,
                taught=self._taught[at],
                progress=progress,
                room_best_x=room_best_x,
                growth=growth,
                ended=self._ended(env_id, done, cleared),
                info=info,
            )

    def _begin(
        self,
        begun: npt.NDArray[np.int32],
        is_first: BoolArray,
        level: IntArray,
        place: IntArray,
        info: Mapping[str, Any],
    ) -> None:
        """Begins the episodes of the environments in `begun`, from their first rows."""
        for array in (
            self._return, self._best_x, self._best_step, self._progress, self._passed,
        ):  # fmt: skip
            array[begun] = 0
        self._life[begun], self._room[begun] = 0, _NO_ROOM
        self._taught[begun] = False
        self._level[begun] = level[is_first]
        self._place[begun] = np.maximum(place[is_first], 0)
        if self._num_stages is not None:
            self._from_snapshot[begun] = info["start"][is_first] >= self._num_stages

    def _add_best_x(
        self,
        at: slice | IntArray,
        step: npt.NDArray[np.int32],
        uncounted: BoolArray,
        is_first: BoolArray,
        x: IntArray,
    ) -> IntArray:
        """Raises the best positions; a first row does not count as growth."""
        growth: IntArray = np.maximum(x - self._best_x[at], 0)
        self._best_x[at] += growth
        growth *= ~is_first
        self._best_step[at] = np.where(growth > 0, step, self._best_step[at])
        self._grown += int(growth.sum(where=~uncounted))
        self._grown_in += len(step) - int(np.count_nonzero(uncounted))
        return growth

    def _add_progress(
        self, at: slice | IntArray, room: IntArray, best_x: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Tracks the best positions in rooms and their sum.

        If Mario grew or shrank in the first row, there is no best position yet; it is
        at least his current position. A best position in a new room is no progress.
        """
        gain = np.maximum(best_x - self._room_best_x[at], 0)
        gain *= room == self._room[at]
        progress: IntArray = self._progress[at] + gain
        self._progress[at] = progress
        self._room[at], self._room_best_x[at] = room, best_x
        return best_x, progress

    def _ended(
        self, env_id: npt.NDArray[np.int32], done: BoolArray, cleared: BoolArray
    ) -> Sequence[tuple[int, Episode]]:
        """Pairs of a row that ended an episode, and that episode."""
        ended = []
        for row in done.nonzero()[0].tolist():
            env = int(env_id[row])
            total, steps = float(self._return[env]), int(self._step[env])
            best_x, flag = int(self._best_x[env]), bool(cleared[row])
            passed = int(self._passed[env])
            ended.append((row, Episode(total, steps, best_x, flag, passed)))
        return ended

    def teach(self, env_id: npt.NDArray[np.int32]) -> None:
        """Takes environments for which a teacher has just chosen the actions."""
        self._taught[env_id] = True

    def first_places(self, env_id: npt.NDArray[np.int32]) -> IntArray:
        """The `first_place` of the environments' episodes, (n,) int64."""
        return self._place[env_id]

    def statistics(self) -> dict[str, float]:
        """Statistics of the open episodes; {} if the task reports no positions.

        Episodes that began from a snapshot are left out.

        `env_progress_dx` is the mean growth of an episode's best position per step
        since the last call. `stagnation_envs` counts the environments that have had no
        new best position for STAGNATION_STEPS steps.
        """
        with self._lock:
            if not self._has_x:
                return {}
            stagnates = self._step - self._best_step >= STAGNATION_STEPS
            counted = self._is_open & ~self._from_snapshot
            grown, steps = self._grown, self._grown_in
            self._grown, self._grown_in = 0, 0
            return {
                "stagnation_envs": float((stagnates & counted).sum()),
                "env_progress_dx": grown / max(steps, 1),
            }

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to continue these episodes, as tensors."""
        with self._lock:
            return {
                "has_x": self._has_x,
                "arrays": {
                    name: torch.from_numpy(getattr(self, name).copy())
                    for name in self._ARRAYS
                },
            }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from the `state()` of the same number of environments."""
        with self._lock:
            self._has_x = state["has_x"]
            for name in self._ARRAYS:
                if name in state["arrays"]:  # older checkpoints lack the last ones
                    setattr(self, name, state["arrays"][name].cpu().numpy().copy())
