"""The acting loop: recv -> act -> send, over a pool with EnvPool's API.

Environments are in groups, so that while the network acts for one group the
others emulate. In async mode a group is whichever environments are ready first;
in sync mode groups are fixed and served in turn, which gives the same numbers
however long each environment takes. Results are stored after the actions have
been sent, off the path of the environments.
"""

from __future__ import annotations

import difflib
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import mario_envpool
from trainer.batch import Rows
from trainer.config import IMAGE_SIZE, EnvConfig
from trainer.cuda import Graphed, Stage
from trainer.device import available_cores, step_aside
from trainer.levels import LevelNumbers
from trainer.metrics import EpisodeTracker, Timings
from trainer.model import PolicyModel, PolicyOutput
from trainer.monitor import thread_ids
from trainer.rollouts import Rollouts
from trainer.tiles import OBS_TYPE, TilesPool

if TYPE_CHECKING:
    from trainer.explore import Explorer
    from trainer.video.record import Recorder

# Of EnvConfig, what any image task of EnvPool takes.
_COMMON = ("frame_skip", "stack_num", "img_height", "img_width", "noop_max")
_COUNTS = ("num_envs", "max_episode_steps")
# Of EnvConfig, what no pool knows under that name.
_OURS = ("task", "groups", "obs", "levels", "test_levels")

# Runs seed their pools with multiples of this, environment i with i more.
SEED_STRIDE = 100_003


def make_pool(
    config: EnvConfig, seed: int, *, asynchronous: bool = False, **more: Any
) -> Any:
    """Builds environments, an EnvPool object (gymnasium kind).

    Args:
        config: which and how many.
        seed: environment i is seeded seed + i.
        asynchronous: recv gives the num_envs / groups that are ready first;
            otherwise what was sent, in that order.
        more: other options of our own tasks, such as stages.

    Raises:
        ValueError: there is no such task, or it is not one for the trainer.
    """
    others = thread_ids()
    pool = _make_pool(config, seed, asynchronous=asynchronous, **more)
    step_aside(thread_ids() - others)
    return pool


def _make_pool(config: EnvConfig, seed: int, *, asynchronous: bool, **more: Any) -> Any:
    """See `make_pool`."""
    native = is_native(config.task)
    if not native:
        _check_task(config.task)
    group = config.num_envs // config.groups
    options = {name: getattr(config, name) for name in (*_COUNTS, *_COMMON)}
    options |= {
        "img_height": config.img_height or IMAGE_SIZE,
        "img_width": config.img_width or IMAGE_SIZE,
        "batch_size": group if asynchronous else config.num_envs,
        "num_threads": config.num_threads or min(available_cores(), group),
        "seed": seed,
    }
    if native:
        for name in vars(config):
            if name not in (*options, *_OURS):
                options[name] = getattr(config, name)
        if config.levels:
            options |= {"stages": list(config.levels), "random_stages": True}
        options |= more
        if config.obs == "tiles":
            options["obs_type"] = OBS_TYPE
        pool = mario_envpool.make(config.task, env_type="gymnasium", **options)
        return TilesPool(pool) if config.obs == "tiles" else pool
    if config.obs == "tiles":
        raise ValueError(
            f"task {config.task} has no tiles; they are for the Super Mario Bros. "
            "tasks: leave out --obs"
        )
    import envpool

    _check_image_task(config.task)
    return envpool.make(config.task, env_type="gymnasium", **options)


def groups_of(config: EnvConfig, *, asynchronous: bool) -> int:
    """Groups to serve in turn; EnvPool's own pools answer one request at a time.

    Given two, their recv in sync mode returns rows of both, and others twice.
    """
    return config.groups if asynchronous or is_native(config.task) else 1


def is_native(task: str) -> bool:
    """Whether the task is one of ours; EnvPool's own pools can do less."""
    return task in mario_envpool.list_all_envs()


def _check_task(task: str) -> None:
    """Raises ValueError unless a task that is not ours is one of EnvPool."""
    try:
        import envpool
    except ImportError as error:
        near = _near(task, mario_envpool.list_all_envs())
        raise ValueError(
            f"{task!r} is no task of mario_envpool{near}. {error}"
        ) from None
    known = envpool.list_all_envs()
    if task not in known:
        raise ValueError(
            f"there is no task {task!r}{_near(task, known)} (all: "
            "envpool.list_all_envs() after import mario_envpool)"
        )


