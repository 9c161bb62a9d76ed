"""Distillation: a student learns the policies of teachers on the states it reaches.

For every row of a batch, the teacher of the row's level gives its policy, and the loss
is KL(teacher || policy) (Rusu et al. 2016, arXiv:1511.06295, section 3). The states are
those of the student's own actions (Czarnecki et al. 2019, arXiv:1902.02186), and first
those of a mixture of both policies (`Mixture`; Ross et al. 2011, arXiv:1011.0686,
DAgger). Minibatches and critic targets are PPO's (ppo.py), so a run can continue with
`--loss ppo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from mario_envpool.tiles import MOTION
from trainer.config.environment import POLICY_OPTIONS, TILES_ROWS
from trainer.config.learning import Distillation
from trainer.config.schema import EnvConfig, RunConfig
from trainer.config.tasks import game_of, is_native, own_levels
from trainer.learn.gradients import run_rows
from trainer.learn.losses import Targets, distillation_loss
from trainer.learn.ppo import PPO
from trainer.machine.monitor import mark
from trainer.machine.ranks import ALONE
from trainer.models import PolicyModel, checkpoint
from trainer.models.policy import Policy, load_policy, run_folder
from trainer.models.released import SUFFIX
from trainer.rollout.collector import Actor, ActorOutput
from trainer.rollout.frames import observations
from trainer.rollout.store import Batch

# Log-probability of actions that a teacher does not have.
_NEVER = -30.0

# Environment steps per level until the teachers choose no more actions, and one in how
# many environments they leave to the student from the start.
_TAUGHT_STEPS, _ALONE = 200_000, 8

# Options of the environments that determine observations and the length of a step.
_SAME = ("obs", *POLICY_OPTIONS)


class Teacher(NamedTuple):
    """The policy of some levels."""

    policy: Policy
    columns: Tensor  # (its actions,) int64, their indices among the run's actions
    hides_world: bool = False  # it sees tiles only, but the run's have the world, too

    def sees(self, pixels: Tensor) -> Tensor:
        """Observations (n, C, H, W) of the run as the teacher's own."""
        return without_world(pixels) if self.hides_world else pixels


def taught_share(version: int, updates: float) -> float:
    """The share of actions that teachers choose beside the policy of an update."""
    return max(0.0, 1.0 - version / updates)


class Mixture:
    """Lets the teachers choose a share of the actions, which falls from 1 to 0.

    A student that acts alone sees for long only what precedes its first mistakes. With
    its teachers' actions it sees whole levels from the beginning: after three minutes
    of two cores a network for 32 levels cleared 74 % instead of 38 %
    (docs/lab-book.md).

    Some environments are left to the student, for rates of clears that are its own.
    """

    def __init__(
        self, teachers: Sequence[Teacher], generator: torch.Generator, updates: float
    ) -> None:
        """Takes each level's teacher, and after how many updates the share is 0."""
        self._teachers, self._generator = teachers, generator
        self._updates = updates
        self._actors = [
            Actor(
                policy.model,
                num_actions=len(columns),
                dtype=policy.dtype,
                generator=generator,
            )
            for policy, columns, _ in teachers
        ]

    @torch.no_grad()
    def __call__(
        self,
        env_id: npt.NDArray[np.int32],
        inputs: tuple[Tensor, Tensor, Tensor, Tensor],  # the arguments of an `Actor`
        output: ActorOutput,
        version: int,
    ) -> npt.NDArray[np.int32]:
        """Replaces actions in `output`, and returns the environments that got them."""
        share = taught_share(version, self._updates)
        if not share:
            return env_id[:0]
        pixels, levels = inputs[0], inputs[3]
        device, own = pixels.device, self._generator
        # Teachers act for all of their rows or for none: a call has a fixed cost.
        acting = torch.rand(len(self._teachers), generator=own, device=device) < share
        taught = acting[levels]
        taught &= torch.as_tensor(env_id % _ALONE != 0).to(device)
        for number, teacher in enumerate(self._teachers):
            (rows,) = (taught & (levels == number)).nonzero(as_tuple=True)
            if len(rows):
                seen = teacher.sees(pixels[rows])
                chosen = teacher.columns[self._choose(number, seen)]
                output.actions[rows] = output.records[rows, 0] = chosen
        envs: npt.NDArray[np.int32] = env_id[taught.cpu().numpy()]
        return envs

    def _choose(self, number: int, pixels: Tensor) -> Tensor:
        """Actions (n,) int64 of a teacher, numbered as the teacher does."""
        n, device = len(pixels), pixels.device
        first = torch.zeros(n, dtype=torch.bool, device=device)
        levels = torch.zeros(n, dtype=torch.int64, device=device)
        state = torch.zeros(n, 0, device=device)
        return self._actors[number](pixels, state, first, levels).actions


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
        learner, ranks = config.learner, parts.get("ranks", ALONE).size
        steps = learner.unroll * learner.unrolls_per_batch * ranks  # of an update
        self._taught_updates = _TAUGHT_STEPS * len(paths) / steps

    def mixture(self, generator: torch.Generator) -> Mixture:
        """See `Learner`."""
        return Mixture(self._teachers, generator, self._taught_updates)

    def statistics(self) -> dict[str, float]:
        """See `Learner`; with the share of actions that the teachers choose."""
        share = taught_share(self.version, self._taught_updates)
        return super().statistics() | {"taught": share}

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
        obs = teacher.sees(obs)
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
        if there != here and not (option == "obs" and _hides_world(teacher, env)):
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
    columns = torch.tensor(places, device=device)
    return Teacher(policy, columns, _hides_world(policy.env, env))


def _hides_world(teacher: EnvConfig, env: EnvConfig) -> bool:
    """Whether a run's observations are a teacher's but for the world in them."""
    return (teacher.obs, env.obs) == ("tiles", "tiles+world")


def without_world(frames: Tensor) -> Tensor:
    """Frames (n, 1, 16, 16) of tiles+world as those of tiles.

    The world is in the states of the objects, which are 0 in tiles.
    """
    frames = frames.clone()
    motion = frames[:, 0, TILES_ROWS:].view(len(frames), -1, len(MOTION))
    motion[:, 1:, MOTION.index("state")] = 0
    return frames
