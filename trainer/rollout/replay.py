"""Prioritized replay of unrolls: which slots are kept, and how likely each is drawn.

Source: Schaul et al. 2016, "Prioritized Experience Replay" (arXiv:1511.05952),
sections 3.3 and 3.4, proportional variant. Slots are those of the store; their
rows are not moved. The order in which slots arrived is on the host, their priorities
are on the device: a draw or an update never waits for the device, and tensor shapes
depend only on the number of unrolls requested.

A draw sums all priorities again and searches the sums for random numbers. A sum tree
takes O(log n) steps instead, but each step is several operations on few numbers: at
65,536 slots, 179 operations for a draw and 218 for an update, against 23 and 11 here,
each a kernel on a GPU. On one core, a draw, an update and an add of
32 unrolls took the tree about 5, 6 and 2 times as long at 256, 4,096 and 65,536 slots.

The sums are of integers. Sums of float32 lose small priorities among 65,536 slots, and
sums of any float depend on the order in which a device adds: edges could then
decrease, and a draw could return a slot that is not kept.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer.machine.cuda import copied_to
from trainer.machine.monitor import memory_left

# Added to every priority, so that every unroll can be drawn. The value is that of
# PTR-PPO (CVHvn/Mario_PTR_PPO), which replays unrolls of this game.
EPSILON = 0.01

# Upper bound of the sum of widths: float64 represents every integer up to it.
TOTAL = 2**53

_ABSENT = -1.0  # priority of a slot that is not kept


class Sample(NamedTuple):
    """Unrolls drawn with replacement."""

    slots: Tensor  # (count,) int64 on the device
    weights: Tensor  # (count,) float32, importance weights, above 0 and at most 1


class PrioritizedReplay:
    """A first-in first-out queue of slots that are drawn by priority.

    Not thread-safe: use it from one thread. A priority that is NaN, infinite or
    negative counts as 0: such an unroll is rarely drawn, does not affect the others,
    and gets its next priority when it is drawn. `statistics` counts these priorities.
    """

    def __init__(
        self,
        capacity: int,
        num_slots: int,
        *,
        alpha: float,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        """Makes an empty replay.

        Args:
            capacity: slots kept; a new slot displaces the oldest one.
            num_slots: slots of the store.
            alpha: exponent of priorities, 0 (uniform) to 1.
            device: device of the priorities and the draws.
            generator: random generator of the draws, on the same device.

        Raises:
            ValueError: an argument is out of range.
        """
        if not 1 <= capacity <= num_slots:
            raise ValueError(
                f"capacity must be 1 to num_slots={num_slots}, got {capacity}"
            )
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be 0 (uniform) to 1, got {alpha}")
        self.capacity = capacity
        self.num_slots = num_slots
        self.alpha = alpha
        self.device = device
        self.generator = generator
        self._order: deque[int] = deque()
        self._priorities = torch.full((num_slots,), _ABSENT, device=device)
        self._rejected = torch.zeros((), dtype=torch.int64, device=device)
        self._drawn: Tensor | None = None  # slots of the last draw

    def __len__(self) -> int:
        """Number of slots that are kept."""
        return len(self._order)

    def add(self, slots: list[int], priorities: Tensor) -> list[int]:
        """Keeps slots in this order, and drops the oldest slots above the capacity.

        Args:
            slots: n distinct slots that are not kept yet.
            priorities: (n,) mean |advantage| of their unrolls, on the device.

        Returns:
            The dropped slots, oldest first; they include new slots if n exceeds the
            capacity.

        Raises:
            ValueError: a slot is already kept, occurs twice or does not exist, or
                the numbers of slots and priorities differ.
        """
        free = set(range(self.num_slots)).difference(self._order)
        if len(free.intersection(slots)) != len(slots):
            raise ValueError(
                f"slots must be distinct, 0 to {self.num_slots - 1} and not yet kept, "
                f"got {slots}; use the slots that add() returned"
            )
        _check_shape(priorities, (len(slots),))
        self._priorities.index_copy_(0, self._index(slots), self._clean(priorities))
        self._order.extend(slots)
        excess = len(self._order) - self.capacity
        evicted = [self._order.popleft() for _ in range(excess)]
        self._priorities.index_fill_(0, self._index(evicted), _ABSENT)
        return evicted

    def sample(self, count: int, beta: float) -> Sample:
        """Draws unrolls with replacement, with probability P(i) = p_i^alpha / sum.

        The weights are (N P(i))^-beta divided by the largest such value among all kept
        unrolls, not among the drawn ones. So the weight of an unroll does not depend
        on the other unrolls of the draw, and the mean over draws equals the mean over
        replay up to one factor. N and the sum cancel: (least P / P(i))^beta.

        Args:
            count: unrolls to draw, at least 1.
            beta: exponent of the weights, 0 (none) to 1. A Python number: a recorded
                CUDA graph keeps the value it was recorded with.

        Returns:
            A `Sample` of `count` slots.

        Raises:
            ValueError: nothing is kept, or an argument is out of range.
        """
        if not self._order:
            raise ValueError("replay is empty: add() unrolls before sample()")
        if count < 1 or not 0 <= beta <= 1:
            raise ValueError(
                f"count must be at least 1 and beta 0 to 1, got {count} and {beta}"
            )
        uniform = torch.rand(
            count, dtype=torch.float64, device=self.device, generator=self.generator
        )
        widths = self.widths()
        slots = draw(widths, uniform)
        self._drawn = slots
        least = widths.masked_fill(widths == 0, TOTAL).min()
        return Sample(slots, (least / widths[slots]).pow(beta))

    def update(self, slots: Tensor, priorities: Tensor) -> None:
        """Gives new priorities to slots that were drawn.

        A slot that was dropped since the draw stays out. A slot that was dropped and
        added again with another unroll would get the old unroll's priority until its
        next draw, so call `update` before `add`. If a slot was drawn twice, the greater
        priority counts, in whatever order the device writes.

        Args:
            slots: (n,) int64 from `sample`.
            priorities: (n,) mean |advantage| of their unrolls.

        Raises:
            ValueError: the shapes differ.
        """
        _check_shape(priorities, tuple(slots.shape))
        gone = self._priorities[slots] < 0
        new = self._clean(priorities).masked_fill(gone, _ABSENT)
        self._priorities.scatter_reduce_(0, slots, new, "amax", include_self=False)

    def widths(self) -> Tensor:
        """Width of each slot within the interval that random numbers fall into.

        Returns:
            (num_slots,) int64, proportional to (priority + EPSILON)^alpha; the largest
            is TOTAL / capacity. At least 1 for a kept slot, 0 for other slots.
        """
        masses = (self._priorities + EPSILON).pow(self.alpha)
        masses = masses.masked_fill(self._priorities < 0, 0.0).double()
        # The largest must divide to exactly 1: the sum must not exceed TOTAL.
        return (masses / masses.max() * (TOTAL // self.capacity)).ceil().long()

    def statistics(self) -> dict[str, Tensor]:
        """Of the kept priorities and the last draw, () tensors on the device."""
        total = self._priorities.clamp(min=0).sum()
        ordered, count = self._priorities.sort().values, max(1, len(self))
        percentiles = {
            f"replay/priority_p{p}": ordered[(count - 1) * p // 100 - count].clamp(0)
            for p in (10, 50, 90)
        }
        draws = {}
        if self._drawn is not None:
            drawn = self._drawn.sort().values
            distinct = 1 + (drawn[1:] != drawn[:-1]).sum()
            draws["replay/distinct_draws"] = distinct / len(drawn)
        return {
            "replay/priority": total / count,
            **percentiles,
            **draws,
            "replay/rejected": self._rejected.float(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Which slots are kept, and the generator; not the unrolls themselves."""
        slots = list(self._order)
        return {
            "slots": slots,  # oldest first
            "priorities": self._priorities[self._index(slots)].cpu(),
            "rejected": int(self._rejected.item()),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replaces the contents with those of a `state_dict`.

        Raises:
            ValueError: the state does not fit this capacity or store; the replay is
                unchanged.
        """
        slots: list[int] = state["slots"]
        if len(slots) > self.capacity or max(slots, default=0) >= self.num_slots:
            raise ValueError(
                f"the saved replay keeps {len(slots)} slots up to number "
                f"{max(slots, default=0)}, but this replay keeps {self.capacity} of "
                f"{self.num_slots}; resume with the options that the run began with"
            )
        priorities = state["priorities"].to(self.device)
        self.generator.set_state(state["generator"].cpu())
        self._order = deque(slots)
        self._priorities.fill_(_ABSENT)
        self._priorities.index_copy_(0, self._index(slots), priorities)
        self._rejected.fill_(state["rejected"])

    def _clean(self, priorities: Tensor) -> Tensor:
        """(n,) float32 with 0 for invalid priorities; counts the invalid ones."""
        priorities = priorities.detach().float()
        bad = ~((priorities >= 0) & (priorities < torch.inf))
        self._rejected += bad.sum()
        return priorities.masked_fill(bad, 0.0)

    def _index(self, slots: list[int]) -> Tensor:
        return copied_to(self.device, torch.tensor(slots, dtype=torch.int64))


def draw(widths: Tensor, uniform: Tensor) -> Tensor:
    """Positions (count,) of the intervals that random numbers (count,) fall into.

    The intervals are adjacent, with integer widths (n,), not all 0, whose sum is at
    most TOTAL. Integer sums are exact in any order, so the edges ascend on every device
    and an interval of width 0 is empty. The random numbers are 0 to 1 inclusive.
    """
    edges = widths.cumsum(0)
    points = (uniform * edges[-1]).long().minimum(edges[-1] - 1)
    return torch.searchsorted(edges, points, right=True)


def check_fits(bytes_needed: int, device: torch.device) -> None:
    """Raises ValueError if a store exceeds the free memory of the device.

    On a CPU this is the free memory of the machine or of the container.
    """
    if device.type == "cuda":
        available = torch.cuda.mem_get_info(device)[0]
    else:
        available, _ = memory_left()
    if bytes_needed > available:
        raise ValueError(
            f"unrolls and replay need {bytes_needed / 1e9:.2f} GB, but {device} has "
            f"{available / 1e9:.2f} GB free; lower --replay-capacity, --num-envs "
            "or --unroll"
        )


def _check_shape(priorities: Tensor, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless there is one priority for each slot."""
    if priorities.shape != shape:
        raise ValueError(
            f"priorities have shape {tuple(priorities.shape)}, but slots have shape "
            f"{shape}; give one priority per slot"
        )
