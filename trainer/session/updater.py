"""One update of a run: it learns from a training batch and from replay."""

from __future__ import annotations

import torch

from trainer.config.learning import BETA_STEPS, linear
from trainer.config.schema import RunConfig
from trainer.learn.learner import Learner
from trainer.machine.monitor import mark
from trainer.machine.ranks import Ranks
from trainer.machine.timings import Timings
from trainer.rollout.batch import Batch
from trainer.rollout.pipeline import Pipeline
from trainer.rollout.replay import PrioritizedReplay
from trainer.rollout.store import Rollouts
from trainer.session.progress import Progress


class Updater:
    """Passes training batches from the pipeline and replay to the learner."""

    def __init__(
        self,
        config: RunConfig,
        *,
        pipeline: Pipeline,
        store: Rollouts,
        replay: PrioritizedReplay | None,
        learner: Learner,
        timings: Timings,
        progress: Progress,
        device: torch.device,
        ranks: Ranks,
    ) -> None:
        """Takes the parts of a run that an update uses."""
        self._config, self._device, self._ranks = config, device, ranks
        self._pipeline, self._store, self._replay = pipeline, store, replay
        self._learner, self._timings, self._progress = learner, timings, progress

    def update(self) -> Batch:
        """Waits for a batch, learns from it, and publishes the new weights."""
        config, replay = self._config, self._replay
        with mark("collect"):
            slots = self._pipeline.next_batch()
        # Not the count of the collector, which depends on timing in another thread.
        self._progress.steps += self._ranks.total(self._store.learned_steps(slots))
        step = self._progress.steps
        with self._timings("learn"):
            replayed = None
            if replay is not None and len(replay):
                r = config.replay
                beta = linear(r.replay_beta, 1.0, BETA_STEPS, step)
                replayed = replay.sample(config.replayed_unrolls, beta)
                batch = self._store.batch(slots, replayed.slots, replayed.weights)
            else:
                batch = self._store.batch(slots)
            priorities = self._learner.update(batch, step)
            if config.lag and self._device.type == "cuda":
                # Weights and slots are published only when finished: otherwise the
                # collector would wait for the update that it should overlap.
                torch.cuda.current_stream(self._device).synchronize()
            released = slots
            if replay is not None:
                if replayed is not None:
                    replay.update(replayed.slots, priorities[len(slots) :])
                released = replay.add(slots, priorities[: len(slots)])
            self._store.release(released)
        self._pipeline.publish(self._learner.version)
        return batch
