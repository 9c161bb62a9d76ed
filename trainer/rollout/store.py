"""Rows of environments become unrolls here, and unrolls a `Batch`, on one device.

Storage is one tensor per quantity, (K, S, ...): S slots, each one unroll of one
environment, of K = burn_in + T + 1 rows. The last row closes the unroll and
bootstraps it; this row and the burn_in rows before it are also the first rows of the
environment's next slot. Full slots wait in a queue until the learner takes them, and
return to the store when neither the learner nor replay needs them. Which slot and row
each environment writes next is on the host, in NumPy arrays.

A row holds what the pool returned (reward, done and truncated that came with the
observation, and whether an episode begins) and the decision made on it (action, logits,
value, and the version of the weights that decided). The observations are in frames.py,
each frame once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.machine.cuda import Fence
from trainer.rollout.arrays import (
    Index,
    IntArray,
    Native,
    index_on,
    native,
    native_on,
    span,
)
from trainer.rollout.frames import FrameStore, frames_per_slot
from trainer.rollout.replay import Sample

BoolArray = npt.NDArray[np.bool_]

# Columns of a row by their source, the pool or the policy.
_OF_THE_POOL = ("rewards", "done", "truncated", "levels", "is_first")
_DECISIONS = ("actions", "logits", "values")


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

        def column(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=device)

        # One entry for each row; these tensors are never allocated again.
        self.columns = {
            "actions": column(torch.int64),
            "logits": column(torch.float32, num_actions),
            "values": column(torch.float32),
            "versions": column(torch.int64),
            "rewards": column(torch.float32),
            "done": column(torch.bool),
            "truncated": column(torch.bool),
            "levels": column(torch.int64),
            "is_first": column(torch.bool),
        }
        self._native = {name: native(store) for name, store in self.columns.items()}
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
        small = 8 * stack_num + 8 + 4 * 16 + 4 + 4 + 3 + 8 + 8
        return frames * (int(np.prod(obs_shape)) // stack_num) + rows * small

    # -- writing --------------------------------------------------------------

    def write_env(
        self,
        env_id: npt.NDArray[np.int32],  # (n,) distinct
        is_first: BoolArray,  # (n,), the row begins an episode
        obs: Tensor,  # (n, C, H, W) uint8
        reward: Tensor | Native,  # (n,) float32
        done: Tensor | Native,  # (n,) bool, terminated or truncated
        truncated: Tensor | Native,  # (n,) bool
        state: Tensor | None = None,  # (n, S), before these rows, not yet reset
        levels: Tensor | None = None,  # (n,) int64 of each row's episode; None: 0
    ) -> Rows:
        """Stores what the pool returned; the rows are for `write_policy`."""
        envs = span(env_id)
        self._remember(envs, state)
        if levels is None:
            levels = torch.zeros(len(env_id), dtype=torch.int64, device=self.device)
        flags = native_on(self.device, np.ascontiguousarray(is_first))
        columns = [*map(native, (reward, done, truncated, levels)), flags]
        pixels = native(obs)

        (positions,) = (self._cursor[envs] == self._last_row).nonzero()
        closing = closing_of = positions
        if positions.size:
            closing_of = self._index(positions)
            closing_envs = span(env_id[positions])
            closing = self._index(self._close(closing_envs, is_first[positions]))
            picked = None if positions.size == len(env_id) else positions
            self._put(closing, pixels, [x[closing_of] for x in columns], picked)
            self._open(closing_envs)
            self._remember(envs, state)  # with burn_in = T the state is due again
        acting = self._index(self._place(envs, is_first))
        self._put(acting, pixels, columns)
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

    def write_policy(
        self,
        rows: Rows,
        actions: Tensor,  # (n,) int64
        logits: Tensor,  # (n, A) float32
        values: Tensor,  # (n,) float32
        version: int,
    ) -> None:
        """Stores the decisions on rows; completes the unrolls that the rows close."""
        versions = self._native["versions"]
        for name, decision in zip(_DECISIONS, (actions, logits, values), strict=True):
            store, column = self._native[name], native(decision)
            store[rows.acting] = column
            if rows.closed:
                store[rows.closing] = column[rows.closing_of]
        versions[rows.acting] = version
        if rows.closed:
            versions[rows.closing] = version
        self._complete()

    def write_bootstrap(self, rows: Rows, values: Tensor, version: int) -> Rows:
        """Completes the unrolls that rows close, with their values (n,).

        No actions are chosen yet, so the next unroll can begin with weights that have
        learned from this one. Returns the rows for a later `write_policy`: only those
        of the next unrolls, because the completed ones may be read from now on.
        """
        self._native["values"][rows.closing] = native(values)[rows.closing_of]
        self._native["versions"][rows.closing] = version
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
        at: Index,
        obs: Native,  # (m, C, H, W) uint8
        columns: Sequence[Native],
        pick: IntArray | None = None,
    ) -> None:
        """Writes rows that `_place` has just placed; `columns` are _OF_THE_POOL's.

        `pick` are the indices (n,) of the observations to write; None: all of them.
        """
        self._frames.write(at, obs, pick)
        for name, column in zip(_OF_THE_POOL, columns, strict=True):
            self._native[name][at] = column

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
            kept = {name: store[where] for name, store in self._native.items()}
            self._cursor[envs] = row
            begins = self.columns["is_first"][rows].cpu().numpy()
            at = self._index(self._place(envs, begins))
            self._put(at, native(obs), [kept[name] for name in _OF_THE_POOL])
            for name in (*_DECISIONS, "versions"):
                self._native[name][at] = kept[name]
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
        slots = torch.tensor(fresh).to(self.device, non_blocking=True)
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
        none = self._index(np.empty(0, np.int64))
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
