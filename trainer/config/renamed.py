"""Old names of options: a command line with one of them gets the new name."""

from __future__ import annotations

from collections.abc import Sequence

# Old flags and their new names.
FLAGS = {
    "passes": "epochs",
    "accumulate": "grad_accum_steps",
    "value_cost": "value_coef",
    "frontier_share": "snapshot_share",
}
# Old values of flags and their new names.
VALUES = {
    ("loss", "clip"): "ppo",
    ("model", "femto"): "cnn-72k",
    ("model", "pico"): "cnn-157k",
    ("model", "nano"): "cnn-345k",
}
# Fields that only Python sets.
PYTHON = {
    "img_height": "EnvConfig.img_height; by default the network's own size",
    "img_width": "EnvConfig.img_width; by default the network's own size",
    "hud": "EnvConfig.hud",
    "layer_norm": "ModelConfig.layer_norm",
    "memory_heads": "GTrXL.heads",
    "popart_step": "ModelConfig.popart_step",
    "momentum": "Muon.momentum",
    "adam_eps": "the eps of Muon, AdamW and Adam",
    "rmsprop_alpha": "RMSprop.alpha",
    "rmsprop_eps": "RMSprop.eps",
    "rho_bar": "LearnerConfig.rho_bar",
    "c_bar": "LearnerConfig.c_bar",
    "normalise_advantages": "LearnerConfig.normalise_advantages",
    "value_loss": "LearnerConfig.value_loss",
    "replay_beta": "ReplayConfig.replay_beta",
    "replay_max_kl": "ReplayConfig.replay_max_kl",
    "replay_min_rho": "ReplayConfig.replay_min_rho",
    "cell_size": "ExploreConfig.cell_size",
    "novelty_by_count": "ExploreConfig.novelty_by_count",
    "augment_cost": "AugmentConfig.augment_coef",
    "solve_rate": "RunConfig.solve_rate",
    "solve_episodes": "RunConfig.solve_episodes",
    "keep_checkpoints": "RunConfig.keep_checkpoints",
}
# Fields that are constants now.
CONSTANTS = {
    "pg_rho_bar": "rho_bar (trainer/config/learning.py)",
    "targets": "chosen by --lag, --mode and --replay-share (trainer/learn/ppo.py)",
    "target_updates": "0: there is no target network",
    "target_rho": "not used: there is no target network",
    "noisy_sigma": "0.5 (trainer/models/heads.py)",
    "replay_bytes": "limited only by --replay-capacity",
    "replay_min_fresh": "0.25 (trainer/config/learning.py)",
    "replay_beta_end": "1 (trainer/config/learning.py)",
    "replay_beta_steps": "1,000,000 (trainer/config/learning.py)",
    "level_floor": "0.1 (trainer/explore/starts.py)",
    "novelty_end": "0",
    "count_bonus_end": "0",
    "augment_shift": "4 (trainer/learn/augment.py)",
    "augment_brightness": "0.2 (trainer/learn/augment.py)",
    "augment_flip": "0.5 (trainer/learn/augment.py)",
    "channels_last": "chosen by device and network (trainer/models/build.py)",
}


def check_names(argv: Sequence[str]) -> None:
    """Raises ValueError for the first old name, or old value, on a command line."""
    for arg, after in zip(argv, [*argv, ""][1:], strict=True):
        if not arg.startswith("--"):
            continue
        word, _, own = arg.removeprefix("--").replace("_", "-").partition("=")
        given, value = word.replace("-", "_"), own or after
        for name in (given, given.removeprefix("no_")):
            flag = f"--{name.replace('_', '-')}"
            if name in FLAGS:
                raise ValueError(f"{flag} is now --{FLAGS[name].replace('_', '-')}")
            if (name, value) in VALUES:
                raise ValueError(f"{flag} {value} is now {flag} {VALUES[name, value]}")
            if name in PYTHON:
                raise ValueError(
                    f"{flag} is no longer a flag; in Python it is {PYTHON[name]}"
                )
            if name in CONSTANTS:
                raise ValueError(f"{flag} was removed; it is now {CONSTANTS[name]}")
