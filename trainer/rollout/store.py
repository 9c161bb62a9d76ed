"""Rows of environments become unrolls here, and unrolls a `Batch`, on one device.

There are S slots, each one unroll of one environment, of K = burn_in + T + 1 rows. The
last row closes the unroll and bootstraps it; this row and the burn_in rows before it
are also the first rows of the environment's next slot. Full slots wait in a queue until
the learner takes them, and return to the store when neither the learner nor replay
needs them. Which slot and row each environment writes next is on the host, in NumPy
arrays.

A row is two records: what the pool returned (reward, done and truncated that came with
the observation, whether an episode begins, its level), and the decision made on it
(action, logits, value, and the version of the weights that decided). One write stores a
record for all rows of a batch; the columns are views. The observations are in
frames.py, each frame once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.machine.cuda import Fence, copied_to
from trainer.rollout.arrays import (
    Index,
    IntArray,
    Native,
    index_on,
    native,
    span,
)
from trainer.rollout.frames import FrameStore, frames_per_slot
from trainer.rollout.replay import Sample

BoolArray = npt.NDArray[np.bool_]

# What the pool returned with a row: one record, and so one write.
_RETURNED = np.dtype(
    {
        "names": ["levels", "rewards", "done", "truncated", "is_first"],
        "formats": [np.int64, np.float32, np.bool_, np.bool_, np.bool_],
        "offsets": [0, 8, 12, 13, 14],
        "itemsize": 16,
    }
)


def _decision_kind(num_actions: int) -> np.dtype[np.void]:
    """The record of the decision on a row; `decisions` makes it."""
    size = 20 + 4 * num_actions
    return np.dtype(
        {
            "names": ["actions", "versions", "values", "logits"],
            "formats": [np.int64, np.int64, np.float32, (np.float32, num_actions)],
            "offsets": [0, 8, 16, 20],
            "itemsize": size + size % 8,  # whole words of 8 bytes
        }
    )


def decisions(
    actions: Tensor,  # (n,) int64
    logits: Tensor,  # (n, A) float32
    values: Tensor,  # (n,) float32
    version: Tensor,  # (1,) int64, of the policy that decided
) -> Tensor:
    """The decisions on n rows as records (n, words) int64, for `Rollouts`."""
    halves = torch.int32
    parts = [
        actions[:, None].view(halves),
        version.expand(len(actions), 1).contiguous().view(halves),
        values[:, None].view(halves),
        logits.view(halves),
    ]
    if logits.shape[1] % 2 == 0:  # a whole number of words
        parts.append(parts[2])
    return torch.cat(parts, 1).view(torch.int64)


def decided(records: Tensor, num_actions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Actions, logits and values of `decisions`, as views: faster than `_columns`."""
    numbers = records.view(torch.float32)[:, 4:]
    return records[:, 0], numbers[:, 1 : 1 + num_actions], numbers[:, 0]


def _columns(records: Tensor, kind: np.dtype[np.void]) -> dict[str, Tensor]:
    """Views of the fields of records (rows, words) int64."""
    stored, result = records.view(torch.uint8), {}
    for name, (field, start, *_) in (kind.fields or {}).items():
        column = stored[:, start : start + field.itemsize]
        column = column.view(torch.from_numpy(np.empty(0, field.base)).dtype)
        result[name] = column if field.shape else column.squeeze(1)
    return result


class Rows(NamedTuple):
    """Where the n rows of one recv were written: flat indices k * S + slot."""

    acting: Index  # n rows that the environments act from
    closing: Index  # m last rows of the unrolls that this recv completed
    closing_of: Index  # positions of the closing rows among the n rows
    closed: int  # m


