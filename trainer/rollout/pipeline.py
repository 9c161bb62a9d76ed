"""How collecting and learning share the machine: in turns, or at the same time.

With --lag 0, the default on a CPU, where both need the same cores, they take turns, and
nothing is copied (`InTurns`). With a larger --lag they overlap on any device
(`Overlapped`): a thread with its own stream and its own weights collects while the main
thread learns.

                 collector thread             main thread
    sync, lag 1  batch k with weights k - 1   learns batch k - 1, publishes weights k
    async        never stops while fewer than lag batches wait

The main thread collects and learns batch 0; the collecting thread starts with
batch 1.
"""

from __future__ import annotations

import threading
from collections import deque

import torch

from trainer.machine.cuda import ACTING, Fence, own_stream, wait_for_device
from trainer.machine.timings import Timings
from trainer.models import PolicyModel
from trainer.models.actor_critic import copy_weights
from trainer.rollout.collector import Actor, Collector
from trainer.rollout.store import Rollouts


class InTurns:
    """Collects when a batch is asked for, with the learner's own weights."""

    def __init__(
        self, collector: Collector, rollouts: Rollouts, actor: Actor, unrolls: int
    ) -> None:
        self._collector, self._rollouts = collector, rollouts
        self._actor, self._unrolls = actor, unrolls
        collector.start()

    def next_batch(self) -> list[int]:
        """Waits for a batch; the caller must release its slots."""
        missing = self._unrolls - self._rollouts.num_full
        self._collector.collect(missing, lambda: self._actor, lambda: True)
        return self._rollouts.take(self._unrolls)

    def publish(self, version: int) -> None:
        """Makes the learner's weights available as a new version."""
        self._actor.version = version

    def settle(self) -> bool:
        """Waits until collecting cannot continue without the next weights.

        Called between two updates, after `publish`. Returns whether collecting has
        stopped; in async mode it never stops.
        """
        return True

    def close(self) -> None:
        """Ends collecting."""


