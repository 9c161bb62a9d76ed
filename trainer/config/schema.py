"""Every option of a training run, as frozen dataclasses.

The command line is built from these classes (the text under a field is its help
line) and the whole is written to `config.json` of the run. Defaults are the CPU
recipe; `presets.py` has the one for a GPU. This module knows nothing of torch.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from trainer.config.checks import check_combinations, check_fields
from trainer.config.tasks import game_of, split_levels
from trainer.machine.files import write_json

T = TypeVar("T")

# Rows and columns of observations (Mnih et al. 2015), and of the networks that are
# made for others.
IMAGE_SIZE = 84
IMAGE_SIZES = {"cnn-72k": 40}
# Of `obs` tiles, whatever the network (trainer/tiles.py): rows of tiles come first,
# and then those of motion.
TILES_SHAPE = (1, 16, 16)
TILES_ROWS = 13

PresetName = Literal["cpu", "tiles", "gpu-small", "gpu-mid", "gpu-large"]
LevelSampling = Literal["success", "learnability", "curriculum", "uniform"]


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """Environments: which, how many, and what they pay."""

    task: str = "SuperMarioBros-1-1-v0"
    """Environment id: any of mario_envpool's, or an image task of EnvPool with
    discrete actions (then only the counts, frame_skip, stack_num, image size and
    noop_max apply)."""

    levels: tuple[str, ...] = ()
    """Levels to train on, such as 1-1,4-2, or all: every episode is of one of them.
    Without it the task says what is played. Several, and others than 1-1 on tiles,
    bring other defaults with them: docs/training.md has a table."""

    test_levels: tuple[str, ...] = ()
    """Levels never to train on, such as 1-3,2-2, or how many of `levels` to keep back,
    the same ones for every seed. Evaluations show both."""

    obs: Literal["pixels", "tiles"] = "pixels"
    """What the network sees: pixels, grey pictures; tiles, what is in each cell around
    Mario and how the things there move (docs/observations.md), without pictures, for
    the network of that name."""

    num_envs: int = 64
    """Environments in the pool."""

    groups: int = 2
    """num_envs / groups environments are acted for at once; the others emulate
    meanwhile. In sync mode the groups are fixed, in async mode each group is
    whichever environments are ready first."""

    num_threads: int = 0
    """Emulation threads; 0: the number of cores, at most one per environment of a
    group."""

    frame_skip: int = 6
    """Frames per step. Mnih et al. 2015 have 4, which leaves more control; with 6 half
    of all clears came after 155-180 k steps instead of 240-330 k."""

    stack_num: int = 4
    """Frames in an observation (Mnih et al. 2015, table 1)."""

    img_height: int = 0
    """Rows of an observation; 0: what the network is made for, 40 with cnn-72k and 84
    with the others."""

    img_width: int = 0
    """Columns of an observation; 0: as img_height."""

    hud: Literal["keep", "mask", "crop"] = "crop"
    """The 32 rows of the status bar: cropped, they leave more pixels to the game."""

    action_set: Literal["right_only", "simple", "complex"] = "right_only"
    """5, 7 or 12 actions. Fewer learn sooner: with 5 half of all episodes cleared
    1-1 after 218-267 k steps, with 7 after 340 k."""

    noop_max: int = 30
    """Idle frames before each episode, 0 to this many. Without them a policy
    memorises one sequence of buttons."""

    repeat_action_probability: float = 0.0
    """Chance at every frame that the buttons stay as they were (sticky actions)."""

    stall_steps: int = 100
    """Truncate an episode after this many steps without a new best position."""

    max_episode_steps: int = 2000
    """Truncate an episode after this many steps; the game's clock is shorter."""

    reward: Literal["progress", "classic", "v9"] = "progress"
    """progress: new best positions and the weights below; classic, v9: the rewards of
    gym-super-mario-bros 7.4 and 9.1 (docs/rewards.md), for which the weights mean
    nothing."""

    reward_progress: float = 1.0
    """Paid per pixel of a new best position."""

    reward_step: float = -0.5
    """Paid per step; a run to the flag of 1-1 takes about 260."""

    reward_death: float = -50.0
    """Paid at a death."""

    reward_flag: float = 50.0
    """Paid at the flag; 100 and more hurt elsewhere."""

    reward_scale: float = 0.01
    """Factor on the whole reward. Returns near +-10 fit the Huber loss and the
    gradient clip."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The network: an encoder, a memory and two heads.

    0 or () stands for the encoder's own value, which is what its paper has.
    """

    name: Annotated[str, tyro.conf.arg(name="model")] = "cnn-72k"
    """cnn-72k, cnn-157k, cnn-345k, nature, impala, convnext, tiles (of --obs tiles alone), or
    module:Class of your own (docs/training.md). Training costs cnn-72k : cnn-157k : cnn-345k :
    nature are .2 : .54 : 1 : 2.8; per step of experience they learn nearly alike on
    1-1, so on a CPU the smallest wins."""

    widths: tuple[int, ...] = ()
    """Channels of the convolutions, one for each that the network has (impala and
    convnext: of the stages, as many as you like)."""

    blocks: int = 0
    """Residual blocks per stage; impala and convnext only."""

    features: int = 0
    """Size of the linear layer behind the convolutions."""

    layer_norm: bool = False
    """Normalise those features (Ba et al. 2016)."""

    memory: Literal["none", "gru", "lstm", "gtrxl"] = "none"
    """Memory between encoder and heads: none, gated recurrent unit, long short-term
    memory, or a gated transformer (Parisotto et al. 2020)."""

    memory_size: int = 256
    """Size of the memory's output."""

    memory_layers: int = 1
    """Layers of the gated transformer."""

    memory_heads: int = 4
    """Attention heads of the gated transformer; divides memory_size."""

    memory_steps: int = 32
    """Steps that the gated transformer looks back."""

    value_heads: int = 1
    """Outputs of the critic: 1, or 0 for one per level of --levels, so that no level's
    returns are in the way of another's."""

    popart: bool = False
    """Normalise each output of the critic by the mean and deviation of its targets,
    and divide advantages by it (PopArt, van Hasselt et al. 2016; for many tasks,
    Hessel et al. 2019): levels with small returns then count as much as others."""

    popart_step: float = 3e-4
    """Weight of a row in these means (Hessel et al. 2019, table 2)."""

    noisy: bool = False
    """Noisy linear layers as heads (Fortunato et al. 2018): the noise explores."""

    noisy_sigma: float = 0.5
    """Initial scale of that noise (Fortunato et al. 2018, section 3.2)."""


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """How it learns. Values without a source are the CPU recipe's."""

    loss: Literal["ppo", "impala"] = "ppo"
    """clip: PPO's clipped ratio, several passes (Schulman et al. 2017); impala:
    V-trace policy gradient (Espeholt et al. 2018)."""

    advantages: Literal["vtrace", "gae"] = "vtrace"
    """vtrace: corrected for a policy that has changed since (Espeholt et al. 2018);
    gae: as if it had not (Schulman et al. 2016), clip without replay only."""

    unroll: int = 32
    """Steps of one environment in one unroll, T."""

    unrolls_per_batch: int = 64
    """Unrolls in one update, B, replayed ones included."""

    epochs: int = 3
    """Passes over a batch. With adam 8 moved the policy too far (KL .1-.2), and 2
    lost more in steps than they saved in time; with impala use 1."""

    minibatch_size: int = 512
    """Rows per gradient step (impala, or with a memory: whole unrolls of as many
    rows)."""

    grad_accum_steps: int = 1
    """Parts that a minibatch is computed in, one after the other, their gradients
    added: the same step with less memory."""

    gamma: float = 0.93
    """Discount per step of 6 frames, .95 per 4; .9 and .98 per 4 were slower on 1-1.
    Several levels, and others than 1-1 on tiles, have .95 per 6."""

    lam: float = 0.95
    """Lambda of the targets and the advantage (1 is the paper's V-trace)."""

    rho_bar: float = 1.0
    """Clip of the ratios in the temporal differences (Espeholt et al. 2018)."""

    c_bar: float = 1.0
    """Clip of the ratios in the trace (Espeholt et al. 2018)."""

    pg_rho_bar: float = 1.0
    """Clip of the ratio in the policy gradient; used by the impala loss."""

    targets: Literal["auto", "recomputed", "stored"] = "auto"
    """Values and probabilities behind the targets of the ppo loss: recomputed once
    per update with the learner's weights (exact under policy lag), or those
    stored when acting (one forward less, the same where there is no lag and
    arithmetic is exact); auto: stored when lag is 0 and nothing is replayed.
    impala always has the current ones."""

    clip_range: float = 0.2
    """Epsilon of the ppo loss (Schulman et al. 2017, section 6.1)."""

    target_updates: int = 0
    """With clip: updates between refreshes of a target network, against which the
    ratio is clipped (IMPACT, Luo et al. 2020); 0: none."""

    target_rho: float = 2.0
    """Clip of the behaviour policy's ratio to the target network's (IMPACT's rho), at
    least 1."""

    normalise_advantages: bool = True
    """Shift and scale the advantages of each minibatch to mean 0, deviation 1."""

    value_loss: Literal["huber", "squared"] = "huber"
    """Loss of the critic."""

    value_coef: float = 0.5
    """Weight of the critic's loss (as in IMPALA's own code)."""

    optimizer: Literal["adam", "adamw", "rmsprop", "muon"] = "muon"
    """muon (Jordan et al. 2024) orthogonalises the steps of hidden matrices and
    leaves the rest to AdamW at lr; its own rate is muon_lr. It halved the steps to
    half of all clears (docs/results.md)."""

    lr: float = 1e-3
    """Learning rate at the start."""

    lr_end: float = 1e-4
    """Learning rate at the end of its schedule."""

    lr_steps: int = 800_000
    """Environment steps of the schedule. Too short is worse than too long: with adam
    and 500 k one seed of two stood still at 50 % of clears (docs/results.md)."""

    lr_schedule: Literal["linear", "cosine"] = "linear"
    """How the rate goes from lr to lr_end."""

    warmup_updates: int = 0
    """Updates over which the rate first rises from 0."""

    muon_lr: float = 0.03
    """Rate of muon's matrices at the start; it follows the same schedule."""

    momentum: float = 0.95
    """Momentum of muon's matrices (Jordan et al. 2024)."""

    adam_eps: float = 1e-5
    """Epsilon of adam and adamw (as in the PPO implementations)."""

    rmsprop_alpha: float = 0.99
    """Decay of rmsprop's squares (Espeholt et al. 2018, table D.1)."""

    rmsprop_eps: float = 0.01
    """Epsilon of rmsprop, beside the root (as in Cleanba and TorchBeast)."""

    weight_decay: float = 0.0
    """Decoupled weight decay of adamw and muon."""

    entropy: float = 0.01
    """Weight of the entropy bonus at the start."""

    entropy_end: float = 0.001
    """Weight of the entropy bonus at the end of its schedule."""

    entropy_steps: int = 480_000
    """Environment steps of its linear schedule."""

    max_grad_norm: float = 0.5
    """Clip of the gradient's norm; .5-1 belongs to mean losses."""

    ema: float = 0.9
    """Decay per update of an exponential moving average of the weights, which
    evaluations, videos and checkpoints' players then use; 0: none. Of four seeds all
    passed their first evaluation with it, and two of three failed theirs without."""

    learner_threads: int = 0
    """CPU threads that share a minibatch; 0: one per core, with at least 64 rows for
    each. A GPU needs none."""


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """Prioritized replay of unrolls (Schaul et al. 2016; Schmitt et al. 2020)."""

    replay_share: float = 0.0
    """Share of replayed unrolls in a batch; 0: no replay."""

    replay_capacity: int = 256
    """Unrolls kept. Young ones are better: 512 and 1,024 trajectories did worse than
    256 on this game (docs/results.md has ours)."""

    replay_bytes: int = 0
    """Bytes that replay may take on the device; 0: what capacity needs. The smaller
    of both counts."""

    replay_alpha: float = 0.7
    """Exponent of priorities, mean |advantage| of an unroll; 0: uniform."""

    replay_beta: float = 0.4
    """Exponent of the importance weights at the start (Schaul et al. 2016)."""

    replay_beta_end: float = 1.0
    """Exponent of the importance weights at the end of its schedule."""

    replay_beta_steps: int = 1_000_000
    """Environment steps of its linear schedule."""

    replay_max_kl: float = 1.0
    """Unrolls whose mean KL(pi || mu) is above are left out of the loss."""

    replay_min_rho: float = 0.3
    """Unrolls whose mean clipped ratio pi / mu is below are left out of the loss."""

    replay_min_fresh: float = 0.25
    """Least share of fresh unrolls in a batch; replay_share may not leave less.
    Replay alone biases the policy (Schmitt et al. 2020, section 3)."""

    burn_in: int = 0
    """Rows before an unroll that only bring a memory's state up to date (R2D2,
    Kapturowski et al. 2019)."""


