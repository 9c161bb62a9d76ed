"""Two ways to draw by priority: sums computed at every draw, or a tree of sums.

    python bench/replay.py                     on the CPU, one thread
    python bench/replay.py --device cuda

`trainer/rollout/replay.py` sums all widths and searches the sums. `SumTree` gives the
same results, with O(log n) steps for a draw or an update and a few kernels per step.
Both have the same priorities; before and after the timing, both turn the same random
numbers into draws, which must be equal.

A round is the work of one update of the learner: a sample, new priorities for the same
number of unrolls, and the same number of fresh unrolls, which evict old ones. The two
alternate in blocks of rounds; a ratio compares whole rounds, block by block. The bench
prints medians, and for ratios also minimum and maximum.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from trainer.rollout.replay import EPSILON, PrioritizedReplay, Sample, draw

CAPACITIES = (256, 4096, 65_536)
COUNTS = (32, 256)
ALPHA, BETA = 0.7, 0.4


class SumTree:
    """Sums and least values of masses in two heaps; node i has 2i and 2i+1 below."""

    def __init__(
        self, num_slots: int, device: torch.device, generator: torch.Generator
    ) -> None:
        """Makes a tree for slots 0 to num_slots - 1, none of them kept."""
        self.depth = max(1, (num_slots - 1).bit_length())
        self.leaves = 2**self.depth
        self.generator = generator
        heap = torch.zeros(2 * self.leaves, dtype=torch.float64, device=device)
        self.sums = heap
        self.least = torch.full_like(heap, torch.inf)

    def write(self, slots: Tensor, masses: Tensor) -> None:
        """Sets leaves and recomputes the sums above them, level by level.

        Args:
            slots: (n,) int64.
            masses: (n,) float64, 0 for a slot that is not kept.
        """
        nodes = slots + self.leaves
        self.sums[nodes] = masses
        self.least[nodes] = masses.where(masses > 0, torch.inf)
        for _ in range(self.depth):
            nodes = nodes >> 1
            left, right = 2 * nodes, 2 * nodes + 1
            self.sums[nodes] = self.sums[left] + self.sums[right]
            self.least[nodes] = torch.minimum(self.least[left], self.least[right])

    def draw(self, uniform: Tensor) -> Tensor:
        """Goes down from the root; `rollout.replay.draw` has the same contract."""
        nodes = torch.ones_like(uniform, dtype=torch.int64)
        points = uniform * self.sums[1]
        for _ in range(self.depth):
            left = 2 * nodes
            below = self.sums[left]
            # Rounding must not lead to an empty subtree.
            right = (points >= below) & (self.sums[left + 1] > 0)
            points = torch.where(right, points - below, points)
            nodes = left + right
        return nodes - self.leaves

    def sample(self, count: int, beta: float) -> Sample:
        """Draws like `PrioritizedReplay.sample`."""
        uniform = torch.rand(
            count,
            dtype=torch.float64,
            device=self.sums.device,
            generator=self.generator,
        )
        slots = self.draw(uniform)
        ratios = self.least[1] / self.sums[slots + self.leaves]
        return Sample(slots, ratios.pow(beta).float())

    def update(self, slots: Tensor, priorities: Tensor) -> None:
        """Gives new priorities to those slots that are kept."""
        kept = self.sums[slots + self.leaves] > 0
        self.write(slots, torch.where(kept, masses_of(priorities), 0.0))

    def exchange(self, new: Tensor, priorities: Tensor, old: Tensor) -> None:
        """Keeps new slots and drops old ones."""
        none = torch.zeros_like(old, dtype=torch.float64)
        self.write(torch.cat([new, old]), torch.cat([masses_of(priorities), none]))


@dataclass(frozen=True)
class Times:
    """Microseconds of the parts of a round."""

    sample: float
    update: float
    add: float

    @property
    def round(self) -> float:
        """The sum of all parts."""
        return self.sample + self.update + self.add


class Pair:
    """Both structures with the same slots and priorities."""

    def __init__(self, capacity: int, count: int, device: torch.device) -> None:
        """Fills both; slots that are not kept wait in a queue."""
        self.count, self.device = count, device
        self.seed = torch.Generator().manual_seed(1)
        slots = capacity + count
        self.sums = PrioritizedReplay(
            capacity,
            slots,
            alpha=ALPHA,
            device=device,
            generator=torch.Generator(device).manual_seed(2),
        )
        self.tree = SumTree(slots, device, torch.Generator(device).manual_seed(2))
        self.free = list(range(capacity, slots))
        first = self.priorities(capacity)
        self.sums.add(list(range(capacity)), first)
        self.tree.write(torch.arange(capacity, device=device), masses_of(first))

    def priorities(self, count: int) -> Tensor:
        """Random priorities over four powers of ten."""
        powers = 4 * torch.rand(count, generator=self.seed) - 3
        return torch.pow(10.0, powers).to(self.device)

    def check_equal(self) -> None:
        """Raises RuntimeError if the same random numbers draw different slots."""
        uniform = torch.rand(10_000, dtype=torch.float64, generator=self.seed)
        uniform = uniform.to(self.device)
        ours, twin = draw(self.sums.widths(), uniform), self.tree.draw(uniform)
        if not torch.equal(ours, twin):
            raise RuntimeError(f"{int((ours != twin).sum())} of 10,000 draws differ")

    def block(self, rounds: int) -> tuple[Times, Times]:
        """Times some rounds of the sums, then the same of the tree."""
        count = self.count
        new = [self.priorities(count) for _ in range(rounds)]
        # Distinct slots, because only the sums define which of two priorities counts.
        order = torch.randperm(self.sums.num_slots, generator=self.seed)
        drawn = order[:count].to(self.device)
        moves: list[tuple[list[int], list[int]]] = []

        def add(turn: int) -> None:
            evicted = self.sums.add(self.free, new[turn])
            moves.append((self.free, evicted))
            self.free = evicted

        def exchange(turn: int) -> None:
            fresh, old = (on(part, self.device) for part in moves[turn])
            self.tree.exchange(fresh, new[turn], old)

        sums = Times(
            self.time(rounds, lambda _: self.sums.sample(count, BETA)),
            self.time(rounds, lambda turn: self.sums.update(drawn, new[turn])),
            self.time(rounds, add),
        )
        tree = Times(
            self.time(rounds, lambda _: self.tree.sample(count, BETA)),
            self.time(rounds, lambda turn: self.tree.update(drawn, new[turn])),
            self.time(rounds, exchange),
        )
        return sums, tree

    def time(self, rounds: int, call: Callable[[int], object]) -> float:
        """Microseconds of one call, with the device's work."""
        self.wait()
        start = time.perf_counter()
        for turn in range(rounds):
            call(turn)
        self.wait()
        return (time.perf_counter() - start) / rounds * 1e6

    def wait(self) -> None:
        """Waits until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def masses_of(priorities: Tensor) -> Tensor:
    """(n,) float64 masses; draws are proportional to them."""
    return (priorities.double() + EPSILON).pow(ALPHA)


def on(slots: list[int], device: torch.device) -> Tensor:
    return torch.tensor(slots, dtype=torch.int64).to(device, non_blocking=True)


def median(times: list[Times], part: str) -> float:
    return statistics.median(getattr(each, part) for each in times)


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=20, help="rounds per block (20)")
    parser.add_argument("--blocks", type=int, default=9, help="blocks per row (9)")
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.blocks) < 1:
        parser.error("--rounds and --blocks must be 1 or more")
    device = torch.device(arguments.device)
    torch.set_num_threads(1)

    table = Table(title=f"Microseconds on {device}: sums and search / tree")
    for name in ("capacity", "drawn", "sample", "update", "add", "tree / sums"):
        table.add_column(name, justify="right", no_wrap=True)
    for capacity in CAPACITIES:
        for count in COUNTS:
            pair = Pair(capacity, count, device)
            pair.check_equal()
            pair.block(rounds=2)
            blocks = [pair.block(arguments.rounds) for _ in range(arguments.blocks)]
            pair.check_equal()
            pair.sums.check_valid()
            sums, tree = [a for a, _ in blocks], [b for _, b in blocks]
            cells = [
                f"{median(sums, part):.0f} / {median(tree, part):.0f}"
                for part in ("sample", "update", "add")
            ]
            ratios = sorted(b.round / a.round for a, b in blocks)
            ratio = (
                f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
            )
            table.add_row(f"{capacity:,}", str(count), *cells, ratio)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