class Batch(NamedTuple):
    """B unrolls of K = burn-in + T + 1 rows. Frames stay in the store."""

    frames: Tensor  # (all frames, words), the frames of the store
    stacks: Tensor  # (K, B, stack) int64 indices of the frames of each observation
    actions: Tensor  # (K, B) int64; the last row's are undefined in sync mode
    logits: Tensor  # (K, B, A) float32 of the policy that acted
    values: Tensor  # (K, B) float32 of the critic when it acted
    rewards: Tensor  # (K, B) float32 that came with each row
    done: Tensor  # (K, B) bool, terminated or truncated
    truncated: Tensor  # (K, B) bool
    is_first: Tensor  # (K, B) bool, the row begins an episode
    versions: Tensor  # (K, B) int64 version of the policy that acted
    levels: Tensor  # (K, B) int64 index of the level among the run's levels
    state: Tensor  # (B, S) float32, the memory before the first row
    weights: Tensor  # (B,) float32 importance of each unroll; 1 for fresh ones
    fresh: Tensor  # (B,) bool, the unroll is not from replay

    def at(self, unrolls: Tensor | slice) -> Batch:
        """Some of the unrolls."""
        of_unrolls = ("state", "weights", "fresh")
        fields = {
            name: field[unrolls] if name in of_unrolls else field[:, unrolls]
            for name, field in self._asdict().items()
            if name != "frames"
        }
        return Batch(frames=self.frames, **fields)

    def inputs(self, unrolls: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the network sees of some unrolls: stacks, state, is_first, levels."""
        return (
            self.stacks[:, unrolls],
            self.state[unrolls],
            self.is_first[:, unrolls],
            self.levels[:, unrolls],
        )


class Rollouts:
    """The store, and the two queues of slots: free and full."""

    def __init__(
        self,
        *,
        num_envs: int,  # each holds one slot
        num_slots: int,  # more than num_envs: others are learned from meanwhile
        unroll: int,  # T, in steps
        obs_shape: tuple[int, ...],  # (C, H, W)
        num_actions: int,
        device: torch.device,
        stack_num: int = 1,  # frames in an observation; C is a multiple of it
        state_size: int = 0,  # floats of the memory's state
        burn_in: int = 0,  # rows before the T + 1 that are trained on, at most T
    ) -> None:
        self.unroll, self.burn_in = unroll, burn_in
        self.num_slots, self.device = num_slots, device
        self.obs_shape = obs_shape
        self._last_row = burn_in + unroll
        rows = (self._last_row + 1) * num_slots
        self._frames = FrameStore(
            num_envs, num_slots, self._last_row + 1, obs_shape, stack_num, device
        )

        kinds = (_RETURNED, _decision_kind(num_actions))
        returned, decided = (
            torch.zeros(rows, kind.itemsize // 8, dtype=torch.int64, device=device)
            for kind in kinds
        )
        self._returned, self._decided = native(returned), native(decided)
        # Views, one entry for each row; they are never allocated again.
        self.columns = _columns(returned, kinds[0]) | _columns(decided, kinds[1])
        self.state = torch.zeros(num_slots, state_size, device=device)
        # The memory before the row that the next slot will begin with.
        self._next_state = torch.zeros(num_envs, state_size, device=device)

        self._slot = np.arange(num_envs, dtype=np.int64)
        self._cursor = np.zeros(num_envs, np.int64)
        # Number of rows in each slot whose actions the pool ignores.
        self._ignored = np.zeros(num_slots, np.int64)
        self._free: deque[int] = deque(range(num_envs, num_slots))
        self._full: deque[int] = deque()
        self._closing_slots: list[int] = []
        self._completed, self._released = Fence(device), Fence(device)

    @property
    def num_full(self) -> int:
        """Number of unrolls that are ready to be learned from."""
        return len(self._full)

    @property
    def num_free(self) -> int:
        """Number of slots that are ready to be written."""
        return len(self._free)

    def closes(self, env_id: npt.NDArray[np.int32]) -> bool:
        """Whether the next rows of environments complete unrolls."""
        return bool(np.count_nonzero(self._cursor[env_id] == self._last_row))

    @staticmethod
    def bytes_per_slot(
        unroll: int, burn_in: int, obs_shape: tuple[int, ...], stack_num: int
    ) -> int:
        """Approximate bytes of one slot, without the memory's state."""
        rows = burn_in + unroll + 1
        frames = frames_per_slot(rows, stack_num)
        small = 8 * stack_num + _RETURNED.itemsize + _decision_kind(16).itemsize
        return frames * (int(np.prod(obs_shape)) // stack_num) + rows * small

    # -- writing --------------------------------------------------------------

    def write_env(
        self,
        env_id: npt.NDArray[np.int32],  # (n,) distinct
        is_first: BoolArray,  # (n,), the row begins an episode
        obs: Tensor,  # (n, C, H, W) uint8, on the device
        reward: npt.NDArray[np.float32],  # (n,)
        done: BoolArray,  # (n,), terminated or truncated
        truncated: BoolArray,  # (n,)
        state: Tensor | None = None,  # (n, S), before these rows, not yet reset
        levels: IntArray | None = None,  # (n,) of each row's episode; None: 0
    ) -> Rows:
        """Stores what the pool returned; the rows are for `write_policy`."""
        envs, pixels = span(env_id), native(obs)
        self._remember(envs, state)
        record = np.zeros(len(env_id), _RETURNED)
        record["levels"] = 0 if levels is None else levels
        record["rewards"], record["done"] = reward, done
        record["truncated"], record["is_first"] = truncated, is_first
        records = record.view(np.int64).reshape(len(env_id), -1)

        (positions,) = (self._cursor[envs] == self._last_row).nonzero()
        closing = closing_of = positions
        if positions.size:
            closing_of = index_on(self.device, positions)
            closing_envs = span(env_id[positions])
            closing = self._put(
                self._close(closing_envs, is_first[positions]),
                pixels,
                records[positions],
                None if positions.size == len(env_id) else positions,
            )
            self._open(closing_envs)
            self._remember(envs, state)  # with burn_in = T the state is due again
        acting = self._put(self._place(envs, is_first), pixels, records)
        self._cursor[envs] += 1
        return Rows(acting, closing, closing_of, positions.size)

    def _remember(self, envs: slice | IntArray, state: Tensor | None) -> None:
        """Keeps the memory before the rows with which the next slots will begin."""
        if state is None or not self.state.shape[1]:
            return
        due = np.flatnonzero(self._cursor[envs] == self.unroll)
        if due.size:
            where = np.arange(len(self._cursor))[envs][due]
            memory = native(state)[self._index(due)]
            native(self._next_state)[self._index(where)] = memory

    def write_policy(self, rows: Rows, decided: Tensor) -> None:
        """Stores the `decisions` on rows; completes the unrolls that the rows close."""
        records = native(decided)
        self._decided[rows.acting] = records
        if rows.closed:
            self._decided[rows.closing] = records[rows.closing_of]
        self._complete()

    def write_bootstrap(self, rows: Rows, values: Tensor, version: int) -> Rows:
        """Completes the unrolls that rows close, with their values (n,).

        No actions are chosen yet, so the next unroll can begin with weights that have
        learned from this one. Returns the rows for a later `write_policy`: only those
        of the next unrolls, because the completed ones may be read from now on.
        """
        values_of = native(self.columns["values"])
        values_of[rows.closing] = native(values)[rows.closing_of]
        native(self.columns["versions"])[rows.closing] = version
        self._complete()
        return rows._replace(closed=0)

    def _complete(self) -> None:
        if self._closing_slots:
            self._completed.signal()
            self._full.extend(self._closing_slots)
            self._closing_slots = []

    def _place(self, envs: slice | IntArray, is_first: BoolArray) -> IntArray:
        """Rows at the cursors of environments; places their frames for `_put`."""
        slot, cursor = self._slot[envs], self._cursor[envs]
        begins = cursor == 0
        if np.count_nonzero(is_first):
            # The pool ignored the action before a first row: the step was a reset.
            self._ignored[slot] += is_first & (cursor > self.burn_in)
            begins |= is_first
        self._frames.place(envs, slot, begins)
        return cursor * self.num_slots + slot

    def _put(
        self,
        rows: IntArray,
        obs: Native,  # (m, C, H, W) uint8
        records: npt.NDArray[Any],
        pick: IntArray | None = None,
    ) -> Index:
        """Writes rows that `_place` has just placed; see `FrameStore.write`."""
        at, stored = self._frames.write(rows, obs, records, pick)
        self._returned[at] = stored
        return at

    def _close(self, envs: slice | IntArray, is_first: BoolArray) -> IntArray:
        """Places the last rows of unrolls."""
        if len(is_first) > len(self._free):
            raise RuntimeError(
                f"{len(is_first)} unrolls are complete, but only {len(self._free)} of "
                f"{self.num_slots} slots are free: call take() and release() more "
                "often, or raise num_slots"
            )
        self._closing_slots = self._slot[envs].tolist()
        return self._place(envs, is_first)

    def _open(self, envs: slice | IntArray) -> None:
        """Moves environments to free slots, and copies the burn-in rows there."""
        self._released.wait()
        old = self._slot[envs].copy()
        new = np.array([self._free.popleft() for _ in old], np.int64)
        self._slot[envs] = new
        self._frames.empty(new)
        self._ignored[new] = 0
        if self.state.shape[1]:
            where = self._index(np.arange(len(self._slot))[envs])
            memory = native(self._next_state)[where]
            native(self.state)[self._index(new)] = memory
        for row in range(self.burn_in):
            source = (self.unroll + row) * self.num_slots + old
            where, rows = self._index(source), torch.from_numpy(source).to(self.device)
            # Read before `_place`, which may grow the store and move all its frames.
            obs = self._frames.read(rows)
            records = torch.as_tensor(self._returned[where]).cpu().numpy()
            self._cursor[envs] = row
            begins = records.view(_RETURNED)["is_first"][:, 0]
            at = self._put(self._place(envs, begins), native(obs), records)
            self._decided[at] = self._decided[where]
        self._cursor[envs] = self.burn_in

    # -- reading --------------------------------------------------------------

    def take(self, count: int) -> list[int]:
        """Takes the oldest `count` full slots; return them with `release`."""
        if count > len(self._full):
            raise ValueError(
                f"take({count}) needs {count} full unrolls, got {len(self._full)}"
            )
        self._completed.wait()
        return [self._full.popleft() for _ in range(count)]

    def learned_steps(self, slots: list[int]) -> int:
        """Number of rows in taken slots whose actions the pool executed."""
        return len(slots) * self.unroll - int(self._ignored[slots].sum())

    def release(self, slots: list[int]) -> None:
        """Returns slots to the store, to be written again."""
        self._released.signal()
        self._free.extend(slots)

    def batch(
        self,
        fresh: list[int],  # taken slots
        replayed: Sample | None = None,
    ) -> Batch:
        """The unrolls of some slots; small arrays are copied, pixels are not."""
        slots = copied_to(self.device, torch.tensor(fresh))
        weights = torch.ones(len(fresh), device=self.device)
        if replayed is not None:
            slots = torch.cat([slots, replayed.slots])
            weights = torch.cat([weights, replayed.weights])
        rows = torch.arange(self._last_row + 1, device=self.device)[:, None]
        index = rows * self.num_slots + slots
        frames, stacks = self._frames.both()
        return Batch(
            frames=frames,
            stacks=stacks[index],
            **{name: column[index] for name, column in self.columns.items()},
            state=self.state[slots],
            weights=weights,
            fresh=torch.arange(len(slots), device=self.device) < len(fresh),
        )

    # -- checkpoints ----------------------------------------------------------

    def newest(self, env_id: npt.NDArray[np.int32]) -> Rows:
        """The rows that environments wrote last, which still need actions."""
        index = (self._cursor[env_id] - 1) * self.num_slots + self._slot[env_id]
        none = np.empty(0, np.int64)
        return Rows(self._index(index), none, none, 0)

    def snapshot(self, kept: Sequence[int] = ()) -> dict[str, Any]:
        """The slots that are being written, full or kept, and the role of each slot.

        `kept` are slots of replay to save; other taken slots count as free.
        """
        used = [*self._slot.tolist(), *self._full, *kept]
        free = [*self._free]
        free += sorted(set(range(self.num_slots)) - {*used, *free})
        return {
            "used": used,
            "full": list(self._full),
            "free": free,
            "slot": torch.from_numpy(self._slot.copy()),
            "ignored": torch.from_numpy(self._ignored.copy()),
            "cursor": torch.from_numpy(self._cursor.copy()),
            "rows": {name: rows[:, used] for name, rows in self._by_slot().items()},
            "state": self.state[used],
            "next_state": self._next_state,
            **self._frames.snapshot(used),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `snapshot` of a store of the same size."""
        used = state["used"]
        self._free, self._full = deque(state["free"]), deque(state["full"])
        self._slot = state["slot"].cpu().numpy().copy()
        self._ignored = state["ignored"].cpu().numpy().copy()
        self._cursor = state["cursor"].cpu().numpy().copy()
        self._frames.restore(used, state)
        for name, rows in self._by_slot().items():
            rows[:, used] = state["rows"][name]
        self.state[used] = state["state"]
        self._next_state.copy_(state["next_state"])

    def _by_slot(self) -> dict[str, Tensor]:
        """Views (K, S, ...) of the tensors of one entry per row, by name."""
        stores = {"stacks": self._frames.stacks} | self.columns
        slots = self.num_slots
        return {k: v.view(-1, slots, *v.shape[1:]) for k, v in stores.items()}

    def _index(self, positions: IntArray) -> Index:
        return index_on(self.device, positions)
