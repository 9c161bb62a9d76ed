"""What no option of a training run may be, alone or beside others.

Every check raises ValueError, which says what was given and what is allowed. Options
that are allowed but change nothing, as others are, are only named: `unused_options`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from trainer.config.schema import RunConfig

# Pools take seeds of 32 bits; a run uses a block of them per seed (collector.py).
MAX_SEED = 20_000


def check_seed(seed: int) -> None:
    """Raises ValueError unless a run or an evaluation can have this seed."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be 0 to {MAX_SEED}, got {seed}")


def check_fields(config: RunConfig) -> None:
    """Raises ValueError for a number that its field never takes."""
    env, learner, replay = config.env, config.learner, config.replay
    explore = config.explore
    check_seed(config.seed)
    _check_least(learner, 1, "unroll unrolls_per_batch epochs minibatch_size")
    _check_least(learner, 1, "grad_accum_steps")
    _check_least(env, 0, "img_height img_width")
    _check_least(learner, 0, "warmup_updates target_updates learner_threads")
    _check_least(learner, 1, "target_rho")
    _check_above_0(learner, "lr muon_lr max_grad_norm")
    _check_least(config, 1, "max_steps solve_episodes keep_checkpoints")
    _check_least(config, 0, "max_seconds lag profile end_episodes")
    _check_least(learner, 0, "entropy entropy_end lr_end weight_decay clip_range")
    _check_least(learner, 0, "rho_bar c_bar pg_rho_bar value_coef")
    _check_least(config.model, 1, "memory_size memory_layers memory_heads")
    _check_least(config.model, 1, "memory_steps")
    _check_least(config.model, 0, "value_heads")
    _check_above_0(config.model, "popart_step")
    _check_least(config, 0, "log_seconds checkpoint_seconds")
    _check_least(replay, 0, "replay_bytes burn_in")
    _check_least(replay, 1, "replay_beta_steps")
    _check_share(learner, "gamma lam ema momentum rmsprop_alpha")
    _check_share(config.model, "popart_step")
    _check_share(config, "solve_rate")
    _check_least(config.augmentation, 0, "augment_coef augment_shift")
    _check_share(config.augmentation, "augment_brightness augment_flip")
    _check_share(replay, "replay_share replay_min_fresh replay_alpha")
    _check_share(replay, "replay_beta replay_beta_end")
    _check_share(explore, "frontier_share level_floor")
    _check_least(explore, 1, "cell_size")
    _check_least(explore, 0, "novelty novelty_end count_bonus count_bonus_end")
    _check_least(explore, 0, "bonus_steps")


def check_combinations(config: RunConfig) -> None:
    """Raises ValueError for options that exclude each other."""
    env = config.env
    if not 1 <= env.groups <= env.num_envs or env.num_envs % env.groups:
        raise ValueError(
            f"groups must divide num_envs={env.num_envs}, got {env.groups}"
        )
    _check_observations(config)
    _check_levels(config)
    _check_learning(config)
    if config.explore.starts == "frontier" and config.explore.frontier_share == 1:
        raise ValueError(
            "frontier_share must be below 1, got 1: no episode would begin at a level's"
            " start, and only those count in clear rates"
        )
    if config.serial and config.lag:
        raise ValueError(f"serial has no overlap: lag must be 0, got {config.lag}")
    if config.mode == "sync" and config.fresh_unrolls % env.num_envs:
        raise ValueError(
            f"in sync mode a batch holds whole rounds of unrolls: the "
            f"{config.fresh_unrolls} fresh ones (unrolls_per_batch less "
            f"replay_share) must be a multiple of num_envs={env.num_envs}; "
            "raise unrolls_per_batch, lower num_envs, or choose mode=async"
        )
    if config.replay.replay_share:
        _check_replay(config)


