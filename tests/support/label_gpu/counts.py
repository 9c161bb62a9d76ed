"""Counts of launches, copies and waits: of an update, and of what follows a recv.

A launch is an operator that the host dispatches on the device, or the replay of a
graph. Views, allocations and operators on no elements launch nothing; a copy to the
device counts as a copy only. The counts depend on neither the number of environments
nor their speed. Without Triton, which a CPU has not, V-trace of PPO takes five launches
more for each doubling of the unroll: of 5 steps here, of 32 in the preset.
"""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import fake_pools
import pytest
import small_runs

from trainer.config.presets import preset
from trainer.config.schema import PresetName
from trainer.session import training

from .cuda import Cuda

KINDS = ("copies", "launches", "waits")

# Few environments; as many minibatches as the preset has, with and without replay.
_ENVS, _UNROLL, _UPDATES, _WARM_UP = 4, 5, 7, 4
_FEW = {
    "device": "cuda", "videos": False, "stop_when_solved": False, "end_episodes": 0,
    "num_envs": _ENVS, "unroll": _UNROLL, "unrolls_per_batch": _ENVS,
    "max_steps": _UPDATES * _ENVS * _UNROLL, "replay_capacity": 2 * _ENVS,
}  # fmt: skip


def count(
    cuda: Cuda, folder: Path, name: PresetName, options: dict[str, Any]
) -> dict[str, Any]:
    """What a preset, changed by options, launches and copies.

    The run is asynchronous, and in its pool no episode ends.

    Returns:
        "recv": [copies, launches, waits] of the collecting thread, from one recv to
        the next, where no unroll closes (most have these counts); "update": those of
        the main thread in an update, the most of all after the first ones; "log": what
        both threads did during the last update, the most frequent first.
    """
    base = preset(name)
    batches = base.learner.unrolls_per_batch * base.learner.unroll
    size = _ENVS * _UNROLL * base.learner.minibatch_size // batches
    config = small_runs.change(
        base, run_dir=folder / "run", **(_FEW | {"minibatch_size": size} | options)
    )
    recvs: list[tuple[int, ...]] = []
    updates: list[tuple[int, ...]] = []
    last: list[tuple[tuple[str, ...], int]] = []
    cuda.order.log = []

    def counted() -> list[int]:
        of_thread = cuda.order.counts[threading.current_thread().name]
        return [of_thread[kind] for kind in KINDS]

    class Pool(fake_pools.FakePool):
        last: list[int] | None = None

        def recv(self) -> Any:
            if threading.current_thread().name == "collector":
                now = counted()
                if self.last is not None:
                    recvs.append(_difference(now, self.last))
                self.last = now
            return super().recv()

    update = training.update

    def counted_update(run: Any) -> Any:
        cuda.order.log.clear()
        before = counted()
        batch = update(run)
        updates.append(_difference(counted(), before))
        last[:] = Counter(cuda.order.log).most_common()
        return batch

    kind = partial(Pool, steps=(10_000, 0))
    small_runs.use_pools(pytest.MonkeyPatch(), kind)
    training.update = counted_update
    training.run_training(config)
    ((most, _),) = Counter(recvs[len(recvs) // 2 :]).most_common(1)
    return {
        "recv": most,
        "update": [max(numbers) for numbers in zip(*updates[_WARM_UP:], strict=True)],
        "log": last,
    }


def _difference(now: list[int], before: list[int]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(now, before, strict=True))
