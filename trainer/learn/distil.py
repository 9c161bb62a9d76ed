"""Distillation: a student learns the policies of teachers on the states it reaches.

The student collects with its own actions. For every row of a batch, the teacher of the
row's level gives its policy, and the loss is KL(teacher || policy) (Rusu et al. 2016,
arXiv:1511.06295, section 3; for the use of the student's own states: Ross et al. 2011,
DAgger, and Czarnecki et al. 2019, arXiv:1902.02186). Minibatches and critic targets are
PPO's (ppo.py), so a run can continue with `--loss ppo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.config.environment import POLICY_OPTIONS
from trainer.config.learning import Distillation
from trainer.config.schema import EnvConfig, RunConfig
from trainer.config.tasks import game_of, is_native, own_levels
from trainer.learn.gradients import run_rows
from trainer.learn.losses import Targets, distillation_loss
from trainer.learn.ppo import PPO
from trainer.machine.monitor import mark
from trainer.models import PolicyModel, checkpoint
from trainer.models.policy import Policy, load_policy, run_folder
from trainer.models.released import SUFFIX
from trainer.rollout.frames import observations
from trainer.rollout.store import Batch

# Log-probability of actions that a teacher does not have.
_NEVER = -30.0

# Options of the environments that determine observations and the length of a step.
_SAME = ("obs", *POLICY_OPTIONS)


class Teacher(NamedTuple):
    """The policy of some levels."""

    policy: Policy
    columns: Tensor  # (its actions,) int64, their indices among the run's actions


class Distil(PPO):
    """The learner that the module docstring describes."""

    loss = staticmethod(distillation_loss)

    def __init__(self, model: PolicyModel, config: RunConfig, **parts: Any) -> None:
        """Loads the teachers; FileNotFoundError or ValueError if one is unsuitable."""
        super().__init__(model, config, **parts)
        assert isinstance(config.learner.loss, Distillation)
        env, loss = config.env, config.learner.loss
        self._temperature = loss.temperature
        paths = teacher_paths(Path(loss.teachers), env.levels or own_levels(env.task))
        by_path = {
            path: _load(path, env, self.device, loss.model)
            for path in dict.fromkeys(paths)
        }
        self._teachers = [by_path[path] for path in paths]

    def loss_options(self) -> dict[str, Any]:
        """See `Learner`; there is no entropy bonus."""
        return {}

    def targets_of(self, batch: Batch) -> tuple[Targets, Tensor]:
        """See `PPO`; with the teachers' policies."""
        targets, priorities = super().targets_of(batch)
        return targets._replace(teachers=self.teachers_of(batch)), priorities

    def teachers_of(self, batch: Batch) -> Tensor:
        """What the teachers would do, (T, B, A) log-probabilities."""
        rows = slice(self.burn_in, -1)
        stacks, levels = batch.stacks[rows].flatten(0, 1), batch.levels[rows].flatten()
        actions = batch.logits.shape[-1]
        log_probs = torch.full((len(levels), actions), _NEVER, device=levels.device)

        @torch.no_grad()  # this setting is per thread
        def teach(part: slice) -> None:
            for number, teacher in enumerate(self._teachers):
                (rows,) = (levels[part] == number).nonzero(as_tuple=True)
                for some in torch.split(rows, self.config.learner.minibatch_size):
                    if len(some):
                        self._teach(teacher, stacks, some + part.start, log_probs)

        step = self.gradient_step
        with mark("teachers"):
            step.shards.map(teach, step.split(len(levels)))
        return log_probs.view(-1, batch.levels.shape[1], actions)

    def _teach(
        self, teacher: Teacher, stacks: Tensor, rows: Tensor, log_probs: Tensor
    ) -> None:
        """Writes a teacher's log-probabilities of some rows."""
        policy = teacher.policy
        obs = observations(self.frames, stacks[rows], self.obs_shape)
        logits = run_rows(policy.model, obs, policy.dtype).logits[0].float()
        probable = F.log_softmax(logits / self._temperature, -1).clamp(min=_NEVER)
        log_probs[rows[:, None], teacher.columns] = probable


def teacher_paths(where: Path, levels: Sequence[str]) -> list[Path]:
    """The checkpoint or run that teaches each level.

    `where` is one for all levels, or a folder with one per level.
    """
    if where.is_file() or run_folder(where) is not None:
        return [where] * max(1, len(levels))
    paths = []
    for level in levels:
        places = [where / f"{level}{suffix}" for suffix in (SUFFIX, ".pt", "")]
        teachers = [p for p in places if p.is_file() or checkpoint.list_files(p)]
        if not teachers:
            raise FileNotFoundError(
                f"--teachers {where}: no teacher for {level}: the folder must have "
                f"{places[0].name} or a run {level}/ with checkpoints"
            )
        paths.append(teachers[0])
    if not paths:
        raise FileNotFoundError(f"--teachers {where} must be a run or a checkpoint")
    return paths


def check_fits(teacher: EnvConfig, env: EnvConfig, name: str) -> None:
    """Raises ValueError if a teacher's observations or actions do not fit a run."""
    for task in (teacher.task, env.task):
        if not is_native(task):
            raise ValueError(
                f"distillation needs a Super Mario Bros. task, got the task {task}"
            )
    if game_of(teacher.task) != game_of(env.task):
        raise ValueError(
            f"{name} plays {teacher.task}, but this run plays {env.task}; give a "
            "teacher of the same task"
        )
    for option in _SAME:
        there, here = getattr(teacher, option), getattr(env, option)
        if there != here:
            raise ValueError(
                f"{name} has {option}={there}, but this run has {option}={here}; give "
                "the run its teachers' options"
            )
    foreign = sorted(set(teacher.actions) - set(env.actions))
    if foreign:
        raise ValueError(
            f"{name} has actions that this run does not have: {', '.join(foreign)}; "
            "choose a larger --action-set"
        )


def _load(path: Path, env: EnvConfig, device: torch.device, model: str) -> Teacher:
    """Loads a teacher; ValueError if it has a memory or does not fit the run."""
    policy = load_policy(path, device, model=model, option="teacher_model")
    if policy.model.state_size:
        raise ValueError(
            f"teacher {path} has a memory, which distillation does not support; give a "
            "teacher without memory"
        )
    check_fits(policy.env, env, f"teacher {path}")
    places = [env.actions.index(action) for action in policy.env.actions]
    return Teacher(policy, torch.tensor(places, device=device))
