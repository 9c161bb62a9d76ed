"""The acting loop: recv, act, send, store; over a pool with EnvPool's API.

Environments form groups: while the network acts for one group, the other groups
emulate. In async mode a group is the set of environments that are ready first. In
sync mode groups are fixed and served in turn, so results do not depend on how long
each environment takes.

All environments wait while the collector works, so it waits for as little as possible:
it stores rows after it has sent their actions, never queues its work on a GPU behind
that of a learner (pipeline.py), and writes no file. It waits for environments (`recv`)
and for its own decisions; pipeline.py lets it begin when its weights are there.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.machine.cuda import ACTING, Graphed, HostToDevice, use_here
from trainer.machine.timings import Timings
from trainer.models import NativeNetwork, PolicyModel, PolicyOutput
from trainer.rollout.arrays import Index, IntArray, native, together
from trainer.rollout.episodes import BoolArray, FloatArray, OpenEpisodes
from trainer.rollout.finished import FinishedEpisodes
from trainer.rollout.store import Rollouts, Rows, decided, decisions


def sample(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Samples actions (n,) int64 from logits (n, A)."""
    return _choose(logits, torch.empty_like(logits).exponential_(generator=generator))


def _choose(logits: Tensor, noise: Tensor) -> Tensor:
    """Actions (n,) int64 from logits and Exp(1)-distributed noise, both (n, A)."""
    # argmax p_i / e_i with e_i ~ Exp(1) is a sample of p.
    return (logits.softmax(-1) / noise).argmax(-1)


class ActorOutput(NamedTuple):
    """The decisions of a policy for n environments."""

    actions: Tensor  # (n,) int64
    logits: Tensor  # (n, A) float32 that the actions were sampled from
    values: Tensor  # (n,) float32
    state: Tensor  # (n, S) float32, the memory after these rows
    records: Tensor  # these decisions as the store keeps them (`decisions`)


