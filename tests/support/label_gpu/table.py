"""Counts launches, copies and waits: of an update, and of what follows a recv.

PYTHONPATH=tests/support python -m label_gpu.table            # the table
PYTHONPATH=tests/support python -m label_gpu.table --details  # and which lines

A launch is an operator that the host dispatches on the device, or the replay of a
graph. Views, allocations and operators on no elements launch nothing; a copy to the
device counts as a copy only. The counts depend on neither the number of environments
nor their speed.
"""

import sys
import tempfile
import threading
from collections import Counter
from functools import partial
from operator import sub
from pathlib import Path

import fake_pools
import pytest
import small_runs

from label_gpu.client import call, text
from trainer.config.presets import preset
from trainer.session import training

#: Settings by name: a preset, and what they change of it.
SETTINGS = {
    "gpu, async, lag 1": ("gpu", {"mode": "async", "lag": 1}),
    "gpu-impala, no replay": ("gpu-impala", {"replay_share": 0.0}),
    "gpu-impala": ("gpu-impala", {}),
}
_ENVS, _UNROLL, _UPDATES, _WARM_UP = 4, 5, 6, 4  # the first updates record
_FEW = {
    "device": "cuda", "videos": False, "stop_when_solved": False, "end_episodes": 0,
    "num_envs": _ENVS, "unroll": _UNROLL, "unrolls_per_batch": _ENVS,
    "max_steps": _UPDATES * _ENVS * _UNROLL, "replay_capacity": 2 * _ENVS,
}  # fmt: skip


def count(name, options):
    """Counts of a preset, changed by options: what it copies, launches and waits for.

    In its pool no episode ends. Three counts of the collecting thread, from one recv to
    the next where no unroll closes (most have these counts); three of the main thread
    in an update, the most of all but the first; and what both did during the last one.
    """
    from label_gpu import order

    recvs, updates, last, update = [], [], [], training.update

    def counted():
        of_thread = order.counts[threading.current_thread().name]
        return of_thread["copies"], of_thread["launches"], of_thread["waits"]

    class Pool(fake_pools.FakePool):
        def recv(self):
            if threading.current_thread().name == "collector":
                recvs.append(counted())
            return super().recv()

    def counted_update(run):
        order.log.clear()
        before = counted()
        batch = update(run)
        updates.append(tuple(map(sub, counted(), before)))
        done = ((*what, *order.lines(where)) for *what, where in order.log)
        last[:] = Counter(done).most_common()
        return batch

    small_runs.use_pools(pytest.MonkeyPatch(), partial(Pool, steps=(10_000, 0)))
    training.update = counted_update
    base = preset(name)
    batches = base.learner.unrolls_per_batch * base.learner.unroll
    size = _ENVS * _UNROLL * base.learner.minibatch_size // batches
    with tempfile.TemporaryDirectory() as folder:
        few = _FEW | {"minibatch_size": size, "run_dir": Path(folder, "run")} | options
        training.run_training(small_runs.change(base, **few))
    pairs = zip(recvs[1:], recvs, strict=False)
    later = [tuple(map(sub, *pair)) for pair in pairs][len(recvs) // 2 :]
    ((of_recv, _),) = Counter(later).most_common(1)
    return of_recv, tuple(map(max, *updates[_WARM_UP:])), last


def counts():
    """What `count` returns for each of `SETTINGS`."""
    found = {}
    for setting, (name, options) in SETTINGS.items():
        found[setting], *failure = call(count, name=name, options=options)
        assert not any(failure), text(*failure)
    return found


def table(found):
    """Counts of some settings as a table of Markdown."""
    lines = [
        "| setting | copies per recv | launches per recv | copies per update "
        "| launches per update | waits per update |",
        "|---|---|---|---|---|---|",
    ]
    for name, (recv, update, _) in found.items():
        lines.append(f"| {' | '.join(map(str, [name, *recv[:2], *update]))} |")
    return "\n".join(lines)


def main(details):
    """Counts all settings."""
    found = counts()
    print(table(found))
    for name, (_, _, last) in found.items() if details else ():
        print(f"\n{name}, the last update:")
        for (thread, kind, *what), times in last:
            print(f"{times:5} {thread:10} {kind:9} {' '.join(what)}")


if __name__ == "__main__":
    main("--details" in sys.argv)