def _check_observations(config: RunConfig) -> None:
    """Raises ValueError for a network that is not for what is observed."""
    name, env = config.model.name, config.env
    if ":" not in name and (name == "tiles") != (env.obs == "tiles"):
        raise ValueError(
            f"model={name} does not take obs={env.obs}; the model for tiles is "
            "tiles, or one of your own as module:Class"
        )
    if env.obs == "tiles" and env.stack_num != 1:
        raise ValueError(
            f"obs=tiles needs stack_num=1, got {env.stack_num}: speeds are in it; "
            "for more of the past take --memory gru"
        )
    from trainer.config.schema import TILES_SHAPE

    sizes = (env.img_height or TILES_SHAPE[1], env.img_width or TILES_SHAPE[2])
    if env.obs == "tiles" and sizes != TILES_SHAPE[1:]:
        raise ValueError(
            f"obs=tiles has one size: leave out img_height={env.img_height} and "
            f"img_width={env.img_width}"
        )


def _check_levels(config: RunConfig) -> None:
    """Raises ValueError for levels that are not there, or what does not fit them."""
    count, heads = len(config.resolved().env.levels), config.model.value_heads
    if heads > 1 and heads != count:
        raise ValueError(
            f"value_heads must be 1, or 0 for one per level of --levels, of which "
            f"there are {count}; got {heads}"
        )
    kind, floor = config.explore.level_sampling, config.explore.level_floor
    if count > 1 and kind == "learnability" and not floor:
        raise ValueError(
            "level_floor must be above 0 with level_sampling=learnability, got 0: a "
            "level without clears would never be played again"
        )


def _check_learning(config: RunConfig) -> None:
    """Raises ValueError for losses and targets that do not go together."""
    learner, burn_in = config.learner, config.replay.burn_in
    if burn_in > learner.unroll:
        raise ValueError(
            f"burn_in must be at most unroll={learner.unroll}, got {burn_in}"
        )
    if learner.loss == "impala" and learner.advantages == "gae":
        raise ValueError("advantages=gae needs loss=ppo; impala is V-trace")
    if learner.loss == "impala" and learner.target_updates:
        raise ValueError("target_updates needs loss=ppo; impala clips no ratio")
    if learner.target_updates and learner.targets == "stored":
        raise ValueError(
            "target_updates needs targets=recomputed: its network says anew what "
            "was stored"
        )


def _check_replay(config: RunConfig) -> None:
    """Raises ValueError for what replay cannot work with."""
    learner, replay = config.learner, config.replay
    least = replay.replay_min_fresh * learner.unrolls_per_batch
    if config.fresh_unrolls < max(1, round(least)):
        raise ValueError(
            f"replay_share={replay.replay_share} leaves less than "
            f"replay_min_fresh={replay.replay_min_fresh} of fresh unrolls"
        )
    if learner.advantages == "gae" or learner.targets == "stored":
        raise ValueError(
            "replay needs advantages=vtrace and targets=recomputed: what was "
            "stored belongs to an older policy"
        )
    _check_least(replay, 1, "replay_capacity")


def _check_least(config: Any, least: float, names: str) -> None:
    """Raises ValueError for a field below its least value."""
    for name in names.split():
        value = getattr(config, name)
        if not value >= least:
            raise ValueError(f"{name} must be at least {least:g}, got {value}")


def _check_above_0(config: Any, names: str) -> None:
    """Raises ValueError for a field that is not above 0."""
    for name in names.split():
        value = getattr(config, name)
        if not value > 0:
            raise ValueError(f"{name} must be above 0, got {value}")


def _check_share(config: Any, names: str) -> None:
    """Raises ValueError for a field outside of 0 to 1."""
    for name in names.split():
        value = getattr(config, name)
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be 0 to 1, got {value}")


def _has_several_levels(config: RunConfig) -> bool:
    """Whether the episodes of a resolved config are of several levels, one by one."""
    return len(config.env.levels) > 1


def _plays_mario(config: RunConfig) -> bool:
    """Whether the environments are ours, not EnvPool's own."""
    from trainer.config.tasks import is_native

    return is_native(config.env.task)


class _Needs(NamedTuple):
    """Options that mean something only if others have some value."""

    names: str
    used: Callable[[RunConfig], bool]
    others: str


