"""The types that the store exchanges: rows, batches of unrolls, observations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trainer.rollout.arrays import Index, Native


class Rows(NamedTuple):
    """Where the rows of one recv were written: flat indices k * S + slot.

    Attributes:
        acting: n rows that the environments act from.
        closing: m last rows of the unrolls that this recv completed.
        closing_of: positions of the closing rows among the n rows.
        closed: m, the number of completed unrolls.
    """

    acting: Index
    closing: Index
    closing_of: Index
    closed: int


class Batch(NamedTuple):
    """B unrolls of K = burn_in + T + 1 rows. Frames stay in the store.

    Attributes:
        frames: (all frames, words), the frames of the store.
        stacks: (K, B, stack) int64 indices of the frames of each row's observation.
        actions: (K, B) int64; the environment has not yet executed the last row's.
        logits: (K, B, A) float32 of the behaviour policy.
        values: (K, B) float32 of the critic when it acted.
        rewards: (K, B) float32 that came with each row.
        done: (K, B) bool.
        truncated: (K, B) bool.
        is_first: (K, B) bool, the row begins an episode.
        versions: (K, B) int64 policy version that acted on each row.
        levels: (K, B) int64 index of each row's level among the run's levels.
        state: (B, state size) float32, the memory before the first row.
        weights: (B,) float32 importance of each unroll; 1 for fresh ones.
        fresh: (B,) bool, the unroll is not from replay.
    """

    frames: Tensor
    stacks: Tensor
    actions: Tensor
    logits: Tensor
    values: Tensor
    rewards: Tensor
    done: Tensor
    truncated: Tensor
    is_first: Tensor
    versions: Tensor
    levels: Tensor
    state: Tensor
    weights: Tensor
    fresh: Tensor


def select(batch: Batch, columns: Tensor | slice) -> Batch:
    """Some unrolls of a batch."""
    per_unroll = ("state", "weights", "fresh")
    fields = {
        name: field[columns] if name in per_unroll else field[:, columns]
        for name, field in zip(Batch._fields, batch, strict=True)
        if name != "frames"
    }
    return Batch(frames=batch.frames, **fields)


def observations(frames: Tensor, stacks: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rebuilds stacks of frames.

    Args:
        frames: (all frames, words) of a `Batch`.
        stacks: (..., stack) int64 indices of frames.
        shape: (C, H, W) of an observation.

    Returns:
        (..., C, H, W) uint8.
    """
    pixels = frames.index_select(0, stacks.flatten()).view(torch.uint8)
    return pixels.view(*stacks.shape[:-1], *shape)


def as_words(rows: Native) -> Native:
    """Views (n, bytes) as (n, words) if 8 divides the bytes: 8 times fewer elements.

    Measured on one Zen 4 core for rows of 28 KB: index_copy_ takes 22 us a row for
    uint8 and 3 us for int64.
    """
    words = torch.int64 if isinstance(rows, Tensor) else np.int64
    return rows.view(words) if rows.shape[1] % 8 == 0 else rows
