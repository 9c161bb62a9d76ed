"""Options of learning: losses, optimisers, replay and augmentation."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import torch

from trainer.config.options import Choice, any_of, in_use, one_of, option

# Environment steps after which the exponent of the importance weights is 1, so that
# they correct all of the bias of prioritized replay (Schaul et al. 2016, section 3.4).
BETA_STEPS = 1_000_000

# Largest share of replayed unrolls: replay alone biases the policy (Schmitt et al.
# 2020, section 3).
MAX_REPLAY_SHARE = 0.75

_REPLAY = (in_use("replay_share"),)
# Distillation has no entropy bonus.
_A_REWARD = (one_of("loss", "ppo", "impala"),)
_ADAM_EPS = 1e-5  # as in PPO implementations (Huang et al. 2022, detail 3)

Groups = list[dict[str, Any]]  # of parameters, as PyTorch's optimisers take them


def linear(start: float, end: float, horizon: int, step: int) -> float:
    """A value that moves from `start` to `end` over `horizon` steps and stays there."""
    share = 1.0 if horizon <= 0 else min(1.0, step / horizon)
    return start + (end - start) * share


@dataclasses.dataclass(frozen=True)
class Ppo(Choice):
    """PPO's clipped ratio (Schulman et al. 2017)."""

    clip_range: float = option(0.2, least=0)
    """Clip of the probability ratio (Schulman et al. 2017, section 6.1)."""


@dataclasses.dataclass(frozen=True)
class Impala(Choice):
    """V-trace policy gradient (Espeholt et al. 2018)."""


@dataclasses.dataclass(frozen=True)
class Distillation(Choice):
    """Imitates teachers' policies on the run's own states (Rusu et al. 2016)."""

    teachers: str = option("", holds="path")
    """Policies to learn from: a run or a checkpoint, which teaches all levels, or a
    folder with one policy per level (1-1.safetensors, 1-1.pt, or a run folder 1-1).
    Teachers must have the observations and the frame skip of this run, and no actions
    that this run lacks."""

    model: str = option("", name="teacher_model", holds="code")
    """Network of the teachers, module:Class, if it is a class of your own: code that a
    teacher's file names is imported only if you name it here."""

    temperature: float = option(1.0, name="teacher_temperature", above=0)
    """Temperature of the teachers' policies: values below 1 make their probable actions
    more probable (Rusu et al. 2016, equation 3)."""


@dataclasses.dataclass(frozen=True)
class Muon(Choice):
    """Orthogonalised momentum for hidden matrices, AdamW for all other weights."""

    matrix_lr: float = option(0.06, name="muon_lr", above=0)
    """Learning rate of the hidden matrices at the start; same schedule as --lr. The
    default is 0.045 on tiles, 0.015 with --loss impala, and 0.03 with several
    levels."""

    momentum: float = option(0.95, flag=False, between=(0, 1))
    """Momentum of the hidden matrices (Jordan et al. 2024). The default is 0.8 with
    --lag 1 or more."""

    weight_decay: float = option(0.0, least=0)
    """Decoupled weight decay."""

    eps: float = option(_ADAM_EPS, name="adam_eps", flag=False)
    """Epsilon of AdamW."""


@dataclasses.dataclass(frozen=True)
class AdamW(Choice):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    weight_decay: float = option(0.0, least=0)
    """Decoupled weight decay."""

    eps: float = option(_ADAM_EPS, name="adam_eps", flag=False)
    """Epsilon beside the root of the second moment."""

    def build(self, groups: Groups, *, capturable: bool) -> torch.optim.Optimizer:
        """Fused: one kernel over all parameters, on both CPU and CUDA."""
        options = dataclasses.asdict(self)
        return torch.optim.AdamW(groups, capturable=capturable, fused=True, **options)


@dataclasses.dataclass(frozen=True)
class Adam(Choice):
    """Adam (Kingma & Ba 2015)."""

    eps: float = option(_ADAM_EPS, name="adam_eps", flag=False)
    """Epsilon beside the root of the second moment."""

    def build(self, groups: Groups, *, capturable: bool) -> torch.optim.Optimizer:
        """Fused: one kernel over all parameters, on both CPU and CUDA."""
        options = dataclasses.asdict(self)
        return torch.optim.Adam(groups, capturable=capturable, fused=True, **options)


