"""Prioritized replay of unrolls: which slots are kept, and how likely each is drawn.

Source: Schaul et al. 2016, "Prioritized Experience Replay" (arXiv:1511.05952),
sections 3.3 and 3.4, proportional variant. Slots are those of the store; their
rows stay where they are. The order in which slots came is kept on the host, their
priorities on the device: drawing and updating never wait for it, and their shapes
depend on nothing but the number of unrolls asked for.

A draw adds all priorities up anew and searches the sums for random numbers. A tree of
sums takes O(log n) steps instead, but a step is several operations on few numbers:
179 for a draw and 218 for an update at 65,536 slots, against 23 and 11 here, each a
kernel on a GPU. On one core (bench/replay.py) draw, update and add of 32 unrolls took
the tree about 5, 6 and 2 times as long at 256, 4,096 and 65,536 slots.

The sums are of integers. Those of float32 lose small priorities among 65,536, and
those of any float depend on the order in which a device adds: edges may then descend,
and a number could fall on a slot that is not kept.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor

# Added to every priority, so that each unroll is drawn now and then. The value of
# PTR-PPO (CVHvn/Mario_PTR_PPO), which replays unrolls of this game.
EPSILON = 0.01

# Widths add up to at most this: a float64 holds every integer up to here.
TOTAL = 2**53

_ABSENT = -1.0  # priority of a slot that is not kept


class Sample(NamedTuple):
    """Unrolls drawn with replacement.

    Attributes:
        slots: (count,) int64 on the device.
        weights: (count,) float32, importance weights, above 0 and at most 1.
    """

    slots: Tensor
    weights: Tensor


class PrioritizedReplay:
    """A first-in first-out queue of slots that are drawn by priority.

    Belongs to one thread. A priority that is NaN, infinite or negative counts as 0:
    such an unroll is drawn seldom, hides no other, and gets its next priority when
    it is drawn. `statistics` has their number and `check_valid` refuses them.
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
            capacity: slots kept; the oldest one makes room.
            num_slots: slots of the store.
            alpha: exponent of priorities, 0 (uniform) to 1.
            device: of the priorities and of all that is drawn.
            generator: of the draws, on the same device.

        Raises:
            ValueError: one of them is out of range.
        """
        if not 1 <= capacity <= num_slots:
            raise ValueError(
                f"capacity must be 1 to num_slots={num_slots}, got {capacity}"
            )
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be 0 (uniform) to 1, got {alpha}")
        if generator.device.type != device.type:
            raise ValueError(
                f"the generator is on {generator.device}, replay on {device}; make it "
                "with torch.Generator(device)"
            )
        self.capacity = capacity
        self.num_slots = num_slots
        self.alpha = alpha
        self.device = device
        self.generator = generator
        self._order: deque[int] = deque()
        self._kept: set[int] = set()
        self._priorities = torch.full((num_slots,), _ABSENT, device=device)
        self._rejected = torch.zeros((), dtype=torch.int64, device=device)

    def __len__(self) -> int:
        """Slots that are kept."""
        return len(self._order)

    def add(self, slots: list[int], priorities: Tensor) -> list[int]:
        """Keeps slots, in this order, and lets go of the oldest above capacity.

        Args:
            slots: n distinct slots that are not kept yet.
            priorities: (n,) mean |advantage| of their unrolls, on the device.

        Returns:
            The slots let go, oldest first; new ones are among them if n exceeds
            the capacity.

        Raises:
            ValueError: a slot is kept already, comes twice or does not exist, or
                the priorities are not as many.
        """
        wrong = [s for s in slots if s in self._kept or not 0 <= s < self.num_slots]
        if wrong or len(set(slots)) != len(slots):
            raise ValueError(
                f"slots must be distinct, 0 to {self.num_slots - 1} and not kept yet, "
                f"got {wrong or slots}; take what add() returned for new unrolls"
            )
        _check_shape(priorities, (len(slots),))
        self._priorities.index_copy_(0, self._index(slots), self._clean(priorities))
        self._order.extend(slots)
        evicted = [
            self._order.popleft() for _ in range(len(self._order) - self.capacity)
        ]
        self._kept.update(slots)
        self._kept.difference_update(evicted)
        self._priorities.index_fill_(0, self._index(evicted), _ABSENT)
        return evicted

    def sample(self, count: int, beta: float) -> Sample:
        """Draws unrolls with replacement, with probability P(i) = p_i^alpha / sum.

        The weights are (N P(i))^-beta over their greatest value among everything
        kept, and not among those drawn: an unroll then weighs the same in whatever
        company it is drawn, and the mean over batches stays the mean over replay up
        to one factor. N and the sum cancel: (least P / P(i))^beta.

        Args:
            count: unrolls to draw, at least 1.
            beta: exponent of the weights, 0 (none) to 1. A number and no tensor: a
                recorded CUDA graph keeps the one it was recorded with.

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
        least = widths.masked_fill(widths == 0, TOTAL).min()
        return Sample(slots, (least / widths[slots]).pow(beta))

    def update(self, slots: Tensor, priorities: Tensor) -> None:
        """Gives slots that were drawn new priorities.

        A slot that has been let go since stays away. One that has even come back,
        with another unroll, keeps the old one's priority until it is drawn: update
        before you add. Of a slot that was drawn twice the greater priority counts,
        in whatever order the device writes them.

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
        """What each slot takes of the interval that draws fall into.

        Returns:
            (num_slots,) int64 in proportion to (priority + EPSILON)^alpha, the
            greatest TOTAL / capacity, at least 1 for a kept slot and 0 for others.
        """
        masses = (self._priorities + EPSILON).pow(self.alpha)
        masses = masses.masked_fill(self._priorities < 0, 0.0).double()
        # The greatest one must divide to 1 exactly: the sum may not exceed TOTAL.
        return (masses / masses.max() * (TOTAL // self.capacity)).ceil().long()

    def statistics(self) -> dict[str, Tensor]:
        """Mean priority and number of refused ones so far, () on the device."""
        total = self._priorities.clamp(min=0).sum()
        return {
            "replay/priority": total / max(1, len(self)),
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
        """Restores what `state_dict` gave, over whatever is here.

        Raises:
            ValueError: it does not fit into this capacity or store; nothing has
                changed then.
        """
        slots: list[int] = state["slots"]
        if len(slots) > self.capacity or max(slots, default=0) >= self.num_slots:
            raise ValueError(
                f"the saved replay keeps {len(slots)} slots up to "
                f"{max(slots, default=0)}, this one {self.capacity} of "
                f"{self.num_slots}; resume with the options the run began with"
            )
        priorities = state["priorities"].to(self.device)
        _check_shape(priorities, (len(slots),))
        self.generator.set_state(state["generator"].cpu())
        self._order = deque(slots)
        self._kept = set(slots)
        self._priorities.fill_(_ABSENT)
        self._priorities.index_copy_(0, self._index(slots), priorities)
        self._rejected.fill_(state["rejected"])

    def check_valid(self) -> None:
        """Checks that host and device agree and no priority was refused; for tests."""
        priorities = self._priorities.cpu()
        present = priorities != _ABSENT
        held = torch.nonzero(present).flatten().tolist()
        if not sorted(self._order) == sorted(self._kept) == held:
            raise AssertionError(
                f"queue {sorted(self._order)}, set {sorted(self._kept)} and "
                f"device {held} disagree"
            )
        if len(self) > self.capacity:
            raise AssertionError(f"{len(self)} slots, capacity {self.capacity}")
        wrong = present & ~(torch.isfinite(priorities) & (priorities >= 0))
        if wrong.any():
            raise AssertionError(f"priorities out of range: {priorities[wrong]}")
        if held:
            widths = self.widths().cpu()
            if not torch.equal(widths > 0, present):
                raise AssertionError(f"widths {widths} for kept slots {held}")
            if not int(widths.sum()) <= TOTAL:
                raise AssertionError(f"widths add up to {int(widths.sum())}")
        if self._rejected.item():
            raise AssertionError(
                f"{self._rejected.item()} priorities were NaN, infinite or negative"
            )

    def _clean(self, priorities: Tensor) -> Tensor:
        """(n,) float32 with 0 for what is no priority; counts those."""
        priorities = priorities.detach().float()
        bad = ~((priorities >= 0) & (priorities < torch.inf))
        self._rejected += bad.sum()
        return priorities.masked_fill(bad, 0.0)

    def _index(self, slots: list[int]) -> Tensor:
        index = torch.tensor(slots, dtype=torch.int64)
        return index.to(self.device, non_blocking=True)


def draw(widths: Tensor, uniform: Tensor) -> Tensor:
    """Finds the interval that each random number falls into.

    Args:
        widths: (n,) int64 widths of adjoining intervals, not all 0, with a sum up
            to TOTAL. Integers add up exactly in any order, so that the edges ascend
            on every device and an interval of width 0 is empty.
        uniform: (count,) float64, 0 to 1; both may occur.

    Returns:
        (count,) int64 positions of intervals that are not empty.
    """
    edges = widths.cumsum(0)
    points = (uniform * edges[-1]).long().minimum(edges[-1] - 1)
    return torch.searchsorted(edges, points, right=True)


def check_fits(bytes_needed: int, device: torch.device) -> None:
    """Refuses a store that the device has no memory for; call it before allocating.

    On a CPU, memory that a container is denied but the machine has counts as free.

    Raises:
        ValueError: it names the options to lower.
    """
    if device.type == "cuda":
        available = torch.cuda.mem_get_info(device)[0]
    else:
        available = psutil.virtual_memory().available
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
            f"priorities have shape {tuple(priorities.shape)}, slots {shape}; give "
            "one for each"
        )