class Weights:
    """Sets of actor weights that pass between two threads.

    Each set is free, published or in use. The learner fills a free set while the
    collector uses another, so no set is written while the host or a pending kernel
    reads it.
    """

    def __init__(
        self, actors: list[Actor], device: torch.device, *, in_order: bool
    ) -> None:
        """Begins with the first set in use and the other sets free.

        If `in_order`, the collector uses every version in order; otherwise it uses the
        newest, and unused older versions are overwritten.
        """
        self.current = actors[0]
        self._free = deque(actors[1:])
        self._published: deque[Actor] = deque()
        self._in_order = in_order
        self._changed = threading.Condition()
        self._read = {id(actor): Fence(device) for actor in actors}
        self._written = {id(actor): Fence(device) for actor in actors}
        self._waiting = False
        self._closed = False

    def publish(self, model: PolicyModel, version: int) -> None:
        """Copies weights to a free set; if `in_order`, it may wait for one."""
        with self._changed:
            if self._in_order:
                self._changed.wait_for(lambda: self._free or self._closed)
            if not self._free and self._in_order:
                return
            actor = (self._free if self._free else self._published).popleft()
        self._read[id(actor)].wait()
        copy_weights(actor.model, model)
        actor.version = version
        self._written[id(actor)].signal()
        with self._changed:
            self._published.append(actor)
            self._changed.notify_all()

    def advance(self) -> bool:
        """Takes the next published set; if `in_order`, it waits for one.

        Returns False if `close` was called instead.
        """
        with self._changed:
            if self._in_order:
                self._waiting = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._published or self._closed)
                self._waiting = False
            if not self._published:
                return not self._closed
            self._read[id(self.current)].signal()
            self._free.append(self.current)
            self.current = self._published.popleft()
            self._changed.notify_all()
        self._written[id(self.current)].wait()
        return True

    def wait_until_used(self) -> None:
        """If `in_order`, waits until `advance` needs a set that is not published."""
        with self._changed:
            self._changed.wait_for(
                lambda: (self._waiting and not self._published) or self._closed
            )

    def close(self) -> None:
        """Wakes all waiting threads; later calls do not wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Overlapped:
    """Collects in a thread while the caller learns."""

    def __init__(
        self,
        collector: Collector,
        rollouts: Rollouts,
        actors: list[Actor],  # lag + 1 with separate weights if in_order, else 2
        model: PolicyModel,  # the learner's
        *,
        unrolls: int,  # fresh unrolls in a training batch
        lag: int,  # training batches that collecting may be ahead
        in_order: bool,
        timings: Timings,
    ) -> None:
        """Starts the environments.

        If `in_order`, all of batch k is collected with the weights of version
        max(0, k - lag); otherwise with the newest weights.
        """
        self._collector, self._rollouts = collector, rollouts
        self._model, self._device = model, rollouts.device
        self._unrolls, self._lag, self._in_order = unrolls, lag, in_order
        self._timings = timings
        self._weights = Weights(actors, rollouts.device, in_order=in_order)
        self._changed = threading.Condition()
        self._stopped = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        # Before a run was resumed, it collected the batches for which the first weights
        # were enough.
        self._began = collector.all_wait
        self._batch_number = lag + 1 if collector.all_wait else 1
        collector.start()

    def next_batch(self) -> list[int]:
        """See `InTurns`; RuntimeError if collecting failed."""
        if not self._began:
            self._began = True
            self._collector.collect(self._unrolls, self._actor, lambda: True)
        else:
            self._start_thread()
        with self._timings("wait_batch"), self._changed:
            self._changed.wait_for(
                lambda: self._rollouts.num_full >= self._unrolls or self._error
            )
        self._check()
        slots = self._rollouts.take(self._unrolls)
        with self._changed:
            self._changed.notify_all()  # there is room now, before learning ends
        return slots

    def _start_thread(self) -> None:
        if self._thread is None:
            wait_for_device(self._device)
            self._thread = threading.Thread(target=self._work, name="collector")
            self._thread.start()

    def _check(self) -> None:
        """Raises RuntimeError if collecting failed."""
        if self._error is not None:
            raise RuntimeError(f"collecting failed: {self._error}") from self._error

    def publish(self, version: int) -> None:
        """See `InTurns`."""
        self._weights.publish(self._model, version)
        with self._changed:
            self._changed.notify_all()

    def settle(self) -> bool:
        """See `InTurns`; RuntimeError if collecting failed."""
        if not self._in_order:
            return False
        self._start_thread()
        self._weights.wait_until_used()
        self._check()
        return True

    def _work(self) -> None:
        """The collecting thread."""
        try:
            with own_stream(self._device, ACTING):
                self._collect()
        except BaseException as error:
            self._error = error
            self._weights.close()  # so that no thread waits for this one
        with self._changed:
            self._changed.notify_all()

    def _collect(self) -> None:
        while not self._stopped:
            if self._in_order and self._batch_number > self._lag:
                with self._timings("wait_learner"):
                    if not self._weights.advance():
                        return
            self._collector.collect(self._unrolls, self._actor, self._goes_on)
            with self._changed:
                self._changed.notify_all()
            self._batch_number += 1

    def _actor(self) -> Actor:
        """The set of weights for the next group of environments."""
        if not self._in_order:
            self._weights.advance()
        return self._weights.current

    def _goes_on(self) -> bool:
        """Whether to collect; if not `in_order`, waits while enough unrolls wait."""
        if self._in_order:
            return not self._stopped
        limit = self._lag * self._unrolls
        with self._changed:
            self._changed.notify_all()
            if self._rollouts.num_full >= limit and not self._stopped:
                with self._timings("wait_learner"):
                    self._changed.wait_for(
                        lambda: self._rollouts.num_full < limit or self._stopped
                    )
        return not self._stopped

    def close(self) -> None:
        """See `InTurns`."""
        self._stopped = True
        self._weights.close()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()


Pipeline = InTurns | Overlapped