def _near(task: str, known: Sequence[str]) -> str:
    """Names ids that are like a task's, for an error message."""
    near = [other for other in known if other.startswith(task)][:4]
    near = near or difflib.get_close_matches(task, known, n=4, cutoff=0.4)
    return f"; near ids: {', '.join(near)}" if near else "; no id is near"


def _check_image_task(task: str) -> None:
    """Raises ValueError unless a task of EnvPool has images and discrete actions."""
    import envpool

    with warnings.catch_warnings():
        # Gymnasium's remarks on the bounds of spaces that are not used.
        warnings.simplefilter("ignore")
        spec: Any = envpool.make_spec(task)
        shape, actions = spec.observation_space.shape, spec.action_space
    expected = "the trainer takes image tasks with discrete actions, such as Pong-v5"
    if shape is None or len(shape) != 3 or not hasattr(actions, "n"):
        raise ValueError(
            f"task {task} has observations {shape or 'of several parts'} and actions "
            f"{actions}; {expected}"
        )
    missing = [name for name in _COMMON if name not in spec._config_keys]
    if missing:
        raise ValueError(
            f"task {task} has no option {', '.join(missing)}, which the trainer sets; "
            f"{expected}"
        )


def sample(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Samples actions (n,) int64 from logits (n, A)."""
    # argmax p_i / e_i with e_i ~ Exp(1) is a sample of p.
    noise = torch.empty_like(logits).exponential_(generator=generator)
    return (logits.softmax(-1) / noise).argmax(-1)


class Answer(NamedTuple):
    """What a policy decides for n environments.

    Attributes:
        actions: (n,) int64.
        logits: (n, A) float32 they were sampled from.
        values: (n,) float32.
        state: (n, state size) float32 memory after the rows.
    """

    actions: Tensor
    logits: Tensor
    values: Tensor
    state: Tensor


class Actor:
    """A set of weights to act with, and the policy version they are."""

    def __init__(
        self,
        model: PolicyModel,
        *,
        device: torch.device,
        dtype: torch.dtype | None,
        generator: torch.Generator,
        graphs: bool = False,
    ) -> None:
        """Prepares to act.

        Args:
            model: on the device.
            device: of the model.
            dtype: autocast type of the network, None for float32.
            generator: of the sampled actions, on the device.
            graphs: record the forward pass once and replay it; GPU only.
        """
        self.model = model
        self.version = 0
        self._device = device
        self._dtype = dtype
        self._generator = generator
        self._forward = Graphed(
            self._run,
            name="acting",
            device=device,
            enabled=graphs,
            generator=generator,
        )

    def __call__(
        self, pixels: Tensor, state: Tensor, first: Tensor, levels: Tensor
    ) -> Answer:
        """Samples actions.

        Args:
            pixels: (n, C, H, W) uint8.
            state: (n, S) float32.
            first: (n,) bool.
            levels: (n,) int64, whose value heads are asked.
        """
        self.model.resample_noise(self._generator)
        return Answer(*self._forward(pixels, state, first, levels))

    def close(self) -> None:
        """Gives up what is recorded."""
        self._forward.close()

    @torch.no_grad()
    def _run(
        self, pixels: Tensor, state: Tensor, first: Tensor, levels: Tensor
    ) -> Answer:
        output, state = self._evaluate(pixels, state, first)
        logits, values = output.logits[0], output.values_at(levels[None])[0]
        return Answer(sample(logits, self._generator), logits, values, state)

    @torch.no_grad()
    def values(
        self, pixels: Tensor, state: Tensor, first: Tensor, levels: Tensor
    ) -> Tensor:
        """The critic alone, (n,) float32; arguments as of a call."""
        output, _ = self._evaluate(pixels, state, first)
        return output.values_at(levels[None])[0]

    def _evaluate(
        self, pixels: Tensor, state: Tensor, first: Tensor
    ) -> tuple[PolicyOutput, Tensor]:
        with torch.autocast(self._device.type, self._dtype, self._dtype is not None):
            result: tuple[PolicyOutput, Tensor]
            result = self.model(pixels[None], state, first[None])
        return result


class _Received(NamedTuple):
    """What one recv gave: for the host, and on the device.

    Attributes:
        env_id: (n,) which environments.
        first: (n,) bool, their rows begin episodes.
        envs: env_id on the device.
        inputs: pixels, memory, `first` and levels, for the network.
        results: reward, done and truncated.
    """

    env_id: npt.NDArray[np.int32]
    first: npt.NDArray[np.bool_]
    envs: Tensor
    inputs: tuple[Tensor, Tensor, Tensor, Tensor]
    results: tuple[Tensor, Tensor, Tensor]


class Collector:
    """Acts for all environments of a pool and fills `Rollouts`."""

    def __init__(
        self,
        pool: Any,
        rollouts: Rollouts,
        *,
        groups: int,
        asynchronous: bool,
        state_size: int,
        device: torch.device,
        episodes: EpisodeTracker,
        timings: Timings,
        levels: Sequence[str] = (),
        recorder: Recorder | None = None,
        explorer: Explorer | None = None,
    ) -> None:
        """Prepares to act.

        Args:
            pool: with async_reset, recv and send; owned by the caller.
            rollouts: where to write.
            groups: of sync mode.
            asynchronous: mode of the pool.
            state_size: floats of the memory's state.
            device: of the model.
            episodes: told of every row.
            timings: told where the time goes.
            levels: of the run; () for a task without levels of its own.
            recorder: told of every row and decision, for videos.
            explorer: told of every row, for bonuses and starts of episodes.
        """
        self.steps = 0
        self._pool = pool
        self._rollouts = rollouts
        self._asynchronous = asynchronous
        self._device = device
        self._episodes = episodes
        self._timings = timings
        self._recorder, self._explorer = recorder, explorer
        self._stage = Stage(device, pool)
        num_envs = len(pool.all_env_ids)
        self._state = torch.zeros(num_envs, state_size, device=device)
        self._numbers = LevelNumbers(levels) if levels else None
        self._level = np.zeros(num_envs, np.int64)  # of the episode
        self._groups = np.split(np.arange(num_envs, dtype=np.int32), groups)
        self._pending: deque[tuple[_Received, Rows]] = deque()

    @property
    def resumed(self) -> bool:
        """Whether episodes go on that another run began."""
        return bool(self._pending)

    def start(self) -> None:
        """Resets all environments, unless they were restored.

        Their first rows come with `collect`.
        """
        if self.resumed:
            return
        self._set_starts()
        if self._asynchronous:
            self._pool.async_reset()
            return
        # To an environment that was never reset, any action is a reset.
        for group in self._groups:
            self._pool.send(np.zeros(len(group), np.int32), group)

    def collect(
        self, unrolls: int, actor: Callable[[], Actor], more: Callable[[], bool]
    ) -> None:
        """Acts until `unrolls` more unrolls are full.

        In sync mode nothing is decided on the last rows of the unrolls: that is
        the next call's, with the weights it brings.

        Args:
            unrolls: to be completed, in sync mode a multiple of the
                environments, whole rounds of them.
            actor: asked before each group for the weights to act with.
            more: asked before each group, False ends the call.
        """
        completed = 0
        # In sync mode while all wait, so that no start depends on timing.
        if self._asynchronous or self.resumed:
            self._set_starts()
        while completed < unrolls and more():
            if len(self._pending) == len(self._groups):
                self._resume(actor())
            received, weights = self._receive(), actor()
            if not self._asynchronous and self._rollouts.closes(received.env_id):
                rows = self._store_env(received)
                completed += rows.closing.numel()
                rows = self._bootstrap(weights, received, rows)
                self._pending.append((received, rows))
            else:
                answer = self._answer(weights, received)
                rows = self._store_env(received)
                completed += rows.closing.numel()
                self._store_answer(received, rows, answer, weights.version)

    def _set_starts(self) -> None:
        """Says where the next episodes begin."""
        if self._explorer is not None:
            with self._timings("explore"):
                self._explorer.begin()

    def _resume(self, actor: Actor) -> None:
        """Decides on the rows that completed the last round of unrolls."""
        while self._pending:
            received, rows = self._pending.popleft()
            answer = self._answer(actor, received)
            self._store_answer(received, rows, answer, actor.version)

    def _receive(self) -> _Received:
        """Waits for a group and brings it to the device."""
        with self._timings("wait"):
            obs, reward, terminated, truncated, info = self._pool.recv()
        env_id, done = info["env_id"], terminated | truncated
        first = np.asarray(info["elapsed_step"] == 0)
        finished = self._episodes.add(env_id, reward, done, info)
        self.steps += len(env_id)
        self._note_levels(env_id, first, info)
        if self._recorder is not None:
            self._recorder.follow(env_id, first, finished, self.steps)
        if self._explorer is not None:
            with self._timings("explore"):
                bonus = self._explorer.follow(env_id, first, done, info, self.steps)
            reward = reward if bonus is None else reward + bonus
        with self._timings("copy"):
            truncated = np.asarray(truncated, dtype=bool)
            return self._staged(env_id, first, obs, (reward, done, truncated))

    def _note_levels(
        self,
        env_id: npt.NDArray[np.int32],
        first: npt.NDArray[np.bool_],
        info: Mapping[str, Any],
    ) -> None:
        """Follows which level the episodes of environments are of.

        That is where they began: a warp zone leads to another one.
        """
        if self._numbers is not None:
            numbers = self._numbers(info)
            begun = first & (numbers >= 0)
            self._level[env_id[begun]] = numbers[begun]

    def _staged(
        self,
        env_id: npt.NDArray[np.int32],
        first: npt.NDArray[np.bool_],
        obs: npt.NDArray[np.uint8],
        results: tuple[npt.NDArray[Any], ...],
    ) -> _Received:
        """Brings rows to the device, with the memory of their environments."""
        stage = self._stage
        envs = stage(env_id.astype(np.int64))
        reward, done, truncated = map(stage, results)
        levels = stage(self._level[env_id])
        return _Received(
            env_id=env_id,
            first=first,
            envs=envs,
            inputs=(stage(obs), self._state[envs], stage(first), levels),
            results=(reward, done, truncated),
        )

    def _answer(self, actor: Actor, received: _Received) -> Answer:
        """Decides and sends."""
        with self._timings("act"):
            answer = actor(*received.inputs)
            actions = answer.actions.to("cpu", torch.int32).numpy()
        with self._timings("send"):
            self._pool.send(actions, received.env_id)
        if self._recorder is not None:
            with self._timings("store"):
                logits, values = answer.logits.cpu(), answer.values.cpu()
                self._recorder.record(
                    received.env_id, actions, logits.numpy(), values.numpy()
                )
        return answer

    def _bootstrap(self, actor: Actor, received: _Received, rows: Rows) -> Rows:
        """Completes unrolls with the critic's word on their last rows."""
        with self._timings("act"):
            values = actor.values(*received.inputs)
        return self._rollouts.write_bootstrap(rows, values, actor.version)

    def _store_env(self, received: _Received) -> Rows:
        pixels, state, _, levels = received.inputs
        with self._timings("store"):
            return self._rollouts.write_env(
                received.env_id,
                received.first,
                pixels,
                *received.results,
                state,
                levels,
            )

    def _store_answer(
        self, received: _Received, rows: Rows, answer: Answer, version: int
    ) -> None:
        with self._timings("store"):
            self._state.index_copy_(0, received.envs, answer.state)
            self._rollouts.write_policy(
                rows, answer.actions, answer.logits, answer.values, version
            )

    def state(self, kept: Sequence[int]) -> dict[str, Any] | None:
        """What episodes and unrolls need to go on, between two calls of `collect`.

        Args:
            kept: slots of replay to save.

        Returns:
            None where environments are still stepping (async mode), or the pool has
            no snapshots.
        """
        at_rest = len(self._pending) == len(self._groups)
        if self._asynchronous or not at_rest or not hasattr(self._pool, "snapshot"):
            return None
        ids = np.arange(len(self._state), dtype=np.int32)
        return {
            "steps": self.steps,
            "environments": torch.from_numpy(self._pool.snapshot(ids)),
            "memory": self._state,
            "levels": torch.from_numpy(self._level.copy()),
            "rollouts": self._rollouts.snapshot(kept),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from what `state` gave, before `start`.

        Raises:
            ValueError: the pool refuses the snapshots; nothing has changed then.
        """
        ids = np.arange(len(self._state), dtype=np.int32)
        self._pool.restore(ids, state["environments"].cpu().numpy())
        self.steps = state["steps"]
        self._state.copy_(state["memory"])
        if "levels" in state:
            self._level[:] = state["levels"].cpu().numpy()
        self._rollouts.restore(state["rollouts"])
        # All the groups at once, each with the row it had before: it was stored,
        # and what to do on it has not been decided.
        obs, reward, terminated, truncated, info = self._pool.recv()
        first = np.asarray(info["elapsed_step"] == 0)
        results = (reward, terminated | truncated, np.asarray(truncated, dtype=bool))
        for group in self._groups:
            received = self._staged(
                group, first[group], obs[group], tuple(x[group] for x in results)
            )
            self._pending.append((received, self._rollouts.newest(group)))

    def close(self) -> None:
        """Ends transfers; the pool stays open."""
        self._stage.close()
