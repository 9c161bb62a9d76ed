"""Learning from training batches; learner.py says in which order to read its files."""

from typing import Any

from trainer.config.schema import RunConfig
from trainer.learn.distil import Distil
from trainer.learn.impala import Impala
from trainer.learn.learner import Learner
from trainer.learn.ppo import PPO
from trainer.models import PolicyModel

# Keys are the words of `LearnerConfig.loss`.
LEARNERS: dict[str, type[Learner]] = {
    "ppo": PPO,
    "impala": Impala,
    "distillation": Distil,
}


def build_learner(model: PolicyModel, config: RunConfig, **parts: Any) -> Learner:
    """The learner of a run's loss; `parts` are the other arguments of `Learner`."""
    return LEARNERS[config.learner.loss.kind](model, config, **parts)