@dataclasses.dataclass(frozen=True)
class ExploreConfig:
    """Where training episodes begin, and what is paid for places that are new."""

    starts: Literal["level", "frontier"] = "level"
    """Where episodes begin: level, at the starts of levels; frontier, a share of them
    from snapshots of what was reached (as in Go-Explore, Ecoffet et al. 2021): where
    outcomes are uncertain, at its edge, and where those from the start fail.
    Only those from a level's start count in rates, films and evaluations."""

    frontier_share: float = 0.5
    """Share of the frontier in the episodes of a level that is never cleared from its
    start; it falls to 0 as that clear rate rises to 1."""

    level_sampling: LevelSampling = "success"
    """Which of several levels to play, by the share p of clears in the last episodes
    of each. success: those that are failed, 1 - p. learnability: where some are
    cleared and some not, 4 p (1 - p) (Rutherford et al. 2024), or by what a level has
    lost of its highest p. curriculum: four at a time, in the order of the game, each
    until p is .9 or for 250,000 steps, then others in turns; what was learned is
    rehearsed, more where p has fallen. uniform: all alike."""

    level_floor: float = 0.1
    """Least weight of a level, where 1 is that of one that is being learned, so that
    solved ones are not forgotten and (but for curriculum) hopeless ones are tried."""

    cell_size: int = 32
    """Width and height in pixels of the cells in which places are told apart, for the
    frontier and for what is new."""

    novelty: float = 0.0
    """Paid at the start of the run for the first visit of a cell in an episode, beside
    the reward (after reward_scale, by which 32 pixels of progress are 0.32)."""

    novelty_end: float = 0.0
    """The same at the end of the schedule."""

    novelty_by_count: bool = False
    """Divide novelty by the square root of the episodes that were in the cell (as in
    Badia et al. 2020, whose life-long part is a network)."""

    count_bonus: float = 0.0
    """Weight at the start of UCB1's term sqrt(2 ln t / n) (Auer et al. 2002), paid
    whenever a cell is entered: for the n-th time, of t entries of any cell."""

    count_bonus_end: float = 0.0
    """The same at the end of the schedule."""

    bonus_steps: int = 1_000_000
    """Environment steps of the linear schedule of both."""

    @property
    def pays(self) -> bool:
        """Whether there is any bonus at any time."""
        weights = (self.novelty, self.novelty_end)
        return any((*weights, self.count_bonus, self.count_bonus_end))