_NEEDS = [
    _Needs(
        "hud repeat_action_probability action_set stall_steps reward "
        "reward_progress reward_step reward_death reward_flag reward_scale",
        _plays_mario,
        "a task of Super Mario Bros.",
    ),
    _Needs("hud", lambda c: c.env.obs != "tiles", "--obs pixels"),
    _Needs(
        "reward_progress reward_step reward_death reward_flag reward_scale",
        lambda c: c.env.reward == "progress",
        "--reward progress",
    ),
    _Needs(
        "memory_size", lambda c: c.model.memory != "none", "--memory gru, lstm or gtrxl"
    ),
    _Needs(
        "memory_layers memory_heads memory_steps",
        lambda c: c.model.memory == "gtrxl",
        "--memory gtrxl",
    ),
    _Needs("popart_step", lambda c: c.model.popart, "--popart"),
    _Needs("noisy_sigma", lambda c: c.model.noisy, "--noisy"),
    _Needs("clip_range targets", lambda c: c.learner.loss == "ppo", "--loss ppo"),
    _Needs("pg_rho_bar", lambda c: c.learner.loss == "impala", "--loss impala"),
    _Needs(
        "rho_bar c_bar",
        lambda c: c.learner.advantages == "vtrace",
        "--advantages vtrace",
    ),
    _Needs("target_rho", lambda c: c.learner.target_updates > 0, "--target-updates"),
    _Needs(
        "muon_lr momentum", lambda c: c.learner.optimizer == "muon", "--optimizer muon"
    ),
    _Needs(
        "weight_decay",
        lambda c: c.learner.optimizer in ("adamw", "muon"),
        "--optimizer adamw or muon",
    ),
    _Needs(
        "adam_eps",
        lambda c: c.learner.optimizer != "rmsprop",
        "--optimizer adam, adamw or muon",
    ),
    _Needs(
        "rmsprop_alpha rmsprop_eps",
        lambda c: c.learner.optimizer == "rmsprop",
        "--optimizer rmsprop",
    ),
    _Needs(
        "replay_capacity replay_bytes replay_alpha replay_beta replay_beta_end "
        "replay_beta_steps replay_max_kl replay_min_rho replay_min_fresh "
        "checkpoint_replay",
        lambda c: c.replay.replay_share > 0,
        "--replay-share",
    ),
    _Needs("checkpoint_replay", lambda c: c.mode == "sync", "--mode sync"),
    _Needs(
        "frontier_share", lambda c: c.explore.starts == "frontier", "--starts frontier"
    ),
    _Needs("level_sampling level_floor", _has_several_levels, "several --levels"),
    _Needs(
        "level_floor",
        lambda c: c.explore.level_sampling != "uniform",
        "--level-sampling other than uniform",
    ),
    _Needs(
        "cell_size",
        lambda c: c.explore.starts == "frontier" or c.explore.pays,
        "--starts frontier, --novelty or --count-bonus",
    ),
    _Needs(
        "novelty_by_count",
        lambda c: c.explore.novelty > 0 or c.explore.novelty_end > 0,
        "--novelty",
    ),
    _Needs("bonus_steps", lambda c: c.explore.pays, "--novelty or --count-bonus"),
    _Needs("augment_coef", lambda c: bool(c.augmentation.augment), "--augment"),
    *(
        _Needs(
            f"augment_{kind}",
            lambda c, kind=kind: kind in ",".join(c.augmentation.augment),  # type: ignore[misc]
            f"--augment {kind}",
        )
        for kind in ("shift", "brightness", "flip")
    ),
    _Needs("solve_episodes", lambda c: c.stop_when_solved, "--stop-when-solved"),
    _Needs("end_episodes", lambda c: bool(c.env.levels), "--levels"),
]


def unused_options(config: RunConfig) -> list[str]:
    """Options that differ from their default, and change nothing beside the others.

    Args:
        config: resolved.

    Returns:
        A sentence for each, which names what would make use of it.
    """
    values, defaults = _options(config), _options(type(config)())
    return [
        f"--{name.replace('_', '-')} changes nothing without {needs.others}"
        for needs in _NEEDS
        if not needs.used(config)
        for name in needs.names.split()
        if values[name] != defaults[name]
    ]


def _options(config: Any) -> dict[str, Any]:
    """All options by their own names, of whatever part."""
    result: dict[str, Any] = {}
    for name, value in vars(config).items():
        result |= _options(value) if is_dataclass(value) else {name: value}
    return result
