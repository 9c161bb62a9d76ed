"""The acting loop: recv -> act -> send, over a pool with EnvPool's API.

A pool of `num_envs` environments returns the `batch_size` that are ready first,
so while the network acts for one group the others emulate. Results are stored
after the actions have been sent, off the path of the environments.
"""

from __future__ import annotations

import difflib
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.config import EnvConfig
from trainer.device import Stage, available_cores
from trainer.metrics import EpisodeTracker, Timings
from trainer.model import ActorCritic, PolicyOutput
from trainer.rollouts import Rollouts

# Of EnvConfig, what any image task of EnvPool takes.
_COMMON = ("frame_skip", "stack_num", "img_height", "img_width", "noop_max")
_COUNTS = ("num_envs", "batch_size", "max_episode_steps")

# Runs seed their pools with multiples of this, environment i with i more.
SEED_STRIDE = 100_003


def make_pool(config: EnvConfig, seed: int) -> Any:
    """Builds the environments of a run, an EnvPool object (gymnasium kind).

    Args:
        config: which and how many.
        seed: environment i is seeded seed + i.

    Raises:
        ValueError: there is no such task, or it is not one for the trainer.
    """
    import envpool

    import mario_envpool

    known = envpool.list_all_envs()
    if config.task not in known:
        near = difflib.get_close_matches(config.task, known, n=4, cutoff=0.4)
        hint = f"near ids: {', '.join(near)}" if near else "no id is near"
        raise ValueError(
            f"there is no task {config.task!r}; {hint} (all: envpool.list_all_envs() "
            "after import mario_envpool)"
        )
    threads = config.num_threads or min(available_cores(), config.batch_size)
    options = {name: getattr(config, name) for name in (*_COUNTS, *_COMMON)}
    options |= {"num_threads": threads, "seed": seed}
    if config.task in mario_envpool.list_all_envs():
        for name in vars(config):
            if name not in (*options, "task"):
                options[name] = getattr(config, name)
        return mario_envpool.make(config.task, env_type="gymnasium", **options)
    _check_image_task(config.task)
    return envpool.make(config.task, env_type="gymnasium", **options)


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


class Collector:
    """Acts for all environments of a pool and fills `Rollouts`."""

    def __init__(
        self,
        pool: Any,
        model: ActorCritic,
        rollouts: Rollouts,
        *,
        device: torch.device,
        dtype: torch.dtype | None,
        generator: torch.Generator,
        episodes: EpisodeTracker,
        timings: Timings,
    ) -> None:
        """Prepares to act.

        Args:
            pool: with async_reset, recv and send; owned by the caller.
            model: the policy, on the device.
            rollouts: where to write.
            device: of the model.
            dtype: autocast type of the network, None for float32.
            generator: of the sampled actions, on the device.
            episodes: told of every row.
            timings: told where the time goes.
        """
        self.steps = 0
        self._pool = pool
        self._model = model
        self._rollouts = rollouts
        self._device = device
        self._dtype = dtype
        self._generator = generator
        self._episodes = episodes
        self._timings = timings
        self._stage = Stage(device, pool)

    def start(self) -> None:
        """Resets all environments; their first rows come with `collect`."""
        self._pool.async_reset()

    def collect(self, unrolls: int, version: int) -> None:
        """Acts until `unrolls` unrolls are full.

        Args:
            unrolls: to be ready in the rollouts.
            version: of the policy's weights, stored with what is written.
        """
        while self._rollouts.num_full < unrolls:
            self._step(version)

    def _step(self, version: int) -> None:
        """One group: recv, act, send, store."""
        timings = self._timings
        with timings("wait"):
            obs, reward, terminated, truncated, info = self._pool.recv()
        env_id = info["env_id"]
        done = terminated | truncated
        with timings("act"):
            pixels = self._stage(obs)
            actions, output = self._act(pixels)
            answer = actions.to("cpu", torch.int32).numpy()
        with timings("send"):
            self._pool.send(answer, env_id)
        with timings("store"):
            rows = self._rollouts.write_env(
                env_id,
                pixels,
                self._stage(reward),
                self._stage(done),
                self._stage(np.asarray(truncated, dtype=bool)),
            )
            self._rollouts.write_policy(rows, actions, *output, version)
            self._episodes.add(env_id, reward, done, info)
        self.steps += len(env_id)

    @torch.no_grad()
    def _act(self, pixels: Tensor) -> tuple[Tensor, PolicyOutput]:
        """Samples actions (n,) int64."""
        with torch.autocast(self._device.type, self._dtype, self._dtype is not None):
            output: PolicyOutput = self._model(pixels)
        return sample(output.logits, self._generator), output

    def close(self) -> None:
        """Ends transfers; the pool stays open."""
        self._stage.close()