@dataclasses.dataclass(frozen=True)
class AugmentConfig:
    """Data augmentation on the device (DrAC, Raileanu et al. 2021).

    What the policy says of changed pictures is drawn to what it says of the true ones.
    """

    augment: tuple[str, ...] = ()
    """Changes, with commas between: shift (Kostrikov et al. 2021), brightness, flip
    (with the actions mirrored, action_set complex only). By default there are none: a
    gradient step takes about twice as long with them."""

    augment_coef: float = 0.1
    """Weight of the difference (Raileanu et al. 2021, appendix F)."""

    augment_shift: int = 4
    """Pixels to any side, at most (Kostrikov et al. 2021 have 4 of 84)."""

    augment_brightness: float = 0.2
    """Pictures are multiplied by 1 less this to 1 plus this."""

    augment_flip: float = 0.5
    """Chance that a picture is mirrored."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Trains a policy and writes curves and checkpoints to a run folder."""

    preset: Literal["auto", PresetName] = "auto"
    """Where the defaults come from; auto: tiles with --obs tiles, else by the hardware
    (docs/training.md has a table)."""

    device: str = "auto"
    """auto (cuda where there is one), cpu, cuda or cuda:N. Only auto falls back."""

    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic of the network; auto: bf16 where the hardware has it, else fp16 on
    a GPU (with a scaled loss) and fp32 on a CPU."""

    mode: Literal["sync", "async"] = "sync"
    """sync: the same seed gives the same weights, bit for bit, on any number of
    emulation threads; async: environments run freely, which depends on timing."""

    lag: int = 0
    """Batches that collecting may be ahead of learning. 0: in turns, the best on a
    CPU. 1 and more: at the same time, in two threads; in sync mode every batch
    is then exactly so many policies old; in async mode so many batches may wait,
    and the lag of every row is measured (policy_lag)."""

    serial: bool = False
    """For debugging: one thread, no overlap, no CUDA graphs, no compilation."""

    compile: bool = False
    """torch.compile for the targets and losses (needs a C++ or Triton compiler)."""

    cuda_graphs: bool = True
    """Record acting and the gradient step once and replay them; CUDA only."""

    channels_last: bool = True
    """Layout of convolutions on a GPU, and of impala and convnext on a CPU, where
    training impala is then twice as fast; the plain networks keep their own there."""

    seed: int = 1
    """Seed of weights, actions and environments, 0 to 20,000."""

    max_steps: int = 1_000_000
    """End after this many environment steps."""

    max_seconds: float = 0.0
    """End after this many seconds; 0: no limit."""

    stop_when_solved: bool = True
    """Evaluate when solve_rate of the last 100 training episodes cleared the level (of
    several levels: of each), and end if as many of the evaluation's did: fresh seeds,
    sampled actions, no sticky ones. A second evaluation is then reported."""

    solve_rate: float = 0.9
    """Share of clears that counts as solved."""

    solve_episodes: int = 100
    """Episodes of each of the two evaluations; of several levels, of each of them."""

    end_episodes: int = 10
    """Episodes of each level, trained and test ones, that a run with --levels plays
    at its end; 0: none."""

    run_dir: Path | None = None
    """Folder to write to; by default runs/TASK-TIME."""

    resume: Path | None = None
    """Checkpoint, or folder of a run, to go on from; auto: the run under runs/ that
    wrote a checkpoint last, is not running and has not come to its end (with --task:
    of that task). It goes on in its folder, or in --run-dir, with its own options
    where none are given here."""

    log_seconds: float = 5.0
    """Seconds between progress lines and points of the curves."""

    dashboard: Literal["auto", "on", "off"] = "auto"
    """What the terminal shows: a live dashboard, or a line every log_seconds. auto:
    live where stdout is a terminal that can move its cursor, else lines."""

    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints; there is always one at the end, and one in
    best.pt from when the most training episodes were clears."""

    keep_checkpoints: int = 3
    """Checkpoints that stay, the last ones; best.pt is not counted."""

    checkpoint_replay: bool = False
    """Write replay into checkpoints, as large as it is on the device. Without it a
    resumed run fills replay anew."""

    videos: bool = True
    """Film the first clear and the best episode so far, for videos/ in the run folder,
    TensorBoard and W&B."""

    profile: int = 0
    """Updates to record with PyTorch's profiler (trace.json in the run folder, with
    NVTX ranges on CUDA), from the tenth on; 0: none."""

    wandb: bool = False
    """Also log to Weights & Biases; offline where no API key is found."""

    env: EnvConfig = EnvConfig()
    model: ModelConfig = ModelConfig()
    learner: LearnerConfig = LearnerConfig()
    replay: ReplayConfig = ReplayConfig()
    explore: ExploreConfig = ExploreConfig()
    augmentation: AugmentConfig = AugmentConfig()

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
        )
        heads = self.model.value_heads or max(1, len(levels))
        model = dataclasses.replace(self.model, value_heads=heads)
        return dataclasses.replace(self, env=env, model=model)

    @property
    def fresh_unrolls(self) -> int:
        """Unrolls of a batch that come from the environments."""
        count = self.learner.unrolls_per_batch
        return count - round(count * self.replay.replay_share)

    @property
    def working_slots(self) -> int:
        """Unrolls in the store without replay.

        One for each environment, batches that wait and the one that is learned
        from, and what a recv of a whole group may complete beyond a batch.
        """
        env = self.env
        batches = (self.lag + 1) * self.fresh_unrolls
        return env.num_envs + env.num_envs // env.groups + batches

    def validate(self) -> None:
        """Checks what no single field can.

        Raises:
            ValueError: what was given, what is allowed.
        """
        check_fields(self)
        check_combinations(self)