@dataclasses.dataclass(frozen=True)
class RMSprop(Choice):
    """RMSprop (Tieleman & Hinton 2012)."""

    alpha: float = option(0.99, name="rmsprop_alpha", flag=False, between=(0, 1))
    """Decay of the squares (Espeholt et al. 2018, table D.1)."""

    eps: float = option(0.01, name="rmsprop_eps", flag=False)
    """Epsilon beside the root (as in Cleanba and TorchBeast)."""

    def build(self, groups: Groups, *, capturable: bool) -> torch.optim.Optimizer:
        """Recorded steps need foreach: the loop over parameters asks for the rate."""
        options = dataclasses.asdict(self) | {"foreach": capturable or None}
        return torch.optim.RMSprop(groups, capturable=capturable, **options)


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """How the network learns. Values without a source belong to the CPU recipe."""

    loss: Ppo | Impala | Distillation = Ppo()
    """ppo: PPO's clipped ratio, several epochs per batch (Schulman et al. 2017);
    impala: V-trace policy gradient (Espeholt et al. 2018); distillation: imitates the
    policies of --teachers, without a reward (Rusu et al. 2016)."""

    advantages: Literal["vtrace", "one-step", "gae"] = option(
        "vtrace",
        needs=(
            any_of(in_use("lag"), one_of("mode", "async"), one_of("loss", "impala")),
        ),
        needed_by="gae",
    )
    """vtrace: corrected for policy lag (Espeholt et al. 2018); gae: not corrected
    (Schulman et al. 2016), without replay; one-step: for the impala loss, GAE with
    the gradient of each step times its clipped ratio (1-step importance sampling,
    section 5.2.2 of Espeholt et al.). For PPO without lag, vtrace and gae are equal,
    because V-trace then clips nothing."""

    unroll: int = option(32, least=1)
    """Steps of one environment in an unroll, T."""

    unrolls_per_batch: int = option(64, least=1)
    """Fresh unrolls per update, over all processes; --replay-share adds replayed
    unrolls. The default with --lag is 32, or 16 with --loss impala, as is --num-envs
    (sync mode on a CPU, one level, no replay)."""

    epochs: int = option(2, least=1)
    """Epochs over a training batch. The default is 3 with several levels. 1-1 took 10 %
    more environment steps with one epoch, and as many with three as with two."""

    minibatch_size: int = option(1024, least=1)
    """Rows per gradient step, over all processes; with --loss impala or a memory,
    whole unrolls with this many rows in total. With 512 rows 1-1 took as many
    environment steps and twice as many gradient steps, and fewer learning rates
    worked."""

    grad_accum_steps: int = option(1, least=1)
    """Parts of a minibatch, computed one after the other; the sum of their gradients
    gives the same gradient step with less memory."""

    gamma: float = option(0.93, between=(0, 1))
    """Discount per step of 6 frames (0.95 per 4 frames). The default is 0.95 with
    several levels, and with any level but 1-1 on tiles."""

    lam: float = option(0.95, between=(0, 1))
    """Lambda of the value targets and advantages (1 in the paper of V-trace)."""

    rho_bar: float = option(1.0, flag=False, least=0)
    """Clip of the ratios in V-trace's temporal differences (Espeholt et al. 2018).
    Replay needs rho_bar and c_bar: with --replay-share 0.5, PPO cleared 8 % without
    them and 68 % with them."""

    c_bar: float = option(1.0, flag=False, least=0)
    """Clip of the ratios in V-trace's trace (Espeholt et al. 2018)."""

    normalise_advantages: bool = option(True, flag=False)
    """Shift and scale the advantages of each minibatch to mean 0 and deviation 1."""

    value_loss: Literal["huber", "squared"] = option("huber", flag=False)
    """Loss of the critic. The default is squared with several levels, and with any
    level but 1-1 on tiles: with huber the critic predicts a median, which ignores
    deaths with a probability below 50 %."""

    value_coef: float = option(0.5, least=0)
    """Weight of the critic's loss (as in the code of IMPALA)."""

    optimizer: Muon | AdamW | Adam | RMSprop = Muon()
    """Optimiser. muon (Jordan et al. 2024) orthogonalises the steps of hidden matrices
    at --muon-lr and leaves all other weights to AdamW at --lr. 1-1 takes half as many
    steps with muon (docs/lab-book.md)."""

    lr: float = option(2e-3, above=0)
    """Learning rate at the start. The default is 1e-3 with several levels and with any
    optimiser but muon, and 1.5e-3 on tiles."""

    lr_end: float = option(1e-4, least=0)
    """Learning rate at the end of its schedule."""

    lr_steps: int = 800_000
    """Environment steps of the schedule. With adam and 500 k steps, the clear rate of
    one of two seeds stayed at 50 % (docs/lab-book.md)."""

    lr_schedule: Literal["linear", "cosine"] = "linear"
    """Shape of the schedule from --lr to --lr-end."""

    warmup_updates: int = option(0, least=0)
    """Updates over which the learning rate rises from 0 to --lr."""

    entropy: float = option(0.01, least=0, needs=_A_REWARD)
    """Weight of the entropy bonus at the start."""

    entropy_end: float = option(0.001, least=0, needs=_A_REWARD)
    """Weight of the entropy bonus at the end of its schedule."""

    entropy_steps: int = 480_000
    """Environment steps of the linear schedule of the entropy bonus."""

    imitation: float = option(0.0, least=0)
    """Weight of the imitation loss at the start; 0: none. The loss is the cross-entropy
    of the demonstrated actions (as in Rajeswaran et al. 2018, section 4.2). The weight
    falls to 0 over --entropy-steps."""

    cloning_steps: int = option(1000, least=0, needs=(in_use("demos"),))
    """Gradient steps that clone the policy from --demos before the first update; 0:
    none. Each minimises the cross-entropy of 256 rows."""

    max_grad_norm: float = option(0.5, above=0)
    """Clip of the norm of the gradient; 0.5 to 1 suits losses that are means."""

    ema: float = option(0.9, between=(0, 1))
    """Decay per update of an exponential moving average of the weights, which
    evaluations, videos and saved policies use; 0: none. Four of four seeds passed their
    first evaluation with the average, and one of three without."""

    learner_threads: int = option(0, least=0)
    """CPU threads that share a minibatch; 0: one per core, with at least 64 rows per
    thread. Not used on a GPU."""

    def check(self) -> None:
        """Raises ValueError if the loss and the advantages exclude each other."""
        if isinstance(self.loss, Ppo) and self.advantages == "one-step":
            raise ValueError(
                "advantages=one-step needs loss=impala; the loss of PPO already has "
                "the ratio of each step: choose advantages=gae"
            )
        if isinstance(self.loss, Distillation) and not self.loss.teachers:
            raise ValueError(
                "loss=distillation needs --teachers: a run, a checkpoint, or a folder "
                "with one policy per level"
            )


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """Prioritized replay of unrolls (Schaul et al. 2016; Schmitt et al. 2020)."""

    replay_share: float = option(0.0, between=(0, MAX_REPLAY_SHARE))
    """Share of replayed unrolls in an update, at most 0.75; 0: no replay. With 0.5 an
    update has as many replayed unrolls as fresh ones and takes twice as long. No share
    gave a gain on 1-1 (docs/results.md)."""

    replay_capacity: int = option(256, needs=_REPLAY, least=1)
    """Unrolls kept, over all processes. Larger replays hold older unrolls."""

    replay_alpha: float = option(0.7, needs=_REPLAY, between=(0, 1))
    """Exponent of the priorities, which are the mean |advantage| of an unroll. 0
    samples uniformly, which gave the same results on 1-1."""

    replay_beta: float = option(0.4, flag=False, between=(0, 1))
    """Exponent of the importance weights at the start (Schaul et al. 2016)."""

    replay_max_kl: float = option(1.0, flag=False)
    """The loss leaves out unrolls whose mean KL(pi || mu) is above this."""

    replay_min_rho: float = option(0.3, flag=False)
    """The loss leaves out unrolls whose mean clipped ratio pi / mu is below this."""

    burn_in: int = option(0, least=0)
    """Rows before each unroll that only update the state of the memory (R2D2,
    Kapturowski et al. 2019)."""


@dataclasses.dataclass(frozen=True)
class AugmentConfig:
    """Data augmentation on the device (DrAC, Raileanu et al. 2021).

    A loss term pulls the policy's output for changed images towards its output for the
    original images.
    """

    augment: tuple[str, ...] = ()
    """Changes to observations, separated by commas: shift (Kostrikov et al. 2021; by
    one cell for tiles), brightness, flip (with mirrored actions, for --action-set
    complex). A gradient step takes about twice as long. With shift, 1-1 had a fifth
    fewer clears, because all of its images look alike."""

    augment_coef: float = option(0.1, flag=False, least=0)
    """Weight of the augmentation loss (Raileanu et al. 2021, appendix F)."""