class Actor:
    """A set of weights to act with, and the policy version of these weights."""

    def __init__(
        self,
        model: PolicyModel,
        *,
        num_actions: int,
        dtype: torch.dtype | None,
        generator: torch.Generator,  # on the device of the model
        graphs: bool = False,  # on a GPU, record the forward pass and replay it
    ) -> None:
        self.model = model
        self._num_actions = num_actions
        self._device = device = generator.device
        self._version = 0
        # Recorded graphs read it.
        self._version_on_device = torch.zeros(1, dtype=torch.int64, device=device)
        self._dtype = dtype
        self._generator = generator
        self._forward = Graphed(
            self._run, name="acting", device=device, enabled=graphs, priority=ACTING
        )
        self._native: NativeNetwork | None = None
        self._native_of = -1  # the version for which it was made

    def __call__(
        self,
        pixels: Tensor,  # (n, C, H, W) uint8
        state: Tensor,  # (n, S) float32
        is_first: Tensor,  # (n,) bool
        levels: Tensor,  # (n,) int64, selects the value head of each row
    ) -> ActorOutput:
        """Samples actions."""
        self.model.resample_noise(self._generator)
        # Drawn here: recorded graphs must not draw.
        noise = torch.empty(len(pixels), self._num_actions, device=self._device)
        noise.exponential_(generator=self._generator)
        if (network := self._network(pixels)) is not None:
            records = network.decide(pixels, levels, noise, self._version)
            columns = decided(records, self._num_actions)
            return ActorOutput(*columns, state, records)
        return ActorOutput(*self._forward(pixels, state, is_first, levels, noise))

    @property
    def version(self) -> int:
        """Version of the policy that the weights are of."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version
        self._version_on_device.fill_(version)

    def close(self) -> None:
        """Frees the recorded graph."""
        self._forward.close()

    def _network(self, pixels: Tensor) -> NativeNetwork | None:
        """The network in native code, if it is one; with new weights asked again."""
        if self._native_of != self._version:
            self._native_of = self._version
            on = self._device.type == "cpu" and self._dtype == torch.bfloat16
            shape = tuple(pixels.shape[1:])
            self._native = NativeNetwork.of(self.model, shape) if on else None
        return self._native

    @torch.no_grad()
    def _run(
        self,
        pixels: Tensor,
        state: Tensor,
        is_first: Tensor,
        levels: Tensor,
        noise: Tensor,
    ) -> ActorOutput:
        logits, values, state = self._evaluate(pixels, state, is_first, levels)
        actions = _choose(logits, noise)
        records = decisions(actions, logits, values, self._version_on_device)
        return ActorOutput(actions, logits, values, state, records)

    @torch.no_grad()
    def values(
        self, pixels: Tensor, state: Tensor, is_first: Tensor, levels: Tensor
    ) -> Tensor:
        """The critic's values, (n,) float32; takes the arguments of `__call__`."""
        if (network := self._network(pixels)) is not None:
            records = network.decide(pixels, levels, None, self._version)
            return decided(records, self._num_actions)[2]
        return self._evaluate(pixels, state, is_first, levels)[1]

    def _evaluate(
        self, pixels: Tensor, state: Tensor, is_first: Tensor, levels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast(self._device.type, self._dtype, self._dtype is not None):
            output: PolicyOutput
            output, state = self.model(pixels[None], state, is_first[None])
        return output.logits[0], output.values_at(levels[None])[0], state


class _Received(NamedTuple):
    """The n rows of one recv, on the host; `envs` and `inputs` are on the device."""

    env_id: npt.NDArray[np.int32]
    is_first: BoolArray
    envs: Index  # env_id, to index arrays on the device
    inputs: tuple[Tensor, Tensor, Tensor, Tensor]  # the arguments of an `Actor`
    levels: IntArray  # of the rows' episodes
    # Reward, done and truncated.
    results: tuple[FloatArray, BoolArray, BoolArray]


class Collector:
    """Acts for all environments of a pool and fills `Rollouts`."""

    def __init__(
        self,
        pool: Any,
        rollouts: Rollouts,
        *,
        groups: int,  # in sync mode
        asynchronous: bool,
        episodes: OpenEpisodes,
        finished: FinishedEpisodes,
        timings: Timings,
        recorder: Any = None,  # a film.record.Recorder
        explorer: Any = None,  # an explore.explorer.Explorer
        mixture: Any = None,  # a learn.distil.Mixture
        ranks: int = 1,  # processes that collect the same amount; `steps` counts all
    ) -> None:
        self.steps = 0
        # The part that the step of a group is in, and since when.
        self._busy: tuple[str, float] = ("collector", math.inf)
        self._ranks = ranks
        self._pool = pool
        self._rollouts = rollouts
        self._asynchronous = asynchronous
        self._device = device = rollouts.device
        self._episodes, self._finished = episodes, finished
        self._timings = timings
        self._recorder, self._explorer = recorder, explorer
        self._mixture = mixture
        self._stage = HostToDevice(device, pool)
        num_envs = len(pool.all_env_ids)
        state_size = rollouts.state.shape[1]
        self._state = torch.zeros(num_envs, state_size, device=device)
        self._groups = np.split(np.arange(num_envs, dtype=np.int32), groups)
        # Last rows of unrolls, on which nothing is decided yet (see `collect`).
        self._pending: deque[tuple[_Received, Rows]] = deque()

    @property
    def all_wait(self) -> bool:
        """Whether all environments wait for a decision.

        They do between two batches in sync mode, and after `restore`.
        """
        return bool(self._pending)

    def start(self) -> None:
        """Resets all environments, unless they were restored.

        `collect` receives their first rows.
        """
        if self.all_wait:
            return
        self._finished.drop_new()
        self._set_starts()
        if self._asynchronous:
            self._pool.async_reset()
            return
        # An environment that was never reset takes any action as a reset.
        for group in self._groups:
            self._pool.send(np.zeros(len(group), np.int32), group)

    def collect(
        self, unrolls: int, actor: Callable[[], Actor], goes_on: Callable[[], bool]
    ) -> None:
        """Acts until `unrolls` more unrolls are full, or `goes_on` returns False.

        `actor` and `goes_on` are called before each group, and may wait: for weights,
        and for room. In sync mode `unrolls` is a multiple of the environments, so all
        groups complete their unrolls together. The last rows of these unrolls get no
        actions yet, only values: the next call decides on them, with the weights of the
        next batch.
        """
        completed = 0
        self._finished.begin_batch()
        # In sync mode only while all environments wait: no start depends on timing.
        if self._asynchronous or self.all_wait:
            self._set_starts()
        while completed < unrolls and goes_on():
            self._busy = "collector", time.monotonic()
            if len(self._pending) == len(self._groups):
                self._decide_pending(actor())
            received, weights = self._receive(), actor()
            if not self._asynchronous and self._rollouts.closes(received.env_id):
                rows = self._store_env(received)
                completed += rows.closed
                with self._timings("act"):
                    values = weights.values(*received.inputs)
                rows = self._rollouts.write_bootstrap(rows, values, weights.version)
                self._pending.append((received, rows))
            else:
                output = self._decide(weights, received)
                rows = self._store_env(received)
                completed += rows.closed
                self._store_decision(received, rows, output)
            self._busy = "collector", math.inf

    def _set_starts(self) -> None:
        """Sets where the next episodes begin."""
        if self._explorer is not None:
            with self._timings("explore"):
                self._explorer.set_starts()

    def _decide_pending(self, actor: Actor) -> None:
        """Decides on the rows that completed the last round of unrolls.

        These rows may be from another thread, with another stream: from the one that
        collected the first batch, or resumed the run. No other tensor of a recv is used
        by two calls of `collect`.
        """
        while self._pending:
            received, rows = self._pending.popleft()
            tensors = (received.envs, *received.inputs, *rows)
            use_here(self._device, *tensors)
            output = self._decide(actor, received)
            self._store_decision(received, rows, output)

    def _receive(self) -> _Received:
        """Waits for a group and copies its rows to the device."""
        self._busy = "pool", time.monotonic()
        with self._timings("wait"):
            obs, reward, terminated, truncated, info = self._pool.recv()
        self._busy = "collector", time.monotonic()
        columns = self._episodes.observe(reward, terminated, truncated, info)
        self._finished.observe(columns)
        # Rows that begin episodes result from resets, not from actions.
        begun = int(np.count_nonzero(columns.is_first))
        self.steps += self._ranks * (len(columns.is_first) - begun)
        if self._recorder is not None:
            self._recorder.observe(columns, self.steps)
        with self._timings("copy"):
            pixels = self._stage(obs)
        if self._explorer is not None:
            with self._timings("explore"):
                bonus = self._explorer.observe(columns, pixels, self.steps)
            reward = reward if bonus is None else reward + bonus
        results = (reward, columns.done, columns.truncated)
        with self._timings("copy"):
            return self._staged(
                columns.env_id, columns.is_first, pixels, columns.first_place, results
            )

    def _staged(
        self,
        env_id: npt.NDArray[np.int32],
        is_first: BoolArray,
        pixels: Tensor,
        levels: IntArray,
        results: tuple[FloatArray, BoolArray, BoolArray],
    ) -> _Received:
        """Copies what the network needs to the device, with the environments' memory.

        The level of a row is the one in which its episode began, even after a warp
        zone has led to another level.
        """
        (envs,), columns = together(self._device, [env_id], [is_first, levels])
        # A view if the environments are consecutive. That is safe: the memory is
        # stored before it is written again.
        # Without a memory any rows serve.
        state = self._state[envs if self._state.shape[1] else slice(len(env_id))]
        first, places = map(torch.as_tensor, columns)
        inputs = pixels, state, first, places
        return _Received(env_id, is_first, envs, inputs, levels, results)

    def _decide(self, actor: Actor, received: _Received) -> ActorOutput:
        """Chooses actions and sends them."""
        with self._timings("act"):
            output = actor(*received.inputs)
            if self._mixture is not None:
                envs, inputs = received.env_id, received.inputs
                taught = self._mixture(envs, inputs, output, actor.version)
                self._episodes.teach(taught)
            actions = output.actions.cpu().numpy().astype(np.int32)
        with self._timings("send"):
            self._pool.send(actions, received.env_id)
        if self._recorder is not None:
            with self._timings("store"):
                logits, values = output.logits.cpu(), output.values.cpu()
                self._recorder.record(
                    received.env_id, actions, logits.numpy(), values.numpy()
                )
        return output

    def _store_env(self, received: _Received) -> Rows:
        pixels, state = received.inputs[:2]
        with self._timings("store"):
            return self._rollouts.write_env(
                received.env_id,
                received.is_first,
                pixels,
                *received.results,
                state,
                received.levels,
            )

    def _store_decision(
        self, received: _Received, rows: Rows, output: ActorOutput
    ) -> None:
        with self._timings("store"):
            if self._state.shape[1]:
                native(self._state)[received.envs] = native(output.state)
            self._rollouts.write_policy(rows, output.records)

    def busy_s(self) -> tuple[str, float]:
        """What the step of a group is in, "pool" or "collector", and for how long.

        In seconds; 0 between steps, where the collector may wait for the learner. Any
        thread may call this.
        """
        part, since = self._busy
        return part, max(0.0, time.monotonic() - since)

    def statistics(self) -> dict[str, float]:
        """Statistics of the open episodes, see `OpenEpisodes.statistics`."""
        return self._episodes.statistics()

    def state(self, kept: Sequence[int]) -> dict[str, Any] | None:
        """What episodes and unrolls need to resume; between two calls of `collect`.

        None where environments are still stepping (async mode), or the pool has no
        snapshots. `kept` are the slots of replay to save.
        """
        at_rest = len(self._pending) == len(self._groups)
        if self._asynchronous or not at_rest or not hasattr(self._pool, "snapshot"):
            return None
        ids = np.arange(len(self._state), dtype=np.int32)
        return {
            "steps": self.steps,
            "environments": torch.from_numpy(self._pool.snapshot(ids)),
            "memory": self._state,
            "episodes": self._episodes.state(),
            "rollouts": self._rollouts.snapshot(kept),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from what `state` gave, before `start`.

        The pool may refuse the snapshots with ValueError; nothing has changed then.
        """
        ids = np.arange(len(self._state), dtype=np.int32)
        self._pool.restore(ids, state["environments"].cpu().numpy())
        self.steps = state["steps"]
        self._state.copy_(state["memory"])
        self._episodes.restore(state["episodes"])
        self._rollouts.restore(state["rollouts"])
        # All the groups at once, each with the row it had before: it was stored,
        # and what to do on it has not been decided.
        obs, reward, terminated, truncated, info = self._pool.recv()
        is_first = np.asarray(info["elapsed_step"] == 0)
        results = (reward, terminated | truncated, np.asarray(truncated, dtype=bool))
        for group in self._groups:
            columns = results[0][group], results[1][group], results[2][group]
            levels, pixels = self._episodes.first_places(group), self._stage(obs[group])
            received = self._staged(group, is_first[group], pixels, levels, columns)
            self._pending.append((received, self._rollouts.newest(group)))

    def close(self) -> None:
        """Ends transfers; the pool stays open."""
        self._stage.close()
