"""Every option of a run, as frozen dataclasses.

The command line is built from these classes (the text under a field is its help), and
`config.json` of a run holds the whole config. Defaults are those of the CPU recipe;
`presets.py` has the defaults for tiles and for GPUs. This module does not import torch.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from trainer.config.environment import (
    IMAGE_SIZE,
    IMAGE_SIZES,
    TILES_ROWS,
    TILES_SHAPE,
    EnvConfig,
    ExploreConfig,
)
from trainer.config.learning import (
    AugmentConfig,
    Distillation,
    LearnerConfig,
    ReplayConfig,
)
from trainer.config.network import GTrXL, ModelConfig
from trainer.config.options import MAX_SEED, Need, check_ranges, in_use, one_of, option
from trainer.config.tasks import game_of, own_levels, split_levels

# The parts can also be imported from here.
__all__ = [
    "IMAGE_SIZE", "TILES_ROWS", "TILES_SHAPE", "AugmentConfig",
    "EnvConfig", "ExploreConfig", "LearnerConfig", "ModelConfig", "PresetName",
    "ReplayConfig", "RunConfig",
]  # fmt: skip

PresetName = Literal["cpu", "tiles", "impala", "gpu", "gpu-impala"]


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Trains a policy and writes curves and checkpoints to a run folder."""

    preset: Literal["auto", PresetName] = "auto"
    """Source of the defaults. auto: tiles with --obs tiles or tiles+world, else the
    preset for the hardware (see the table in docs/training.md)."""

    device: str = "auto"
    """auto (cuda if there is a usable GPU, else cpu), cpu, cuda or cuda:N."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic of the network. auto: on a GPU bf16 if the hardware has it, else fp16
    with a scaled loss; on a CPU bf16 if the hardware has it or the network has
    native code (cnn-* and tiles, without --memory), else fp32. fp32 on a GPU is without
    TF32, which the others use for what they compute in float32."""

    mode: Literal["sync", "async"] = "sync"
    """sync: the same seed gives the same weights, bit for bit, on any number of
    emulation threads. async: environments never wait for each other, and the
    results depend on timing."""

    lag: int = option(0, least=0)
    """Training batches by which collecting may be ahead of learning. 0: collecting and
    learning take turns, which is best on a CPU: after 300 k steps of 1-1 the clear rate
    was 89 % with 0, 88 % with 1 and 77 % with 2. From 1 on: both run at the same time,
    in two threads. In sync mode each training batch is exactly this many updates old.
    In async mode up to this many may wait, and policy_lag reports the measured lag."""

    serial: bool = False
    """For debugging: one thread, no overlap, no CUDA graphs and no compilation."""

    compile: bool = option(
        False,
        needs=(Need(("serial",), "--no-serial", lambda run: not run["serial"]),),
        needed_by=True,
    )
    """Use torch.compile for V-trace and the loss, but not for the network (needs a C++
    or Triton compiler). No gain on a CPU, where a compiled network would lose a tenth
    of the speed (docs/lab-book.md)."""

    cuda_graphs: bool = True
    """Record acting and the gradient step as CUDA graphs and replay them; GPU only."""

    seed: int = option(1, between=(0, MAX_SEED))
    """Seed of weights, actions and environments, 0 to 20000."""

    max_steps: int = option(1_000_000, least=0)
    """End after this many environment steps; 0: no limit, which is the default of a new
    run with --max-seconds."""

    max_seconds: float = option(0.0, least=0)
    """End after this many seconds; 0: no limit."""

    stop_when_solved: bool = True
    """End when the level, or each of several levels, is solved: 90 % of the last 100
    training episodes clear it, and then 90 % of the 100 episodes in each of two
    evaluations, with new seeds, sampled actions and no sticky actions. A whole game is
    solved when 90 % of these episodes reach its end."""

    solve_rate: float = option(0.9, flag=False, between=(0, 1))
    """Clear rate from which a level counts as solved."""

    solve_episodes: int = option(100, flag=False, least=1)
    """Episodes of each of the two evaluations; with several levels, episodes per
    level."""

    end_episodes: int = option(10, needs=(in_use("levels"),), least=0)
    """Episodes per level, including test levels, in the evaluation at the end of the
    run; 0: no such evaluation."""

    run_dir: Path | None = None
    """Folder to write to; the default is runs/TASK-TIME."""

    resume: Path | None = None
    """Checkpoint or run folder to resume. auto: of the runs under runs/ that have not
    finished and are not running, the one with the newest checkpoint (with --task: of
    this task). The run keeps its folder and its options, except those given here."""

    log_seconds: float = option(5.0, least=0)
    """Seconds between progress lines and points of the curves."""

    dashboard: Literal["auto", "on", "off"] = "auto"
    """Terminal output: a live dashboard, or a line every --log-seconds. auto: the
    dashboard if stdout is a terminal that can move its cursor, else lines."""

    checkpoint_seconds: float = option(60.0, least=0)
    """Seconds between checkpoints. The first one is written after five seconds at the
    latest, or after the first update if that takes longer; the last one at the end.
    best.pt holds
    the policy with the highest clear rate in training or, for a whole game, the most
    levels_passed (mean of 100 episodes)."""

    keep_checkpoints: int = option(3, flag=False, least=1)
    """Number of checkpoints to keep, the newest ones; best.pt does not count."""

    checkpoint_replay: bool = option(
        False, needs=(in_use("replay_share"), one_of("mode", "sync"))
    )
    """Write replay into checkpoints, which then grow by the size of replay on the
    device. Otherwise a resumed run begins with an empty replay."""

    videos: bool = True
    """Film the first clear and the best episode so far. The videos go to videos/ in the
    run folder, to TensorBoard and to W&B."""

    notify: str = option("", holds="secret")
    """Where to send alarms and the outcome of the run (docs/long-runs.md): a URL of
    apprise such as ntfy://TOPIC, or several URLs separated by commas. Only
    config.json records this text, for its owner alone; '$NAME', in single quotes, keeps
    a secret in an environment variable instead."""

    profile: int = option(0, least=0)
    """Number of updates to record with PyTorch's profiler, from the tenth update on; 0:
    none. The trace is trace.json in the run folder, with NVTX ranges on a GPU."""

    wandb: bool = False
    """Also log to Weights & Biases, offline if there is no API key. Its environment
    variables apply: WANDB_MODE, WANDB_PROJECT (default: mario-envpool), WANDB_ENTITY,
    WANDB_NAME (default: the name of the run folder), WANDB_RUN_GROUP, WANDB_TAGS
    (separated by commas), WANDB_DIR (default: the run folder), and so on. A resumed run
    keeps its W&B run."""

    env: EnvConfig = dataclasses.field(default=EnvConfig())
    model: ModelConfig = dataclasses.field(default=ModelConfig())
    learner: LearnerConfig = dataclasses.field(default=LearnerConfig())
    replay: ReplayConfig = dataclasses.field(default=ReplayConfig())
    explore: ExploreConfig = dataclasses.field(default=ExploreConfig())
    augmentation: AugmentConfig = dataclasses.field(default=AugmentConfig())

    def resolved(self) -> RunConfig:
        """This config with the values that follow from other options.

        They are the size of observations that the network needs, the names of the
        levels, the task that plays these levels, and the number of value heads. Raises
        ValueError if the task does not have the levels.
        """
        size = IMAGE_SIZES.get(self.model.name, IMAGE_SIZE)
        if self.env.sees_tiles:
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
            # A checkpoint of the run may be loaded from another working directory.
            rom_path=self.env.rom_path and _absolute(self.env.rom_path),
        )
        explore = self.explore
        if files := explore.state_files:
            starts = ",".join(map(_absolute, files))
            explore = dataclasses.replace(explore, starts=starts)
        heads = self.model.value_heads or max(1, len(levels))
        model = dataclasses.replace(self.model, value_heads=heads)
        learner, loss = self.learner, self.learner.loss
        if isinstance(loss, Distillation) and loss.teachers:
            loss = dataclasses.replace(loss, teachers=_absolute(loss.teachers))
            learner = dataclasses.replace(learner, loss=loss)
        return dataclasses.replace(
            self, env=env, model=model, learner=learner, explore=explore
        )

    def share(self, ranks: int) -> RunConfig:
        """The part of a run that each of several processes has.

        The options count environments, training batches, minibatches and replay of the
        whole run, so that it learns like a single process with the same options.
        Raises ValueError if a number cannot be divided by `ranks`, the number of
        processes.
        """

        def divided(part: Any, *names: str) -> Any:
            shares = {}
            for name in names:
                shares[name], rest = divmod(getattr(part, name), ranks)
                if rest:
                    raise ValueError(
                        f"{name}={getattr(part, name)} counts for the whole run and "
                        f"cannot be divided among {ranks} processes: choose a multiple "
                        f"of {ranks}"
                    )
            return dataclasses.replace(part, **shares)

        env, replay = divided(self.env, "num_envs"), self.replay
        learner = divided(self.learner, "unrolls_per_batch", "minibatch_size")
        if replay.replay_share:
            replay = divided(replay, "replay_capacity")
        if env.num_envs % env.groups:
            raise ValueError(
                f"groups={env.groups} must divide the environments of a process, which "
                f"are {env.num_envs} of num_envs={self.env.num_envs} with {ranks} "
                "processes: choose a num_envs that is a multiple of "
                f"{env.groups * ranks}"
            )
        return dataclasses.replace(self, env=env, learner=learner, replay=replay)

    @property
    def replayed_unrolls(self) -> int:
        """Replayed unrolls per update, in addition to the fresh `unrolls_per_batch`."""
        share = self.replay.replay_share
        count = self.learner.unrolls_per_batch * share / (1 - share)
        return max(1, round(count)) if share else 0

    @property
    def working_slots(self) -> int:
        """Unrolls in the store without replay.

        One per environment, the training batches that wait, the one that the update
        learns from, and the unrolls that one recv may complete beyond a training batch.
        """
        env = self.env
        batches = (self.lag + 1) * self.learner.unrolls_per_batch
        return env.num_envs + env.num_envs // env.groups + batches

    def validate(self) -> None:
        """Raises ValueError if an option is out of range or excluded by others."""
        check_ranges(self)
        for part in (self.env, self.learner, self.explore):
            part.check()
        if isinstance(self.model.memory, GTrXL):
            self.model.memory.check()
        self._check_network()
        self._check_demonstrations()
        self._check_batches()

    @property
    def learns_from_demonstrations(self) -> bool:
        """Whether the run learns from demonstrations, from a search or from files."""
        explore = self.explore
        return (
            bool(explore.demos)
            or explore.starts == "backward"
            or explore.guide > 0
            or self.learner.imitation > 0
        )

    def _check_demonstrations(self) -> None:
        """Raises ValueError if the run cannot have or use its demonstrations."""
        if not self.learns_from_demonstrations:
            return
        env, learner = self.env, self.learner
        what = "--guide" if self.explore.guide else "--starts backward"
        what = "--imitation" if learner.imitation else what
        what = "--demos" if self.explore.demos else what
        if not (env.levels or own_levels(env.task)):
            raise ValueError(
                f"{what} needs demonstrations of single levels, and task {env.task} "
                "does not play those: choose --levels, or a task such as "
                "SuperMarioBros-1-1-v0"
            )
        if env.repeat_action_probability:
            raise ValueError(
                f"{what} needs demonstrations, which cannot be replayed with sticky "
                "actions: leave out --repeat-action-probability"
            )
        if learner.imitation and learner.entropy_steps <= 0:
            raise ValueError(
                "--imitation falls to 0 over --entropy-steps, which must be above 0, "
                f"got {learner.entropy_steps}"
            )
        clones = self.explore.demos and learner.cloning_steps
        if (learner.imitation or clones) and self.model.memory is not None:
            what = "--imitation" if learner.imitation else "--demos"
            raise ValueError(
                f"{what} is for networks without --memory: the state of a memory "
                "along a demonstration depends on the weights"
            )

    def _check_network(self) -> None:
        """Raises ValueError if the network does not fit the observations or levels."""
        name, obs = self.model.name, self.env.obs
        if ":" not in name and (name == "tiles") != self.env.sees_tiles:
            raise ValueError(
                f"model={name} does not take obs={obs}; obs=tiles and obs=tiles+world "
                "need model=tiles, or your own class as module:Class"
            )
        levels, heads = len(self.resolved().env.levels), self.model.value_heads
        if heads > 1 and heads != levels:
            raise ValueError(
                f"value_heads must be 1, or 0 for one per level of --levels, of which "
                f"there are {levels}; got {heads}"
            )

    def _check_batches(self) -> None:
        """Raises ValueError if batches cannot be collected or learned from."""
        learner, replay, num_envs = self.learner, self.replay, self.env.num_envs
        if replay.burn_in > learner.unroll:
            raise ValueError(
                f"burn_in must be at most unroll={learner.unroll}, got {replay.burn_in}"
            )
        if self.serial and self.lag:
            raise ValueError(f"serial has no overlap: lag must be 0, got {self.lag}")
        if self.mode == "sync" and learner.unrolls_per_batch % num_envs:
            raise ValueError(
                "in sync mode each environment adds equally many unrolls to a batch: "
                f"unrolls_per_batch={learner.unrolls_per_batch} must be a multiple of "
                f"num_envs={num_envs}; raise unrolls_per_batch, lower num_envs, or "
                "choose mode=async"
            )
        if replay.replay_share and learner.advantages == "gae":
            raise ValueError(
                "replay needs advantages=vtrace, got gae: replayed actions come from "
                "older policies"
            )


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())
