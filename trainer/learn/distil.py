"""Distillation: a student learns the policies of teachers on the states it reaches.

The student collects with its own actions. For every row of a batch, the teacher of the
row's level gives its policy, and the loss is KL(teacher || policy) (Rusu et al. 2016,
arXiv:1511.06295, section 3; for the use of the student's own states: Ross et al. 2011,
DAgger, and Czarnecki et al. 2019, arXiv:1902.02186). Minibatches and critic targets are
PPO's (ppo.py), so a run can continue with `--loss ppo`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.config.learning import Distillation
from trainer.config.schema import EnvConfig
from trainer.config.tasks import game_of, is_native, own_levels
from trainer.learn.algorithm import AlgorithmParts
from trainer.learn.losses import Loss, distillation_loss
from trainer.learn.ppo import PPO, Minibatch
from trainer.machine.monitor import mark
from trainer.models import checkpoint
from trainer.models.policy import Policy, load_policy, run_folder
from trainer.models.released import SUFFIX
from trainer.rollout.batch import Batch, observations

# Log-probability of actions that a teacher does not have.
_NEVER = -30.0

# Options of the environments that determine observations and the length of a step.
_SAME = ("obs", "frame_skip", "stack_num", "img_height", "img_width", "hud", "timing")


class Teacher(NamedTuple):
    """The policy of some levels.

    Attributes:
        policy: the network and its environments.
        columns: (its actions,) int64 indices of its actions among the run's actions.
    """

    policy: Policy
    columns: Tensor


class Distil(PPO):
    """An `Algorithm`; the module docstring describes it."""

    loss: ClassVar[Callable[..., Loss]] = staticmethod(distillation_loss)

    def __init__(self, parts: AlgorithmParts) -> None:
        """Loads the teachers.

        Args:
            parts: the parts that all algorithms share.

        Raises:
            FileNotFoundError: a level has no teacher.
            ValueError: a teacher has other observations or actions, or a memory.
        """
        super().__init__(parts)
        assert isinstance(self._config.loss, Distillation)
        env, loss = parts.config.env, self._config.loss
        self._temperature = loss.temperature
        paths = teacher_paths(Path(loss.teachers), env.levels or own_levels(env.task))
        known = {
            path: _load(path, env, parts.device, loss.model)
            for path in dict.fromkeys(paths)
        }
        self._teachers = [known[path] for path in paths]

    def teachers_of(self, batch: Batch) -> Tensor:
        """What the teachers would do, see `PPO.teachers_of`."""
        rows = slice(self._burn_in, -1)
        stacks, levels = batch.stacks[rows].flatten(0, 1), batch.levels[rows].flatten()
        actions = batch.logits.shape[-1]
        found = torch.full((len(levels), actions), _NEVER, device=levels.device)

        @torch.no_grad()  # this setting is per thread
        def teach(part: slice) -> None:
            for number, teacher in enumerate(self._teachers):
                (some,) = (levels[part] == number).nonzero(as_tuple=True)
                if len(some):
                    self._teach(teacher, stacks, some + part.start, found)

        step = self._parts.gradient_step
        with mark("teachers"):
            step.shards.map(teach, step.split(len(levels)))
        return found.view(-1, batch.levels.shape[1], actions)

    def _teach(
        self, teacher: Teacher, stacks: Tensor, some: Tensor, found: Tensor
    ) -> None:
        """Writes a teacher's log-probabilities of some rows to `found`."""
        parts, policy = self._parts, teacher.policy
        frames = parts.forward.frames
        for rows in torch.split(some, self._config.minibatch_size):
            obs = observations(frames, stacks[rows], parts.obs_shape)
            state = torch.zeros(len(rows), 0, device=parts.device)
            first = torch.zeros(1, len(rows), dtype=torch.bool, device=parts.device)
            # As in forward.py: entered in every thread, and without a cache.
            with torch.autocast(
                parts.device.type,
                policy.dtype,
                policy.dtype is not None,
                cache_enabled=False,
            ):
                output, _ = policy.model(obs[None], state, first)
            log_probs = F.log_softmax(output.logits[0].float() / self._temperature, -1)
            found[rows[:, None], teacher.columns] = log_probs.clamp(min=_NEVER)

    def loss_options(self, part: Minibatch) -> dict[str, Any]:
        """See `PPO.loss_options`."""
        return {"teachers": part.teachers.flatten(0, 1)}


def teacher_paths(where: Path, levels: Sequence[str]) -> list[Path]:
    """The checkpoint or run that teaches each level.

    Args:
        where: one checkpoint or run for all levels, or a folder with one per level.
        levels: levels of the run; () for a task without levels.

    Raises:
        FileNotFoundError: a level has no teacher.
    """
    if where.is_file() or run_folder(where) is not None:
        return [where] * max(1, len(levels))
    paths = []
    for level in levels:
        run = where / level
        known = [where / f"{level}{suffix}" for suffix in (SUFFIX, ".pt")]
        found = [path for path in known if path.is_file()]
        if checkpoint.list_files(run):
            found.append(run)
        if not found:
            raise FileNotFoundError(
                f"--teachers {where}: no teacher for {level}: the folder must have "
                f"{known[0].name} or a run {level}/ with checkpoints"
            )
        paths.append(found[0])
    if not paths:
        raise FileNotFoundError(f"--teachers {where} must be a run or a checkpoint")
    return paths


def check_fits(teacher: EnvConfig, env: EnvConfig, name: str) -> None:
    """Raises ValueError if a teacher's observations or actions do not fit a run.

    Args:
        teacher: environments of the teacher, resolved.
        env: environments of the run, resolved.
        name: name of the teacher, for the message.
    """
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
    """Loads a teacher for the environments of a run.

    Raises:
        ValueError: the teacher has other observations or actions, or a memory, or its
            network is another class than `model`, module:Class.
    """
    policy = load_policy(path, device, model=model, option="teacher_model")
    if policy.model.state_size:
        raise ValueError(
            f"teacher {path} has a memory, which distillation does not support; give a "
            "teacher without memory"
        )
    check_fits(policy.env, env, f"teacher {path}")
    places = [env.actions.index(action) for action in policy.env.actions]
    return Teacher(policy, torch.tensor(places, device=device))
