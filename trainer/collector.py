"""The acting loop: recv -> act -> send, over a pool with EnvPool's API.

A pool of `num_envs` environments returns the `batch_size` that are ready first,
so while the network acts for one group the others emulate. Results are stored
after the actions have been sent, off the path of the environments.
"""

from __future__ import annotations

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


def make_pool(config: EnvConfig, seed: int) -> Any:
    """Builds the environments of a run, an EnvPool object (gymnasium kind).

    Args:
        config: which and how many.
        seed: environment i is seeded seed + i.
    """
    threads = config.num_threads or min(available_cores(), config.batch_size)
    options = {name: getattr(config, name) for name in (*_COUNTS, *_COMMON)}
    options |= {"num_threads": threads, "seed": seed}
    if config.task.startswith("SuperMarioBros"):
        import mario_envpool

        for name in vars(config):
            if name not in (*options, "task"):
                options[name] = getattr(config, name)
        return mario_envpool.make(config.task, env_type="gymnasium", **options)
    import envpool

    return envpool.make(config.task, env_type="gymnasium", **options)


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
        # argmax p_i / e_i with e_i ~ Exp(1) is a sample of p.
        noise = torch.empty_like(output.logits).exponential_(generator=self._generator)
        return (output.logits.softmax(-1) / noise).argmax(-1), output

    def close(self) -> None:
        """Ends transfers; the pool stays open."""
        self._stage.close()
