"""Every option of a training run, as frozen dataclasses.

The command line is built from these classes (the text under a field is its help
line) and the whole is written to `config.json` of the run. Defaults are the CPU
recipe; `presets.py` has the one for a GPU. This module knows nothing of torch.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

ModelName = Literal["pico", "nano", "nature", "impala"]
T = TypeVar("T")

# Pools take seeds of 32 bits; a run uses a block of them per seed (collector.py).
MAX_SEED = 20_000


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """Environments: which, how many, and what they pay."""

    task: str = "SuperMarioBros-1-1-v0"
    """Environment id: any of mario_envpool's, or an image task of EnvPool with
    discrete actions (then only the counts, frame_skip, stack_num, image size and
    noop_max apply)."""

    num_envs: int = 64
    """Environments in the pool."""

    batch_size: int = 32
    """Environments acted for at once; the others emulate meanwhile."""

    num_threads: int = 0
    """Emulation threads; 0: the number of cores, at most batch_size."""

    frame_skip: int = 4
    """Frames per step (Mnih et al. 2015, table 1)."""

    stack_num: int = 4
    """Frames in an observation (Mnih et al. 2015, table 1)."""

    img_height: int = 84
    """Rows of an observation."""

    img_width: int = 84
    """Columns of an observation."""

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

    reward: Literal["progress", "classic"] = "progress"
    """progress: new best positions and the weights below; classic: the reward of
    gym-super-mario-bros, for which the weights mean nothing."""

    reward_progress: float = 1.0
    """Paid per pixel of a new best position."""

    reward_step: float = -0.5
    """Paid per step; a run to the flag of 1-1 takes about 300."""

    reward_death: float = -50.0
    """Paid at a death."""

    reward_flag: float = 50.0
    """Paid at the flag; 100 and more hurt elsewhere."""

    reward_scale: float = 0.01
    """Factor on the whole reward. Returns near +-10 fit the Huber loss and the
    gradient clip."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The network."""

    name: Annotated[ModelName, tyro.conf.arg(name="model")] = "pico"
    """Encoder. Training costs pico : nano : nature are .54 : 1 : 2.8; per step of
    experience they learn nearly alike, so on a CPU the smallest wins."""


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """How it learns. Values without a source are the CPU recipe's."""

    loss: Literal["clip", "impala"] = "clip"
    """clip: PPO's clipped ratio on V-trace advantages, several passes (Schulman et
    al. 2017); impala: V-trace policy gradient (Espeholt et al. 2018)."""

    unroll: int = 32
    """Steps of one environment in one unroll, T."""

    unrolls_per_batch: int = 64
    """Unrolls in one update, B."""

    passes: int = 4
    """Passes over a batch. 8 moved the policy too far (KL .1-.2), 2 lost more in
    steps than they saved in time; with impala use 1."""

    minibatch_size: int = 256
    """Rows (impala: whole unrolls of as many rows) per gradient step."""

    gamma: float = 0.95
    """Discount per step; .9 and .98 were slower on 1-1. Hard levels want .99."""

    lam: float = 0.95
    """Lambda of V-trace and the advantage (1 is the paper's V-trace)."""

    rho_bar: float = 1.0
    """Clip of the ratios in the temporal differences (Espeholt et al. 2018)."""

    c_bar: float = 1.0
    """Clip of the ratios in the trace (Espeholt et al. 2018)."""

    pg_rho_bar: float = 1.0
    """Clip of the ratio in the policy gradient; used by the impala loss."""

    targets: Literal["recomputed", "stored"] = "recomputed"
    """Values and probabilities behind the targets of the clip loss: recomputed once
    per update with the learner's weights (exact under policy lag), or those
    stored when acting (one forward less). impala always has the current ones."""

    clip_range: float = 0.2
    """Epsilon of the clip loss (Schulman et al. 2017, section 6.1)."""

    normalise_advantages: bool = True
    """Shift and scale the advantages of each minibatch to mean 0, deviation 1."""

    value_loss: Literal["huber", "squared"] = "huber"
    """Loss of the critic."""

    value_cost: float = 0.5
    """Weight of the critic's loss (as in IMPALA's own code)."""

    lr: float = 1e-3
    """Learning rate of Adam at the start."""

    lr_end: float = 1e-4
    """Learning rate at the end of its schedule."""

    lr_steps: int = 800_000
    """Environment steps of the linear schedule. With 500 k one seed of two stood
    still at 50 % of clears when the rate had fallen (docs/results.md)."""

    adam_eps: float = 1e-5
    """Adam's epsilon (as in the PPO implementations)."""

    entropy: float = 0.01
    """Weight of the entropy bonus at the start."""

    entropy_end: float = 0.001
    """Weight of the entropy bonus at the end of its schedule."""

    entropy_steps: int = 480_000
    """Environment steps of its linear schedule."""

    max_grad_norm: float = 0.5
    """Clip of the gradient's norm; .5-1 belongs to mean losses."""

    learner_threads: int = 0
    """CPU threads that share a minibatch; 0: one per core, with at least 64 rows for
    each. A GPU needs none."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Trains a policy and writes curves and checkpoints to a run folder."""

    preset: Literal["auto", "cpu", "gpu"] = "auto"
    """Where the defaults come from; auto: by the device."""

    device: str = "auto"
    """auto (cuda where there is one), cpu, cuda or cuda:N. Only auto falls back."""

    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Arithmetic of the network; auto: bf16 where the hardware has it."""

    seed: int = 1
    """Seed of weights, actions and environments, 0 to 20,000."""

    max_steps: int = 1_000_000
    """End after this many environment steps."""

    max_seconds: float = 0.0
    """End after this many seconds; 0: no limit."""

    stop_clear_rate: float = 0.97
    """End as solved when this share of the last 100 episodes cleared the level;
    above 1: never."""

    run_dir: Path | None = None
    """Folder to write to; by default runs/TASK-TIME."""

    resume: Path | None = None
    """Checkpoint, or folder of a run, to go on from: weights, optimiser, schedules
    and generators. Environments begin new episodes."""

    log_seconds: float = 5.0
    """Seconds between progress lines and points of the curves."""

    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints; there is always one at the end."""

    wandb: bool = False
    """Also log to Weights & Biases; offline where no API key is found."""

    env: EnvConfig = EnvConfig()
    model: ModelConfig = ModelConfig()
    learner: LearnerConfig = LearnerConfig()

    def validate(self) -> None:
        """Checks what no single field can.

        Raises:
            ValueError: what was given, what is allowed.
        """
        env, learner = self.env, self.learner
        check_seed(self.seed)
        if not 1 <= env.batch_size <= env.num_envs:
            raise ValueError(
                f"batch_size must be 1 to num_envs={env.num_envs}, got {env.batch_size}"
            )
        for name in ("unroll", "unrolls_per_batch", "passes", "minibatch_size"):
            if getattr(learner, name) < 1:
                raise ValueError(
                    f"{name} must be at least 1, got {getattr(learner, name)}"
                )
        for name in ("gamma", "lam"):
            if not 0 <= getattr(learner, name) <= 1:
                raise ValueError(f"{name} must be 0 to 1, got {getattr(learner, name)}")
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}")
        if self.max_seconds < 0:
            raise ValueError(
                f"max_seconds must be 0 (no limit) or more, got {self.max_seconds}"
            )


def check_seed(seed: int) -> None:
    """Raises ValueError unless a run or an evaluation can have this seed."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be 0 to {MAX_SEED}, got {seed}")


def to_dict(config: Any) -> dict[str, Any]:
    """Turns a config into plain JSON types."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return {
                f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)
            }
        return str(value) if isinstance(value, Path) else value

    result: dict[str, Any] = plain(config)
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
        else:
            values[name] = value
    return kind(**values)


def _is_path(hint: Any) -> bool:
    if isinstance(hint, types.UnionType):
        return Path in typing.get_args(hint)
    return hint is Path


def save(config: RunConfig, path: Path, **extra: object) -> None:
    """Writes a config, and what else is known of the run, as JSON."""
    path.write_text(json.dumps(to_dict(config) | extra, indent=2) + "\n")
