"""Frames of unrolls, each stored once, and an index of the frames of each row.

An observation is a stack of frames, and each step adds one frame. `stacks` has the
indices of a row's frames: the newest frame and those of the rows before. The first row
of a slot, of an episode and of a restored state stores its whole stack, so no slot
refers to another slot and no stack crosses a reset.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.machine.cuda import use_here, wait_for_device
from trainer.rollout.arrays import (
    Index,
    IntArray,
    Native,
    native,
    span,
    together,
)

BoolArray = npt.NDArray[np.bool_]

_logger = logging.getLogger(__name__)


def observations(frames: Tensor, stacks: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Observations (..., C, H, W) uint8 out of frames, by indices (..., stack)."""
    pixels = frames.index_select(0, stacks.flatten()).view(torch.uint8)
    return pixels.view(*stacks.shape[:-1], *shape)


def as_words(rows: Native) -> Native:
    """Views (n, bytes) as (n, words) if 8 divides the bytes: 8 times fewer elements.

    Measured on one Zen 4 core for rows of 28 KB: index_copy_ takes 22 us a row for
    uint8 and 3 us for int64.
    """
    words = torch.int64 if isinstance(rows, Tensor) else np.int64
    return rows.view(words) if rows.shape[1] % 8 == 0 else rows


def frames_per_slot(rows: int, stack_num: int) -> int:
    """Initial capacity of a slot in frames.

    This is enough for an episode every 16 rows; with more episodes the store grows.
    """
    return rows + (stack_num - 1) * (2 + rows // 16)


class FrameStore:
    """All frames of a store of unrolls; one thread writes while another reads."""

    def __init__(
        self,
        num_envs: int,
        num_slots: int,
        rows: int,  # of a slot
        obs_shape: tuple[int, ...],  # (C, H, W)
        stack_num: int,  # divides C
        device: torch.device,
    ) -> None:
        """Allocates everything; only very short episodes make the store grow."""
        self._rows, self._num_slots = rows, num_slots
        self._obs_shape, self._stack_num, self._device = obs_shape, stack_num, device
        self._per_slot = frames_per_slot(rows, stack_num)
        # Indices of the frames of each row, (rows * slots, stack).
        self.stacks = torch.zeros(
            rows * num_slots, stack_num, dtype=torch.int64, device=device
        )
        frame = torch.zeros(1, int(np.prod(obs_shape)) // stack_num, dtype=torch.uint8)
        words: Tensor = as_words(frame.to(device))
        # One slot after the other, (all frames, words).
        self.frames = words.repeat(num_slots * self._per_slot, 1)
        self._used = np.zeros(num_slots, np.int64)
        self._order = np.arange(stack_num)
        # The frames of the row that each environment wrote last.
        self._newest = np.zeros((num_envs, stack_num), np.int64)
        # For `write`: the frames of all rows, and the rows that store a whole stack.
        self._placed, self._whole = self._newest[:0], np.empty(0, np.int64)
        self._growing = threading.Lock()

    def both(self) -> tuple[Tensor, Tensor]:
        """`frames` and `stacks` together, consistent while the writing thread grows.

        The caller may have another stream than the thread that has made them.
        """
        with self._growing:
            both = self.frames, self.stacks
        use_here(self._device, *both)
        return both

    def empty(self, slots: IntArray) -> None:
        """Drops the frames of slots that are about to be written again."""
        self._used[slots] = 0

    def place(self, envs: slice | IntArray, slots: IntArray, whole: BoolArray) -> None:
        """Chooses where the next rows (n,) of environments store their frames.

        A row that is `whole` stores all frames of its stack.
        """
        # any() and flatnonzero() would take four times as long.
        at, (rows,) = span(slots), whole.nonzero()
        needed = np.where(whole, self._stack_num, 1) if rows.size else 1
        while np.count_nonzero(self._used[at] + needed > self._per_slot):
            self._grow()
        start = slots * self._per_slot + self._used[at]
        stacks = np.empty((len(slots), self._stack_num), np.int64)
        stacks[:, :-1] = self._newest[envs, 1:]  # np.roll takes ten times as long
        stacks[:, -1] = start
        if rows.size:
            stacks[rows] = start[rows, None] + self._order
        self._newest[envs] = stacks
        self._used[at] += needed
        self._placed, self._whole = stacks, rows

    def write(
        self,
        rows: IntArray,
        obs: Native,
        records: npt.NDArray[Any],
        pick: IntArray | None = None,
    ) -> tuple[Index, Native]:
        """Writes observations (m, C, H, W) of the n rows that `place` has just placed.

        `pick` are the indices (n,) of the observations to write; None: all of them.
        Returns the rows and their records (n, ...), brought to the device by the same
        transfer.
        """
        placed, whole = self._placed, self._whole
        indices = [rows, placed[:, -1]]
        if pick is not None:
            indices.append(pick)
        has_older = whole.size > 0 and self._stack_num > 1
        if has_older:
            indices.append(whole if pick is None else pick[whole])
            indices.append(placed[whole, :-1].reshape(-1))
        (at, newest, *rest), (stored, stacks) = together(
            self._device, indices, [records, placed]
        )
        frames, observed = native(self.frames), self._frames_of(obs)
        native(self.stacks)[at] = stacks
        frames[newest] = observed[:, -1] if pick is None else observed[rest[0], -1]
        if has_older:
            from_rows, older = rest[-2:]
            whole_stacks = observed[from_rows, :-1]
            frames[older] = whole_stacks.reshape(-1, frames.shape[1])
        return at, stored

    def _frames_of(self, obs: Native) -> Native:
        """Native observations (n, C, H, W) as (n, stack, words)."""
        rows = as_words(obs.reshape(len(obs) * self._stack_num, -1))
        return rows.reshape(len(obs), self._stack_num, -1)

    def read(self, rows: Tensor) -> Tensor:
        """The observations of some rows, (n, C, H, W) uint8."""
        return observations(self.frames, self.stacks[rows], self._obs_shape)

    def _grow(self) -> None:
        """Gives every slot more frames, for episodes shorter than expected."""
        old = self._per_slot
        new = old + self._rows // 2 * max(1, self._stack_num - 1) + 1
        _logger.warning(
            "episodes are so short that frame stacks share less than expected: the "
            "store of unrolls grows from %d to %d frames per slot",
            old,
            new,
        )
        wait_for_device(self._device)  # the old frames are no longer in use
        grown = self.frames.new_zeros(self._num_slots, new, self.frames.shape[1])
        grown[:, :old] = self._by_slot()
        stacks = self.stacks // old * new + self.stacks % old
        wait_for_device(self._device)
        with self._growing:
            self.frames, self.stacks = grown.flatten(0, 1), stacks
        self._newest = self._newest // old * new + self._newest % old
        self._per_slot = new

    def _by_slot(self) -> Tensor:
        """A view of the frames, (slots, frames per slot, words)."""
        return self.frames.view(self._num_slots, self._per_slot, -1)

    def snapshot(self, slots: list[int]) -> dict[str, Any]:
        """The frames of some slots, for checkpoints; without `stacks`."""
        used = self._used[slots]
        return {
            "frames": self._by_slot()[slots, : int(used.max())],
            "frames_per_slot": self._per_slot,
            "frames_used": torch.from_numpy(used),
            "stack_of": torch.from_numpy(self._newest.copy()),
        }

    def restore(self, slots: list[int], state: dict[str, Any]) -> None:
        """Continues from the `snapshot` of the same slots."""
        self._newest = state["stack_of"].cpu().numpy().copy()
        self._used[slots] = state["frames_used"].cpu().numpy()
        if state["frames_per_slot"] != self._per_slot:  # the saved store had grown
            self._per_slot = state["frames_per_slot"]
            count = self._num_slots * self._per_slot
            self.frames = self.frames.new_zeros(count, self.frames.shape[1])
        self._by_slot()[slots, : state["frames"].shape[1]] = state["frames"]