def to_dict(config: Any) -> dict[str, Any]:
    """Turns a config into plain JSON types."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return {
                f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)
            }
        if isinstance(value, tuple):
            return list(value)
        return str(value) if isinstance(value, Path) else value

    result: dict[str, Any] = plain(config)
    return result


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The options of what `to_dict` gave by dotted names, such as "learner.lr"."""
    result: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{name}.")
        else:
            result[prefix + name] = value
    return result


def from_dict(kind: type[T], data: dict[str, Any]) -> T:
    """The inverse of `to_dict`.

    Args:
        kind: the dataclass.
        data: what `to_dict` gave.

    Raises:
        ValueError: a key is not a field.
    """
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ValueError(
            f"{kind.__name__} has no field {', '.join(unknown)}; it has "
            f"{', '.join(hints)}"
        )
    values: dict[str, Any] = {}
    for name, value in data.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            values[name] = from_dict(hint, value)
        elif value is not None and _is_path(hint):
            values[name] = Path(value)
        elif typing.get_origin(hint) is tuple:
            values[name] = tuple(value)  # JSON has lists only
        else:
            values[name] = value
    return kind(**values)


def _is_path(hint: Any) -> bool:
    if isinstance(hint, types.UnionType):
        return Path in typing.get_args(hint)
    return hint is Path


def save(config: RunConfig, path: Path, **extra: object) -> None:
    """Writes a config, and what else is known of the run, as JSON."""
    write_json(path, to_dict(config) | extra)
