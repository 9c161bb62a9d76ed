"""What a run is: every option of it, as frozen dataclasses.

The command line is built from these classes (the text under a field is its help)
and the whole is written to `config.json` of the run. Defaults are those of the CPU
recipe; `presets.py` has those for tiles and for GPUs. This module imports no torch.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from trainer.config.checks import MAX_SEED, check_ranges
from trainer.config.environment import (
    IMAGE_SIZE,
    IMAGE_SIZES,
    TILES_ROWS,
    TILES_SHAPE,
    EnvConfig,
    ExploreConfig,
    LevelSampling,
)
from trainer.config.learning import (
    AugmentConfig,
    Distillation,
    LearnerConfig,
    ReplayConfig,
)
from trainer.config.network import GTrXL, ModelConfig
from trainer.config.options import Need, in_use, one_of, option
from trainer.config.tasks import game_of, own_levels, split_levels

# The parts can be imported from here, too.
__all__ = [
    "IMAGE_SIZE",
    "IMAGE_SIZES",
    "TILES_ROWS",
    "TILES_SHAPE",
    "AugmentConfig",
    "EnvConfig",
    "ExploreConfig",
    "LearnerConfig",
    "LevelSampling",
    "ModelConfig",
    "PresetName",
    "ReplayConfig",
    "RunConfig",
]

PresetName = Literal["cpu", "tiles", "impala", "gpu-small", "gpu-mid", "gpu-large"]


_LEVELS = Need("levels", "--levels", bool)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Trains a policy and writes curves and checkpoints to a run folder."""

    preset: Literal["auto", PresetName] = "auto"
    """Source of the defaults. auto: tiles with --obs tiles, else by the hardware
    (docs/training.md has a table)."""

    device: str = "auto"
    """auto (cuda where there is a GPU), cpu, cuda or cuda:N."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic of the network. auto: bf16 where the hardware has it, and on a CPU for
    networks with native code (cnn-* and tiles, without --memory); else fp16 on a GPU
    (with a scaled loss) and fp32 on a CPU."""

    mode: Literal["sync", "async"] = "sync"
    """sync: the same seed gives the same weights, bit for bit, on any number of
    emulation threads. async: environments never wait for each other, and results
    depend on timing."""

    lag: int = option(0, least=0)
    """Batches by which collecting may be ahead of learning. 0: one after the other,
    the best on a CPU; 300 k steps of 1-1 came to 89 % of clears with it, 72 % with 1
    and 18 % with 2. 1 and more: at the same time, in two threads. In sync mode each
    batch is exactly so many policies old; in async mode so many batches may wait, and
    the lag of each row is measured (policy_lag)."""

    serial: bool = False
    """For debugging: one thread, no overlap, no CUDA graphs, no compilation."""

    compile: bool = option(
        False, needs=Need("serial", "--no-serial", lambda on: not on), needed_by=True
    )
    """torch.compile for V-trace and the loss, not for the network (needs a C++ or
    Triton compiler). No gain on a CPU, where compiling the network would cost a tenth
    of the speed (docs/results.md)."""

    cuda_graphs: bool = True
    """Record acting and the gradient step once and replay them; CUDA only."""

    seed: int = option(1, between=(0, MAX_SEED))
    """Seed of weights, actions and environments, 0 to 20,000."""

    max_steps: int = option(1_000_000, least=1)
    """End after this many environment steps."""

    max_seconds: float = option(0.0, least=0)
    """End after this many seconds; 0: no limit."""

    stop_when_solved: bool = True
    """End when the level (of several levels: each) is solved: 90 % of the last 100
    training episodes cleared it, and then 90 % of 100 episodes in each of two
    evaluations, with fresh seeds, sampled actions and no sticky actions. A whole game
    is solved when these episodes reach its end."""

    solve_rate: float = option(0.9, flag=False, between=(0, 1))
    """Share of clears that counts as solved."""

    solve_episodes: int = option(100, flag=False, least=1)
    """Episodes of each of the two evaluations; of several levels, of each of them."""

    end_episodes: int = option(10, needs=_LEVELS, least=0)
    """Episodes of each level, test levels too, that are played at the end of the
    run; 0: none."""

    run_dir: Path | None = None
    """Folder to write to; by default runs/TASK-TIME."""

    resume: Path | None = None
    """Checkpoint, or folder of a run, to resume. auto: the run under runs/ with the
    newest checkpoint that is not running and has not finished (with --task: of that
    task). The run keeps its folder and its options, unless others are given here."""

    log_seconds: float = option(5.0, least=0)
    """Seconds between progress lines and points of the curves."""

    dashboard: Literal["auto", "on", "off"] = "auto"
    """Terminal output: a live dashboard, or a line every --log-seconds. auto: live
    where stdout is a terminal that can move its cursor, else lines."""

    checkpoint_seconds: float = option(60.0, least=0)
    """Seconds between checkpoints. There is always one at the end, and best.pt holds
    the policy with the highest clear rate in training; of a whole game, the one with
    the most levels_passed (mean of 100 episodes)."""

    keep_checkpoints: int = option(3, flag=False, least=1)
    """Checkpoints that stay, the last ones; best.pt is not counted."""

    checkpoint_replay: bool = option(
        False, needs=(in_use("replay_share"), one_of("mode", "sync"))
    )
    """Write replay into checkpoints, which then are as large as replay is on the
    device. Without it a resumed run begins with an empty replay."""

    videos: bool = True
    """Film the first clear and the best episode so far, for videos/ in the run folder,
    TensorBoard and W&B."""

    notify: str = ""
    """Where to send alarms (docs/long-runs.md), and how the run ended: a URL
    of apprise such as ntfy://TOPIC, or several with commas between. '$NAME', in single
    quotes, is an environment variable: what is given here is written to config.json."""

    profile: int = option(0, least=0)
    """Updates to record with PyTorch's profiler (trace.json in the run folder, with
    NVTX ranges on CUDA), from the tenth on; 0: none."""

    wandb: bool = False
    """Also log to Weights & Biases; offline where no API key is found. Its own
    environment variables apply: WANDB_MODE, WANDB_PROJECT (else mario-envpool),
    WANDB_ENTITY, WANDB_NAME (else the name of the run folder), WANDB_RUN_GROUP,
    WANDB_TAGS (with commas between), WANDB_DIR (else the run folder), and so on. A
    resumed run stays the same run there."""

    env: EnvConfig = dataclasses.field(default=EnvConfig())
    model: ModelConfig = dataclasses.field(default=ModelConfig())
    learner: LearnerConfig = dataclasses.field(default=LearnerConfig())
    replay: ReplayConfig = dataclasses.field(default=ReplayConfig())
    explore: ExploreConfig = dataclasses.field(default=ExploreConfig())
    augmentation: AugmentConfig = dataclasses.field(default=AugmentConfig())

    def resolved(self) -> RunConfig:
        """This, with all that follows from other options.

        That is the size of observations that the network is made for, the names of
        the levels, the task that plays them, and a value head for each.

        Raises:
            ValueError: the task has no such levels.
        """
        size = IMAGE_SIZES.get(self.model.name, IMAGE_SIZE)
        if self.env.obs == "tiles":
            size = TILES_SHAPE[-1]
        height = self.env.img_height or size
        levels, test = split_levels(
            self.env.levels, self.env.test_levels, self.env.task
        )
        env = dataclasses.replace(
            self.env,
            task=game_of(self.env.task) if levels else self.env.task,
            levels=levels,
            test_levels=test,
            img_height=height,
            img_width=self.env.img_width or height,
            custom_actions=self.env.actions if self.env.custom_actions else (),
            # A checkpoint of the run may be played from another folder.
            rom_path=self.env.rom_path and str(Path(self.env.rom_path).resolve()),
        )
        heads = self.model.value_heads or max(1, len(levels))
        model = dataclasses.replace(self.model, value_heads=heads)
        learner, loss = self.learner, self.learner.loss
        if isinstance(loss, Distillation) and loss.teachers:
            teachers = str(Path(loss.teachers).resolve())
            loss = dataclasses.replace(loss, teachers=teachers)
            learner = dataclasses.replace(learner, loss=loss)
        return dataclasses.replace(self, env=env, model=model, learner=learner)

    def share(self, ranks: int) -> RunConfig:
        """The part of a run that each of several processes has.

        Environments, batches, minibatches and replay are those of the whole run, so
        that it learns as one process does with the same options.

        Args:
            ranks: number of processes.

        Raises:
            ValueError: something cannot be divided by their number.
        """
        if ranks == 1:
            return self
        learner, replay = self.learner, self.replay
        num_envs = _divided("num_envs", self.env.num_envs, ranks)
        learner = dataclasses.replace(
            learner,
            unrolls_per_batch=_divided(
                "unrolls_per_batch", learner.unrolls_per_batch, ranks
            ),
            minibatch_size=_divided("minibatch_size", learner.minibatch_size, ranks),
        )
        if replay.replay_share:
            capacity = _divided("replay_capacity", replay.replay_capacity, ranks)
            replay = dataclasses.replace(replay, replay_capacity=capacity)
        groups = self.env.groups
        if num_envs % groups:
            raise ValueError(
                f"groups={groups} must divide the environments of a process, which "
                f"are {num_envs} of num_envs={self.env.num_envs} with {ranks} "
                f"processes: choose a multiple of {groups * ranks}"
            )
        env = dataclasses.replace(self.env, num_envs=num_envs)
        return dataclasses.replace(self, env=env, learner=learner, replay=replay)

    @property
    def replayed_unrolls(self) -> int:
        """Replayed unrolls of an update, beside the fresh `unrolls_per_batch`."""
        share = self.replay.replay_share
        count = self.learner.unrolls_per_batch * share / (1 - share)
        return max(1, round(count)) if share else 0

    @property
    def working_slots(self) -> int:
        """Unrolls in the store without replay.

        One for each environment, batches that wait and the one that is learned
        from, and what a recv of a whole group may complete beyond a batch.
        """
        env = self.env
        batches = (self.lag + 1) * self.learner.unrolls_per_batch
        return env.num_envs + env.num_envs // env.groups + batches

    def validate(self) -> None:
        """Checks the range of each number, and what goes together.

        Raises:
            ValueError: what was given, what is allowed.
        """
        check_ranges(self)
        for part in (self.env, self.learner, self.replay, self.explore):
            part.check()
        if isinstance(self.model.memory, GTrXL):
            self.model.memory.check()
        self._check_network()
        self._check_demonstrations()
        self._check_batches()

    @property
    def learns_from_demonstrations(self) -> bool:
        """Whether there are ways through the levels, searched for or out of files."""
        explore = self.explore
        return (
            bool(explore.demos)
            or explore.starts == "backward"
            or explore.guide > 0
            or self.learner.imitation > 0
        )

    def _check_demonstrations(self) -> None:
        """Raises ValueError where there can be none, or a network cannot use them."""
        if not self.learns_from_demonstrations:
            return
        env, learner = self.env, self.learner
        what = "--starts backward"
        if learner.imitation or self.explore.guide:
            what = "--imitation" if learner.imitation else "--guide"
        if self.explore.demos:
            what = "--demos"
        if not (env.levels or own_levels(env.task)):
            raise ValueError(
                f"{what} needs demonstrations of single levels, and task {env.task} "
                "does not play those: choose --levels, or a task such as "
                "SuperMarioBros-1-1-v0"
            )
        if env.repeat_action_probability:
            raise ValueError(
                f"{what} needs demonstrations, which do not play again with sticky "
                "actions: leave out --repeat-action-probability"
            )
        if learner.imitation and learner.entropy_steps <= 0:
            raise ValueError(
                "--imitation falls to 0 over --entropy-steps, which must be above 0 "
                f"then; got {learner.entropy_steps}"
            )
        clones = self.explore.demos and learner.cloning_steps
        if (learner.imitation or clones) and self.model.memory is not None:
            what = "--imitation" if learner.imitation else "--demos"
            raise ValueError(
                f"{what} is for networks without --memory: what a memory holds on "
                "a demonstration depends on the weights"
            )

    def _check_network(self) -> None:
        """Raises ValueError for a network that does not fit observations or levels."""
        name, obs = self.model.name, self.env.obs
        if ":" not in name and (name == "tiles") != (obs == "tiles"):
            raise ValueError(
                f"model={name} does not take obs={obs}; the model for tiles is "
                "tiles, or one of your own as module:Class"
            )
        levels, heads = len(self.resolved().env.levels), self.model.value_heads
        if heads > 1 and heads != levels:
            raise ValueError(
                f"value_heads must be 1, or 0 for one per level of --levels, of which "
                f"there are {levels}; got {heads}"
            )

    def _check_batches(self) -> None:
        """Raises ValueError for batches that cannot be collected or learned."""
        learner, replay, num_envs = self.learner, self.replay, self.env.num_envs
        if replay.burn_in > learner.unroll:
            raise ValueError(
                f"burn_in must be at most unroll={learner.unroll}, got {replay.burn_in}"
            )
        if self.serial and self.lag:
            raise ValueError(f"serial has no overlap: lag must be 0, got {self.lag}")
        if self.mode == "sync" and learner.unrolls_per_batch % num_envs:
            raise ValueError(
                f"in sync mode a batch holds whole rounds of unrolls: "
                f"unrolls_per_batch={learner.unrolls_per_batch} must be a multiple of "
                f"num_envs={num_envs}; raise unrolls_per_batch, lower num_envs, or "
                "choose mode=async"
            )
        if replay.replay_share and learner.advantages == "gae":
            raise ValueError(
                "replay needs advantages=vtrace, got gae: an older policy took the "
                "replayed actions"
            )


def _divided(name: str, number: int, ranks: int) -> int:
    """A number of the whole run for each of its processes.

    Raises:
        ValueError: it cannot be divided.
    """
    if number % ranks:
        raise ValueError(
            f"{name}={number} is of the whole run and cannot be divided over {ranks} "
            f"processes: choose a multiple of {ranks}"
        )
    return number // ranks
